//! A block: its shared memory, its warps, its barriers.

use crate::fault::{BarrierCountFault, Mistake, place};
use crate::number::LANES;
use crate::program::{BARRIERS, BarrierKind, Op, Vote};
use crate::run::group::Waiting;
use crate::run::warp::{Pause, Warp, bits};
use crate::run::{Run, Stopped, mixed};
use core::cell::Cell;

/// A block that has started.
pub(crate) struct RunningBlock {
    number: u64,
    /// Its coordinates in the grid.
    pub(crate) place: [u32; 3],
    shared: Vec<Cell<u8>>,
    warps: Vec<Warp>,
    /// Those of an earlier launch that has had more of them.
    idle: Vec<Warp>,
    barriers: Barriers,
    /// The warp that runs first in the next round.
    first: usize,
    /// Random numbers of its own, so that its warps run in the same order on whatever core and after whatever blocks.
    random: u64,
}

pub(crate) enum Progress {
    Done,
    /// It has run for long, and may be waiting for another block.
    Slow,
}

/// The barriers of a block.
#[derive(Default)]
pub(crate) struct Barriers {
    gathering: [Arrivals; BARRIERS as usize],
    /// The phases that are complete, whose threads go on at the end of the round.
    complete: Vec<(u32, Arrivals)>,
}

/// One phase of a barrier, which ends when all that it waits for have arrived.
#[derive(Clone, Copy, Default)]
struct Arrivals {
    phase: u32,
    /// The threads that have arrived.
    threads: u32,
    /// The same, where a warp counts whole, as it does for a stated number of threads.
    counted: u32,
    /// The stated number of threads that the barrier waits for; all if `None`.
    expected: Option<u32>,
    is_combining: bool,
    /// The threads that voted yes, and those that voted no.
    yes: u32,
    no: u32,
}

/// Threads of a warp that arrive at a barrier.
pub(crate) struct Arrival {
    pub(crate) number: u32,
    pub(crate) threads: u32,
    /// The threads that a stated number counts for them.
    pub(crate) counted: u32,
    pub(crate) expected: Option<u32>,
    pub(crate) is_combining: bool,
    /// The threads that vote no.
    pub(crate) no: u32,
}

/// The steps of a warp in a turn, and of a block.
const WARP_TURN: u64 = 2_000;
pub(crate) const BLOCK_TURN: u64 = 20_000;
/// The rounds in which nothing changes, after which a block makes room for others.
const STALLED_ROUNDS: u32 = 2;
const KEPT_BYTES_MAX: u64 = 32 << 20;

thread_local! {
    /// A block whose memory the next launch of the thread uses. A program that launches small kernels would otherwise spend most of its time
    /// with the system, which maps and clears the same pages for each.
    static KEPT: Cell<Option<RunningBlock>> = const { Cell::new(None) };
}

/// The block that an earlier launch has left.
pub(crate) fn kept() -> Option<RunningBlock> {
    // While the thread ends, there is none.
    let mut block = KEPT.try_with(Cell::take).ok()??;
    block.warps.iter_mut().chain(&mut block.idle).for_each(Warp::forget_launch);
    Some(block)
}

/// Leaves one of several blocks that are done to the next launch.
pub(crate) fn keep(blocks: Vec<RunningBlock>) {
    let fits = |block: &RunningBlock| block.held_bytes() <= KEPT_BYTES_MAX;
    if let Some(block) = blocks.into_iter().find(fits) {
        let _ = KEPT.try_with(|kept| kept.set(Some(block)));
    }
}

impl Barriers {
    /// The number of the phase at which the next thread arrives.
    pub(crate) fn phase(&self, number: u32) -> u32 {
        self.gathering[number as usize].phase
    }

    /// Lets threads arrive. `block` is the number of the block's threads, by whole warps.
    pub(crate) fn arrive(&mut self, arrival: &Arrival, block: u32) -> Result<(), Mistake> {
        let Arrival { number, threads, counted, expected, is_combining, no } = *arrival;
        if let Some(count) = expected {
            let why = match count {
                _ if !count.is_multiple_of(LANES as u32) || count == 0 => {
                    Some(BarrierCountFault::NoWholeWarps)
                }
                _ if count > block => Some(BarrierCountFault::MoreThanBlock(block)),
                _ => None,
            };
            if let Some(why) = why {
                return Err(Mistake::BarrierCount { number, count, why });
            }
        }
        let phase = &mut self.gathering[number as usize];
        if phase.threads > 0 {
            let [own, others] = [expected, phase.expected].map(|expected| expected.unwrap_or(block));
            if own != others {
                let why = BarrierCountFault::Other(others);
                return Err(Mistake::BarrierCount { number, count: own, why });
            }
            if phase.is_combining != is_combining {
                return Err(Mistake::BarrierMixed { number });
            }
        }
        phase.expected = expected.or(phase.expected);
        phase.is_combining = is_combining;
        phase.threads = phase.threads.saturating_add(threads);
        phase.counted = phase.counted.saturating_add(counted);
        phase.yes = phase.yes.saturating_add(threads - no);
        phase.no = phase.no.saturating_add(no);
        if phase.expected.is_some_and(|expected| phase.counted >= expected) {
            self.complete(number);
        }
        Ok(())
    }

    fn complete(&mut self, number: u32) {
        let phase = &mut self.gathering[number as usize];
        self.complete.push((number, *phase));
        *phase = Arrivals { phase: phase.phase.wrapping_add(1), ..Arrivals::default() };
    }

    fn clear(&mut self) {
        self.gathering = [Arrivals::default(); BARRIERS as usize];
        self.complete.clear();
    }
}

impl RunningBlock {
    /// The block of this number. `spare` is a block that is done, whose memory is used again.
    pub(crate) fn new(run: &mut Run<'_>, number: u64, spare: Option<Self>) -> Self {
        let shape = run.launch.block;
        let threads: u32 = shape.into_iter().product();
        let count = (threads as usize).div_ceil(LANES);
        let place = place(number, run.launch.grid);
        let before = spare.as_ref().map_or(0, Self::held_bytes);
        let mut block = spare.unwrap_or_else(|| Self {
            number,
            place,
            shared: Vec::new(),
            warps: Vec::new(),
            idle: Vec::new(),
            barriers: Barriers::default(),
            first: 0,
            random: 0,
        });
        let others = count.min(block.warps.len());
        block.idle.extend(block.warps.drain(others..));
        while block.warps.len() < count {
            block.warps.push(block.idle.pop().unwrap_or_default());
        }
        (block.number, block.place) = (number, place);
        block.random = mixed(run.launch.seed.wrapping_add(mixed(number + 1)));
        block.barriers.clear();
        block.shared.clear();
        let shared_bytes = run.shared.last().map_or(0, |last| last.end);
        block.shared.resize(shared_bytes as usize, Cell::new(0));
        for (number, warp) in block.warps.iter_mut().enumerate() {
            warp.start(run, number as u32, threads, place);
        }
        run.held_bytes = run.held_bytes.saturating_sub(before).saturating_add(block.held_bytes());
        block
    }

    pub(crate) fn held_bytes(&self) -> u64 {
        let warps = self.warps.iter().chain(&self.idle);
        self.shared.capacity() as u64 + warps.map(Warp::held_bytes).sum::<u64>()
    }

    /// Runs the block until it is done, or has run for long.
    pub(crate) fn run(&mut self, run: &mut Run<'_>) -> Result<Progress, Stopped> {
        core::mem::swap(&mut self.random, &mut run.random);
        let progress = self.turn(run);
        core::mem::swap(&mut self.random, &mut run.random);
        progress
    }

    fn turn(&mut self, run: &mut Run<'_>) -> Result<Progress, Stopped> {
        let end = run.steps + BLOCK_TURN;
        if let Some(checker) = &mut run.checker {
            checker.enter(self.number);
        }
        let mut stalled_rounds = 0;
        loop {
            let before = run.steps;
            let mut is_done = true;
            let (mut is_slow, mut is_stalled) = (false, false);
            run.is_memory_changed = false;
            self.first = run.next_random() as usize % self.warps.len().max(1);
            for turn in 0..self.warps.len() {
                let index = (self.first + turn) % self.warps.len();
                let warp = &mut self.warps[index];
                let turn_end = (run.steps + WARP_TURN).min(run.launch.steps_max);
                match warp.run(run, &self.shared, &mut self.barriers, turn_end)? {
                    Pause::Done => {}
                    Pause::Waiting => is_done = false,
                    Pause::Slow => (is_done, is_slow) = (false, true),
                    Pause::Stalled => (is_done, is_stalled) = (false, true),
                }
            }
            if is_done {
                if let Some(checker) = &mut run.checker {
                    checker.leave();
                }
                return Ok(Progress::Done);
            }
            let is_released = self.release(run);
            if run.steps >= run.launch.steps_max {
                return Err(self.stopped(Mistake::TooLong(run.steps)));
            }
            if !is_released && !is_slow && !is_stalled && run.steps == before {
                return Err(self.stuck());
            }
            // All that can run look at memory that no thread of the block changes, and another block may.
            let is_still = is_stalled && !is_slow && !is_released && !run.is_memory_changed;
            let is_waiting = is_still && !run.program.is_of_blocks_apart;
            stalled_rounds = if is_waiting { stalled_rounds + 1 } else { 0 };
            if run.steps >= end || stalled_rounds == STALLED_ROUNDS {
                return Ok(Progress::Slow);
            }
        }
    }

    /// Opens the barriers at which all have arrived. Returns true if there was one.
    fn release(&mut self, run: &mut Run<'_>) -> bool {
        let alive: u32 = self.warps.iter().map(|warp| warp.alive().count_ones()).sum();
        for number in 0..BARRIERS as u32 {
            let phase = &self.barriers.gathering[number as usize];
            if phase.threads > 0 && phase.expected.is_none() && phase.threads >= alive {
                self.barriers.complete(number);
            }
        }
        let mut complete = core::mem::take(&mut self.barriers.complete);
        for (number, phase) in &complete {
            self.open(run, *number, phase, alive);
        }
        let is_released = !complete.is_empty();
        complete.clear();
        self.barriers.complete = complete;
        is_released
    }

    /// Lets the threads go on that wait for a phase of a barrier.
    fn open(&mut self, run: &mut Run<'_>, number: u32, arrivals: &Arrivals, alive: u32) {
        let Arrivals { phase, expected, yes, no, .. } = *arrivals;
        let mut waiting = Vec::new();
        for warp in &mut self.warps {
            for index in 0..warp.groups.len() {
                let group = &mut warp.groups[index];
                if group.waiting != (Waiting::Barrier { number, phase }) {
                    continue;
                }
                group.waiting = Waiting::No;
                let (pc, mask, base) = (group.pc, group.mask, group.frame.registers);
                group.pc += 1;
                if run.checker.is_some() {
                    waiting.extend(bits(mask).map(|lane| warp.number * LANES as u32 + lane as u32));
                }
                if let Op::Barrier(barrier) = &run.program.steps[pc as usize].op
                    && let BarrierKind::Combine { vote, to, .. } = barrier.kind
                {
                    let value = match vote {
                        Vote::Count => yes,
                        Vote::All => u32::from(no == 0),
                        _ => u32::from(yes > 0),
                    };
                    warp.write(base + to, &[u64::from(value); LANES], mask);
                }
            }
        }
        if let Some(checker) = &mut run.checker {
            // Threads that have ended count as arrived, but not for a stated number of threads.
            let has_none_ended = alive == run.launch.block.into_iter().product();
            let is_whole = (expected.is_none() || has_none_ended) && waiting.len() == alive as usize;
            checker.open((number, phase), &waiting, is_whole, run.steps);
        }
    }

    /// The mistake of a block in which nothing can go on.
    fn stuck(&self) -> Stopped {
        let groups = self.warps.iter().flat_map(|warp| warp.groups.iter().map(move |group| (warp, group)));
        let lanes = groups.clone().find(|(_, group)| group.waiting == Waiting::Lanes);
        let Some((warp, group)) = lanes.or_else(|| groups.clone().next()) else {
            return Stopped { mistake: Mistake::Deadlock { why: String::new() }, step: 0, thread: 0 };
        };
        let why = match group.waiting {
            Waiting::Barrier { number, .. } => {
                let arrived = &self.barriers.gathering[number as usize];
                let alive: u32 = self.warps.iter().map(|warp| warp.alive().count_ones()).sum();
                let (threads, expected) = match arrived.expected {
                    Some(expected) => (arrived.counted, expected),
                    None => (arrived.threads, alive),
                };
                format!(
                    "{threads} threads are at barrier {number}, which waits for {expected}, and no other thread can go on"
                )
            }
            _ => "lanes that its mask names are not at the same instruction, and cannot get there".into(),
        };
        Stopped {
            mistake: Mistake::Deadlock { why },
            step: group.pc,
            thread: warp.number * LANES as u32 + group.mask.trailing_zeros(),
        }
    }

    /// A mistake at the place of a thread that still runs, rather than of one that waits at a barrier.
    fn stopped(&self, mistake: Mistake) -> Stopped {
        let groups = || self.warps.iter().flat_map(|warp| warp.groups.iter().map(move |group| (warp, group)));
        let running = groups().find(|(_, group)| group.waiting == Waiting::No).or_else(|| groups().next());
        let (step, thread) = running.map_or((0, 0), |(warp, group)| {
            (group.pc, warp.number * LANES as u32 + group.mask.trailing_zeros())
        });
        Stopped { mistake, step, thread }
    }
}

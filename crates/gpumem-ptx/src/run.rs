//! Runs a kernel: blocks one after the other, in an order that the seed chooses; the warps of a block in turns, until each waits. Of a large
//! launch, blocks run on several cores if the outcome is the same (`cores.rs`).

mod access;
mod barrier;
mod block;
mod call;
mod copied;
mod cores;
mod exchange;
mod follow;
mod group;
mod matrix;
mod print;
mod surroundings;
mod transfer;
mod undefined;
mod warp;

use crate::check::{Checker, Checks};
use crate::fault::{AccessPlace, KernelMistake, Mistake, place};
use crate::memory::{DeviceMemory, Ranges, Region, Sought, Touched};
use crate::number::{LANES, Lanes};
use crate::program::{Constant, Program, SHARED_GAP_BYTES};
use crate::run::access::SiteRange;
use crate::run::block::{Progress, RunningBlock};
use crate::run::copied::{Copied, Piece};
use crate::run::surroundings::Surroundings;
use core::ops::Range;
use core::sync::atomic::Ordering;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

/// A launch of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'l> {
    /// The blocks in each direction.
    pub grid: [u32; 3],
    /// The threads of a block in each direction, 1024 at most in all.
    pub block: [u32; 3],
    /// The dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// The parameters, each at its offset.
    pub parameters: &'l [u8],
    /// The addresses of the module's variables, in their order.
    pub variables: &'l [u64],
    /// Chooses the order of blocks and warps.
    pub seed: u64,
    /// The steps of warps after which the kernel is stopped.
    pub steps_max: u64,
    /// The multiprocessors of the device, which `%nsmid` reads.
    pub multiprocessors: u32,
    /// What else is looked for.
    pub checks: Checks,
    /// The most cores on which blocks run at the same time. The outcome is the same for each number.
    pub cores: usize,
}

/// What a launch did.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The bytes that it accessed, up to the mistake that ended it if there is one.
    pub touched: Touched,
    /// The text that it printed.
    pub printed: String,
    /// The instructions that warps executed.
    pub steps: u64,
    /// What the [`Checks`] found. It did not end the launch.
    pub hazards: Vec<KernelMistake>,
    /// The mistake that ended it.
    pub mistake: Option<KernelMistake>,
}

/// What all blocks of a launch share.
pub(crate) struct Run<'r> {
    pub(crate) program: &'r Program,
    pub(crate) launch: Launch<'r>,
    pub(crate) constants: Vec<Lanes>,
    /// The constant memory of the module, in rising order.
    read_only: Vec<Range<u64>>,
    /// The places of the variables in shared memory, the dynamic one behind the others.
    pub(crate) shared: Vec<Range<u64>>,
    pub(crate) steps: u64,
    pub(crate) random: u64,
    /// The step that runs, if it is none of arithmetic.
    pub(crate) at: u32,
    pub(crate) checker: Option<Box<Checker<'r>>>,
    /// A thread has written since this was last reset.
    pub(crate) is_memory_changed: bool,
    pub(crate) printed: String,
    /// The bytes of the blocks that run, and of those that are done and wait to be used again.
    pub(crate) held_bytes: u64,
    /// What the steps around each barrier say at which a part of a warp has waited.
    surroundings: HashMap<u32, Rc<Surroundings>>,
    memory: &'r dyn DeviceMemory,
    /// What the memory has given so far, by the addresses, and the one that was used last.
    regions: Vec<Region<'r>>,
    last: usize,
    /// The bytes that each access of the program touched last.
    sites: Vec<SiteRange>,
    /// What was accessed, by the kinds of [`Touched`].
    touched: [Ranges; 4],
}

/// Where a mistake happened, as the run knows it.
pub(crate) struct Stopped {
    pub(crate) mistake: Mistake,
    pub(crate) step: u32,
    /// The thread's number in the block.
    pub(crate) thread: u32,
}

/// Runs a kernel.
pub(crate) fn run(program: &Program, launch: Launch<'_>, memory: &dyn DeviceMemory) -> Outcome {
    let mut run = Run::new(program, launch, memory);
    let mistake = run.blocks();
    run.outcome(mistake)
}

/// Runs a kernel on copies of the memory, which does not change, and looks for an access.
pub(crate) fn find(
    program: &Program,
    launch: Launch<'_>,
    memory: &dyn DeviceMemory,
    sought: &Sought,
) -> (Option<AccessPlace>, Outcome) {
    let copies = Copied::new(|address, size_bytes, is_write| {
        let region = memory.region(address, size_bytes, is_write)?;
        Some(Piece::of(&region, address))
    });
    let launch = Launch { checks: Checks::default(), cores: 1, ..launch };
    let mut run = Run::new(program, launch, &copies);
    let mut checker = Checker::new(launch.checks, program, launch.grid, launch.block);
    checker.seek(sought);
    run.checker = Some(Box::new(checker));
    let mistake = run.blocks();
    let found = run.checker.as_mut().and_then(|checker| checker.take_found());
    (found, run.outcome(mistake))
}

impl<'r> Run<'r> {
    pub(crate) fn new(program: &'r Program, launch: Launch<'r>, memory: &'r dyn DeviceMemory) -> Self {
        let dynamic = match program.shared.last() {
            Some(last) => (last.end + SHARED_GAP_BYTES).next_multiple_of(program.dynamic_align),
            None => 0,
        };
        let mut shared = program.shared.clone();
        if launch.shared_bytes > 0 {
            shared.push(dynamic..dynamic + u64::from(launch.shared_bytes));
        }
        let constants = program.constants.iter().map(|constant| {
            let value = match *constant {
                Constant::Bits(bits) => bits,
                Constant::Global(variable, distance) => launch
                    .variables
                    .get(variable as usize)
                    .copied()
                    .unwrap_or(0)
                    .wrapping_add_signed(distance),
                Constant::DynamicShared(distance) => dynamic.wrapping_add_signed(distance),
            };
            [value; LANES]
        });
        let read_only = program.read_only.iter().filter_map(|(variable, size_bytes)| {
            let start = *launch.variables.get(*variable as usize)?;
            Some(start..start.saturating_add(*size_bytes)).filter(|range| start > 0 && !range.is_empty())
        });
        let mut read_only: Vec<Range<u64>> = read_only.collect();
        read_only.sort_unstable_by_key(|range| range.start);
        Self {
            program,
            launch,
            read_only,
            constants: constants.collect(),
            shared,
            steps: 0,
            random: launch.seed,
            at: 0,
            checker: (launch.checks != Checks::default())
                .then(|| Box::new(Checker::new(launch.checks, program, launch.grid, launch.block))),
            is_memory_changed: false,
            printed: String::new(),
            held_bytes: 0,
            surroundings: HashMap::new(),
            memory,
            regions: Vec::new(),
            last: 0,
            sites: vec![SiteRange::default(); program.sites as usize],
            touched: core::array::from_fn(|_| Ranges::new()),
        }
    }
}

impl Run<'_> {
    /// Runs all blocks, up to the first mistake.
    pub(crate) fn blocks(&mut self) -> Option<KernelMistake> {
        let total: u64 = self.launch.grid.into_iter().map(u64::from).product();
        let order = BlockOrder::new(total, self.next_random());
        let is_apart = self.program.is_of_blocks_apart && self.checker.is_none();
        let is_on_one_core = self.launch.cores < 2 || self.program.is_on_one_core.load(Ordering::Relaxed);
        let mut may_spread = is_apart && !is_on_one_core;
        let mut started = 0;
        let mut waiting: VecDeque<RunningBlock> = VecDeque::new();
        let mut spare = Vec::from_iter(block::kept());
        self.held_bytes = spare.iter().map(RunningBlock::held_bytes).sum();
        loop {
            // A block that waits for another one, with a loop, makes room for it. Many that run make room more rarely.
            let one_in = match waiting.len() {
                _ if spare.is_empty() && self.held_bytes >= RESIDENT_BYTES => 256,
                0..RESIDENT => 2,
                _ => 16,
            };
            let has_room = !spare.is_empty() || self.held_bytes < HELD_BYTES_MAX;
            // The first block shows how many steps the others will take. It runs alone, on one core, too, so that the order is the same.
            let is_first_alone = is_apart && started == 1 && self.steps < FIRST_STEPS_MAX;
            let is_new_wanted = waiting.is_empty()
                || has_room
                    && !is_first_alone
                    && waiting.len() < RESIDENT_MAX
                    && self.next_random().is_multiple_of(one_in);
            if may_spread && waiting.is_empty() && cores::is_worth_it(self.steps, started, total) {
                may_spread = false;
                if cores::spread(self, &order, started) {
                    block::keep(spare);
                    return None;
                }
            }
            let mut block = match waiting.pop_front() {
                Some(block) if started == total || !is_new_wanted => block,
                popped => {
                    waiting.extend(popped);
                    if started == total {
                        block::keep(spare);
                        return None;
                    }
                    started += 1;
                    RunningBlock::new(self, order.at(started - 1), spare.pop())
                }
            };
            match block.run(self) {
                Ok(Progress::Done) => spare.push(block),
                Ok(Progress::Slow) => waiting.push_back(block),
                Err(Stopped { mistake, step, thread }) => {
                    let thread = place(thread.into(), self.launch.block);
                    let line = self.program.steps.get(step as usize).map_or(0, |step| step.line);
                    let source_line = self.program.source_line(step);
                    return Some(KernelMistake { line, source_line, block: block.place, thread, mistake });
                }
            }
        }
    }

    /// What the steps around a barrier say.
    pub(crate) fn surroundings(&mut self, barrier: u32) -> Rc<Surroundings> {
        let program = self.program;
        let known = self.surroundings.entry(barrier);
        Rc::clone(known.or_insert_with(|| Rc::new(Surroundings::of(program, barrier))))
    }

    /// A pseudo-random number. The generator is splitmix64 by Steele, Lea and Flood.
    pub(crate) fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.random)
    }

    fn outcome(self, mistake: Option<KernelMistake>) -> Outcome {
        let mut touched = self.touched;
        for site in self.sites {
            touched[usize::from(site.kind)].add(site.range());
        }
        Outcome {
            touched: Touched::new(touched),
            printed: self.printed,
            steps: self.steps,
            hazards: self.checker.map_or_else(Vec::new, |checker| checker.into_hazards()),
            mistake,
        }
    }
}

/// The output of splitmix64 for a state.
pub(crate) fn mixed(mut state: u64) -> u64 {
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// An order of the numbers below `total`: each step goes on by the same distance, which has no factor in common with `total`.
struct BlockOrder {
    total: u64,
    start: u64,
    step: u64,
}

impl BlockOrder {
    fn new(total: u64, random: u64) -> Self {
        let total = total.max(1);
        let mut step = 1 + random % total;
        while greatest_divisor(step, total) != 1 {
            step += 1;
        }
        Self { total, start: (random >> 32) % total, step }
    }

    fn at(&self, index: u64) -> u64 {
        ((u128::from(self.start) + u128::from(index) * u128::from(self.step)) % u128::from(self.total)) as u64
    }

    /// The number by which a distance is divided to find the index of a number: `step * inverse` is 1 in the arithmetic modulo `total`.
    fn inverse(&self) -> u64 {
        let total = i128::from(self.total);
        // Euclid's algorithm, which also keeps how often `step` is in each rest.
        let (mut rest, mut next) = (total, i128::from(self.step) % total);
        let (mut times, mut next_times) = (0, 1);
        while next != 0 {
            let quotient = rest / next;
            (rest, next) = (next, rest - quotient * next);
            (times, next_times) = (next_times, times - quotient * next_times);
        }
        times.rem_euclid(total) as u64
    }

    /// The index at which a number comes.
    fn index_of(&self, number: u64, inverse: u64) -> u64 {
        let distance = u128::from((number + self.total - self.start) % self.total);
        (distance * u128::from(inverse) % u128::from(self.total)) as u64
    }
}

fn greatest_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_divisor(b, a % b) }
}

/// The steps after which the first block of a launch, if it has not ended, may be waiting for another one.
const FIRST_STEPS_MAX: u64 = 1 << 24;
/// The blocks that usually run at the same time, if they run for long.
const RESIDENT: usize = 64;
/// Once running blocks hold this many bytes, others seldom begin. They still do, because in a correct program a block may wait for all others.
const RESIDENT_BYTES: u64 = 1 << 30;
/// Once running blocks hold this many bytes, no other block begins. Large blocks and deep recursion in many threads get here.
const HELD_BYTES_MAX: u64 = 4 << 30;
/// The most blocks that run at the same time, as many as on a large device.
const RESIDENT_MAX: usize = 132 * 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_comes_once() {
        for total in [1, 2, 7, 12, 100, 4096] {
            for random in [0, 1, u64::MAX, 0x1234_5678_9abc_def0] {
                let order = BlockOrder::new(total, random);
                let mut found: Vec<u64> = (0..total).map(|index| order.at(index)).collect();
                found.sort_unstable();
                assert!(found.into_iter().eq(0..total), "{total} {random}");
                let inverse = order.inverse();
                assert!((0..total).all(|index| order.index_of(order.at(index), inverse) == index));
            }
        }
    }
}

//! Runs blocks of a launch on several cores.
//!
//! The outcome is the one of a single core, or there is none, and the blocks run again on one core. Each core runs groups of blocks on copies
//! of the memory, and notes what each group reads and writes. What they wrote becomes the memory's contents only if no group has accessed a
//! byte that another one wrote. Then no block can know whether others ran before it. The blocks of a group run in the seed's order. A group
//! has several blocks only if each ends in its first turn, because on one core, too, such a block ends before the next one begins.
//!
//! A launch that makes a mistake, prints, or takes too long leaves no trace, and is run again: so the first mistake is the same.

use crate::memory::Touched;
use crate::program::Program;
use crate::run::block::{BLOCK_TURN, Progress, RunningBlock};
use crate::run::copied::{Copied, Piece};
use crate::run::{BlockOrder, Launch, Run};
use core::cell::Cell;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

/// The steps after which a launch may continue on several cores, and those that must be left, as far as the first ones show.
const STEPS_BEFORE: u64 = 1 << 14;
const STEPS_LEFT: u64 = 1 << 16;
/// The steps of a group of blocks, about.
const GROUP_STEPS: u64 = 1 << 16;
/// The steps after which a group is given up. Perhaps it waits for another one.
const GROUP_STEPS_MAX: u64 = 1 << 24;
const CORES_MAX: usize = 64;

/// True if the blocks that have not started have enough to do.
pub(crate) fn is_worth_it(steps: u64, started: u64, total: u64) -> bool {
    let left = u128::from(total - started);
    steps >= STEPS_BEFORE && left > 1 && left * u128::from(steps / started.max(1)) >= u128::from(STEPS_LEFT)
}

/// The blocks that are left, in groups.
struct Groups<'g> {
    program: &'g Program,
    launch: Launch<'g>,
    order: &'g BlockOrder,
    inverse: u64,
    /// The blocks that come earlier in the order have run.
    started: u64,
    /// The blocks of a group.
    len: u64,
    /// The number of the first block that no core has taken.
    next: AtomicU64,
    is_given_up: AtomicBool,
}

/// A part of the memory that a core needs.
struct Wanted {
    core: usize,
    address: u64,
    size_bytes: u64,
    is_write: bool,
}

/// What a group has done.
struct Done {
    touched: Touched,
    steps: u64,
}

/// What a core has done.
struct Core {
    groups: Vec<Done>,
    pieces: Vec<Piece>,
}

/// Runs all blocks from the index `started` on. Returns false if nothing has happened.
pub(crate) fn spread(run: &mut Run<'_>, order: &BlockOrder, started: u64) -> bool {
    let steps = run.steps / started.max(1);
    let cores = run.launch.cores.min(CORES_MAX);
    // Groups of a few cores end at about the same time if each core gets several.
    let of_core = (order.total - started) / (8 * cores as u64);
    // A block that takes much longer than the first ones must still end in its first turn.
    let len = if steps < BLOCK_TURN / 4 { (GROUP_STEPS / steps.max(1)).min(of_core).max(1) } else { 1 };
    let groups = Groups {
        program: run.program,
        launch: Launch {
            steps_max: GROUP_STEPS_MAX.min(run.launch.steps_max.saturating_sub(run.steps)),
            ..run.launch
        },
        order,
        inverse: order.inverse(),
        started,
        len,
        next: AtomicU64::new(0),
        is_given_up: AtomicBool::new(false),
    };
    let done = on_cores(run, &groups, cores);
    let is_done = !groups.is_given_up.into_inner() && take(run, &done);
    if !is_done {
        run.program.is_on_one_core.store(true, Ordering::Relaxed);
    }
    is_done
}

/// Runs the groups, and gives the cores their copies of the memory. The memory does not change.
fn on_cores(run: &mut Run<'_>, groups: &Groups<'_>, cores: usize) -> Vec<Core> {
    thread::scope(|scope| {
        let (ask, asked) = channel();
        let mut give = Vec::new();
        let mut running = Vec::new();
        for core in 0..cores {
            let (to_core, given) = channel();
            let ask: Sender<Wanted> = ask.clone();
            let work = move || groups.work(core, ask, given);
            // With fewer threads than cores, the others take all groups.
            if let Ok(thread) = thread::Builder::new().spawn_scoped(scope, work) {
                running.push(thread);
            }
            give.push(to_core);
        }
        if running.is_empty() {
            groups.is_given_up.store(true, Ordering::Relaxed);
        }
        drop(ask);
        while let Ok(wanted) = asked.recv() {
            let piece = run.piece(&wanted);
            // A core that has ended takes nothing.
            let _ = give[wanted.core].send(piece);
        }
        let mut done = Vec::new();
        for thread in running {
            match thread.join() {
                Ok(core) => done.push(core),
                // The panic comes again on one core.
                Err(_) => groups.is_given_up.store(true, Ordering::Relaxed),
            }
        }
        done
    })
}

impl Groups<'_> {
    /// Runs groups until there are none left, on one core.
    fn work(&self, core: usize, ask: Sender<Wanted>, given: Receiver<Option<Piece>>) -> Core {
        let memory = Copied::new(|address, size_bytes, is_write| {
            ask.send(Wanted { core, address, size_bytes, is_write }).ok()?;
            given.recv().ok().flatten()
        });
        let mut groups = Vec::new();
        let mut spare = None;
        let total = self.order.total;
        while !self.is_given_up.load(Ordering::Relaxed) {
            let first = self.next.fetch_add(self.len, Ordering::Relaxed);
            if first >= total {
                break;
            }
            match self.group(first..total.min(first + self.len), &memory, &mut spare) {
                Some(done) => groups.push(done),
                None => self.is_given_up.store(true, Ordering::Relaxed),
            }
        }
        Core { groups, pieces: memory.into_pieces() }
    }

    /// Runs those of the blocks that are left, or gives up.
    fn group(
        &self,
        blocks: Range<u64>,
        memory: &Copied<'_>,
        spare: &mut Option<RunningBlock>,
    ) -> Option<Done> {
        let indices = blocks.map(|number| (self.order.index_of(number, self.inverse), number));
        let mut blocks: Vec<(u64, u64)> = indices.filter(|(index, _)| *index >= self.started).collect();
        blocks.sort_unstable();
        let mut run = Run::new(self.program, self.launch, memory);
        for (_, number) in blocks {
            let mut block = RunningBlock::new(&mut run, number, spare.take());
            loop {
                match block.run(&mut run).ok()? {
                    Progress::Done => break,
                    Progress::Slow if self.len > 1 || self.is_given_up.load(Ordering::Relaxed) => {
                        return None;
                    }
                    Progress::Slow => {}
                }
            }
            *spare = Some(block);
        }
        let outcome = run.outcome(None);
        outcome.printed.is_empty().then_some(Done { touched: outcome.touched, steps: outcome.steps })
    }
}

impl Run<'_> {
    /// A copy of what a core needs, with as much around it as one piece may have.
    fn piece(&mut self, wanted: &Wanted) -> Option<Piece> {
        let Wanted { address, size_bytes, is_write, .. } = *wanted;
        let region = self.fetch(address, size_bytes, is_write).ok()?;
        if region.cells.len() as u64 <= size_bytes {
            // Memory that is given access by access must not be copied from any more than that.
            return None;
        }
        Some(Piece::of(&region, address))
    }
}

/// Takes over what the cores have done, if it is what one core would have done.
fn take(run: &mut Run<'_>, cores: &[Core]) -> bool {
    let groups = || cores.iter().flat_map(|core| &core.groups);
    let steps: u64 = groups().map(|group| group.steps).sum();
    if run.steps + steps >= run.launch.steps_max || !are_apart(groups().map(|group| &group.touched)) {
        return false;
    }
    // Nothing is written before it is clear that all can be.
    let mut copies: Vec<[&[Cell<u8>]; 2]> = Vec::new();
    for core in cores {
        for range in core.groups.iter().flat_map(|group| &group.touched.writes) {
            let mut at = range.start;
            while at < range.end {
                let index = core.pieces.partition_point(|piece| piece.start <= at);
                let Some(piece) = core.pieces[..index].last() else { return false };
                let end = range.end.min(piece.start + piece.cells.len() as u64);
                let Some(len) = end.checked_sub(at).filter(|len| *len > 0) else { return false };
                let Ok(region) = run.fetch(at, len, true) else { return false };
                let [from, to] = [(piece.start, &piece.cells[..]), (region.start, region.cells)]
                    .map(|(start, cells)| &cells[(at - start) as usize..(end - start) as usize]);
                copies.push([from, to]);
                at = end;
            }
        }
    }
    for [from, to] in copies {
        to.iter().zip(from).for_each(|(to, from)| to.set(from.get()));
    }
    run.steps += steps;
    for touched in groups().map(|group| &group.touched) {
        for (all, ranges) in run.touched.iter_mut().zip(touched.ranges()) {
            ranges.iter().for_each(|range| all.add(range.clone()));
        }
    }
    true
}

/// True if none of several groups has accessed a byte that another one wrote. Their programs have no strong accesses that reach other blocks.
fn are_apart<'t>(groups: impl Iterator<Item = &'t Touched> + Clone) -> bool {
    let numbered = groups.clone().enumerate();
    let mut writes: Vec<(u64, u64, usize)> = numbered
        .flat_map(|(group, touched)| touched.writes.iter().map(move |range| (range.start, range.end, group)))
        .collect();
    writes.sort_unstable();
    if writes.windows(2).any(|pair| pair[1].0 < pair[0].1) {
        // The ranges of one group have gaps between them, so these are of two.
        return false;
    }
    groups.enumerate().all(|(group, touched)| {
        touched.reads.iter().all(|read| {
            let first = writes.partition_point(|(_, end, _)| *end <= read.start);
            let overlapping = writes[first..].iter().take_while(|(start, ..)| *start < read.end);
            overlapping.into_iter().all(|(.., writer)| *writer == group)
        })
    })
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "accesses are lists of ranges")]
mod tests {
    use super::*;
    use crate::check::Checks;
    use crate::memory::{DeviceMemory, Region};
    use crate::module::Module;

    struct Memory(Vec<Cell<u8>>);

    impl DeviceMemory for Memory {
        fn region(&self, _address: u64, _size_bytes: u64, _is_write: bool) -> Option<Region<'_>> {
            Some(Region { start: 0x1_0000, cells: &self.0, is_writable: true })
        }
    }

    /// Blocks of 32 threads that each write the word of their number shifted to the right by `shift`.
    fn spreads(shift: u32, started: u64) -> (bool, Vec<Cell<u8>>) {
        let text = format!(
            ".version 8.0\n.target sm_80\n.entry k() {{ .reg .b32 %a; .reg .b32 %b; .reg .b64 %d; mov.u32 %a, %ctaid.x; mov.u32 %b, %tid.x;
             shl.b32 %a, %a, 5; add.u32 %a, %a, %b; shr.u32 %a, %a, {shift}; mul.wide.u32 %d, %a, 4; add.u64 %d, %d, 0x10000;
             st.global.u32 [%d], %b; ret; }}"
        );
        let memory = Memory(vec![Cell::new(0xff); 4 * 32 * 5000]);
        let launch = Launch {
            grid: [5000, 1, 1],
            block: [32, 1, 1],
            shared_bytes: 0,
            parameters: &[],
            variables: &[],
            seed: 3,
            steps_max: 1 << 30,
            multiprocessors: 1,
            checks: Checks::default(),
            cores: 3,
        };
        let is_spread = {
            let module = Module::parse(&text).unwrap();
            let program = module.entry("k").unwrap().program().unwrap();
            let mut run = Run::new(program, launch, &memory);
            run.steps = 1000;
            let order = BlockOrder::new(5000, run.next_random());
            spread(&mut run, &order, started)
        };
        (is_spread, memory.0)
    }

    #[test]
    fn blocks_that_are_apart_run_on_several_cores() {
        let (is_spread, cells) = spreads(0, 0);
        assert!(is_spread);
        assert!(cells.chunks(4).enumerate().all(|(word, cells)| cells[0].get() == (word % 32) as u8));
        // All but the first 5 of the order.
        let (is_spread, cells) = spreads(0, 5);
        assert!(is_spread);
        assert_eq!(cells.iter().filter(|cell| cell.get() == 0xff).count(), 5 * 32 * 4);
        // Two neighbours write the same words. Those of one group do so in their order, those of two groups do not.
        let (is_spread, cells) = spreads(6, 0);
        assert!(!is_spread);
        assert!(cells.iter().all(|cell| cell.get() == 0xff));
    }

    #[test]
    fn groups_are_apart_if_no_byte_is_written_for_another() {
        let touched = |reads: &[Range<u64>], writes: &[Range<u64>]| Touched {
            reads: reads.into(),
            writes: writes.into(),
            ..Touched::default()
        };
        let cases = [
            (touched(&[0..100], &[0..4, 8..12]), touched(&[100..200], &[4..8]), false),
            (touched(&[0..4], &[0..4, 8..12]), touched(&[4..8, 12..20], &[4..8]), true),
            (touched(&[], &[0..4]), touched(&[], &[3..5]), false),
            (touched(&[], &[0..40]), touched(&[], &[3..5]), false),
            (touched(&[0..8], &[]), touched(&[0..8], &[]), true),
            (touched(&[0..8], &[]), touched(&[], &[7..8]), false),
            (touched(&[9..10], &[]), touched(&[], &[0..4, 4..8, 8..12]), false),
        ];
        for (a, b, is_apart) in cases {
            assert_eq!(are_apart([&a, &b].into_iter()), is_apart, "{a:?} {b:?}");
            assert_eq!(are_apart([&b, &a].into_iter()), is_apart, "{a:?} {b:?}");
        }
    }
}

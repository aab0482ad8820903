//! Optional checks of a launch: races between its threads, and reads of uninitialised bytes.
//!
//! A race is a pair of accesses to one byte by two threads, at least one of them a write and at least one of them weak, that nothing
//! orders. Two strong accesses are a race, too, if the scope of one of them leaves the other thread out. What orders: a barrier of the
//! block; `bar.warp.sync`; and an atomic or other strong access, with a fence behind it, that reads what a thread wrote with an atomic or
//! other strong access after a fence, if the scopes of all four have both threads. A barrier counts as the reader's fence. The
//! happens-before relation is kept as times (the steps of the run): for each thread, up to which time the accesses of the others come
//! before its own ([`times`]). A byte keeps its last write and two reads, so a race may be missed, but one that is reported is one under
//! the rules of PTX.
//!
//! An asynchronous copy writes when its thread waits for it. Until then any access to its target is a mistake.

mod block;
mod copies;
mod noted;
mod shadow;
mod times;

use crate::check::block::{BlockState, Bytes, Conflicts, Phase};
pub(crate) use crate::check::noted::{Noted, Touch};
use crate::fault::{AccessPlace, KernelMistake, Mistake, TextLine, place};
use crate::memory::{DeviceMemory, Sought};
use crate::number::LANES;
use crate::program::{Memory, ObjectUse, Order, Program};
use core::ops::Range;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

/// The checks of a launch that cost time and memory. Both are off by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// Races between the threads of the launch, in shared and in global memory.
    pub races: bool,
    /// Reads of shared, local and global memory that was never written, and uses of values that a shuffle took from a lane that does not
    /// take part in it.
    pub uninitialised: bool,
}

/// The state of the checks of a launch.
pub(crate) struct Checker<'r> {
    wish: Checks,
    program: &'r Program,
    grid: [u32; 3],
    block_shape: [u32; 3],
    threads: u32,
    /// The block that runs.
    block: u64,
    blocks: HashMap<u64, BlockState>,
    /// The blocks that have started. The index of a block here gives its threads their numbers.
    started: Vec<u64>,
    global: Bytes,
    hazards: Vec<KernelMistake>,
    seen: HashSet<(u32, u32)>,
    /// An access that is looked for, and the first one that was found.
    sought: Option<&'r Sought>,
    found: Option<AccessPlace>,
}

/// The hazards of one launch that are kept, each with other places in the text.
const HAZARDS_MAX: usize = 32;

impl<'r> Checker<'r> {
    pub(crate) fn new(wish: Checks, program: &'r Program, grid: [u32; 3], block_shape: [u32; 3]) -> Self {
        Self {
            wish,
            program,
            grid,
            block_shape,
            threads: block_shape.into_iter().product(),
            block: 0,
            blocks: HashMap::new(),
            started: Vec::new(),
            global: Bytes::default(),
            hazards: Vec::new(),
            seen: HashSet::new(),
            sought: None,
            found: None,
        }
    }

    /// Looks for an access, too.
    pub(crate) fn seek(&mut self, sought: &'r Sought) {
        self.sought = Some(sought);
    }

    pub(crate) fn take_found(&mut self) -> Option<AccessPlace> {
        self.found.take()
    }

    /// True if undefined values are followed.
    pub(crate) fn is_following_values(&self) -> bool {
        self.wish.uninitialised
    }

    pub(crate) fn into_hazards(self) -> Vec<KernelMistake> {
        self.hazards
    }

    /// A block runs from now on.
    pub(crate) fn enter(&mut self, block: u64) {
        self.block = block;
        self.blocks.entry(block).or_insert_with(|| {
            let first = self.started.len() as u64 * u64::from(self.threads);
            self.started.push(block);
            BlockState::new(first..first + u64::from(self.threads))
        });
    }

    /// The block that runs is done.
    pub(crate) fn leave(&mut self) {
        let Some(state) = self.blocks.remove(&self.block) else { return };
        for address in state.published {
            if let Entry::Occupied(mut known) = self.global.released.entry(address) {
                known.get_mut().blocks.remove(&state.numbers.start);
                if known.get().is_empty() {
                    known.remove();
                }
            }
        }
    }

    fn state(&mut self) -> Option<&mut BlockState> {
        self.blocks.get_mut(&self.block)
    }

    /// A thread of the block that runs has written bytes of its local memory without an instruction of its own.
    pub(crate) fn passed(&mut self, thread: u32, offset_bytes: u64, size_bytes: u64) {
        if let Some(state) = self.state() {
            state.local.set_written(local_address(thread, offset_bytes), size_bytes);
        }
    }

    /// The same for a value that was in local memory, and may be of bytes that nobody has written.
    pub(crate) fn passed_on(&mut self, thread: u32, from: u64, to: u64, size_bytes: u64) {
        let Some(state) = self.state() else { return };
        for byte in 0..size_bytes {
            let (from, to) = (local_address(thread, from + byte), local_address(thread, to + byte));
            match state.local.is_unwritten(from, 1) {
                true => state.local.set_unwritten(to, 1),
                false => state.local.set_written(to, 1),
            }
        }
    }

    /// A thread of the block that runs calls a function: what earlier calls have left in the frame is not its own.
    pub(crate) fn enters_frame(&mut self, thread: u32, offset_bytes: u64, size_bytes: u64) {
        if let Some(state) = self.state() {
            state.local.set_unwritten(local_address(thread, offset_bytes), size_bytes);
        }
    }

    /// A thread of the block that runs has executed a fence.
    pub(crate) fn fence(&mut self, thread: u32, order: Order, time: u64) {
        if let Some(state) = self.state().filter(|state| state.has(thread)) {
            state.fence(thread as usize, order, time);
        }
    }

    /// The asynchronous copies of a thread of the block that runs become a group.
    pub(crate) fn commit_copies(&mut self, thread: u32) {
        if let Some(state) = self.state() {
            state.copies.commit(thread);
        }
    }

    /// A thread of the block that runs has waited for its copies, except for those of its last `pending` groups: they have written now.
    pub(crate) fn wait_for_copies(&mut self, thread: u32, pending: Option<u32>, time: u64) {
        let Some(state) = self.state() else { return };
        for copy in state.copies.complete(thread, pending) {
            state.shared.shadow.histories(copy.address, copy.size_bytes, |history| {
                if history.write == copy.earlier {
                    history.write.time = time;
                }
            });
        }
    }

    /// Lanes of a warp of the block that runs have met.
    pub(crate) fn warp_meets(&mut self, warp: u32, lanes: u32, time: u64) {
        if let Some(state) = self.state() {
            state.warp_meets(warp as usize, (0..LANES).filter(|lane| lanes >> lane & 1 == 1), time);
        }
    }

    /// Threads of a warp of the block that runs have arrived at a barrier, and do not wait at it.
    pub(crate) fn arrive(&mut self, barrier: Phase, threads: impl Iterator<Item = u32>, time: u64) {
        if let Some(state) = self.state() {
            state.arrive(barrier, threads, time);
        }
    }

    /// A barrier of the block that runs lets the threads `waiting` go on; `is_whole` if all threads of the block are there or have ended,
    /// and the barrier waited for all.
    pub(crate) fn open(&mut self, barrier: Phase, waiting: &[u32], is_whole: bool, time: u64) {
        let Some(state) = self.state() else { return };
        if is_whole {
            state.arrived.remove(&barrier);
            state.meets(time);
        } else {
            state.arrive(barrier, waiting.iter().copied(), time);
            state.open(barrier, waiting);
        }
    }

    /// An access of a thread of the block that runs.
    pub(crate) fn note(&mut self, noted: &Noted, device: &dyn DeviceMemory) {
        let address = match noted.memory {
            Memory::Local | Memory::Frame => local_address(noted.thread, noted.address),
            Memory::Parameters => return,
            _ => noted.address,
        };
        let is_shared = noted.memory == Memory::Shared;
        let is_local = matches!(noted.memory, Memory::Local | Memory::Frame);
        if let Some(sought) = self.sought
            && self.found.is_none()
            && noted.is_one_of(sought)
        {
            self.found = Some(AccessPlace {
                line: TextLine::of(self.program, noted.step),
                block: place(self.block, self.grid),
                thread: place(noted.thread.into(), self.block_shape),
                address,
            });
        }
        if noted.order.object != ObjectUse::None {
            self.note_object(noted);
        }
        if self.wish.uninitialised {
            self.note_written(noted, address, device);
        }
        if self.wish.races && !is_local {
            self.note_race(noted, is_shared);
        }
    }

    /// An access to an `mbarrier`.
    fn note_object(&mut self, noted: &Noted) {
        let Some(state) = self.blocks.get_mut(&self.block) else { return };
        let is_known = state.objects.contains(&noted.address);
        let is_begin = noted.order.object == ObjectUse::Begin;
        match noted.order.object {
            ObjectUse::Begin => state.objects.insert(noted.address),
            ObjectUse::End => state.objects.remove(&noted.address),
            _ => false,
        };
        if is_known == is_begin {
            let mistake = Mistake::BarrierObject { address: noted.address, is_begin };
            self.report((noted.step, noted.thread), noted.step, mistake);
        }
    }

    fn note_written(&mut self, noted: &Noted, address: u64, device: &dyn DeviceMemory) {
        let Some(state) = self.blocks.get_mut(&self.block) else { return };
        let (space, shadow) = match noted.memory {
            Memory::Shared => ("shared", &mut state.shared.shadow),
            Memory::Local | Memory::Frame => ("local", &mut state.local),
            _ => ("global", &mut self.global.shadow),
        };
        let size_bytes = noted.size_bytes;
        let is_read = matches!(noted.touch, Touch::Read | Touch::Atomic);
        let is_known_before = |bytes: Range<u64>| {
            space == "global"
                && (device.is_written(bytes.start, bytes.end - bytes.start)
                    || bytes.into_iter().any(|byte| device.is_written(byte, 1)))
        };
        // The first run of elements that nobody has written; an access without a vector has one element.
        let mut unwritten: Option<Range<u64>> = None;
        for bytes in noted.units(address).filter(|_| is_read) {
            let is_unwritten =
                shadow.is_unwritten(bytes.start, bytes.end - bytes.start) && !is_known_before(bytes.clone());
            match &mut unwritten {
                None if is_unwritten => unwritten = Some(bytes),
                Some(known) if is_unwritten => known.end = bytes.end,
                None => {}
                Some(_) => break,
            }
        }
        // Each byte is reported once, and asked for once.
        shadow.set_written(address, size_bytes);
        if let Some(bytes) = unwritten {
            // A unit of local memory may begin before the read and end behind it.
            let (start, end) = (bytes.start.max(address), bytes.end.min(address.saturating_add(size_bytes)));
            let place = noted.address.wrapping_add(start - address);
            let mistake = Mistake::Uninitialised { space, address: place, size_bytes: end - start };
            self.report((noted.step, noted.thread), noted.step, mistake);
        }
    }

    fn note_race(&mut self, noted: &Noted, is_shared: bool) {
        let Some(state) = self.blocks.get_mut(&self.block).filter(|state| state.has(noted.thread)) else {
            return;
        };
        let mut pending = None;
        let Conflicts { race, unseen } = if is_shared {
            let mut bytes = core::mem::take(&mut state.shared);
            let (conflicts, own) = state.access(noted, &mut bytes);
            state.shared = bytes;
            match noted.touch {
                Touch::Copy => state.copies.issue(noted, own),
                _ => pending = state.copies.pending_at(noted),
            }
            conflicts
        } else {
            state.access(noted, &mut self.global).0
        };
        if let Some((thread, step)) = pending {
            let mistake = Mistake::PendingCopy {
                address: noted.address,
                size_bytes: noted.size_bytes,
                is_write: noted.touch.is_write(),
                copy_line: TextLine::of(self.program, step),
                copy_thread: place(thread.into(), self.block_shape),
            };
            self.report((noted.step, noted.thread), step, mistake);
        } else if let Some((other, is_other_write)) = race {
            let threads = u64::from(self.threads);
            let other_block = self.started[(other.thread / threads) as usize];
            let mistake = Mistake::Race {
                space: if is_shared { "shared" } else { "global" },
                address: noted.address,
                size_bytes: noted.size_bytes,
                is_write: noted.touch.is_write(),
                other_line: TextLine::of(self.program, other.step),
                other_block: place(other_block, self.grid),
                other_thread: place(other.thread % threads, self.block_shape),
                is_other_write,
            };
            self.report((noted.step, noted.thread), other.step, mistake);
        } else if let Some(step) = unseen {
            let mistake = Mistake::NonCoherent {
                address: noted.address,
                size_bytes: noted.size_bytes,
                other_line: self.program.steps[step as usize].line,
            };
            self.report((noted.step, noted.thread), step, mistake);
        }
    }

    /// Keeps a mistake of a thread of the block that runs, unless one at these two steps is known.
    pub(crate) fn report(&mut self, (step, thread): (u32, u32), other: u32, mistake: Mistake) {
        if self.hazards.len() >= HAZARDS_MAX || !self.seen.insert((step, other)) {
            return;
        }
        self.hazards.push(KernelMistake {
            line: self.program.steps[step as usize].line,
            source_line: self.program.source_line(step),
            block: place(self.block, self.grid),
            thread: place(thread.into(), self.block_shape),
            mistake,
        });
    }
}

/// A place in the local memories of a block.
fn local_address(thread: u32, offset_bytes: u64) -> u64 {
    u64::from(thread) << 32 | offset_bytes & 0xffff_ffff
}

//! Optional checks of a launch: races between its threads, and reads of uninitialised bytes.
//!
//! A race is a pair of accesses to one byte by two threads, at least one of them a write and at least one of them weak, that nothing
//! orders. Two strong accesses are a race, too, if the scope of one of them leaves the other thread out. What orders: a barrier of the
//! block; `bar.warp.sync`; and an atomic or other strong access, with a fence behind it, that reads what a thread wrote with an atomic or
//! other strong access after a fence, if the scopes of all four have both threads. A barrier counts as the reader's fence. The
//! happens-before relation is kept as times (the steps of the run): for each thread, up to which time the accesses of the others come
//! before its own ([`ThreadTimes`]). A byte keeps its last write and two reads, so a race may be missed, but one that is reported is one under the rules of
//! PTX.
//!
//! An asynchronous copy writes when its thread waits for it. Until then any access to its target is a mistake.

mod times;

use crate::check::times::ThreadTimes;
use crate::fault::{AccessPlace, KernelMistake, Mistake, TextLine, place};
use crate::memory::{DeviceMemory, Sought};
use crate::number::LANES;
use crate::program::{Memory, ObjectUse, Order, Program, Scope};
use core::ops::Range;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

/// The checks of a launch that cost time and memory. Both are off by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// Races between the threads of the launch, in shared and in global memory.
    pub races: bool,
    /// Reads of shared, local and global memory that was never written, and uses of values that a shuffle took from a lane that does not
    /// take part in it.
    pub uninitialised: bool,
}

/// How an access touches its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    Read,
    /// True if the bytes have the written value already.
    Write {
        is_same: bool,
    },
    /// An asynchronous copy writes.
    Copy,
    Atomic,
}

impl Touch {
    fn is_write(self) -> bool {
        self != Self::Read
    }
}

/// One access of one thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Noted {
    pub(crate) touch: Touch,
    pub(crate) order: Order,
    pub(crate) memory: Memory,
    pub(crate) address: u64,
    pub(crate) size_bytes: u64,
    /// The size of an element, if it accesses several.
    pub(crate) element_bytes: u8,
    /// The thread's number in the block.
    pub(crate) thread: u32,
    pub(crate) step: u32,
    pub(crate) time: u64,
}

impl Noted {
    fn is_one_of(&self, sought: &Sought) -> bool {
        let end = self.address.saturating_add(self.size_bytes);
        matches!(self.memory, Memory::Global | Memory::Generic)
            && self.address < sought.bytes.end
            && sought.bytes.start < end
            && self.touch.is_write() == sought.is_write
            && self.order.is_for_launches() == sought.is_strong
    }

    /// The addresses of the elements: each is read and written on its own.
    fn elements(&self) -> impl Iterator<Item = u64> + Clone + use<> {
        let (address, step) = (self.address, u64::from(self.element_bytes).max(1));
        let count = if self.element_bytes == 0 { 1 } else { self.size_bytes.div_ceil(step) };
        (0..count).map(move |index| address.wrapping_add(index * step))
    }

    /// Divides a read into units. A unit counts as unwritten if none of its bytes was written: compilers copy structures by words of 8 bytes,
    /// or by elements of at least 4, and so read the padding between the members.
    fn units(&self, address: u64) -> impl Iterator<Item = Range<u64>> {
        let (start, end) = (address, address.saturating_add(self.size_bytes));
        let element_bytes = u64::from(self.element_bytes);
        let is_words = element_bytes < WORD_BYTES && self.size_bytes > element_bytes;
        // Of local memory, the whole word may be looked at.
        let is_whole = is_words && matches!(self.memory, Memory::Local | Memory::Frame);
        let unit = if is_words { 2 * WORD_BYTES } else { element_bytes.max(1) };
        (start / unit..end.div_ceil(unit)).map(move |number| {
            let word = number * unit..(number + 1).saturating_mul(unit);
            if is_whole { word } else { word.start.max(start)..word.end.min(end) }
        })
    }
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
    global: Shadow,
    /// What was published at addresses in global memory.
    released: HashMap<u64, Released>,
    hazards: Vec<KernelMistake>,
    seen: HashSet<(u32, u32)>,
    /// An access that is looked for, and the first one that was found.
    sought: Option<&'r Sought>,
    found: Option<AccessPlace>,
}

struct BlockState {
    /// The numbers of its threads in the launch.
    numbers: Range<u64>,
    /// The time of the last barrier of all threads.
    time: u64,
    shared: Shadow,
    local: Shadow,
    threads: Vec<ThreadState>,
    /// The times up to which lanes of a warp know each other, by `bar.warp.sync`.
    warps: Vec<[[u64; LANES]; LANES]>,
    /// The threads that have arrived at a barrier of a part of the block, with the times that they knew.
    arrived: HashMap<Phase, Vec<(u32, ThreadTimes)>>,
    /// What was published at addresses in its shared memory.
    released: HashMap<u64, Released>,
    /// The addresses in global memory at which something was published to it alone.
    published: HashSet<u64>,
    copies: Copies,
    /// The `mbarrier` objects that are initialised.
    objects: HashSet<u64>,
}

/// A barrier, and how often it has opened.
type Phase = (u32, u32);

/// The asynchronous copies of a block that were not waited for.
#[derive(Default)]
struct Copies {
    /// By threads: the groups that are complete, and the copies with their groups.
    of_threads: HashMap<u32, (u64, Vec<(u64, PendingCopy)>)>,
    /// By words of the shared memory: the thread of the copy, and its step.
    words: HashMap<u64, (u32, u32)>,
}

#[derive(Clone, Copy)]
struct PendingCopy {
    address: u64,
    size_bytes: u64,
    mark: Mark,
}

#[derive(Clone, Default)]
struct ThreadState {
    /// Times learned through atomics, other strong accesses and barriers.
    others: ThreadTimes,
    /// The times that strong reads have shown since its last fence, which makes it know them.
    seen: Scoped,
    /// The times that it knew at its last fence. Its next strong write publishes them.
    fenced: Scoped,
}

/// Times for threads of the device, and more for those of the block.
#[derive(Clone, Default)]
struct Scoped {
    device: ThreadTimes,
    block: ThreadTimes,
}

/// The times that a thread learns by a strong read of an address: those that the last strong write has published, to the whole device, and
/// to each block alone.
#[derive(Default)]
struct Released {
    device: ThreadTimes,
    /// By the number of the block's first thread.
    blocks: BTreeMap<u64, ThreadTimes>,
}

/// An earlier access to a byte. A time of 0 is none.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Mark {
    time: u64,
    thread: u64,
    step: u32,
    /// The scope of a strong access.
    strong: Option<Scope>,
}

/// The accesses to a byte, or to four bytes that are accessed together.
#[derive(Clone, Copy, Default)]
struct Slot {
    write: Mark,
    reads: [Mark; 2],
}

/// Slots of `PAGE_BYTES` bytes: one for each four bytes until a part of four is accessed, then one for each byte.
struct Page {
    slots: Vec<Slot>,
    written: [u64; PAGE_BYTES as usize / 64],
}

#[derive(Default)]
struct Shadow(HashMap<u64, Page>);

const PAGE_BYTES: u64 = 1024;
const WORD_BYTES: u64 = 4;
/// The copies of one thread that are known at the same time.
const COPIES_MAX: usize = 1 << 14;
/// The hazards of one launch that are kept, each with other places in the text.
const HAZARDS_MAX: usize = 32;

impl Page {
    fn new() -> Self {
        Self { slots: Vec::new(), written: [0; PAGE_BYTES as usize / 64] }
    }

    fn slots_of(&mut self, bytes: Range<u64>) -> &mut [Slot] {
        if self.slots.is_empty() {
            self.slots = vec![Slot::default(); (PAGE_BYTES / WORD_BYTES) as usize];
        }
        let is_words = self.slots.len() < PAGE_BYTES as usize;
        if is_words && (bytes.start | bytes.end) & (WORD_BYTES - 1) != 0 {
            self.slots = (0..PAGE_BYTES).map(|byte| self.slots[(byte / WORD_BYTES) as usize]).collect();
        }
        let unit = PAGE_BYTES / self.slots.len() as u64;
        &mut self.slots[(bytes.start / unit) as usize..(bytes.end / unit) as usize]
    }

    fn set_written(&mut self, bytes: Range<u64>) {
        bytes.for_each(|byte| self.written[byte as usize / 64] |= 1 << (byte % 64));
    }

    fn set_unwritten(&mut self, bytes: Range<u64>) {
        bytes.for_each(|byte| self.written[byte as usize / 64] &= !(1 << (byte % 64)));
    }

    fn is_written(&self, byte: u64) -> bool {
        self.written[byte as usize / 64] >> (byte % 64) & 1 == 1
    }
}

impl Shadow {
    /// The pages of an access, each with the bytes in it.
    fn pages(&mut self, address: u64, size_bytes: u64, mut f: impl FnMut(&mut Page, Range<u64>)) {
        let (mut at, end) = (address, address.saturating_add(size_bytes));
        while at < end {
            let start = at - at % PAGE_BYTES;
            let stop = end.min(start.saturating_add(PAGE_BYTES));
            f(self.0.entry(start).or_insert_with(Page::new), at - start..stop - start);
            at = stop;
        }
    }

    /// True if the launch has written none of these bytes.
    fn is_unwritten(&mut self, address: u64, size_bytes: u64) -> bool {
        let mut is_unwritten = true;
        self.pages(address, size_bytes, |page, mut bytes| {
            is_unwritten &= !bytes.any(|byte| page.is_written(byte))
        });
        is_unwritten
    }

    fn set_written(&mut self, address: u64, size_bytes: u64) {
        self.pages(address, size_bytes, Page::set_written);
    }

    fn set_unwritten(&mut self, address: u64, size_bytes: u64) {
        let end = address.saturating_add(size_bytes);
        let mut start = address - address % PAGE_BYTES;
        while start < end {
            if let Some(page) = self.0.get_mut(&start) {
                page.set_unwritten(address.max(start) - start..end.min(start + PAGE_BYTES) - start);
            }
            start += PAGE_BYTES;
        }
    }
}

impl BlockState {
    fn new(numbers: Range<u64>) -> Self {
        let threads = (numbers.end - numbers.start) as usize;
        Self {
            numbers,
            time: 0,
            shared: Shadow::default(),
            local: Shadow::default(),
            threads: vec![ThreadState::default(); threads],
            warps: vec![[[0; LANES]; LANES]; threads.div_ceil(LANES)],
            arrived: HashMap::new(),
            released: HashMap::new(),
            published: HashSet::new(),
            copies: Copies::default(),
            objects: HashSet::new(),
        }
    }

    fn number(&self, thread: usize) -> u64 {
        self.numbers.start + thread as u64
    }

    /// Orders what a thread has seen before what it does next, for a fence of this scope.
    fn acquire(&mut self, thread: usize, scope: Scope) {
        let Some(state) = self.threads.get_mut(thread) else { return };
        state.others.join(&core::mem::take(&mut state.seen.block));
        if scope == Scope::Device {
            state.others.join(&core::mem::take(&mut state.seen.device));
        }
    }

    /// All times that a thread knows, with its own.
    fn snapshot(&self, thread: usize, time: u64) -> ThreadTimes {
        let mut known = self.threads[thread].others.clone();
        known.raise(self.numbers.clone(), self.time);
        let (warp, lane) = (thread / LANES, thread % LANES);
        let first = self.number(warp * LANES);
        let mut lanes = 0..0;
        for same in self.warps[warp][lane].chunk_by(|one, other| one == other) {
            lanes = lanes.end..lanes.end + same.len() as u64;
            if same[0] > self.time {
                known.raise(first + lanes.start..first + lanes.end, same[0]);
            }
        }
        let own = self.number(thread);
        known.raise(own..own + 1, time);
        known
    }

    /// All threads have met at a barrier.
    fn meets(&mut self, time: u64) {
        self.time = time;
        let all = 0..self.threads.len();
        let mut together = self.joined(all.clone());
        // It is in what each of them publishes.
        together.others.raise(self.numbers.clone(), time);
        self.threads[all].fill(together);
    }

    /// What these threads know and publish once they have met: for all of them the same.
    fn joined(&mut self, threads: impl Iterator<Item = usize>) -> ThreadState {
        let mut together = ThreadState::default();
        for thread in threads {
            self.acquire(thread, Scope::Device);
            together.others.join(&self.threads[thread].others);
            together.fenced.join(&self.threads[thread].fenced);
        }
        together
    }
}

impl Scoped {
    fn join(&mut self, other: &Self) {
        self.device.join(&other.device);
        self.block.join(&other.block);
    }
}

impl Released {
    fn is_empty(&self) -> bool {
        self.device.is_empty() && self.blocks.is_empty()
    }
}

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
            global: Shadow::default(),
            released: HashMap::new(),
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
            if let Entry::Occupied(mut known) = self.released.entry(address) {
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
        let (scope, thread) = (order.scope, thread as usize);
        if let Some(state) = self.state().filter(|state| thread < state.threads.len()) {
            if order.is_acquire {
                state.acquire(thread, scope);
            }
            if !order.is_release {
                return;
            }
            let known = state.snapshot(thread, time);
            let fenced = &mut state.threads[thread].fenced;
            if scope == Scope::Device {
                fenced.device.clone_from(&known);
            }
            fenced.block = known;
        }
    }

    /// The asynchronous copies of a thread of the block that runs become a group.
    pub(crate) fn commit_copies(&mut self, thread: u32) {
        if let Some(state) = self.state() {
            state.copies.of_threads.entry(thread).or_default().0 += 1;
        }
    }

    /// A thread of the block that runs has waited for its copies, except for those of its last `pending` groups: they have written now.
    pub(crate) fn wait_for_copies(&mut self, thread: u32, pending: Option<u32>, time: u64) {
        let Some(state) = self.state() else { return };
        let Some((group, copies)) = state.copies.of_threads.get_mut(&thread) else { return };
        // Copies of the group that is open are waited for by a wait for all alone.
        let end = pending.map_or(u64::MAX, |pending| group.saturating_sub(pending.into()));
        let mut done = Vec::new();
        copies.retain(|(group, copy)| {
            let is_pending = *group >= end;
            done.extend((!is_pending).then_some(*copy));
            is_pending
        });
        for PendingCopy { address, size_bytes, mark } in done {
            for word in words(address, size_bytes) {
                state.copies.words.remove(&word);
            }
            state.shared.pages(address, size_bytes, |page, bytes| {
                for slot in page.slots_of(bytes) {
                    if slot.write == mark {
                        slot.write.time = time;
                    }
                }
            });
        }
    }

    /// Lanes of a warp of the block that runs have met.
    pub(crate) fn warp_meets(&mut self, warp: u32, lanes: u32, time: u64) {
        let Some(state) = self.state() else { return };
        let met: Vec<usize> = (0..LANES).filter(|lane| lanes >> lane & 1 == 1).collect();
        let Some(times) = state.warps.get_mut(warp as usize) else { return };
        let mut row = [0; LANES];
        for lane in &met {
            row.iter_mut().zip(times[*lane]).for_each(|(known, time)| *known = time.max(*known));
        }
        met.iter().for_each(|lane| row[*lane] = time);
        met.iter().for_each(|lane| times[*lane] = row);
        let number = |lane: &usize| warp as usize * LANES + lane;
        let met: Vec<usize> = met.iter().map(number).filter(|thread| *thread < state.threads.len()).collect();
        let together = state.joined(met.iter().copied());
        met.into_iter().for_each(|thread| state.threads[thread].clone_from(&together));
    }

    /// Threads of a warp of the block that runs have arrived at a barrier.
    pub(crate) fn arrive(&mut self, barrier: Phase, threads: impl Iterator<Item = u32>, time: u64) {
        let count = self.threads;
        let Some(state) = self.state() else { return };
        let mut arrived = state.arrived.remove(&barrier).unwrap_or_default();
        for thread in threads.filter(|thread| *thread < count) {
            state.acquire(thread as usize, Scope::Device);
            arrived.push((thread, state.snapshot(thread as usize, time)));
        }
        state.arrived.insert(barrier, arrived);
    }

    /// A barrier of the block that runs lets the threads `waiting` go on; `is_whole` if all threads of the block are there or have ended,
    /// and the barrier waited for all.
    pub(crate) fn open(&mut self, barrier: Phase, waiting: &[u32], is_whole: bool, time: u64) {
        let Some(state) = self.state() else { return };
        let arrived = state.arrived.remove(&barrier).unwrap_or_default();
        if is_whole {
            state.meets(time);
            return;
        }
        let (mut known, mut fenced) = (ThreadTimes::default(), Scoped::default());
        for (thread, own) in arrived {
            known.join(&own);
            fenced.join(&state.threads[thread as usize].fenced);
        }
        for number in waiting {
            if let Some(thread) = state.threads.get_mut(*number as usize) {
                thread.others.join(&known);
                thread.fenced.join(&fenced);
            }
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
            Memory::Shared => ("shared", &mut state.shared),
            Memory::Local | Memory::Frame => ("local", &mut state.local),
            _ => ("global", &mut self.global),
        };
        let size_bytes = noted.size_bytes;
        let is_read = matches!(noted.touch, Touch::Read | Touch::Atomic);
        let is_known_before = |bytes: Range<u64>| {
            space == "global"
                && (device.is_written(bytes.start, bytes.end - bytes.start)
                    || bytes.into_iter().any(|byte| device.is_written(byte, 1)))
        };
        let is_unwritten = is_read
            && noted.units(address).any(|bytes| {
                let len = bytes.end - bytes.start;
                shadow.is_unwritten(bytes.start, len) && !is_known_before(bytes)
            });
        // Each byte is reported once, and asked for once.
        shadow.set_written(address, size_bytes);
        if is_unwritten {
            let mistake = Mistake::Uninitialised { space, address: noted.address, size_bytes };
            self.report((noted.step, noted.thread), noted.step, mistake);
        }
    }

    fn note_race(&mut self, noted: &Noted, is_shared: bool) {
        let Some(state) = self.blocks.get_mut(&self.block) else { return };
        let thread = noted.thread as usize;
        if thread >= state.threads.len() {
            return;
        }
        let is_strong = noted.order.is_strong || noted.touch == Touch::Atomic;
        let scope = noted.order.scope;
        if is_strong && matches!(noted.touch, Touch::Read | Touch::Atomic) {
            for address in noted.elements() {
                let all = if is_shared { &state.released } else { &self.released };
                let Some(released) = all.get(&address) else { continue };
                let seen = &mut state.threads[thread].seen;
                if scope == Scope::Device {
                    seen.device.join(&released.device);
                }
                if let Some(of_block) = released.blocks.get(&state.numbers.start) {
                    seen.block.join(of_block);
                }
                if noted.order.is_acquire {
                    state.acquire(thread, scope);
                }
            }
        }
        let own = state.number(thread);
        let others = &state.threads[thread].others;
        let (warp, lane) = (thread / LANES, thread % LANES);
        let (numbers, block_time, row) = (&state.numbers, state.time, &state.warps[warp][lane]);
        let knows = |mark: &Mark| {
            let is_of_block = numbers.contains(&mark.thread);
            let is_in_scope =
                |strong: Scope| is_of_block || strong == Scope::Device && scope == Scope::Device;
            if mark.time == 0 || mark.thread == own || is_strong && mark.strong.is_some_and(is_in_scope) {
                return true;
            }
            let in_block = if is_of_block {
                let number = (mark.thread - numbers.start) as usize;
                block_time.max(if number / LANES == warp { row[number % LANES] } else { 0 })
            } else {
                0
            };
            in_block >= mark.time || others.of(mark.thread) >= mark.time
        };
        let strong = is_strong.then_some(scope);
        let mark = Mark { time: noted.time, thread: own, step: noted.step, strong };
        let mut found: Option<(Mark, bool)> = None;
        let mut written = None;
        let shadow = if is_shared { &mut state.shared } else { &mut self.global };
        shadow.pages(noted.address, noted.size_bytes, |page, bytes| {
            for slot in page.slots_of(bytes) {
                if noted.order.is_noncoherent && slot.write.time > 0 {
                    written = Some(slot.write.step);
                }
                if !knows(&slot.write) && noted.touch != (Touch::Write { is_same: true }) {
                    found = found.or(Some((slot.write, true)));
                }
                if noted.touch.is_write() {
                    for read in &slot.reads {
                        if !knows(read) {
                            found = found.or(Some((*read, false)));
                        }
                    }
                    *slot = Slot { write: mark, reads: [Mark::default(); 2] };
                } else {
                    let [first, second] = &mut slot.reads;
                    if first.thread == own || knows(first) { *first = mark } else { *second = mark }
                }
            }
        });
        if is_strong && noted.touch.is_write() {
            let mut own = match noted.order.is_release {
                true => {
                    let known = state.snapshot(thread, noted.time);
                    Scoped { device: known.clone(), block: known }
                }
                false => state.threads[thread].fenced.clone(),
            };
            if scope == Scope::Block {
                own.device = ThreadTimes::default();
            }
            for address in noted.elements() {
                let all = if is_shared { &mut state.released } else { &mut self.released };
                let mut released = all.remove(&address).unwrap_or_default();
                if noted.touch != Touch::Atomic {
                    released = Released::default();
                }
                released.device.join(&own.device);
                if !own.block.is_empty() {
                    released.blocks.entry(state.numbers.start).or_default().join(&own.block);
                    if !is_shared {
                        state.published.insert(address);
                    }
                }
                if !released.is_empty() {
                    all.insert(address, released);
                }
            }
        }
        let mut pending = None;
        if is_shared {
            let copies = &mut state.copies;
            if noted.touch == Touch::Copy {
                let copy = PendingCopy { address: noted.address, size_bytes: noted.size_bytes, mark };
                let (group, list) = copies.of_threads.entry(noted.thread).or_default();
                if list.len() < COPIES_MAX {
                    list.push((*group, copy));
                    let of = (noted.thread, noted.step);
                    copies.words.extend(words(noted.address, noted.size_bytes).map(|word| (word, of)));
                }
            } else if !copies.words.is_empty() {
                let mut known = words(noted.address, noted.size_bytes);
                pending = known.find_map(|word| copies.words.get(&word).copied());
            }
        }
        if let Some((thread, step)) = pending {
            let mistake = Mistake::PendingCopy {
                address: noted.address,
                size_bytes: noted.size_bytes,
                is_write: noted.touch.is_write(),
                copy_line: TextLine::of(self.program, step),
                copy_thread: place(thread.into(), self.block_shape),
            };
            self.report((noted.step, noted.thread), step, mistake);
        } else if let Some((other, is_other_write)) = found {
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
        } else if let Some(step) = written {
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

/// The words of bytes of shared memory.
fn words(address: u64, size_bytes: u64) -> impl Iterator<Item = u64> {
    address / WORD_BYTES..address.saturating_add(size_bytes).div_ceil(WORD_BYTES)
}

/// A place in the local memories of a block.
fn local_address(thread: u32, offset_bytes: u64) -> u64 {
    u64::from(thread) << 32 | offset_bytes & 0xffff_ffff
}

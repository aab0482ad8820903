//! The state of a running block for the race check: for each of its threads, which accesses of other threads are ordered before its next
//! one.

use crate::check::copies::Copies;
use crate::check::noted::{Noted, Touch};
use crate::check::shadow::{Earlier, History, Shadow};
use crate::check::times::ThreadTimes;
use crate::number::LANES;
use crate::program::{Order, Scope};
use core::ops::Range;
use std::collections::{BTreeMap, HashMap, HashSet};

/// A block that has started.
pub(super) struct BlockState {
    /// The numbers of its threads in the launch.
    pub(super) numbers: Range<u64>,
    /// The time of the last barrier of all threads.
    time: u64,
    pub(super) shared: Bytes,
    pub(super) local: Shadow,
    threads: Vec<ThreadState>,
    /// The times up to which lanes of a warp know each other, by `bar.warp.sync`.
    warps: Vec<[[u64; LANES]; LANES]>,
    /// The threads that have arrived at a barrier of a part of the block, with the times that they knew.
    pub(super) arrived: HashMap<Phase, Vec<(u32, ThreadTimes)>>,
    /// The addresses at which something was published to it alone.
    pub(super) published: HashSet<u64>,
    pub(super) copies: Copies,
    /// The `mbarrier` objects that are initialised.
    pub(super) objects: HashSet<u64>,
}

/// A barrier, and how often it has opened.
pub(super) type Phase = (u32, u32);

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
pub(super) struct Released {
    device: ThreadTimes,
    /// By the number of the block's first thread.
    pub(super) blocks: BTreeMap<u64, ThreadTimes>,
}

/// The recorded accesses to the shared memory of a block, or to global memory.
#[derive(Default)]
pub(super) struct Bytes {
    pub(super) shadow: Shadow,
    /// The times that strong writes have published, by address.
    pub(super) released: HashMap<u64, Released>,
}

/// The earlier accesses that an access conflicts with.
#[derive(Default)]
pub(super) struct Conflicts {
    /// An access that nothing orders with it, and whether that is a write.
    pub(super) race: Option<(Earlier, bool)>,
    /// The step of a write that a read through a cache does not see.
    pub(super) unseen: Option<u32>,
}

impl BlockState {
    pub(super) fn new(numbers: Range<u64>) -> Self {
        let threads = (numbers.end - numbers.start) as usize;
        Self {
            numbers,
            time: 0,
            shared: Bytes::default(),
            local: Shadow::default(),
            threads: vec![ThreadState::default(); threads],
            warps: vec![[[0; LANES]; LANES]; threads.div_ceil(LANES)],
            arrived: HashMap::new(),
            published: HashSet::new(),
            copies: Copies::default(),
            objects: HashSet::new(),
        }
    }

    fn number(&self, thread: usize) -> u64 {
        self.numbers.start + thread as u64
    }

    /// Orders what a thread has seen before what it does next, for a fence of this scope.
    pub(super) fn acquire(&mut self, thread: usize, scope: Scope) {
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
    pub(super) fn meets(&mut self, time: u64) {
        self.time = time;
        let all = 0..self.threads.len();
        let mut together = self.joined(all.clone());
        // It is in what each of them publishes.
        together.others.raise(self.numbers.clone(), time);
        self.threads[all].fill(together);
    }

    /// The state of each of these threads once all of them have met at a barrier.
    fn joined(&mut self, threads: impl Iterator<Item = usize>) -> ThreadState {
        let mut together = ThreadState::default();
        for thread in threads {
            self.acquire(thread, Scope::Device);
            together.others.join(&self.threads[thread].others);
            together.fenced.join(&self.threads[thread].fenced);
        }
        together
    }

    pub(super) fn has(&self, thread: u32) -> bool {
        (thread as usize) < self.threads.len()
    }

    /// A thread executes a fence.
    pub(super) fn fence(&mut self, thread: usize, order: Order, time: u64) {
        if order.is_acquire {
            self.acquire(thread, order.scope);
        }
        if order.is_release {
            let known = self.snapshot(thread, time);
            let fenced = &mut self.threads[thread].fenced;
            if order.scope == Scope::Device {
                fenced.device.clone_from(&known);
            }
            fenced.block = known;
        }
    }

    /// Lanes of a warp have met.
    pub(super) fn warp_meets(&mut self, warp: usize, lanes: impl Iterator<Item = usize> + Clone, time: u64) {
        let Some(times) = self.warps.get_mut(warp) else { return };
        let mut row = [0; LANES];
        for lane in lanes.clone() {
            row.iter_mut().zip(times[lane]).for_each(|(known, time)| *known = time.max(*known));
        }
        lanes.clone().for_each(|lane| row[lane] = time);
        lanes.clone().for_each(|lane| times[lane] = row);
        let count = self.threads.len();
        let met = lanes.map(|lane| warp * LANES + lane).filter(|thread| *thread < count);
        let together = self.joined(met.clone());
        met.for_each(|thread| self.threads[thread].clone_from(&together));
    }

    /// Threads have arrived at a barrier.
    pub(super) fn arrive(&mut self, barrier: Phase, threads: impl Iterator<Item = u32>, time: u64) {
        let mut arrived = self.arrived.remove(&barrier).unwrap_or_default();
        for thread in threads {
            if self.has(thread) {
                self.acquire(thread as usize, Scope::Device);
                arrived.push((thread, self.snapshot(thread as usize, time)));
            }
        }
        self.arrived.insert(barrier, arrived);
    }

    /// A barrier of a part of the block lets threads go on.
    pub(super) fn open(&mut self, barrier: Phase, waiting: &[u32]) {
        let (mut known, mut fenced) = (ThreadTimes::default(), Scoped::default());
        for (thread, own) in self.arrived.remove(&barrier).unwrap_or_default() {
            known.join(&own);
            fenced.join(&self.threads[thread as usize].fenced);
        }
        for number in waiting {
            if let Some(thread) = self.threads.get_mut(*number as usize) {
                thread.others.join(&known);
                thread.fenced.join(&fenced);
            }
        }
    }

    /// Notes an access to bytes of shared or of global memory. Gives what it conflicts with, and itself for later ones.
    pub(super) fn access(&mut self, noted: &Noted, bytes: &mut Bytes) -> (Conflicts, Earlier) {
        let is_strong = noted.is_strong();
        if is_strong && matches!(noted.touch, Touch::Read | Touch::Atomic) {
            self.see(noted, &bytes.released);
        }
        let found = self.compare(noted, &mut bytes.shadow);
        if is_strong && noted.touch.is_write() {
            self.publish(noted, &mut bytes.released);
        }
        found
    }

    /// A strong read sees what was published where it reads.
    fn see(&mut self, noted: &Noted, released: &HashMap<u64, Released>) {
        let thread = noted.thread as usize;
        let scope = noted.order.scope;
        for released in noted.elements().filter_map(|address| released.get(&address)) {
            let seen = &mut self.threads[thread].seen;
            if scope == Scope::Device {
                seen.device.join(&released.device);
            }
            if let Some(of_block) = released.blocks.get(&self.numbers.start) {
                seen.block.join(of_block);
            }
            if noted.order.is_acquire {
                self.acquire(thread, scope);
            }
        }
    }

    /// A strong write publishes what its thread knew at its last fence, or knows if it releases.
    fn publish(&mut self, noted: &Noted, all: &mut HashMap<u64, Released>) {
        let thread = noted.thread as usize;
        let mut own = if noted.order.is_release {
            let known = self.snapshot(thread, noted.time);
            Scoped { device: known.clone(), block: known }
        } else {
            self.threads[thread].fenced.clone()
        };
        if noted.order.scope == Scope::Block {
            own.device = ThreadTimes::default();
        }
        for address in noted.elements() {
            let before = all.remove(&address).filter(|_| noted.touch == Touch::Atomic);
            let mut released = before.unwrap_or_default();
            released.device.join(&own.device);
            if !own.block.is_empty() {
                released.blocks.entry(self.numbers.start).or_default().join(&own.block);
                self.published.insert(address);
            }
            if !released.is_empty() {
                all.insert(address, released);
            }
        }
    }

    /// Compares an access with earlier ones to its bytes, and puts it beside them.
    fn compare(&self, noted: &Noted, shadow: &mut Shadow) -> (Conflicts, Earlier) {
        let thread = self.number(noted.thread as usize);
        let strong = noted.is_strong().then_some(noted.order.scope);
        let own = Earlier { time: noted.time, thread, step: noted.step, strong };
        let mut found = Conflicts::default();
        shadow.histories(noted.address, noted.size_bytes, |history| {
            if noted.order.is_noncoherent && history.write.time > 0 {
                found.unseen = Some(history.write.step);
            }
            if noted.touch != (Touch::Write { is_same: true }) && !self.is_ordered(&history.write, &own) {
                found.race = found.race.or(Some((history.write, true)));
            }
            if noted.touch.is_write() {
                for read in &history.reads {
                    if !self.is_ordered(read, &own) {
                        found.race = found.race.or(Some((*read, false)));
                    }
                }
                *history = History { write: own, ..History::default() };
            } else {
                let [first, second] = &mut history.reads;
                if first.thread == thread || self.is_ordered(first, &own) {
                    *first = own;
                } else {
                    *second = own;
                }
            }
        });
        (found, own)
    }

    /// True if an earlier access and one of a thread of this block do not race, whatever they do.
    fn is_ordered(&self, earlier: &Earlier, own: &Earlier) -> bool {
        if earlier.time == 0 || earlier.thread == own.thread {
            return true;
        }
        let is_of_block = self.numbers.contains(&earlier.thread);
        if let (Some(one), Some(other)) = (earlier.strong, own.strong)
            && (is_of_block || [one, other] == [Scope::Device; 2])
        {
            return true;
        }
        let thread = (own.thread - self.numbers.start) as usize;
        if is_of_block {
            let other = (earlier.thread - self.numbers.start) as usize;
            let is_of_warp = other / LANES == thread / LANES;
            let by_warp =
                if is_of_warp { self.warps[thread / LANES][thread % LANES][other % LANES] } else { 0 };
            if self.time.max(by_warp) >= earlier.time {
                return true;
            }
        }
        self.threads[thread].others.of(earlier.thread) >= earlier.time
    }
}

impl Scoped {
    fn join(&mut self, other: &Self) {
        self.device.join(&other.device);
        self.block.join(&other.block);
    }
}

impl Released {
    pub(super) fn is_empty(&self) -> bool {
        self.device.is_empty() && self.blocks.is_empty()
    }
}

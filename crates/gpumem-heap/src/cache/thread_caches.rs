//! [`ThreadCaches`]: the magazines and the depot of one pool. All that small allocations and frees touch as long as they hit.
//!
//! ```text
//! take: this thread's set ── empty ──▶ a batch from the depot ── none ──▶ the caller asks the heap
//! put:  this thread's set ── full ───▶ its older half to the depot ── no allowance ──▶ the caller gives to the heap
//! ```
//!
//! Of larger blocks each set keeps the last few ([`LargeCache`]).
//!
//! What leaves the front for the heap is collected in a [`Spill`], each piece with its stamp. `S` is the stamp: the front
//! asks for one when pieces leave a set, and passes it on.
//!
//! *Order.* A piece in a set was freed by work that had been queued before. Its stamp is therefore read after it has left
//! the set: the event that closes the stamp's epoch is recorded later still, and so behind that work.
//!
//! *The last touch.* A pool may be torn down as soon as its last block has been counted in. So a free does everything
//! else first, and counts last, in a set that its thread keeps alive.

use super::budget::Budget;
use super::depot::{Batch, Depot};
use super::large_cache::LargeBlock;
use super::thread_cache::{OwnerGuard, ThreadCache, close_all, visit_all};
use crate::block::HeapBlock;
use crate::counters::Counters;
use crate::size_class::SizeClass;
use crate::sync::{Arc, AtomicU32, Mutex, MutexGuard, Ordering};
use std::collections::BTreeMap;

/// The thread caches and the depot of one pool.
#[derive(Debug)]
pub struct ThreadCaches<S> {
    budget: Budget,
    depot: Depot<S>,
    registry: Mutex<Registry>,
    /// Counts where no thread's set is at hand: a thread past its destructors, a stream that is gone. `None` once closed.
    common: Mutex<Option<BTreeMap<u64, Counters>>>,
    refusal_count: AtomicU32,
    /// How many sets there are. Written under the registry's lock.
    set_count: AtomicU32,
}

/// All sets: those that a thread owns, and those whose thread has ended.
#[derive(Debug)]
struct Registry {
    sets: Vec<Arc<ThreadCache>>,
    /// What sets counted that are gone.
    retired: Counters,
    is_closed: bool,
}

/// Pieces on their way to the heap, each free once its stamp is.
pub type Spill<S> = Vec<(HeapBlock, S)>;

impl<S: Copy + From<u64>> ThreadCaches<S> {
    /// Empty caches that may hold so much together.
    pub fn new(cap_bytes: u64) -> Self {
        Self {
            budget: Budget::new(cap_bytes),
            depot: Depot::new(),
            registry: Mutex::new(Registry {
                sets: Vec::new(),
                retired: Counters::default(),
                is_closed: false,
            }),
            common: Mutex::new(Some(BTreeMap::new())),
            refusal_count: AtomicU32::new(0),
            set_count: AtomicU32::new(0),
        }
    }

    /// How much all magazines and the depot may hold together from now on.
    pub fn set_cap(&self, cap_bytes: u64) {
        self.budget.set_cap(cap_bytes);
    }

    /// How many sets there are, of threads and streams.
    pub fn set_count(&self) -> u64 {
        u64::from(self.set_count.load(Ordering::Relaxed))
    }

    /// A set for a thread that has none for the stream: one that another thread left, or a new one. `None` once closed.
    pub fn adopt(&self, stream: u64) -> Option<Arc<ThreadCache>> {
        let mut registry = self.lock();
        if registry.is_closed {
            return None;
        }
        let left = registry.sets.iter().find(|set| set.stream() == stream && !set.is_closed() && set.adopt());
        if let Some(set) = left {
            return Some(Arc::clone(set));
        }
        let set = Arc::new(ThreadCache::new(stream));
        registry.sets.push(Arc::clone(&set));
        self.note_sets(&registry);
        Some(set)
    }

    /// Fills the class's empty stack from the depot; false if nothing there may be had. A set that runs empty allocates
    /// more than it frees, so it gives up most of its room: pieces that are handed out leave theirs behind.
    pub fn refill(&self, set: OwnerGuard<'_>, class: SizeClass, may_have: impl Fn(&S) -> bool) -> bool {
        let kept_bytes = ROOM_KEPT_BYTES.max(class.size_bytes());
        let given = set.with(|magazines| (magazines.give_up_room(kept_bytes), magazines.take_spare()));
        let (given_bytes, mut spare) = given.unwrap_or_default();
        self.budget.give_back(given_bytes);
        let Some(mut batch) = self.depot.take(class, may_have, &mut spare) else {
            set.with(|magazines| magazines.keep_spare(spare));
            return false;
        };
        let filled = set.with(|magazines| {
            magazines.refill(class, &mut batch.pieces);
            magazines.keep_spare(core::mem::take(&mut batch.pieces));
        });
        if filled.is_some() {
            return true;
        }
        // Closed: the stream is gone. The shelf may have filled up, by others' work, so this can make it one too long.
        self.depot.put_back(class, batch);
        false
    }

    /// Makes way in a set for one more piece of a class, if the allowances permit. The piece itself is put in last.
    pub fn make_way(
        &self,
        set: OwnerGuard<'_>,
        class: SizeClass,
        stamp: impl Fn(u64) -> S,
        spill: &mut Spill<S>,
    ) -> bool {
        let Some((batch, room_bytes)) =
            set.with(|magazines| (magazines.make_space(class), magazines.room_bytes()))
        else {
            return false;
        };
        let mut wanted_bytes = GRANT_BYTES;
        if let Some(pieces) = batch {
            // It frees more than it allocates, and so will want room for as much again.
            wanted_bytes = class.size_bytes() * pieces.len() as u64;
            let spare = self.shelve(class, Batch { stamp: stamp(set.stream()), pieces }, spill);
            set.with(|magazines| magazines.keep_spare(spare));
        }
        if room_bytes >= class.size_bytes() || self.grant(set, class, wanted_bytes) {
            return true;
        }
        // Looking at all sets takes a while: one refusal of many does it.
        if !self.refusal_count.fetch_add(1, Ordering::Relaxed).is_multiple_of(REFUSALS_BETWEEN_REBALANCES) {
            return false;
        }
        self.rebalance(set, stamp, spill);
        self.grant(set, class, GRANT_BYTES)
    }

    /// Takes all pieces out of a set, and its allowance.
    pub fn drain_own(&self, set: OwnerGuard<'_>, stamp: impl Fn(u64) -> S, spill: &mut Spill<S>) {
        let mut pieces = Vec::new();
        let given_bytes = set.with(|magazines| {
            magazines.recent.empty(leaving(spill));
            magazines.shrink(0, |piece| pieces.push(piece))
        });
        self.budget.give_back(given_bytes.unwrap_or(0));
        stamped(&set, pieces, stamp, spill);
    }

    /// Takes all pieces out of all sets and the depot, whatever their threads are doing.
    pub fn drain(&self, stamp: impl Fn(u64) -> S, spill: &mut Spill<S>) {
        let registry = self.lock();
        self.shrink(registry.sets.iter().map(|set| (&**set, 0)), stamp, spill);
        self.drain_depot(spill);
    }

    /// What all sets may hold, as it was a moment ago.
    pub fn allowance_bytes(&self) -> u64 {
        self.lock().sets.iter().map(|set| set.allowance_bytes()).sum()
    }

    /// Takes what is beyond the classes out of all sets.
    pub fn drain_recent(&self, spill: &mut Spill<S>) {
        let registry = self.lock();
        let having = registry.sets.iter().filter(|set| set.has_recent()).map(|set| (&**set, ()));
        visit_all(having, |_, (), magazines| magazines.recent.empty(leaving(spill)));
    }

    /// Drains and forgets the sets of streams that are gone. Returns what the heap was told that they keep.
    pub fn purge(
        &self,
        is_gone: impl Fn(u64) -> bool,
        stamp: impl Fn(u64) -> S,
        spill: &mut Spill<S>,
    ) -> u64 {
        let mut registry = self.lock();
        let gone: Vec<_> = registry.sets.extract_if(.., |set| is_gone(set.stream())).collect();
        self.note_sets(&registry);
        let (counters, kept_bytes) = self.close_sets(&gone, stamp, spill);
        registry.retired = registry.retired + counters;
        let mut common = self.common();
        let Some(common) = common.as_mut() else { return kept_bytes };
        let retired = &mut registry.retired;
        common.retain(|stream, counters| {
            let is_gone = is_gone(*stream);
            if is_gone {
                *retired = *retired + *counters;
            }
            !is_gone
        });
        kept_bytes
    }

    /// Drains everything for good. From now on nothing is counted here; returns the sum of what was.
    pub fn close(&self, stamp: impl Fn(u64) -> S, spill: &mut Spill<S>) -> Counters {
        let mut registry = self.lock();
        registry.is_closed = true;
        let sets = core::mem::take(&mut registry.sets);
        let sum = registry.retired + self.close_sets(&sets, stamp, spill).0;
        self.drain_depot(spill);
        sum_of(self.common().take().unwrap_or_default().values(), sum)
    }

    /// The sum of what all sets have counted.
    pub fn counters(&self) -> Counters {
        let registry = self.lock();
        let elsewhere = sum_of(self.common().iter().flat_map(BTreeMap::values), registry.retired);
        registry.sets.iter().fold(elsewhere, |sum, set| sum + set.counters())
    }

    /// What has been counted for each stream, and together under `None` for those that are gone.
    pub fn streams(&self, is_gone: impl Fn(u64) -> bool) -> BTreeMap<Option<u64>, Counters> {
        let registry = self.lock();
        let mut streams = BTreeMap::from([(None, registry.retired)]);
        let mut add = |stream: u64, counters: Counters| {
            let sum: &mut Counters =
                streams.entry(Some(stream).filter(|stream| !is_gone(*stream))).or_default();
            *sum = *sum + counters;
        };
        registry.sets.iter().for_each(|set| add(set.stream(), set.counters()));
        self.common().iter().flatten().for_each(|(stream, counters)| add(*stream, *counters));
        streams
    }

    /// Counts a block out for a thread that has no set.
    pub fn count_out(&self, stream: u64, size_bytes: u64) {
        if let Some(common) = self.common().as_mut() {
            common.entry(stream).or_default().count_out(size_bytes);
        }
    }

    /// Counts a block in for a thread that has no set; false once closed.
    pub fn count_in(&self, stream: u64, size_bytes: u64) -> bool {
        let mut common = self.common();
        common.as_mut().map(|common| common.entry(stream).or_default().count_in(size_bytes)).is_some()
    }

    /// The sum of what the magazines and the depot may hold by now.
    pub fn granted_bytes(&self) -> u64 {
        self.budget.granted_bytes()
    }

    /// Compares what is held with what has been granted. Returns how many pieces are held.
    pub fn check(&self) -> Result<u64, String> {
        let registry = self.lock();
        let (mut piece_count, mut allowed_bytes) = self.depot.held();
        visit_all(registry.sets.iter().map(|set| (&**set, ())), |_, (), magazines| {
            piece_count += magazines.piece_count();
            allowed_bytes += magazines.counted_bytes() + magazines.room_bytes();
        });
        let granted_bytes = self.budget.granted_bytes();
        match allowed_bytes == granted_bytes {
            true => Ok(piece_count),
            false => Err(format!("the front may hold {allowed_bytes} bytes, {granted_bytes} are granted")),
        }
    }

    fn grant(&self, set: OwnerGuard<'_>, class: SizeClass, wanted_bytes: u64) -> bool {
        let needed_bytes = class.size_bytes();
        let granted_bytes = self.budget.grant(needed_bytes, wanted_bytes.max(needed_bytes));
        if granted_bytes > 0 && set.with(|magazines| magazines.add_room(granted_bytes)).is_none() {
            self.budget.give_back(granted_bytes);
            return false;
        }
        granted_bytes > 0
    }

    /// Takes allowance back: all of it from sets that were not used since the last time, and from the others what exceeds
    /// an equal share. The depot gives up the oldest batch of each shelf.
    fn rebalance(&self, asking: OwnerGuard<'_>, stamp: impl Fn(u64) -> S, spill: &mut Spill<S>) {
        // Whoever holds it is here already, or changes the sets anyway.
        let Ok(registry) = self.registry.try_lock() else { return };
        let others = registry.sets.iter().filter(|set| !core::ptr::eq(&***set, &*asking));
        let others: Vec<_> = others.map(|set| (&**set, set.was_used())).collect();
        let used_count = others.iter().filter(|(_, was_used)| *was_used).count() as u64;
        let share_bytes = self.budget.cap_bytes() / (used_count + 1);
        let shares = others.into_iter().map(|(set, was_used)| (set, if was_used { share_bytes } else { 0 }));
        self.shrink(shares, stamp, spill);
        self.depot.age(|class, batch| self.leave(class, batch, spill));
    }

    /// Takes from each set what it may hold beyond so many bytes. By who has the registry, one caller at a time.
    fn shrink<'a>(
        &self,
        sets: impl Iterator<Item = (&'a ThreadCache, u64)>,
        stamp: impl Fn(u64) -> S,
        spill: &mut Spill<S>,
    ) {
        // One that is being granted more at this moment is left alone, as if it were a moment later.
        let above = sets.filter(|(set, keep_bytes)| {
            set.allowance_bytes() > *keep_bytes || (*keep_bytes == 0 && set.has_recent())
        });
        let mut left = Vec::new();
        visit_all(above, |set, keep_bytes, magazines| {
            let mut pieces = Vec::new();
            self.budget.give_back(magazines.shrink(keep_bytes, |piece| pieces.push(piece)));
            if keep_bytes == 0 {
                magazines.recent.empty(leaving(spill));
            }
            left.push((set, pieces));
        });
        left.into_iter().for_each(|(set, pieces)| stamped(set, pieces, &stamp, spill));
    }

    /// Returns what they counted, and what the heap was told that they keep.
    fn close_sets(
        &self,
        sets: &[Arc<ThreadCache>],
        stamp: impl Fn(u64) -> S,
        spill: &mut Spill<S>,
    ) -> (Counters, u64) {
        let (mut left, mut sum, mut kept_bytes) = (Vec::new(), Counters::default(), 0);
        close_all(sets.iter().map(|set| &**set), |set, magazines| {
            let mut pieces = Vec::new();
            self.budget.give_back(magazines.shrink(0, |piece| pieces.push(piece)));
            magazines.recent.empty(leaving(spill));
            sum = sum + set.counters();
            kept_bytes += magazines.recent.forget();
            left.push((set, pieces));
        });
        left.into_iter().for_each(|(set, pieces)| stamped(set, pieces, &stamp, spill));
        (sum, kept_bytes)
    }

    /// Lays a batch into the depot; what does not fit leaves. Returns an empty list for the next one.
    fn shelve(&self, class: SizeClass, batch: Batch<S>, spill: &mut Spill<S>) -> Vec<HeapBlock> {
        self.depot.add(class, batch).unwrap_or_else(|batch| {
            self.leave(class, batch, spill);
            Vec::new()
        })
    }

    fn drain_depot(&self, spill: &mut Spill<S>) {
        self.depot.drain(|class, batch| self.leave(class, batch, spill));
    }

    fn leave(&self, class: SizeClass, batch: Batch<S>, spill: &mut Spill<S>) {
        self.budget.give_back(class.size_bytes() * batch.pieces.len() as u64);
        spill.extend(batch.pieces.into_iter().map(|piece| (piece, batch.stamp)));
    }

    fn note_sets(&self, registry: &Registry) {
        self.set_count.store(registry.sets.len() as u32, Ordering::Relaxed);
    }

    fn common(&self) -> MutexGuard<'_, Option<BTreeMap<u64, Counters>>> {
        self.common.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        // Nothing here panics half way through a change.
        self.registry.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// With the stamps that they have.
fn leaving<S: From<u64>>(spill: &mut Spill<S>) -> impl FnMut(LargeBlock) {
    |large| spill.push((large.piece, S::from(large.stamp)))
}

fn sum_of<'a>(counters: impl Iterator<Item = &'a Counters>, first: Counters) -> Counters {
    counters.fold(first, |sum, counters| sum + *counters)
}

/// Reads the stamp, now that the pieces have left the set.
fn stamped<S: Copy>(
    set: &ThreadCache,
    pieces: Vec<HeapBlock>,
    stamp: impl Fn(u64) -> S,
    spill: &mut Spill<S>,
) {
    if !pieces.is_empty() {
        let stamp = stamp(set.stream());
        spill.extend(pieces.into_iter().map(|piece| (piece, stamp)));
    }
}

/// What a set is granted at a time, at least: so small pieces rarely ask.
const GRANT_BYTES: u64 = 64 << 10;

/// What a set that runs empty keeps of its room.
const ROOM_KEPT_BYTES: u64 = 256 << 10;

/// A rebalance looks at every set.
pub(super) const REFUSALS_BETWEEN_REBALANCES: u32 = 32;

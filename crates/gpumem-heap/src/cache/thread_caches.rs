//! [`ThreadCaches`]: all thread caches of one pool, and the depot between them. Small allocations and frees that hit a cache touch nothing
//! else.
//!
//! ```text
//! take: this thread's cache ── empty ──▶ a batch from the depot ── none ──▶ the caller goes to the heap
//! put:  this thread's cache ── full ───▶ its older half to the depot ── no allowance ──▶ the caller goes to the heap
//! ```
//!
//! Each cache also keeps the last few larger blocks that were freed ([`LargeCache`](super::large_cache::LargeCache)).
//!
//! Blocks that leave for the heap are collected in a [`Drained`], each with its stamp. `S` is the type of the stamp. The caches read
//! a stamp, through a function of the caller, when blocks leave a cache.
//!
//! *Order.* A block in a cache was freed after work that was queued before. Its stamp is read after it has left the cache. The event that
//! closes the stamp's epoch is recorded even later, so it comes after that work.
//!
//! *The last access.* A pool may be torn down as soon as its last block has been counted as freed. So a free counts as its last step, in a
//! cache that its thread keeps alive.

use super::budget::CacheBudget;
use super::depot::{Batch, Depot};
use super::large_cache::LargeBlock;
use super::thread_cache::{OwnerGuard, ThreadCache, close_all, visit_all};
use crate::block::HeapBlock;
use crate::size_class::SizeClass;
use gpumem_base::counters::Counters;
use gpumem_base::sync::{Arc, AtomicU32, Mutex, MutexGuard, Ordering};
use std::collections::BTreeMap;

/// The thread caches and the depot of one pool.
#[derive(Debug)]
pub struct ThreadCaches<S> {
    budget: CacheBudget,
    depot: Depot<S>,
    registry: Mutex<CacheRegistry>,
    /// Counters by stream, for frees and allocations without a thread cache: on a thread that has destroyed its caches, or for a destroyed
    /// stream. `None` once closed.
    common: Mutex<Option<BTreeMap<u64, Counters>>>,
    refusal_count: AtomicU32,
    /// The number of caches. Written under the registry's lock.
    cache_count: AtomicU32,
}

#[derive(Debug)]
struct CacheRegistry {
    caches: Vec<Arc<ThreadCache>>,
    retired: Counters,
    is_closed: bool,
}

/// Blocks on their way to the heap, each free once its stamp is complete.
pub type Drained<S> = Vec<(HeapBlock, S)>;

impl<S: Copy + From<u64>> ThreadCaches<S> {
    /// Creates the caches of a pool, with a combined capacity.
    pub fn new(cap_bytes: u64) -> Self {
        Self {
            budget: CacheBudget::new(cap_bytes),
            depot: Depot::new(),
            registry: Mutex::new(CacheRegistry {
                caches: Vec::new(),
                retired: Counters::default(),
                is_closed: false,
            }),
            common: Mutex::new(Some(BTreeMap::new())),
            refusal_count: AtomicU32::new(0),
            cache_count: AtomicU32::new(0),
        }
    }

    /// Sets the combined capacity of all magazines and the depot. A lower capacity does not drain any cache.
    pub fn set_cap(&self, cap_bytes: u64) {
        self.budget.set_cap(cap_bytes);
    }

    /// The number of thread caches.
    pub fn cache_count(&self) -> u64 {
        u64::from(self.cache_count.load(Ordering::Relaxed))
    }

    /// Returns a cache for a thread without a cache for the stream: the cache of an ended thread, or a new one. `None` once closed.
    pub fn adopt(&self, stream: u64) -> Option<Arc<ThreadCache>> {
        let mut registry = self.lock();
        if registry.is_closed {
            return None;
        }
        let left = registry
            .caches
            .iter()
            .find(|cache| cache.stream() == stream && !cache.is_closed() && cache.adopt());
        if let Some(cache) = left {
            return Some(Arc::clone(cache));
        }
        let cache = Arc::new(ThreadCache::new(stream));
        registry.caches.push(Arc::clone(&cache));
        self.note_caches(&registry);
        Some(cache)
    }

    /// Fills the empty magazine of a class from the depot, and takes and counts a block of it. `None` if the depot has no batch
    /// that `may_have` accepts. A cache that runs empty allocates more than it frees, so it also returns most of its allowance,
    /// which allocated blocks no longer use.
    pub fn refill(
        &self,
        cache: OwnerGuard<'_>,
        class: SizeClass,
        size_bytes: u64,
        may_have: impl Fn(&S) -> bool,
    ) -> Option<HeapBlock> {
        let kept_bytes = ROOM_KEPT_BYTES.max(class.size_bytes());
        let given = cache.with(|magazines| (magazines.give_up_room(kept_bytes), magazines.take_spare()));
        let (given_bytes, mut spare) = given.unwrap_or_default();
        self.budget.give_back(given_bytes);
        let Some(mut batch) = self.depot.take(class, may_have, &mut spare) else {
            cache.with(|magazines| magazines.keep_spare(spare));
            return None;
        };
        let taken = cache.with(|magazines| {
            magazines.refill(class, &mut batch.blocks);
            magazines.keep_spare(core::mem::take(&mut batch.blocks));
            magazines.take(class).inspect(|_| _ = cache.counters.count_out(size_bytes))
        });
        if taken.is_none() {
            // The cache was closed: its stream is gone. Other threads may have filled the shelf, so this can make it one batch
            // too long.
            self.depot.put_back(class, batch);
        }
        taken?
    }

    /// Makes room in a cache for one more block of a class. False if the budget allows none. The caller puts the block into the
    /// cache afterwards.
    pub fn make_way(
        &self,
        cache: OwnerGuard<'_>,
        class: SizeClass,
        stamp: impl Fn(u64) -> S,
        drained: &mut Drained<S>,
    ) -> bool {
        let Some((batch, room_bytes)) =
            cache.with(|magazines| (magazines.make_space(class), magazines.room_bytes()))
        else {
            return false;
        };
        let mut wanted_bytes = GRANT_BYTES;
        if let Some(blocks) = batch {
            // This cache frees more than it allocates, so it will want room for another batch.
            wanted_bytes = class.size_bytes() * blocks.len() as u64;
            let spare = self.shelve(class, Batch { stamp: stamp(cache.stream()), blocks }, drained);
            cache.with(|magazines| magazines.keep_spare(spare));
        }
        if room_bytes >= class.size_bytes() || self.grant(cache, class, wanted_bytes) {
            return true;
        }
        // A rebalance looks at all caches, so only one of many refusals runs it.
        if !self.refusal_count.fetch_add(1, Ordering::Relaxed).is_multiple_of(REFUSALS_BETWEEN_REBALANCES) {
            return false;
        }
        self.rebalance(cache, stamp, drained);
        self.grant(cache, class, GRANT_BYTES)
    }

    /// Removes all blocks of a cache, and its allowance.
    pub fn drain_own(&self, cache: OwnerGuard<'_>, stamp: impl Fn(u64) -> S, drained: &mut Drained<S>) {
        let mut blocks = Vec::new();
        let given_bytes = cache.with(|magazines| {
            magazines.large.empty(leaving(drained));
            magazines.shrink(0, |block| blocks.push(block))
        });
        self.budget.give_back(given_bytes.unwrap_or(0));
        stamped(&cache, blocks, stamp, drained);
    }

    /// Removes all blocks of all caches and of the depot, even while their threads are running.
    pub fn drain(&self, stamp: impl Fn(u64) -> S, drained: &mut Drained<S>) {
        let registry = self.lock();
        self.shrink(registry.caches.iter().map(|cache| (&**cache, 0)), stamp, drained);
        self.drain_depot(drained);
    }

    /// The combined allowance of all caches. A change that happens at the same time may be missed.
    pub fn allowance_bytes(&self) -> u64 {
        self.lock().caches.iter().map(|cache| cache.allowance_bytes()).sum()
    }

    /// Removes the large blocks of all caches.
    pub fn drain_large(&self, drained: &mut Drained<S>) {
        let registry = self.lock();
        let having = registry.caches.iter().filter(|cache| cache.has_large()).map(|cache| (&**cache, ()));
        visit_all(having, |_, (), magazines| magazines.large.empty(leaving(drained)));
    }

    /// Drains and forgets the caches of streams that are gone. Returns the bytes that the heap counts as kept in them.
    pub fn purge(
        &self,
        is_gone: impl Fn(u64) -> bool,
        stamp: impl Fn(u64) -> S,
        drained: &mut Drained<S>,
    ) -> u64 {
        let mut registry = self.lock();
        let gone: Vec<_> = registry.caches.extract_if(.., |cache| is_gone(cache.stream())).collect();
        self.note_caches(&registry);
        let (counters, kept_bytes) = self.close_caches(&gone, stamp, drained);
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

    /// Drains and closes all caches, and returns the sum of all counters. Later operations are not included.
    pub fn close(&self, stamp: impl Fn(u64) -> S, drained: &mut Drained<S>) -> Counters {
        let mut registry = self.lock();
        registry.is_closed = true;
        let caches = core::mem::take(&mut registry.caches);
        let sum = registry.retired + self.close_caches(&caches, stamp, drained).0;
        self.drain_depot(drained);
        sum_of(self.common().take().unwrap_or_default().values(), sum)
    }

    /// The sum of all counters.
    pub fn counters(&self) -> Counters {
        let registry = self.lock();
        let elsewhere = sum_of(self.common().iter().flat_map(BTreeMap::values), registry.retired);
        registry.caches.iter().fold(elsewhere, |sum, cache| sum + cache.counters())
    }

    /// The counters of each stream; under `None` the sum over destroyed streams.
    pub fn streams(&self, is_gone: impl Fn(u64) -> bool) -> BTreeMap<Option<u64>, Counters> {
        let registry = self.lock();
        let mut streams = BTreeMap::from([(None, registry.retired)]);
        let mut add = |stream: u64, counters: Counters| {
            let sum: &mut Counters =
                streams.entry(Some(stream).filter(|stream| !is_gone(*stream))).or_default();
            *sum = *sum + counters;
        };
        registry.caches.iter().for_each(|cache| add(cache.stream(), cache.counters()));
        self.common().iter().flatten().for_each(|(stream, counters)| add(*stream, *counters));
        streams
    }

    /// Counts an allocated block for a thread that has no cache.
    pub fn count_out(&self, stream: u64, size_bytes: u64) {
        if let Some(common) = self.common().as_mut() {
            common.entry(stream).or_default().count_out(size_bytes);
        }
    }

    /// Counts a freed block for a thread that has no cache. False once closed.
    pub fn count_in(&self, stream: u64, size_bytes: u64) -> bool {
        let mut common = self.common();
        common.as_mut().map(|common| common.entry(stream).or_default().count_in(size_bytes)).is_some()
    }

    /// The combined allowance of magazines and depot.
    pub fn granted_bytes(&self) -> u64 {
        self.budget.granted_bytes()
    }

    /// Compares what is held with what was granted. Returns the number of blocks held.
    ///
    /// # Errors
    ///
    /// A description of the difference.
    pub fn check(&self) -> Result<u64, String> {
        let registry = self.lock();
        let (mut block_count, mut allowed_bytes) = self.depot.held();
        visit_all(registry.caches.iter().map(|cache| (&**cache, ())), |_, (), magazines| {
            block_count += magazines.block_count();
            allowed_bytes += magazines.counted_bytes() + magazines.room_bytes();
        });
        let granted_bytes = self.budget.granted_bytes();
        match allowed_bytes == granted_bytes {
            true => Ok(block_count),
            false => Err(format!(
                "thread caches and depot may hold {allowed_bytes} bytes, {granted_bytes} are granted"
            )),
        }
    }

    fn grant(&self, cache: OwnerGuard<'_>, class: SizeClass, wanted_bytes: u64) -> bool {
        let needed_bytes = class.size_bytes();
        let granted_bytes = self.budget.grant(needed_bytes, wanted_bytes.max(needed_bytes));
        if granted_bytes > 0 && cache.with(|magazines| magazines.add_room(granted_bytes)).is_none() {
            self.budget.give_back(granted_bytes);
            return false;
        }
        granted_bytes > 0
    }

    /// Reclaims allowance: all of it from caches that were not used since the previous rebalance, and the part beyond an equal share from
    /// the others. The depot loses the oldest batch of each shelf.
    fn rebalance(&self, asking: OwnerGuard<'_>, stamp: impl Fn(u64) -> S, drained: &mut Drained<S>) {
        // The holder of the lock is rebalancing too, or is changing the list of caches.
        let Ok(registry) = self.registry.try_lock() else { return };
        let others = registry.caches.iter().filter(|cache| !core::ptr::eq(&***cache, &*asking));
        let others: Vec<_> = others.map(|cache| (&**cache, cache.was_used())).collect();
        let used_count = others.iter().filter(|(_, was_used)| *was_used).count() as u64;
        let share_bytes = self.budget.cap_bytes() / (used_count + 1);
        let shares =
            others.into_iter().map(|(cache, was_used)| (cache, if was_used { share_bytes } else { 0 }));
        self.shrink(shares, stamp, drained);
        self.depot.age(|class, batch| self.leave(class, batch, drained));
    }

    /// Takes from each cache the allowance beyond a number of bytes. The caller holds the registry, so only one thread does this at
    /// a time.
    fn shrink<'a>(
        &self,
        caches: impl Iterator<Item = (&'a ThreadCache, u64)>,
        stamp: impl Fn(u64) -> S,
        drained: &mut Drained<S>,
    ) {
        // A cache whose allowance is growing now is left alone, as if it grew a moment later.
        let above = caches.filter(|(cache, keep_bytes)| {
            cache.allowance_bytes() > *keep_bytes || (*keep_bytes == 0 && cache.has_large())
        });
        let mut left = Vec::new();
        visit_all(above, |cache, keep_bytes, magazines| {
            let mut blocks = Vec::new();
            self.budget.give_back(magazines.shrink(keep_bytes, |block| blocks.push(block)));
            if keep_bytes == 0 {
                magazines.large.empty(leaving(drained));
            }
            left.push((cache, blocks));
        });
        left.into_iter().for_each(|(cache, blocks)| stamped(cache, blocks, &stamp, drained));
    }

    /// Returns the sum of their counters, and the bytes that the heap counts as kept in them.
    fn close_caches(
        &self,
        caches: &[Arc<ThreadCache>],
        stamp: impl Fn(u64) -> S,
        drained: &mut Drained<S>,
    ) -> (Counters, u64) {
        let (mut left, mut sum, mut kept_bytes) = (Vec::new(), Counters::default(), 0);
        close_all(caches.iter().map(|cache| &**cache), |cache, magazines| {
            let mut blocks = Vec::new();
            self.budget.give_back(magazines.shrink(0, |block| blocks.push(block)));
            magazines.large.empty(leaving(drained));
            sum = sum + cache.counters();
            kept_bytes += magazines.large.forget();
            left.push((cache, blocks));
        });
        left.into_iter().for_each(|(cache, blocks)| stamped(cache, blocks, &stamp, drained));
        (sum, kept_bytes)
    }

    /// Adds a batch to the depot, or to the drained blocks if it does not fit. Returns an empty list for the next batch.
    fn shelve(&self, class: SizeClass, batch: Batch<S>, drained: &mut Drained<S>) -> Vec<HeapBlock> {
        self.depot.add(class, batch).unwrap_or_else(|batch| {
            self.leave(class, batch, drained);
            Vec::new()
        })
    }

    fn drain_depot(&self, drained: &mut Drained<S>) {
        self.depot.drain(|class, batch| self.leave(class, batch, drained));
    }

    fn leave(&self, class: SizeClass, batch: Batch<S>, drained: &mut Drained<S>) {
        self.budget.give_back(class.size_bytes() * batch.blocks.len() as u64);
        drained.extend(batch.blocks.into_iter().map(|block| (block, batch.stamp)));
    }

    fn note_caches(&self, registry: &CacheRegistry) {
        self.cache_count.store(registry.caches.len() as u32, Ordering::Relaxed);
    }

    fn common(&self) -> MutexGuard<'_, Option<BTreeMap<u64, Counters>>> {
        self.common.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn lock(&self) -> MutexGuard<'_, CacheRegistry> {
        // A poisoned lock stays usable: no code under it panics in the middle of a change.
        self.registry.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Adds large blocks to the drained ones, with the stamps of their frees.
fn leaving<S: From<u64>>(drained: &mut Drained<S>) -> impl FnMut(LargeBlock) {
    |large| drained.push((large.block, S::from(large.stamp)))
}

fn sum_of<'a>(counters: impl Iterator<Item = &'a Counters>, first: Counters) -> Counters {
    counters.fold(first, |sum, counters| sum + *counters)
}

/// Reads the stamp, now that the blocks have left the cache.
fn stamped<S: Copy>(
    cache: &ThreadCache,
    blocks: Vec<HeapBlock>,
    stamp: impl Fn(u64) -> S,
    drained: &mut Drained<S>,
) {
    if !blocks.is_empty() {
        let stamp = stamp(cache.stream());
        drained.extend(blocks.into_iter().map(|block| (block, stamp)));
    }
}

/// The minimum grant of a cache, so that small blocks rarely need one.
const GRANT_BYTES: u64 = 64 << 10;

/// The room that a cache keeps when it runs empty.
const ROOM_KEPT_BYTES: u64 = 256 << 10;

/// A rebalance looks at every cache.
pub(super) const REFUSALS_BETWEEN_REBALANCES: u32 = 32;

//! [`ThreadCache`]: freed blocks of one stream that one thread keeps. Its [`Magazines`] are behind a lock that is free for the owner.
//!
//! Every block in a cache was freed on the cache's stream, or was ready for all streams, so an allocation on that stream may take any of
//! them without a check. The owning thread uses the cache through an [`OwnerGuard`]. Other threads revoke it briefly, to drain it or to
//! reduce its allowance. Any thread may read its counters and its allowance without the lock.

use super::large_cache::{LargeBlock, Retention};
use super::magazine::Magazines;
use crate::block::HeapBlock;
use crate::size_class::SizeClass;
use core::marker::PhantomData;
use core::ops::Deref;
use gpumem_base::counters::{Counters, LocalCounters};
use gpumem_base::sync::{AtomicBool, AtomicU32, AtomicU64, BiasedLock, Ordering, revoke_all};

/// Freed blocks of one stream, owned by one thread. Aligned, so that two threads' caches share no cache line.
#[derive(Debug)]
#[repr(align(128))]
pub struct ThreadCache {
    magazines: BiasedLock<Magazines>,
    /// Blocks handed out and put back here. Written by the holder of the magazines.
    pub(super) counters: LocalCounters,
    /// A copy of the magazines' allowance, as of the last change.
    allowance_bytes: AtomicU64,
    /// A copy of the number of large blocks, as of the last change.
    large_count: AtomicU32,
    /// The operation count at the last call of [`ThreadCache::was_used`].
    seen_count: AtomicU64,
    stream: u64,
    is_owned: AtomicBool,
}

/// The owning thread's access to its cache.
#[derive(Clone, Copy)]
pub struct OwnerGuard<'a> {
    cache: &'a ThreadCache,
    _thread: PhantomData<*const ()>,
}

impl ThreadCache {
    /// Creates an empty cache without allowance. The calling thread owns it.
    pub fn new(stream: u64) -> Self {
        Self {
            magazines: BiasedLock::new(Magazines::new()),
            counters: LocalCounters::default(),
            allowance_bytes: AtomicU64::new(0),
            large_count: AtomicU32::new(0),
            seen_count: AtomicU64::new(0),
            stream,
            is_owned: AtomicBool::new(true),
        }
    }

    /// The number of the cache's stream.
    #[inline]
    pub fn stream(&self) -> u64 {
        self.stream
    }

    /// True once the cache is closed, for good: its stream or its pool is gone.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.magazines.is_closed()
    }

    /// The counters. An operation that runs at the same time may be missed.
    pub fn counters(&self) -> Counters {
        self.counters.counters()
    }

    /// The allowance of its magazines. A change that happens at the same time may be missed.
    pub fn allowance_bytes(&self) -> u64 {
        self.allowance_bytes.load(Ordering::Relaxed)
    }

    /// True if it holds large blocks. A change that happens at the same time may be missed.
    pub fn has_large(&self) -> bool {
        self.large_count.load(Ordering::Relaxed) > 0
    }

    /// True if a block was handed out or put back since the previous call.
    pub fn was_used(&self) -> bool {
        let now_count = self.counters().operation_count();
        self.seen_count.swap(now_count, Ordering::Relaxed) != now_count
    }

    /// The calling thread's access.
    ///
    /// # Safety
    ///
    /// The calling thread owns the cache: it created or adopted it, and hands it over only after the last use of the guard. A
    /// closure that runs inside one of the guard's functions does not use the cache.
    #[inline]
    pub unsafe fn own(&self) -> OwnerGuard<'_> {
        OwnerGuard { cache: self, _thread: PhantomData }
    }

    /// Gives up ownership at the end of the owning thread. The blocks stay, for the next thread that adopts the cache or drains it.
    pub fn hand_over(&self) {
        self.is_owned.store(false, Ordering::Release);
    }

    /// Makes the calling thread the owner. Returns false if the cache has an owner.
    pub fn adopt(&self) -> bool {
        self.is_owned.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn noting<R>(&self, magazines: &mut Magazines, work: impl FnOnce(&mut Magazines) -> R) -> R {
        let result = work(magazines);
        self.allowance_bytes.store(magazines.allowance_bytes(), Ordering::Relaxed);
        self.note_large(magazines);
        result
    }

    #[inline]
    fn note_large(&self, magazines: &Magazines) {
        self.large_count.store(magazines.large.as_slice().len() as u32, Ordering::Relaxed);
    }
}

/// Revokes all caches that are not closed, with one barrier, and visits them one after another. One caller at a time.
pub(super) fn visit_all<'a, K>(
    caches: impl IntoIterator<Item = (&'a ThreadCache, K)>,
    mut visit: impl FnMut(&'a ThreadCache, K, &mut Magazines),
) {
    for ((cache, key), revoked) in revoke_all(caches.into_iter().map(keyed)) {
        revoked.with(|magazines| cache.noting(magazines, |magazines| visit(cache, key, magazines)));
    }
}

/// Like [`visit_all`], and closes the caches.
pub(super) fn close_all<'a>(
    caches: impl IntoIterator<Item = &'a ThreadCache>,
    mut visit: impl FnMut(&'a ThreadCache, &mut Magazines),
) {
    for ((cache, ()), revoked) in revoke_all(caches.into_iter().map(|cache| keyed((cache, ())))) {
        revoked.close(|magazines| cache.noting(magazines, |magazines| visit(cache, magazines)));
    }
}

fn keyed<K>((cache, key): (&ThreadCache, K)) -> ((&ThreadCache, K), &BiasedLock<Magazines>) {
    ((cache, key), &cache.magazines)
}

impl OwnerGuard<'_> {
    /// Takes a block of a class and counts it. `None` if the magazine is empty, or if another thread has revoked the cache.
    #[inline]
    pub fn take(self, class: SizeClass, size_bytes: u64) -> Option<HeapBlock> {
        self.try_with(|magazines| {
            let block = magazines.take(class)?;
            self.counters.count_out(size_bytes);
            Some(block)
        })?
    }

    /// Puts a block back and counts it. False if there is no room, or if another thread has revoked the cache. After this has
    /// returned true, the caller must not access the pool: the block may have been its last one.
    #[inline]
    pub fn put(self, class: SizeClass, size_bytes: u64, block: HeapBlock) -> bool {
        let put = self.try_with(|magazines| {
            let is_in = magazines.put(class, block);
            if is_in {
                self.counters.count_in(size_bytes);
            }
            is_in
        });
        put == Some(true)
    }

    /// Like [`OwnerGuard::take`], for blocks beyond the size classes.
    #[inline]
    pub fn take_large(self, size_bytes: u64) -> Option<LargeBlock> {
        self.try_with(|magazines| {
            let large = magazines.large.take(size_bytes)?;
            self.note_large(magazines);
            self.counters.count_out(size_bytes);
            Some(large)
        })?
    }

    /// Like [`OwnerGuard::put`], for blocks beyond the size classes.
    #[inline]
    pub fn put_large(self, large: LargeBlock) -> bool {
        let put = self.try_with(|magazines| {
            let is_in = magazines.large.put(large);
            if is_in {
                self.note_large(magazines);
                self.counters.count_in(large.size_bytes);
            }
            is_in
        });
        put == Some(true)
    }

    /// Like [`OwnerGuard::take`], but also works after another thread has revoked the cache. If the cache retains large blocks loosely
    /// ([`Retention`]), the block may be of a slightly larger class.
    pub fn take_slow(self, class: SizeClass, size_bytes: u64) -> Option<(SizeClass, HeapBlock)> {
        self.with(|magazines| {
            let found = match magazines.take(class) {
                None if magazines.large.is_loose() => {
                    class.nearly().find_map(|larger| Some((larger, magazines.take(larger)?)))
                }
                block => block.map(|block| (class, block)),
            };
            found.inspect(|_| _ = self.counters.count_out(size_bytes))
        })?
    }

    /// Removes all large blocks, and stops retaining them.
    pub fn empty_large(self, leaves: impl FnMut(LargeBlock)) {
        self.with(|magazines| magazines.large.empty(leaves));
    }

    /// Removes all large blocks unless they are retained. Returns the bytes held at the last call, and the bytes held now.
    pub fn empty_unkept(self, leaves: impl FnMut(LargeBlock)) -> (u64, u64) {
        self.with(|magazines| magazines.large.empty_unkept(leaves)).unwrap_or_default()
    }

    /// Removes some of the oldest large blocks.
    pub fn make_way_large(self, leaves: impl FnMut(LargeBlock)) {
        self.with(|magazines| magazines.large.make_way(leaves));
    }

    /// Records that the heap handed out a large block, and the retention that applies from now on.
    pub fn note_out(self, record: u32, retention: Retention) {
        self.with(|magazines| magazines.large.note_out(record, retention));
    }

    /// Counts a block that was allocated elsewhere. False if the cache is closed.
    pub fn count_out(self, size_bytes: u64) -> bool {
        self.with(|_| self.counters.count_out(size_bytes)).is_some()
    }

    /// Like [`OwnerGuard::count_out`], for several blocks of `size_bytes` each.
    pub fn count_run_out(self, count: u64, size_bytes: u64) -> bool {
        self.with(|_| self.counters.count_run_out(count, size_bytes)).is_some()
    }

    /// Counts a block that was freed elsewhere. False if the cache is closed.
    pub fn count_in(self, size_bytes: u64) -> bool {
        self.with(|_| self.counters.count_in(size_bytes)).is_some()
    }

    /// Waits for other threads and runs `work` on the magazines; `None` if the cache is closed.
    pub(super) fn with<R>(self, work: impl FnOnce(&mut Magazines) -> R) -> Option<R> {
        // SAFETY: the caller of `ThreadCache::own` upholds the same contract.
        unsafe { self.magazines.own(|magazines| self.noting(magazines, work)) }
    }

    #[inline]
    fn try_with<R>(self, work: impl FnOnce(&mut Magazines) -> R) -> Option<R> {
        // SAFETY: the caller of `ThreadCache::own` upholds the same contract.
        unsafe { self.magazines.try_own(work) }
    }
}

impl Deref for OwnerGuard<'_> {
    type Target = ThreadCache;

    #[inline]
    fn deref(&self) -> &ThreadCache {
        self.cache
    }
}

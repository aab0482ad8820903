//! Draining the thread caches into the heap.

use super::CachingPool;
use gpumem_base::sync::MutexGuard;
use gpumem_device::internal::Stamp;
use gpumem_heap::cache;
use gpumem_heap::cache::Drained;
use std::sync::PoisonError;

impl CachingPool {
    /// Drains this thread's caches. Returns true if anything was drained. Drains run one after another, and each ends with its blocks in
    /// the heap, where the next one finds them.
    pub(in super::super) fn drain_own(&self) -> bool {
        let _turn = self.draining();
        let mut drained = Vec::new();
        cache::each_cache(self.cache_key, |set| {
            self.thread_caches.drain_own(set, |stream| self.stamp_of(stream), &mut drained)
        });
        self.give_all(drained)
    }

    /// The bytes that other threads may cache, after [`drain_own`](Self::drain_own).
    pub(in super::super) fn kept_by_others_bytes(&self) -> u64 {
        self.thread_caches.allowance_bytes()
    }

    /// Like [`drain_own`](Self::drain_own), for large blocks only.
    pub(in super::super) fn drain_own_large(&self) -> bool {
        let (mut is_any, mut core) = (false, self.core());
        cache::each_cache(self.cache_key, |set| {
            is_any |= set.has_large();
            set.empty_large(|large| core.give_large(large));
        });
        is_any
    }

    /// Like [`drain_own_large`](Self::drain_own_large), for all threads.
    pub(in super::super) fn drain_all_large(&self) -> bool {
        let _turn = self.draining();
        let mut drained = Vec::new();
        self.thread_caches.drain_large(&mut drained);
        self.give_all(drained)
    }

    pub(in super::super) fn drain_all(&self) -> bool {
        let _turn = self.draining();
        let mut drained = Vec::new();
        self.thread_caches.drain(|stream| self.stamp_of(stream), &mut drained);
        self.give_all(drained)
    }

    /// The address and the size of each live block, without blocks in thread caches. The size may be rounded up.
    #[cfg(feature = "status-socket")]
    pub(crate) fn live_blocks(&self) -> Vec<(u64, u64)> {
        self.drain_all();
        self.core().heap.live_blocks().collect()
    }

    fn draining(&self) -> MutexGuard<'_, ()> {
        self.draining.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn give_all(&self, drained: Drained<Stamp>) -> bool {
        if drained.is_empty() {
            return false;
        }
        let mut core = self.core();
        drained.iter().for_each(|(allocation, stamp)| core.heap.give(allocation.record, &[*stamp]));
        true
    }
}

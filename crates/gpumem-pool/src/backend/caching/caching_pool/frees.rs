//! The slow path of a free, behind [`MemorySource::free`](crate::backend::MemorySource::free).

use super::CachingPool;
use crate::backend::allocation::{Allocation, FreeRequest};
use crate::backend::caching::{block_of, step_of};
use gpumem_device::StreamId;
use gpumem_device::internal::Stamp;
use gpumem_heap::cache::{LargeBlock, OwnerGuard, SizeStep};
use gpumem_heap::{SizeClass, cache};

impl CachingPool {
    pub(super) fn free_small(&self, class: SizeClass, freed: &FreeRequest) -> bool {
        let mut drained = Vec::new();
        let make_way = |set: OwnerGuard<'_>| {
            self.thread_caches.make_way(set, class, |stream| self.stamp_of(stream), &mut drained)
        };
        let is_made = self.with_cache_or_adopt(freed.owner_stream, make_way) == Some(true);
        self.give_all(drained);
        let allocation = block_of(&freed.allocation);
        // This comes last, because it removes the block from the counters; the pool may then be gone.
        is_made
            && cache::with_cache(self.cache_key, freed.owner_stream.as_u64(), |set| {
                set.put(class, freed.size_bytes, allocation)
            }) == Some(true)
    }

    /// Caches a large block. Older large blocks make room for it.
    pub(super) fn free_large(&self, freed: &FreeRequest) -> bool {
        let Some(large) = self.large(&freed.allocation, freed.size_bytes, freed.owner_stream) else {
            return false;
        };
        if self.with_cache_or_adopt(freed.owner_stream, |set| set.has_large()) == Some(true) {
            let mut core = self.core();
            cache::with_cache(self.cache_key, freed.owner_stream.as_u64(), |set| {
                set.make_way_large(|large| core.give_large(large))
            });
        }
        // This comes last, because it removes the block from the counters; the pool may then be gone.
        cache::with_cache(self.cache_key, freed.owner_stream.as_u64(), |set| set.put_large(large))
            == Some(true)
    }

    /// The cache entry for a large block that only the owner stream has used. `None` if the block is not large, if the owner stream is
    /// gone, or if the memory is host-accessible, because host accesses follow no stream order.
    #[inline(always)]
    pub(super) fn large(
        &self,
        allocation: &Allocation,
        size_bytes: u64,
        owner_stream: StreamId,
    ) -> Option<LargeBlock> {
        let stamp = self.clocks().stamp_of(owner_stream);
        let step = step_of(allocation).max(SizeStep::floor(size_bytes));
        let allocation = block_of(allocation);
        let large = LargeBlock { block: allocation, size_bytes, step, stamp: stamp.into() };
        (size_bytes > SizeClass::SIZE_BYTES_MAX && stamp != Stamp::COMPLETE && !self.is_for_host())
            .then_some(large)
    }

    pub(super) fn give(&self, freed: &FreeRequest) {
        let record = freed.allocation.record();
        if freed.is_plain() {
            let stamp = self.clocks().stamp_of(freed.owner_stream);
            return self.core().heap.give(record, &[stamp]);
        }
        let stamps: Vec<Stamp> = freed.stamps(self.clocks()).collect();
        self.core().heap.give(record, &stamps);
    }

    /// Removes the block from the counters. Once this returns true, the pool may be gone.
    pub(super) fn count_in(&self, freed: &FreeRequest) -> bool {
        let count = |set: OwnerGuard<'_>| set.count_in(freed.size_bytes);
        self.with_cache_or_adopt(freed.owner_stream, count) == Some(true)
            || self.thread_caches.count_in(freed.owner_stream.as_u64(), freed.size_bytes)
    }
}

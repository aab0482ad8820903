//! The slow path of a free.

use super::CachingPool;
use crate::backend::{Allocation as BlockPiece, FreeOutcome, FreeRequest, caching::step_of};
use crate::device::{Stamp, StreamId};
use gpumem_heap::HeapBlock;
use gpumem_heap::SizeClass;
use gpumem_heap::cache;
use gpumem_heap::cache::OwnerGuard;
use gpumem_heap::cache::{LargeBlock, SizeStep};

impl CachingPool {
    /// Frees a block that the thread's magazine has no room for, or that magazines do not hold.
    pub(in super::super) fn free(&self, freed: &FreeRequest) -> FreeOutcome {
        let counted = match SizeClass::at(usize::from(freed.allocation.class())) {
            _ if !freed.is_plain() => false,
            Some(class) => self.free_small(class, freed),
            None => self.free_large(freed),
        };
        if counted {
            return FreeOutcome { result: Ok(()), counted };
        }
        self.give(freed);
        FreeOutcome { result: Ok(()), counted: self.count_in(freed) }
    }

    fn free_small(&self, class: SizeClass, freed: &FreeRequest) -> bool {
        let mut spill = Vec::new();
        let make_way = |set: OwnerGuard<'_>| {
            self.thread_caches.make_way(set, class, |stream| self.stamp_of(stream), &mut spill)
        };
        let is_made = self.with_cache_or_adopt(freed.owner_stream, make_way) == Some(true);
        self.give_all(spill);
        let allocation = HeapBlock { address: freed.allocation.address, record: freed.allocation.record() };
        // This comes last, because it removes the block from the counters; the pool may then be gone.
        is_made
            && cache::with_cache(self.cache_key, freed.owner_stream.as_u64(), |set| {
                set.put(class, freed.size_bytes, allocation)
            }) == Some(true)
    }

    /// Caches a large block. Older large blocks make room for it.
    fn free_large(&self, freed: &FreeRequest) -> bool {
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

    /// The cache entry for a large block that only the owner stream has used. `None` if the block is not large, if
    /// the owner stream is gone, or if the memory is host-accessible, because the host follows no stream's order.
    #[inline(always)]
    pub(in super::super) fn large(
        &self,
        allocation: &BlockPiece,
        size_bytes: u64,
        owner_stream: StreamId,
    ) -> Option<LargeBlock> {
        let stamp = self.clocks().stamp_of(owner_stream);
        let step = step_of(allocation).max(SizeStep::floor(size_bytes));
        let allocation = HeapBlock { address: allocation.address, record: allocation.record() };
        let large = LargeBlock { block: allocation, size_bytes, step, stamp: stamp.into() };
        (size_bytes > SizeClass::SIZE_BYTES_MAX && stamp != Stamp::COMPLETE && !self.is_for_host())
            .then_some(large)
    }

    fn give(&self, freed: &FreeRequest) {
        let record = freed.allocation.record();
        if freed.is_plain() {
            let stamp = self.clocks().stamp_of(freed.owner_stream);
            return self.core().heap.give(record, &[stamp]);
        }
        let stamps: Vec<Stamp> = freed.stamps(self.clocks()).collect();
        self.core().heap.give(record, &stamps);
    }

    /// Removes the block from the counters. Once this returns true, the pool may be gone.
    fn count_in(&self, freed: &FreeRequest) -> bool {
        let count = |set: OwnerGuard<'_>| set.count_in(freed.size_bytes);
        self.with_cache_or_adopt(freed.owner_stream, count) == Some(true)
            || self.thread_caches.count_in(freed.owner_stream.as_u64(), freed.size_bytes)
    }
}

//! The [`MemorySource`] methods of a [`CachingPool`]. The methods for one block continue in `block_search` and `frees`.

use super::CachingPool;
use super::block_search::BlockSearch;
#[cfg(unix)]
use crate::backend::allocation::Underlying;
use crate::backend::allocation::{Allocation, FreeOutcome, FreeRequest};
use crate::backend::caching::access::{HeapMemory, all_of, none_of};
use crate::backend::caching::{of_class, put_back_small};
use crate::backend::figures::{Counts, Reserved};
use crate::backend::plain;
use crate::backend::search::Search;
use crate::backend::source::MemorySource;
use crate::config::{ALIGNMENT_MIN, MemoryKind};
use crate::error::{OutOfMemory, PoolError};
use core::sync::atomic::Ordering;
use gpumem_base::counters::Counters;
use gpumem_device::internal::{PeerDevice, Stamp};
use gpumem_device::{CaptureModeGuard, Stream, StreamId};
#[cfg(unix)]
use gpumem_heap::heap::BlockBacking;
use gpumem_heap::{SizeClass, cache};
use std::sync::Arc;

impl MemorySource for Arc<CachingPool> {
    /// For a small block, searches the thread's magazine and the depot, then the heap.
    fn alloc(
        &self,
        size_bytes: u64,
        alignment: u64,
        stream: &Stream,
        climb: impl FnOnce(&mut dyn Search<Allocation>) -> Result<Allocation, PoolError>,
    ) -> Result<Allocation, PoolError> {
        let mut search = BlockSearch::new(self, size_bytes, alignment, stream);
        let cached = search.class.and_then(|class| self.take_cached(class, size_bytes, stream));
        match cached.or_else(|| search.take_ready()) {
            Some(found) => Ok(found),
            None => climb(&mut search),
        }
    }

    fn alloc_ready(&self, size_bytes: u64, count_max: usize, stream: &Stream) -> Vec<Allocation> {
        let search = BlockSearch::new(self, size_bytes, ALIGNMENT_MIN, stream);
        let Some(class) = search.class else { return Vec::new() };
        let mut blocks = Vec::new();
        {
            let mut core = self.core();
            core.heap.take_ready_run(&search.request, count_max, self.clocks(), &mut blocks);
            core.note_peak();
        }
        let count = blocks.len() as u64;
        let is_counted =
            self.with_cache_or_adopt(stream.id(), |cache| cache.count_run_out(count, size_bytes));
        if is_counted != Some(true) {
            (0..count).for_each(|_| self.thread_caches.count_out(stream.id().as_u64(), size_bytes));
        }
        blocks.into_iter().map(|block| of_class(class, block)).collect()
    }

    fn put_back(
        &self,
        cache_key: u64,
        allocation: &Allocation,
        size_bytes: u64,
        owner_stream: StreamId,
    ) -> bool {
        if SizeClass::at(allocation.untagged_class()).is_some() {
            return put_back_small(cache_key, allocation, size_bytes, owner_stream);
        }
        let Some(large) = self.large(allocation, size_bytes, owner_stream) else { return false };
        cache::with_cache(cache_key, owner_stream.as_u64(), |cache| cache.put_large(large)) == Some(true)
    }

    /// Frees a block that does not fit the thread's magazine, or that magazines do not hold.
    fn free(&self, freed: &FreeRequest) -> FreeOutcome {
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

    fn reserve(
        &self,
        size_bytes: u64,
        climb: impl FnOnce(&mut dyn Search<()>) -> Result<(), PoolError>,
    ) -> Result<(), PoolError> {
        self.reserve_ahead(size_bytes, climb)
    }

    fn limits_changed(&self) -> Result<(), PoolError> {
        self.register_for_waits();
        Ok(())
    }

    fn close(&self) -> u64 {
        let mut drained = Vec::new();
        let counters = self.thread_caches.close(|stream| self.stamp_of(stream), &mut drained);
        self.give_all(drained);
        counters.block_count()
    }

    fn has_plain_segments(&self) -> bool {
        self.access.memory == HeapMemory::Segments(MemoryKind::Device)
    }

    fn lack(&self) -> Option<String> {
        self.lack.clone()
    }

    fn counts(&self) -> Counts {
        CachingPool::counts(self)
    }

    fn streams(&self) -> Vec<(Option<StreamId>, Counters)> {
        let streams = self.thread_caches.streams(|stream| self.stamp_of(stream) == Stamp::COMPLETE);
        streams.into_iter().map(|(stream, counters)| (stream.map(StreamId::from_u64), counters)).collect()
    }

    fn reset_peaks(&self) -> Result<(), PoolError> {
        let mut core = self.core();
        core.out_peak_bytes = 0;
        core.note_peak();
        core.heap.reset_peak();
        Ok(())
    }

    fn reserved(&self) -> Result<Option<Reserved>, PoolError> {
        let core = self.core();
        Ok(Some(Reserved {
            current_bytes: core.heap.reserved_bytes(),
            peak_bytes: core.heap.reserved_peak_bytes(),
            unfreed_bytes: 0,
            record_bytes: core.heap.record_bytes() as u64,
            asleep_bytes: core.sleeping_bytes(),
            on_host_bytes: self.on_host_bytes.load(Ordering::Relaxed),
        }))
    }

    fn describe(&self, report: &mut OutOfMemory) -> Result<(), PoolError> {
        let counts = self.counts();
        let (core, clocks) = (self.core(), self.clocks());
        // Sleeping memory consists of whole handles, nearly all of which are blocks.
        let is_awake = |bytes: u64, asleep_bytes: u64| bytes.saturating_sub(asleep_bytes);
        let heap_asleep_bytes = core.heap.sleeping_bytes();
        let block_bytes = counts.in_use_bytes.saturating_sub(core.extents.size_bytes());
        let block_bytes = is_awake(block_bytes, heap_asleep_bytes);
        report.growable_bytes = is_awake(core.extents.size_bytes(), core.extents.sleeping_bytes());
        report.in_use_bytes = block_bytes + report.growable_bytes;
        report.block_count = counts.block_count;
        report.asleep_bytes = core.sleeping_bytes();
        report.rounding_bytes =
            is_awake(core.heap.used_bytes(), heap_asleep_bytes).saturating_sub(block_bytes);
        report.reserved_bytes = core.heap.reserved_bytes();
        report.pending_bytes = core.heap.pending_bytes();
        report.largest_free_bytes = Some(core.heap.largest_free_bytes(clocks));
        report.growth = self.growth.steady(counts.in_use_bytes);
        Ok(())
    }

    fn trim_to(&self, keep_bytes: u64) -> Result<(), PoolError> {
        CachingPool::trim_to(self, keep_bytes)
    }

    fn reclaim(&self) -> Result<(), PoolError> {
        // This comes before the wait, which does not cover memory that enters the heap later.
        self.drain_all();
        self.activity().host_wait(|| self.device.finish_with_maintenance(None))?;
        let _entered = self.device.enter_relaxed()?;
        let freed = self.free_host_copy();
        Ok(self.trim(0).and(freed)?)
    }

    fn enable_peer_access(&self, peer: PeerDevice) -> Result<(), PoolError> {
        let _relaxed = CaptureModeGuard::enter(self.device.driver())?;
        if let HeapMemory::Segments(kind) = self.access.memory {
            return plain::enable_peer_access(&self.device, kind, peer);
        }
        let _bound = self.device.enter()?;
        let (core, vmm) = (self.core(), self.vmm());
        if self.access.is_granted(peer.raw()) {
            return Ok(());
        }
        // Memory that sleeps is mapped with all access when it wakes.
        let mappings: Vec<(u64, u64)> = core.heap.mappings().chain(core.extents.mappings()).collect();
        for (index, (address, size_bytes)) in mappings.iter().enumerate() {
            if let Err(error) = vmm.set_access_of(*address, *size_bytes, &all_of(peer.raw())) {
                for (address, size_bytes) in &mappings[..index] {
                    // If this fails too, the peer keeps access that was not granted.
                    let _ = vmm.set_access_of(*address, *size_bytes, &none_of(peer.raw()));
                }
                return Err(error.into());
            }
        }
        self.access.grant(peer.raw());
        Ok(())
    }

    #[cfg(unix)]
    fn backing(&self, allocation: Allocation) -> Result<Option<Underlying>, PoolError> {
        if !self.access.is_exportable() {
            return Ok(None);
        }
        let mut core = self.core();
        if core.is_sleeping() {
            return Err(self.asleep());
        }
        Ok(core.heap.backing(allocation.record(), allocation.address).map(|backing| {
            let BlockBacking { handles, offset_bytes } = backing;
            let handles = handles.into_iter().map(|(handle, size_bytes)| (handle.0, size_bytes)).collect();
            Underlying { handles, offset_bytes }
        }))
    }

    fn resident_ranges(&self) -> Vec<(u64, u64)> {
        let core = self.core();
        core.heap.resident_ranges().chain(core.extents.mappings()).collect()
    }

    fn pin(&self, allocation: Allocation) -> Result<(), PoolError> {
        let mut core = self.core();
        if core.is_sleeping() {
            return Err(self.asleep());
        }
        core.heap.pin(allocation.record());
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        let held_count = self.thread_caches.check()?;
        let sum = self.thread_caches.counters();
        let core = self.core();
        let out_count = core.heap.check()?;
        core.extents.check(&core.heap)?;
        if sum.block_count() + held_count != out_count {
            let block_count = sum.block_count();
            return Err(format!(
                "{block_count} live blocks and {held_count} cached ones, but {out_count} left the heap"
            ));
        }
        if sum.in_use_bytes() > core.heap.used_bytes() {
            return Err(format!(
                "{} bytes in blocks, {} are out",
                sum.in_use_bytes(),
                core.heap.used_bytes()
            ));
        }
        let (node, reserved_bytes) = (&self.limits.node, core.heap.reserved_bytes());
        if node.allows(reserved_bytes) {
            Ok(())
        } else {
            Err(format!("{reserved_bytes} bytes reserved, {} allowed", node.limit_bytes()))
        }
    }
}

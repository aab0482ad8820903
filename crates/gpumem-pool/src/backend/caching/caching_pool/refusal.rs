//! The report of a failed allocation, and the samples of growth that it includes.

use super::super::vmm::BackingError;
use super::CachingPool;
use crate::backend::Counts;
use crate::error::{Attempt, OutOfMemory, PoolError, Sample};

/// The reason why the ladder found no memory.
#[derive(Default)]
pub(in super::super) struct AllocFailure {
    /// The last error, if it was a lack of memory.
    pub(in super::super) said: Option<BackingError>,
    pub(in super::super) attempts: Vec<Attempt>,
    /// Whether the heap leaves small blocks in the thread caches, because it has enough free memory or may still grow
    /// enough.
    pub(in super::super) spares_magazines: bool,
    /// Whether the heap may reserve more than its peak of use.
    pub(in super::super) has_slack: bool,
}

impl CachingPool {
    pub(in super::super) fn refusal(&self, requested_bytes: u64, failure: AllocFailure) -> PoolError {
        let info = match self.device.memory_info() {
            Ok(info) => info,
            Err(error) => return failure.said.map_or(error, |said| said.error.into()),
        };
        let (counts, reserved) = (self.counts(), self.reserved());
        let (pending_bytes, largest_free_bytes, used_bytes, growable_bytes) = {
            let (core, clocks) = (self.core(), self.clocks());
            let heap = &core.heap;
            let largest_free_bytes = heap.largest_free_bytes(clocks);
            (heap.pending_bytes(), largest_free_bytes, heap.used_bytes(), core.extents.size_bytes())
        };
        let own_limit = || self.limits.passed(reserved.current_bytes);
        let passed = match failure.said {
            None => self.access.admission().full_for(requested_bytes).or_else(own_limit),
            Some(said) => said.passed,
        };
        let report = OutOfMemory {
            requested_bytes,
            in_use_bytes: counts.in_use_bytes,
            block_count: counts.block_count,
            growable_bytes,
            rounding_bytes: used_bytes.saturating_sub(counts.in_use_bytes.saturating_sub(growable_bytes)),
            reserved_bytes: reserved.current_bytes,
            pending_bytes,
            largest_free_bytes: Some(largest_free_bytes),
            device_free_bytes: info.free_bytes,
            device_total_bytes: info.total_bytes,
            attempts: failure.attempts,
            growth: self.growth.steady(counts.in_use_bytes),
            unfinished: self.device.unfinished_of_request(),
            ..OutOfMemory::default()
        };
        PoolError::refused(report.limited(passed, reserved.current_bytes))
    }

    /// Samples the growth of the memory that the heap has handed out. It includes cached blocks, which are small in
    /// sum.
    pub(super) fn note_growth(&self, out_bytes: u64) {
        if self.growth.is_due(out_bytes) {
            let Counts { in_use_bytes, block_count, allocation_count, .. } = self.counts();
            self.growth.add(out_bytes, Sample { in_use_bytes, block_count, allocation_count });
        }
    }
}

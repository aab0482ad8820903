//! Why an allocation failed, and how use came to be what it is.

use super::super::vmm::BackingError;
use super::CachingPool;
use crate::backend::Counts;
use crate::error::{Attempt, OutOfMemory, PoolError, Sample};

/// Why the ladder ended in nothing.
#[derive(Default)]
pub(in super::super) struct AllocFailure {
    /// What was said last, if that was that there is no more memory.
    pub(in super::super) said: Option<BackingError>,
    pub(in super::super) attempts: Vec<Attempt>,
    /// Whether the heap has so much, or may grow so far, that it leaves to threads what they have at hand of small blocks.
    pub(in super::super) spares_magazines: bool,
    /// Whether the heap may hold more than was ever in use.
    pub(in super::super) has_slack: bool,
}

impl CachingPool {
    pub(in super::super) fn refusal(&self, requested_bytes: u64, lack: AllocFailure) -> PoolError {
        let info = match self.device.memory_info() {
            Ok(info) => info,
            Err(error) => return lack.said.map_or(error, |said| said.error.into()),
        };
        let (counts, reserved) = (self.counts(), self.reserved());
        let (pending_bytes, largest_free_bytes, used_bytes, growable_bytes) = {
            let (core, clocks) = (self.core(), self.clocks());
            let heap = &core.heap;
            let largest_free_bytes = heap.largest_free_bytes(clocks);
            (heap.pending_bytes(), largest_free_bytes, heap.used_bytes(), core.extents.size_bytes())
        };
        let own_limit = || self.limits.passed(reserved.current_bytes);
        let passed = match lack.said {
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
            attempts: lack.attempts,
            growth: self.growth.steady(counts.in_use_bytes),
            unfinished: self.device.unfinished_of_request(),
            ..OutOfMemory::default()
        };
        PoolError::refused(report.limited(passed, reserved.current_bytes))
    }

    /// Of what the heap has out; what magazines hold is part of it, and little.
    pub(super) fn note_growth(&self, out_bytes: u64) {
        if self.growth.is_due(out_bytes) {
            let Counts { in_use_bytes, block_count, allocation_count, .. } = self.counts();
            let wait_count = self.device.maintenance().wait_count();
            self.growth.add(out_bytes, Sample { in_use_bytes, block_count, allocation_count, wait_count });
        }
    }
}

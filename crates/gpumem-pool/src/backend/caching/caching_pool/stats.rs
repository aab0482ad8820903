//! The pool's counters, and the check that they agree.

use super::CachingPool;
use crate::backend::{Counts, Reserved};
use crate::device::{Stamp, StreamId};
use gpumem_heap::counters::Counters;

impl CachingPool {
    pub(in super::super) fn counts(&self) -> Counts {
        let (sum, core) = (self.thread_caches.counters().shown(), self.core());
        // While other threads allocate and free, the sums may include only part of their operations.
        let in_use_bytes = sum.in_use_bytes().min(core.heap.used_bytes()) + core.extents.size_bytes();
        Counts {
            in_use_bytes,
            in_use_peak_bytes: core.out_peak_bytes.max(in_use_bytes),
            block_count: sum.block_count(),
            allocation_count: sum.allocation_count(),
        }
    }

    /// The counters of each stream. The entry `None` sums the streams that are gone.
    pub(in super::super) fn streams(&self) -> Vec<(Option<StreamId>, Counters)> {
        let streams = self.thread_caches.streams(|stream| self.stamp_of(stream) == Stamp::COMPLETE);
        streams.into_iter().map(|(stream, counters)| (stream.map(StreamId::from_u64), counters)).collect()
    }

    pub(in super::super) fn reset_peaks(&self) {
        let mut core = self.core();
        core.out_peak_bytes = 0;
        core.note_peak();
        core.heap.reset_peak();
    }

    pub(in super::super) fn reserved(&self) -> Reserved {
        let core = self.core();
        Reserved {
            current_bytes: core.heap.reserved_bytes(),
            peak_bytes: core.heap.reserved_peak_bytes(),
            record_bytes: core.heap.record_bytes() as u64,
        }
    }

    /// See [`Source::check`](crate::backend::Source::check).
    pub(in super::super) fn check(&self) -> Result<(), String> {
        let held_count = self.thread_caches.check()?;
        let sum = self.thread_caches.counters();
        let core = self.core();
        let out_count = core.heap.check()?;
        core.extents.check(&core.heap)?;
        if sum.block_count() + held_count != out_count {
            let block_count = sum.block_count();
            return Err(format!("{block_count} blocks and {held_count} pieces at hand, {out_count} are out"));
        }
        if sum.in_use_bytes() > core.heap.used_bytes() {
            return Err(format!(
                "{} bytes in blocks, {} are out",
                sum.in_use_bytes(),
                core.heap.used_bytes()
            ));
        }
        let (node, reserved_bytes) = (self.limits.node(), core.heap.reserved_bytes());
        match node.allows(reserved_bytes) {
            true => Ok(()),
            false => Err(format!("{reserved_bytes} bytes reserved, {} allowed", node.limit_bytes())),
        }
    }
}

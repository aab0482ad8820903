//! The pool's counters, the check that they agree, and their part in the report of a refused request.

use super::CachingPool;
use crate::backend::{Counts, Reserved, Shortage};
use crate::device::{Stamp, StreamId};
use crate::error::{OutOfMemory, Refusal, Sample};
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

    /// See [`Source::describe`](crate::backend::Source::describe).
    pub(in super::super) fn describe(&self, report: &mut OutOfMemory) {
        let (counts, reserved) = (self.counts(), self.reserved());
        let (core, clocks) = (self.core(), self.clocks());
        let (used_bytes, growable_bytes) = (core.heap.used_bytes(), core.extents.size_bytes());
        report.in_use_bytes = counts.in_use_bytes;
        report.block_count = counts.block_count;
        report.growable_bytes = growable_bytes;
        report.rounding_bytes = used_bytes.saturating_sub(counts.in_use_bytes.saturating_sub(growable_bytes));
        report.reserved_bytes = reserved.current_bytes;
        report.pending_bytes = core.heap.pending_bytes();
        report.largest_free_bytes = Some(core.heap.largest_free_bytes(clocks));
        report.growth = self.growth.steady(counts.in_use_bytes);
    }

    /// The shortage of a request that no rung could serve. Without a refusal of the driver or of the admission, the request was
    /// larger than what the limits leave.
    pub(in super::super) fn describe_shortage(
        &self,
        requested_bytes: u64,
        refusal: Option<Refusal>,
    ) -> Shortage {
        let admitted_bytes = self.reserved().current_bytes;
        let own_limit = || self.limits.exceeded_at(admitted_bytes);
        let limit = || self.access.admission().limit_exceeded_by(requested_bytes).or_else(own_limit);
        let refusal = refusal.or_else(|| limit().map(Refusal::Limit));
        Shortage { requested_bytes, alignment: 0, admitted_bytes, refusal }
    }

    /// Samples the growth of the memory that the heap has handed out. It includes cached blocks, which are small in
    /// sum.
    pub(in super::super) fn note_growth(&self, out_bytes: u64) {
        if self.growth.is_due(out_bytes) {
            let Counts { in_use_bytes, block_count, allocation_count, .. } = self.counts();
            self.growth.add(out_bytes, Sample { in_use_bytes, block_count, allocation_count });
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

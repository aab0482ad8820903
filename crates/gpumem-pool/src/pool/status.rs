//! The status of a pool, collected from its backend, its tags and its device.

use crate::device::StreamId;
use crate::error::{PoolError, not_forked};
use crate::pool::Pool;
use crate::stats::{Status, StreamUsage, TagSum, TagUsage};
use gpumem_heap::counters::Counters;

impl Pool {
    /// Returns the pool's current counters. A poisoned pool returns them too.
    ///
    /// # Errors
    ///
    /// [`PoolError::Driver`] or [`PoolError::DeviceLost`] if a call fails.
    pub fn status(&self) -> Result<Status, PoolError> {
        not_forked()?;
        let state = &self.0;
        let device = self.device().memory_info()?;
        let reserved = state.backend().reserved()?;
        let counts = state.backend().counts();
        let in_use_peak_bytes = match state.peak() {
            Some(peak) => peak.bytes().max(counts.in_use_bytes),
            None => counts.in_use_peak_bytes,
        };
        let tag = |TagSum { name, counters, peak_bytes }: TagSum| TagUsage {
            tag: (*name).into(),
            in_use_bytes: counters.in_use_bytes(),
            peak_bytes,
            block_count: counters.block_count(),
            allocation_count: counters.allocation_count(),
        };
        let tags = state.tags().sums().into_iter().map(tag).collect();
        let mut streams = state.backend().streams();
        streams.iter_mut().for_each(|(_, sum)| *sum = sum.shown());
        streams.retain(|(_, sum)| sum.block_count() > 0);
        let stream = |(stream, sum): (Option<StreamId>, Counters)| StreamUsage {
            stream,
            in_use_bytes: sum.in_use_bytes(),
            block_count: sum.block_count(),
        };
        let streams = streams.into_iter().map(stream).collect();
        let name = &state.setup().name;
        let reserved_bytes = reserved.map_or(counts.in_use_bytes, |reserved| reserved.current_bytes);
        let unfreed_bytes = reserved.map_or(0, |reserved| reserved.unfreed_bytes);
        let other_libraries_bytes = state.other_libraries_bytes()?;
        let used_bytes = counts.in_use_bytes.saturating_add(other_libraries_bytes);
        Ok(Status {
            id: name.id(),
            name: name.as_str().into(),
            is_named: name.is_given(),
            backend: state.backend().kind(),
            kind: self.kind(),
            plain_segments: state.backend().has_plain_segments(),
            plain_segments_reason: state.backend().lack(),
            device_name: self.device().name().into(),
            device_ordinal: self.device().ordinal(),
            in_use_bytes: counts.in_use_bytes,
            other_libraries_bytes,
            reserved_bytes,
            cached_bytes: reserved_bytes.saturating_sub(used_bytes).saturating_sub(unfreed_bytes),
            asleep_bytes: reserved.map_or(0, |reserved| reserved.asleep_bytes),
            asleep_host_bytes: reserved.map_or(0, |reserved| reserved.on_host_bytes),
            in_use_peak_bytes,
            reserved_peak_bytes: reserved.map_or(in_use_peak_bytes, |reserved| reserved.peak_bytes),
            record_bytes: reserved.map_or(0, |reserved| reserved.record_bytes),
            block_count: counts.block_count,
            allocation_count: counts.allocation_count,
            counters: state.activity().read(),
            hard_limit_bytes: state.limits().hard_bytes(),
            soft_limit_bytes: state.limits().soft_bytes(),
            is_soft_limit_idle: state.is_soft_limit_idle(),
            device_used_bytes: device.total_bytes.saturating_sub(device.free_bytes),
            device_total_bytes: device.total_bytes,
            private_pools: state.private_pools_of(name.id()),
            tags,
            streams,
        })
    }

    /// Resets the peak counters reported by [`Pool::status`].
    ///
    /// # Errors
    ///
    /// [`PoolError::Driver`] or [`PoolError::DeviceLost`] if a call fails: with `native`, the driver keeps a peak
    /// too.
    pub fn reset_peaks(&self) -> Result<(), PoolError> {
        not_forked()?;
        let state = &self.0;
        state.tags().reset_peaks();
        state.peak().iter().for_each(|peak| peak.reset());
        state.backend().reset_peaks()
    }
}

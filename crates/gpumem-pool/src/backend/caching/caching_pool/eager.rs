//! Eager release: unused memory returns to the driver in small steps, before memory is short.

use super::CachingPool;
use crate::config::MemoryKind;
use crate::error::PoolError;
use crate::limits::Trimmable;
use core::time::Duration;
use gpumem_device::internal::PoolMaintenance;
use std::time::Instant;

impl CachingPool {
    /// Releases memory beyond `keep_bytes` within a time budget, in at least one step. Records markers for pending memory, which a later
    /// call can then release. Returns true if no more can be released now.
    fn release_down_to(&self, keep_bytes: u64, budget: Duration) -> Result<bool, PoolError> {
        let start = Instant::now();
        let mut reserved_bytes = self.reserved_bytes();
        if reserved_bytes <= keep_bytes {
            return Ok(true);
        }
        if budget.is_zero() || !self.may_release()? {
            return Ok(false);
        }
        self.drain_all();
        let _entered = self.device.enter_relaxed()?;
        let pending = self.core().pending_streams();
        pending.into_iter().try_for_each(|stream| self.clocks().record_marker(stream).map(drop))?;
        self.clocks().poll(self.tuning.poll_budget)?;
        while reserved_bytes > keep_bytes {
            self.trim(keep_bytes.max(reserved_bytes.saturating_sub(RELEASE_STEP_BYTES)))?;
            let left_bytes = self.reserved_bytes();
            if left_bytes == reserved_bytes {
                break;
            }
            reserved_bytes = left_bytes;
            if start.elapsed() >= budget && reserved_bytes > keep_bytes {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn is_idle(&self) -> bool {
        self.idle.is_over(|| self.counts().allocation_count)
    }
}

impl Trimmable for CachingPool {
    fn before_giving(&self) {
        self.drain_all();
    }

    fn kind(&self) -> MemoryKind {
        self.access.admission.kind
    }

    fn give_back_all(&self, is_idle: bool) {
        if is_idle || self.releases_at_once() {
            // A failure leaves the memory reserved.
            let _ = self.trim(0);
        }
    }

    fn cached_bytes(&self) -> u64 {
        match self.access.admission.kind {
            MemoryKind::Device => self.reserved_bytes().saturating_sub(self.counts().in_use_bytes),
            _ => 0,
        }
    }
}

/// A later call retries failed releases. The user's next call reports a failure.
impl PoolMaintenance for CachingPool {
    fn before_wait(&self) {
        // Drained blocks that are still pending are ready in the heap at the end of the wait.
        if self.reserved_bytes() > self.soft_bytes() {
            self.drain_all();
        }
        let _ = self.release_down_to(self.soft_bytes(), self.tuning.release_budget);
    }

    fn after_wait(&self) {
        if self.reserved_bytes() > self.soft_bytes() {
            let _ = self.trim(self.soft_bytes());
        }
        if self.is_idle() {
            // A later call retries failed releases.
            let _ = self.trim_to(0);
            self.idle.begin_again();
        }
    }

    fn serve(&self) {
        let _ = self.release_down_to(self.soft_bytes(), self.tuning.release_budget);
        // The next try comes after the same time, even after a failure.
        if self.is_idle() && self.release_down_to(0, self.tuning.release_budget).unwrap_or(true) {
            self.idle.begin_again();
        }
    }
}

/// The bytes released between two checks of the clock: a few handles.
const RELEASE_STEP_BYTES: u64 = 64 << 20;

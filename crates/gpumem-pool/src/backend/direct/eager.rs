//! Eager release: memory over the soft limit, and the memory of an idle pool, returns to the driver without a
//! request.
//!
//! Each driver pool has a release threshold. When the host waits for a stream with queued frees, the driver releases
//! all memory beyond the threshold. Between such waits, a trim releases only memory whose frees the host has
//! synchronised with (seen on an H200 with CUDA 13.0). Queries and allocations therefore only check, once a
//! millisecond, which streams have passed an event behind their frees. `release_budget` has no effect here.

use super::{DirectBackend, DriverAllocator};
use crate::config::MemoryKind;
use crate::limits::Trimmable;
use gpumem_device::internal::PoolMaintenance;
use gpumem_sys::DriverError;

impl<C: DriverAllocator> DirectBackend<C> {
    fn is_over_soft_limit(&self) -> bool {
        let is_over = |soft_bytes| match self.calls.reserved(&self.device) {
            Ok(held) => held.is_some_and(|held| held.current_bytes > soft_bytes),
            Err(_) => false,
        };
        self.limits.soft_bytes().is_some_and(is_over)
    }

    fn is_idle(&self) -> bool {
        self.idle.is_over(|| self.counts().allocation_count)
    }

    /// Releases memory over the soft limit, or all cached memory of an idle pool. The driver releases only memory
    /// that was freed before an event that the host has waited for. So this records an event in each stream, and
    /// waits for the event once the stream has passed it.
    fn release_excess(&self) -> Result<(), DriverError> {
        let is_idle = self.is_idle();
        if !(is_idle || self.is_over_soft_limit()) {
            return Ok(());
        }
        let keep_bytes = if is_idle { 0 } else { self.limits.soft_bytes().unwrap_or(u64::MAX) };
        self.calls.sweep()?;
        self.trim(keep_bytes)?;
        let held_bytes = self.calls.reserved(&self.device)?.map_or(0, |held| held.current_bytes);
        let has_excess = held_bytes > keep_bytes.max(self.bound_bytes());
        if has_excess && self.show_completed()? {
            self.release_free(keep_bytes);
        }
        if is_idle && self.unseen.lock().is_empty() {
            self.idle.begin_again();
        }
        Ok(())
    }

    /// Makes the driver notice the work that streams have completed since the last call, without a wait. Returns true if there is any.
    fn show_completed(&self) -> Result<bool, DriverError> {
        let _entered = self.device.enter_relaxed()?;
        let mut unseen = self.unseen.lock();
        self.device.clocks().mark_each(self.device.primary(), &mut unseen)?;
        let marked_count = unseen.len();
        let mut failed = Ok(());
        unseen.retain(|(_, event)| match event.query(self.device.primary()) {
            Ok(true) => {
                failed = failed.and(event.show(self.device.primary()));
                false
            }
            Ok(false) => true,
            Err(error) => {
                failed = Err(error);
                false
            }
        });
        failed.map(|()| unseen.len() < marked_count)
    }

    /// A failure leaves the memory reserved.
    fn release_free(&self, keep_bytes: u64) {
        let _ = self.calls.sweep();
        let _ = self.trim(keep_bytes);
    }
}

impl<C: DriverAllocator> Trimmable for DirectBackend<C> {
    fn kind(&self) -> MemoryKind {
        self.admission.kind
    }

    fn give_back_all(&self, _is_idle: bool) {
        self.release_free(0);
    }

    fn cached_bytes(&self) -> u64 {
        let held_bytes = match (self.admission.kind, self.calls.reserved(&self.device)) {
            (MemoryKind::Device, Ok(Some(held))) => held.current_bytes,
            _ => 0,
        };
        held_bytes.saturating_sub(self.bound_bytes())
    }

    /// Live blocks, and memory that the driver refused to free, have been admitted. The memory that the driver keeps in addition has not.
    fn uncounted_bytes(&self) -> u64 {
        self.cached_bytes()
    }
}

impl<C: DriverAllocator> PoolMaintenance for DirectBackend<C> {
    /// The host may have waited for a different stream than the driver checks.
    fn after_wait(&self) {
        if self.is_over_soft_limit() {
            self.release_free(self.limits.soft_bytes().unwrap_or(u64::MAX));
        }
        if self.is_idle() {
            self.release_free(0);
            self.idle.begin_again();
        }
    }

    fn serve(&self) {
        // A later call retries failed releases.
        let _ = self.release_excess();
    }
}

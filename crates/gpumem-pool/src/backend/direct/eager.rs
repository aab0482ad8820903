//! What goes back without being asked for: what is over the soft limit, and what an idle pool keeps.
//!
//! The driver has a threshold for each pool, and gives back all that is over it when the host waits for a stream that
//! something was freed on. Between such waits there is nothing to be had: seen on an H200 with CUDA 13.0, a trim finds only what
//! the host has synchronised with. So queries and allocations do no more here than look which streams have passed an event behind
//! their frees, once a millisecond, and `release_budget` has no meaning.

use super::{DirectBackend, DriverAllocator};
use crate::config::MemoryKind;
use crate::device::{CaptureModeGuard, MarkerEvent, StreamIndex, Waiting};
use crate::limits::Trimmable;
use gpumem_sys::DriverError;
use std::sync::{MutexGuard, PoisonError};

impl<C: DriverAllocator> DirectBackend<C> {
    fn is_over_soft_limit(&self) -> bool {
        let is_over = |soft_bytes| match self.calls.reserved(&self.device) {
            Ok(held) => held.is_some_and(|held| held.current_bytes > soft_bytes),
            Err(_) => false,
        };
        self.limits.soft_bytes().is_some_and(is_over)
    }

    fn is_idle(&self) -> bool {
        self.idle.is_over(|| self.ledger.allocation_count())
    }

    /// Gives back what is over the soft limit, or all that an idle pool keeps. The driver gives back what was freed before an
    /// event that the host has waited for. So one is left in each stream, and waited for once it has been passed.
    fn release_excess(&self) -> Result<(), DriverError> {
        let is_idle = self.is_idle();
        if !(is_idle || self.is_over_soft_limit()) {
            return Ok(());
        }
        let keep_bytes = if is_idle { 0 } else { self.limits.soft_bytes().unwrap_or(u64::MAX) };
        self.calls.look()?;
        self.calls.trim_to(&self.device, keep_bytes)?;
        let held_bytes = self.calls.reserved(&self.device)?.map_or(0, |held| held.current_bytes);
        let has_excess = held_bytes > keep_bytes.max(self.ledger.in_use_bytes());
        if has_excess && self.show_what_is_done()? {
            self.give_back_what_is_free(keep_bytes);
        }
        if is_idle && self.unseen().is_empty() {
            self.idle.begin_again();
        }
        Ok(())
    }

    /// Lets the driver see what streams have done since this was last asked for, without a wait. Whether that is anything.
    fn show_what_is_done(&self) -> Result<bool, DriverError> {
        let _bound = self.device.enter()?;
        let _relaxed = CaptureModeGuard::enter(self.device.driver())?;
        let mut unseen = self.unseen();
        self.device.clocks().mark_each(&self.device, &mut unseen)?;
        let marked_count = unseen.len();
        let mut failed = Ok(());
        unseen.retain(|(_, event)| match event.query(&self.device) {
            Ok(true) => {
                failed = failed.and(event.show(&self.device));
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

    fn unseen(&self) -> MutexGuard<'_, Vec<(StreamIndex, MarkerEvent)>> {
        self.unseen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What can't be given back now is not to be had.
    fn give_back_what_is_free(&self, keep_bytes: u64) {
        let _ = self.calls.sweep();
        let _ = self.calls.trim_to(&self.device, keep_bytes);
    }
}

impl<C: DriverAllocator + Send + Sync> Trimmable for DirectBackend<C> {
    fn before_giving(&self) {}

    fn kind(&self) -> MemoryKind {
        self.admission.kind()
    }

    fn give_back_all(&self, _is_idle: bool) {
        self.give_back_what_is_free(0);
    }

    fn cached_bytes(&self) -> u64 {
        let held_bytes = match (self.admission.kind(), self.calls.reserved(&self.device)) {
            (MemoryKind::Device, Ok(Some(held))) => held.current_bytes,
            _ => 0,
        };
        held_bytes.saturating_sub(self.ledger.in_use_bytes())
    }

    /// Blocks have been admitted, and what the driver keeps beside them has not.
    fn uncounted_bytes(&self) -> u64 {
        self.cached_bytes()
    }
}

impl<C: DriverAllocator + Send + Sync> Waiting for DirectBackend<C> {
    fn before_wait(&self) {}

    /// The stream that was waited for may not be the one that the driver looks at.
    fn after_wait(&self) {
        if self.is_over_soft_limit() {
            self.give_back_what_is_free(self.limits.soft_bytes().unwrap_or(u64::MAX));
        }
        if self.is_idle() {
            self.give_back_what_is_free(0);
            self.idle.begin_again();
        }
    }

    fn serve(&self) {
        // What can't be given back now is tried again later.
        let _ = self.release_excess();
    }
}

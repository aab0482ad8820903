//! What goes back without being asked for: what is over the soft limit, and what an idle pool keeps.
//!
//! The driver has a threshold for each pool, and gives back all that is over it when the host waits for a stream that
//! something was freed on. Between such waits there is nothing to be had: seen on an H200 with CUDA 13.0, a trim finds only what
//! the host has synchronised with. So queries and allocations do no more here than look whether an event has been passed that lies
//! behind all work, once a millisecond, and `release_budget` has no meaning.

use super::{Calls, Desk};
use crate::context::Relaxed;
use crate::device::AllMark;
use crate::family::Member;
use crate::kind::MemoryKind;
use crate::upkeep::Waiting;
use gpumem_sys::DriverError;
use std::sync::PoisonError;

impl<C: Calls> Desk<C> {
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

    /// Gives back what is over the soft limit, or all that an idle pool keeps. The driver gives back what was freed before
    /// something that the host has waited for. So an event is left behind all work, and waited for once it has been passed.
    fn release_excess(&self) -> Result<(), DriverError> {
        let is_idle = self.is_idle();
        if !(is_idle || self.is_over_soft_limit()) {
            return Ok(());
        }
        let keep_bytes = if is_idle { 0 } else { self.limits.soft_bytes().unwrap_or(u64::MAX) };
        self.calls.look()?;
        self.calls.trim_to(&self.device, keep_bytes)?;
        let _bound = self.device.enter()?;
        let _relaxed = Relaxed::enter(self.device.driver())?;
        let is_over = self.calls.reserved(&self.device)?.is_some_and(|held| held.current_bytes > keep_bytes);
        let is_all = !is_over || self.observe_all()?;
        if is_over && is_all {
            self.give_back_what_is_free(keep_bytes);
        }
        if is_idle && is_all {
            self.idle.begin_again();
        }
        Ok(())
    }

    /// Whether the host has waited for all that was queued when this was first asked, or can't. Never waits. The context is
    /// current.
    fn observe_all(&self) -> Result<bool, DriverError> {
        let mut observer = self.observer.lock().unwrap_or_else(PoisonError::into_inner);
        if observer.is_none() {
            let AllMark::Event(event) = self.device.mark_all()? else { return Ok(true) };
            *observer = Some(event);
        }
        if let Some(event) = &*observer {
            if !event.query(&self.device)? {
                return Ok(false);
            }
            event.synchronize(&self.device)?;
        }
        *observer = None;
        Ok(true)
    }

    /// What can't be given back now is not to be had.
    fn give_back_what_is_free(&self, keep_bytes: u64) {
        let _ = self.calls.sweep();
        let _ = self.calls.trim_to(&self.device, keep_bytes);
    }
}

impl<C: Calls + Send + Sync> Member for Desk<C> {
    fn before_giving(&self) {}

    fn kind(&self) -> MemoryKind {
        self.dues.kind()
    }

    fn give_back_all(&self, _is_idle: bool) {
        self.give_back_what_is_free(0);
    }

    fn cached_bytes(&self) -> u64 {
        let held_bytes = match (self.dues.kind(), self.calls.reserved(&self.device)) {
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

impl<C: Calls + Send + Sync> Waiting for Desk<C> {
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

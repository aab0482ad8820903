//! Eager release: what nobody needs goes back a little at a time, before anybody is short.
//!
//! The driver has a threshold of its own for each pool, but looks at it only when the host waits for a stream that something
//! was freed on, and then gives back all that is over it at once.

use super::{Calls, Desk};
use crate::family::Member;
use crate::upkeep::Waiting;
use core::time::Duration;
use gpumem_sys::DriverError;
use std::time::Instant;

impl<C: Calls> Desk<C> {
    /// Gives back what is over the soft limit, within a time.
    fn release_excess(&self, budget: Duration) -> Result<(), DriverError> {
        let Some(soft_bytes) = self.limits.soft_bytes() else { return Ok(()) };
        let start = Instant::now();
        let mut reserved_bytes = self.reserved_bytes()?;
        if budget.is_zero() || reserved_bytes <= soft_bytes {
            return Ok(());
        }
        self.calls.sweep()?;
        while reserved_bytes > soft_bytes && start.elapsed() < budget {
            let keep_bytes = soft_bytes.max(reserved_bytes.saturating_sub(RELEASE_STEP_BYTES));
            self.calls.trim_to(&self.device, keep_bytes)?;
            let left_bytes = self.reserved_bytes()?;
            if left_bytes == reserved_bytes {
                break;
            }
            reserved_bytes = left_bytes;
        }
        Ok(())
    }

    fn reserved_bytes(&self) -> Result<u64, DriverError> {
        Ok(self.calls.reserved(&self.device)?.map_or(0, |held| held.current_bytes))
    }

    fn trim_if_idle(&self) {
        if self.idle.is_over(|| self.ledger.allocation_count()) {
            self.give_back_what_is_free(0);
        }
    }

    /// What can't be given back now is not to be had.
    fn give_back_what_is_free(&self, keep_bytes: u64) {
        let _ = self.calls.sweep();
        let _ = self.calls.trim_to(&self.device, keep_bytes);
    }
}

impl<C: Calls + Send + Sync> Member for Desk<C> {
    fn before_giving(&self) {}

    fn give_back_all(&self) {
        self.give_back_what_is_free(0);
    }
}

// What can't be given back now stays for the next time; a failure comes back at the next call of the user's.
impl<C: Calls + Send + Sync> Waiting for Desk<C> {
    fn before_wait(&self) {
        let _ = self.release_excess(self.release_budget);
    }

    fn after_wait(&self) {
        if let Some(soft_bytes) = self.limits.soft_bytes()
            && self.reserved_bytes().is_ok_and(|reserved_bytes| reserved_bytes > soft_bytes)
        {
            self.give_back_what_is_free(soft_bytes);
        }
        self.trim_if_idle();
    }

    fn while_allocating(&self) {
        let _ = self.release_excess(self.release_budget);
        self.trim_if_idle();
    }
}

/// What is given back between two looks at the clock: a few pieces of the driver's.
const RELEASE_STEP_BYTES: u64 = 64 << 20;

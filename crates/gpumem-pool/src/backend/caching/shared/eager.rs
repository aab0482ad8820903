//! Eager release: what nobody needs goes back a little at a time, before anybody is short.

use super::Shared;
use crate::context::Relaxed;
use crate::error::PoolError;
use crate::upkeep::Waiting;
use core::time::Duration;
use std::time::Instant;

impl Shared {
    /// Gives back what is over the soft limit, within a time. What streams may still use is marked, and had the next time.
    fn release_excess(&self, budget: Duration) -> Result<(), PoolError> {
        let start = Instant::now();
        let soft_bytes = self.soft_bytes();
        let mut reserved_bytes = self.reserved().current_bytes;
        if budget.is_zero() || reserved_bytes <= soft_bytes {
            return Ok(());
        }
        self.drain_all();
        let _relaxed = Relaxed::enter(self.device.driver())?;
        let _bound = self.device.enter()?;
        let pending = self.core().pending_slots();
        pending.into_iter().try_for_each(|slot| self.clocks().tick(slot).map(drop))?;
        self.clocks().poll(self.dials.poll_budget)?;
        while reserved_bytes > soft_bytes && start.elapsed() < budget {
            self.trim(soft_bytes.max(reserved_bytes.saturating_sub(RELEASE_STEP_BYTES)))?;
            let left_bytes = self.reserved().current_bytes;
            if left_bytes == reserved_bytes {
                break;
            }
            reserved_bytes = left_bytes;
        }
        Ok(())
    }

    fn trim_if_idle(&self) {
        if self.idle.is_over(|| self.counts().allocation_count) {
            // What can't be given back now is tried again later.
            let _ = self.trim_to(0);
        }
    }
}

// What can't be given back now stays for the next time; a failure comes back at the next call of the user's.
impl Waiting for Shared {
    fn before_wait(&self) {
        // What is not served now is in the heap by the end of the wait.
        if self.reserved().current_bytes > self.soft_bytes() {
            self.drain_all();
        }
        let _ = self.release_excess(self.dials.release_budget);
    }

    fn after_wait(&self) {
        if self.reserved().current_bytes > self.soft_bytes() {
            let _ = self.trim(self.soft_bytes());
        }
        self.trim_if_idle();
    }

    fn while_allocating(&self) {
        let _ = self.release_excess(self.dials.release_budget);
        self.trim_if_idle();
    }
}

/// What is given back between two looks at the clock: a few handles.
const RELEASE_STEP_BYTES: u64 = 64 << 20;

//! Eager release: what nobody needs goes back a little at a time, before anybody is short.

use super::CachingPool;
use crate::device::{CaptureModeGuard, Waiting};
use crate::error::PoolError;
use core::time::Duration;
use std::time::Instant;

impl CachingPool {
    /// Gives back what is kept beyond so much, within a time, and in one step at least. What streams may still use is marked,
    /// and had the next time. Says whether that was all that can be had now.
    fn release_down_to(&self, keep_bytes: u64, budget: Duration) -> Result<bool, PoolError> {
        let start = Instant::now();
        let mut reserved_bytes = self.reserved().current_bytes;
        if reserved_bytes <= keep_bytes {
            return Ok(true);
        }
        if budget.is_zero() || !self.may_release()? {
            return Ok(false);
        }
        self.drain_all();
        let _relaxed = CaptureModeGuard::enter(self.device.driver())?;
        let _bound = self.device.enter()?;
        let pending = self.core().pending_slots();
        pending.into_iter().try_for_each(|slot| self.clocks().record_marker(slot).map(drop))?;
        self.clocks().poll(self.tuning.poll_budget)?;
        while reserved_bytes > keep_bytes {
            self.trim(keep_bytes.max(reserved_bytes.saturating_sub(RELEASE_STEP_BYTES)))?;
            let left_bytes = self.reserved().current_bytes;
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

// What can't be given back now stays for the next time; a failure comes back at the next call of the user's.
impl Waiting for CachingPool {
    fn before_wait(&self) {
        // What is not served now is in the heap by the end of the wait.
        if self.reserved().current_bytes > self.soft_bytes() {
            self.drain_all();
        }
        let _ = self.release_down_to(self.soft_bytes(), self.tuning.release_budget);
    }

    fn after_wait(&self) {
        if self.reserved().current_bytes > self.soft_bytes() {
            let _ = self.trim(self.soft_bytes());
        }
        if self.is_idle() {
            // What can't be given back now is tried again later.
            let _ = self.trim_to(0);
            self.idle.begin_again();
        }
    }

    fn serve(&self) {
        let _ = self.release_down_to(self.soft_bytes(), self.tuning.release_budget);
        // After a failure too, it is tried again after the same time.
        if self.is_idle() && self.release_down_to(0, self.tuning.release_budget).unwrap_or(true) {
            self.idle.begin_again();
        }
    }
}

/// What is given back between two looks at the clock: a few handles.
const RELEASE_STEP_BYTES: u64 = 64 << 20;

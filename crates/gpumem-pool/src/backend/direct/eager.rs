//! What goes back without being asked for: what is over the soft limit, and what an idle pool keeps.
//!
//! The driver has a threshold for each pool, and gives back all that is over it when the host waits for a stream that
//! something was freed on. Between such waits there is nothing to be had: seen on an H200 with CUDA 13.0, a trim finds only what
//! the host has synchronised with. So no allocation spends time on it here, and `release_budget` has no meaning.

use super::{Calls, Desk};
use crate::family::Member;
use crate::kind::MemoryKind;
use crate::upkeep::Waiting;

impl<C: Calls> Desk<C> {
    fn is_over_soft_limit(&self) -> bool {
        let is_over = |soft_bytes| match self.calls.reserved(&self.device) {
            Ok(held) => held.is_some_and(|held| held.current_bytes > soft_bytes),
            Err(_) => false,
        };
        self.limits.soft_bytes().is_some_and(is_over)
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
        self.trim_if_idle();
    }

    fn while_allocating(&self) {
        self.trim_if_idle();
    }
}

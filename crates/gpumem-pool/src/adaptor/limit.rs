//! [`Budget`]: no more than so many bytes at a time, for whatever shares it.

use super::{Adaptor, Change, Grant, Next, Release, Request};
use crate::config::ALIGNMENT_MIN;
use crate::error::PoolError;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

/// Refuses what would bring the bytes in use above a limit, with [`PoolError::OverBudget`]. Exact for any number of threads:
/// a block counts from before it is made until it is dropped.
///
/// Unlike [`PoolBuilder::hard_limit`](crate::PoolBuilder::hard_limit), which bounds what one pool takes from the device,
/// this counts what blocks hold, each size rounded up to 256, and may stand around any number of pools, of devices and
/// kinds of memory, which then share it. It counts what passes through: bytes that adaptors inside of it add are not its
/// own, and memory that one of them brings in is.
#[derive(Default)]
pub struct Budget {
    limit_bytes: AtomicU64,
    in_use_bytes: AtomicU64,
    in_use_peak_bytes: AtomicU64,
}

impl Budget {
    /// With so many bytes.
    #[must_use]
    pub fn new(limit_bytes: u64) -> Self {
        Self { limit_bytes: limit_bytes.into(), ..Self::default() }
    }

    /// Another limit from here on. Below what is in use, it refuses everything until enough is freed.
    pub fn set_limit(&self, limit_bytes: u64) {
        self.limit_bytes.store(limit_bytes, Ordering::Relaxed);
    }

    /// The limit.
    #[must_use]
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes.load(Ordering::Relaxed)
    }

    /// What counts against it now.
    #[must_use]
    pub fn in_use_bytes(&self) -> u64 {
        self.in_use_bytes.load(Ordering::Relaxed)
    }

    /// The most that ever did.
    #[must_use]
    pub fn in_use_peak_bytes(&self) -> u64 {
        self.in_use_peak_bytes.load(Ordering::Relaxed)
    }

    fn take(&self, size_bytes: u64) -> Result<(), PoolError> {
        // The limit may be a lower one by now: no more is no more.
        if size_bytes == 0 {
            return Ok(());
        }
        let limit_bytes = self.limit_bytes();
        let sum = |used: u64| used.checked_add(size_bytes).filter(|sum| *sum <= limit_bytes);
        let outcome = self.in_use_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
        let in_use_bytes = outcome.map_err(|in_use_bytes| PoolError::OverBudget {
            requested_bytes: size_bytes,
            in_use_bytes,
            limit_bytes,
        })?;
        self.in_use_peak_bytes.fetch_max(in_use_bytes + size_bytes, Ordering::Relaxed);
        Ok(())
    }

    fn give_back(&self, size_bytes: u64) {
        self.in_use_bytes.fetch_sub(size_bytes, Ordering::Relaxed);
    }
}

impl Adaptor for Budget {
    fn name(&self) -> &str {
        "budget"
    }

    fn alloc(&self, request: &Request<'_>, next: Next<'_>) -> Result<Grant, PoolError> {
        let mut outcome = FreeOutcome { budget: self, size_bytes: 0 };
        outcome.raise_to(request.size_bytes())?;
        let grant = next.alloc(request)?;
        // What was granted is what comes back: that may be more.
        outcome.raise_to(grant.size_bytes())?;
        core::mem::forget(outcome);
        Ok(grant)
    }

    fn free(&self, release: &Release<'_>) {
        self.give_back(counted(release.size_bytes()));
    }

    fn grow(&self, change: &Change<'_>) -> Result<(), PoolError> {
        self.take(counted(change.to_bytes()) - counted(change.from_bytes()))
    }

    fn shrink(&self, change: &Change<'_>) {
        self.give_back(counted(change.from_bytes()) - counted(change.to_bytes()));
    }
}

/// What counts for a request that is not granted yet: if it is not, or if another adaptor panics, no more.
struct FreeOutcome<'a> {
    budget: &'a Budget,
    size_bytes: u64,
}

impl FreeOutcome<'_> {
    fn raise_to(&mut self, size_bytes: u64) -> Result<(), PoolError> {
        let size_bytes = counted(size_bytes);
        self.budget.take(size_bytes.saturating_sub(self.size_bytes))?;
        self.size_bytes = size_bytes;
        Ok(())
    }
}

impl Drop for FreeOutcome<'_> {
    fn drop(&mut self) {
        self.budget.give_back(self.size_bytes);
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget")
            .field("limit_bytes", &self.limit_bytes())
            .field("in_use_bytes", &self.in_use_bytes())
            .finish_non_exhaustive()
    }
}

/// In whole units of what a block is aligned to; what can't be rounded up is more than there is anyway.
fn counted(size_bytes: u64) -> u64 {
    size_bytes.checked_next_multiple_of(ALIGNMENT_MIN).unwrap_or(size_bytes)
}

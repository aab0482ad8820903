//! [`Budget`]: bounds the bytes in use at a time, over all pools that share it.

use super::{Adaptor, Grant, Next, Release, Request};
use crate::config::ALIGNMENT_MIN;
use crate::error::PoolError;
use core::sync::atomic::{AtomicU64, Ordering};
use gpumem_sys::text::{Shown, debug_fields};

/// Refuses requests that would bring the bytes in use above a limit, with [`PoolError::LimitReached`]. It is exact for
/// any number of threads: a block counts from before its allocation until it is dropped.
///
/// [`PoolBuilder::hard_limit`](crate::PoolBuilder::hard_limit) bounds the memory that one pool takes from the device. A budget instead
/// counts the bytes of blocks, each size rounded up to 256, and may be shared by any number of pools, over devices and kinds of memory. It
/// counts the requests that pass through it: bytes added by inner adaptors do not count, but memory that an inner adaptor takes from
/// another pool does.
#[derive(Default)]
pub struct Budget {
    name: Option<String>,
    limit_bytes: AtomicU64,
    in_use_bytes: AtomicU64,
    in_use_peak_bytes: AtomicU64,
}

impl Budget {
    /// Creates a budget of this many bytes.
    #[must_use]
    pub fn new(limit_bytes: u64) -> Self {
        Self { limit_bytes: limit_bytes.into(), ..Self::default() }
    }

    /// Names the budget, for its refusals.
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, Stream, adaptor::Budget};
    /// use gpumem_sim::SimConfig;
    /// use std::sync::Arc;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let budget = Arc::new(Budget::new(1 << 20).named("requests"));
    /// let pool = Pool::builder(&device).adaptor(budget).build()?;
    /// let error = pool.alloc(2 << 20, &Stream::new(&device)?).unwrap_err();
    /// assert!(error.to_string().contains("the budget `requests` of 1.000 MiB refused 2.000 MiB"), "{error}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Changes the limit. If it is below the bytes in use, every request is refused until enough is freed.
    pub fn set_limit(&self, limit_bytes: u64) {
        self.limit_bytes.store(limit_bytes, Ordering::Relaxed);
    }

    /// The limit.
    #[must_use]
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes.load(Ordering::Relaxed)
    }

    /// The bytes that currently count against the limit.
    #[must_use]
    pub fn in_use_bytes(&self) -> u64 {
        self.in_use_bytes.load(Ordering::Relaxed)
    }

    /// The peak of [`Budget::in_use_bytes`].
    #[must_use]
    pub fn in_use_peak_bytes(&self) -> u64 {
        self.in_use_peak_bytes.load(Ordering::Relaxed)
    }

    fn take(&self, size_bytes: u64) -> Result<(), PoolError> {
        // Always allowed, even if the limit was lowered below the bytes in use.
        if size_bytes == 0 {
            return Ok(());
        }
        let limit_bytes = self.limit_bytes();
        let sum = |used: u64| used.checked_add(size_bytes).filter(|sum| *sum <= limit_bytes);
        let outcome = self.in_use_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
        let in_use_bytes = outcome.map_err(|in_use_bytes| {
            PoolError::over_budget(self.name.as_deref(), size_bytes, in_use_bytes, limit_bytes)
        })?;
        self.in_use_peak_bytes.fetch_max(in_use_bytes + size_bytes, Ordering::Relaxed);
        Ok(())
    }

    fn give_back(&self, size_bytes: u64) {
        self.in_use_bytes.fetch_sub(size_bytes, Ordering::Relaxed);
    }
}

debug_fields!(
    Budget, it,
    name: it.name.as_deref().map(Shown::name),
    limit_bytes: it.limit_bytes,
    in_use_bytes: it.in_use_bytes,
    in_use_peak_bytes: it.in_use_peak_bytes,
);

impl Adaptor for Budget {
    fn name(&self) -> &str {
        "budget"
    }

    fn alloc(&self, request: &Request<'_>, next: Next<'_>) -> Result<Grant, PoolError> {
        let mut reservation = BudgetShare { budget: self, size_bytes: 0 };
        reservation.raise_to(request.size_bytes())?;
        let grant = next.alloc(request)?;
        // The grant's size is counted, because the free counts it, and it may exceed the request.
        reservation.raise_to(grant.size_bytes())?;
        core::mem::forget(reservation);
        Ok(grant)
    }

    fn free(&self, release: &Release<'_>) {
        self.give_back(counted(release.size_bytes()));
    }
}

/// The bytes counted for a request in progress. Its drop uncounts them, if the request is refused or an inner adaptor
/// panics.
struct BudgetShare<'a> {
    budget: &'a Budget,
    size_bytes: u64,
}

impl BudgetShare<'_> {
    fn raise_to(&mut self, size_bytes: u64) -> Result<(), PoolError> {
        let size_bytes = counted(size_bytes);
        self.budget.take(size_bytes.saturating_sub(self.size_bytes))?;
        self.size_bytes = size_bytes;
        Ok(())
    }
}

impl Drop for BudgetShare<'_> {
    fn drop(&mut self) {
        self.budget.give_back(self.size_bytes);
    }
}

/// Rounds up to the alignment of blocks. A size that cannot be rounded up exceeds any memory.
fn counted(size_bytes: u64) -> u64 {
    size_bytes.checked_next_multiple_of(ALIGNMENT_MIN).unwrap_or(size_bytes)
}

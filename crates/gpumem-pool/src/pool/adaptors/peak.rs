//! [`Peak`]: the most that a pool's blocks ever had together, to the byte.
//!
//! The backend `caching` knows an upper bound ([`Status::in_use_peak_bytes`](crate::Status::in_use_peak_bytes)), because the
//! short way of an allocation compares nothing. A pool that was built with [`PoolBuilder::exact_peaks`](crate::PoolBuilder::exact_peaks)
//! has this around its backend, inside of all other adaptors, and goes the longer way.

use super::{Adaptor, Change, Grant, Next, Release, Request};
use crate::error::PoolError;
use core::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Default)]
pub(crate) struct Peak {
    in_use_bytes: AtomicU64,
    peak_bytes: AtomicU64,
}

impl Peak {
    pub(crate) fn bytes(&self) -> u64 {
        self.peak_bytes.load(Ordering::Relaxed)
    }

    /// From now on it is of what comes.
    pub(crate) fn reset(&self) {
        self.peak_bytes.store(self.in_use_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    fn add(&self, size_bytes: u64) {
        let before_bytes = self.in_use_bytes.fetch_add(size_bytes, Ordering::Relaxed);
        self.peak_bytes.fetch_max(before_bytes + size_bytes, Ordering::Relaxed);
    }

    fn subtract(&self, size_bytes: u64) {
        self.in_use_bytes.fetch_sub(size_bytes, Ordering::Relaxed);
    }
}

impl Adaptor for Peak {
    fn name(&self) -> &str {
        "peak"
    }

    /// What is refused never counts.
    fn alloc(&self, request: &Request<'_>, next: Next<'_>) -> Result<Grant, PoolError> {
        let grant = next.alloc(request)?;
        self.add(grant.size_bytes());
        Ok(grant)
    }

    fn free(&self, release: &Release<'_>) {
        self.subtract(release.size_bytes());
    }

    fn grown(&self, change: &Change<'_>) -> Result<(), PoolError> {
        self.add(change.to_bytes() - change.from_bytes());
        Ok(())
    }

    fn shrink(&self, change: &Change<'_>) {
        // A growth that did not come about was not counted.
        if !change.is_undone() {
            self.subtract(change.from_bytes() - change.to_bytes());
        }
    }
}

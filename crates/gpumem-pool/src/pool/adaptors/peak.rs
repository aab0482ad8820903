//! [`Peak`]: the exact maximum of a pool's bytes in use.
//!
//! The backend `caching` tracks only an upper bound
//! ([`Status::in_use_peak_bytes`](crate::Status::in_use_peak_bytes)), because the fast path of an allocation
//! updates no peak. A pool built with the option `exact_peaks:true` ([`conf`](crate::conf)) has this
//! adaptor directly around its backend, inside all other adaptors, and takes the slow path.

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

    /// Resets the peak to the bytes in use now.
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

    /// Refused requests are not counted.
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
        // An undone growth was never counted.
        if !change.is_undone() {
            self.subtract(change.from_bytes() - change.to_bytes());
        }
    }
}

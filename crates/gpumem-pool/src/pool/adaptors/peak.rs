//! [`PeakAdaptor`]: the exact maximum of a pool's bytes in use.
//!
//! The backend `caching` tracks only an upper bound
//! ([`Status::in_use_peak_bytes`](crate::Status::in_use_peak_bytes)), because the fast path of an allocation
//! updates no peak. A pool built with the option `exact_peaks:true` ([`conf`](crate::conf)) has this
//! adaptor directly around its backend, inside all other adaptors, and takes the slow path.

use super::{Adaptor, Change, Grant, Next, Release, Request};
use crate::error::PoolError;
use crate::pool::peak::PeakCounter;
use std::sync::Arc;

/// Counts the blocks of a pool in its [`PeakCounter`].
#[derive(Debug)]
pub(crate) struct PeakAdaptor(pub(crate) Arc<PeakCounter>);

impl Adaptor for PeakAdaptor {
    fn name(&self) -> &str {
        "peak"
    }

    /// Refused requests are not counted.
    fn alloc(&self, request: &Request<'_>, next: Next<'_>) -> Result<Grant, PoolError> {
        let grant = next.alloc(request)?;
        self.0.add(grant.size_bytes());
        Ok(grant)
    }

    fn free(&self, release: &Release<'_>) {
        self.0.subtract(release.size_bytes());
    }

    fn grown(&self, change: &Change<'_>) -> Result<(), PoolError> {
        self.0.add(change.to_bytes() - change.from_bytes());
        Ok(())
    }

    fn shrink(&self, change: &Change<'_>) {
        // An undone growth was never counted.
        if !change.is_undone() {
            self.0.subtract(change.from_bytes() - change.to_bytes());
        }
    }
}

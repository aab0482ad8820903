//! [`PoolId`]: the identity of a pool.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

/// Identifies a pool: unique in the process, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(u64);

impl PoolId {
    /// Returns a new identity.
    pub(crate) fn next() -> Self {
        static POOL_COUNT: AtomicU64 = AtomicU64::new(0);
        Self(POOL_COUNT.fetch_add(1, Ordering::Relaxed) + 1)
    }

    pub(crate) fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pool {}", self.0)
    }
}

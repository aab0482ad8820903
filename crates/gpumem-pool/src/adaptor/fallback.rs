//! [`Fallback`]: another pool, for when there is no memory in this one.

use super::{Adaptor, Grant, Next, Request};
use crate::error::PoolError;
use crate::pool::Pool;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

/// Takes from another pool what can't be had from its own for want of memory: the device is full, or a limit or budget
/// refuses. Any pool of the same device will do: one of another kind of memory, another backend, another quota.
///
/// What comes from there is a block like any other. It counts in that pool's numbers, and is freed there, behind its uses.
/// When that pool has none either, the error is the first one's.
///
/// ```
/// use gpumem_pool::{Device, Pool, Stream, adaptor::Fallback};
/// use gpumem_sim::SimConfig;
/// use std::sync::Arc;
///
/// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
/// let spare = Pool::new(&device)?;
/// let fallback = Arc::new(Fallback::new(&spare));
/// let pool = Pool::builder(&device).hard_limit(8 << 20).adaptor(fallback.clone()).build()?;
/// let stream = Stream::new(&device)?;
/// let blocks = [pool.alloc(6 << 20, &stream)?, pool.alloc(6 << 20, &stream)?];
/// assert_eq!((spare.status()?.in_use_bytes, fallback.taken_count()), (6 << 20, 1));
/// # drop(blocks);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Fallback {
    pool: Pool,
    taken_count: AtomicU64,
}

impl Fallback {
    /// To this pool.
    #[must_use]
    pub fn new(pool: &Pool) -> Self {
        Self { pool: pool.clone(), taken_count: AtomicU64::new(0) }
    }

    /// How many blocks have come from there.
    #[must_use]
    pub fn taken_count(&self) -> u64 {
        self.taken_count.load(Ordering::Relaxed)
    }
}

impl Adaptor for Fallback {
    fn name(&self) -> &str {
        "fallback"
    }

    fn alloc(&self, request: &Request<'_>, next: Next<'_>) -> Result<Grant, PoolError> {
        let refusal = match next.alloc(request) {
            Err(error) if error.is_want_of_memory() => error,
            other => return other,
        };
        let lent = Grant::from_pool(&self.pool, request).map_err(|_| refusal)?;
        self.taken_count.fetch_add(1, Ordering::Relaxed);
        Ok(lent)
    }
}

impl fmt::Debug for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fallback")
            .field("pool", &self.pool)
            .field("taken_count", &self.taken_count())
            .finish()
    }
}

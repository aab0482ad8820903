//! [`Fallback`]: allocates from another pool if this one is out of memory.

use super::{Adaptor, Grant, Next, Request};
use crate::error::PoolError;
use crate::pool::Pool;
use core::sync::atomic::{AtomicU64, Ordering};
use gpumem_device::internal::PeerDevice;

/// Allocates from another pool if its own pool lacks memory: the device is full, or a limit or budget refuses. The other pool may be any
/// pool of the device, with a different kind of memory, backend or quota.
///
/// The result is an ordinary block, which is counted and freed by the other pool. If the other pool lacks memory too, the first pool's
/// error is returned, and its report names the other pool's refusal.
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
#[derive(Debug)]
pub struct Fallback {
    pool: Pool,
    taken_count: AtomicU64,
}

impl Fallback {
    /// Falls back to this pool.
    #[must_use]
    pub fn new(pool: &Pool) -> Self {
        Self { pool: pool.clone(), taken_count: AtomicU64::new(0) }
    }

    /// The number of blocks allocated from the other pool.
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
        let mut refusal = match next.alloc(request) {
            Err(error) if error.is_want_of_memory() => error,
            other => return other,
        };
        let lent = match Grant::from_pool(&self.pool, request) {
            Ok(lent) => lent,
            Err(other) => {
                refusal.add_fallback(&other);
                return Err(refusal);
            }
        };
        self.taken_count.fetch_add(1, Ordering::Relaxed);
        Ok(lent)
    }

    fn open_to(&self, peer: PeerDevice) -> Result<(), PoolError> {
        self.pool.0.open_to(peer)
    }
}

impl Grant {
    /// Allocates memory from another pool for the request.
    ///
    /// # Errors
    ///
    /// All errors of [`Pool::alloc_aligned`], such as [`PoolError::OutOfMemory`].
    pub fn from_pool(pool: &Pool, request: &Request<'_>) -> Result<Self, PoolError> {
        let block = pool.alloc_aligned(request.size_bytes(), request.alignment(), request.stream())?;
        Ok(Self::lent(block, true))
    }
}

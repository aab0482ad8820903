//! [`Pool::alloc_aligned`]: blocks aligned to more than 256 bytes.

use crate::config::ALIGNMENT_MIN;
use crate::device::Stream;
use crate::error::{BadArgument, PoolError};
use crate::pool::{Block, Pool};

impl Pool {
    /// Like [`Pool::alloc`], with a start address that is a multiple of `alignment`, a power of two up to 1 GiB.
    /// Every block is aligned to 256 bytes; a smaller alignment has no effect.
    ///
    /// `caching` searches for a matching address. For alignments beyond 2 MiB it may reserve memory in front of the block, which other
    /// blocks may use. `native` and `none` request up to `alignment` more bytes from the driver, which count as in use.
    ///
    /// ```
    /// use gpumem_pool::{BadArgument, Device, Pool, PoolError, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let (pool, stream) = (Pool::new(&device)?, Stream::new(&device)?);
    ///
    /// let table = pool.alloc_aligned(3000, 64 << 10, &stream)?;
    /// assert_eq!(table.address() % (64 << 10), 0);
    /// assert!(matches!(pool.alloc_aligned(3000, 100, &stream), Err(PoolError::BadArgument(BadArgument::Alignment { .. }))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PoolError::BadArgument`] if `alignment` is not a power of two or exceeds 1 GiB; otherwise the errors of [`Pool::alloc`].
    pub fn alloc_aligned(
        &self,
        size_bytes: u64,
        alignment: u64,
        stream: &Stream,
    ) -> Result<Block, PoolError> {
        check_alignment(alignment)?;
        self.0.alloc(size_bytes, alignment.max(ALIGNMENT_MIN), stream)
    }
}

pub(crate) fn check_alignment(alignment: u64) -> Result<(), PoolError> {
    if alignment.is_power_of_two() && alignment <= ALIGNMENT_MAX {
        Ok(())
    } else {
        Err(PoolError::BadArgument(BadArgument::Alignment { alignment, largest: ALIGNMENT_MAX }))
    }
}

/// The largest supported alignment, far larger than any page of device memory.
const ALIGNMENT_MAX: u64 = 1 << 30;

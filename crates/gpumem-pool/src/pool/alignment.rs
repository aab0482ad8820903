//! [`Pool::alloc_aligned`]: blocks that start at a multiple of more than 256.

use crate::device::Stream;
use crate::error::PoolError;
use crate::pool::{Block, Pool};

impl Pool {
    /// As [`Pool::alloc`], with the start of the block at a multiple of `alignment`, a power of two up to 1 GiB. Every
    /// block has 256 anyway; a smaller alignment changes nothing.
    ///
    /// `caching` finds such a place, and beyond 2 MiB may reserve memory in front of it, which other blocks then use;
    /// `native` and `none` have to ask the driver for as much more, which counts as in use.
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, PoolError, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let (pool, stream) = (Pool::new(&device)?, Stream::new(&device)?);
    ///
    /// let table = pool.alloc_aligned(3000, 64 << 10, &stream)?;
    /// assert_eq!(table.address() % (64 << 10), 0);
    /// assert!(matches!(pool.alloc_aligned(3000, 100, &stream), Err(PoolError::BadAlignment { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PoolError::BadAlignment`], and as [`Pool::alloc`].
    pub fn alloc_aligned(
        &self,
        size_bytes: u64,
        alignment: u64,
        stream: &Stream,
    ) -> Result<Block, PoolError> {
        check_alignment(alignment)?;
        self.0.alloc_aligned(size_bytes, alignment, stream)
    }
}

pub(crate) fn check_alignment(alignment: u64) -> Result<(), PoolError> {
    match alignment.is_power_of_two() && alignment <= ALIGNMENT_MAX {
        true => Ok(()),
        false => Err(PoolError::BadAlignment { alignment, largest: ALIGNMENT_MAX }),
    }
}

/// Far beyond what a page of the device's memory has.
const ALIGNMENT_MAX: u64 = 1 << 30;

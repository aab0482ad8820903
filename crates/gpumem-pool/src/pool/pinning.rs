//! [`Block::pin_backing`]: memory that others know by its physical place.

use crate::backend::Source;
use crate::error::PoolError;
use crate::pool::Block;

impl Block {
    /// Makes the physical memory under the block stay where it is: nothing of it is mapped elsewhere, moved or given
    /// back while the block lives, and the pool uses it under these addresses alone for as long as it keeps it after
    /// that. For those who register addresses with a network card, or hand the memory to another process.
    ///
    /// What others may do with it is chosen when the pool is made: [`PoolBuilder::rdma`](crate::PoolBuilder::rdma),
    /// [`PoolBuilder::exportable`](crate::PoolBuilder::exportable). Memory that is pinned can't be used for blocks of
    /// other sizes as freely: pin what must be, not everything.
    ///
    /// ```
    /// use gpumem_pool::{BackendKind, Device, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let pool = Pool::builder(&device).backend(BackendKind::None).build()?;
    /// let stream = Stream::new(&device)?;
    ///
    /// let block = pool.alloc(4 << 20, &stream)?;
    /// block.pin_backing()?;
    /// // … register `block.address()` with a network card …
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PoolError::NotWithBackend`] where the driver's own pool decides what lies where (`native`).
    pub fn pin_backing(&self) -> Result<(), PoolError> {
        match self.size_bytes() {
            0 => Ok(()),
            _ => {
                let (pool, allocation) = self.state().behind(self.allocation());
                pool.backend().pin(allocation)
            }
        }
    }
}

//! [`Block::pin_backing`]: fixes the physical memory behind a block.

use crate::error::{PoolError, not_forked};
use crate::pool::Block;

impl Block {
    /// Pins the physical memory under the block. While the block lives, the memory is not mapped elsewhere, moved or released. Afterwards
    /// it stays at these addresses while the pool keeps it. Use this before registering the address with a network card, or before another
    /// process maps the memory.
    ///
    /// The pool's options `rdma` and `exportable` ([`conf`](crate::conf)) determine the access of other devices and
    /// processes. Pinned memory is harder to reuse for blocks of other sizes, so pin only blocks that need it.
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
    /// - [`PoolError::Unsupported`] if the driver's own pool decides the placement (`native`).
    /// - [`PoolError::Asleep`] if the pool sleeps.
    pub fn pin_backing(&self) -> Result<(), PoolError> {
        not_forked()?;
        match self.size_bytes() {
            0 => Ok(()),
            _ => {
                let (pool, allocation) = self.state().backing_allocation(self.allocation());
                pool.backend().pin(allocation)
            }
        }
    }
}

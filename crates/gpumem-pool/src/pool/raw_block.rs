//! [`RawBlock`]: a block as plain data, for passing through code in other languages.

use crate::backend::Allocation;
use crate::device::StreamId;
use crate::pool::{Block, StateRef};
use core::sync::atomic::AtomicU64;
use gpumem_sys::types::CUdeviceptr;

/// The result of [`Block::into_raw`]: plain data without a drop. The block stays alive, and so does its pool.
///
/// ```
/// use gpumem_pool::{Block, Device, Pool, Stream};
/// use gpumem_sim::SimConfig;
///
/// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
/// let (pool, stream) = (Pool::new(&device)?, Stream::new(&device)?);
///
/// let raw = pool.alloc(4096, &stream)?.into_raw();
/// assert_eq!(pool.status()?.in_use_bytes, 4096);
/// let carried = std::thread::spawn(move || (raw.address, raw)).join().unwrap();
/// // SAFETY: `carried.1` came from `into_raw`, and is converted back once.
/// let block = unsafe { Block::from_raw(carried.1) };
/// assert_eq!(block.address(), carried.0);
/// drop(block);
/// assert_eq!(pool.status()?.in_use_bytes, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[must_use = "the block stays alive for ever unless `Block::from_raw` takes this back"]
pub struct RawBlock {
    /// The start address in the device's address space; 0 for an empty block.
    pub address: CUdeviceptr,
    /// The requested number of bytes.
    pub size_bytes: u64,
    /// The pool's data about the block.
    pub token: BlockToken,
}

/// The pool and the recorded uses of a [`RawBlock`]. Pass it on unchanged.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BlockToken {
    pool: StateRef,
    owner_stream: StreamId,
    uses: u64,
    mark: u64,
}

impl Block {
    /// Converts the block to plain data without freeing it. The block counts as alive, and keeps its pool alive,
    /// until [`Block::from_raw`] converts it back, on any thread.
    #[inline]
    pub fn into_raw(self) -> RawBlock {
        let (allocation, size_bytes, owner_stream, uses, pool) = self.into_parts();
        let token = BlockToken { pool, owner_stream, uses, mark: allocation.mark() };
        RawBlock { address: allocation.address, size_bytes, token }
    }

    /// Converts `raw` back to a block.
    ///
    /// # Safety
    ///
    /// `raw` must be an unchanged result of [`Block::into_raw`]. Neither `raw` nor a copy of it may be passed to
    /// this function more than once.
    #[inline]
    pub unsafe fn from_raw(raw: RawBlock) -> Self {
        let BlockToken { pool, owner_stream, uses, mark } = raw.token;
        let allocation = Allocation::from_mark(raw.address, mark);
        Self::from_parts(allocation, raw.size_bytes, owner_stream, AtomicU64::new(uses), pool)
    }
}

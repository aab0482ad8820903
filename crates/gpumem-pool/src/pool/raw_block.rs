//! [`RawBlock`]: a block as plain data, to be carried through code that knows no Rust.

use crate::backend::Allocation;
use crate::device::StreamId;
use crate::pool::{Block, StateRef};
use core::sync::atomic::AtomicU64;
use gpumem_sys::types::CUdeviceptr;

/// What [`Block::into_raw`] leaves: plain data, without a drop. The block goes on to live, and its pool with it.
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
/// // SAFETY: it came from `into_raw`, and is turned back once.
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
    /// Where it starts in the device's address space; 0 for an empty block.
    pub address: CUdeviceptr,
    /// How many bytes were asked for.
    pub size_bytes: u64,
    /// What the pool has to know of it.
    pub token: BlockToken,
}

/// Of a [`RawBlock`]: which pool it belongs to, and who has used it. To be kept as it is.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BlockToken {
    pool: StateRef,
    owner_stream: StreamId,
    uses: u64,
    mark: u64,
}

impl Block {
    /// Takes the block apart without freeing it. It counts as alive, and keeps its pool, until [`Block::from_raw`] has
    /// made a block of it again, on whatever thread.
    pub fn into_raw(self) -> RawBlock {
        let (allocation, size_bytes, owner_stream, uses, pool) = self.into_parts();
        let token = BlockToken { pool, owner_stream, uses, mark: allocation.mark() };
        RawBlock { address: allocation.address, size_bytes, token }
    }

    /// The block that `raw` was.
    ///
    /// # Safety
    ///
    /// `raw` came from [`Block::into_raw`] unchanged, and no other call of this has been given it or a copy of it.
    pub unsafe fn from_raw(raw: RawBlock) -> Self {
        let BlockToken { pool, owner_stream, uses, mark } = raw.token;
        let allocation = Allocation::from_mark(raw.address, mark);
        Self::from_parts(allocation, raw.size_bytes, owner_stream, AtomicU64::new(uses), pool)
    }
}

//! [`Block`]: some bytes of device memory, freed in stream order when dropped.
//!
//! A block has a *home*: the stream it was allocated on. Its memory is there for work queued on home after the
//! allocation, and goes back in home's order. Whoever uses it on another stream does two things: makes that stream wait
//! for home first ([`Stream::wait_for`]), and says so with [`Block::record_use`], so that the free waits for that stream.

use crate::device::Device;
use crate::pool::State;
use crate::stream::{Stream, StreamId};
use core::fmt;
use gpumem_sys::types::CUdeviceptr;
use std::sync::{Arc, Mutex, PoisonError};

/// Device memory from a [`Pool`](crate::Pool).
///
/// Dropping it, on any thread, queues its free on its home stream behind everything queued so far on home and on every
/// stream recorded with [`Block::record_use`]. That never panics and never waits, except with the backend `none`, which
/// has no other way. When the driver refuses the free, the block is leaked and the pool says so at its next call.
///
/// ```
/// use gpumem_pool::{Device, Pool, Stream, sys::{Driver, SimConfig}};
///
/// let device = Device::new(&Driver::sim(SimConfig::new())?, 0)?;
/// let pool = Pool::new(&device)?;
/// let (home, other) = (Stream::new(&device)?, Stream::new(&device)?);
///
/// let block = pool.alloc(1 << 20, &home)?;
/// other.wait_for(&home)?; // the memory is there once home gets to it
/// // … queue work that uses `block.address()` on `other` …
/// block.record_use(&other);
/// drop(block); // the free waits, on the device, for that work
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping a block frees it"]
pub struct Block {
    address: CUdeviceptr,
    size_bytes: u64,
    home: Stream,
    /// The other streams that used it, each once.
    uses: Mutex<Vec<Stream>>,
    pool: Arc<State>,
}

impl Block {
    pub(crate) fn new(pool: &Arc<State>, address: CUdeviceptr, size_bytes: u64, home: &Stream) -> Self {
        Self { address, size_bytes, home: home.clone(), uses: Mutex::new(Vec::new()), pool: Arc::clone(pool) }
    }

    /// Where it starts in the device's address space; 0 for an empty block. At least 256-byte aligned.
    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }

    /// How many bytes were asked for.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The stream it was allocated on, in whose order it is freed.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.home
    }

    /// The device that it is memory of.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.home.device()
    }

    /// Says that work queued on `stream` uses this block: the free will wait for all that is queued there by the time
    /// the block is dropped.
    ///
    /// Call it once for each stream, at any time before the drop. Home need not be recorded. A stream of another driver
    /// can't reach this memory, so recording one does nothing.
    pub fn record_use(&self, stream: &Stream) {
        if stream.id() == self.home.id() || !stream.device().driver().is_same_machine(self.device().driver())
        {
            return;
        }
        let mut uses = self.uses.lock().unwrap_or_else(PoisonError::into_inner);
        if !uses.contains(stream) {
            uses.push(stream.clone());
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.size_bytes > 0 {
            let uses = self.uses.get_mut().unwrap_or_else(PoisonError::into_inner);
            self.pool.free(self.address, self.size_bytes, &self.home, uses);
        }
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let uses: Vec<StreamId> =
            self.uses.lock().unwrap_or_else(PoisonError::into_inner).iter().map(Stream::id).collect();
        f.debug_struct("Block")
            .field("address", &format_args!("{:#x}", self.address))
            .field("size_bytes", &self.size_bytes)
            .field("home", &self.home.id())
            .field("uses", &uses)
            .finish_non_exhaustive()
    }
}

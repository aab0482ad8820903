//! [`Block`]: some bytes of device memory, freed in stream order when dropped.
//!
//! A block has an *owner stream*: the stream it was allocated on. Its memory is there for work queued on the owner stream after the
//! allocation, and goes back in the owner stream's order. Whoever uses it on another stream does two things: makes that stream wait
//! for the owner stream first ([`Stream::wait_for`]), and says so with [`Block::record_use`], so that the free waits for that stream.

use crate::backend::{Allocation, FreeRequest};
use crate::config::MemoryKind;
use crate::device::{Device, Stream, StreamId, order::uses};
use crate::pool::StateRef;
use core::fmt;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use gpumem_sys::types::CUdeviceptr;
use std::sync::Arc;

/// Device memory from a [`Pool`](crate::Pool).
///
/// Dropping it, on any thread, queues its free on its owner stream behind everything queued so far on the owner stream and on every
/// stream recorded with [`Block::record_use`]. That never panics and never waits, except with the backend `none`, which
/// has no other way. When the driver refuses the free, the block is leaked and the pool says so at its next call.
///
/// ```
/// use gpumem_pool::{Device, Pool, Stream};
/// use gpumem_sim::SimConfig;
///
/// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
/// let pool = Pool::new(&device)?;
/// let (home, other) = (Stream::new(&device)?, Stream::new(&device)?);
///
/// let block = pool.alloc(1 << 20, &home)?;
/// other.wait_for(&home)?; // the memory is there once the owner stream gets to it
/// // … queue work that uses `block.address()` on `other` …
/// block.record_use(&other);
/// drop(block); // the free waits, on the device, for that work
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping a block frees it"]
pub struct Block {
    allocation: Allocation,
    size_bytes: u64,
    owner_stream: StreamId,
    /// The other streams that used it, in the form of [`uses`].
    uses: AtomicU64,
    pool: StateRef,
}

impl Block {
    /// The block is counted already, by the backend or by the pool.
    pub(crate) fn new(
        pool: StateRef,
        allocation: Allocation,
        size_bytes: u64,
        owner_stream: StreamId,
    ) -> Self {
        Self::from_parts(allocation, size_bytes, owner_stream, AtomicU64::new(0), pool)
    }

    #[inline]
    pub(crate) fn from_parts(
        allocation: Allocation,
        size_bytes: u64,
        owner_stream: StreamId,
        uses: AtomicU64,
        pool: StateRef,
    ) -> Self {
        Self { allocation, size_bytes, owner_stream, uses, pool }
    }

    /// The same backwards. What they describe stays alive.
    pub(crate) fn into_parts(self) -> (Allocation, u64, StreamId, u64, StateRef) {
        let block = ManuallyDrop::new(self);
        (
            block.allocation,
            block.size_bytes,
            block.owner_stream,
            block.uses.load(Ordering::Relaxed),
            block.pool,
        )
    }

    /// Where it starts in the device's address space; 0 for an empty block. At least 256-byte aligned.
    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        self.allocation.address
    }

    /// How many bytes were asked for.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The name of the stream it was allocated on, in whose order it is freed. That stream may be gone.
    #[must_use]
    pub fn stream_id(&self) -> StreamId {
        self.owner_stream
    }

    /// The device that it is memory of.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.pool.device()
    }

    /// Says that work queued on `stream` uses this block: the free will wait for all that is queued there by the time
    /// the block is dropped.
    ///
    /// Call it once for each stream, at any time before the drop. Home need not be recorded, except in a capture: there a
    /// use on any stream says that the block stays for the graph; see [`Graph`](crate::Graph). A stream of another driver
    /// can't reach this memory, so recording one does nothing.
    pub fn record_use(&self, stream: &Stream) {
        if stream.clocks().captures().is_open() {
            self.note_use(stream);
        }
        if stream.id() == self.owner_stream || !Arc::ptr_eq(stream.device().clocks(), self.device().clocks())
        {
            return;
        }
        self.add_uses(uses::with(0, stream.stream_index()));
        stream.note_named();
    }

    /// Drops the block in a call that names `stream`: the owner stream, or another stream that uses it, which then counts as recorded.
    ///
    /// For streams of others ([`Stream::from_raw`]) that is more than a drop: the call may mark the stream, so that other
    /// streams get the memory once it is done there. Streams of this crate's, and long-lived ones, need no such call.
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, Stream, sys::types::CUstream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let pool = Pool::new(&device)?;
    /// # let raw = std::ptr::null_mut::<()>() as CUstream;
    /// // SAFETY: the stream outlives its wrap.
    /// let stream = unsafe { Stream::from_raw(&device, raw)? };
    /// let block = pool.alloc(1 << 20, &stream)?;
    /// block.free_on(&stream);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn free_on(self, stream: &Stream) {
        self.record_use(stream);
        let is_due = self.pool.is_mark_due(self.size_bytes, stream);
        // The mark covers the free only if it comes after it. The pool may be gone by then.
        drop(self);
        if is_due { stream.mark_named() } else { stream.note_named() }
    }

    #[inline]
    pub(crate) fn add_uses(&self, more: u64) {
        uses::add(&self.uses, more);
    }

    /// Drops the block without waiting, on the device, for its uses: the next user may have the memory at once.
    ///
    /// # Safety
    ///
    /// All work that uses the block is done, and so is all that was queued on its owner stream before it was allocated,
    /// and the caller knows it: he has waited for it on the host.
    pub unsafe fn free_completed(self) {
        let (allocation, size_bytes, owner_stream, uses, pool) = self.into_parts();
        let allocation = pool.untag(allocation, size_bytes);
        pool.free(&FreeRequest { allocation, size_bytes, owner_stream, uses, is_complete: true });
    }

    /// Whether it has been used on another stream, or in a capture.
    pub(crate) fn is_recorded(&self) -> bool {
        self.uses.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn allocation(&self) -> Allocation {
        self.allocation.without_tag()
    }

    /// How many blocks of other pools lie in it, one in the other.
    pub(crate) fn nesting(&self) -> usize {
        self.pool.nesting(self.allocation())
    }

    pub(crate) fn state(&self) -> StateRef {
        self.pool
    }

    /// Past what the thread has at hand, or for a block that is more than a size and an address. By value: so a block that
    /// goes back to where it was just taken from need not be in memory at all.
    #[inline(never)]
    fn drop_slow(pool: StateRef, allocation: Allocation, size_bytes: u64, owner_stream: StreamId, uses: u64) {
        let allocation = pool.untag(allocation, size_bytes);
        if let Some(stack) = pool.fast_path_stack(uses)
            && size_bytes > 0
        {
            return pool.free_adapted(
                stack,
                &FreeRequest { allocation, size_bytes, owner_stream, uses, is_complete: false },
            );
        }
        if !(uses == 0 && pool.put_back(&allocation, size_bytes, owner_stream)) {
            pool.free(&FreeRequest { allocation, size_bytes, owner_stream, uses, is_complete: false });
        }
    }
}

impl Block {
    /// Whose memory it is. Of a block that another pool lent ([`Fallback`](crate::adaptor::Fallback)), that pool's kind.
    #[must_use]
    pub fn kind(&self) -> MemoryKind {
        self.origin().config().kind
    }

    /// The pool whose backend has its memory.
    pub(crate) fn origin(&self) -> StateRef {
        self.state().behind(self.allocation()).0
    }

    /// Where the host finds its bytes, at the address that the device has for them too. Nothing for the device's own
    /// memory and for an empty block, and for unified memory where host and device can't use it at once
    /// (`CONCURRENT_MANAGED_ACCESS` is 0).
    ///
    /// A block is the host's from the start: what used its memory before is complete. Whoever follows the pointer makes
    /// sure that the block is alive, and that work which uses it is waited for: before reading what it writes, and before
    /// writing what it uses. An adaptor that fills blocks does so as work on the stream.
    #[must_use]
    pub fn host_ptr(&self) -> Option<NonNull<u8>> {
        let address = if self.origin().is_for_host() { self.address() } else { 0 };
        NonNull::new(core::ptr::with_exposed_provenance_mut(address as usize))
    }
}

impl Drop for Block {
    #[inline]
    fn drop(&mut self) {
        let Self { allocation, size_bytes, owner_stream, ref mut uses, pool } = *self;
        let uses = *uses.get_mut();
        if !(uses == 0 && pool.put_back_small(&allocation, size_bytes, owner_stream)) {
            Self::drop_slow(pool, allocation, size_bytes, owner_stream, uses);
        }
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block")
            .field("address", &format_args!("{:#x}", self.address()))
            .field("size_bytes", &self.size_bytes)
            .field("home", &self.owner_stream)
            .field("uses", &format_args!("{:#b}", self.uses.load(Ordering::Relaxed)))
            .finish_non_exhaustive()
    }
}

// What a program holds by the thousand.
const _: () = assert!(size_of::<Block>() <= 48);

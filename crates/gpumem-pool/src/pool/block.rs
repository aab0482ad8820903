//! [`Block`]: a range of device memory, freed in stream order when dropped.
//!
//! A block has an *owner stream*: the stream it was allocated on. Work queued on the owner stream after the
//! allocation may use the memory, and the free is ordered on the owner stream. To use the block on another stream,
//! make that stream wait for the owner stream first ([`Stream::wait_for`]), and record the use with
//! [`Block::record_use`], so that the free waits for that stream.

use crate::backend::{self, Allocation, FoundCache, FreeRequest};
use crate::config::MemoryKind;
use crate::device::{Device, MemoryRange, Stream, StreamId, StreamPoint, order::uses};
use crate::error::{BadArgument, PoolError, StreamError};
use crate::pool::StateRef;
use crate::pool::scope::{self, Here};
use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use gpumem_sys::fork;
use gpumem_sys::types::CUdeviceptr;
use std::sync::Arc;

/// Device memory allocated from a [`Pool`](crate::Pool).
///
/// A drop, on any thread, queues the free on the owner stream. The free is ordered behind all work queued so far on
/// the owner stream and on every stream recorded with [`Block::record_use`]. A drop never panics. It never waits,
/// except with the backend `none`, which has no asynchronous free. When the driver refuses the free, the block is
/// leaked, and the pool's next call returns [`PoolError::Poisoned`](crate::PoolError::Poisoned) or
/// [`PoolError::DeviceLost`](crate::PoolError::DeviceLost).
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
/// other.wait_for(&home)?; // the memory is valid once the owner stream reaches the allocation
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
    /// The other streams that used the block, in the format of [`uses`].
    uses: AtomicU64,
    pool: StateRef,
}

impl Block {
    /// Creates a block that the backend or the pool has already counted.
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

    /// Splits the block into the arguments of `from_parts`, without freeing it. The pool and the memory stay alive.
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

    /// Returns the start address in the device's address space; 0 for an empty block. The address is at least
    /// 256-byte aligned.
    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        self.allocation.address
    }

    /// Returns the requested number of bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns the identifier of the owner stream. The stream itself may no longer exist.
    #[must_use]
    pub fn stream_id(&self) -> StreamId {
        self.owner_stream
    }

    /// Everything queued so far on the owner stream, which includes the allocation, and on each stream of [`Block::record_use`].
    /// Known-complete work is omitted.
    pub fn use_points(&self) -> impl Iterator<Item = StreamPoint> {
        let uses = self.uses.load(Ordering::Acquire);
        self.device().clocks().uses(self.owner_stream, uses).map(StreamPoint::of_stamp)
    }

    /// Returns the pool's device.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.pool.device()
    }

    /// Records that work queued on `stream` uses this block. The free waits for all work queued on `stream` until
    /// the block is dropped.
    ///
    /// Call it once for each stream, at any time before the drop. The owner stream needs no record, except in a
    /// capture: a recorded use on any capturing stream keeps the block for the graph; see [`Graph`](crate::Graph).
    /// Recording a stream of another driver has no effect, because such a stream cannot access this memory.
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

    /// Frees the block in a call that names `stream`: the owner stream, or another stream that uses the block. The
    /// other stream counts as recorded.
    ///
    /// For streams of another library ([`Stream::from_raw`]), this call may also record a marker on the stream.
    /// Other streams can then reuse the memory once the stream has reached the marker. Streams created by this
    /// crate, and long-lived streams, do not need this call.
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, Stream, sys::types::CUstream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let pool = Pool::new(&device)?;
    /// # let raw = std::ptr::null_mut::<()>() as CUstream;
    /// // SAFETY: the stream outlives its wrapper.
    /// let stream = unsafe { Stream::from_raw(&device, raw)? };
    /// let block = pool.alloc(1 << 20, &stream)?;
    /// block.free_on(&stream);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn free_on(self, stream: &Stream) {
        if fork::is_child() {
            return core::mem::forget(self);
        }
        self.record_use(stream);
        let is_due = self.pool.is_mark_due(self.size_bytes, stream);
        // A marker covers the free only if it is recorded after the free. The drop may end the pool.
        drop(self);
        if is_due { stream.mark_named() } else { stream.note_named() }
    }

    #[inline]
    pub(crate) fn add_uses(&self, more: u64) {
        uses::add(&self.uses, more);
    }

    /// Frees the block without ordering the free behind its uses. The memory can be reused immediately.
    ///
    /// # Safety
    ///
    /// All work that uses the block, and all work queued on its owner stream before the allocation, must be
    /// complete. The caller must have synchronised on the host.
    pub unsafe fn free_completed(self) {
        let (allocation, size_bytes, owner_stream, uses, pool) = self.into_parts();
        let allocation = pool.untag(allocation, size_bytes);
        pool.free(&FreeRequest { allocation, size_bytes, owner_stream, uses, is_complete: true });
    }

    /// True if the block was used on another stream or in a capture.
    pub(crate) fn is_recorded(&self) -> bool {
        self.uses.load(Ordering::Relaxed) != 0
    }

    /// Returns the address and size of a range of the block; `None` if the range is empty.
    pub(crate) fn bytes(&self, part: Range<u64>) -> Result<Option<(CUdeviceptr, usize)>, PoolError> {
        let Range { start, end } = part;
        if start > end || end > self.size_bytes {
            return Err(PoolError::BadArgument(BadArgument::OutOfBounds {
                start,
                end,
                size_bytes: self.size_bytes,
            }));
        }
        Ok((start < end).then(|| (self.address() + start, (end - start) as usize)))
    }

    /// Refuses a device of another driver.
    pub(crate) fn check_machine(&self, device: &Device) -> Result<(), PoolError> {
        if device.driver().is_same_machine(self.device().driver()) {
            Ok(())
        } else {
            Err(self.device().mismatch(device))
        }
    }

    /// Makes `stream` wait, on the device, for all uses of the block so far, including the allocation. Does not make it join a capture. A
    /// graph's memory is available to its owner stream, which waited for it when its capture ended.
    pub(crate) fn order(&self, stream: &Stream) -> Result<(), PoolError> {
        for point in self.use_points() {
            if !stream.wait_for_point_outside_captures(point)? {
                return Err(PoolError::Stream(StreamError::NotOrdered {
                    stream: self.device().clocks().stream_in(point.stream_index()),
                }));
            }
        }
        // The following is the pool's own work.
        stream.note_write(0);
        Ok(())
    }

    pub(crate) fn allocation(&self) -> Allocation {
        self.allocation.without_tag()
    }

    /// Returns the nesting depth of other pools' blocks in this block.
    pub(crate) fn nesting(&self) -> usize {
        self.pool.nesting(self.allocation())
    }

    pub(crate) fn state(&self) -> StateRef {
        self.pool
    }

    /// The slow path of a drop: the thread's cache cannot take the block, or the block has more than a size and an address. Takes the
    /// fields by value, so that on the fast path the block stays in registers.
    ///
    /// Inline, so that it is compiled with the program, where a thread-local lookup needs no call; cold, so that it becomes a function
    /// there. All calls are tail calls, so it saves no registers.
    #[inline]
    #[cold]
    fn drop_slow(pool: StateRef, allocation: Allocation, size_bytes: u64, owner_stream: StreamId, uses: u64) {
        if allocation.tag() == 0 {
            return Self::drop_untagged(pool, allocation, size_bytes, owner_stream, uses);
        }
        if uses == 0
            && let Some(key) = pool.fast_path_key()
            && let Some(cache) = backend::find_for_tagged(key, &allocation, owner_stream)
        {
            // SAFETY: the cache has been found for this block, and nothing else has been called since.
            let free = |here: &_| unsafe { Self::drop_in_scope(here, pool, allocation, size_bytes, cache) };
            return scope::with_here(free);
        }
        Self::drop_tagged(pool, allocation, size_bytes, owner_stream, uses);
    }

    /// The free of a small tagged block. If its tag belongs to the innermost scope, it goes into the thread's cache here, otherwise through
    /// [`drop_tagged`](Self::drop_tagged).
    ///
    /// The caller has looked up both, and all calls are tail calls, so the fast path saves no registers.
    ///
    /// # Safety
    ///
    /// `cache` was found for the allocation and its owner stream, and the thread has used no cache since.
    #[inline(never)]
    unsafe fn drop_in_scope(
        here: &Here,
        pool: StateRef,
        allocation: Allocation,
        size_bytes: u64,
        cache: FoundCache,
    ) {
        // SAFETY: the caller upholds the contract.
        let put_back = || unsafe { backend::put_back_found(cache, &allocation, size_bytes) };
        let serial = pool.tags().serial();
        if !scope::count_in_here(here, serial, allocation.tag(), size_bytes, put_back) {
            // SAFETY: the block is still there, and so are its pool and the thread's caches.
            let owner_stream = unsafe { backend::stream_of_found(cache) };
            Self::drop_tagged(pool, allocation, size_bytes, owner_stream, 0);
        }
    }

    /// Counts a block as freed for its tag, and frees it.
    #[inline(never)]
    fn drop_tagged(
        pool: StateRef,
        allocation: Allocation,
        size_bytes: u64,
        owner_stream: StreamId,
        uses: u64,
    ) {
        if !pool.untag_in_scope(&allocation, size_bytes) {
            return Self::drop_out_of_scope(pool, allocation, size_bytes, owner_stream, uses);
        }
        Self::drop_untagged(pool, allocation.without_tag(), size_bytes, owner_stream, uses);
    }

    /// Like [`drop_tagged`](Self::drop_tagged), if the innermost scope has another tag, or there is none.
    #[inline(never)]
    fn drop_out_of_scope(
        pool: StateRef,
        allocation: Allocation,
        size_bytes: u64,
        owner_stream: StreamId,
        uses: u64,
    ) {
        let allocation = pool.untag(allocation, size_bytes);
        Self::drop_untagged(pool, allocation, size_bytes, owner_stream, uses);
    }

    #[inline(never)]
    fn drop_untagged(
        pool: StateRef,
        allocation: Allocation,
        size_bytes: u64,
        owner_stream: StreamId,
        uses: u64,
    ) {
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
    /// Returns the kind of the block's memory. For a block that another pool lent
    /// ([`Fallback`](crate::adaptor::Fallback)), this is that pool's kind.
    #[must_use]
    pub fn kind(&self) -> MemoryKind {
        self.origin().config().kind
    }

    /// Returns the pool whose backend owns the memory.
    pub(crate) fn origin(&self) -> StateRef {
        self.state().backing_allocation(self.allocation()).0
    }

    /// Returns a host pointer to the block, equal to its device address. `None` for device memory and for an empty
    /// block. `None` also for unified memory that host and device cannot access at once
    /// (`CONCURRENT_MANAGED_ACCESS` is 0).
    ///
    /// The host may use a block from the start: earlier users of its memory are complete. Before dereferencing the
    /// pointer, the caller must ensure that the block is alive, and must wait for work that uses it: before a read,
    /// for work that writes the block; before a write, for work that uses the block. An adaptor that fills blocks
    /// does so as work on the stream.
    #[must_use]
    pub fn host_ptr(&self) -> Option<NonNull<u8>> {
        let address = if self.origin().is_for_host() { self.address() } else { 0 };
        NonNull::new(core::ptr::with_exposed_provenance_mut(address as usize))
    }
}

impl From<&Block> for MemoryRange {
    fn from(block: &Block) -> Self {
        Self::new(block.address(), block.size_bytes())
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
            .field("owner_stream", &self.owner_stream)
            .field("uses", &format_args!("{:#b}", self.uses.load(Ordering::Relaxed)))
            .finish_non_exhaustive()
    }
}

// Programs hold thousands of blocks, so a block stays small.
const _: () = assert!(size_of::<Block>() <= 48);

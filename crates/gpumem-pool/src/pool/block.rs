//! [`Block`]: a range of device memory, freed in stream order when dropped.
//!
//! A block has an *owner stream*: the stream it was allocated on. Work queued on the owner stream after the
//! allocation may use the memory, and the free is ordered on the owner stream. To use the block on another stream,
//! make that stream wait for the owner stream first ([`Stream::wait_for`]), and record the use with
//! [`Block::record_use`], so that the free waits for that stream.
//!
//! In copies and fills the program names a stream, and the block does the rest in this order:
//!
//! 1. Checks: the range, the driver, the stream, and that the stream does not capture.
//! 2. The stream's device gets access to the memory ([`Block::enable_peer_access`]).
//! 3. The stream waits, on the device, for the uses of the block so far ([`Block::order`]). So safe code has no race: writing borrows the
//!    block exclusively. And no work reaches memory that an earlier block still uses, because the allocation on the owner stream counts as
//!    a use.
//! 4. The use is recorded, and the work is queued, in a call during which no capture of the stream begins. That call refuses sleeping
//!    memory, and a pool that goes to sleep waits for the call.
//!
//! Host memory is borrowed, so copies from and to it are complete when they return ([`Stream::run_borrowed`]).

use crate::backend::Underlying;
use crate::backend::{self, Allocation, FoundCache, FreeRequest, MemorySource};
use crate::config::MemoryKind;
use crate::error::{BadArgument, PoolError, Unsupported};
use crate::pool::frames::{self, Here};
#[cfg(unix)]
use crate::pool::sharing::ExportedBlock;
#[cfg(all(feature = "ipc", target_os = "linux"))]
use crate::pool::sharing::SocketError;
use crate::pool::state::StateRef;
use crate::pool::unified::{self, Location, MemoryAdvice};
use bytemuck::{AnyBitPattern, NoUninit};
use core::mem::ManuallyDrop;
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use gpumem_device::internal::{GRAPH_BIT, not_forked, uses};
use gpumem_device::{Device, DeviceError, MemoryRange, Stream, StreamError, StreamId, StreamPoint};
#[cfg(unix)]
use gpumem_sys::text::debug_fields;
use gpumem_sys::types::{CUdevice, CUdeviceptr, CUstream};
use gpumem_sys::{Driver, DriverError, fork};
#[cfg(all(feature = "ipc", target_os = "linux"))]
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// Device memory allocated from a [`Pool`](crate::Pool).
///
/// A drop, on any thread, queues the free on the owner stream. The free is ordered behind all work queued so far on
/// the owner stream and on every stream recorded with [`Block::record_use`]. A drop never panics. It never waits,
/// except with the backend `none`, which has no asynchronous free. When the driver refuses the free, the block is
/// leaked, and the pool's next call returns [`PoolError::Poisoned`] or
/// [`DeviceError::DeviceLost`].
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
    pub(crate) pool: StateRef,
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

    /// Returns a point behind everything queued so far on the owner stream, which includes the allocation, and one on each stream of
    /// [`Block::record_use`]. Work that is known to be complete is omitted.
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

    /// Records a use while streams capture: if `stream` does, the memory stays for the graph.
    #[cold]
    fn note_use(&self, stream: &Stream) {
        if fork::is_child() {
            return;
        }
        // The handle or the index of a stream that this thread cannot use may have been reused by another stream.
        if stream.check_usable().is_err() {
            return;
        }
        let pool = self.pool;
        let memory = &pool.graph_memory;
        // A stream of another machine cannot have work that uses this block.
        if !Arc::ptr_eq(stream.device().clocks(), &memory.clocks) {
            return;
        }
        let (graph, slot) = match stream.captures_for() {
            Ok(graph) => (graph, Some(stream.stream_index())),
            // The query failed and the use may be part of a capture, so the block is kept for the open capture.
            Err(_) => (stream.clocks().captures().capture_of(stream.stream_index(), true), None),
        };
        if let Some(graph) = graph
            && self.size_bytes() > 0
        {
            self.add_uses(GRAPH_BIT);
            memory.note_use(graph, self.address(), slot);
        }
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
        pool.free(&FreeRequest {
            allocation,
            size_bytes,
            owner_stream,
            uses,
            is_complete: true,
            behind: None,
        });
    }

    /// Frees the block behind the work that is queued on `stream` so far, which is behind all uses of the block.
    pub(in crate::pool) fn free_behind(self, stream: &Stream) {
        if fork::is_child() {
            return core::mem::forget(self);
        }
        let (allocation, size_bytes, owner_stream, uses, pool) = self.into_parts();
        let allocation = pool.untag(allocation, size_bytes);
        let behind = Some(stream.id());
        pool.free(&FreeRequest { allocation, size_bytes, owner_stream, uses, is_complete: false, behind });
    }

    /// Like [`Block::copy_from`] for all bytes, on a stream that the caller has ordered behind all conflicting uses. The caller also orders
    /// the free of the source behind the copy.
    pub(in crate::pool) fn copy_from_ordered(
        &mut self,
        source: &Self,
        stream: &Stream,
    ) -> Result<(), PoolError> {
        let (from, to) = (source.bytes(0..source.size_bytes)?, self.bytes(0..source.size_bytes)?);
        queue_ordered(
            &[&*self, source],
            &[&*self],
            from.zip(to),
            stream,
            "a copy of a block",
            |driver, ((from, size), (to, _)), raw| {
                // SAFETY: both blocks have these bytes, are alive, and do not overlap, because one is borrowed exclusively. The caller has
                // ordered the stream behind their uses, and their frees behind this one, and its context is current.
                unsafe { driver.cuMemcpyAsync(to, from, size, raw) }
            },
        )
    }

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
            Err(self.device().mismatch(device).into())
        }
    }

    /// Makes `stream` wait, on the device, for all uses of the block so far, including the allocation. Does not make it join a capture. A
    /// graph's memory is available to its owner stream, which waited for it when its capture ended.
    pub(crate) fn order(&self, stream: &Stream) -> Result<(), PoolError> {
        for point in self.use_points() {
            if !stream.wait_for_point_outside_captures(point)? {
                return Err(PoolError::Device(DeviceError::Stream(StreamError::NotOrdered {
                    stream: self.device().clocks().stream_in(point.stream_index()),
                })));
            }
        }
        // The following is the pool's own work.
        stream.note_write(0);
        Ok(())
    }

    pub(crate) fn allocation(&self) -> Allocation {
        self.allocation.without_tag()
    }

    pub(crate) fn tag_number(&self) -> u16 {
        self.allocation.tag()
    }

    pub(crate) fn nesting(&self) -> usize {
        self.pool.nesting(self.allocation())
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
            return frames::with_here(free);
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
        let serial = pool.tags.serial;
        if !frames::count_in_here(here, serial, allocation.tag(), size_bytes, put_back) {
            // SAFETY: the block is still there, and so are its pool and the thread's caches.
            let owner_stream = unsafe { backend::stream_of_found(cache) };
            Self::drop_tagged(pool, allocation, size_bytes, owner_stream, 0);
        }
    }

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
            return stack.free(
                pool,
                &FreeRequest { allocation, size_bytes, owner_stream, uses, is_complete: false, behind: None },
            );
        }
        if !(uses == 0 && pool.put_back(&allocation, size_bytes, owner_stream)) {
            pool.free(&FreeRequest {
                allocation,
                size_bytes,
                owner_stream,
                uses,
                is_complete: false,
                behind: None,
            });
        }
    }

    /// Returns the kind of the block's memory. For a block that another pool lent
    /// ([`Fallback`](crate::adaptor::Fallback)), this is that pool's kind.
    #[must_use]
    pub fn kind(&self) -> MemoryKind {
        self.origin().config().kind
    }

    pub(crate) fn origin(&self) -> StateRef {
        self.pool.backing_allocation(self.allocation()).0
    }

    /// Returns a host pointer to the block, equal to its device address. Returns `None` for device memory, for an empty
    /// block, and for unified memory that host and device cannot access at once (`CONCURRENT_MANAGED_ACCESS` is 0).
    ///
    /// The host may use a block from the start: earlier users of its memory are complete. Before dereferencing the
    /// pointer, the caller must ensure that the block is alive, and must wait for work that uses it: before a read,
    /// for work that writes the block; before a write, for work that uses the block. An adaptor that fills blocks
    /// does so as work on the stream.
    #[must_use]
    pub fn host_ptr(&self) -> Option<NonNull<u8>> {
        let address = if self.origin().is_for_host { self.address() } else { 0 };
        NonNull::new(core::ptr::with_exposed_provenance_mut(address as usize))
    }

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
    /// - [`DeviceError::Asleep`] if the pool sleeps.
    pub fn pin_backing(&self) -> Result<(), PoolError> {
        not_forked()?;
        match self.size_bytes() {
            0 => Ok(()),
            _ => {
                let (pool, allocation) = self.pool.backing_allocation(self.allocation());
                pool.backend.pin(allocation)
            }
        }
    }

    /// Converts the block to plain data without freeing it. The block counts as alive, and keeps its pool alive,
    /// until [`Block::from_raw`] converts it back, on any thread.
    #[inline]
    pub fn into_raw(self) -> RawBlock {
        let (allocation, size_bytes, owner_stream, uses, pool) = self.into_parts();
        let token = BlockToken { pool, owner_stream, uses, mark: allocation.mark };
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

    /// Copies a slice into the block, starting at byte `offset_bytes`. Returns when the copy is complete.
    ///
    /// The driver copies pageable memory with one thread. Copies of pinned slices take a fifth of the time.
    ///
    /// ```
    /// use gpumem_pool::{BadArgument, Device, Pool, PoolError, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let (pool, stream) = (Pool::new(&device)?, Stream::new(&device)?);
    /// let mut block = pool.alloc(16, &stream)?;
    /// block.copy_from_host(0, &[1.0_f32, 2.0, 3.0, 4.0], &stream)?;
    /// let mut last = [0.0_f32; 2];
    /// block.copy_to_host(8, &mut last, &stream)?;
    /// assert_eq!(last, [3.0, 4.0]);
    /// assert!(matches!(block.copy_from_host(9, &[0_u64], &stream), Err(PoolError::BadArgument(BadArgument::OutOfBounds { .. }))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`PoolError::BadArgument`] if the slice does not fit behind the offset.
    /// - [`DeviceError::WrongDevice`] for a stream of another driver.
    /// - [`PoolError::Unsupported`] if the stream's device has no link to the block's.
    /// - [`DeviceError::Capture`] if the stream, or a stream that uses the block, captures, or if its capture is broken.
    /// - [`DeviceError::Stream`] if a stream of [`Stream::from_raw`] other than `stream` uses the block, or if this thread cannot use the stream.
    /// - [`DeviceError::Asleep`] if the memory sleeps ([`Pool::sleep`](crate::Pool::sleep)).
    /// - [`DeviceError::DeviceLost`] or [`DeviceError::Driver`] if a call or earlier work failed. The block may then be partly written.
    ///
    /// # Aborts
    ///
    /// Like [`Stream::run_borrowed`].
    pub fn copy_from_host<T: NoUninit>(
        &mut self,
        offset_bytes: u64,
        source: &[T],
        stream: &Stream,
    ) -> Result<(), PoolError> {
        not_forked()?;
        let part = span(offset_bytes, size_of_val(source));
        let from = source.as_ptr().expose_provenance() as CUdeviceptr;
        self.copy_host(part, stream, "a copy from host memory", |driver, (to, size), raw| {
            // SAFETY: the block has these bytes, is alive, and is borrowed exclusively; the stream is ordered behind its uses, and
            // its context is current. The slice is borrowed until the copy is complete, and has no uninitialised bytes.
            unsafe { driver.cuMemcpyAsync(to, from, size, raw) }
        })
    }

    /// Copies bytes of the block, starting at byte `offset_bytes`, into a slice. Returns when the copy is complete.
    ///
    /// Every bit pattern is a valid element. If the block has not been written, the values are unspecified.
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let (pool, upload, compute) = (Pool::new(&device)?, Stream::new(&device)?, Stream::new(&device)?);
    /// let mut block = pool.alloc(3, &upload)?;
    /// block.copy_from_host(0, b"abc", &upload)?;
    /// let mut bytes = [0_u8; 3];
    /// block.copy_to_host(0, &mut bytes, &compute)?; // `compute` waits for `upload`
    /// assert_eq!(&bytes, b"abc");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Block::copy_from_host`], such as [`PoolError::BadArgument`] and [`DeviceError::Capture`]. After
    /// [`DeviceError::DeviceLost`] and [`DeviceError::Driver`] the slice may be partly written.
    ///
    /// # Aborts
    ///
    /// Like [`Stream::run_borrowed`].
    pub fn copy_to_host<T: AnyBitPattern>(
        &self,
        offset_bytes: u64,
        target: &mut [T],
        stream: &Stream,
    ) -> Result<(), PoolError> {
        not_forked()?;
        let part = span(offset_bytes, size_of_val(target));
        let to = target.as_mut_ptr().expose_provenance() as CUdeviceptr;
        self.copy_host(part, stream, "a copy to host memory", |driver, (from, size), raw| {
            // SAFETY: the block has these bytes and is alive; the stream is ordered behind its writes, and its context is current.
            // The slice is borrowed exclusively until the copy is complete, and every bit pattern is a value of its elements.
            unsafe { driver.cuMemcpyAsync(to, from, size, raw) }
        })
    }

    /// Copies the bytes `part` of another block to this one, starting at byte `offset_bytes`. The copy is work on `stream`, and this call
    /// does not wait for it.
    ///
    /// The blocks may be of different pools and kinds of memory, and on different devices if a link connects them.
    ///
    /// ```
    /// use gpumem_pool::{Device, MemoryKind, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let (pool, stream) = (Pool::new(&device)?, Stream::new(&device)?);
    /// let pinned = Pool::builder(&device).kind(MemoryKind::Host).build()?;
    ///
    /// let mut weights = pool.alloc_zeroed(1 << 20, &stream)?;
    /// let mut saved = pinned.alloc(1 << 20, &stream)?;
    /// saved.copy_from(0, &weights, 0..1 << 20, &stream)?; // queued, no wait
    /// weights.copy_from(4096, &saved, 0..4096, &stream)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Block::copy_from_host`], for both blocks, such as [`PoolError::BadArgument`],
    /// [`PoolError::Unsupported`] and [`DeviceError::Capture`].
    pub fn copy_from(
        &mut self,
        offset_bytes: u64,
        source: &Self,
        part: Range<u64>,
        stream: &Stream,
    ) -> Result<(), PoolError> {
        not_forked()?;
        let size_bytes = part.end.saturating_sub(part.start);
        let from = source.bytes(part)?;
        let to = self.bytes(offset_bytes..offset_bytes.saturating_add(size_bytes))?;
        let blocks = [&*self, source];
        queue(&blocks, from.zip(to), stream, "a copy of a block", |driver, ((from, size), (to, _)), raw| {
            // SAFETY: both blocks have these bytes, are alive, and do not overlap, because one is borrowed exclusively. The stream is
            // ordered behind their uses, which now include this one, and its context is current.
            unsafe { driver.cuMemcpyAsync(to, from, size, raw) }
        })
    }

    /// Copies the bytes `part` of the block to another place in it, starting at byte `offset_bytes`. The copy is work on `stream`, and this
    /// call does not wait for it.
    ///
    /// ```
    /// use gpumem_pool::{BadArgument, Device, Pool, PoolError, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let (pool, stream) = (Pool::new(&device)?, Stream::new(&device)?);
    /// let mut block = pool.alloc_zeroed(4096, &stream)?;
    /// block.copy_within(0..1024, 1024, &stream)?;
    /// assert!(matches!(block.copy_within(0..1024, 512, &stream), Err(PoolError::BadArgument(BadArgument::Overlap { .. }))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`PoolError::BadArgument`] if the two places overlap.
    /// - The errors of [`Block::copy_from_host`], such as [`PoolError::BadArgument`] and [`DeviceError::Capture`].
    pub fn copy_within(
        &mut self,
        part: Range<u64>,
        offset_bytes: u64,
        stream: &Stream,
    ) -> Result<(), PoolError> {
        not_forked()?;
        let (start, size_bytes) = (part.start, part.end.saturating_sub(part.start));
        let from = self.bytes(part)?;
        let to = self.bytes(offset_bytes..offset_bytes.saturating_add(size_bytes))?;
        if start.abs_diff(offset_bytes) < size_bytes {
            return Err(PoolError::BadArgument(BadArgument::Overlap {
                from: start,
                to: offset_bytes,
                size_bytes,
            }));
        }
        queue(
            &[self],
            from.zip(to),
            stream,
            "a copy within a block",
            |driver, ((from, size), (to, _)), raw| {
                // SAFETY: the block has these bytes, which do not overlap, is alive and borrowed exclusively. The stream is ordered
                // behind its uses, which now include this one, and its context is current.
                unsafe { driver.cuMemcpyAsync(to, from, size, raw) }
            },
        )
    }

    /// Fills the bytes `part` of the block with copies of a value of 1, 2 or 4 bytes; other sizes do not compile. The fill
    /// is work on `stream`, and this call does not wait for it.
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let (pool, stream) = (Pool::new(&device)?, Stream::new(&device)?);
    /// let mut block = pool.alloc_zeroed(16, &stream)?;
    /// block.fill(8..16, 1.5_f32, &stream)?;
    /// let mut values = [0.0_f32; 4];
    /// block.copy_to_host(0, &mut values, &stream)?;
    /// assert_eq!(values, [0.0, 0.0, 1.5, 1.5]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// ```compile_fail
    /// # use gpumem_pool::{Block, PoolError, Stream};
    /// fn fill(block: &mut Block, stream: &Stream) -> Result<(), PoolError> {
    ///     block.fill(0..8, 1.5_f64, stream)
    /// }
    /// # std::hint::black_box(fill as fn(&mut Block, &Stream) -> Result<(), PoolError>);
    /// ```
    ///
    /// # Errors
    ///
    /// - [`PoolError::BadArgument`] if an end of the range is not a multiple of the value's size.
    /// - The errors of [`Block::copy_from_host`], such as [`PoolError::BadArgument`] and [`DeviceError::Capture`].
    pub fn fill<T: NoUninit>(
        &mut self,
        part: Range<u64>,
        value: T,
        stream: &Stream,
    ) -> Result<(), PoolError> {
        not_forked()?;
        const { assert!(matches!(size_of::<T>(), 1 | 2 | 4), "a fill takes a value of 1, 2 or 4 bytes") };
        let (Range { start, end }, element_bytes) = (part.clone(), size_of::<T>() as u64);
        let bytes = self.bytes(part)?;
        if start % element_bytes != 0 || end % element_bytes != 0 {
            return Err(PoolError::BadArgument(BadArgument::PartialElements { start, end, element_bytes }));
        }
        let mut word = [0; 4];
        word[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&value));
        queue(&[self], bytes, stream, "a fill of a block", |driver, (address, size), raw| {
            // SAFETY: the block has these bytes, which are whole elements, is alive and borrowed exclusively. The stream is ordered
            // behind its uses, which now include this one, and its context is current.
            unsafe {
                match size_of::<T>() {
                    1 => driver.cuMemsetD8Async(address, word[0], size, raw),
                    2 => driver.cuMemsetD16Async(
                        address,
                        u16::from_ne_bytes([word[0], word[1]]),
                        size / 2,
                        raw,
                    ),
                    _ => driver.cuMemsetD32Async(address, u32::from_ne_bytes(word), size / 4, raw),
                }
            }
        })
    }

    /// Moves the pages of a range of the block (bytes from its start) to where they will be used. The move is work
    /// on `stream`, in stream order, and this call does not wait. A move does not change the contents. It counts as
    /// a use of the block on `stream`.
    ///
    /// ```
    /// use gpumem_pool::{Device, Location, MemoryKind, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let pool = Pool::builder(&device).kind(MemoryKind::Unified).build()?;
    /// let stream = Stream::new(&device)?;
    ///
    /// let block = pool.alloc(4 << 20, &stream)?;
    /// block.prefetch(0..1 << 20, Location::Device(&device), &stream)?;
    /// assert!(block.prefetch(0..(4 << 20) + 1, Location::Host, &stream).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`PoolError::Unsupported`] unless the block is unified memory.
    /// - [`PoolError::BadArgument`] if the range is not within the block.
    /// - [`DeviceError::WrongDevice`] for a stream or a device of another driver.
    /// - [`DeviceError::Stream`] if this thread cannot use the stream.
    /// - [`DeviceError::Capture`] if the stream captures.
    /// - [`DeviceError::Driver`] if the driver cannot move pages, or if another call fails.
    pub fn prefetch(&self, part: Range<u64>, to: Location<'_>, stream: &Stream) -> Result<(), PoolError> {
        not_forked()?;
        let part = self.pages(part, "be prefetched")?;
        stream.queue_work([self], |raw| {
            self.check_machine(stream.device())?;
            let Some((address, size)) = part else { return Ok(()) };
            stream.check_runs("prefetching")?;
            let to = self.place(to)?;
            let _bound = stream.device().enter()?;
            self.record_use(stream);
            let driver = stream.device().driver();
            // SAFETY: the block has these bytes; the stream is alive, its handle is valid on this thread, its context
            // is current, and the block's free will wait for it.
            unsafe { driver.cuMemPrefetchAsync(address, size, to, raw) }.map_err(PoolError::from)
        })?
    }

    /// Advises the driver how a range of the block (bytes from its start) will be used. Advice affects performance
    /// only.
    ///
    /// Advice applies to whole pages, which neighbouring blocks may share. It stays with the pages when the block
    /// is dropped: remove advice that should not apply to the next block there.
    ///
    /// ```
    /// use gpumem_pool::{BackendKind, Device, MemoryAdvice, MemoryKind, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let pool = Pool::builder(&device).kind(MemoryKind::Unified).backend(BackendKind::None).build()?;
    ///
    /// let block = pool.alloc(4 << 20, &Stream::new(&device)?)?;
    /// block.advise(0..4 << 20, MemoryAdvice::ReadMostly(true))?;
    /// // … many devices read it …
    /// block.advise(0..4 << 20, MemoryAdvice::ReadMostly(false))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`PoolError::Unsupported`] unless the block is unified memory.
    /// - [`PoolError::BadArgument`] if the range is not within the block.
    /// - [`DeviceError::WrongDevice`] for a location on a device of another driver.
    /// - [`DeviceError::Driver`] if a call fails.
    pub fn advise(&self, part: Range<u64>, expectation: MemoryAdvice<'_>) -> Result<(), PoolError> {
        not_forked()?;
        let Some((address, size)) = self.pages(part, "be advised on")? else { return Ok(()) };
        let (advice, place) = expectation.of_driver(Location::Device(self.device()));
        let place = self.place(place)?;
        let _bound = self.device().enter()?;
        // SAFETY: the block has these bytes, and its context is current.
        unsafe { self.device().driver().cuMemAdvise(address, size, advice, place)? };
        Ok(())
    }

    fn pages(&self, part: Range<u64>, what: &'static str) -> Result<Option<(CUdeviceptr, usize)>, PoolError> {
        if self.kind() != MemoryKind::Unified {
            return Err(PoolError::Unsupported(Unsupported::OnKind {
                kind: self.kind(),
                what,
                instead: "`unified`",
            }));
        }
        self.bytes(part)
    }

    /// Returns the driver's number of a location: the device's ordinal, or `HOST`.
    fn place(&self, location: Location<'_>) -> Result<CUdevice, PoolError> {
        match location {
            Location::Host => Ok(unified::HOST),
            Location::Device(device) => self.check_machine(device).map(|()| device.raw()),
        }
    }

    /// Lets the streams of another device use the blocks of the pool that owns this block's memory; see
    /// [`Pool::enable_peer_access`](crate::Pool::enable_peer_access). A further call for the same device makes no driver call.
    ///
    /// Every device of the machine can access unified and pinned memory anyway.
    ///
    /// # Errors
    ///
    /// [`PoolError::Unsupported`], [`DeviceError::DeviceLost`], [`PoolError::Poisoned`] and [`DeviceError::Driver`], with the causes that
    /// [`Pool::enable_peer_access`](crate::Pool::enable_peer_access) lists.
    pub fn enable_peer_access(&self, peer: &Device) -> Result<(), PoolError> {
        not_forked()?;
        let origin = self.origin();
        let is_accessible = origin.config().kind != MemoryKind::Device;
        if is_accessible && self.device().driver().is_same_machine(peer.driver()) {
            Ok(())
        } else {
            origin.enable_peer_access(peer)
        }
    }

    /// Exports the block's memory to other processes. From then on the memory is pinned, as with
    /// [`Block::pin_backing`].
    ///
    /// The other processes can access all of the handles that contain the block, including other blocks of the pool
    /// that lie there. Share from a separate pool to avoid this ([`Pool::private`](crate::Pool::private)). The
    /// processes must order their accesses themselves. After this block is dropped, the pool may reuse its memory,
    /// so keep the block until the other processes are done.
    ///
    /// ```
    /// use gpumem_pool::{Device, ImportedBlock, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// # #[cfg(feature = "backend-caching")] {
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let pool = Pool::builder(&device).conf("backend:caching, exportable:true")?.build()?;
    /// let block = pool.alloc(3 << 20, &Stream::new(&device)?)?;
    /// let exported = block.export()?;
    ///
    /// // … the descriptors and the numbers go to another process, where …
    /// let imported = ImportedBlock::new(&device, exported)?;
    /// assert_eq!(imported.size_bytes(), 3 << 20);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`PoolError::Unsupported`] unless the pool was built with the option `exportable:true`.
    /// - [`DeviceError::Asleep`] if the pool sleeps.
    /// - [`DeviceError::DeviceLost`] or [`DeviceError::Driver`] if a call fails.
    #[cfg(unix)]
    pub fn export(&self) -> Result<ExportedBlock, PoolError> {
        not_forked()?;
        if self.size_bytes() == 0 {
            return Ok(ExportedBlock::new(Vec::new(), 0, 0));
        }
        let (pool, allocation) = self.pool.backing_allocation(self.allocation());
        let backing = pool.backend.backing(allocation)?;
        let Underlying { handles, offset_bytes } =
            backing.ok_or(PoolError::Unsupported(Unsupported::Export))?;
        let offset_bytes = offset_bytes + (self.address() - allocation.address);
        ExportedBlock::of(self.device(), &handles, offset_bytes, self.size_bytes())
    }

    /// Exports the block ([`Block::export`]) and sends it to the process at the other end of a socket, which calls
    /// [`ImportedBlock::receive`](crate::ImportedBlock::receive). Returns once the message is in the socket.
    ///
    /// The message carries the memory, not the order of work: synchronise with the work that writes the block before
    /// this call, and keep the block until the other process is done with it.
    ///
    /// ```
    /// use gpumem_pool::{Device, ImportedBlock, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    /// use std::os::unix::net::UnixStream;
    ///
    /// # #[cfg(feature = "backend-caching")] {
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let pool = Pool::builder(&device).conf("backend:caching, exportable:true")?.build()?;
    /// let block = pool.alloc_zeroed(3 << 20, &Stream::new(&device)?)?;
    /// device.synchronize()?;
    ///
    /// let (here, there) = UnixStream::pair()?; // or `UnixStream::connect`, and `UnixListener` in the other process
    /// block.send(&here)?;
    /// let imported = ImportedBlock::receive(&device, &there)?;
    /// assert_eq!(imported.size_bytes(), 3 << 20);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`SocketError::Pool`] with the errors of [`Block::export`], such as [`PoolError::Unsupported`].
    /// - [`SocketError::Closed`] if the other end was closed.
    /// - [`SocketError::TooManyHandles`] for a block of more than a million handles.
    /// - [`SocketError::Io`] if a system call fails.
    #[cfg(all(feature = "ipc", target_os = "linux"))]
    #[cfg_attr(docsrs, doc(cfg(feature = "ipc")))]
    pub fn send(&self, socket: &UnixStream) -> Result<(), SocketError> {
        self.export()?.send(socket)
    }

    /// Copies between host memory and a range of the block. Returns when the copy that `copy` queues is complete.
    fn copy_host(
        &self,
        part: Range<u64>,
        stream: &Stream,
        operation: &'static str,
        copy: impl FnOnce(&Driver, (CUdeviceptr, usize), CUstream) -> Result<(), DriverError>,
    ) -> Result<(), PoolError> {
        let bytes = self.bytes(part)?;
        self.check_use(stream)?;
        let Some(bytes) = bytes else { return Ok(()) };
        self.begin_use(stream, operation)?;
        let device = stream.device();
        let _bound = device.enter()?;
        // Complete when this returns, so later work has nothing to wait for, and the use is not recorded.
        stream
            .run_borrowed(operation, [self], |raw| Ok(device.noting(copy(device.driver(), bytes, raw))?))?
    }

    /// Refuses a stream of another driver, and a stream that this thread cannot use.
    fn check_use(&self, stream: &Stream) -> Result<(), PoolError> {
        self.check_machine(stream.device())?;
        Ok(stream.check_usable()?)
    }

    fn begin_use(&self, stream: &Stream, operation: &'static str) -> Result<(), PoolError> {
        // Queuing the work checks this again. The check here comes before the waits, which would become part of the capture.
        stream.check_runs(operation)?;
        if self.origin().device() != stream.device() {
            self.enable_peer_access(stream.device())?;
        }
        self.order(stream)
    }
}

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

debug_fields!(
    Block, it,
    address: format_args!("{:#x}", it.address()),
    size_bytes: it.size_bytes,
    owner_stream: it.owner_stream,
    uses: format_args!("{:#b}", it.uses.load(Ordering::Relaxed)),
);

// Programs hold thousands of blocks, so a block stays small.
const _: () = assert!(size_of::<Block>() <= 48);

/// Queues work of `stream` on blocks. `None` stands for no bytes, and queues nothing.
fn queue<P>(
    blocks: &[&Block],
    place: Option<P>,
    stream: &Stream,
    operation: &'static str,
    work: impl FnOnce(&Driver, P, CUstream) -> Result<(), DriverError>,
) -> Result<(), PoolError> {
    blocks.iter().try_for_each(|block| block.check_use(stream))?;
    if place.is_some() {
        blocks.iter().try_for_each(|block| block.begin_use(stream, operation))?;
    }
    queue_ordered(blocks, blocks, place, stream, operation, work)
}

/// Like [`queue`], on a stream that is behind the conflicting uses. Records the use by the `recorded` blocks.
fn queue_ordered<P>(
    blocks: &[&Block],
    recorded: &[&Block],
    place: Option<P>,
    stream: &Stream,
    operation: &'static str,
    work: impl FnOnce(&Driver, P, CUstream) -> Result<(), DriverError>,
) -> Result<(), PoolError> {
    let Some(place) = place else { return Ok(()) };
    let device = stream.device();
    stream.queue_work(blocks.iter().copied(), |raw| {
        // A stream that has begun to capture would get work that a free does not wait for.
        stream.check_runs(operation)?;
        let _bound = device.enter()?;
        recorded.iter().for_each(|block| block.record_use(stream));
        Ok(device.noting(work(device.driver(), place, raw))?)
    })?
}

/// The bytes of a slice at an offset. A huge offset gives a range that no block has.
fn span(offset_bytes: u64, size_bytes: usize) -> Range<u64> {
    offset_bytes..offset_bytes.saturating_add(size_bytes as u64)
}

//! [`ArrayStorage`]: the memory of one array, and the order of its uses.
//!
//! A storage records the point of the last write in its stream, and the points of the reads since, one for each stream ([`StreamPoint`]).
//! Before another stream uses the memory, it waits on the device: a reader for the write, a writer for the write and all reads; readers
//! never wait for each other. A use by a stream that is already ordered takes a few loads, without a lock or a driver call.
//!
//! A [`Use`] names the bytes that work uses. Most arrays are used as a whole, so these points count for all bytes at first. The storage
//! switches to a list of parts with separate points ([`TrackedRanges`], behind a lock) when a mutable view is split, or when a stream writes a
//! part of an array that another stream has used. Only an exclusive borrow of all bytes or a view that is split can do that, so no other
//! thread uses the points at that moment. A write of all bytes ends it.
//!
//! The bytes of a view are those between its first and its last element that belong to its [`Pattern`]: halves of a matrix are apart along
//! either axis. Views with gaps at three distances or more have no pattern, and count for all bytes in between.
//!
//! A wait for a point uses a marker in the point's stream, and includes what was queued before that marker. A program with one stream needs
//! no marker, so markers are recorded when another stream needs one. Some writes get a marker immediately, because another stream is likely
//! to wait for them while later work is queued: copies from pinned memory, uploads of more than 64 KiB, writes on a stream that other
//! streams have waited for, and writes to memory that another stream has just used. So do writes of memory of less than 32 bytes, and of a
//! size whose last download found later work on the stream ([`ArrayStorage::is_overtaken`]).
//!
//! All code that queues work names the memory that the work touches ([`Touch`]): arrays as uses, and blocks of other parts of this crate as
//! [`MemoryRange`]s. Only [`queue`] and its siblings queue work at the driver. They refuse memory that sleeps.
//!
//! Another thread may begin a capture between the waits and the work. So [`queue`] queues the work in a call during which no capture of the
//! stream begins or ends. There it checks whether the work becomes part of a graph, which then keeps the memory. In the same call it stores
//! the points, which exist only once the work is queued. Until then the storage has the points of earlier uses, which remain if the work is
//! refused. No point of a capture is ever stored, so a stream that waits for the memory cannot join the capture.

#[cfg(any(feature = "cudarc", feature = "dlpack"))]
mod foreign_memory;
mod memory;
mod pattern;
mod ranges;
mod residency;

use crate::error::{ArrayError, GraphError};
use crate::gpu::Gpu;
pub(crate) use crate::gpu::recording::Access;
use crate::gpu::recording::{self, CaptureRecording, RecordedUse, ViewName};
use crate::layout::ByteSpan;
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use gpumem_pool::sys::types::CUstream;
use gpumem_pool::sys::{DriverError, fork};
use gpumem_pool::{
    Block, Device, DeviceError, GrowableBlock, KeptBy, LentMemory, Location, MemoryKind, MemoryRange,
    PoolError, SpillPin, SpillableBlock, Stream, StreamPoint, Unsupported, not_forked,
};
use memory::StorageMemory;
use pattern::Pattern;
use ranges::{Region, TrackedRanges};
use residency::Residency;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

pub(crate) struct ArrayStorage {
    memory: StorageMemory,
    /// The address at which work is planned: see [`Use::at`].
    planned: u64,
    size_bytes: u64,
    /// The kind of the memory. Copies from host memory take long, so a write by them gets a marker immediately.
    kind: MemoryKind,
    /// The point of the last write. At first the point of the allocation, after which the memory exists in stream order. [`SPLIT`] if the
    /// uses are in [`More::ranges`].
    write: AtomicU64,
    /// The points of reads since, one per stream, without a gap; 0 for none. Only a write clears them.
    reads: [AtomicU64; INLINE_READS],
    /// The host accesses that need no wait: 0 none, 1 reads, 2 reads and writes. Always 0 for device memory.
    host: AtomicU8,
    /// The capture that the array was made in, or 0. Such an array has no values outside the capture.
    capture: u64,
    /// The number and the view that captures record; empty until one uses the storage.
    identity: OnceLock<Box<Identity>>,
    more: OnceLock<Box<Mutex<More>>>,
    /// The parts that were prefetched to the device; only for unified memory that the host can access.
    residency: Option<Box<Residency>>,
}

/// A storage, as recorded by captures.
struct Identity {
    serial: u64,
    /// The view that was used last while any thread captured.
    view: Mutex<ViewName>,
}

/// The points and streams that do not fit inline; few arrays have any.
#[derive(Default)]
struct More {
    /// The points of reads since the last write by further streams.
    reads: Vec<StreamPoint>,
    /// Streams of other libraries that have used the memory: waiting for them requires their name.
    foreign: Vec<Stream>,
    /// The uses of the parts, while the storage is split.
    ranges: TrackedRanges,
    /// The current uses by other libraries.
    open: Vec<OpenUses>,
    /// True if another stream had used the bytes of the last write of a part.
    is_changed: bool,
}

/// Uses by other libraries on one stream.
struct OpenUses {
    latest: StreamPoint,
    count: usize,
    /// Keeps the pool from going to sleep.
    lent: Option<LentMemory>,
    /// Keeps the memory at its address.
    _pinned: Option<SpillPin>,
}

/// Proof of being inside a call that queues work, whose memory has addresses until the call ends.
#[derive(Clone, Copy)]
pub(crate) struct Placed(());

/// Memory that work touches.
pub(crate) trait Touch {
    fn memory(&self) -> MemoryRange;

    /// The use of an array, which is recorded. `None` for memory whose owner orders its uses differently.
    fn tracked(&self) -> Option<&Use<'_>>;
}

/// Memory of either kind, for work that touches both.
#[derive(Clone, Copy)]
pub(crate) enum Touched<'a> {
    Array(Use<'a>),
    Other(MemoryRange),
}

impl Touch for Use<'_> {
    /// All bytes of the storage: memory sleeps as a whole.
    #[inline(always)]
    fn memory(&self) -> MemoryRange {
        MemoryRange::new(self.storage.current(), self.storage.size_bytes)
    }

    #[inline(always)]
    fn tracked(&self) -> Option<&Use<'_>> {
        Some(self)
    }
}

impl Touch for Touched<'_> {
    #[inline]
    fn memory(&self) -> MemoryRange {
        match self {
            Self::Array(one) => one.memory(),
            Self::Other(range) => *range,
        }
    }

    #[inline]
    fn tracked(&self) -> Option<&Use<'_>> {
        match self {
            Self::Array(one) => Some(one),
            Self::Other(_) => None,
        }
    }
}

impl<T: Touch> Touch for &T {
    #[inline(always)]
    fn memory(&self) -> MemoryRange {
        T::memory(self)
    }

    #[inline(always)]
    fn tracked(&self) -> Option<&Use<'_>> {
        T::tracked(self)
    }
}

/// A use of bytes of a storage by work that is about to be queued.
#[derive(Clone, Copy)]
pub(crate) struct Use<'a> {
    storage: &'a ArrayStorage,
    access: Access,
    /// From the start of the storage.
    bytes: ByteSpan,
}

impl<'a> Use<'a> {
    #[inline]
    pub(crate) fn new(storage: &'a ArrayStorage, access: Access, bytes: ByteSpan) -> Self {
        Self { storage, access, bytes }
    }

    #[inline]
    pub(crate) fn whole(storage: &'a ArrayStorage, access: Access) -> Self {
        Self::new(storage, access, ByteSpan::ALL)
    }

    #[inline]
    pub(crate) fn storage(self) -> &'a ArrayStorage {
        self.storage
    }

    #[inline]
    pub(crate) fn access(self) -> Access {
        self.access
    }

    #[inline]
    pub(crate) fn bytes(self) -> ByteSpan {
        self.bytes
    }

    /// The bytes, with the real end of the storage.
    pub(crate) fn range(self) -> Range<u64> {
        self.bytes.start..self.bytes.end.min(self.storage.size_bytes)
    }

    /// The address of bytes that were planned at `planned`, for work that is being queued. Memory that spills may have moved since.
    #[inline]
    pub(crate) fn at(self, planned: u64, _: Placed) -> u64 {
        let storage = self.storage;
        planned.wrapping_sub(storage.planned).wrapping_add(storage.current())
    }

    /// Makes the stream of `gpu` wait for the uses that this one conflicts with. Call it before the work is queued ([`queue`]),
    /// while the bytes are borrowed: shared for reading, exclusively for writing. Errors name `operation`.
    #[inline]
    pub(crate) fn order(self, gpu: &Gpu, operation: &'static str) -> Result<(), ArrayError> {
        self.order_on(gpu.stream(), gpu.recording(), operation)
    }

    /// True if [`Use::order_on`] has nothing to do for `stream`, whose latest point is `latest`, while no capture is active.
    #[inline]
    fn is_ordered(&self, stream: &Stream, latest: StreamPoint) -> bool {
        let storage = self.storage;
        if storage.capture != 0 || storage.host.load(Ordering::Relaxed) != 0 {
            return false;
        }
        // `SPLIT` names no stream.
        let write = load(&storage.write);
        let is_own = |point: StreamPoint| point.has_stream_of(latest);
        match self.access {
            Access::Read => is_own(write) || write.to_bits() != SPLIT && stream.is_behind(write),
            Access::Write => {
                let first = load(&storage.reads[0]);
                is_own(write)
                    && (first == NONE || is_own(first) && load(&storage.reads[1]) == NONE)
                    && storage.more.get().is_none()
            }
        }
    }

    /// True if the storage has this point for the use already: [`Use::record`] would change nothing, and return false.
    #[inline]
    fn is_recorded_at(&self, point: StreamPoint) -> bool {
        let (storage, access) = (self.storage, self.access);
        let (write, first) = (&storage.write, &storage.reads[0]);
        // While the storage is split, neither is a stream's point.
        point != NONE
            && match access {
                Access::Read => load(first) == point,
                Access::Write => load(write) == point && load(first) == NONE && storage.more.get().is_none(),
            }
    }

    /// Like [`Use::order`], for a stream and the recording of the capture on it, if there is one.
    #[inline]
    pub(crate) fn order_on(
        self,
        stream: &Stream,
        recording: Option<&CaptureRecording>,
        operation: &'static str,
    ) -> Result<(), ArrayError> {
        not_forked()?;
        let storage = self.storage;
        let is_of_capture = storage.capture != 0 || recording.is_some();
        if (is_of_capture || recording::is_any_open()) && storage.is_recorded(recording, self, operation)? {
            return Ok(());
        }
        let write = storage.write.load(Ordering::Acquire);
        if storage.size_bytes == 0 || self.bytes.start == self.bytes.end {
            return Ok(());
        }
        // The borrow of the array keeps the host from using it at this moment. Threads that only read write nothing here. The host's next
        // read of unified memory must be detected, because it moves pages.
        let left = if self.access == Access::Read && storage.residency.is_none() {
            host_level(Access::Read)
        } else {
            0
        };
        if storage.host.load(Ordering::Relaxed) > left {
            storage.host.store(left, Ordering::Relaxed);
        }
        // Queuing refuses it too. The check here comes before the waits, which would become part of the capture.
        if self.access == Access::Write && stream.is_capturing()? {
            return Err(GraphError::StreamCaptures.into());
        }
        if write == SPLIT {
            return self.order_split(stream);
        }
        storage.wait(stream, StreamPoint::from_bits(write))?;
        match self.access {
            Access::Read => Ok(()),
            Access::Write => self.order_write(stream, StreamPoint::from_bits(write)),
        }
    }

    /// Records work that another library queues on `stream` until [`Use::end_foreign`]. Until then (or forever without that call), other
    /// streams wait for all work that is on the stream when they wait. False if the work becomes part of a graph, which then keeps the
    /// memory.
    ///
    /// Memory that spills stays until then, and reports name the holder. With `keeps_awake`, the pool does not sleep until then, or until the array is dropped.
    ///
    /// The stream has been ordered ([`Use::order_on`]).
    pub(crate) fn begin_foreign(
        self,
        stream: &Stream,
        recording: Option<&CaptureRecording>,
        (holder, keeps_awake): (KeptBy, bool),
    ) -> Result<bool, ArrayError> {
        let mut pinned = self.storage.pin(recording.is_none().then_some(stream), holder)?;
        let lent = || keeps_awake.then(|| stream.device().lend(self.memory()));
        let mut is_noted = false;
        let begun = stream.queue_work([self.memory()], |_| {
            if !runs(stream, recording)? {
                self.storage.memory.keep_for_graph(stream);
                return Ok(false);
            }
            self.storage.memory.record_use(stream);
            stream.note_write(0);
            let latest = stream.latest_point();
            // The count comes first: while it is not zero, the point stays.
            let mut more = self.storage.lock_more();
            match more.open.iter_mut().find(|open| open.latest == latest) {
                Some(open) => {
                    open.count += 1;
                    open.lent = open.lent.take().or_else(lent);
                }
                None => more.open.push(OpenUses { latest, count: 1, lent: lent(), _pinned: pinned.take() }),
            }
            drop(more);
            let _ = self.record(stream, latest);
            is_noted = self.storage.note_spillable(stream, self.access);
            Ok(true)
        })?;
        if is_noted {
            note_operation(stream, [self]);
        }
        begun
    }

    /// The other library has queued its work: later waits do not include what follows on the stream.
    pub(crate) fn end_foreign(self, stream: &Stream) {
        if fork::is_child() {
            return;
        }
        let (storage, latest, point) = (self.storage, stream.latest_point(), stream.point());
        // Dropped outside of the lock.
        let _ended;
        stream.note_write(0);
        storage.note_spillable(stream, self.access);
        let mut more = storage.lock_more();
        let Some(index) = more.open.iter().position(|open| open.latest == latest) else { return };
        more.open[index].count -= 1;
        if more.open[index].count > 0 {
            return;
        }
        _ended = more.open.swap_remove(index);
        let more = &mut *more;
        more.ranges.replace(latest, point);
        more.reads.iter_mut().filter(|read| **read == latest).for_each(|read| *read = point);
        let words = (latest.to_bits(), point.to_bits());
        for word in storage.reads.iter().chain([&storage.write]) {
            // The point differs if other uses followed.
            let _ = word.compare_exchange(words.0, words.1, Ordering::AcqRel, Ordering::Relaxed);
        }
        if self.access == Access::Write && stream.has_waiters() {
            mark(stream);
        }
    }

    /// Records that the work, which the stream has been ordered for, is complete: the host has waited for it.
    pub(crate) fn record_complete(self, stream: &Stream) {
        let _ = self.record(stream, StreamPoint::COMPLETE);
    }

    /// The bytes are borrowed exclusively, and the storage is not split, so no other thread uses the points.
    #[inline]
    fn order_write(self, stream: &Stream, write: StreamPoint) -> Result<(), ArrayError> {
        let (storage, latest) = (self.storage, stream.latest_point());
        let mut is_changed = !write.has_stream_of(latest);
        for read in storage.reads.iter().map(load).take_while(|read| *read != NONE) {
            if !read.has_stream_of(latest) {
                is_changed = true;
                storage.wait_for_read(stream, read)?;
            }
        }
        if let Some(more) = storage.more.get() {
            is_changed |= wait_for_further_reads(stream, more)?;
        }
        if is_changed && !self.is_whole() {
            storage.split();
            return self.order_split(stream);
        }
        Ok(())
    }

    /// Like [`Use::order`], for a storage with parts.
    #[cold]
    fn order_split(self, stream: &Stream) -> Result<(), ArrayError> {
        let (storage, region) = (self.storage, self.region());
        // Waits take locks of streams and call the driver, so they run outside the lock of the parts.
        let points = storage.lock_more().ranges.conflicts(&region, self.access);
        points.into_iter().try_for_each(|point| storage.wait(stream, point))?;
        if self.access == Access::Read {
            return Ok(());
        }
        // Threads may write other bytes of these parts. What they queue from now on stays in the list.
        let mut more = storage.lock_more();
        let ordered = stream.point();
        // The waits and the point may be part of a capture that has begun since. Then the earlier points remain.
        if stream.is_capturing()? {
            return Err(GraphError::StreamCaptures.into());
        }
        more.is_changed = more.ranges.begin_write(&region, ordered, |point| stream.is_behind(point));
        Ok(())
    }

    /// Stores the point of work that has been queued on `stream`. Returns true for a write of bytes that another stream used before: that
    /// stream is likely to wait for the write.
    #[inline]
    fn record(&self, stream: &Stream, point: StreamPoint) -> bool {
        let write = self.storage.write.load(Ordering::Acquire);
        if write == SPLIT {
            return self.record_split(stream, point);
        }
        // The stream was not ordered for such a use.
        if self.bytes.start == self.bytes.end {
            return false;
        }
        match self.access {
            Access::Read => self.storage.record_read(stream, point),
            Access::Write => self.storage.record_write(stream, StreamPoint::from_bits(write), point),
        }
    }

    #[cold]
    fn record_split(self, stream: &Stream, point: StreamPoint) -> bool {
        let (storage, region) = (self.storage, self.region());
        if region.bytes.is_empty() {
            return false;
        }
        storage.note_stream(stream);
        let device = storage.device();
        let mut more = storage.lock_more();
        more.ranges.add(&region, point, self.access);
        more.ranges.tidy(|point| device.is_point_complete(point));
        // A write of all bytes has them exclusively, so no part is used by another thread.
        if self.access == Access::Write
            && self.is_whole()
            && let Some(write) = more.ranges.only_write()
        {
            more.ranges = TrackedRanges::default();
            storage.write.store(write.to_bits(), Ordering::Release);
        }
        self.access == Access::Write && core::mem::take(&mut more.is_changed)
    }

    /// Moves the bytes to the device. A launch of a graph does that again, so nothing is captured.
    fn prefetch(self, gpu: &Gpu, residency: &Residency) {
        let (storage, device) = (self.storage, gpu.device());
        let Some(block) = storage.memory.block() else { return };
        if gpu.recording().is_some() || device != storage.device() {
            return;
        }
        if let Some(missing) = residency.add(self.range()) {
            // Without the prefetch, the kernel moves the pages; the launch reports a lost context.
            let _ = block.prefetch(missing, Location::Device(device), gpu.stream());
        }
    }

    /// True if this use covers all bytes, not only the first, the last, and some between: then no other use is concurrent with a write.
    fn is_whole(self) -> bool {
        self.bytes == ByteSpan::ALL
    }

    /// The last part has no end, so that it includes memory by which the block grows.
    fn region(self) -> Region {
        let ByteSpan { start, end, .. } = self.bytes;
        let end = if end >= self.storage.size_bytes && start < end { u64::MAX } else { end };
        Region { bytes: start..end, pattern: Pattern::of(self.bytes) }
    }
}

impl ArrayStorage {
    /// Makes the stream of `gpu` wait, on the device, for the uses of a block by other code. The host waits for uses on another library's
    /// stream that has no marker.
    pub(crate) fn order_block(block: &Block, gpu: &Gpu) -> Result<(), ArrayError> {
        for point in block.use_points() {
            if !gpu.stream().wait_for_point_outside_captures(point)? {
                gpu.device().synchronize()?;
            }
        }
        Ok(())
    }

    /// Takes a block that other code has used. The stream of `gpu` has been ordered ([`ArrayStorage::order_block`]).
    pub(crate) fn of_block(block: Block, gpu: &Gpu) -> Self {
        let stream = gpu.stream();
        block.record_use(stream);
        let memory = spillable_or_block(gpu, block, true);
        let storage = Self::over(memory, stream.point(), 0);
        storage.keep_foreign(stream);
        storage
    }

    /// Returns the block; without a block, an error and the storage.
    #[allow(clippy::result_large_err, reason = "the error contains the storage itself")]
    pub(crate) fn into_block(self, stream: &Stream) -> Result<Block, (ArrayError, Self)> {
        if self.capture != 0 {
            return Err((GraphError::ArrayOfCapture.into(), self));
        }
        match self.memory {
            StorageMemory::Block(block) => Ok(block),
            StorageMemory::Spillable(block) => match block.into_block(stream) {
                Ok(block) => Ok(block),
                Err((error, block)) => {
                    Err((error.into(), Self { memory: StorageMemory::Spillable(block), ..self }))
                }
            },
            _ => Err((ArrayError::NoBlock { memory: self.memory.name() }, self)),
        }
    }

    /// The block was allocated on the stream of `gpu`.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Graph`] if the stream captures, except for a `Gpu` of [`Gpu::capture`] and for no bytes.
    pub(crate) fn new(block: Block, gpu: &Gpu) -> Result<Self, ArrayError> {
        let stream = gpu.stream();
        // The memory of a capture belongs to its graph.
        let memory = match gpu.capture_id() {
            0 => spillable_or_block(gpu, block, false),
            _ => StorageMemory::Block(block),
        };
        let storage = Self::over(memory, stream.point(), gpu.capture_id());
        storage.keep_foreign(stream);
        // The point may be part of the capture, which other streams would join by waiting.
        if stream.is_capturing()? && gpu.recording().is_none() && storage.size_bytes() > 0 {
            return Err(GraphError::StreamCaptures.into());
        }
        Ok(storage)
    }

    /// A block that was allocated on a stream and written there, outside captures, before `point`.
    #[inline]
    pub(crate) fn written(block: Block, gpu: &Gpu, stream: &Stream, point: StreamPoint) -> Self {
        let storage = Self::over(spillable_or_block(gpu, block, true), point, 0);
        storage.keep_foreign(stream);
        storage
    }

    /// Memory that grows in place. It has no bytes, and no uses so far.
    pub(crate) fn of_growable(block: GrowableBlock) -> Self {
        Self::over(StorageMemory::Growable(Box::new(block)), NONE, 0)
    }

    /// True if the memory changes its size in place.
    pub(crate) fn is_growable(&self) -> bool {
        matches!(self.memory, StorageMemory::Growable(_))
    }

    /// Changes memory in place to at least `size_bytes`: grows it for work that is queued later, or shrinks it behind all uses so far.
    /// Other memory is not changed, and neither is any memory after an error.
    pub(crate) fn resize_in_place(&mut self, size_bytes: u64) -> Result<(), PoolError> {
        let StorageMemory::Growable(block) = &mut self.memory else { return Ok(()) };
        // The pool counts whole units against its limits. Beyond the maximum, the block returns an error.
        let rounded = size_bytes.next_multiple_of(GROWTH_UNIT).min(block.max_bytes()).max(size_bytes);
        if rounded < block.size_bytes() {
            // The block is smaller even after an error, which means a lost context; the next call returns it.
            let _ = block.shrink_to(rounded);
        } else {
            block.grow_to(rounded)?;
        }
        self.size_bytes = block.size_bytes();
        Ok(())
    }

    /// Host memory that devices access at `address`.
    ///
    /// # Safety
    ///
    /// The memory is borrowed, exclusively if devices write it, until the host has waited for all streams after the drop of this
    /// storage.
    #[allow(unsafe_code)] // has a contract
    pub(crate) unsafe fn of_host_memory(device: &Device, address: u64, size_bytes: u64) -> Self {
        Self::over(StorageMemory::Borrowed { device: device.clone(), address, size_bytes }, NONE, 0)
    }

    /// Memory of another library, which is dropped with `owner`, behind all uses, in the order of the stream `home`. Work on the stream of
    /// `gpu` may use the memory. It has an address, a size and a kind.
    ///
    /// # Safety
    ///
    /// The memory is alive until `owner` is dropped, and accessible to the device. Nothing else uses it in a conflicting way until then.
    #[cfg(any(feature = "cudarc", feature = "dlpack"))]
    #[allow(unsafe_code)] // has a contract
    pub(crate) unsafe fn of_foreign(
        gpu: &Gpu,
        home: &Stream,
        (address, size_bytes, kind): (u64, u64, MemoryKind),
        owner: foreign_memory::ForeignOwner,
    ) -> Self {
        let (device, stream) = (gpu.device().clone(), gpu.stream());
        let place = (address, size_bytes, kind);
        let foreign = foreign_memory::ForeignMemory::new(device, home.clone(), place, owner);
        let storage = Self::over(StorageMemory::Foreign(Box::new(foreign)), stream.point(), 0);
        storage.note_stream(stream);
        storage
    }

    /// The owner of memory of another library, whose stream waits for all uses. An error and the storage if the owner is of another type.
    #[cfg(feature = "cudarc")]
    #[allow(clippy::result_large_err, reason = "the error contains the storage itself")]
    pub(crate) fn into_foreign<O: 'static>(self) -> Result<O, (ArrayError, Self)> {
        if self.capture != 0 {
            return Err((GraphError::ArrayOfCapture.into(), self));
        }
        match self.memory {
            StorageMemory::Foreign(foreign) => match foreign.into_owner() {
                Ok(owner) => Ok(owner),
                Err((error, foreign)) => {
                    Err((error, Self { memory: StorageMemory::Foreign(foreign), ..self }))
                }
            },
            memory => Err((ArrayError::NoCudaSlice { memory: memory.name() }, Self { memory, ..self })),
        }
    }

    fn over(memory: StorageMemory, point: StreamPoint, capture: u64) -> Self {
        let (write, reads) = (AtomicU64::new(point.to_bits()), Default::default());
        let kind = memory.kind();
        let (host, identity, more) = (AtomicU8::new(0), OnceLock::new(), OnceLock::new());
        let moves = kind == MemoryKind::Unified && memory.host_ptr().is_some();
        let residency = moves.then(Box::default);
        let (planned, size_bytes) = (memory.planned(), memory.size_bytes());
        Self { memory, planned, size_bytes, kind, write, reads, host, capture, identity, more, residency }
    }

    /// The address at which work is planned. It has the alignment of the real one, and no other array of the process has it.
    #[inline]
    pub(crate) fn planned(&self) -> u64 {
        self.planned
    }

    /// The address at this moment. It stays while the memory is pinned, and inside a call on a stream that has found the memory ready; 0 for
    /// memory without an address.
    #[inline]
    fn current(&self) -> u64 {
        match self.memory.spillable() {
            None => self.planned,
            Some(block) => block.address(),
        }
    }

    /// True if work may be queued with another address than planned.
    #[inline]
    pub(crate) fn is_spillable(&self) -> bool {
        self.memory.spillable().is_some()
    }

    /// Keeps the memory at its address until the result is dropped, and makes the stream wait for its contents.
    pub(crate) fn pin(
        &self,
        stream: Option<&Stream>,
        holder: KeptBy,
    ) -> Result<Option<SpillPin>, ArrayError> {
        Ok(self.memory.spillable().map(|block| block.pin(stream, holder)).transpose()?)
    }

    /// The address, which the memory keeps from now on; 0 if there is no memory, or not enough for its return. The stream of `gpu` waits for
    /// the contents.
    pub(crate) fn fixed_address(&self, gpu: &Gpu) -> u64 {
        // A captured wait would become part of each launch.
        match self.pin(gpu.recording().is_none().then(|| gpu.stream()), KeptBy::Address) {
            Ok(pinned) => {
                pinned.into_iter().for_each(SpillPin::for_good);
                self.current()
            }
            Err(_) => 0,
        }
    }

    /// Calls `read` with a part of the bytes at a time if they are in host memory alone, because the pool spills. False if the rest has to be
    /// read from the device.
    pub(crate) fn read_away(&self, range: Range<u64>, read: impl FnMut(&[u8])) -> Result<bool, ArrayError> {
        match self.memory.spillable() {
            Some(block) => Ok(block.read_away(range, read)?),
            None => Ok(false),
        }
    }

    /// The address of memory that is pinned, or does not spill.
    pub(crate) fn pinned_address(&self) -> u64 {
        self.current()
    }

    /// True, in a call on `stream`, if work may use the memory at [`ArrayStorage::current`].
    #[inline]
    fn is_ready(&self, stream: &Stream, access: Access, is_captured: bool) -> bool {
        match self.memory.spillable() {
            None => true,
            Some(block) if is_captured => block.is_open(),
            Some(block) => block.is_ready(stream, access == Access::Write),
        }
    }

    /// Notes work that was queued in the current call, with the memory if it spills. True if operations are recorded.
    #[inline]
    fn note_spillable(&self, stream: &Stream, access: Access) -> bool {
        let Some(block) = self.memory.spillable() else { return false };
        block.note_use(stream, access == Access::Write);
        block.is_recorded()
    }

    #[inline]
    pub(crate) fn device(&self) -> &Device {
        self.memory.device()
    }

    /// True if it is memory of this device, which the host cannot access.
    pub(crate) fn is_memory_of(&self, device: &Device) -> bool {
        self.kind == MemoryKind::Device && self.device() == device
    }

    /// Gives the device of `gpu` access to the memory. Every operation does so first.
    #[inline]
    pub(crate) fn share(&self, gpu: &Gpu, operation: &'static str) -> Result<(), ArrayError> {
        if self.device() == gpu.device() { Ok(()) } else { self.share_with_peer(gpu, operation) }
    }

    #[cold]
    fn share_with_peer(&self, gpu: &Gpu, operation: &'static str) -> Result<(), ArrayError> {
        let device = gpu.device();
        if !device.driver().is_same_machine(self.device().driver()) {
            return gpu.check(self.device());
        }
        if self.is_growable() {
            return Err(no_peer_access(operation, gpu, self, "memory that grows in place has one device"));
        }
        // An address of borrowed host memory is valid on one device.
        let enabled = match &self.memory {
            StorageMemory::Block(block) => block.enable_peer_access(device),
            StorageMemory::Spillable(block) => block.enable_peer_access(device),
            _ => return gpu.check(self.device()),
        };
        enabled.map_err(|error| match error {
            PoolError::Unsupported(Unsupported::PeerAccess { .. }) => {
                no_peer_access(operation, gpu, self, "no link connects the two")
            }
            PoolError::Device(DeviceError::Driver(error)) => {
                no_peer_access(operation, gpu, self, &error.to_string())
            }
            error => error.into(),
        })
    }

    #[inline]
    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// True if the memory is unified, and is moved to the device before kernels use it.
    #[inline]
    pub(crate) fn is_prefetched(&self) -> bool {
        self.residency.is_some()
    }

    /// True if a download through the stream of `gpu` would wait for work that it does not depend on.
    pub(crate) fn is_overtaken(&self, gpu: &Gpu) -> bool {
        let stream = gpu.stream();
        let write = load(&self.write);
        // With parts, another part may have been written last.
        let is_latest = stream.wrote_last(self.planned()) && write.to_bits() != SPLIT;
        if is_latest || stream.is_complete().unwrap_or(true) {
            return false;
        }
        // Without a marker since the last write, a marker now would come after the later work. Next time the write gets one.
        if write == stream.point() {
            gpu.downloads().note_late(self.size_bytes());
        }
        true
    }

    /// The address for the host, if the host can access the memory while the device works.
    pub(crate) fn host_ptr(&self) -> Option<NonNull<u8>> {
        self.memory.host_ptr()
    }

    /// True if the host has waited for all uses that `access` conflicts with, and none has been queued since. Then the memory has a
    /// [`ArrayStorage::host_ptr`] for its address, which host and device share.
    #[inline]
    pub(crate) fn is_ready_for_host(&self, access: Access) -> bool {
        self.host.load(Ordering::Acquire) >= host_level(access) && !fork::is_child()
    }

    /// The host has waited ([`ArrayStorage::wait_on_host`]). Nothing happens for memory that it cannot access.
    pub(crate) fn set_ready_for_host(&self, access: Access) {
        if self.host_ptr().is_none() {
            return;
        }
        if let Some(residency) = &self.residency {
            residency.clear();
        }
        self.host.fetch_max(host_level(access), Ordering::Release);
    }

    /// Waits on the host for the uses that `access` conflicts with. The array is borrowed, shared for reading, exclusively for
    /// writing.
    pub(crate) fn wait_on_host(&self, access: Access) -> Result<(), ArrayError> {
        not_forked()?;
        if self.capture != 0 {
            return Err(GraphError::ArrayOfCapture.into());
        }
        recording::check_thread(0, "access by the host")?;
        let write = self.write.load(Ordering::Acquire);
        if write == SPLIT {
            let points = self.lock_more().ranges.points(access);
            return Ok(points.into_iter().try_for_each(|point| self.finish(point))?);
        }
        self.finish(StreamPoint::from_bits(write))?;
        if access == Access::Write {
            let inline = self.reads.iter().map(load).take_while(|read| *read != NONE);
            let more = self.more.get().map(|more| lock(more).reads.clone()).unwrap_or_default();
            inline.chain(more).try_for_each(|read| self.finish(read))?;
        }
        Ok(())
    }

    /// Handles the use if it is part of a capture. False for other uses, which are ordered as usual.
    #[cold]
    fn is_recorded(
        &self,
        recording: Option<&CaptureRecording>,
        one: Use<'_>,
        operation: &'static str,
    ) -> Result<bool, ArrayError> {
        recording::check_thread(recording.map_or(0, CaptureRecording::id), operation)?;
        let Some(recording) = recording else {
            return if self.capture == 0 { Ok(false) } else { Err(GraphError::ArrayOfCapture.into()) };
        };
        match self.capture {
            0 if self.size_bytes == 0 || one.bytes.start == one.bytes.end => recording.check()?,
            0 => recording.note(self.recorded(one))?,
            // Only the capture's stream uses it.
            capture if capture == recording.id() => recording.check()?,
            _ => return Err(GraphError::ArrayOfCapture.into()),
        }
        Ok(true)
    }

    fn recorded(&self, one: Use<'_>) -> RecordedUse {
        let (Identity { serial, view }, address) = (self.identity(), self.current());
        let view = view.lock().unwrap_or_else(PoisonError::into_inner).clone();
        RecordedUse {
            serial: *serial,
            address,
            range: one.range(),
            gaps: one.bytes.gaps,
            access: one.access,
            view,
        }
    }

    pub(crate) fn serial(&self) -> u64 {
        self.identity().serial
    }

    /// Notes the view whose use comes next, for the errors of a graph that may be captured.
    #[inline]
    pub(crate) fn note_for_captures<T>(&self, shape: &[usize]) {
        if recording::is_any_open() {
            self.note_view(core::any::type_name::<T>(), shape);
        }
    }

    #[cold]
    fn note_view(&self, element: &'static str, shape: &[usize]) {
        let view = ViewName { element, shape: shape.to_vec() };
        *self.identity().view.lock().unwrap_or_else(PoisonError::into_inner) = view;
    }

    fn identity(&self) -> &Identity {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        self.identity.get_or_init(|| {
            let (serial, view) = (NEXT.fetch_add(1, Ordering::Relaxed), Mutex::default());
            Box::new(Identity { serial, view })
        })
    }

    pub(crate) fn kind(&self) -> MemoryKind {
        self.memory.kind()
    }

    /// The capture that the array was made in, or 0.
    pub(crate) fn capture_id(&self) -> u64 {
        self.capture
    }

    /// Makes an array of a capture the result of its graph, which launches write. It has no uses before the first launch. Launches wait
    /// until its memory is allocated.
    pub(crate) fn into_result(self) -> Self {
        Self { write: AtomicU64::new(NONE.to_bits()), capture: 0, ..self }
    }

    /// Makes a number of a capture a number of its graph. Its memory is outside the graph, and its uses so far remain.
    pub(crate) fn into_number(self) -> Self {
        Self { capture: 0, ..self }
    }

    /// Makes an unused array part of a capture.
    pub(crate) fn into_capture(self, capture: u64) -> Self {
        Self { capture, ..self }
    }

    fn finish(&self, point: StreamPoint) -> Result<(), DeviceError> {
        if self.device().synchronize_point(point)? {
            return Ok(());
        }
        let foreign = self.more.get().map(|more| lock(more).foreign.clone()).unwrap_or_default();
        match foreign.iter().find(|foreign| foreign.latest_point().has_stream_of(point)) {
            Some(foreign) => foreign.synchronize(),
            None => self.device().synchronize_for_drop(),
        }
    }

    #[inline]
    fn wait(&self, stream: &Stream, point: StreamPoint) -> Result<(), DeviceError> {
        if stream.wait_for_point_outside_captures(point)? { Ok(()) } else { self.wait_by_name(stream, point) }
    }

    #[cold]
    fn wait_for_read(&self, stream: &Stream, point: StreamPoint) -> Result<(), DeviceError> {
        self.wait(stream, point)
    }

    #[cold]
    fn wait_by_name(&self, stream: &Stream, point: StreamPoint) -> Result<(), DeviceError> {
        let foreign = self.more.get().map(|more| lock(more).foreign.clone()).unwrap_or_default();
        wait_or_finish(stream, point, &foreign)
    }

    /// Lets parts be used separately from now on. All bytes are borrowed exclusively, or the storage is split already.
    #[cold]
    pub(crate) fn split(&self) {
        let write = self.write.load(Ordering::Acquire);
        if write == SPLIT {
            return;
        }
        let mut more = self.lock_more();
        let reads = self.reads.iter().map(load).take_while(|read| *read != NONE);
        let further = core::mem::take(&mut more.reads);
        more.ranges = TrackedRanges::new(StreamPoint::from_bits(write), reads.chain(further));
        self.reads.iter().for_each(|read| read.store(NONE.to_bits(), Ordering::Relaxed));
        self.write.store(SPLIT, Ordering::Release);
    }

    /// The array is borrowed exclusively, so no other thread uses the points.
    #[inline]
    fn record_write(&self, stream: &Stream, write: StreamPoint, point: StreamPoint) -> bool {
        let latest = stream.latest_point();
        // Complete work belongs to no stream. Its point has the index of the first stream, which may not have used the memory.
        let mut is_changed = write != NONE && !write.has_stream_of(latest);
        if is_changed || write == NONE {
            self.note_stream(stream);
        }
        for read in &self.reads {
            let found = load(read);
            if found == NONE {
                break;
            }
            is_changed |= !found.has_stream_of(latest);
            read.store(NONE.to_bits(), Ordering::Relaxed);
        }
        if let Some(more) = self.more.get() {
            clear_further_reads(more);
        }
        self.write.store(point.to_bits(), Ordering::Release);
        is_changed
    }

    #[inline]
    fn record_read(&self, stream: &Stream, point: StreamPoint) -> bool {
        // A stream that only reads finds its point here, and writes nothing that other threads read.
        for read in &self.reads {
            let mut found = load(read);
            if found == NONE {
                let empty = (NONE.to_bits(), point.to_bits());
                match read.compare_exchange(empty.0, empty.1, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => {
                        self.note_stream(stream);
                        return false;
                    }
                    Err(other) => found = StreamPoint::from_bits(other),
                }
            }
            if found.has_stream_of(point) {
                // Points of one stream are in the order of their words.
                if found != point {
                    read.fetch_max(point.to_bits(), Ordering::AcqRel);
                }
                return false;
            }
        }
        self.record_read_slow(stream, point);
        false
    }

    #[cold]
    fn record_read_slow(&self, stream: &Stream, point: StreamPoint) {
        let mut more = self.lock_more();
        let device = self.device();
        more.reads.retain(|read| !read.has_stream_of(point) && !device.is_point_complete(*read));
        more.reads.push(point);
        drop(more);
        self.note_stream(stream);
    }

    /// Makes the end of the memory wait for a stream, which may have used it for the first time.
    fn note_stream(&self, stream: &Stream) {
        self.memory.record_use(stream);
        self.keep_foreign(stream);
    }

    fn keep_foreign(&self, stream: &Stream) {
        if stream.is_foreign() {
            let mut more = self.lock_more();
            if !more.foreign.contains(stream) {
                more.foreign.push(stream.clone());
            }
        }
    }

    #[cold]
    fn lock_more(&self) -> MutexGuard<'_, More> {
        lock(self.more.get_or_init(Box::default))
    }
}

/// The memory of a new array on `gpu`: spillable if the pool spills. `is_written`: the block has contents.
fn spillable_or_block(gpu: &Gpu, block: Block, is_written: bool) -> StorageMemory {
    match SpillableBlock::new(gpu.pool(), block, is_written) {
        Ok(block) => StorageMemory::Spillable(block),
        Err(block) => StorageMemory::Block(block),
    }
}

/// The error of an operation that needs access to the memory of another device.
pub(crate) fn no_peer_access(
    operation: &'static str,
    gpu: &Gpu,
    storage: &ArrayStorage,
    reason: &str,
) -> ArrayError {
    let (device, owner) = (gpu.device().to_string(), storage.device().to_string());
    ArrayError::NoPeerAccess { operation, device, owner, reason: reason.into() }
}

#[inline]
fn host_level(access: Access) -> u8 {
    match access {
        Access::Read => 1,
        Access::Write => 2,
    }
}

/// Waits for a point by the name of its stream. If the stream is gone without a marker, the host waits for the device.
#[cold]
fn wait_or_finish(stream: &Stream, point: StreamPoint, foreign: &[Stream]) -> Result<(), DeviceError> {
    if stream.wait_for_point_outside_captures(point)? {
        return Ok(());
    }
    match foreign.iter().find(|foreign| foreign.latest_point().has_stream_of(point)) {
        Some(foreign) => stream.wait_for(foreign),
        None => stream.device().synchronize_for_drop(),
    }
}

/// True if there are any.
#[cold]
fn wait_for_further_reads(stream: &Stream, more: &Mutex<More>) -> Result<bool, DeviceError> {
    // Waits take locks of streams and call the driver, so they run outside this lock.
    let (reads, foreign) = {
        let more = lock(more);
        (more.reads.clone(), more.foreign.clone())
    };
    reads.iter().try_for_each(|read| wait_or_finish(stream, *read, &foreign))?;
    Ok(!reads.is_empty())
}

#[cold]
fn clear_further_reads(more: &Mutex<More>) {
    lock(more).reads.clear();
}

fn lock(more: &Mutex<More>) -> MutexGuard<'_, More> {
    more.lock().unwrap_or_else(PoisonError::into_inner)
}

#[inline]
fn load(point: &AtomicU64) -> StreamPoint {
    StreamPoint::from_bits(point.load(Ordering::Acquire))
}

/// The unit of memory that grows in place.
const GROWTH_UNIT: u64 = 2 << 20;
/// No work.
const NONE: StreamPoint = StreamPoint::COMPLETE;
/// In [`ArrayStorage::write`]: the storage is split. No stream has that many markers, so no point has this word.
const SPLIT: u64 = u64::MAX;
/// Together with the write, they fill a cache line.
const INLINE_READS: usize = 7;

/// Makes the stream of `gpu` wait for the uses that these conflict with ([`Use::order`]). The caller has read [`Gpu::is_plain`].
#[inline(always)]
pub(crate) fn order_all(
    gpu: &Gpu,
    uses: &[Use<'_>],
    is_plain: bool,
    operation: &'static str,
) -> Result<(), ArrayError> {
    let stream = gpu.stream();
    let latest = stream.latest_point();
    for one in uses {
        if !is_plain || !one.is_ordered(stream, latest) {
            order_slow(gpu, one, operation)?;
        }
    }
    Ok(())
}

#[cold]
fn order_slow(gpu: &Gpu, one: &Use<'_>, operation: &'static str) -> Result<(), ArrayError> {
    one.order(gpu, operation)
}

/// Like [`queue_copy`], for kernels and fills: unified memory is moved to the device first.
#[inline]
pub(crate) fn queue(
    gpu: &Gpu,
    touched: impl IntoIterator<Item: Touch> + Clone,
    work: impl FnOnce(CUstream, Placed) -> Result<(), DriverError>,
) -> Result<(), ArrayError> {
    prefetch(gpu, touched.clone());
    queue_copy(gpu, touched, work)
}

/// Moves the unified memory of uses to the device, in the order of the stream, unless it is there. Call it after [`Use::order`].
#[inline]
pub(crate) fn prefetch(gpu: &Gpu, touched: impl IntoIterator<Item: Touch>) {
    for one in touched {
        if let Some(one) = one.tracked()
            && let Some(residency) = &one.storage.residency
        {
            one.prefetch(gpu, residency);
        }
    }
}

/// Calls `work`, which queues work on the stream of `gpu`, and records the uses. The work touches only the memory of `touched`, and the
/// stream has been ordered for it ([`Use::order`]). If `gpu` captures, the graph keeps the memory of the arrays instead. `work` only
/// calls the driver.
#[inline]
pub(crate) fn queue_copy(
    gpu: &Gpu,
    touched: impl IntoIterator<Item: Touch> + Clone,
    work: impl FnOnce(CUstream, Placed) -> Result<(), DriverError>,
) -> Result<(), ArrayError> {
    queue_launch(gpu, touched, |raw, placed| work(raw, placed).map_err(PoolError::from))
}

/// Like [`queue_copy`], for work that calls the pool.
#[inline]
pub(crate) fn queue_launch(
    gpu: &Gpu,
    touched: impl IntoIterator<Item: Touch> + Clone,
    work: impl FnOnce(CUstream, Placed) -> Result<(), PoolError>,
) -> Result<(), ArrayError> {
    queue_inlined(gpu, touched, work)
}

/// Like [`queue_launch`], inlined into its caller: a launch is so short that calling a closure would be measurable.
#[inline(always)]
pub(crate) fn queue_inlined(
    gpu: &Gpu,
    touched: impl IntoIterator<Item: Touch> + Clone,
    work: impl FnOnce(CUstream, Placed) -> Result<(), PoolError>,
) -> Result<(), ArrayError> {
    let stream = gpu.stream();
    let _bound = stream.device().bind()?;
    let is_spillable = |one: &Use<'_>| one.storage.is_spillable();
    let spills = touched.clone().into_iter().any(|one| one.tracked().is_some_and(is_spillable));
    let (mut work, mut queued) = (Some(work), QueuedWork::default());
    let is_queued = try_queue(gpu, touched.clone(), &mut work, &mut queued, spills, spills)?;
    if !is_queued {
        let again = || try_queue(gpu, touched.clone(), &mut work, &mut queued, spills, false);
        with_settled(gpu, touched.clone(), again)?;
    }
    if queued.has_written && (queued.is_awaited || stream.has_waiters()) {
        mark(stream);
    }
    if queued.is_noted {
        note_operation(stream, touched);
    }
    match queued.failed {
        None => Ok(()),
        Some(error) => Err(gpu.with_kernel_name(error)),
    }
}

/// The outcome of queueing work.
#[derive(Default)]
struct QueuedWork {
    has_written: bool,
    /// True if others are likely to wait for it.
    is_awaited: bool,
    /// True if it is recorded for the plan of what moves.
    is_noted: bool,
    failed: Option<ArrayError>,
}

/// Queues work in a call on the stream of `gpu`. False, without any work, if `needs_check` and memory that spills is not ready.
#[inline(always)]
fn try_queue(
    gpu: &Gpu,
    touched: impl IntoIterator<Item: Touch> + Clone,
    work: &mut Option<impl FnOnce(CUstream, Placed) -> Result<(), PoolError>>,
    queued: &mut QueuedWork,
    spills: bool,
    needs_check: bool,
) -> Result<bool, DeviceError> {
    let stream = gpu.stream();
    let memory = touched.clone().into_iter().map(|one| one.memory());
    stream.queue_work(memory, |raw| {
        if needs_check && !are_ready(gpu, touched.clone()) {
            return false;
        }
        let Some(work) = work.take() else { return true };
        // Checked inside the call: before it, another thread could still begin or end a capture.
        match runs(stream, gpu.recording()) {
            Ok(true) => {}
            Ok(false) => {
                // The graph keeps the memory, even if no wait was needed.
                for one in touched {
                    if let Some(one) = one.tracked() {
                        one.storage.memory.keep_for_graph(stream);
                    }
                }
                if let Err(error) = work(raw, Placed(())) {
                    fail(&mut queued.failed, error.into());
                }
                return true;
            }
            Err(error) => {
                fail(&mut queued.failed, error);
                return true;
            }
        }
        if let Err(error) = work(raw, Placed(())) {
            fail(&mut queued.failed, error.into());
        }
        // Even after an error: part of the work may have been queued.
        let point = stream.point();
        for one in touched {
            let Some(one) = one.tracked() else { continue };
            if !one.is_recorded_at(point) {
                queued.is_awaited |= one.record(stream, point);
            }
            if spills {
                queued.is_noted |= one.storage.note_spillable(stream, one.access);
            }
            if one.access == Access::Read {
                queued.is_awaited |= one.storage.kind == MemoryKind::Host;
            } else {
                queued.has_written = true;
                queued.is_awaited |= gpu.downloads().are_late(one.storage.size_bytes());
                stream.note_write(one.storage.planned());
            }
        }
        if !queued.has_written {
            stream.note_write(0);
        }
        true
    })
}

/// True, in a call on the stream of `gpu`, if all memory has an address. Memory that spills may have none.
#[inline(always)]
fn are_ready(gpu: &Gpu, touched: impl IntoIterator<Item: Touch>) -> bool {
    touched.into_iter().all(|one| {
        one.tracked()
            .is_none_or(|one| one.storage.is_ready(gpu.stream(), one.access, gpu.recording().is_some()))
    })
}

/// Brings the contents of all memory back that was moved to the host, and calls `queue` before anything moves again.
#[cold]
fn with_settled<T: Touch>(
    gpu: &Gpu,
    touched: impl IntoIterator<Item = T>,
    queue: impl FnOnce() -> Result<bool, DeviceError>,
) -> Result<(), ArrayError> {
    let touched: Vec<_> = touched.into_iter().collect();
    let uses = touched.iter().filter_map(Touch::tracked);
    let blocks = uses.filter_map(|one| Some((one.storage.memory.spillable()?, one.access == Access::Write)));
    // A captured wait would become part of each launch; launches wait for themselves.
    let _settled = SpillableBlock::settle(blocks, gpu.recording().is_none().then(|| gpu.stream()))?;
    queue()?;
    Ok(())
}

/// Records an operation for the plan of what moves to the host.
#[cold]
fn note_operation<T: Touch>(stream: &Stream, touched: impl IntoIterator<Item = T>) {
    let touched: Vec<_> = touched.into_iter().collect();
    let uses = touched.iter().filter_map(Touch::tracked);
    let uses = uses.filter_map(|one| Some((one.storage.memory.spillable()?, one.access == Access::Write)));
    SpillableBlock::note_operation(stream, uses);
}

/// Queues a copy by the driver between host memory and the memory that `one` touches, and waits for it. The stream has been ordered
/// for it ([`Use::order`]).
pub(crate) fn run_borrowed(
    gpu: &Gpu,
    one: Use<'_>,
    operation: &'static str,
    queue: impl FnOnce(CUstream, Placed) -> Result<(), DriverError>,
) -> Result<(), ArrayError> {
    let (stream, storage) = (gpu.stream(), one.storage);
    let _bound = gpu.device().bind()?;
    // The copy ends in this call, so memory that spills can be held for it.
    let _pinned = storage.pin(Some(stream), KeptBy::HostCopy)?;
    let queued = stream.run_borrowed(operation, [one.memory()], |raw| {
        let queued = queue(raw, Placed(()));
        storage.note_spillable(stream, one.access);
        queued
    });
    Ok(queued.map_err(|error| gpu.with_kernel_name(error.into()))?.map_err(PoolError::from)?)
}

#[cold]
fn fail(failed: &mut Option<ArrayError>, error: ArrayError) {
    *failed = Some(error);
}

/// True if work queued now runs, instead of becoming part of the graph of `recording`.
#[inline]
fn runs(stream: &Stream, recording: Option<&CaptureRecording>) -> Result<bool, ArrayError> {
    match (stream.is_capturing()?, recording) {
        (false, None) => Ok(true),
        (true, None) => Err(GraphError::StreamCaptures.into()),
        (false, Some(_)) => Err(GraphError::CaptureEnded.into()),
        (true, Some(recording)) => {
            recording.check()?;
            Ok(false)
        }
    }
}

/// The next driver call reports a failure, and waiters record their own marker.
#[cold]
pub(crate) fn mark(stream: &Stream) {
    let _ = stream.mark();
}

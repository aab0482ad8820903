//! [`Storage`]: the memory of one array, and the order of its uses.
//!
//! A storage records the point of the last write in its stream, and the points of the reads since, one for each stream
//! ([`StreamPoint`]). Before another stream uses the memory, it waits on the device: a reader for the write, a writer for the write
//! and all reads; readers never wait for each other. A use by a stream that is ordered already is a few loads, without a lock and
//! without a driver call.
//!
//! A wait for a point uses a marker in the point's stream, and includes what was queued before that marker. A program with one
//! stream needs no marker, so markers are recorded when another stream needs one. Some writes get theirs at once, because
//! another stream is likely to wait for them while later work is queued: copies from pinned memory, writes on a stream that other
//! streams have waited for, and writes to memory that another stream has just used.
//!
//! Another thread may begin a capture between the waits and the work. So [`queue`] queues the work in a call during which no
//! capture of the stream begins or ends. There it checks whether the work becomes part of a graph, which then keeps the memory. In
//! the same call it stores the points, which exist only once the work is queued. Until then, a write counts as the stream's latest
//! work ([`Stream::latest_point`]), which is sufficient, but may make other streams wait for more.

use crate::error::{ArrayError, GraphError};
use crate::gpu::Gpu;
pub(crate) use crate::gpu::recording::Access;
use crate::gpu::recording::{self, RecordedUse};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use gpumem_pool::sys::DriverError;
use gpumem_pool::sys::types::CUstream;
use gpumem_pool::{Block, Device, MemoryKind, PoolError, Stream, StreamPoint};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// A block and its uses so far.
pub(crate) struct Storage {
    block: Block,
    /// Whether the block is host memory, from which copies take long.
    is_host: bool,
    /// The point of the last write. At first that of the allocation: in its stream's order the memory exists.
    write: AtomicU64,
    /// The points of reads since, one for each stream, without a gap; 0 is none. Only a write clears them.
    reads: [AtomicU64; INLINE_READS],
    /// Whether another stream used the memory before the last write: it is likely to use it again, and to wait for the write.
    changes_streams: AtomicBool,
    /// The host accesses that need no wait: 0 none, 1 reads, 2 reads and writes. Always 0 for device memory.
    host: AtomicU8,
    /// The capture that the array was made in, or 0. Such an array has no values outside of the capture.
    capture: u64,
    /// Identifies the storage in recordings; 0 until a capture uses it.
    serial: AtomicU64,
    more: OnceLock<Box<Mutex<More>>>,
}

/// The points and streams beyond those that fit inline; few arrays have any.
#[derive(Default)]
struct More {
    /// The points of reads since the last write by further streams.
    reads: Vec<StreamPoint>,
    /// Streams of other libraries that have used the memory: they can only be waited for by name.
    foreign: Vec<Stream>,
}

impl Storage {
    /// The block was allocated on the stream of `gpu`.
    pub(crate) fn new(block: Block, gpu: &Gpu) -> Self {
        let allocated = gpu.stream().latest_point();
        let (write, reads) = (AtomicU64::new(allocated.to_bits()), Default::default());
        let is_host = block.kind() == MemoryKind::Host;
        let (host, serial, more) = (AtomicU8::new(0), AtomicU64::new(0), OnceLock::new());
        let capture = gpu.capture_id();
        let changes_streams = AtomicBool::new(false);
        let storage = Self { block, is_host, write, reads, changes_streams, host, capture, serial, more };
        storage.keep_foreign(gpu.stream());
        storage
    }

    pub(crate) fn address(&self) -> u64 {
        self.block.address()
    }

    pub(crate) fn device(&self) -> &Device {
        self.block.device()
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
        self.block.enable_peer_access(device).map_err(|error| match error {
            PoolError::NoPeerAccess { .. } => {
                no_peer_access(operation, gpu, self, "no link connects the two")
            }
            PoolError::Driver(error) => no_peer_access(operation, gpu, self, &error.to_string()),
            error => error.into(),
        })
    }

    /// Makes the stream of `gpu` wait for the uses that `access` conflicts with. Call it before the work is queued ([`queue`]),
    /// while the array is borrowed: shared for reading, exclusively for writing.
    #[inline]
    pub(crate) fn order(&self, gpu: &Gpu, access: Access) -> Result<(), ArrayError> {
        if ((self.capture | gpu.capture_id()) != 0 || recording::is_any_open())
            && self.is_recorded(gpu, access)?
        {
            return Ok(());
        }
        let (stream, write) = (gpu.stream(), load(&self.write));
        if self.block.size_bytes() == 0 {
            return Ok(());
        }
        // The borrow of the array keeps the host from using it at this moment. Threads that only read write nothing here.
        let left = if access == Access::Read { host_level(Access::Read) } else { 0 };
        if self.host.load(Ordering::Relaxed) > left {
            self.host.store(left, Ordering::Relaxed);
        }
        // A write that is not queued would leave a point in the capture, and streams that wait for it would join.
        if access == Access::Write && stream.is_capturing()? {
            return Err(GraphError::StreamCaptures.into());
        }
        self.wait(stream, write)?;
        if access == Access::Write {
            self.order_write(stream, write)?;
        }
        Ok(())
    }

    /// The address for the host, if the host can access the memory while the device works.
    pub(crate) fn host_ptr(&self) -> Option<NonNull<u8>> {
        self.block.host_ptr()
    }

    /// Whether the host has waited for all uses that `access` conflicts with, and none has been queued since.
    #[inline]
    pub(crate) fn is_ready_for_host(&self, access: Access) -> bool {
        self.host.load(Ordering::Acquire) >= host_level(access)
    }

    /// The host has waited ([`Storage::wait_on_host`]).
    pub(crate) fn set_ready_for_host(&self, access: Access) {
        self.host.fetch_max(host_level(access), Ordering::Release);
    }

    /// Waits on the host for the uses that `access` conflicts with. The array is borrowed, shared for reading, exclusively for
    /// writing.
    pub(crate) fn wait_on_host(&self, access: Access) -> Result<(), ArrayError> {
        if self.capture != 0 {
            return Err(GraphError::ArrayOfCapture.into());
        }
        recording::check_thread(0)?;
        self.finish(load(&self.write))?;
        if access == Access::Write {
            let inline = self.reads.iter().map(load).take_while(|read| *read != NONE);
            let more = self.more.get().map(|more| lock(more).reads.clone()).unwrap_or_default();
            inline.chain(more).try_for_each(|read| self.finish(read))?;
        }
        Ok(())
    }

    /// Handles the use if it is part of a capture. False if it is not, and is ordered as usual.
    #[cold]
    fn is_recorded(&self, gpu: &Gpu, access: Access) -> Result<bool, ArrayError> {
        recording::check_thread(gpu.capture_id())?;
        let Some(recording) = gpu.recording() else {
            return if self.capture == 0 { Ok(false) } else { Err(GraphError::ArrayOfCapture.into()) };
        };
        match self.capture {
            0 if self.block.size_bytes() == 0 => recording.check()?,
            0 => recording.note(self.whole(access))?,
            // Only the capture's stream uses it.
            capture if capture == recording.id() => recording.check()?,
            _ => return Err(GraphError::ArrayOfCapture.into()),
        }
        Ok(true)
    }

    /// A use of all bytes.
    fn whole(&self, access: Access) -> RecordedUse {
        let (address, range) = (self.block.address(), 0..self.block.size_bytes());
        RecordedUse { serial: self.serial(), address, range, access }
    }

    /// The number that identifies the storage, assigned at the first call.
    pub(crate) fn serial(&self) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        match self.serial.load(Ordering::Relaxed) {
            0 => {
                let serial = NEXT.fetch_add(1, Ordering::Relaxed);
                let first = self.serial.compare_exchange(0, serial, Ordering::Relaxed, Ordering::Relaxed);
                first.map_or_else(|other| other, |_| serial)
            }
            serial => serial,
        }
    }

    /// The capture that the array was made in, or 0.
    pub(crate) fn capture_id(&self) -> u64 {
        self.capture
    }

    /// Makes an array of a capture the result of its graph, which launches write. Before the first launch nothing has used it; that its
    /// memory exists is what launches wait for.
    pub(crate) fn into_result(self) -> Self {
        Self { write: AtomicU64::new(NONE.to_bits()), capture: 0, ..self }
    }

    fn finish(&self, point: StreamPoint) -> Result<(), PoolError> {
        if self.device().synchronize_point(point)? {
            return Ok(());
        }
        let foreign = self.more.get().map(|more| lock(more).foreign.clone()).unwrap_or_default();
        match foreign.iter().find(|foreign| foreign.latest_point().has_stream_of(point)) {
            Some(foreign) => foreign.synchronize(),
            None => self.device().synchronize_for_drop(),
        }
    }

    /// The array is borrowed exclusively, so no other thread uses the points.
    fn order_write(&self, stream: &Stream, write: StreamPoint) -> Result<(), PoolError> {
        let latest = stream.latest_point();
        let mut is_changed = !write.has_stream_of(latest);
        for read in self.reads.iter().map(load).take_while(|read| *read != NONE) {
            is_changed |= !read.has_stream_of(latest);
            self.wait(stream, read)?;
        }
        if let Some(more) = self.more.get() {
            let mut more = lock(more);
            for read in &more.reads {
                wait_or_finish(stream, *read, &more.foreign)?;
            }
            more.reads.clear();
        }
        if !write.has_stream_of(latest) {
            self.block.record_use(stream);
            self.keep_foreign(stream);
        }
        for read in self.reads.iter().take_while(|read| load(read) != NONE) {
            read.store(NONE.to_bits(), Ordering::Relaxed);
        }
        self.changes_streams.store(is_changed, Ordering::Relaxed);
        self.write.store(latest.to_bits(), Ordering::Relaxed);
        Ok(())
    }

    #[inline]
    fn wait(&self, stream: &Stream, point: StreamPoint) -> Result<(), PoolError> {
        match stream.wait_for_point(point)? {
            true => Ok(()),
            false => self.wait_by_name(stream, point),
        }
    }

    #[cold]
    fn wait_by_name(&self, stream: &Stream, point: StreamPoint) -> Result<(), PoolError> {
        let foreign = self.more.get().map(|more| lock(more).foreign.clone()).unwrap_or_default();
        wait_or_finish(stream, point, &foreign)
    }

    /// Stores the point of work that uses the memory and has been queued on `stream`. Returns whether that was a write.
    #[inline]
    fn record(&self, stream: &Stream, point: StreamPoint) -> bool {
        let write = load(&self.write);
        if write == stream.latest_point() {
            self.write.store(point.to_bits(), Ordering::Relaxed);
            return true;
        }
        // A stream that only reads finds its point here, and writes nothing that other threads read.
        for read in &self.reads {
            let mut found = load(read);
            if found == NONE {
                let empty = (NONE.to_bits(), point.to_bits());
                match read.compare_exchange(empty.0, empty.1, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => {
                        self.note_reader(stream);
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
        self.note_reader(stream);
    }

    /// A stream has read for the first time since the last write.
    fn note_reader(&self, stream: &Stream) {
        self.block.record_use(stream);
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

/// The error of an operation that needs access to the memory of another device.
pub(crate) fn no_peer_access(
    operation: &'static str,
    gpu: &Gpu,
    storage: &Storage,
    reason: &str,
) -> ArrayError {
    let (device, owner) = (gpu.device().to_string(), storage.device().to_string());
    ArrayError::NoPeerAccess { operation, device, owner, reason: reason.into() }
}

fn host_level(access: Access) -> u8 {
    match access {
        Access::Read => 1,
        Access::Write => 2,
    }
}

/// Waits for a point by the name of its stream. If the stream is gone and left no marker, the host waits for the device.
#[cold]
fn wait_or_finish(stream: &Stream, point: StreamPoint, foreign: &[Stream]) -> Result<(), PoolError> {
    if stream.wait_for_point(point)? {
        return Ok(());
    }
    match foreign.iter().find(|foreign| foreign.latest_point().has_stream_of(point)) {
        Some(foreign) => stream.wait_for(foreign),
        None => stream.device().synchronize_for_drop(),
    }
}

fn lock(more: &Mutex<More>) -> MutexGuard<'_, More> {
    more.lock().unwrap_or_else(PoisonError::into_inner)
}

#[inline]
fn load(point: &AtomicU64) -> StreamPoint {
    StreamPoint::from_bits(point.load(Ordering::Acquire))
}

/// No work.
const NONE: StreamPoint = StreamPoint::COMPLETE;
/// With the write, they fill a cache line.
const INLINE_READS: usize = 7;

/// Calls `work`, which queues work on the stream of `gpu`, and records the uses. The work uses only the memory of `uses`, and the
/// stream has been ordered for it ([`Storage::order`]). If `gpu` captures, the graph keeps the memory of `uses` instead. `work` only
/// calls the driver.
#[inline]
pub(crate) fn queue<'a>(
    gpu: &Gpu,
    uses: impl IntoIterator<Item = &'a Storage>,
    work: impl FnOnce(CUstream) -> Result<(), DriverError>,
) -> Result<(), ArrayError> {
    queue_launch(gpu, uses, |raw| work(raw).map_err(PoolError::from))
}

/// Like [`queue`], for work that calls the pool.
#[inline]
pub(crate) fn queue_launch<'a>(
    gpu: &Gpu,
    uses: impl IntoIterator<Item = &'a Storage>,
    work: impl FnOnce(CUstream) -> Result<(), PoolError>,
) -> Result<(), ArrayError> {
    let stream = gpu.stream();
    let _bound = gpu.device().bind()?;
    let (mut has_written, mut has_read_host, mut changes_streams) = (false, false, false);
    let queued = stream.queue_work(|raw| {
        // Checked inside of the call: before it, another thread could still begin or end a capture.
        match (stream.is_capturing()?, gpu.recording()) {
            (false, None) => {}
            (true, None) => return Err(GraphError::StreamCaptures.into()),
            (false, Some(_)) => return Err(GraphError::CaptureEnded.into()),
            (true, Some(recording)) => {
                recording.check()?;
                // The graph keeps the memory, even if no wait was needed.
                uses.into_iter().for_each(|storage| storage.block.record_use(stream));
                return Ok(work(raw)?);
            }
        }
        let queued = work(raw);
        // Also after an error: part of the work may have been queued.
        let point = stream.point();
        for storage in uses {
            let is_write = storage.record(stream, point);
            has_written |= is_write;
            has_read_host |= !is_write && storage.is_host;
            changes_streams |= is_write && storage.changes_streams.load(Ordering::Relaxed);
        }
        Ok(queued?)
    })?;
    if has_written && (has_read_host || changes_streams || stream.has_waiters()) {
        mark(stream);
    }
    queued.map_err(|error| gpu.explained(error))
}

/// Records that the write for which `stream` has been ordered ([`Storage::order`]) is complete: the host has waited for it.
pub(crate) fn record_complete(stream: &Stream, target: &Storage) {
    let _has_written = target.record(stream, StreamPoint::COMPLETE);
}

/// The next driver call reports a failure, and waiters record a marker of their own.
#[cold]
fn mark(stream: &Stream) {
    let _ = stream.mark();
}

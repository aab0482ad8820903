//! [`Storage`]: the memory of one array, and the order of its uses.
//!
//! A storage records the stream of the last write and the streams that have read since. Before another stream uses the memory,
//! it waits on the device: a reader for the writer, a writer for the writer and all readers; readers never wait for each other.
//! The event that a stream waits for is recorded when another stream needs it, not at each use, so a program with one stream
//! makes no driver call here.
//!
//! The late event is sufficient: it covers everything that its stream holds by then, which includes every use that this crate has
//! queued. Two uses of which one writes cannot be queued at the same time, because a write borrows the array exclusively.
//!
//! Another thread may begin a capture between the waits and the work. So [`queue`] queues the work in a call during which no
//! capture of the stream begins or ends. There it checks whether the work becomes part of a graph, which then keeps the memory.

use crate::error::ArrayError;
use crate::gpu::Gpu;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, Ordering};
use gpumem_pool::sys::DriverError;
use gpumem_pool::sys::types::CUstream;
use gpumem_pool::{Block, Device, PoolError, Stream};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How work uses memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    /// Writes, and possibly reads.
    Write,
}

/// A block and its uses so far.
pub(crate) struct Storage {
    block: Block,
    /// The stream that the block was allocated on: in its order the memory exists.
    owner_stream: Stream,
    track: Mutex<Track>,
    /// What the host may do without a wait: 0 nothing, 1 read, 2 read and write. Changed while [`Storage::track`] is locked.
    host: AtomicU8,
}

#[derive(Default)]
struct Track {
    /// The stream that wrote last; `None` is the owner stream.
    writer: Option<Stream>,
    /// Streams other than the writer that have read since, each ordered after the write.
    readers: Vec<Stream>,
}

impl Storage {
    /// `owner_stream` is the stream that the block was allocated on.
    pub(crate) fn new(block: Block, owner_stream: &Stream) -> Self {
        Self { block, owner_stream: owner_stream.clone(), track: Mutex::default(), host: AtomicU8::new(0) }
    }

    pub(crate) fn address(&self) -> u64 {
        self.block.address()
    }

    pub(crate) fn device(&self) -> &Device {
        self.block.device()
    }

    /// Makes the stream of `gpu` wait for the uses that `access` conflicts with, and records the use. Call it before the work is queued
    /// ([`queue`]), while the array is borrowed: shared for reading, exclusively for writing.
    pub(crate) fn order(&self, gpu: &Gpu, access: Access) -> Result<(), ArrayError> {
        if self.block.size_bytes() == 0 {
            return Ok(());
        }
        let (mut track, stream) = (self.lock(), gpu.stream());
        // The borrow of the array keeps the host from using it at this moment.
        let left = if access == Access::Read { self.host.load(Ordering::Relaxed).min(1) } else { 0 };
        self.host.store(left, Ordering::Relaxed);
        match access {
            Access::Read => self.order_read(&mut track, stream)?,
            Access::Write => self.order_write(&mut track, stream)?,
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

    /// Waits on the host for the uses that `access` conflicts with. The array is borrowed, shared for reading, exclusively for writing.
    pub(crate) fn wait_on_host(&self, access: Access) -> Result<(), PoolError> {
        let streams = {
            let track = self.lock();
            let writer = track.writer.as_ref().unwrap_or(&self.owner_stream);
            let readers = track.readers.iter().filter(|_| access == Access::Write);
            readers.chain([writer]).cloned().collect::<Vec<_>>()
        };
        streams.iter().try_for_each(Stream::synchronize)
    }

    fn order_read(&self, track: &mut Track, stream: &Stream) -> Result<(), PoolError> {
        let writer = track.writer.as_ref().unwrap_or(&self.owner_stream);
        if writer == stream || track.readers.contains(stream) {
            return Ok(());
        }
        stream.wait_for(writer)?;
        self.block.record_use(stream);
        track.readers.push(stream.clone());
        Ok(())
    }

    fn order_write(&self, track: &mut Track, stream: &Stream) -> Result<(), PoolError> {
        let writer = track.writer.as_ref().unwrap_or(&self.owner_stream);
        if writer == stream && track.readers.is_empty() {
            return Ok(());
        }
        // The writer may have read since its write, without being in the list, so a listed reader waits for it too.
        for other in track.readers.iter().chain([writer]).filter(|other| *other != stream) {
            stream.wait_for(other)?;
        }
        self.block.record_use(stream);
        track.readers.clear();
        track.writer = Some(stream.clone()).filter(|stream| *stream != self.owner_stream);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Track> {
        self.track.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn host_level(access: Access) -> u8 {
    match access {
        Access::Read => 1,
        Access::Write => 2,
    }
}

/// Calls `work`, which queues work on the stream of `gpu`. The work uses only the memory of `uses`, and the stream has been ordered
/// for it ([`Storage::order`]). If the stream captures, the graph keeps the memory of `uses`. `work` only calls the driver.
pub(crate) fn queue<'a>(
    gpu: &Gpu,
    uses: impl IntoIterator<Item = &'a Storage>,
    work: impl FnOnce(CUstream) -> Result<(), DriverError>,
) -> Result<(), ArrayError> {
    let stream = gpu.stream();
    let _bound = gpu.device().bind()?;
    let queued = stream.queue_work(|raw| {
        // Checked inside of the call: before it, another thread could still begin a capture.
        if stream.is_capturing()? {
            // The graph keeps the memory, even if no wait was needed.
            uses.into_iter().for_each(|storage| storage.block.record_use(stream));
        }
        work(raw).map_err(PoolError::from)
    })?;
    Ok(queued?)
}

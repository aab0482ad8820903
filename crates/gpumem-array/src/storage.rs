//! [`Storage`]: the memory of one array, and who has to wait for whom.
//!
//! It knows the stream that wrote last and the streams that read since. A stream about to use the memory waits, on the
//! device, for what it must: a reader for the writer, a writer for the writer and all readers; readers never for each
//! other. The event that is waited for is recorded at the crossing, not at each use, so a program with one stream makes
//! no call to the driver here.
//!
//! Why it is enough that the event comes late: it covers whatever its stream holds by then, and a use that this crate
//! has queued is held by then. Two uses of which one writes can't be queued at the same time, since writing borrows the
//! array exclusively.
//!
//! A capture that another thread begins is another matter: it may come between the waits and the work. So the work is queued in
//! a call that keeps captures of the stream from beginning and ending ([`queue`]), and there the stream is asked whether the
//! work becomes part of a graph, which then keeps the memory.

use crate::error::ArrayError;
use crate::gpu::Gpu;
use gpumem_pool::sys::DriverError;
use gpumem_pool::sys::types::CUstream;
use gpumem_pool::{Block, Device, PoolError, Stream};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What work is about to do with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    /// Writing, and reading if it likes.
    Write,
}

/// A block and its uses so far.
pub(crate) struct Storage {
    block: Block,
    /// Where the block was allocated, on whose order the memory exists at all.
    owner_stream: Stream,
    track: Mutex<Track>,
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
        Self { block, owner_stream: owner_stream.clone(), track: Mutex::default() }
    }

    pub(crate) fn address(&self) -> u64 {
        self.block.address()
    }

    pub(crate) fn device(&self) -> &Device {
        self.block.device()
    }

    /// Makes `stream` wait for what `access` needs, and notes the use. To be called before the work is queued ([`queue`]), while
    /// the array is borrowed: shared for reading, exclusively for writing.
    pub(crate) fn order(&self, stream: &Stream, access: Access) -> Result<(), PoolError> {
        if self.block.size_bytes() == 0 {
            return Ok(());
        }
        let mut track = self.lock();
        match access {
            Access::Read => self.order_read(&mut track, stream),
            Access::Write => self.order_write(&mut track, stream),
        }
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
        // The writer may have read since it wrote, without being listed: it is waited for even by a listed reader.
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

/// Has `work` queue work on the stream of `gpu` that uses the memory of `uses` and no other. The stream has been ordered for it
/// ([`Storage::order`]), and belongs to no capture that `uses` are not kept for. `work` calls the driver and nothing else.
pub(crate) fn queue<'a>(
    gpu: &Gpu,
    uses: impl IntoIterator<Item = &'a Storage>,
    work: impl FnOnce(CUstream) -> Result<(), DriverError>,
) -> Result<(), ArrayError> {
    let stream = gpu.stream();
    let _bound = gpu.device().bind()?;
    let queued = stream.queue_work(|raw| {
        // Here: before the call, another thread could still begin a capture.
        if stream.is_capturing()? {
            // The graph keeps the memory, also where no wait was needed.
            uses.into_iter().for_each(|storage| storage.block.record_use(stream));
        }
        work(raw).map_err(PoolError::from)
    })?;
    Ok(queued?)
}

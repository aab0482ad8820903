//! [`Copiers`]: streams for copies that must not wait behind the other work of a `Gpu`, and pinned memory for copies between devices.
//!
//! A download returns a stream without work, so the next download waits for no other. A stage keeps its work, which the next copy
//! through it waits for on the device.

use super::Gpu;
use crate::error::ArrayError;
use core::ops::Deref;
use core::sync::atomic::{AtomicU64, Ordering};
use gpumem_pool::{Block, MemoryKind, Stream, StreamPoint};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The idle streams and stages of one `Gpu` and its forks.
#[derive(Default)]
pub(super) struct Copiers {
    idle: Mutex<Vec<Stream>>,
    stages: Mutex<Vec<Stage>>,
}

/// The facts from which a download finds out whether it would wait for unrelated work.
#[derive(Debug, Default)]
pub(super) struct Downloads {
    /// The address of the memory that the latest work writes.
    last_written: AtomicU64,
    /// The size of the memory whose download last found later work on the stream; 0 if none did.
    late_bytes: AtomicU64,
}

/// A `Gpu` with a stream of its own for one copy, which the host waits for.
pub(crate) struct Copier<'a> {
    gpu: Gpu,
    copiers: &'a Copiers,
}

/// A stream, and pinned memory in slots. A copy between devices goes through the slots in turn.
pub(crate) struct Stage {
    pub(crate) stream: Stream,
    pub(crate) slots: [Slot; SLOT_COUNT],
}

/// Pinned memory for one chunk.
pub(crate) struct Slot {
    pub(crate) block: Block,
    /// The point of the last copy out of the slot.
    pub(crate) read: StreamPoint,
}

impl Gpu {
    /// Notes that the latest work on the stream writes the memory at an address.
    #[inline]
    pub(crate) fn note_write(&self, address: u64) {
        let last = &self.0.downloads.last_written;
        if last.load(Ordering::Relaxed) != address {
            last.store(address, Ordering::Relaxed);
        }
    }

    /// Whether no work has been queued behind the write of the memory at an address.
    pub(crate) fn wrote_last(&self, address: u64) -> bool {
        self.0.downloads.last_written.load(Ordering::Relaxed) == address
    }

    /// Notes that memory of a size is downloaded while later work is queued.
    pub(crate) fn note_late_download(&self, size_bytes: u64) {
        self.0.downloads.late_bytes.store(size_bytes, Ordering::Relaxed);
    }

    /// Whether memory of this size is likely to be downloaded while later work is queued, so that its write is worth a marker.
    #[inline]
    pub(crate) fn downloads_late(&self, size_bytes: u64) -> bool {
        self.0.downloads.late_bytes.load(Ordering::Relaxed) == size_bytes
    }

    /// A `Gpu` with the pools and kernels of this one, and an idle stream. After the copy the host waits, and drops it.
    pub(crate) fn copier(&self) -> Result<Copier<'_>, ArrayError> {
        let copiers = &self.0.shared.copiers;
        let idle = lock(&copiers.idle).pop();
        let stream = match idle {
            Some(stream) => stream,
            None => Stream::new(self.device())?,
        };
        Ok(Copier { gpu: self.with(stream), copiers })
    }

    /// Calls `copy` with a stage, which it may leave with work, and a `Gpu` on the stream of that stage.
    pub(crate) fn with_stage<R>(
        &self,
        copy: impl FnOnce(&Self, &mut Stage) -> Result<R, ArrayError>,
    ) -> Result<R, ArrayError> {
        let stages = &self.0.shared.copiers.stages;
        let known = lock(stages).pop();
        let mut stage = match known {
            Some(stage) => stage,
            None => self.new_stage()?,
        };
        let copied = copy(&self.with(stage.stream.clone()), &mut stage);
        lock(stages).push(stage);
        copied
    }

    fn new_stage(&self) -> Result<Stage, ArrayError> {
        let (pool, stream) = (self.pool_of(MemoryKind::Host)?, Stream::new(self.device())?);
        let slot = || -> Result<_, ArrayError> {
            Ok(Slot { block: pool.alloc(SLOT_BYTES, &stream)?, read: StreamPoint::COMPLETE })
        };
        let slots = [slot()?, slot()?, slot()?, slot()?];
        Ok(Stage { stream, slots })
    }
}

impl Deref for Copier<'_> {
    type Target = Gpu;
    fn deref(&self) -> &Gpu {
        &self.gpu
    }
}

impl Drop for Copier<'_> {
    fn drop(&mut self) {
        lock(&self.copiers.idle).push(self.gpu.stream().clone());
    }
}

fn lock<T>(list: &Mutex<Vec<T>>) -> MutexGuard<'_, Vec<T>> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Long enough that the calls of a chunk take much less time than its two copies.
const SLOT_BYTES: u64 = 2 << 20;
/// Two chunks are copied at any time, one into its slot and one out of it. The others absorb delays of either.
const SLOT_COUNT: usize = 4;

//! [`Stage`]: a stream and pinned memory for copies between devices without a link.
//!
//! A stage is returned with its work, which the next copy through it waits for on the device.

use super::pools::GpuPools;
use crate::error::ArrayError;
use gpumem_pool::{Block, MemoryKind, MemoryRange, PoolError, Stream, StreamPoint, not_forked};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The stages of one `Gpu` and its forks that no copy is queued through at the moment.
#[derive(Default)]
pub(super) struct Stages(Mutex<Vec<Stage>>);

/// A stream, and pinned memory in slots. A copy between devices uses the slots one after another.
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

impl Slot {
    /// The memory, for the work that copies from or to it.
    pub(crate) fn memory(&self) -> MemoryRange {
        MemoryRange::from(&self.block)
    }
}

impl Stages {
    /// An unused stage, or a new one.
    pub(super) fn take(&self, pools: &GpuPools) -> Result<Stage, ArrayError> {
        not_forked()?;
        let known = self.lock().pop();
        match known {
            Some(stage) => Ok(stage),
            None => Stage::new(pools),
        }
    }

    /// Returns a stage, whose work may still run.
    pub(super) fn give_back(&self, stage: Stage) {
        self.lock().push(stage);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Stage>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stage {
    /// Creates a stage with slots as large as the pinned memory allows.
    fn new(pools: &GpuPools) -> Result<Self, ArrayError> {
        let (pool, stream) = (pools.of(MemoryKind::Host)?, Stream::new(pools.device())?);
        let slot = |size_bytes: u64| -> Result<_, PoolError> {
            Ok(Slot { block: pool.alloc(size_bytes, &stream)?, read: StreamPoint::COMPLETE })
        };
        let slots =
            |size: u64| -> Result<_, PoolError> { Ok([slot(size)?, slot(size)?, slot(size)?, slot(size)?]) };
        let mut size_bytes = SLOT_BYTES;
        loop {
            match slots(size_bytes) {
                Ok(slots) => return Ok(Self { stream, slots }),
                Err(PoolError::OutOfMemory(_) | PoolError::LimitReached(_))
                    if size_bytes > SLOT_BYTES_MIN =>
                {
                    size_bytes /= 2;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Large enough that the calls for a chunk take much less time than its two copies.
const SLOT_BYTES: u64 = 2 << 20;
/// The size of chunks when pinned memory is short. Copies of smaller chunks take less time than their calls.
const SLOT_BYTES_MIN: u64 = 64 << 10;
/// Two chunks are copied at any time, one into its slot and one out of it. The other slots absorb delays.
const SLOT_COUNT: usize = 4;

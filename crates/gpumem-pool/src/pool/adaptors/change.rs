//! [`Change`]: a growable block grows or shrinks.

use super::{PoolId, Stack};
use crate::device::{CaptureModeGuard, Device, Order, Stamp, Stream, StreamId};
use crate::error::PoolError;
use core::fmt;
use core::ops::Range;
use gpumem_sys::types::{CUdeviceptr, CUstream};
use gpumem_sys::{Driver, DriverError};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A change of the memory of a [`GrowableBlock`](crate::GrowableBlock).
#[derive(Clone, Copy)]
pub struct Change<'a> {
    from_bytes: u64,
    to_bytes: u64,
    subject: &'a Subject<'a>,
    stack: &'a Stack,
    is_undone: bool,
}

/// The block that changes.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) address: CUdeviceptr,
    pub(crate) device: &'a Device,
    pub(crate) tag: u16,
    pub(crate) owner_stream: StreamId,
    /// The other streams that used the block.
    pub(crate) uses: u64,
    /// Stamps of the work that may still use memory removed by an earlier shrink.
    pub(crate) cut: &'a [Stamp],
    /// The block's memory grows and shrinks in multiples of this.
    pub(crate) unit_bytes: u64,
}

impl<'a> Change<'a> {
    /// Returns the block's start address, which is constant for its lifetime.
    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        self.subject.address
    }

    /// Returns the block's size before the change.
    #[must_use]
    pub fn from_bytes(&self) -> u64 {
        self.from_bytes
    }

    /// Returns the block's size after the change.
    #[must_use]
    pub fn to_bytes(&self) -> u64 {
        self.to_bytes
    }

    /// Whether this change undoes a growth that failed. The new memory was never used.
    #[must_use]
    pub fn is_undone(&self) -> bool {
        self.is_undone
    }

    /// Returns the block's owner stream. The stream itself may no longer exist.
    #[must_use]
    pub fn stream_id(&self) -> StreamId {
        self.subject.owner_stream
    }

    /// Returns the other streams that have used the block.
    pub fn users(&self) -> impl Iterator<Item = StreamId> + use<'a> {
        self.subject.device.clocks().users(self.subject.uses)
    }

    /// Returns the pool's device.
    #[must_use]
    pub fn device(&self) -> &'a Device {
        self.subject.device
    }

    /// Returns the identifier of the block's pool.
    #[must_use]
    pub fn pool(&self) -> PoolId {
        self.stack.id()
    }

    /// Returns the block's tag: the name of the scope that the block was created in.
    #[must_use]
    pub fn tag(&self) -> Option<Arc<str>> {
        self.stack.names().get(self.subject.tag)
    }

    /// Returns the number of the block's tag; 0 means no tag.
    pub(crate) fn tag_number(&self) -> u16 {
        self.subject.tag
    }

    pub(super) fn new(subject: &'a Subject<'a>, stack: &'a Stack, from_bytes: u64, to_bytes: u64) -> Self {
        Self { from_bytes, to_bytes, subject, stack, is_undone: false }
    }

    /// Returns the opposite change.
    pub(super) fn backwards(self, is_undone: bool) -> Self {
        Self { from_bytes: self.to_bytes, to_bytes: self.from_bytes, is_undone, ..self }
    }

    /// Returns the range between the end of the block at this size and the end of its memory. The range belongs to
    /// the block, and no work may use it.
    pub(crate) fn slack(&self, size_bytes: u64) -> Range<CUdeviceptr> {
        let end_bytes = size_bytes.next_multiple_of(self.subject.unit_bytes);
        self.address() + size_bytes..self.address() + end_bytes
    }

    /// Whether queued work may still use memory removed by an earlier shrink.
    pub(crate) fn is_cut_pending(&self) -> bool {
        let clocks = self.device().clocks();
        self.subject.cut.iter().any(|stamp| !clocks.is_complete(*stamp))
    }

    /// Queues work on the owner stream behind all uses of the block, like
    /// [`Release::queue`](super::Release::queue).
    pub(crate) fn queue(&self, work: impl FnOnce(&Driver, CUstream) -> Result<(), DriverError>) -> bool {
        let (clocks, Subject { owner_stream, uses, .. }) = (self.device().clocks(), *self.subject);
        let call = |owner_stream| work(self.device().driver(), owner_stream);
        clocks.queue_behind(clocks.uses(owner_stream, uses), owner_stream, call).unwrap_or(false)
    }

    /// Executes work outside the owner stream's order, behind pending uses of removed memory or behind all uses of
    /// the block. The work is complete when this returns.
    pub(crate) fn do_now(
        &self,
        after: After,
        work: impl Fn(&Driver, CUstream) -> Result<(), DriverError>,
    ) -> Result<(), PoolError> {
        let (device, clocks) = (self.device(), self.device().clocks());
        let stamps = match after {
            After::Cut => self.subject.cut.to_vec(),
            After::Uses => {
                let uses = clocks.uses(self.subject.owner_stream, self.subject.uses);
                uses.map(|stamp| clocks.that_runs(stamp)).collect()
            }
        };
        let _relaxed = CaptureModeGuard::enter(device.driver())?;
        let stream = Stream::new(device)?;
        let call = |stream| work(device.driver(), stream);
        if !clocks.queue_behind(stamps.iter().copied(), stream.id(), call)? {
            device.finish()?;
            // A capturing stream cannot be waited for, not even for work queued before the capture. The completion
            // check below may miss work that is just finishing.
            if matches!(after, After::Cut) && !stamps.iter().all(|stamp| clocks.is_complete(*stamp)) {
                let operation = "growing into memory that its stream's earlier work may still use";
                return Err(PoolError::NotInCapture { operation });
            }
            clocks.queue_behind(core::iter::empty(), stream.id(), call)?;
        }
        let stamp = clocks.stamp(stream.stream_index());
        // The next user of the memory must not overlap this work. If one way to wait fails, the other one runs.
        let wait = || clocks.wait_on_host(&[stamp], Instant::now() + WAIT_MAX);
        stream.synchronize().or_else(|error| if wait()? { Ok(()) } else { Err(error) })
    }
}

/// The uses that `do_now` orders its work behind.
#[derive(Clone, Copy)]
pub(crate) enum After {
    Cut,
    Uses,
}

/// An upper bound of the time for a fill or a copy.
const WAIT_MAX: Duration = Duration::from_secs(10);

impl fmt::Debug for Change<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Change")
            .field("address", &format_args!("{:#x}", self.address()))
            .field("from_bytes", &self.from_bytes)
            .field("to_bytes", &self.to_bytes)
            .field("is_undone", &self.is_undone)
            .finish_non_exhaustive()
    }
}

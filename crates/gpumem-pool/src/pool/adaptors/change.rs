//! [`Change`]: a block that grows has more memory, or less.

use super::{PoolId, Stack};
use crate::device::{CaptureModeGuard, Device, Order, Stamp, Stream, StreamId};
use crate::error::PoolError;
use core::fmt;
use core::ops::Range;
use gpumem_sys::types::{CUdeviceptr, CUstream};
use gpumem_sys::{Driver, DriverError};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How the memory of a [`GrowableBlock`](crate::GrowableBlock) changes.
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
    /// The other streams that used it.
    pub(crate) uses: u64,
    /// What may still use memory that it had once.
    pub(crate) cut: &'a [Stamp],
    /// It has memory in whole units of this.
    pub(crate) unit_bytes: u64,
}

impl<'a> Change<'a> {
    /// Where it starts, for as long as it lives.
    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        self.subject.address
    }

    /// Its size before.
    #[must_use]
    pub fn from_bytes(&self) -> u64 {
        self.from_bytes
    }

    /// Its size afterwards.
    #[must_use]
    pub fn to_bytes(&self) -> u64 {
        self.to_bytes
    }

    /// Whether this takes back a growth that has not come about: nobody has had the memory.
    #[must_use]
    pub fn is_undone(&self) -> bool {
        self.is_undone
    }

    /// The stream in whose order it is freed. It may be gone.
    #[must_use]
    pub fn stream_id(&self) -> StreamId {
        self.subject.owner_stream
    }

    /// The other streams that have used it.
    pub fn users(&self) -> impl Iterator<Item = StreamId> + use<'a> {
        self.subject.device.clocks().users(self.subject.uses)
    }

    /// The pool's device.
    #[must_use]
    pub fn device(&self) -> &'a Device {
        self.subject.device
    }

    /// The pool that it is of.
    #[must_use]
    pub fn pool(&self) -> PoolId {
        self.stack.id()
    }

    /// What it is for: the name of the scope that it was made in.
    #[must_use]
    pub fn tag(&self) -> Option<Arc<str>> {
        self.stack.names().get(self.subject.tag)
    }

    /// The same by number; 0 is none.
    pub(crate) fn tag_number(&self) -> u16 {
        self.subject.tag
    }

    pub(super) fn new(subject: &'a Subject<'a>, stack: &'a Stack, from_bytes: u64, to_bytes: u64) -> Self {
        Self { from_bytes, to_bytes, subject, stack, is_undone: false }
    }

    /// Backwards.
    pub(super) fn backwards(self, is_undone: bool) -> Self {
        Self { from_bytes: self.to_bytes, to_bytes: self.from_bytes, is_undone, ..self }
    }

    /// The bytes between its end, at this size, and the end of its memory: its own, and nobody's to use.
    pub(crate) fn slack(&self, size_bytes: u64) -> Range<CUdeviceptr> {
        let end_bytes = size_bytes.next_multiple_of(self.subject.unit_bytes);
        self.address() + size_bytes..self.address() + end_bytes
    }

    /// Whether memory that it had once may still be in use.
    pub(crate) fn is_cut_pending(&self) -> bool {
        let clocks = self.device().clocks();
        self.subject.cut.iter().any(|stamp| !clocks.is_complete(*stamp))
    }

    /// Queues work behind all uses of the block, on its owner stream, as [`Release::queue`](super::Release::queue) does.
    pub(crate) fn queue(&self, work: impl FnOnce(&Driver, CUstream) -> Result<(), DriverError>) -> bool {
        let (clocks, Subject { owner_stream, uses, .. }) = (self.device().clocks(), *self.subject);
        let call = |owner_stream| work(self.device().driver(), owner_stream);
        clocks.queue_behind(clocks.uses(owner_stream, uses), owner_stream, call).unwrap_or(false)
    }

    /// Has work done that nobody waits for in a stream's order: behind what may still use memory that the block had once, or
    /// behind all that uses it. It is done when this returns.
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
            // A stream that captures can't be waited for, whatever it had queued before. A look at what is there may be early.
            if matches!(after, After::Cut) && !stamps.iter().all(|stamp| clocks.is_complete(*stamp)) {
                let operation = "growing into memory that its stream's earlier work may still use";
                return Err(PoolError::NotInCapture { operation });
            }
            clocks.queue_behind(core::iter::empty(), stream.id(), call)?;
        }
        let stamp = clocks.stamp(stream.stream_index());
        // Whoever has the memory next must not meet this work. So where one way to wait fails, there is another.
        let wait = || clocks.wait_on_host(&[stamp], Instant::now() + WAIT_MAX);
        stream.synchronize().or_else(|error| if wait()? { Ok(()) } else { Err(error) })
    }
}

/// What work comes after.
#[derive(Clone, Copy)]
pub(crate) enum After {
    Cut,
    Uses,
}

/// A fill or a copy takes no longer.
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

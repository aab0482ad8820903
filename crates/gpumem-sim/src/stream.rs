//! Streams: queues of work that has not run yet, and the points in them that other work waits for.
//!
//! A stream is first in, first out. An operation is known by its [`Point`]: the stream and how many operations were
//! queued there up to it. Since streams never overtake themselves, a point is done when that many are done; events,
//! the legacy stream's implicit order and every wait of the host come down to points.

pub(crate) mod capture;
pub(crate) mod event;
#[allow(unsafe_code)]
pub(crate) mod operation;
pub(crate) mod operation_cost;
pub(crate) mod schedule;
pub(crate) mod value;

use crate::base::handle::Handle;
use crate::order::clock::{Order, Snapshot, StreamClock};
use crate::order::happens_before::HappensBefore;
use crate::stream::capture::Joined;
use crate::stream::operation::Operation;
use std::collections::VecDeque;

/// One stream of a context.
pub(crate) struct Stream {
    pub(crate) context: Handle,
    pub(crate) device: usize,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    pub(crate) role: Role,
    pub(crate) queue: VecDeque<Queued>,
    pub(crate) queued_count: u64,
    pub(crate) done_count: u64,
    /// When the last operation that ran was over, on the virtual clock.
    pub(crate) time_ns: u64,
    /// A host function of this stream is running, outside the lock.
    pub(crate) is_busy: bool,
    /// Destroyed by the program; goes when its queue is empty.
    pub(crate) is_closing: bool,
    /// The capture that it is part of: what is queued becomes nodes of a graph.
    pub(crate) capture: Option<Box<Joined>>,
    /// The last point of the legacy stream that this one was made to wait for; in the legacy stream itself, unused.
    pub(crate) ordered_after_legacy: u64,
    /// The last point of this stream that the legacy stream was made to wait for.
    pub(crate) ordered_before_legacy: u64,
    pub(crate) clock: StreamClock,
    pub(crate) happens_before: HappensBefore,
}

/// The role of a stream in its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The null stream, which waits for the blocking streams and they for it.
    Legacy,
    /// One thread's default stream.
    OfThread,
    /// Any other: the program made it.
    Made,
    /// The driver's own: the nodes of a graph run on it.
    Lane,
}

/// An operation and the moment it was handed over, on the virtual clock.
pub(crate) struct Queued {
    pub(crate) operation: Operation,
    pub(crate) from_ns: u64,
    pub(crate) order: Order,
}

impl Stream {
    pub(crate) fn new(context: Handle, device: usize, flags: u32, priority: i32, role: Role) -> Self {
        Self {
            context,
            device,
            flags,
            priority,
            role,
            queue: VecDeque::new(),
            queued_count: 0,
            done_count: 0,
            time_ns: 0,
            is_busy: false,
            is_closing: false,
            capture: None,
            ordered_after_legacy: 0,
            ordered_before_legacy: 0,
            clock: StreamClock::default(),
            happens_before: HappensBefore::default(),
        }
    }

    pub(crate) fn snapshot(&self) -> Option<Snapshot> {
        self.clock.snapshot(self.done_count)
    }

    /// Whether the legacy stream and this one wait for each other.
    pub(crate) fn is_blocking(&self) -> bool {
        self.flags & NON_BLOCKING == 0
    }

    /// Made by the program and not destroyed.
    pub(crate) fn is_of_program(&self) -> bool {
        self.role == Role::Made && !self.is_closing
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.done_count == self.queued_count
    }
}

/// The numbers that the driver gives priorities: less is more urgent. They are remembered; the schedule ignores them,
/// since they promise nothing.
pub(crate) const LEAST_PRIORITY: i32 = 0;
pub(crate) const GREATEST_PRIORITY: i32 = -5;

/// The flag of a stream that the legacy stream leaves alone.
pub(crate) const NON_BLOCKING: u32 = 1;

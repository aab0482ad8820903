//! Streams: queues of pending work, and the points in them for which other work waits.
//!
//! A stream is first in, first out. An operation is identified by its [`Point`]: the stream, and the number of operations queued
//! there up to and including it. Streams run in order, so a point is complete when that number of operations is complete. Events,
//! the legacy stream's implicit order and every wait of the host are reduced to points.

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
    /// The end of the last completed operation, on the virtual clock.
    pub(crate) time_ns: u64,
    /// True if a host function of this stream is running, outside of the lock.
    pub(crate) is_busy: bool,
    /// True if the program destroyed it; it is removed when its queue is empty.
    pub(crate) is_closing: bool,
    /// The capture that it is part of: queued work becomes nodes of a graph.
    pub(crate) capture: Option<Box<Joined>>,
    /// The last point of the legacy stream that this stream was made to wait for; unused in the legacy stream itself.
    pub(crate) ordered_after_legacy: u64,
    /// The last point of this stream that the legacy stream was made to wait for.
    pub(crate) ordered_before_legacy: u64,
    pub(crate) clock: StreamClock,
    pub(crate) happens_before: HappensBefore,
}

/// The role of a stream in its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The null stream: it and the blocking streams wait for each other.
    Legacy,
    /// A per-thread default stream.
    OfThread,
    /// A stream that the program created.
    Made,
    /// An internal stream on which nodes of a graph run.
    Lane,
}

/// An operation, and the time of its call on the virtual clock.
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

    /// True if the legacy stream and this one wait for each other.
    pub(crate) fn is_blocking(&self) -> bool {
        self.flags & NON_BLOCKING == 0
    }

    /// True if the program created it and has not destroyed it.
    pub(crate) fn is_of_program(&self) -> bool {
        self.role == Role::Made && !self.is_closing
    }

    /// True if it is a thread's default stream, closed or not.
    pub(crate) fn is_of_thread(&self) -> bool {
        self.role == Role::OfThread
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.done_count == self.queued_count
    }
}

/// The range of priorities: smaller is more urgent. They are stored, but the schedule ignores them, because they guarantee
/// nothing.
pub(crate) const LEAST_PRIORITY: i32 = 0;
pub(crate) const GREATEST_PRIORITY: i32 = -5;

/// The flag of a stream without implicit order with the legacy stream.
pub(crate) const NON_BLOCKING: u32 = 1;

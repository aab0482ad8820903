//! Streams: queues of work that has not run yet, and the points in them that other work waits for.
//!
//! A stream is first in, first out. An operation is known by its [`Point`]: the stream and how many operations were
//! queued there up to it. Since streams never overtake themselves, a point is done when that many are done; events,
//! the legacy stream's implicit order and every wait of the host come down to points.

use super::behind::Behind;
use super::capture::Joined;
use super::clock::{Order, StreamClock};
use super::codes::{Answer, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE};
use super::graph::Work;
use super::handle::Handle;
use super::machine::Machine;
use super::operation::Operation;
use std::collections::VecDeque;

/// One stream of a context.
pub(super) struct Stream {
    pub(super) context: Handle,
    pub(super) device: usize,
    pub(super) flags: u32,
    pub(super) priority: i32,
    pub(super) role: Role,
    pub(super) queue: VecDeque<Queued>,
    pub(super) queued_count: u64,
    pub(super) done_count: u64,
    /// When the last operation that ran was over, on the virtual clock.
    pub(super) time_ns: u64,
    /// A host function of this stream is running, outside the lock.
    pub(super) is_busy: bool,
    /// Destroyed by the program; goes when its queue is empty.
    pub(super) is_closing: bool,
    /// The capture that it is part of: what is queued becomes nodes of a graph.
    pub(super) capture: Option<Box<Joined>>,
    /// The last point of the legacy stream that this one was made to wait for; in the legacy stream itself, unused.
    ordered_after_legacy: u64,
    /// The last point of this stream that the legacy stream was made to wait for.
    ordered_before_legacy: u64,
    pub(super) clock: StreamClock,
    pub(super) behind: Behind,
}

/// What a stream is to its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
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
pub(super) struct Queued {
    pub(super) operation: Operation,
    pub(super) from_ns: u64,
    pub(super) order: Order,
}

/// A place in a stream: everything up to the operation that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) stream: Handle,
    pub(super) position: u64,
}

impl Stream {
    pub(super) fn new(context: Handle, device: usize, flags: u32, priority: i32, role: Role) -> Self {
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
            behind: Behind::default(),
        }
    }

    /// Whether the legacy stream and this one wait for each other.
    pub(super) fn is_blocking(&self) -> bool {
        self.flags & NON_BLOCKING == 0
    }

    /// Made by the program and not destroyed.
    pub(super) fn is_of_program(&self) -> bool {
        self.role == Role::Made && !self.is_closing
    }

    pub(super) fn is_idle(&self) -> bool {
        self.done_count == self.queued_count
    }
}

impl Machine {
    /// Hands an operation over to a stream, or to the graph that it captures; what is captured counts as done.
    pub(super) fn enqueue(&mut self, handle: Handle, operation: Operation) -> Point {
        if self.is_capturing(handle) {
            // The stream and its graph are there, so the node can be added.
            let _ = self.capture_work(handle, Work::Queue(operation));
            return Point { stream: handle, position: 0 };
        }
        self.order_with_legacy(handle);
        self.push(handle, operation)
    }

    fn push(&mut self, handle: Handle, operation: Operation) -> Point {
        let from_ns = self.host_ns;
        self.staged_bytes += operation.staged_bytes();
        let order = self.order_of(handle, &operation);
        if let Operation::Wait { point, event } = operation {
            self.behind_wait(handle, point, event);
        }
        let Some(stream) = self.streams.get_mut(handle) else { return Point { stream: handle, position: 0 } };
        if stream.is_idle() {
            self.active.push(handle);
        }
        stream.queue.push_back(Queued { operation, from_ns, order });
        stream.queued_count += 1;
        Point { stream: handle, position: stream.queued_count }
    }

    /// Puts the legacy stream's implicit waits before what is queued next.
    pub(super) fn order_with_legacy(&mut self, handle: Handle) {
        let Some(stream) = self.streams.get(handle) else { return };
        if stream.role == Role::Legacy {
            let context = stream.context;
            for index in 0..self.active.len() {
                self.order_legacy_after(handle, self.active[index], context);
            }
        } else if stream.is_blocking() {
            self.order_after_legacy(handle);
        }
    }

    fn order_legacy_after(&mut self, legacy: Handle, other: Handle, context: Handle) {
        let Some(stream) = self.streams.get_mut(other) else { return };
        let point = Point { stream: other, position: stream.queued_count };
        let is_news = stream.ordered_before_legacy < point.position && !stream.is_idle();
        if other != legacy && stream.context == context && stream.is_blocking() && is_news {
            stream.ordered_before_legacy = point.position;
            self.push(legacy, Operation::Wait { point, event: None });
        }
    }

    fn order_after_legacy(&mut self, handle: Handle) {
        let Some(stream) = self.streams.get(handle) else { return };
        let Some(legacy) = self.contexts.get(stream.context).map(|context| context.legacy) else { return };
        let Some(tail) = self.tail(legacy) else { return };
        let Some(stream) = self.streams.get_mut(handle) else { return };
        if stream.ordered_after_legacy < tail.position {
            stream.ordered_after_legacy = tail.position;
            self.push(handle, Operation::Wait { point: tail, event: None });
        }
    }

    /// The end of what is queued on a stream, if any of it has yet to run.
    pub(super) fn tail(&self, handle: Handle) -> Option<Point> {
        let stream = self.streams.get(handle)?;
        (!stream.is_idle()).then_some(Point { stream: handle, position: stream.queued_count })
    }

    /// Whether everything up to a point has run. A stream that is gone has run dry before.
    pub(super) fn is_done(&self, point: Point) -> bool {
        self.streams.get(point.stream).is_none_or(|stream| stream.done_count >= point.position)
    }

    /// The host knows that a stream has run dry: its clock is not earlier.
    pub(super) fn host_saw_stream(&mut self, handle: Handle) {
        self.host_learns_stream(handle);
        let stream_ns = self.streams.get(handle).map_or(0, |stream| stream.time_ns);
        self.host_ns = self.host_ns.max(stream_ns);
    }

    /// The host knows that every stream of a context has run dry.
    pub(super) fn host_saw_context(&mut self, context: Handle) {
        self.host_learns_context(context);
        let of_context = self.streams.iter().filter(|(_, stream)| stream.context == context);
        let latest_ns = of_context.map(|(_, stream)| stream.time_ns).max();
        self.host_ns = self.host_ns.max(latest_ns.unwrap_or(0));
    }

    pub(super) fn is_stream_idle(&self, handle: Handle) -> bool {
        self.streams.get(handle).is_none_or(Stream::is_idle)
    }

    /// Whether no stream of a context has work left.
    pub(super) fn is_context_idle(&self, context: Handle) -> bool {
        !self.active.iter().any(|&stream| self.streams.get(stream).is_some_and(|s| s.context == context))
    }

    /// Whether no stream of a device has work left.
    pub(super) fn is_device_idle(&self, device: usize) -> bool {
        !self.active.iter().any(|&stream| self.streams.get(stream).is_some_and(|s| s.device == device))
    }

    pub(super) fn stream_create(&mut self, context: Handle, flags: u32, priority: i32) -> Answer<Handle> {
        if flags & !NON_BLOCKING != 0 {
            return Err(INVALID_VALUE);
        }
        let device = self.contexts.get(context).ok_or(INVALID_CONTEXT)?.device;
        let priority = priority.clamp(GREATEST_PRIORITY, LEAST_PRIORITY);
        self.streams.insert(Stream::new(context, device, flags, priority, Role::Made))
    }

    /// Forgets the handle at once; the stream goes when what is queued has run.
    pub(super) fn stream_destroy(&mut self, handle: Handle) -> Answer<()> {
        let stream =
            self.streams.get_mut(handle).filter(|stream| !stream.is_closing).ok_or(INVALID_HANDLE)?;
        if stream.role != Role::Made {
            return Err(INVALID_VALUE);
        }
        stream.is_closing = true;
        self.remove_if_drained(handle);
        Ok(())
    }

    pub(super) fn remove_if_drained(&mut self, handle: Handle) {
        if self.streams.get(handle).is_some_and(|stream| stream.is_closing && stream.is_idle())
            && let Some(stream) = self.streams.remove(handle)
        {
            self.clock_gone(&stream);
        }
    }
}

/// The numbers that the driver gives priorities: less is more urgent. They are remembered; the schedule ignores them,
/// since they promise nothing.
pub(super) const LEAST_PRIORITY: i32 = 0;
pub(super) const GREATEST_PRIORITY: i32 = -5;

/// The flag of a stream that the legacy stream leaves alone.
pub(super) const NON_BLOCKING: u32 = 1;

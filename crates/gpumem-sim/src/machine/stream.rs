//! Streams: queueing work, the implicit order with the legacy stream, and completion.

pub(crate) mod capture;
pub(crate) mod capture_refusal;
#[allow(unsafe_code)]
pub(crate) mod copy;
pub(crate) mod event;
#[allow(unsafe_code)]
pub(crate) mod execute;
pub(crate) mod schedule;
#[allow(unsafe_code)]
pub(crate) mod value;

use crate::base::codes::{Answer, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE};
use crate::base::handle::Handle;
use crate::graph::Work;
use crate::machine::Machine;
use crate::order::Point;
use crate::stream::operation::Operation;
use crate::stream::{GREATEST_PRIORITY, LEAST_PRIORITY, NON_BLOCKING, Queued, Role, Stream};

impl Machine {
    /// Queues an operation on a stream, or adds it to the graph that the stream captures. Captured work counts as complete.
    pub(crate) fn enqueue(&mut self, handle: Handle, operation: Operation) -> Point {
        if self.is_capturing(handle) {
            // The stream and its graph exist, so the node can be added.
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
            self.happens_before_wait(handle, point, event);
        }
        let Some(stream) = self.streams.get_mut(handle) else { return Point { stream: handle, position: 0 } };
        if stream.is_idle() {
            self.active.push(handle);
        }
        stream.queue.push_back(Queued { operation, from_ns, order });
        stream.queued_count += 1;
        Point { stream: handle, position: stream.queued_count }
    }

    /// Queues the implicit waits of the legacy stream before the next operation.
    pub(crate) fn order_with_legacy(&mut self, handle: Handle) {
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

    /// The last point of a stream, if work before it is pending.
    pub(crate) fn tail(&self, handle: Handle) -> Option<Point> {
        let stream = self.streams.get(handle)?;
        (!stream.is_idle()).then_some(Point { stream: handle, position: stream.queued_count })
    }

    /// True if all work up to a point has run. A destroyed stream has completed its work.
    pub(crate) fn is_done(&self, point: Point) -> bool {
        self.streams.get(point.stream).is_none_or(|stream| stream.done_count >= point.position)
    }

    /// The host has observed that a stream is empty: advances the host's clock.
    pub(crate) fn host_saw_stream(&mut self, handle: Handle) {
        self.host_learns_stream(handle);
        let stream_ns = self.streams.get(handle).map_or(0, |stream| stream.time_ns);
        self.host_ns = self.host_ns.max(stream_ns);
    }

    /// The host has observed that every stream of a context is empty.
    pub(crate) fn host_saw_context(&mut self, context: Handle) {
        self.host_learns_context(context);
        let of_context = self.streams.iter().filter(|(_, stream)| stream.context == context);
        let latest_ns = of_context.map(|(_, stream)| stream.time_ns).max();
        self.host_ns = self.host_ns.max(latest_ns.unwrap_or(0));
    }

    pub(crate) fn is_stream_idle(&self, handle: Handle) -> bool {
        self.streams.get(handle).is_none_or(Stream::is_idle)
    }

    /// True if no stream of a context has pending work.
    pub(crate) fn is_context_idle(&self, context: Handle) -> bool {
        !self.active.iter().any(|&stream| self.streams.get(stream).is_some_and(|s| s.context == context))
    }

    /// True if no stream of a device has pending work.
    pub(crate) fn is_device_idle(&self, device: usize) -> bool {
        !self.active.iter().any(|&stream| self.streams.get(stream).is_some_and(|s| s.device == device))
    }

    pub(crate) fn stream_create(&mut self, context: Handle, flags: u32, priority: i32) -> Answer<Handle> {
        if flags & !NON_BLOCKING != 0 {
            return Err(INVALID_VALUE);
        }
        let device = self.contexts.get(context).ok_or(INVALID_CONTEXT)?.device;
        let priority = priority.clamp(GREATEST_PRIORITY, LEAST_PRIORITY);
        self.streams.insert(Stream::new(context, device, flags, priority, Role::Made))
    }

    /// Removes the handle right away. The stream is removed after its queued work has run.
    pub(crate) fn stream_destroy(&mut self, handle: Handle) -> Answer<()> {
        let Some(stream) = self.streams.get_mut(handle).filter(|stream| !stream.is_closing) else {
            self.note_if_gone(handle);
            return Err(INVALID_HANDLE);
        };
        if stream.role != Role::Made {
            return Err(INVALID_VALUE);
        }
        stream.is_closing = true;
        self.remove_if_drained(handle);
        Ok(())
    }

    pub(crate) fn remove_if_drained(&mut self, handle: Handle) {
        if self.streams.get(handle).is_some_and(|stream| stream.is_closing && stream.is_idle())
            && let Some(stream) = self.streams.remove(handle)
        {
            self.clock_gone(&stream);
        }
    }
}

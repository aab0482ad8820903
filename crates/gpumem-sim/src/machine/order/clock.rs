//! Vector clocks: how waits, events, values and synchronisation merge the clocks of streams and of the host.

use crate::base::handle::Handle;
use crate::machine::Machine;
use crate::order::Point;
use crate::order::clock::{Gone, HOST, Mark, Order, VectorClock};
use crate::stream::operation::Operation;
use crate::stream::{Queued, Role, Stream};
use std::sync::{Arc, OnceLock};

impl Machine {
    /// The clock of an operation that is being queued, if race detection is on.
    pub(crate) fn order_of(&mut self, handle: Handle, operation: &Operation) -> Order {
        self.number_stream(handle);
        if self.races.is_none() {
            return Order::default();
        }
        let waits_for = match operation {
            Operation::Wait { event: Some(event), .. } => {
                self.events.get(*event).and_then(|event| event.mark.clone())
            }
            Operation::Wait { point, .. } => self.lesson_of(*point),
            _ => None,
        };
        let legacy = self.legacy_knowledge(handle);
        let (Some(races), Some(stream)) = (&mut self.races, self.streams.get_mut(handle)) else {
            return Order::default();
        };
        let clocks = &mut races.clocks;
        if stream.clock.stream_index.is_none() {
            let vacant = clocks.assign_index();
            (stream.clock.stream_index, stream.clock.base) = (Some(vacant.stream_index), vacant.time);
        }
        let mut host_clock = legacy;
        if stream.clock.host_version != clocks.host_version {
            stream.clock.host_version = clocks.host_version;
            host_clock.get_or_insert_default().merge(&clocks.host);
        }
        Order { call: self.call_count, host_clock: host_clock.map(Box::new), waits_for, mark: None }
    }

    /// Sets the clock of an internal stream: it has no number among the program's streams, and is ordered after all work of
    /// destroyed streams of its context.
    pub(crate) fn clock_stands_apart(&mut self, handle: Handle, context: Handle) {
        let Some(stream) = self.streams.get_mut(handle) else { return };
        stream.clock.number = u32::MAX;
        let gone = self.races.as_ref().map_or(&[][..], |races| &races.clocks.gone);
        for gone in gone.iter().filter(|gone| gone.context == context) {
            stream.clock.vector.merge_snapshot(&gone.end);
        }
    }

    /// Assigns the stream's number: from 1, in the order of first use.
    fn number_stream(&mut self, handle: Handle) {
        if let Some(stream) = self.streams.get_mut(handle).filter(|stream| stream.clock.number == 0) {
            self.stream_number += 1;
            stream.clock.number = self.stream_number;
        }
    }

    /// The clock by the implicit order of the legacy stream, for streams without pending work.
    fn legacy_knowledge(&mut self, handle: Handle) -> Option<VectorClock> {
        let stream = self.streams.get(handle)?;
        let (context, role, is_blocking) = (stream.context, stream.role, stream.is_blocking());
        let mut knowledge = None;
        if role == Role::Legacy {
            for other in self.streams.values_mut() {
                let is_news = other.is_idle() && other.clock.before_legacy < other.done_count;
                if is_news && other.context == context && other.role != Role::Legacy && other.is_blocking() {
                    other.clock.before_legacy = other.done_count;
                    let snapshot = other.snapshot();
                    snapshot.map(|snapshot| {
                        knowledge.get_or_insert_with(VectorClock::default).merge_snapshot(&snapshot)
                    });
                }
            }
            let gone = self.races.as_ref().map_or(&[][..], |races| &races.clocks.gone);
            for gone in gone.iter().filter(|gone| gone.context == context && gone.is_blocking) {
                knowledge.get_or_insert_with(VectorClock::default).merge_snapshot(&gone.end);
            }
        } else if is_blocking {
            let legacy = self.contexts.get(context)?.legacy;
            let legacy = self.streams.get(legacy).filter(|legacy| legacy.is_idle())?;
            let (done_count, snapshot) = (legacy.done_count, legacy.snapshot()?);
            let stream = self.streams.get_mut(handle)?;
            if stream.clock.after_legacy < done_count {
                stream.clock.after_legacy = done_count;
                knowledge.get_or_insert_with(VectorClock::default).merge_snapshot(&snapshot);
            }
        }
        knowledge
    }

    /// The snapshot to merge after a wait for a point. For a point that was passed before the wait, the current clock of its
    /// stream.
    fn lesson_of(&mut self, point: Point) -> Option<Mark> {
        self.mark_at(point).or_else(|| {
            let snapshot = self.streams.get(point.stream)?.clock.snapshot(point.position)?;
            Some(Arc::new(OnceLock::from(snapshot)))
        })
    }

    /// The mark of an operation that is still queued.
    pub(crate) fn mark_at(&mut self, point: Point) -> Option<Mark> {
        self.races.as_ref()?;
        let stream = self.streams.get_mut(point.stream)?;
        let index = point.position.checked_sub(stream.done_count + 1)?;
        let queued = stream.queue.get_mut(usize::try_from(index).ok()?)?;
        Some(queued.order.mark.get_or_insert_default().clone())
    }

    /// Called before an operation runs: merges its clock into that of its stream.
    pub(crate) fn order_before(&mut self, handle: Handle, queued: &mut Queued) -> Order {
        let order = core::mem::take(&mut queued.order);
        if self.races.is_none() {
            return order;
        }
        let Some(stream) = self.streams.get_mut(handle) else { return order };
        let vector = &mut stream.clock.vector;
        vector.host = vector.host.max(order.call);
        if let Some(host_clock) = &order.host_clock {
            vector.merge(host_clock);
        }
        if let Some(snapshot) = order.waits_for.as_ref().and_then(|mark| mark.get()) {
            vector.merge_snapshot(snapshot);
        }
        order
    }

    /// Called after an operation has run: publishes its snapshot for the operations that wait for it.
    pub(crate) fn order_after(&mut self, handle: Handle, order: &Order) {
        let Some(mark) = &order.mark else { return };
        if let Some(stream) = self.streams.get(handle)
            && let Some(snapshot) = stream.clock.snapshot(stream.done_count + 1)
        {
            // Set once: an operation runs once.
            let _ = mark.set(snapshot);
        }
    }

    /// Notes that the running operation writes a value for which others may wait.
    pub(crate) fn clock_tells_value(&mut self, place: u64) {
        let Some(running) = self.running else { return };
        let (Some(races), Some(stream)) = (&mut self.races, self.streams.get(running.stream)) else { return };
        if let Some(snapshot) = stream.clock.snapshot(running.position) {
            races.clocks.values.insert(place, snapshot);
        }
    }

    /// Notes that the running operation has waited for a value that a stream wrote, by a value write or other work, or the host
    /// if it has access.
    pub(crate) fn clock_learns_value(&mut self, place: u64, may_be_hosts: bool) {
        let (Some(running), call_count) = (self.running, self.call_count) else { return };
        let (Some(races), Some(stream)) = (&self.races, self.streams.get_mut(running.stream)) else { return };
        let vector = &mut stream.clock.vector;
        if let Some(snapshot) = races.clocks.values.get(&place) {
            vector.merge_snapshot(snapshot);
        }
        for writer in races.shadow.last_writers(place).filter(|writer| writer.stream_index != HOST) {
            vector.merge_epoch(writer);
        }
        if may_be_hosts {
            vector.merge(&races.clocks.host);
            vector.host = call_count;
        }
    }

    /// Notes that a stream is destroyed. Its clock is kept until the host's clock includes it.
    pub(crate) fn clock_gone(&mut self, stream: &Stream) {
        let Some(races) = &mut self.races else { return };
        if let Some(end) = stream.snapshot() {
            let (context, device) = (stream.context, stream.device);
            races.clocks.gone.push(Gone { context, device, is_blocking: stream.is_blocking(), end });
        }
    }

    /// Notes that the host has observed all completed work of a stream.
    pub(crate) fn host_learns_stream(&mut self, handle: Handle) {
        self.pools_seen(|seen, _| seen == handle);
        if let (Some(races), Some(stream)) = (&mut self.races, self.streams.get(handle)) {
            races.clocks.host_merges(stream.snapshot());
        }
    }

    pub(crate) fn host_learns_event(&mut self, event: Handle) {
        self.pools_seen_event(event);
        let mark = self.events.get(event).and_then(|event| event.mark.as_ref());
        if let (Some(races), Some(mark)) = (&mut self.races, mark) {
            races.clocks.host_merges(mark.get().cloned());
        }
    }

    pub(crate) fn host_learns_context(&mut self, context: Handle) {
        self.host_learns_where(|stream| stream.context == context, |gone| gone.context == context);
    }

    pub(crate) fn host_learns_device(&mut self, device: usize) {
        self.host_learns_where(|stream| stream.device == device, |gone| gone.device == device);
    }

    pub(crate) fn host_learns_all(&mut self) {
        self.host_learns_where(|_| true, |_| true);
    }

    fn host_learns_where(
        &mut self,
        is_meant: impl Fn(&Stream) -> bool,
        is_gone_meant: impl Fn(&Gone) -> bool,
    ) {
        self.pools_seen(|_, stream| is_meant(stream));
        let Some(races) = &mut self.races else { return };
        for (_, stream) in self.streams.iter().filter(|(_, stream)| is_meant(stream)) {
            races.clocks.host_merges(stream.snapshot());
        }
        let ends = races.clocks.gone.iter().filter(|gone| is_gone_meant(gone)).map(|gone| gone.end.clone());
        for end in ends.collect::<Vec<_>>() {
            races.clocks.host_merges(Some(end));
        }
    }

    /// Notes that a host function of a stream has returned. It ran after the earlier work of the stream and before the later
    /// work, so the clocks of stream and host include each other.
    pub(crate) fn host_function_ran(&mut self, handle: Handle) {
        let call_count = self.call_count;
        let (Some(races), Some(stream)) = (&mut self.races, self.streams.get_mut(handle)) else { return };
        stream.clock.vector.merge(&races.clocks.host);
        stream.clock.vector.host = call_count;
        races.clocks.host_merges(stream.clock.snapshot(stream.done_count + 1));
    }
}

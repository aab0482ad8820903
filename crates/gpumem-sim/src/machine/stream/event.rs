//! Events: recording, waits and times.

use crate::base::codes::{Answer, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NOT_READY};
use crate::base::handle::Handle;
use crate::machine::Machine;
use crate::order::Point;
use crate::order::happens_before::HappensBefore;
use crate::stream::event::{DISABLE_TIMING, Event, FLAGS_KNOWN, INTERPROCESS};
use crate::stream::operation::Operation;
use crate::stream::{LEAST_PRIORITY, NON_BLOCKING};

impl Machine {
    pub(crate) fn event_create(&mut self, context: Handle, flags: u32) -> Answer<Handle> {
        let is_interprocess = flags & INTERPROCESS != 0;
        if flags & !FLAGS_KNOWN != 0 || is_interprocess && flags & DISABLE_TIMING == 0 {
            return Err(INVALID_VALUE);
        }
        self.events.insert(Event {
            context,
            flags,
            point: None,
            time_ns: None,
            captured: None,
            happens_before: HappensBefore::default(),
            is_shared: false,
            mark: None,
        })
    }

    pub(crate) fn event_destroy(&mut self, event: Handle) -> Answer<()> {
        self.events.remove(event).map(drop).ok_or(INVALID_HANDLE)
    }

    /// Records an event on a stream of the event's own context.
    pub(crate) fn event_record(&mut self, event: Handle, stream: Handle) -> Answer<()> {
        let context = self.streams.get(stream).ok_or(INVALID_HANDLE)?.context;
        if self.events.get(event).ok_or(INVALID_HANDLE)?.context != context {
            return Err(INVALID_HANDLE);
        }
        if self.is_capturing(stream) {
            return self.capture_record(event, stream);
        }
        let point = self.enqueue(stream, Operation::Record { event });
        let mark = self.mark_at(point);
        let happens_before =
            self.streams.get(stream).map(|stream| stream.happens_before.clone()).unwrap_or_default();
        let event = self.events.get_mut(event).ok_or(INVALID_HANDLE)?;
        (event.point, event.happens_before, event.mark) = (Some(point), happens_before, mark);
        (event.time_ns, event.captured) = (None, None);
        Ok(())
    }

    /// Records an event behind all queued work of the streams of its context: on an internal stream that waits for each of
    /// them.
    pub(crate) fn event_record_context(&mut self, event: Handle, context: Handle) -> Answer<()> {
        if self.events.get(event).ok_or(INVALID_HANDLE)?.context != context {
            return Err(INVALID_HANDLE);
        }
        let of_context = self.streams.iter().filter(|(_, stream)| stream.context == context);
        let ends: Vec<Point> = of_context
            .map(|(handle, stream)| Point { stream: handle, position: stream.queued_count })
            .filter(|end| end.position > 0)
            .collect();
        let recorder = self.stream_create(context, NON_BLOCKING, LEAST_PRIORITY)?;
        self.clock_stands_apart(recorder, context);
        for end in ends {
            self.enqueue(recorder, Operation::Wait { point: end, event: None });
        }
        let recorded = self.event_record(event, recorder);
        self.stream_destroy(recorder)?;
        recorded
    }

    /// Makes a stream wait for an event of any context. A wait for a complete event is queued too, because it carries the event's
    /// time.
    pub(crate) fn stream_wait(&mut self, stream: Handle, event: Handle) -> Answer<()> {
        if self.is_capturing(stream) || self.events.get(event).is_some_and(|event| event.captured.is_some()) {
            return self.capture_wait(stream, event);
        }
        self.event_point(event)?;
        if let Some(point) = self.events.get(event).ok_or(INVALID_HANDLE)?.point
            && point.stream != stream
        {
            self.enqueue(stream, Operation::Wait { point, event: Some(event) });
        }
        Ok(())
    }

    /// The point to wait for, unless the event is complete.
    pub(crate) fn event_point(&self, event: Handle) -> Answer<Option<Point>> {
        let event = self.events.get(event).ok_or(INVALID_HANDLE)?;
        self.check_context(event.context)?;
        Ok(event.point.filter(|&point| !self.is_done(point)))
    }

    /// Called when a record runs. A later record of the event may have replaced its point by then.
    pub(crate) fn event_mark(&mut self, event: Handle, at: Point, time_ns: u64) {
        if let Some(event) = self.events.get_mut(event).filter(|event| event.point == Some(at)) {
            event.time_ns = Some(time_ns);
        }
    }

    /// The host has observed that an event is complete: advances the host's clock.
    pub(crate) fn host_saw_event(&mut self, event: Handle) {
        self.host_learns_event(event);
        let event_ns = self.events.get(event).and_then(|event| event.time_ns);
        self.host_ns = self.host_ns.max(event_ns.unwrap_or(0));
    }

    pub(crate) fn elapsed_ms(&self, start: Handle, end: Handle) -> Answer<f32> {
        let (start, end) = (self.timed(start)?, self.timed(end)?);
        if start.context != end.context {
            return Err(INVALID_HANDLE);
        }
        let (Some(start), Some(end)) = (start.time_ns, end.time_ns) else { return Err(NOT_READY) };
        Ok((end as f64 - start as f64) as f32 / 1e6)
    }

    fn timed(&self, event: Handle) -> Answer<&Event> {
        let event = self.events.get(event).ok_or(INVALID_HANDLE)?;
        self.contexts.get(event.context).ok_or(INVALID_CONTEXT)?;
        if event.flags & DISABLE_TIMING != 0 || event.point.is_none() {
            return Err(INVALID_HANDLE);
        }
        Ok(event)
    }
}

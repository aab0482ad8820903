//! The order that the program has stated so far, updated by each wait. Pools base reuse on it.

use crate::base::handle::Handle;
use crate::machine::Machine;
use crate::order::Point;
use crate::order::happens_before::HappensBefore;
use crate::stream::{Role, Stream};

impl Machine {
    /// Notes a wait for a point, queued on a stream.
    pub(crate) fn happens_before_wait(&mut self, handle: Handle, point: Point, event: Option<Handle>) {
        let happens_before = match event.and_then(|event| self.events.get(event)) {
            Some(event) if event.point == Some(point) => event.happens_before.clone(),
            _ => self.happens_before_end(point),
        };
        let Some(stream) = self.streams.get_mut(handle) else { return };
        let before = stream.happens_before.0.len();
        stream.happens_before.merge(&happens_before);
        stream.happens_before.add(point);
        if stream.happens_before.0.len() > before && stream.happens_before.is_crowded() {
            let mut happens_before = core::mem::take(&mut stream.happens_before);
            happens_before.retain(|point| self.streams.get(point.stream).is_some());
            if let Some(stream) = self.streams.get_mut(handle) {
                stream.happens_before = happens_before;
            }
        }
    }

    /// The points before a point, if it is the end of its stream.
    fn happens_before_end(&self, point: Point) -> HappensBefore {
        let stream = self.streams.get(point.stream).filter(|stream| stream.queued_count == point.position);
        stream.map(|stream| stream.happens_before.clone()).unwrap_or_default()
    }

    /// The last position of another stream that is certainly ordered before the next work of a stream.
    pub(crate) fn happens_before_of(&self, handle: Handle, other: Handle) -> Option<u64> {
        let stream = self.streams.get(handle)?;
        stream.happens_before.known(other).max(self.happens_before_by_legacy(stream, other))
    }

    /// The points before the stream's next work by the implicit order of the legacy stream. Streams without pending work are
    /// included here.
    fn happens_before_by_legacy(&self, stream: &Stream, other: Handle) -> Option<u64> {
        if stream.role == Role::Legacy {
            let other = self.streams.get(other)?;
            return (other.context == stream.context && other.is_blocking()).then_some(u64::MAX);
        }
        let legacy = self.contexts.get(stream.context).filter(|_| stream.is_blocking())?.legacy;
        if legacy == other { Some(u64::MAX) } else { self.streams.get(legacy)?.happens_before.known(other) }
    }
}

//! What a stream's next operation comes after, as far as the program has said so by now.
//!
//! `clock.rs` knows what was in order when work *runs*, and only while races are looked for. A pool has to know at the
//! call whether a stream that asks for memory is behind another stream's free that may still be queued. So each stream
//! keeps the points that it was made to wait for, and what those were behind in turn; an event takes along what its
//! stream knew where it was recorded. What is kept is shared until it changes, and costs nothing where nobody waits.
//!
//! It errs on one side only: where a wait names a point in the middle of a stream without an event, what lies before
//! that point on third streams is not known, and the pool takes other memory.

use super::handle::Handle;
use super::machine::Machine;
use super::stream::{Point, Role, Stream};
use std::sync::Arc;

/// Points that something comes after: of each stream the latest, ordered by stream.
#[derive(Clone, Debug, Default)]
pub(super) struct Behind(Arc<Vec<Point>>);

impl Behind {
    /// Whether a point is among those, or before one.
    pub(super) fn covers(&self, point: Point) -> bool {
        self.known(point.stream) >= Some(point.position)
    }

    /// The latest of those points on a stream.
    fn known(&self, stream: Handle) -> Option<u64> {
        Some(self.0[self.place(stream).ok()?].position)
    }

    pub(super) fn learn(&mut self, point: Point) {
        match self.place(point.stream) {
            Ok(index) if self.0[index].position >= point.position => {}
            Ok(index) => Arc::make_mut(&mut self.0)[index] = point,
            Err(index) => Arc::make_mut(&mut self.0).insert(index, point),
        }
    }

    pub(super) fn learn_all(&mut self, other: &Self) {
        if self.0.is_empty() {
            self.0 = other.0.clone();
        } else if !Arc::ptr_eq(&self.0, &other.0) {
            other.0.iter().for_each(|&point| self.learn(point));
        }
    }

    fn place(&self, stream: Handle) -> Result<usize, usize> {
        self.0.binary_search_by_key(&stream, |point| point.stream)
    }

    /// Worth a look at whether all of its streams are still there: at 64, 128, … of them.
    fn is_crowded(&self) -> bool {
        self.0.len() >= CROWD && self.0.len().is_power_of_two()
    }

    fn retain(&mut self, keep: impl Fn(Point) -> bool) {
        Arc::make_mut(&mut self.0).retain(|&point| keep(point));
    }
}

impl Machine {
    /// A wait for a point is queued on a stream.
    pub(super) fn behind_wait(&mut self, handle: Handle, point: Point, event: Option<Handle>) {
        let behind = match event.and_then(|event| self.events.get(event)) {
            Some(event) if event.point == Some(point) => event.behind.clone(),
            _ => self.behind_end(point),
        };
        let Some(stream) = self.streams.get_mut(handle) else { return };
        let before = stream.behind.0.len();
        stream.behind.learn_all(&behind);
        stream.behind.learn(point);
        if stream.behind.0.len() > before && stream.behind.is_crowded() {
            let mut behind = core::mem::take(&mut stream.behind);
            behind.retain(|point| self.streams.get(point.stream).is_some());
            if let Some(stream) = self.streams.get_mut(handle) {
                stream.behind = behind;
            }
        }
    }

    /// What a point comes after, if it is the end of its stream.
    fn behind_end(&self, point: Point) -> Behind {
        let stream = self.streams.get(point.stream).filter(|stream| stream.queued_count == point.position);
        stream.map(|stream| stream.behind.clone()).unwrap_or_default()
    }

    /// Up to which position of another stream whatever a stream is given next surely comes after it.
    pub(super) fn behind_of(&self, handle: Handle, other: Handle) -> Option<u64> {
        let stream = self.streams.get(handle)?;
        stream.behind.known(other).max(self.behind_by_legacy(stream, other))
    }

    /// The same by the implicit order of the legacy stream, for which nothing is queued where all has run.
    fn behind_by_legacy(&self, stream: &Stream, other: Handle) -> Option<u64> {
        if stream.role == Role::Legacy {
            let other = self.streams.get(other)?;
            return (other.context == stream.context && other.is_blocking()).then_some(u64::MAX);
        }
        let legacy = self.contexts.get(stream.context).filter(|_| stream.is_blocking())?.legacy;
        if legacy == other { Some(u64::MAX) } else { self.streams.get(legacy)?.behind.known(other) }
    }
}

const CROWD: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn point(stream: u64, position: u64) -> Point {
        Point { stream: Handle::from_bits(stream), position }
    }

    #[test]
    fn of_each_stream_the_latest_point_counts() {
        let mut behind = Behind::default();
        for known in [point(3, 5), point(1, 2), point(3, 4)] {
            behind.learn(known);
        }
        assert!(behind.covers(point(3, 5)) && behind.covers(point(1, 1)));
        assert!(!behind.covers(point(3, 6)) && !behind.covers(point(2, 1)));
    }

    #[test]
    fn what_was_taken_along_does_not_change_afterwards() {
        let mut stream = Behind::default();
        stream.learn(point(1, 1));
        let event = stream.clone();
        stream.learn(point(1, 9));
        let mut waiter = Behind::default();
        waiter.learn(point(2, 7));
        waiter.learn_all(&event);
        assert!(waiter.covers(point(1, 1)) && waiter.covers(point(2, 7)) && !waiter.covers(point(1, 2)));
    }
}

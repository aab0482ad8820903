//! The points that happen before the next operation of a stream, as far as the program has ordered them.
//!
//! `clock.rs` has the order when work *runs*, and only while races are detected. A pool needs to determine at the call whether a
//! free of another stream, which may still be queued, happens before the allocation. So each stream keeps the points that it was
//! made to wait for, and those that happen before them; an event keeps the points of its stream at the record. The points are
//! shared until they change, and cost nothing in programs without waits.
//!
//! The result may be incomplete, never wrong: if a wait names a point in the middle of a stream without an event, the points of
//! third streams before it are unknown, and the pool takes other memory.

use crate::base::handle::Handle;
use crate::order::Point;
use std::sync::Arc;

/// Points that happen before: the latest of each stream, ordered by stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct HappensBefore(pub(crate) Arc<Vec<Point>>);

impl HappensBefore {
    /// True if a point is one of those or before one of them.
    pub(crate) fn covers(&self, point: Point) -> bool {
        self.known(point.stream) >= Some(point.position)
    }

    /// The latest of those points on a stream.
    pub(crate) fn known(&self, stream: Handle) -> Option<u64> {
        Some(self.0[self.place(stream).ok()?].position)
    }

    pub(crate) fn add(&mut self, point: Point) {
        match self.place(point.stream) {
            Ok(index) if self.0[index].position >= point.position => {}
            Ok(index) => Arc::make_mut(&mut self.0)[index] = point,
            Err(index) => Arc::make_mut(&mut self.0).insert(index, point),
        }
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        if self.0.is_empty() {
            self.0 = other.0.clone();
        } else if !Arc::ptr_eq(&self.0, &other.0) {
            other.0.iter().for_each(|&point| self.add(point));
        }
    }

    fn place(&self, stream: Handle) -> Result<usize, usize> {
        self.0.binary_search_by_key(&stream, |point| point.stream)
    }

    /// True if destroyed streams should be removed: at 64, 128, … streams.
    pub(crate) fn is_crowded(&self) -> bool {
        self.0.len() >= CROWD && self.0.len().is_power_of_two()
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(Point) -> bool) {
        Arc::make_mut(&mut self.0).retain(|&point| keep(point));
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
        let mut happens_before = HappensBefore::default();
        for known in [point(3, 5), point(1, 2), point(3, 4)] {
            happens_before.add(known);
        }
        assert!(happens_before.covers(point(3, 5)) && happens_before.covers(point(1, 1)));
        assert!(!happens_before.covers(point(3, 6)) && !happens_before.covers(point(2, 1)));
    }

    #[test]
    fn what_was_taken_along_does_not_change_afterwards() {
        let mut stream = HappensBefore::default();
        stream.add(point(1, 1));
        let event = stream.clone();
        stream.add(point(1, 9));
        let mut waiter = HappensBefore::default();
        waiter.add(point(2, 7));
        waiter.merge(&event);
        assert!(waiter.covers(point(1, 1)) && waiter.covers(point(2, 7)) && !waiter.covers(point(1, 2)));
    }
}

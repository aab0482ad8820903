//! Freed blocks of a pool that are not free for all streams yet: the free is queued, or has run but is not known to be complete.
//!
//! The stream of a block may reuse it at once, entirely or in part, because its next operation comes after the free. The pool
//! (`pool_reuse.rs`) decides when other streams may. Pure.

use crate::base::handle::Handle;
use crate::order::Point;
use std::collections::{BTreeMap, BTreeSet};

/// The blocks, by address, by stream and size, and by stream and position of the free.
#[derive(Default)]
pub(crate) struct Pending {
    by_base: BTreeMap<u64, (u64, Point)>,
    by_size: BTreeSet<(Handle, u64, u64)>,
    by_position: BTreeSet<(Handle, u64, u64)>,
}

impl Pending {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_base.is_empty()
    }

    /// Adds a block whose free is queued; `freed` is the point of the free.
    pub(crate) fn insert(&mut self, base: u64, size_bytes: u64, freed: Point) {
        self.by_base.insert(base, (size_bytes, freed));
        self.by_size.insert((freed.stream, size_bytes, base));
        self.by_position.insert((freed.stream, freed.position, base));
    }

    fn remove(&mut self, base: u64) -> Option<(u64, Point)> {
        let (size_bytes, freed) = self.by_base.remove(&base)?;
        self.by_size.remove(&(freed.stream, size_bytes, base));
        self.by_position.remove(&(freed.stream, freed.position, base));
        Some((size_bytes, freed))
    }

    /// The smallest block that a stream has freed itself.
    pub(crate) fn of_stream(&self, stream: Handle, size_bytes: u64) -> Option<u64> {
        let (owner, _, base) = self.by_size.range((stream, size_bytes, 0)..).next()?;
        (*owner == stream).then_some(*base)
    }

    /// The first sufficiently large block, freed on any stream.
    pub(crate) fn of_any(&self, size_bytes: u64) -> Option<u64> {
        self.by_base.iter().find(|(_, (found, _))| *found >= size_bytes).map(|(&base, _)| base)
    }

    /// A sufficiently large block, among those that a stream freed up to its known position.
    pub(crate) fn of_known(&self, size_bytes: u64, known: impl Fn(Handle) -> Option<u64>) -> Option<u64> {
        let is_good = |base: &u64| self.by_base.get(base).is_some_and(|(found, _)| *found >= size_bytes);
        let mut from = Handle::NONE;
        while let Some(&(stream, ..)) = self.by_position.range((from, 0, 0)..).next() {
            if let Some(last) = known(stream) {
                let blocks = self.by_position.range((stream, 0, 0)..=(stream, last, u64::MAX));
                if let Some(base) = blocks.map(|&(.., base)| base).find(is_good) {
                    return Some(base);
                }
            }
            from = Handle::from_bits(stream.to_bits() + 1);
        }
        None
    }

    /// Removes the rest of a block whose free, at this point, has run: the part that its stream has not reused.
    pub(crate) fn take_freed(&mut self, base: u64, size_bytes: u64, at: Point) -> Vec<(u64, u64)> {
        let pieces = self.by_base.range(base..base + size_bytes);
        let freed = pieces.filter(|(_, (_, freed))| *freed == at).map(|(&base, _)| base);
        let freed: Vec<u64> = freed.collect();
        freed.into_iter().filter_map(|base| Some((base, self.remove(base)?.0))).collect()
    }

    /// Removes every block that `is_meant` accepts. Returns address and size of each.
    pub(crate) fn take_where(&mut self, is_meant: impl Fn(u64, Point) -> bool) -> Vec<(u64, u64)> {
        let meant = self.by_base.iter().filter(|&(&base, &(_, freed))| is_meant(base, freed));
        let meant: Vec<u64> = meant.map(|(&base, _)| base).collect();
        meant.into_iter().filter_map(|base| Some((base, self.remove(base)?.0))).collect()
    }

    /// The bytes of a range in blocks whose free `is_meant` accepts.
    pub(crate) fn bytes_within(&self, base: u64, size_bytes: u64, is_meant: impl Fn(Point) -> bool) -> u64 {
        let within = self.by_base.range(base..base + size_bytes);
        within.filter(|(_, (_, freed))| is_meant(*freed)).map(|(_, (found, _))| found).sum()
    }

    /// Takes the front of a block; the rest stays.
    pub(crate) fn split(&mut self, base: u64, size_bytes: u64) -> Option<Point> {
        let (found_bytes, freed) = self.remove(base)?;
        if found_bytes > size_bytes {
            self.insert(base + size_bytes, found_bytes - size_bytes, freed);
        }
        Some(freed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_stream_has_taken_again_is_not_freed_twice() {
        let point = |position| Point { stream: Handle::NONE, position };
        let mut pending = Pending::default();
        pending.insert(0, 100, point(1));
        assert_eq!(pending.of_stream(Handle::NONE, 101), None);
        assert_eq!(pending.of_stream(Handle::NONE, 30), Some(0));
        assert_eq!(pending.split(0, 30), Some(point(1)));
        // The front is allocated and freed again later.
        pending.insert(0, 30, point(2));
        assert_eq!(pending.take_freed(0, 100, point(1)), [(30, 70)]);
        assert_eq!(pending.take_freed(0, 30, point(2)), [(0, 30)]);
        assert_eq!(pending.of_any(1), None);
    }

    #[test]
    fn only_what_was_freed_up_to_a_known_position_is_found() {
        let stream = Handle::from_bits;
        let mut pending = Pending::default();
        pending.insert(0, 100, Point { stream: stream(1), position: 5 });
        pending.insert(100, 100, Point { stream: stream(2), position: 3 });
        pending.insert(200, 200, Point { stream: stream(2), position: 4 });
        let known = |one, two| move |asked| if asked == stream(1) { one } else { two };
        assert_eq!(pending.of_known(1, known(Some(4), None)), None);
        assert_eq!(pending.of_known(1, known(Some(5), None)), Some(0));
        assert_eq!(pending.of_known(150, known(Some(9), Some(3))), None);
        assert_eq!(pending.of_known(150, known(Some(9), Some(4))), Some(200));
    }
}

//! Blocks of a pool whose free is queued and has not run.
//!
//! Their own stream may take them again at once, whole or in part: what it queues comes after the free. When the free
//! runs, what is left of the block is anybody's. Pure.

use super::handle::Handle;
use super::stream::Point;
use std::collections::{BTreeMap, BTreeSet};

/// The blocks, by address and by stream and size.
#[derive(Default)]
pub(super) struct Pending {
    by_base: BTreeMap<u64, (u64, Point)>,
    by_size: BTreeSet<(Handle, u64, u64)>,
}

impl Pending {
    /// A free is queued; `freed` is its point.
    pub(super) fn insert(&mut self, base: u64, size_bytes: u64, freed: Point) {
        self.by_base.insert(base, (size_bytes, freed));
        self.by_size.insert((freed.stream, size_bytes, base));
    }

    fn remove(&mut self, base: u64) -> Option<(u64, Point)> {
        let (size_bytes, freed) = self.by_base.remove(&base)?;
        self.by_size.remove(&(freed.stream, size_bytes, base));
        Some((size_bytes, freed))
    }

    /// The smallest block that a stream has freed itself.
    pub(super) fn of_stream(&self, stream: Handle, size_bytes: u64) -> Option<u64> {
        let (owner, _, base) = self.by_size.range((stream, size_bytes, 0)..).next()?;
        (*owner == stream).then_some(*base)
    }

    /// The first block that is large enough, whoever freed it.
    pub(super) fn of_any(&self, size_bytes: u64) -> Option<u64> {
        self.by_base.iter().find(|(_, (found, _))| *found >= size_bytes).map(|(&base, _)| base)
    }

    /// Takes what is left of a block whose free, at this point, has run: what its stream has not taken again.
    pub(super) fn take_freed(&mut self, base: u64, size_bytes: u64, at: Point) -> Vec<(u64, u64)> {
        let pieces = self.by_base.range(base..base + size_bytes);
        let freed = pieces.filter(|(_, (_, freed))| *freed == at).map(|(&base, _)| base);
        let freed: Vec<u64> = freed.collect();
        freed.into_iter().filter_map(|base| Some((base, self.remove(base)?.0))).collect()
    }

    /// Takes the front of a block; the rest stays.
    pub(super) fn split(&mut self, base: u64, size_bytes: u64) -> Option<Point> {
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
        // The front is taken again and freed again, later.
        pending.insert(0, 30, point(2));
        assert_eq!(pending.take_freed(0, 100, point(1)), [(30, 70)]);
        assert_eq!(pending.take_freed(0, 30, point(2)), [(0, 30)]);
        assert_eq!(pending.of_any(1), None);
    }
}

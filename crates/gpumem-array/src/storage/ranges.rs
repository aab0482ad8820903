//! [`Ranges`]: the uses of a storage whose parts are used apart.
//!
//! The parts lie side by side and cover all bytes. Each has the points of the writes and reads that a later use may have to wait for.
//! A use cuts the parts at its ends, so that its points count for its own bytes alone.
//!
//! A list has at most [`PARTS_MAX`] parts. Neighbours with equal points become one; if there are still too many, the two smallest
//! neighbours do, and later uses of either wait for the uses of both. A part has at most one write and one read for each stream.

use crate::gpu::recording::Access;
use core::ops::Range;
use gpumem_pool::StreamPoint;

/// The uses of all bytes, as parts without gaps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(Vec<Part>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Part {
    /// It begins at the end of the part before it.
    end: u64,
    /// Writes that nothing after them is ordered behind, and reads since. Each list has one point for each stream.
    writes: Vec<StreamPoint>,
    reads: Vec<StreamPoint>,
}

impl Ranges {
    /// One part with all bytes.
    pub(super) fn new(write: StreamPoint, reads: impl IntoIterator<Item = StreamPoint>) -> Self {
        let mut part = Part { end: u64::MAX, ..Part::default() };
        part.add(write, Access::Write);
        reads.into_iter().for_each(|read| part.add(read, Access::Read));
        Self(vec![part])
    }

    /// The points that a use of these bytes must wait for.
    pub(super) fn conflicts(&self, bytes: Range<u64>, access: Access) -> Vec<StreamPoint> {
        let mut points = Vec::new();
        for part in &self.0[self.first(bytes.start)..] {
            let reads = if access == Access::Write { &part.reads[..] } else { &[] };
            for point in part.writes.iter().chain(reads) {
                if !points.contains(point) {
                    points.push(*point);
                }
            }
            if part.end >= bytes.end {
                break;
            }
        }
        points
    }

    /// Replaces the uses that a write is ordered behind by `ordered`, the work on the stream of the write so far. Returns whether
    /// another stream had used the bytes.
    pub(super) fn begin_write(
        &mut self,
        bytes: Range<u64>,
        ordered: StreamPoint,
        is_behind: impl Fn(StreamPoint) -> bool,
    ) -> bool {
        let mut is_changed = false;
        for part in self.cut(bytes) {
            for points in [&mut part.writes, &mut part.reads] {
                is_changed |= points.iter().any(|point| !point.has_stream_of(ordered));
                points.retain(|point| !is_behind(*point));
            }
            part.add(ordered, Access::Write);
        }
        is_changed
    }

    /// Adds a use. A write replaces earlier uses of its stream, a read earlier reads.
    pub(super) fn add(&mut self, bytes: Range<u64>, point: StreamPoint, access: Access) {
        self.cut(bytes).iter_mut().for_each(|part| part.add(point, access));
    }

    /// Replaces a point by an earlier one of its stream.
    pub(super) fn replace(&mut self, old: StreamPoint, new: StreamPoint) {
        let points = self.0.iter_mut().flat_map(|part| part.writes.iter_mut().chain(&mut part.reads));
        points.filter(|point| **point == old).for_each(|point| *point = new);
    }

    /// Forgets complete uses, and keeps the number of parts below the limit.
    pub(super) fn tidy(&mut self, is_complete: impl Fn(StreamPoint) -> bool) {
        for part in &mut self.0 {
            part.writes.retain(|point| !is_complete(*point));
            part.reads.retain(|point| !is_complete(*point));
        }
        self.0.dedup_by(|next, part| {
            let is_same = part.writes == next.writes && part.reads == next.reads;
            if is_same {
                part.end = next.end;
            }
            is_same
        });
        while self.0.len() > PARTS_MAX {
            let start = |index: usize| if index == 0 { 0 } else { self.0[index - 1].end };
            let size = |index: &usize| self.0[index + 1].end - start(*index);
            let Some(least) = (0..self.0.len() - 1).min_by_key(size) else { break };
            let next = self.0.remove(least + 1);
            let part = &mut self.0[least];
            part.end = next.end;
            next.writes.into_iter().for_each(|point| part.add(point, Access::Write));
            next.reads.into_iter().for_each(|point| part.add(point, Access::Read));
        }
    }

    /// All points: of the writes, and of the writes and reads.
    pub(super) fn points(&self, access: Access) -> Vec<StreamPoint> {
        self.conflicts(0..u64::MAX, access)
    }

    /// The point of the only use, if all bytes have no other.
    pub(super) fn only_write(&self) -> Option<StreamPoint> {
        match &self.0[..] {
            [Part { writes, reads, .. }] if reads.is_empty() => match writes[..] {
                [] => Some(StreamPoint::COMPLETE),
                [write] => Some(write),
                _ => None,
            },
            _ => None,
        }
    }

    /// The index of the part with this byte.
    fn first(&self, start: u64) -> usize {
        self.0.partition_point(|part| part.end <= start)
    }

    /// The parts of these bytes, cut at both ends.
    fn cut(&mut self, bytes: Range<u64>) -> &mut [Part] {
        let first = self.cut_at(bytes.start);
        let end = if bytes.end == u64::MAX { self.0.len() } else { self.cut_at(bytes.end) };
        &mut self.0[first..end.max(first)]
    }

    /// The index of the part that begins at this byte, cut there if none does.
    fn cut_at(&mut self, at: u64) -> usize {
        let index = self.first(at);
        let start = if index == 0 { 0 } else { self.0[index - 1].end };
        if start == at || index == self.0.len() {
            return index;
        }
        let before = Part { end: at, ..self.0[index].clone() };
        self.0.insert(index, before);
        index + 1
    }
}

impl Part {
    fn add(&mut self, point: StreamPoint, access: Access) {
        if point == StreamPoint::COMPLETE {
            return;
        }
        // Points of one stream are in the order of their words, and later ones include earlier ones.
        let is_new = |other: &StreamPoint| !other.has_stream_of(point) || other.to_bits() > point.to_bits();
        self.reads.retain(is_new);
        let points = match access {
            Access::Read => &mut self.reads,
            Access::Write => {
                self.writes.retain(is_new);
                &mut self.writes
            }
        };
        if !points.iter().any(|other| other.has_stream_of(point)) {
            points.push(point);
        }
    }
}

/// The maximum number of parts.
pub(super) const PARTS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A point of a stream. Epochs begin at 1, since the word 0 stands for completed work.
    fn point(stream: u64, epoch: u64) -> StreamPoint {
        StreamPoint::from_bits(((stream + 1) << 48) | epoch)
    }

    const SIZE: u64 = 96;

    #[derive(Clone, Debug)]
    struct Use {
        bytes: Range<u64>,
        stream: u64,
        access: Access,
    }

    fn uses() -> impl Strategy<Value = Vec<Use>> {
        let access = prop_oneof![Just(Access::Read), Just(Access::Write)];
        let one = (0..SIZE, 1..=SIZE, 0_u64..4, access).prop_map(|(start, len, stream, access)| Use {
            bytes: start..(start + len).min(SIZE),
            stream,
            access,
        });
        proptest::collection::vec(one, 1..200)
    }

    proptest! {
        /// Every use waits for all uses of its bytes that it conflicts with: directly, or for a later point of their stream, or for a
        /// use that waited for them.
        #[test]
        fn uses_are_behind_all_that_they_conflict_with(uses in uses()) {
            let mut ranges = Ranges::new(point(9, 1), []);
            // For each stream, the latest point of every stream that its work is behind.
            let mut behind = [[0_u64; 4]; 4];
            let mut at_point = std::collections::HashMap::new();
            let mut earlier: Vec<(Use, u64)> = Vec::new();
            for (index, one) in uses.iter().enumerate() {
                let (epoch, stream) = (index as u64 + 1, one.stream as usize);
                for conflict in ranges.conflicts(one.bytes.clone(), one.access) {
                    let Some(seen): Option<&[u64; 4]> = at_point.get(&conflict.to_bits()) else { continue };
                    for (mine, theirs) in behind[stream].iter_mut().zip(seen) {
                        *mine = (*mine).max(*theirs);
                    }
                }
                for (old, at) in &earlier {
                    let overlaps = old.bytes.start < one.bytes.end && one.bytes.start < old.bytes.end;
                    let conflicts = old.access == Access::Write || one.access == Access::Write;
                    if overlaps && conflicts {
                        prop_assert!(behind[stream][old.stream as usize] >= *at, "{old:?} {one:?}");
                    }
                }
                let now = point(one.stream, epoch);
                if one.access == Access::Write {
                    let known = behind[stream];
                    let is_behind = |other: StreamPoint| {
                        let of = (0..4).find(|stream| other.has_stream_of(point(*stream, 1)));
                        of.is_none_or(|of| known[of as usize] >= other.to_bits() & ((1 << 48) - 1))
                    };
                    ranges.begin_write(one.bytes.clone(), now, is_behind);
                }
                ranges.add(one.bytes.clone(), now, one.access);
                behind[stream][stream] = epoch;
                at_point.insert(now.to_bits(), behind[stream]);
                ranges.tidy(|_| false);
                prop_assert!(ranges.0.len() <= PARTS_MAX);
                prop_assert_eq!(ranges.0.last().map(|part| part.end), Some(u64::MAX));
                prop_assert!(ranges.0.is_sorted_by(|part, next| part.end < next.end));
                earlier.push((one.clone(), epoch));
            }
        }

        /// Without the limit, a use waits for nothing but what used its own bytes.
        #[test]
        fn uses_of_other_bytes_are_not_waited_for(uses in uses()) {
            let mut ranges = Ranges::new(StreamPoint::COMPLETE, []);
            let mut used = vec![Vec::new(); SIZE as usize];
            for (index, one) in uses.iter().take(PARTS_MAX / 2).enumerate() {
                let found = ranges.conflicts(one.bytes.clone(), one.access);
                let bytes = one.bytes.start as usize..one.bytes.end as usize;
                prop_assert!(found.iter().all(|point| used[bytes.clone()].iter().flatten().any(|used| used == point)));
                let now = point(one.stream, index as u64 + 1);
                used[bytes].iter_mut().for_each(|byte| byte.push(now));
                ranges.add(one.bytes.clone(), now, one.access);
                ranges.tidy(|_| false);
            }
        }
    }

    #[test]
    fn a_list_has_a_limit_and_becomes_one_part_again() {
        let mut ranges = Ranges::new(StreamPoint::COMPLETE, []);
        for index in 0..1000_u64 {
            ranges.add(index * 8..index * 8 + 8, point(index % 3, index + 1), Access::Write);
            ranges.tidy(|_| false);
            assert!(ranges.0.len() <= PARTS_MAX);
        }
        assert_eq!(ranges.only_write(), None);
        let now = point(0, 2000);
        assert!(ranges.begin_write(0..u64::MAX, now, |_| true));
        ranges.tidy(|_| false);
        assert_eq!(ranges.only_write(), Some(now));
        ranges.tidy(|_| true);
        assert_eq!(ranges.only_write(), Some(StreamPoint::COMPLETE));
    }

    #[test]
    fn neighbours_that_are_used_alike_are_one_part() {
        let mut ranges = Ranges::new(StreamPoint::COMPLETE, []);
        ranges.add(0..8, point(0, 1), Access::Write);
        ranges.add(8..16, point(0, 1), Access::Write);
        ranges.tidy(|_| false);
        assert_eq!(ranges.0.len(), 2, "one part with uses, and the rest");
    }
}

//! [`TrackedRanges`]: the uses of a storage whose parts are used separately.
//!
//! The parts lie side by side and cover all bytes. Each has the points of the writes and reads that a later use may have to wait for. A use
//! cuts the parts at its ends, so that its points count only for its own bytes. A use of bytes at regular distances, such as those of a
//! column, counts for its [`Pattern`] in each part.
//!
//! A list has at most [`PARTS_MAX`] parts. Neighbours with equal uses are merged. If there are still too many, the two smallest neighbours
//! are merged, and later uses of either wait for the uses of both. A part has at most one write and one read for each stream and pattern.
//! Beyond [`PATTERNS_MAX`], the latest use of the stream counts for all bytes of the part.

use super::pattern::Pattern;
use crate::gpu::recording::Access;
use core::ops::Range;
use gpumem_pool::StreamPoint;

/// The uses of all bytes, as parts without gaps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TrackedRanges(Vec<TrackedPart>);

/// The bytes of a range that belong to a pattern.
#[derive(Clone, Debug)]
pub(super) struct Region {
    pub(super) bytes: Range<u64>,
    pub(super) pattern: Pattern,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct TrackedPart {
    /// It begins at the end of the part before it.
    end: u64,
    /// Writes that no later use is ordered behind, and reads since.
    writes: Vec<PartUse>,
    reads: Vec<PartUse>,
}

/// A use of the bytes of a part that belong to a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PartUse {
    point: StreamPoint,
    pattern: Pattern,
}

impl TrackedRanges {
    /// One part with all bytes.
    pub(super) fn new(write: StreamPoint, reads: impl IntoIterator<Item = StreamPoint>) -> Self {
        let mut part = TrackedPart { end: u64::MAX, ..TrackedPart::default() };
        let of_all = |point| PartUse { point, pattern: Pattern::ALL };
        part.add(of_all(write), Access::Write);
        reads.into_iter().for_each(|read| part.add(of_all(read), Access::Read));
        Self(vec![part])
    }

    /// The points that a use of these bytes must wait for.
    pub(super) fn conflicts(&self, region: &Region, access: Access) -> Vec<StreamPoint> {
        let mut points = Vec::new();
        let mut start = region.bytes.start;
        for part in &self.0[self.first(start)..] {
            let common = start..part.end.min(region.bytes.end);
            start = part.end;
            let reads = if access == Access::Write { &part.reads[..] } else { &[] };
            let is_used = region.pattern.is_in(&common);
            let meets = |one: &&PartUse| one.pattern.is_in(&common) && one.pattern.meets(region.pattern);
            for one in part.writes.iter().chain(reads).filter(|one| is_used && meets(one)) {
                if !points.contains(&one.point) {
                    points.push(one.point);
                }
            }
            if part.end >= region.bytes.end {
                break;
            }
        }
        points
    }

    /// Replaces the uses that a write is ordered behind by `ordered`, the work on the stream of the write so far. Returns true if another
    /// stream had used the bytes.
    pub(super) fn begin_write(
        &mut self,
        region: &Region,
        ordered: StreamPoint,
        is_behind: impl Fn(StreamPoint) -> bool,
    ) -> bool {
        let mut is_changed = false;
        for part in self.cut(region) {
            for uses in [&mut part.writes, &mut part.reads] {
                let is_other =
                    |one: &PartUse| !one.point.has_stream_of(ordered) && one.pattern.meets(region.pattern);
                is_changed |= uses.iter().any(is_other);
                uses.retain(|one| !(region.pattern.contains(one.pattern) && is_behind(one.point)));
            }
            part.add(PartUse { point: ordered, pattern: region.pattern }, Access::Write);
        }
        is_changed
    }

    /// Adds a use. A write replaces earlier uses of its bytes by its stream, a read earlier reads.
    pub(super) fn add(&mut self, region: &Region, point: StreamPoint, access: Access) {
        let one = PartUse { point, pattern: region.pattern };
        self.cut(region).for_each(|part| part.add(one, access));
    }

    /// Replaces a point by an earlier one of its stream.
    pub(super) fn replace(&mut self, old: StreamPoint, new: StreamPoint) {
        let uses = self.0.iter_mut().flat_map(|part| part.writes.iter_mut().chain(&mut part.reads));
        uses.filter(|one| one.point == old).for_each(|one| one.point = new);
    }

    /// Forgets complete uses, and keeps the number of parts below the limit.
    pub(super) fn tidy(&mut self, is_complete: impl Fn(StreamPoint) -> bool) {
        for part in &mut self.0 {
            part.writes.retain(|one| !is_complete(one.point));
            part.reads.retain(|one| !is_complete(one.point));
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
        self.conflicts(&Region { bytes: 0..u64::MAX, pattern: Pattern::ALL }, access)
    }

    /// The point of the only use, if all bytes have no other.
    pub(super) fn only_write(&self) -> Option<StreamPoint> {
        match &self.0[..] {
            [TrackedPart { writes, reads, .. }] if reads.is_empty() => match writes[..] {
                [] => Some(StreamPoint::COMPLETE),
                [write] => Some(write.point),
                _ => None,
            },
            _ => None,
        }
    }

    /// The index of the part with this byte.
    fn first(&self, start: u64) -> usize {
        self.0.partition_point(|part| part.end <= start)
    }

    /// The parts with these bytes, cut at both ends.
    fn cut(&mut self, region: &Region) -> impl Iterator<Item = &mut TrackedPart> {
        let Region { bytes, pattern } = region.clone();
        let first = self.cut_at(bytes.start);
        let end = if bytes.end == u64::MAX { self.0.len() } else { self.cut_at(bytes.end) };
        let mut start = bytes.start;
        self.0[first..end.max(first)].iter_mut().filter(move |part| {
            let own = core::mem::replace(&mut start, part.end)..part.end;
            pattern.is_in(&own)
        })
    }

    /// The index of the part that begins at this byte; cuts a part if necessary.
    fn cut_at(&mut self, at: u64) -> usize {
        let index = self.first(at);
        let start = if index == 0 { 0 } else { self.0[index - 1].end };
        if start == at || index == self.0.len() {
            return index;
        }
        let before = TrackedPart { end: at, ..self.0[index].clone() };
        self.0.insert(index, before);
        index + 1
    }
}

impl TrackedPart {
    fn add(&mut self, one: PartUse, access: Access) {
        let point = one.point;
        if point == StreamPoint::COMPLETE {
            return;
        }
        // Points of one stream are in the order of their words, and later ones include earlier ones.
        let is_covered = |by: &PartUse, one: &PartUse| {
            one.point.has_stream_of(by.point)
                && one.point.to_bits() <= by.point.to_bits()
                && by.pattern.contains(one.pattern)
        };
        self.reads.retain(|other| !is_covered(&one, other));
        let uses = match access {
            Access::Read => &mut self.reads,
            Access::Write => {
                self.writes.retain(|other| !is_covered(&one, other));
                &mut self.writes
            }
        };
        if uses.iter().any(|other| is_covered(other, &one)) {
            return;
        }
        uses.push(one);
        let own = uses.iter().filter(|other| other.point.has_stream_of(point));
        if own.clone().count() > PATTERNS_MAX {
            let latest = own.map(|other| other.point).max_by_key(|point| point.to_bits()).unwrap_or(point);
            uses.retain(|other| !other.point.has_stream_of(point));
            uses.push(PartUse { point: latest, pattern: Pattern::ALL });
        }
    }
}

pub(super) const PARTS_MAX: usize = 64;
/// The maximum number of writes, and of reads, of one stream in a part.
const PATTERNS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{ByteSpan, Gaps};
    use proptest::prelude::*;

    /// A point of a stream. Epochs begin at 1, since the word 0 stands for completed work.
    fn point(stream: u64, epoch: u64) -> StreamPoint {
        StreamPoint::from_bits(((stream + 1) << 48) | epoch)
    }

    const SIZE: u64 = 96;

    #[derive(Clone, Debug)]
    struct ModelUse {
        region: Region,
        stream: u64,
        access: Access,
    }

    impl ModelUse {
        fn meets(&self, other: &Self) -> bool {
            (0..SIZE).any(|byte| has(&self.region, byte) && has(&other.region, byte))
        }
    }

    fn has(region: &Region, byte: u64) -> bool {
        region.bytes.contains(&byte) && region.pattern.is_in(&(byte..byte + 1))
    }

    fn all(bytes: Range<u64>) -> Region {
        Region { bytes, pattern: Pattern::ALL }
    }

    fn uses(patterns: impl Strategy<Value = Pattern>) -> impl Strategy<Value = Vec<ModelUse>> {
        let access = prop_oneof![Just(Access::Read), Just(Access::Write)];
        let one = (0..SIZE, 1..=SIZE, patterns, 0_u64..4, access);
        let one = one.prop_map(|(start, len, pattern, stream, access)| ModelUse {
            region: Region { bytes: start..(start + len).min(SIZE), pattern },
            stream,
            access,
        });
        proptest::collection::vec(one, 1..200)
    }

    /// All bytes, runs, and groups of runs.
    fn patterns() -> impl Strategy<Value = Pattern> {
        let regular = (1..12_u64, 0..SIZE, 1..12_u64, 1..5_u64);
        let regular = regular.prop_map(|(distance, start, len, groups)| {
            let bytes = |len, gaps| ByteSpan { start, end: start + len, gaps };
            match groups {
                1 => Pattern::of(bytes(1 + len % distance, Gaps::every(distance))),
                groups => Pattern::of(bytes(1 + len % distance, Gaps::nested(distance, distance * groups))),
            }
        });
        prop_oneof![Just(Pattern::ALL), regular]
    }

    /// All bytes, and quarters of rows of eight: two of these are equal or have no byte in common.
    fn quarters() -> impl Strategy<Value = Pattern> {
        (0..5_u64).prop_map(|quarter| match quarter {
            4 => Pattern::ALL,
            quarter => {
                Pattern::of(ByteSpan { start: 2 * quarter, end: 2 * quarter + 2, gaps: Gaps::every(8) })
            }
        })
    }

    proptest! {
        /// Every use waits for all uses of its bytes that it conflicts with: directly, or for a later point of their stream, or for a
        /// use that waited for them.
        #[test]
        fn uses_are_behind_all_that_they_conflict_with(uses in uses(patterns())) {
            let mut ranges = TrackedRanges::new(point(9, 1), []);
            // For each stream, the latest point of every stream that its work is behind.
            let mut behind = [[0_u64; 4]; 4];
            let mut at_point = std::collections::HashMap::new();
            let mut earlier: Vec<(ModelUse, u64)> = Vec::new();
            for (index, one) in uses.iter().enumerate() {
                let (epoch, stream) = (index as u64 + 1, one.stream as usize);
                for conflict in ranges.conflicts(&one.region, one.access) {
                    let Some(seen): Option<&[u64; 4]> = at_point.get(&conflict.to_bits()) else { continue };
                    for (mine, theirs) in behind[stream].iter_mut().zip(seen) {
                        *mine = (*mine).max(*theirs);
                    }
                }
                for (old, at) in &earlier {
                    let conflicts = old.access == Access::Write || one.access == Access::Write;
                    if conflicts && old.meets(one) {
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
                    ranges.begin_write(&one.region, now, is_behind);
                }
                ranges.add(&one.region, now, one.access);
                behind[stream][stream] = epoch;
                at_point.insert(now.to_bits(), behind[stream]);
                ranges.tidy(|_| false);
                prop_assert!(ranges.0.len() <= PARTS_MAX);
                let is_bounded = |uses: &[PartUse]| uses.len() <= 5 * PATTERNS_MAX;
                prop_assert!(ranges.0.iter().all(|part| is_bounded(&part.writes) && is_bounded(&part.reads)));
                prop_assert_eq!(ranges.0.last().map(|part| part.end), Some(u64::MAX));
                prop_assert!(ranges.0.is_sorted_by(|part, next| part.end < next.end));
                earlier.push((one.clone(), epoch));
            }
        }

        /// Without the limits, a use waits only for uses of its own bytes.
        #[test]
        fn uses_of_other_bytes_are_not_waited_for(uses in uses(quarters())) {
            let mut ranges = TrackedRanges::new(StreamPoint::COMPLETE, []);
            let mut used = vec![Vec::new(); SIZE as usize];
            for (index, one) in uses.iter().take(PARTS_MAX / 2).enumerate() {
                let found = ranges.conflicts(&one.region, one.access);
                let own = || (0..SIZE).filter(|byte| has(&one.region, *byte)).map(|byte| byte as usize);
                prop_assert!(found.iter().all(|point| own().any(|byte| used[byte].contains(point))));
                let now = point(one.stream, index as u64 + 1);
                own().for_each(|byte| used[byte].push(now));
                ranges.add(&one.region, now, one.access);
                ranges.tidy(|_| false);
            }
        }
    }

    /// Columns of a matrix that are written one after another, each on its own stream.
    #[test]
    fn columns_wait_for_themselves_alone() {
        let mut ranges = TrackedRanges::new(StreamPoint::COMPLETE, []);
        let column = |index: u64| {
            let bytes = ByteSpan { start: 4 * index, end: 32 * 99 + 4 * index + 4, gaps: Gaps::every(32) };
            Region { bytes: bytes.start..bytes.end, pattern: Pattern::of(bytes) }
        };
        for round in 1..4 {
            for stream in 0..8 {
                let now = point(stream, round);
                let found = ranges.conflicts(&column(stream), Access::Write);
                assert_eq!(found, if round == 1 { vec![] } else { vec![point(stream, round - 1)] });
                ranges.begin_write(&column(stream), now, |_| true);
                ranges.add(&column(stream), now, Access::Write);
                ranges.tidy(|_| false);
            }
        }
        // A row has a byte of each.
        assert_eq!(ranges.conflicts(&all(320..352), Access::Read).len(), 8);
        assert_eq!(ranges.conflicts(&all(324..332), Access::Read), [point(1, 3), point(2, 3)]);
    }

    #[test]
    fn a_list_has_a_limit_and_becomes_one_part_again() {
        let mut ranges = TrackedRanges::new(StreamPoint::COMPLETE, []);
        for index in 0..1000_u64 {
            ranges.add(&all(index * 8..index * 8 + 8), point(index % 3, index + 1), Access::Write);
            ranges.tidy(|_| false);
            assert!(ranges.0.len() <= PARTS_MAX);
        }
        assert_eq!(ranges.only_write(), None);
        let now = point(0, 2000);
        assert!(ranges.begin_write(&all(0..u64::MAX), now, |_| true));
        ranges.tidy(|_| false);
        assert_eq!(ranges.only_write(), Some(now));
        ranges.tidy(|_| true);
        assert_eq!(ranges.only_write(), Some(StreamPoint::COMPLETE));
    }

    #[test]
    fn neighbours_that_are_used_alike_are_one_part() {
        let mut ranges = TrackedRanges::new(StreamPoint::COMPLETE, []);
        ranges.add(&all(0..8), point(0, 1), Access::Write);
        ranges.add(&all(8..16), point(0, 1), Access::Write);
        ranges.tidy(|_| false);
        assert_eq!(ranges.0.len(), 2, "one part with uses, and the rest");
    }
}

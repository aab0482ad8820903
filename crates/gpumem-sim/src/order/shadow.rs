//! The accesses to bytes: the last writer of each range, and the readers since. Pure.
//!
//! Ranges refer to the bytes themselves, not to their addresses, so that two mappings of one memory share a history. Neighbours
//! with equal histories are one range; an access splits ranges at its ends.
//!
//! A reader is dropped when a reader that is ordered after it also reads: a later write that conflicts with the first one
//! conflicts with the second one, or is ordered after both. A writer is dropped at the next write.
//!
//! Strong accesses of kernels (atomics, `volatile` and the like) do not conflict with each other. So a strong write replaces no other one that
//! it is not ordered after, and a strong access stands for no weak one.

use crate::base::handle::Handle;
use crate::order::clock::Epoch;
use crate::report::finding::AccessKind;
use core::ops::Range;
use std::collections::BTreeMap;

/// One recorded access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trace {
    pub(crate) epoch: Epoch,
    pub(crate) kind: AccessKind,
    /// `None` for the host.
    pub(crate) stream: Option<Handle>,
    pub(crate) stream_number: u32,
    /// The position in the stream, from 1.
    pub(crate) position: u64,
    /// The number of the call that queued it.
    pub(crate) call: u64,
    /// The address of byte 0 of this process's memory in the mapping of the access: distinguishes mappings of one memory.
    pub(crate) shift: u64,
}

/// The histories of all bytes that were accessed.
#[derive(Default)]
pub(crate) struct Shadow {
    /// By the first byte.
    ranges: BTreeMap<u64, History>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct History {
    end: u64,
    write: Option<Trace>,
    reads: Vec<Trace>,
    /// Strong writes since the last other one. They do not conflict with each other, so no order makes one of them the last.
    strong_writes: Vec<Trace>,
}

/// A conflict with an earlier access, and the bytes.
pub(crate) type Conflict = (Range<u64>, Trace);

impl Shadow {
    /// Records a write. Accesses that it conflicts with and is not ordered after go to `conflicts`.
    pub(crate) fn write(
        &mut self,
        bytes: Range<u64>,
        trace: Trace,
        is_ordered: impl Fn(Epoch) -> bool,
        conflicts: &mut Vec<Conflict>,
    ) {
        if let Some(history) = self.ranges.get_mut(&bytes.start).filter(|history| history.end == bytes.end) {
            history.check(bytes.start, (true, false), &is_ordered, conflicts);
            history.write = Some(trace);
            history.reads.clear();
            history.strong_writes.clear();
            return;
        }
        self.check_and_clear(bytes.clone(), &is_ordered, conflicts);
        self.ranges.insert(bytes.start, History { write: Some(trace), ..History::new(bytes.end) });
        self.merge(bytes.start);
    }

    /// Records a strong write.
    pub(crate) fn strong_write(
        &mut self,
        bytes: Range<u64>,
        trace: Trace,
        is_ordered: impl Fn(Epoch) -> bool,
        conflicts: &mut Vec<Conflict>,
    ) {
        self.add(bytes, |start, history| {
            history.check(start, (true, true), &is_ordered, conflicts);
            history.reads.retain(|read| !read.kind.is_strong() || !is_ordered(read.epoch));
            history.strong_writes.retain(|write| !is_ordered(write.epoch));
            history.strong_writes.push(trace.clone());
        });
    }

    /// Records a read.
    pub(crate) fn read(
        &mut self,
        bytes: Range<u64>,
        trace: Trace,
        is_ordered: impl Fn(Epoch) -> bool,
        conflicts: &mut Vec<Conflict>,
    ) {
        let is_strong = trace.kind.is_strong();
        self.add(bytes, |start, history| {
            history.check(start, (false, is_strong), &is_ordered, conflicts);
            history.reads.retain(|read| is_strong && !read.kind.is_strong() || !is_ordered(read.epoch));
            history.reads.push(trace.clone());
        });
    }

    /// Changes the histories of all parts of a range. New ones begin empty.
    fn add(&mut self, bytes: Range<u64>, mut change: impl FnMut(u64, &mut History)) {
        self.split(bytes.start);
        self.split(bytes.end);
        let mut gaps = Vec::new();
        let mut at = bytes.start;
        for (&start, history) in self.ranges.range_mut(bytes.clone()) {
            if at < start {
                gaps.push(at..start);
            }
            at = history.end;
            change(start, history);
        }
        if at < bytes.end {
            gaps.push(at..bytes.end);
        }
        for gap in gaps {
            let mut history = History::new(gap.end);
            change(gap.start, &mut history);
            self.ranges.insert(gap.start, history);
        }
        self.merge_all(bytes);
    }

    /// The last writers of a byte: one, and those that have written strongly since.
    pub(crate) fn last_writers(&self, byte: u64) -> impl Iterator<Item = Epoch> {
        let found = self.ranges.range(..=byte).next_back().map(|(_, history)| history);
        let found = found.filter(|history| byte < history.end);
        found
            .into_iter()
            .flat_map(|history| history.write.iter().chain(&history.strong_writes))
            .map(|write| write.epoch)
    }

    /// Ends the history of the bytes. Accesses that are not ordered before this go to `conflicts`.
    pub(crate) fn check_and_clear(
        &mut self,
        bytes: Range<u64>,
        is_ordered: impl Fn(Epoch) -> bool,
        conflicts: &mut Vec<Conflict>,
    ) {
        self.split(bytes.start);
        self.split(bytes.end);
        while let Some((&start, _)) = self.ranges.range(bytes.clone()).next() {
            if let Some(history) = self.ranges.remove(&start) {
                history.check(start, (true, false), &is_ordered, conflicts);
            }
        }
    }

    /// The part of the bytes that was never written, if there is one.
    pub(crate) fn unwritten(&self, bytes: Range<u64>) -> Option<Range<u64>> {
        let mut at = bytes.start;
        let before =
            self.ranges.range(..=bytes.start).next_back().filter(|(_, history)| history.end > bytes.start);
        for (&start, history) in before.into_iter().chain(self.ranges.range(bytes.start + 1..bytes.end)) {
            if at < start {
                return Some(at..start);
            }
            let is_new = history.write.as_ref().is_none_or(|write| write.kind == AccessKind::Allocation);
            if is_new && history.strong_writes.is_empty() {
                return Some(at..history.end.min(bytes.end));
            }
            at = history.end;
        }
        (at < bytes.end).then_some(at..bytes.end)
    }

    /// Splits the range that contains `at`.
    fn split(&mut self, at: u64) {
        if let Some((_, history)) = self.ranges.range_mut(..at).next_back()
            && history.end > at
        {
            let rest = history.clone();
            history.end = at;
            self.ranges.insert(at, rest);
        }
    }

    fn merge_all(&mut self, bytes: Range<u64>) {
        let mut at = bytes.start;
        while at <= bytes.end
            && let Some((&start, _)) = self.ranges.range(at..=bytes.end).next()
        {
            self.merge(start);
            at = start + 1;
        }
    }

    /// Joins the range that begins here with the one before it, if they touch and have the same history.
    fn merge(&mut self, start: u64) {
        let Some((_, before)) = self.ranges.range(..start).next_back() else { return };
        let is_same = self.ranges.get(&start).is_some_and(|history| {
            before.end == start
                && before.write == history.write
                && before.reads == history.reads
                && before.strong_writes == history.strong_writes
        });
        if is_same
            && let Some(history) = self.ranges.remove(&start)
            && let Some((_, before)) = self.ranges.range_mut(..start).next_back()
        {
            before.end = history.end;
        }
    }
}

impl History {
    fn new(end: u64) -> Self {
        Self { end, write: None, reads: Vec::new(), strong_writes: Vec::new() }
    }

    /// Compares its accesses with a later one.
    fn check(
        &self,
        start: u64,
        (is_write, is_strong): (bool, bool),
        is_ordered: impl Fn(Epoch) -> bool,
        conflicts: &mut Vec<Conflict>,
    ) {
        let strong_writes = self.strong_writes.iter().filter(|_| !is_strong);
        let reads = self.reads.iter().filter(|read| is_write && !(is_strong && read.kind.is_strong()));
        let all = self.write.iter().chain(strong_writes).chain(reads);
        let unordered = all.filter(|trace| !is_ordered(trace.epoch));
        conflicts.extend(unordered.map(|trace| (start..self.end, trace.clone())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::Random;

    fn trace(stream_index: u32, time: u64) -> Trace {
        let epoch = Epoch { stream_index, time };
        Trace {
            epoch,
            kind: AccessKind::Memset,
            stream: None,
            stream_number: stream_index,
            position: time,
            call: time,
            shift: 0,
        }
    }

    fn found(conflicts: &[Conflict]) -> Vec<(Range<u64>, u32)> {
        conflicts.iter().map(|(range, trace)| (range.clone(), trace.epoch.stream_index)).collect()
    }

    #[test]
    fn a_write_conflicts_with_the_writer_and_all_readers_of_its_bytes() {
        let mut shadow = Shadow::default();
        let mut conflicts = Vec::new();
        shadow.write(0..100, trace(0, 1), |_| false, &mut conflicts);
        shadow.read(10..20, trace(1, 1), |_| true, &mut conflicts);
        shadow.read(15..30, trace(2, 1), |epoch| epoch.stream_index == 0, &mut conflicts);
        assert_eq!(found(&conflicts), []);
        shadow.write(18..19, trace(3, 1), |_| false, &mut conflicts);
        assert_eq!(found(&conflicts), [(18..19, 0), (18..19, 1), (18..19, 2)]);
    }

    #[test]
    fn strong_accesses_conflict_with_weak_ones_alone() {
        let strong = |stream_index, is_write: bool| {
            let kind = if is_write { AccessKind::KernelStrongWrite } else { AccessKind::KernelStrongRead };
            Trace { kind: kind("k".into()), ..trace(stream_index, 1) }
        };
        let mut shadow = Shadow::default();
        let mut conflicts = Vec::new();
        shadow.strong_write(0..8, strong(0, true), |_| false, &mut conflicts);
        shadow.strong_write(4..12, strong(1, true), |_| false, &mut conflicts);
        shadow.read(4..8, strong(2, false), |_| false, &mut conflicts);
        assert_eq!(found(&conflicts), []);
        assert_eq!(shadow.last_writers(5).map(|epoch| epoch.stream_index).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(shadow.unwritten(0..12), None);
        shadow.read(4..5, trace(3, 1), |_| false, &mut conflicts);
        assert_eq!(found(&conflicts), [(4..5, 0), (4..5, 1)]);
        conflicts.clear();
        // The weak read before it counts, the strong one does not.
        shadow.strong_write(4..6, strong(4, true), |_| false, &mut conflicts);
        assert_eq!(found(&conflicts), [(4..5, 3)]);
        conflicts.clear();
        shadow.write(6..7, trace(5, 1), |_| false, &mut conflicts);
        assert_eq!(found(&conflicts), [(6..7, 0), (6..7, 1), (6..7, 2)]);
        assert_eq!(shadow.last_writers(6).map(|epoch| epoch.stream_index).collect::<Vec<_>>(), [5]);
    }

    #[test]
    fn neighbours_with_one_history_are_one_range() {
        let mut shadow = Shadow::default();
        let mut conflicts = Vec::new();
        shadow.write(0..10, trace(0, 1), |_| true, &mut conflicts);
        shadow.write(10..20, trace(0, 1), |_| true, &mut conflicts);
        assert_eq!(shadow.ranges.len(), 1);
        shadow.read(5..15, trace(0, 2), |_| true, &mut conflicts);
        assert_eq!(shadow.ranges.len(), 3);
        shadow.read(0..5, trace(0, 2), |_| true, &mut conflicts);
        shadow.read(15..20, trace(0, 2), |_| true, &mut conflicts);
        assert_eq!(shadow.ranges.len(), 1);
    }

    #[test]
    fn what_nobody_wrote_is_found() {
        let mut shadow = Shadow::default();
        let mut conflicts = Vec::new();
        shadow.write(0..10, trace(0, 1), |_| true, &mut conflicts);
        shadow.write(20..30, trace(0, 1), |_| true, &mut conflicts);
        assert_eq!(shadow.unwritten(0..10), None);
        assert_eq!(shadow.unwritten(5..25), Some(10..20));
        assert_eq!(shadow.unwritten(25..40), Some(30..40));
    }

    /// Compared with a naive twin: a complete list of accesses for each byte. Two streams sometimes synchronise with each other;
    /// both find a race or neither does.
    #[test]
    fn a_race_is_found_if_and_only_if_there_is_one() {
        let mut random = Random::new(4);
        for _ in 0..300 {
            let mut shadow = Shadow::default();
            let mut bytes: Vec<Vec<(bool, bool, Epoch)>> = vec![Vec::new(); 32];
            let mut clocks = [[0u64; 3]; 3];
            for _ in 0..40 {
                let stream_index = random.below(3);
                if random.one_in(3) {
                    let other = clocks[random.below(3)];
                    clocks[stream_index]
                        .iter_mut()
                        .zip(other)
                        .for_each(|(own, other)| *own = (*own).max(other));
                }
                clocks[stream_index][stream_index] += 1;
                let clock = clocks[stream_index];
                let is_ordered = |epoch: Epoch| clock[epoch.stream_index as usize] >= epoch.time;
                let start = random.below(31);
                let end = start + 1 + random.below(31 - start);
                let (is_write, is_strong) = (random.one_in(2), random.one_in(2));
                let epoch = Epoch { stream_index: stream_index as u32, time: clock[stream_index] };
                let is_race =
                    bytes[start..end].iter().flatten().any(|&(is_other_write, is_other_strong, other)| {
                        (is_write || is_other_write) && !(is_strong && is_other_strong) && !is_ordered(other)
                    });
                bytes[start..end].iter_mut().for_each(|byte| byte.push((is_write, is_strong, epoch)));
                let mut conflicts = Vec::new();
                let kind = match (is_write, is_strong) {
                    (false, true) => AccessKind::KernelStrongRead("k".into()),
                    (true, true) => AccessKind::KernelStrongWrite("k".into()),
                    _ => AccessKind::Memset,
                };
                let trace = Trace { kind, ..trace(epoch.stream_index, epoch.time) };
                let range = start as u64..end as u64;
                match (is_write, is_strong) {
                    (true, true) => shadow.strong_write(range, trace, is_ordered, &mut conflicts),
                    (true, false) => shadow.write(range, trace, is_ordered, &mut conflicts),
                    (false, _) => shadow.read(range, trace, is_ordered, &mut conflicts),
                }
                assert!(conflicts.is_empty() || is_race);
                if is_race {
                    // Later results may differ: after a race, the dropped access depends on the order.
                    assert!(!conflicts.is_empty());
                    break;
                }
            }
        }
    }
}

//! [`Holes`]: addresses of a space that nothing is mapped at, among those that were used before. Pure.

use std::collections::BTreeMap;

/// Frames of addresses: first and count. None touches another.
#[derive(Debug, Default)]
pub(super) struct Holes {
    list: BTreeMap<u64, u64>,
}

impl Holes {
    /// The first that has so many frames.
    pub(super) fn find(&self, frame_count: u64) -> Option<u64> {
        self.iter().find(|(_, count)| *count >= frame_count).map(|(slot, _)| slot)
    }

    /// First frame and count of each.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.list.iter().map(|(slot, count)| (*slot, *count))
    }

    pub(super) fn add(&mut self, mut slot: u64, mut count: u64) {
        if let Some(behind) = self.list.remove(&(slot + count)) {
            count += behind;
        }
        let before = self.list.range(..slot).next_back().map(|(slot, count)| (*slot, *count));
        if let Some((before, before_count)) = before.filter(|(before, count)| before + count == slot) {
            (slot, count) = (before, before_count + count);
        }
        self.list.insert(slot, count);
    }

    /// Something is mapped there now; what lies in no hole is left alone.
    pub(super) fn fill(&mut self, slot: u64, count: u64) {
        let Some((start, hole_count)) =
            self.list.range(..=slot).next_back().map(|(slot, count)| (*slot, *count))
        else {
            return;
        };
        let (end, hole_end) = (slot + count, start + hole_count);
        if end > hole_end {
            return;
        }
        self.list.remove(&start);
        if start < slot {
            self.list.insert(start, slot - start);
        }
        if end < hole_end {
            self.list.insert(end, hole_end - end);
        }
    }

    /// The host memory that they take: nodes of such a tree are two thirds full.
    pub(super) fn size_bytes(&self) -> usize {
        self.list.len() * size_of::<(u64, u64)>() * 3 / 2
    }
}

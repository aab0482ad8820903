//! [`FreeVaRanges`]: addresses of a space that nothing is mapped at, among those that were used before. Pure.

use std::collections::BTreeMap;

/// Pages of addresses: first and count. None touches another.
#[derive(Debug, Default)]
pub(super) struct FreeVaRanges {
    list: BTreeMap<u64, u64>,
}

impl FreeVaRanges {
    /// The first that has so many pages.
    pub(super) fn find(&self, page_count: u64) -> Option<u64> {
        self.iter().find(|(_, count)| *count >= page_count).map(|(slot, _)| slot)
    }

    /// First page and count of each.
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

    /// Something is mapped there now; what lies in no free range is left alone.
    pub(super) fn fill(&mut self, slot: u64, count: u64) {
        let Some((start, free_range_count)) =
            self.list.range(..=slot).next_back().map(|(slot, count)| (*slot, *count))
        else {
            return;
        };
        let (end, free_range_end) = (slot + count, start + free_range_count);
        if end > free_range_end {
            return;
        }
        self.list.remove(&start);
        if start < slot {
            self.list.insert(start, slot - start);
        }
        if end < free_range_end {
            self.list.insert(end, free_range_end - end);
        }
    }

    /// The host memory that they take: nodes of such a tree are two thirds full.
    pub(super) fn size_bytes(&self) -> usize {
        self.list.len() * size_of::<(u64, u64)>() * 3 / 2
    }
}

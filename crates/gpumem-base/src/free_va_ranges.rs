//! [`FreeVaRanges`]: free ranges of addresses. The heap counts in pages, for addresses that were used before and where nothing is
//! mapped now.

use std::collections::BTreeMap;

/// Start and length of each range, in one unit. No two ranges touch.
#[derive(Debug, Default)]
pub struct FreeVaRanges {
    list: BTreeMap<u64, u64>,
}

impl FreeVaRanges {
    /// The start of the first range of this length.
    pub fn find(&self, page_count: u64) -> Option<u64> {
        self.iter().find(|(_, count)| *count >= page_count).map(|(slot, _)| slot)
    }

    /// Start and length of each range, by address.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.list.iter().map(|(slot, count)| (*slot, *count))
    }

    /// Adds a range and merges it with its neighbours.
    pub fn add(&mut self, mut slot: u64, mut count: u64) {
        if let Some(behind) = self.list.remove(&(slot + count)) {
            count += behind;
        }
        let before = self.list.range(..slot).next_back().map(|(slot, count)| (*slot, *count));
        if let Some((before, before_count)) = before.filter(|(before, count)| before + count == slot) {
            (slot, count) = (before, before_count + count);
        }
        self.list.insert(slot, count);
    }

    /// Removes a range that is now in use. Does nothing unless one free range covers it.
    pub fn fill(&mut self, slot: u64, count: u64) {
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

    /// The host memory of the ranges: nodes of a B-tree are two thirds full.
    pub fn size_bytes(&self) -> usize {
        self.list.len() * size_of::<(u64, u64)>() * 3 / 2
    }
}

//! Free ranges of an address space: best fit, neighbours merged. Pure arithmetic.
//!
//! Ranges that must not merge (two separate mappings) are separated by their owner, who leaves a gap of addresses between them.

use std::collections::{BTreeMap, BTreeSet};

/// The free ranges, by address and by size.
#[derive(Debug, Default)]
pub(crate) struct Extents {
    by_base: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
}

impl Extents {
    /// Takes `size_bytes` from the smallest range that holds them; of several, the lowest.
    pub(crate) fn take(&mut self, size_bytes: u64) -> Option<u64> {
        let (found_bytes, base) = self.by_size.range((size_bytes, 0)..).next().copied()?;
        self.remove(base, found_bytes);
        if found_bytes > size_bytes {
            self.insert(base + size_bytes, found_bytes - size_bytes);
        }
        Some(base)
    }

    /// Returns a range. The caller has taken it before, so it overlaps no free range.
    pub(crate) fn give(&mut self, base: u64, size_bytes: u64) {
        let (mut base, mut size_bytes) = (base, size_bytes);
        if let Some((&before, &before_bytes)) = self.by_base.range(..base).next_back() {
            debug_assert!(before + before_bytes <= base, "given back twice");
            if before + before_bytes == base {
                self.remove(before, before_bytes);
                (base, size_bytes) = (before, before_bytes + size_bytes);
            }
        }
        if let Some(&after_bytes) = self.by_base.get(&(base + size_bytes)) {
            self.remove(base + size_bytes, after_bytes);
            size_bytes += after_bytes;
        }
        self.insert(base, size_bytes);
    }

    /// Takes exactly this range, if it is free and not merged with another.
    pub(crate) fn take_whole(&mut self, base: u64, size_bytes: u64) -> bool {
        let whole = self.is_whole(base, size_bytes);
        if whole {
            self.remove(base, size_bytes);
        }
        whole
    }

    /// True if exactly this range is free and not merged with another.
    pub(crate) fn is_whole(&self, base: u64, size_bytes: u64) -> bool {
        self.by_base.get(&base) == Some(&size_bytes)
    }

    /// The free bytes of a range, in free ranges that do not cross its ends.
    pub(crate) fn bytes_within(&self, base: u64, size_bytes: u64) -> u64 {
        self.by_base.range(base..base + size_bytes).map(|(_, found)| found).sum()
    }

    fn insert(&mut self, base: u64, size_bytes: u64) {
        self.by_base.insert(base, size_bytes);
        self.by_size.insert((size_bytes, base));
    }

    fn remove(&mut self, base: u64, size_bytes: u64) {
        self.by_base.remove(&base);
        self.by_size.remove(&(size_bytes, base));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::Random;

    #[test]
    fn the_smallest_range_that_fits_is_taken() {
        let mut free = Extents::default();
        free.give(0, 100);
        free.give(200, 30);
        assert_eq!((free.take(20), free.take(50), free.take(51)), (Some(200), Some(0), None));
    }

    #[test]
    fn neighbours_merge_and_gaps_do_not() {
        let mut free = Extents::default();
        for base in [0, 20, 10, 40] {
            free.give(base, 10);
        }
        assert!(!free.take_whole(0, 10));
        assert!(free.take_whole(0, 30) && free.take_whole(40, 10));
        assert_eq!(free.take(1), None);
    }

    /// Compared with a naive twin: one flag for each unit.
    #[test]
    fn no_unit_is_handed_out_twice_and_none_is_lost() {
        let mut random = Random::new(9);
        let mut free = Extents::default();
        let mut taken = [false; 256];
        let mut live: Vec<(u64, u64)> = Vec::new();
        free.give(0, 256);
        for _ in 0..20_000 {
            let units = 1 + random.below(16) as u64;
            match free.take(units) {
                Some(base) if random.below(3) > 0 => {
                    let range = base as usize..(base + units) as usize;
                    assert!(taken[range.clone()].iter().all(|&unit| !unit));
                    taken[range].fill(true);
                    live.push((base, units));
                }
                found => {
                    let runs = taken.split(|&unit| unit).map(<[bool]>::len).max();
                    assert_eq!(found.is_some(), runs >= Some(units as usize));
                    if let Some(base) = found {
                        free.give(base, units);
                    }
                    if !live.is_empty() {
                        let (base, units) = live.swap_remove(random.below(live.len()));
                        taken[base as usize..(base + units) as usize].fill(false);
                        free.give(base, units);
                    }
                }
            }
        }
    }
}

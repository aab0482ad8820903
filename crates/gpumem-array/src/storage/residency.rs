//! [`Residency`]: the parts of an array in unified memory that were moved to its device.
//!
//! Kernels that access pages elsewhere run at the speed of page faults, so the pages are moved first. Moving pages that are already there
//! wastes a driver call, so the moved parts are remembered until the host accesses the array. After its first access the host uses plain
//! reads and writes, which cannot be tracked: from then on, all pages count as moved away.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Default)]
pub(super) struct Residency {
    /// The part that was used last: its first page, and the page after its last one in the upper half. Found without the lock.
    last: AtomicU64,
    /// Pages from the start of the array. Sorted, with gaps between them.
    parts: Mutex<Vec<Range<u64>>>,
}

impl Residency {
    /// Adds bytes that a kernel is about to use. Returns the range of those that were not there.
    #[inline]
    pub(super) fn add(&self, bytes: Range<u64>) -> Option<Range<u64>> {
        let pages = bytes.start / PAGE_BYTES..bytes.end.div_ceil(PAGE_BYTES);
        let last = self.last.load(Ordering::Relaxed);
        if last & u64::from(u32::MAX) <= pages.start && pages.end <= last >> 32 {
            None
        } else {
            self.add_slow(&pages, bytes.end)
        }
    }

    #[cold]
    fn add_slow(&self, pages: &Range<u64>, end: u64) -> Option<Range<u64>> {
        let mut parts = self.parts();
        let first = parts.partition_point(|part| part.end < pages.start);
        let next = parts.partition_point(|part| part.start <= pages.end);
        let (mut merged, mut missing) = (pages.clone(), pages.clone());
        if let Some(touched) = parts.get(first..next).filter(|touched| !touched.is_empty()) {
            let (head, tail) = (&touched[0], &touched[touched.len() - 1]);
            merged = head.start.min(pages.start)..tail.end.max(pages.end);
            if head.start <= pages.start {
                missing.start = head.end;
            }
            if pages.end <= tail.end {
                missing.end = tail.start;
            }
        }
        if parts.len() >= PARTS_MAX {
            *parts = vec![merged.clone()];
        } else {
            parts.splice(first..next.max(first), [merged.clone()]);
        }
        if merged.end <= u64::from(u32::MAX) {
            self.last.store(merged.start | merged.end << 32, Ordering::Relaxed);
        }
        let missing = missing.start * PAGE_BYTES..(missing.end * PAGE_BYTES).min(end);
        (missing.start < missing.end).then_some(missing)
    }

    /// The host accesses the array.
    pub(super) fn clear(&self) {
        self.parts().clear();
        self.last.store(0, Ordering::Relaxed);
    }

    fn parts(&self) -> MutexGuard<'_, Vec<Range<u64>>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The smallest page of any system. The driver rounds to its own pages.
const PAGE_BYTES: u64 = 4096;
const PARTS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn only_what_is_missing_is_moved() {
        let residency = Residency::default();
        let kib = |range: Range<u64>| range.start << 10..range.end << 10;
        assert_eq!(residency.add(kib(0..8)), Some(kib(0..8)));
        assert_eq!(residency.add(kib(0..8)), None);
        assert_eq!(residency.add(kib(4..6)), None);
        assert_eq!(residency.add(kib(4..20)), Some(kib(8..20)));
        assert_eq!(residency.add(kib(40..48)), Some(kib(40..48)));
        assert_eq!(residency.add(kib(0..20)), None);
        assert_eq!(residency.add(kib(12..60)), Some(kib(20..60)));
        residency.clear();
        assert_eq!(residency.add(4095..4097), Some(0..4097));
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_set_of_pages(uses in proptest::collection::vec((0_u64..60, 1_u64..12, 0..9), 1..200)) {
            let (residency, mut twin) = (Residency::default(), BTreeSet::new());
            for (start, len, clears) in uses {
                if clears == 0 {
                    residency.clear();
                    twin.clear();
                }
                let missing: Vec<_> = (start..start + len).filter(|page| !twin.contains(page)).collect();
                twin.extend(start..start + len);
                let expected = missing.first().zip(missing.last()).map(|(first, last)| first * 4096..(last + 1) * 4096);
                let moved = residency.add(start * 4096..(start + len) * 4096);
                prop_assert_eq!(moved, expected);
            }
        }
    }
}

//! The count of what a pool has handed out. Pure: it never sees a driver, and keeps no limit, which is the family's to keep.

use core::sync::atomic::{AtomicU64, Ordering};

/// What a pool has handed out. Shared by all threads.
#[derive(Debug, Default)]
pub(crate) struct UsageCounters {
    in_use_bytes: AtomicU64,
    in_use_peak_bytes: AtomicU64,
    block_count: AtomicU64,
    allocation_count: AtomicU64,
}

impl UsageCounters {
    /// The driver gave a block. Its size has been admitted, and so the sum fits into a word.
    pub(crate) fn count_out(&self, size_bytes: u64) {
        let before_bytes = self.in_use_bytes.fetch_add(size_bytes, Ordering::AcqRel);
        self.in_use_peak_bytes.fetch_max(before_bytes + size_bytes, Ordering::Relaxed);
        self.block_count.fetch_add(1, Ordering::Relaxed);
        self.allocation_count.fetch_add(1, Ordering::Relaxed);
    }

    /// It took one back.
    pub(crate) fn count_in(&self, size_bytes: u64) {
        let before_bytes = self.in_use_bytes.fetch_sub(size_bytes, Ordering::AcqRel);
        debug_assert!(before_bytes >= size_bytes, "more bytes came back than went out");
        self.block_count.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn in_use_bytes(&self) -> u64 {
        self.in_use_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn in_use_peak_bytes(&self) -> u64 {
        self.in_use_peak_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn reset_peak(&self) {
        self.in_use_peak_bytes.store(self.in_use_bytes(), Ordering::Relaxed);
    }

    pub(crate) fn block_count(&self) -> u64 {
        self.block_count.load(Ordering::Relaxed)
    }

    pub(crate) fn allocation_count(&self) -> u64 {
        self.allocation_count.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_of_what_was_there_at_once() {
        let ledger = UsageCounters::default();
        ledger.count_out(60);
        ledger.count_in(60);
        ledger.count_out(40);
        assert_eq!((ledger.in_use_bytes(), ledger.in_use_peak_bytes()), (40, 60));
        assert_eq!((ledger.block_count(), ledger.allocation_count()), (1, 2));
        ledger.reset_peak();
        assert_eq!(ledger.in_use_peak_bytes(), 40);
    }
}

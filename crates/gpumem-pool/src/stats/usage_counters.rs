//! Counters of a pool's live blocks. Pure: they make no driver call and enforce no limit, which
//! [`LimitNode`](crate::limits::LimitNode) does.

use core::sync::atomic::{AtomicU64, Ordering};

/// The counters of one pool. Shared by all threads.
#[derive(Debug, Default)]
pub(crate) struct UsageCounters {
    in_use_bytes: AtomicU64,
    in_use_peak_bytes: AtomicU64,
    block_count: AtomicU64,
    allocation_count: AtomicU64,
}

impl UsageCounters {
    /// Counts an allocation. Its size has been admitted, so the sum cannot overflow.
    pub(crate) fn count_out(&self, size_bytes: u64) {
        let before_bytes = self.in_use_bytes.fetch_add(size_bytes, Ordering::AcqRel);
        self.in_use_peak_bytes.fetch_max(before_bytes + size_bytes, Ordering::Relaxed);
        self.block_count.fetch_add(1, Ordering::Relaxed);
        self.allocation_count.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a free.
    pub(crate) fn count_in(&self, size_bytes: u64) {
        let before_bytes = self.in_use_bytes.fetch_sub(size_bytes, Ordering::AcqRel);
        debug_assert!(before_bytes >= size_bytes, "more bytes freed than allocated");
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

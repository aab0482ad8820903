//! The count of what a pool has handed out. Pure: it never sees a driver.
//!
//! A request is *admitted* before the driver is asked, and counted off only after the driver has taken the bytes back. The
//! hard limit is the family's to keep.

use core::sync::atomic::{AtomicU64, Ordering};

/// What a pool has handed out. Shared by all threads.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    in_use_bytes: AtomicU64,
    in_use_peak_bytes: AtomicU64,
    block_count: AtomicU64,
    allocation_count: AtomicU64,
}

/// Bytes that count as in use while the driver is asked for them: kept by [`Admission::settle`], else given back.
#[derive(Debug)]
#[must_use = "dropping it withdraws the request"]
pub(crate) struct Admission<'a> {
    ledger: &'a Ledger,
    size_bytes: u64,
    in_use_after_bytes: u64,
}

impl Ledger {
    /// Counts the bytes as in use. Their sum has been admitted, and so fits into a word.
    pub(crate) fn admit(&self, size_bytes: u64) -> Admission<'_> {
        let in_use = self.in_use_bytes.fetch_add(size_bytes, Ordering::AcqRel);
        Admission { ledger: self, size_bytes, in_use_after_bytes: in_use + size_bytes }
    }

    /// Counts a block off, after the driver has taken it back.
    pub(crate) fn give_back(&self, size_bytes: u64) {
        self.withdraw(size_bytes);
        self.block_count.fetch_sub(1, Ordering::Relaxed);
    }

    fn withdraw(&self, size_bytes: u64) {
        let before = self.in_use_bytes.fetch_sub(size_bytes, Ordering::AcqRel);
        debug_assert!(before >= size_bytes, "more bytes came back than went out");
    }

    pub(crate) fn in_use_bytes(&self) -> u64 {
        self.in_use_bytes.load(Ordering::Relaxed)
    }

    /// An upper bound while other threads' requests are with the driver, else exact.
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

impl Admission<'_> {
    /// The driver gave the bytes: they stay counted until [`Ledger::give_back`].
    pub(crate) fn settle(self) {
        self.ledger.in_use_peak_bytes.fetch_max(self.in_use_after_bytes, Ordering::Relaxed);
        self.ledger.block_count.fetch_add(1, Ordering::Relaxed);
        self.ledger.allocation_count.fetch_add(1, Ordering::Relaxed);
        core::mem::forget(self);
    }
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        self.ledger.withdraw(self.size_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_withdrawn_request_leaves_no_trace() {
        let ledger = Ledger::default();
        ledger.admit(60).settle();
        drop(ledger.admit(40));
        assert_eq!((ledger.in_use_bytes(), ledger.in_use_peak_bytes()), (60, 60));
        assert_eq!((ledger.block_count(), ledger.allocation_count()), (1, 1));
        ledger.give_back(60);
        assert_eq!((ledger.in_use_bytes(), ledger.in_use_peak_bytes(), ledger.block_count()), (0, 60, 0));
    }
}

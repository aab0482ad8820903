//! The count of what a pool has handed out, and the hard limit on it. Pure: it never sees a driver.
//!
//! A request is *admitted* before the driver is asked, in one atomic step that also holds it to the limit, and counted
//! off only after the driver has taken the bytes back. So however many threads there are, what the driver is asked for
//! never exceeds the limit by a byte.

use core::sync::atomic::{AtomicU64, Ordering};

/// What a pool has handed out. Shared by all threads.
#[derive(Debug)]
pub(crate) struct Ledger {
    limit_bytes: u64,
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
    /// `u64::MAX` is no limit.
    pub(crate) fn new(limit_bytes: u64) -> Self {
        Self {
            limit_bytes,
            in_use_bytes: AtomicU64::new(0),
            in_use_peak_bytes: AtomicU64::new(0),
            block_count: AtomicU64::new(0),
            allocation_count: AtomicU64::new(0),
        }
    }

    /// Counts the bytes as in use if the limit allows it; else says how many are in use.
    pub(crate) fn admit(&self, size_bytes: u64) -> Result<Admission<'_>, u64> {
        let sum = |in_use: u64| {
            in_use.checked_add(size_bytes).filter(|in_use_after| *in_use_after <= self.limit_bytes)
        };
        // Acquire pairs with the release in `give_back`: the driver has taken back what makes room for this request.
        let in_use = self.in_use_bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, sum)?;
        Ok(Admission { ledger: self, size_bytes, in_use_after_bytes: in_use + size_bytes })
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
    use core::sync::atomic::AtomicBool;

    #[test]
    fn a_withdrawn_request_leaves_no_trace() {
        let ledger = Ledger::new(100);
        ledger.admit(60).unwrap().settle();
        drop(ledger.admit(40).unwrap());
        assert_eq!(ledger.admit(41).unwrap_err(), 60);
        assert_eq!((ledger.in_use_bytes(), ledger.in_use_peak_bytes()), (60, 60));
        assert_eq!((ledger.block_count(), ledger.allocation_count()), (1, 1));
        ledger.give_back(60);
        assert_eq!((ledger.in_use_bytes(), ledger.in_use_peak_bytes(), ledger.block_count()), (0, 60, 0));
    }

    #[test]
    fn sums_beyond_a_word_are_refused() {
        let ledger = Ledger::new(u64::MAX);
        ledger.admit(u64::MAX - 1).unwrap().settle();
        assert_eq!(ledger.admit(2).unwrap_err(), u64::MAX - 1);
    }

    #[test]
    fn sixteen_threads_never_pass_the_limit() {
        let ledger = Ledger::new(10);
        let passed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for size_bytes in 1..=16 {
                let (ledger, passed) = (&ledger, &passed);
                scope.spawn(move || {
                    for _ in 0..2_000 {
                        if let Ok(admission) = ledger.admit(size_bytes) {
                            admission.settle();
                            passed.fetch_or(ledger.in_use_bytes() > 10, Ordering::Relaxed);
                            ledger.give_back(size_bytes);
                        }
                    }
                });
            }
        });
        assert!(!passed.into_inner());
        assert_eq!(ledger.in_use_bytes(), 0);
    }
}

//! [`PeakCounter`]: the exact maximum of a pool's bytes in use.

use core::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Default)]
pub(crate) struct PeakCounter {
    in_use_bytes: AtomicU64,
    peak_bytes: AtomicU64,
}

impl PeakCounter {
    pub(crate) fn bytes(&self) -> u64 {
        self.peak_bytes.load(Ordering::Relaxed)
    }

    /// Resets the peak to the bytes in use now.
    pub(crate) fn reset(&self) {
        self.peak_bytes.store(self.in_use_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    pub(crate) fn add(&self, size_bytes: u64) {
        let before_bytes = self.in_use_bytes.fetch_add(size_bytes, Ordering::Relaxed);
        self.peak_bytes.fetch_max(before_bytes + size_bytes, Ordering::Relaxed);
    }

    pub(crate) fn subtract(&self, size_bytes: u64) {
        self.in_use_bytes.fetch_sub(size_bytes, Ordering::Relaxed);
    }
}

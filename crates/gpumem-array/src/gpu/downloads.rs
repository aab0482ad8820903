//! [`Downloads`] predicts the writes that a download will wait for while later work is queued.

use core::sync::atomic::{AtomicU64, Ordering};

/// The sizes whose writes are worth a marker: the sizes of single numbers, and of arrays whose downloads found later work on the stream.
/// Bit n represents sizes of 2ⁿ to 2ⁿ⁺¹ − 1 bytes.
#[derive(Debug)]
pub(crate) struct Downloads(AtomicU64);

impl Default for Downloads {
    fn default() -> Self {
        Self(AtomicU64::new(SIZES_OF_NUMBERS))
    }
}

impl Downloads {
    /// Notes that memory of a size is downloaded while later work is queued.
    pub(crate) fn note_late(&self, size_bytes: u64) {
        self.0.fetch_or(size_bit(size_bytes), Ordering::Relaxed);
    }

    /// True if memory of this size is likely to be downloaded while later work is queued, so that its write is worth a marker.
    #[inline]
    pub(crate) fn are_late(&self, size_bytes: u64) -> bool {
        self.0.load(Ordering::Relaxed) & size_bit(size_bytes) != 0
    }
}

/// Sizes below 32 bytes: results of reductions, which programs download.
const SIZES_OF_NUMBERS: u64 = 0b1_1111;

/// 0 for no bytes.
#[inline]
fn size_bit(size_bytes: u64) -> u64 {
    u64::from(size_bytes > 0) << (size_bytes | 1).ilog2()
}

//! [`Downloads`] predicts the writes that a download will wait for while later work is queued.

use super::Gpu;
use core::sync::atomic::{AtomicU64, Ordering};

/// The facts from which a download finds out whether it would wait for unrelated work.
#[derive(Debug)]
pub(super) struct Downloads {
    /// The address of the memory that the latest work writes; 0 if it writes none.
    last_written: AtomicU64,
    /// The sizes of arrays whose downloads found later work on the stream. Bit n stands for sizes of 2ⁿ to 2ⁿ⁺¹ − 1 bytes.
    late_sizes: AtomicU64,
}

impl Default for Downloads {
    fn default() -> Self {
        Self { last_written: AtomicU64::new(0), late_sizes: AtomicU64::new(SIZES_OF_NUMBERS) }
    }
}

impl Gpu {
    /// Notes that the latest work on the stream writes the memory at an address, or none if it is 0.
    #[inline]
    pub(crate) fn note_write(&self, address: u64) {
        let last = &self.0.downloads.last_written;
        if last.load(Ordering::Relaxed) != address {
            last.store(address, Ordering::Relaxed);
        }
    }

    /// Returns whether no work has been queued behind the write of the memory at an address.
    pub(crate) fn wrote_last(&self, address: u64) -> bool {
        self.0.downloads.last_written.load(Ordering::Relaxed) == address
    }

    /// Notes that memory of a size is downloaded while later work is queued.
    pub(crate) fn note_late_download(&self, size_bytes: u64) {
        self.0.downloads.late_sizes.fetch_or(size_bit(size_bytes), Ordering::Relaxed);
    }

    /// Returns whether memory of this size is likely to be downloaded while later work is queued, so that its write is worth a
    /// marker.
    #[inline]
    pub(crate) fn downloads_late(&self, size_bytes: u64) -> bool {
        self.0.downloads.late_sizes.load(Ordering::Relaxed) & size_bit(size_bytes) != 0
    }
}

/// Sizes below 32 bytes: results of reductions, which programs download.
const SIZES_OF_NUMBERS: u64 = 0b1_1111;

#[inline]
fn size_bit(size_bytes: u64) -> u64 {
    1 << (size_bytes | 1).ilog2()
}

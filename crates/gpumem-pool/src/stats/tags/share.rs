//! [`Share`]: one thread's counters for a tag. [`Peak`]: the peak over all threads.
//!
//! Only its thread writes a share, which tracks its own peak exactly. It publishes its count when that has moved by [`STRIDE_BYTES`], so
//! that short-lived blocks need no access to a shared counter. A tag's peak is therefore exact if one thread counts for it. With several
//! threads, the published and unpublished counts may stem from different moments, at most two strides apart for each thread. If the peak is
//! reset while another thread counts, the new peak may include memory that this thread frees at that moment.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use gpumem_base::counters::{Counters, LocalCounters};
use std::sync::Arc;

/// Counters that one thread at a time writes.
pub(crate) struct Share {
    counters: LocalCounters,
    /// The count at which a fall is published: [`STRIDE_BYTES`] below the count that was published last.
    floor_bytes: AtomicU64,
    /// The highest count since then. It is less than [`STRIDE_BYTES`] above the count that was published last, so a count that is
    /// not higher need not be published. The exception is a [`reset_peak`](Share::reset_peak) on another thread.
    high_bytes: AtomicU64,
    pub(super) is_owned: AtomicBool,
    peak: Arc<Peak>,
}

#[derive(Default)]
pub(super) struct Peak {
    /// The sum of all published counts. It may be negative for a moment.
    published_bytes: AtomicU64,
    peak_bytes: AtomicU64,
}

impl Share {
    pub(super) fn new(peak: &Arc<Peak>) -> Self {
        Self {
            counters: LocalCounters::default(),
            floor_bytes: AtomicU64::new(STRIDE_BYTES.wrapping_neg()),
            high_bytes: AtomicU64::new(0),
            is_owned: AtomicBool::new(true),
            peak: Arc::clone(peak),
        }
    }

    #[inline]
    pub(crate) fn count_out(&self, size_bytes: u64) {
        if self.count_out_only(size_bytes) {
            self.note_rise();
        }
    }

    /// Counts an allocation. Returns true if the caller must call [`note_rise`](Self::note_rise).
    #[inline]
    pub(crate) fn count_out_only(&self, size_bytes: u64) -> bool {
        self.is_highest(self.counters.count_out(size_bytes))
    }

    #[inline]
    pub(crate) fn count_in(&self, size_bytes: u64) {
        self.note_fall(self.counters.count_in(size_bytes));
    }

    /// Counts a change in size without counting a block.
    pub(crate) fn change(&self, from_bytes: u64, to_bytes: u64) {
        self.counters.change(from_bytes, to_bytes);
        if self.is_highest(self.counters.in_use_bytes()) {
            self.note_rise();
        }
        self.note_fall(self.counters.in_use_bytes());
    }

    pub(super) fn counters(&self) -> Counters {
        self.counters.counters()
    }

    #[inline]
    fn is_highest(&self, in_use_bytes: u64) -> bool {
        in_use_bytes.cast_signed() > self.high_bytes.load(Ordering::Relaxed).cast_signed()
    }

    #[inline]
    pub(crate) fn note_rise(&self) {
        let in_use_bytes = self.counters.in_use_bytes();
        self.high_bytes.store(in_use_bytes, Ordering::Relaxed);
        let moved_bytes = in_use_bytes.wrapping_sub(self.published_bytes());
        if moved_bytes.cast_signed() >= STRIDE_BYTES.cast_signed() {
            self.publish();
        }
    }

    #[inline]
    fn note_fall(&self, in_use_bytes: u64) {
        if in_use_bytes.cast_signed() <= self.floor_bytes.load(Ordering::Relaxed).cast_signed() {
            self.publish();
        }
    }

    #[inline]
    fn published_bytes(&self) -> u64 {
        self.floor_bytes.load(Ordering::Relaxed).wrapping_add(STRIDE_BYTES)
    }

    #[inline]
    pub(super) fn publish(&self) {
        let in_use_bytes = self.counters.in_use_bytes();
        let moved_bytes = in_use_bytes.wrapping_sub(self.published_bytes());
        let before_bytes = self.peak.published_bytes.fetch_add(moved_bytes, Ordering::Relaxed);
        self.peak.raise(before_bytes.wrapping_add(self.unpublished_peak_bytes()));
        self.floor_bytes.store(in_use_bytes.wrapping_sub(STRIDE_BYTES), Ordering::Relaxed);
        self.high_bytes.store(in_use_bytes, Ordering::Relaxed);
    }

    /// The difference between the highest count since the last publication and the published count; negative if the count has only
    /// fallen.
    pub(super) fn unpublished_peak_bytes(&self) -> u64 {
        self.high_bytes.load(Ordering::Relaxed).wrapping_sub(self.published_bytes())
    }

    /// Resets the peak to the current count. While the owner counts on another thread, that count may be slightly outdated: then increases
    /// up to it are not published, and the peak may be too high, until the owner's next publication or a higher count.
    pub(super) fn reset_peak(&self) {
        self.high_bytes.store(self.counters.in_use_bytes(), Ordering::Relaxed);
    }
}

impl Peak {
    /// The peak, including the shares' unpublished bytes.
    pub(super) fn bytes(&self, unpublished_bytes: u64) -> u64 {
        self.raise(self.published_bytes.load(Ordering::Relaxed).wrapping_add(unpublished_bytes))
    }

    pub(super) fn reset(&self) {
        self.peak_bytes.store(0, Ordering::Relaxed);
    }

    fn raise(&self, bytes: u64) -> u64 {
        let bytes = bytes.cast_signed().max(0).unsigned_abs();
        self.peak_bytes.fetch_max(bytes, Ordering::Relaxed).max(bytes)
    }
}

/// The change at which a count is published. Most cached blocks are smaller, so their use publishes nothing.
const STRIDE_BYTES: u64 = 512 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LARGE: u64 = 3 * STRIDE_BYTES;

    fn peak_bytes(peak: &Peak, shares: &[Share]) -> u64 {
        peak.bytes(shares.iter().fold(0, |sum, share| sum.wrapping_add(share.unpublished_peak_bytes())))
    }

    proptest! {
        /// Exact with one share. With several, never below the current use, and off by at most two strides for each
        /// share.
        #[test]
        fn peaks_are_as_near_as_they_say(
            count in 1_usize..4,
            steps in proptest::collection::vec((0_usize..4, prop_oneof![1..5000_u64, LARGE / 5..LARGE], any::<bool>(), 0_u8..40), 1..120),
        ) {
            let peak = Arc::new(Peak::default());
            let shares: Vec<_> = (0..count).map(|_| Share::new(&peak)).collect();
            let (mut live, mut in_use_bytes, mut most_bytes) = (Vec::new(), 0, 0);
            for (index, size_bytes, is_free, look) in steps {
                let share = &shares[index % count];
                match live.pop() {
                    Some(size_bytes) if is_free => {
                        share.count_in(size_bytes);
                        in_use_bytes -= size_bytes;
                    }
                    last => {
                        live.extend(last);
                        live.push(size_bytes);
                        share.count_out(size_bytes);
                        in_use_bytes += size_bytes;
                    }
                }
                most_bytes = most_bytes.max(in_use_bytes);
                match look {
                    0 => {
                        shares.iter().for_each(Share::reset_peak);
                        peak.reset();
                        most_bytes = in_use_bytes;
                    }
                    1..10 => prop_assert!(peak_bytes(&peak, &shares) >= in_use_bytes),
                    _ => {}
                }
            }
            let found_bytes = peak_bytes(&peak, &shares);
            prop_assert!(found_bytes >= in_use_bytes);
            let error_bytes = found_bytes.abs_diff(most_bytes);
            let bound_bytes = if count == 1 { 0 } else { count as u64 * 2 * STRIDE_BYTES };
            prop_assert!(error_bytes <= bound_bytes, "{} is off by {}", most_bytes, error_bytes);
        }
    }
}

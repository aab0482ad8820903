//! [`Share`]: what one thread has counted for a tag; [`Peak`]: the most that all threads had together.
//!
//! A thread alone writes its share, and knows exactly how high that rose. It tells the others when it has moved by
//! [`STRIDE_BYTES`], so that blocks which come and go cost nobody a shared count. So a tag's peak is exact if one thread counts
//! for it; of several, what each has told and what it has not may be from different moments, two strides apart at most.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use gpumem_heap::counters::{Counters, LocalCounters};
use std::sync::Arc;

/// A tally that one thread at a time writes.
pub(crate) struct Share {
    tally: LocalCounters,
    /// What the tally had when all were told last.
    told_bytes: AtomicU64,
    /// The most that it has had since.
    high_bytes: AtomicU64,
    pub(super) is_owned: AtomicBool,
    peak: Arc<Peak>,
}

/// Of one tag.
#[derive(Default)]
pub(super) struct Peak {
    /// The sum of all that was told. May be less than nothing, for a moment.
    told_bytes: AtomicU64,
    peak_bytes: AtomicU64,
}

impl Share {
    /// The calling thread's.
    pub(super) fn new(peak: &Arc<Peak>) -> Self {
        Self {
            tally: LocalCounters::default(),
            told_bytes: AtomicU64::new(0),
            high_bytes: AtomicU64::new(0),
            is_owned: AtomicBool::new(true),
            peak: Arc::clone(peak),
        }
    }

    /// A block of so many bytes was handed out.
    #[inline]
    pub(crate) fn count_out(&self, size_bytes: u64) {
        self.tally.count_out(size_bytes);
        self.note();
    }

    /// A block of so many bytes came back.
    #[inline]
    pub(crate) fn count_in(&self, size_bytes: u64) {
        self.tally.count_in(size_bytes);
        self.note();
    }

    /// Something that is no block of its own has more bytes than before, or fewer.
    pub(crate) fn change(&self, from_bytes: u64, to_bytes: u64) {
        self.tally.change(from_bytes, to_bytes);
        self.note();
    }

    pub(super) fn counters(&self) -> Counters {
        self.tally.counters()
    }

    #[inline]
    fn note(&self) {
        let in_use_bytes = self.tally.in_use_bytes();
        if above(in_use_bytes, self.high_bytes.load(Ordering::Relaxed)) > 0 {
            self.high_bytes.store(in_use_bytes, Ordering::Relaxed);
        }
        if above(in_use_bytes, self.told_bytes.load(Ordering::Relaxed)).unsigned_abs() >= STRIDE_BYTES {
            self.tell();
        }
    }

    #[cold]
    pub(super) fn tell(&self) {
        let (in_use_bytes, told_bytes) = (self.tally.in_use_bytes(), self.told_bytes.load(Ordering::Relaxed));
        let before_bytes =
            self.peak.told_bytes.fetch_add(in_use_bytes.wrapping_sub(told_bytes), Ordering::Relaxed);
        self.peak.raise(before_bytes.wrapping_add(self.untold_peak_bytes()));
        self.told_bytes.store(in_use_bytes, Ordering::Relaxed);
        self.high_bytes.store(in_use_bytes, Ordering::Relaxed);
    }

    /// How far it has risen above what all were told; less than nothing if it has only sunk since.
    pub(super) fn untold_peak_bytes(&self) -> u64 {
        self.high_bytes.load(Ordering::Relaxed).wrapping_sub(self.told_bytes.load(Ordering::Relaxed))
    }

    /// From now on its peak is of what comes.
    pub(super) fn reset_peak(&self) {
        self.high_bytes.store(self.tally.in_use_bytes(), Ordering::Relaxed);
    }
}

impl Peak {
    /// The most that there ever was, with what shares have not told by now.
    pub(super) fn bytes(&self, untold_bytes: u64) -> u64 {
        self.raise(self.told_bytes.load(Ordering::Relaxed).wrapping_add(untold_bytes))
    }

    pub(super) fn reset(&self) {
        self.peak_bytes.store(0, Ordering::Relaxed);
    }

    fn raise(&self, bytes: u64) -> u64 {
        let bytes = if above(bytes, 0) > 0 { bytes } else { 0 };
        self.peak_bytes.fetch_max(bytes, Ordering::Relaxed).max(bytes)
    }
}

/// How much more one count is than another: counts wrap around.
#[inline]
fn above(bytes: u64, other_bytes: u64) -> i64 {
    bytes.wrapping_sub(other_bytes).cast_signed()
}

/// Few blocks that a thread has at hand are larger.
const STRIDE_BYTES: u64 = 512 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LARGE: u64 = 3 * STRIDE_BYTES;

    fn peak_bytes(peak: &Peak, shares: &[Share]) -> u64 {
        peak.bytes(shares.iter().fold(0, |sum, share| sum.wrapping_add(share.untold_peak_bytes())))
    }

    proptest! {
        /// Exact with one share; with several never below what is in use, and off by two strides for each share.
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

//! [`GrowthLog`]: how use came to be what it is, in a few samples, and whether that looks like a leak. Pure.
//!
//! A sample is taken whenever use has passed the last one by a part of itself. A program that loads a model gets through
//! its samples without freeing anything; one that works in steps frees nearly all that it allocates between two of them.
//! If it does, and each time has more blocks than before, something is kept that should not be.

use crate::bytes::Bytes;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// How use grew over the last steps of a program that frees most of what it allocates.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Growth {
    /// In use at first.
    pub from_bytes: u64,
    /// In use at last.
    pub to_bytes: u64,
    /// What was allocated in between.
    pub allocation_count: u64,
    /// What of that was still there at last.
    pub kept_count: u64,
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from_bytes, to_bytes, allocation_count, kept_count } = self;
        let (from, to) = (Bytes(*from_bytes), Bytes(*to_bytes));
        write!(
            f,
            "use grew steadily from {from} to {to}: of the last {allocation_count} blocks, {kept_count} stayed"
        )
    }
}

/// A pool's counts when its use had grown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) in_use_bytes: u64,
    pub(crate) block_count: u64,
    pub(crate) allocation_count: u64,
}

/// The last samples.
#[derive(Debug, Default)]
pub(crate) struct GrowthLog {
    /// From here on the next one is due.
    due_bytes: AtomicU64,
    samples: Mutex<VecDeque<Sample>>,
}

impl GrowthLog {
    /// Whether so much in use is worth a sample.
    #[inline]
    pub(crate) fn is_due(&self, in_use_bytes: u64) -> bool {
        in_use_bytes >= self.due_bytes.load(Ordering::Relaxed).max(1)
    }

    pub(crate) fn add(&self, sample: Sample) {
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        if samples.len() == SAMPLE_COUNT {
            samples.pop_front();
        }
        samples.push_back(sample);
        let due_bytes = sample.in_use_bytes.saturating_add(sample.in_use_bytes / SAMPLE_PART + 1);
        self.due_bytes.fetch_max(due_bytes, Ordering::Relaxed);
    }

    /// The growth, if each sample has more blocks than the one before although most were freed in between.
    pub(crate) fn steady(&self) -> Option<Growth> {
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, last) = (samples.front()?, samples.back()?);
        let mut pairs = samples.iter().zip(samples.iter().skip(1));
        let is_steady =
            samples.len() == SAMPLE_COUNT && pairs.all(|(before, after)| grows_in_steps(before, after));
        is_steady.then(|| Growth {
            from_bytes: first.in_use_bytes,
            to_bytes: last.in_use_bytes,
            allocation_count: last.allocation_count - first.allocation_count,
            kept_count: last.block_count - first.block_count,
        })
    }
}

fn grows_in_steps(before: &Sample, after: &Sample) -> bool {
    let allocated_count = after.allocation_count.saturating_sub(before.allocation_count);
    let kept_count = after.block_count.saturating_sub(before.block_count);
    kept_count > 0 && allocated_count >= STEP_COUNT * kept_count
}

/// So many are allocated for each that stays: one that is loaded may come with a temporary or two, to be converted in.
const STEP_COUNT: u64 = 4;

/// So many in a row are no accident.
const SAMPLE_COUNT: usize = 8;
/// From one to the next, use grows by this part.
const SAMPLE_PART: u64 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    fn log(samples: impl IntoIterator<Item = (u64, u64, u64)>) -> GrowthLog {
        let log = GrowthLog::default();
        for (in_use_bytes, block_count, allocation_count) in samples {
            if log.is_due(in_use_bytes) {
                log.add(Sample { in_use_bytes, block_count, allocation_count });
            }
        }
        log
    }

    #[test]
    fn a_leak_in_a_loop_is_seen_and_a_model_that_is_loaded_is_not() {
        let leak = log((1..=100).map(|step| (1000 + 50 * step, 10 + step, 40 * step)));
        let growth = leak.steady().unwrap();
        assert!(growth.to_bytes > growth.from_bytes && growth.kept_count * 40 == growth.allocation_count);
        assert_eq!(log((1..=100).map(|step| (50 * step, step, step))).steady(), None);
        assert_eq!(log((1..=100).map(|step| (50 * step, step, 3 * step))).steady(), None, "with temporaries");
    }

    #[test]
    fn larger_steps_are_no_leak() {
        let blocks_stay = log((1..=100).map(|step| (1000 + 50 * step, 10, 40 * step)));
        assert_eq!(blocks_stay.steady(), None);
        let too_few = log((1..=3).map(|step| (1000 * step, 10 + step, 40 * step)));
        assert_eq!(too_few.steady(), None);
    }
}

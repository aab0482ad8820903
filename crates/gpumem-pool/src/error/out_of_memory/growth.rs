//! [`GrowthLog`]: how use came to be what it is, in a few samples, and whether that looks like a leak. Pure.
//!
//! A sample is taken whenever use has passed the last one by a part of itself. What is meant by a leak is a program that works
//! in steps, and has more blocks after each. Counts don't tell that from one that still builds up what it needs, but for this:
//!
//! | of what was allocated between two samples, there stays | and | so it is |
//! | --- | --- | --- |
//! | a quarter or less | something at every sample | a leak: what a program builds up comes with a temporary or two |
//! | half or less | the same again and again | a leak, unless all of it is needed at once: the advice says so |
//! | more, or all | the same, and the host waits for the device every few blocks | likewise: who builds up has nothing to wait for |
//! | more, or all | the same | growth that is told, and no leak |
//! | any other | | nothing to tell |
//!
//! *The same again and again* is some blocks at every sample, of one mean size. A model's layers are few and of many sizes; that
//! they repeat themselves does not make them alike, because samples are taken at parts of use that vary.

use crate::config::Bytes;
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
    /// Whether a program grows like that which leaks. If not, it may as well build up what it needs.
    pub is_leak: bool,
}

impl Growth {
    /// Whether so little stays of what is allocated that it can't be what a program builds up.
    pub(super) fn is_sure(&self) -> bool {
        self.allocation_count >= STEP_COUNT.saturating_mul(self.kept_count)
    }
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from_bytes, to_bytes, allocation_count, kept_count, .. } = self;
        write!(f, "use grew steadily from {} to {}: ", Bytes(*from_bytes), Bytes(*to_bytes))?;
        match kept_count < allocation_count {
            true => write!(f, "of the last {allocation_count} blocks, {kept_count} stayed")?,
            false => write!(f, "the last {kept_count} blocks all stayed")?,
        }
        if self.is_leak { Ok(()) } else { f.write_str("; if a loop makes them, it keeps them") }
    }
}

/// A pool's counts when its use had grown.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) in_use_bytes: u64,
    pub(crate) block_count: u64,
    pub(crate) allocation_count: u64,
    /// How often the host has waited for the device.
    pub(crate) wait_count: u64,
}

/// The last samples.
#[derive(Debug, Default)]
pub(crate) struct GrowthLog {
    /// From here on the next one is due.
    due_bytes: AtomicU64,
    samples: Mutex<Samples>,
}

#[derive(Debug, Default)]
struct Samples {
    last: VecDeque<Sample>,
    /// All that there ever were.
    count: usize,
}

impl GrowthLog {
    /// Whether so much in use is worth a sample.
    #[inline]
    pub(crate) fn is_due(&self, in_use_bytes: u64) -> bool {
        in_use_bytes >= self.due_bytes.load(Ordering::Relaxed).max(1)
    }

    /// One that was due with so much in use, by the measure that it was due by.
    pub(crate) fn add(&self, seen_bytes: u64, sample: Sample) {
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        if samples.last.len() == SAMPLE_COUNT {
            samples.last.pop_front();
        }
        samples.last.push_back(sample);
        let part = SAMPLE_PARTS[samples.count % SAMPLE_PARTS.len()];
        samples.count += 1;
        self.due_bytes.fetch_max(seen_bytes.saturating_add(seen_bytes / part + 1), Ordering::Relaxed);
    }

    /// The growth from the first sample to the last, if it is one to tell of, and use has not fallen below it since.
    pub(crate) fn steady(&self, in_use_bytes: u64) -> Option<Growth> {
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, last) = (samples.last.front()?, samples.last.back()?);
        if samples.last.len() < SAMPLE_COUNT || in_use_bytes < first.in_use_bytes {
            return None;
        }
        let (all, mut pairs) =
            (Pair(first, last), samples.last.iter().zip(samples.last.iter().skip(1)).map(Pair::from));
        let is_sure = pairs.clone().all(|pair| pair.grows_in_steps());
        if !is_sure && !pairs.all(|pair| pair.is_like(&all)) {
            return None;
        }
        Some(Growth {
            from_bytes: first.in_use_bytes,
            to_bytes: last.in_use_bytes,
            allocation_count: all.allocated_count(),
            kept_count: all.kept_count(),
            is_leak: is_sure || all.frees_as_it_keeps() || all.waits_as_it_keeps(),
        })
    }
}

/// One sample, and a later one.
struct Pair<'a>(&'a Sample, &'a Sample);

impl<'a> From<(&'a Sample, &'a Sample)> for Pair<'a> {
    fn from((before, after): (&'a Sample, &'a Sample)) -> Self {
        Self(before, after)
    }
}

impl Pair<'_> {
    fn kept_bytes(&self) -> u64 {
        self.1.in_use_bytes.saturating_sub(self.0.in_use_bytes)
    }

    fn kept_count(&self) -> u64 {
        self.1.block_count.saturating_sub(self.0.block_count)
    }

    fn allocated_count(&self) -> u64 {
        self.1.allocation_count.saturating_sub(self.0.allocation_count)
    }

    fn grows_in_steps(&self) -> bool {
        self.kept_count() > 0 && self.allocated_count() >= STEP_COUNT.saturating_mul(self.kept_count())
    }

    /// Whether enough blocks stay to be compared, and their mean size is that of all.
    fn is_like(&self, all: &Self) -> bool {
        let cross = |bytes: u64, count: u64| u128::from(bytes) * u128::from(count);
        let (own, other) =
            (cross(self.kept_bytes(), all.kept_count()), cross(all.kept_bytes(), self.kept_count()));
        self.kept_count() >= LIKE_COUNT && own.abs_diff(other) <= other / LIKE_PART
    }

    /// One is freed for each that stays, or nearly: one that was freed since may belong to a step before.
    fn frees_as_it_keeps(&self) -> bool {
        let freed_count = self.allocated_count().saturating_sub(self.kept_count());
        freed_count.saturating_mul(10) >= self.kept_count().saturating_mul(9)
    }

    fn waits_as_it_keeps(&self) -> bool {
        let wait_count = self.1.wait_count.saturating_sub(self.0.wait_count);
        wait_count.saturating_mul(WAIT_BLOCKS) >= self.kept_count()
    }
}

/// So many are allocated for each that stays: one that is loaded may come with a temporary or two, to be converted in.
const STEP_COUNT: u64 = 4;

/// So many in a row are no accident.
const SAMPLE_COUNT: usize = 8;
/// From one to the next, use grows by one of these parts, in turn: no program has a rhythm like that.
const SAMPLE_PARTS: [u64; 11] = [32, 24, 43, 28, 37, 25, 47, 30, 40, 27, 35];

/// Fewer have no mean size.
const LIKE_COUNT: u64 = 4;
/// By this part it may differ: a temporary may be there at one sample, and not at the next.
const LIKE_PART: u128 = 64;

/// Who waits for the device at its steps keeps no more than so many blocks at each.
const WAIT_BLOCKS: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn log(samples: impl IntoIterator<Item = (u64, u64, u64)>) -> GrowthLog {
        let log = GrowthLog::default();
        for (in_use_bytes, block_count, allocation_count) in samples {
            if log.is_due(in_use_bytes) {
                log.add(in_use_bytes, Sample { in_use_bytes, block_count, allocation_count, wait_count: 0 });
            }
        }
        log
    }

    /// A program that keeps the first of so many blocks at each step, of sizes that come in turn, and may wait after each.
    fn loops(sizes: &[u64], step_count: u64, waits: bool) -> Option<Growth> {
        let (log, mut now) = (GrowthLog::default(), Sample::default());
        for (step, kept_bytes) in sizes.iter().cycle().take(600).enumerate() {
            let temporary_bytes = if step_count > 1 { 3 } else { 0 };
            now.in_use_bytes += kept_bytes;
            now.block_count += 1;
            now.allocation_count += step_count;
            now.wait_count += u64::from(waits);
            let seen_bytes = now.in_use_bytes + temporary_bytes;
            if log.is_due(seen_bytes) {
                let block_count = now.block_count + u64::from(step_count > 1);
                log.add(seen_bytes, Sample { in_use_bytes: seen_bytes, block_count, ..now });
            }
            assert!(
                step > 100 || log.steady(u64::MAX).is_none_or(|growth| growth.is_sure()),
                "{:?}",
                log.steady(u64::MAX)
            );
        }
        log.steady(u64::MAX)
    }

    #[test]
    fn a_loop_that_keeps_much_of_what_it_makes_is_told_from_a_program_that_builds_up() {
        let is_leak = |growth: Option<Growth>| growth.map(|growth| growth.is_leak);
        for step_count in [2, 3, 4, 20] {
            assert_eq!(is_leak(loops(&[2], step_count, false)), Some(true), "1 of {step_count}");
        }
        assert_eq!(is_leak(loops(&[2], 1, true)), Some(true), "all, and the host waits at each step");
        assert_eq!(is_leak(loops(&[2], 1, false)), Some(false), "all, at once");
        // Layers of parts that differ, as they are loaded, with a temporary or without.
        let layer = [32, 8, 8, 32, 112, 112, 112, 1, 1];
        for step_count in [1, 2, 3] {
            assert_eq!(loops(&layer, step_count, true), None, "1 of {step_count}");
        }
    }

    #[test]
    fn a_leak_in_a_loop_is_seen_and_a_model_that_is_loaded_is_not() {
        let leak = log((1..=100).map(|step| (1000 + 50 * step, 10 + step, 40 * step)));
        let growth = leak.steady(u64::MAX).unwrap();
        assert!(growth.to_bytes > growth.from_bytes && growth.kept_count * 40 == growth.allocation_count);
        assert_eq!(log((1..=100).map(|step| (50 * step, step, step))).steady(u64::MAX), None);
        assert_eq!(
            log((1..=100).map(|step| (50 * step, step, 3 * step))).steady(u64::MAX),
            None,
            "with temporaries"
        );
    }

    #[test]
    fn larger_steps_are_no_leak() {
        let leak = log((1..=100).map(|step| (1000 + 50 * step, 10 + step, 40 * step)));
        assert_eq!(leak.steady(4000), None, "use has fallen since");
        let blocks_stay = log((1..=100).map(|step| (1000 + 50 * step, 10, 40 * step)));
        assert_eq!(blocks_stay.steady(u64::MAX), None);
        let too_few = log((1..=3).map(|step| (1000 * step, 10 + step, 40 * step)));
        assert_eq!(too_few.steady(u64::MAX), None);
    }
}

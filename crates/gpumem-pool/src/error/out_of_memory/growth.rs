//! [`GrowthLog`]: samples of the memory in use, and a heuristic for leaks. Pure.
//!
//! A sample is taken whenever use exceeds the previous sample by a fraction of itself. A leaking program works in steps and keeps more
//! blocks after each. A program that builds up its working set also keeps blocks; the counts distinguish the two:
//!
//! | kept of the blocks allocated between two samples | and | so it is |
//! | --- | --- | --- |
//! | a quarter or less | some at every sample | a leak: building up comes with only a temporary or two |
//! | more, or all | some at every sample, of one mean size | reported growth, but not a leak |
//! | any other | | not reported |
//!
//! A model has few layers of many sizes. Repeated layers do not produce one mean size, because the fraction of use between samples varies.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use gpumem_base::sync::Lock;
use gpumem_device::Bytes;
use gpumem_sys::text::Shown;
use std::collections::VecDeque;
use std::sync::Arc;

/// The growth of memory in use over the last steps of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Growth {
    /// Bytes in use at the first sample.
    pub from_bytes: u64,
    /// Bytes in use at the last sample.
    pub to_bytes: u64,
    /// Blocks allocated in between.
    pub allocation_count: u64,
    /// Blocks in use at the last sample beyond those of the first.
    pub kept_count: u64,
    /// The tag that most of the growth belongs to.
    pub tag: Option<String>,
    /// True if the growth resembles a leak. Otherwise the program may be building up its working set.
    pub is_leak: bool,
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from_bytes, to_bytes, allocation_count, kept_count, .. } = self;
        write!(
            f,
            "use grew steadily, from {} to {} at the last sample: ",
            Bytes(*from_bytes),
            Bytes(*to_bytes)
        )?;
        if kept_count < allocation_count {
            write!(f, "{kept_count} of the last {allocation_count} blocks are still in use")?
        } else {
            write!(f, "all of the last {kept_count} blocks are still in use")?
        }
        if let Some(tag) = &self.tag {
            write!(f, ", most of that memory with the tag `{}`", Shown::name(tag))?;
        }
        if self.is_leak { Ok(()) } else { f.write_str("; if a loop allocates them, it leaks") }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) in_use_bytes: u64,
    pub(crate) block_count: u64,
    pub(crate) allocation_count: u64,
    pub(crate) tags: Vec<(Arc<str>, u64)>,
}

#[derive(Debug, Default)]
pub(crate) struct GrowthLog {
    due_bytes: AtomicU64,
    samples: Lock<Samples>,
}

#[derive(Debug, Default)]
struct Samples {
    last: VecDeque<Sample>,
    count: usize,
}

impl GrowthLog {
    #[inline]
    pub(crate) fn is_due(&self, in_use_bytes: u64) -> bool {
        in_use_bytes >= self.due_bytes.load(Ordering::Relaxed).max(1)
    }

    /// Adds a sample that `seen_bytes` made due. The next one is due relative to `seen_bytes`.
    pub(crate) fn add(&self, seen_bytes: u64, sample: Sample) {
        let mut samples = self.samples.lock();
        if samples.last.len() == SAMPLE_COUNT {
            samples.last.pop_front();
        }
        samples.last.push_back(sample);
        let part = SAMPLE_PARTS[samples.count % SAMPLE_PARTS.len()];
        samples.count += 1;
        self.due_bytes.fetch_max(seen_bytes.saturating_add(seen_bytes / part + 1), Ordering::Relaxed);
    }

    /// The growth from the first sample to the last, if the module's table reports it and use has not fallen since.
    pub(crate) fn steady(&self, in_use_bytes: u64) -> Option<Growth> {
        let samples = self.samples.lock();
        let (first, last) = (samples.last.front()?, samples.last.back()?);
        if samples.last.len() < SAMPLE_COUNT || in_use_bytes < first.in_use_bytes {
            return None;
        }
        let (all, mut pairs) =
            (Pair(first, last), samples.last.iter().zip(samples.last.iter().skip(1)).map(Pair::from));
        let is_leak = pairs.clone().all(|pair| pair.grows_in_steps());
        if !is_leak && !pairs.all(|pair| pair.is_like(&all)) {
            return None;
        }
        Some(Growth {
            from_bytes: first.in_use_bytes,
            to_bytes: last.in_use_bytes,
            allocation_count: all.allocated_count(),
            kept_count: all.kept_count(),
            tag: all.tag().map(Into::into),
            is_leak,
        })
    }
}

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

    /// The tag of more than half of the growth.
    fn tag(&self) -> Option<&str> {
        let before = |tag: &str| {
            let found = self.0.tags.iter().find(|(name, _)| **name == *tag);
            found.map_or(0, |(_, in_use_bytes)| *in_use_bytes)
        };
        let grown = self.1.tags.iter().map(|(tag, bytes)| (bytes.saturating_sub(before(tag)), tag));
        let (kept_bytes, tag) = grown.max_by_key(|(kept_bytes, _)| *kept_bytes)?;
        (kept_bytes > self.kept_bytes() / 2).then_some(tag)
    }

    fn grows_in_steps(&self) -> bool {
        self.kept_count() > 0 && self.allocated_count() >= STEP_COUNT.saturating_mul(self.kept_count())
    }

    /// True if enough blocks stay for a comparison, and their mean size equals that of all blocks.
    fn is_like(&self, all: &Self) -> bool {
        let cross = |bytes: u64, count: u64| u128::from(bytes) * u128::from(count);
        let (own, other) =
            (cross(self.kept_bytes(), all.kept_count()), cross(all.kept_bytes(), self.kept_count()));
        self.kept_count() >= LIKE_COUNT && own.abs_diff(other) <= other / LIKE_PART
    }
}

/// A leaking step allocates at least this many blocks for each that stays. Loading one tensor may take a temporary or
/// two for conversion, which stays below this.
const STEP_COUNT: u64 = 4;

/// This many samples in a row are not a coincidence.
const SAMPLE_COUNT: usize = 8;
/// Between samples use grows by these fractions, alternately. No program has this rhythm, so steps and samples do not align.
const SAMPLE_PARTS: [u64; 11] = [32, 24, 43, 28, 37, 25, 47, 30, 40, 27, 35];

/// Fewer blocks give no meaningful mean size.
const LIKE_COUNT: u64 = 4;
/// Mean sizes may differ by this fraction: a temporary may be alive at one sample and not at the next.
const LIKE_PART: u128 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn log(samples: impl IntoIterator<Item = (u64, u64, u64)>) -> GrowthLog {
        let log = GrowthLog::default();
        for (in_use_bytes, block_count, allocation_count) in samples {
            if log.is_due(in_use_bytes) {
                let tags = vec![("loop".into(), in_use_bytes / 2 + 100), ("rest".into(), 100)];
                log.add(in_use_bytes, Sample { in_use_bytes, block_count, allocation_count, tags });
            }
        }
        log
    }

    /// A program that keeps the first of `step_count` blocks at each step, cycling through sizes.
    fn loops(sizes: &[u64], step_count: u64) -> Option<Growth> {
        let (log, mut now) = (GrowthLog::default(), Sample::default());
        for (step, kept_bytes) in sizes.iter().cycle().take(600).enumerate() {
            let temporary_bytes = if step_count > 1 { 3 } else { 0 };
            now.in_use_bytes += kept_bytes;
            now.block_count += 1;
            now.allocation_count += step_count;
            let seen_bytes = now.in_use_bytes + temporary_bytes;
            if log.is_due(seen_bytes) {
                let block_count = now.block_count + u64::from(step_count > 1);
                log.add(seen_bytes, Sample { in_use_bytes: seen_bytes, block_count, ..now.clone() });
            }
            assert!(
                step > 100 || log.steady(u64::MAX).is_none_or(|growth| growth.is_leak),
                "{:?}",
                log.steady(u64::MAX)
            );
        }
        log.steady(u64::MAX)
    }

    #[test]
    fn a_loop_that_keeps_much_of_what_it_makes_is_told_from_a_program_that_builds_up() {
        let is_leak = |growth: Option<Growth>| growth.map(|growth| growth.is_leak);
        for step_count in [1, 2, 3, 4, 20] {
            assert_eq!(is_leak(loops(&[2], step_count)), Some(step_count > 3), "1 of {step_count}");
        }
        // Layers of parts that differ, as they are loaded, with a temporary or without.
        let layer = [32, 8, 8, 32, 112, 112, 112, 1, 1];
        for step_count in [1, 2, 3] {
            assert_eq!(loops(&layer, step_count), None, "1 of {step_count}");
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

    /// The tag of more than half of the growth, even if it had no memory before.
    #[test]
    fn a_new_tag_with_most_of_the_growth_is_named() {
        let tag = |tag_bytes| {
            let after =
                Sample { in_use_bytes: 3, tags: vec![("new".into(), tag_bytes)], ..Sample::default() };
            Pair(&Sample::default(), &after).tag().map(str::to_owned)
        };
        assert_eq!((tag(1), tag(2).as_deref()), (None, Some("new")));
        let after = Sample { in_use_bytes: 5, tags: vec![("new".into(), 2)], ..Sample::default() };
        assert_eq!(Pair(&Sample::default(), &after).tag(), None, "not more than half");
    }

    fn grown(in_use_bytes: u64, block_count: u64, allocation_count: u64) -> Sample {
        Sample { in_use_bytes, block_count, allocation_count, ..Sample::default() }
    }

    /// Four blocks are enough to compare their mean size, which may differ by a 64th.
    #[test]
    fn growth_is_alike_up_to_a_64th() {
        let (none, all) = (Sample::default(), grown(6400, 100, 100));
        let is_like = |bytes, count| Pair(&none, &grown(bytes, count, count)).is_like(&Pair(&none, &all));
        assert!(is_like(4 * 64, 4) && is_like(4 * 64 + 4, 4) && is_like(4 * 64 - 4, 4));
        assert!(!is_like(4 * 64 + 5, 4) && !is_like(3 * 64, 3));
    }

    #[test]
    fn one_block_that_stays_of_four_is_a_step() {
        let none = Sample::default();
        let grows = |kept_count, count| Pair(&none, &grown(100, kept_count, count)).grows_in_steps();
        assert!(grows(1, 4) && !grows(1, 3) && !grows(0, 4));
    }

    #[test]
    fn the_first_byte_makes_a_sample_due() {
        let log = GrowthLog::default();
        assert!(log.is_due(1) && !log.is_due(0));
        log.add(1000, grown(1000, 1, 1));
        assert!(!log.is_due(1000 + 1000 / 32) && log.is_due(1000 + 1000 / 32 + 1));
    }
}

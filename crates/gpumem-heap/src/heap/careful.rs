//! [`TuningByLimit`]: the heap's tuning, which changes with the distance from the limit.
//!
//! Live blocks keep their addresses, and therefore the handles under them: the free rest of a large handle cannot serve a larger request.
//! Nothing can recover it at the limit, so a heap with a limit prepares early:
//!
//! - below any limit handles are so small that many of them make up the limit, and thread caches hold little;
//! - once blocks have needed a thirty-second of the limit, the heap is *exact*: it keeps no slack, so streams share no page under blocks
//!   that may live long;
//! - once blocks have needed half of the limit, the heap is *careful*: its tuning is [`HeapTuning::careful`], close to
//!   [`HeapTuning::TIGHT`].
//!
//! The bytes that blocks have needed are a peak of use. It decays with each allocation that misses the thread caches, so a pool relaxes a
//! few thousand misses after its blocks were freed.
//!
//! Both fractions were measured (`cargo xtask replay --random`), at 1.02 times the peak of random programs: of 764 that fit under `tight`,
//! 1.6 % do not fit under `fast` if slack ends at a quarter of the limit, 0.9 % if it ends at a sixteenth, and 0.5 % with these values.
//! Being careful from a sixteenth on costs eleven times the driver time while the limit is far (`gpt2_train_varlen` at four times its peak:
//! 257 ms instead of 23).

use super::space::PAGE_SHIFT;
use gpumem_base::HeapTuning;

#[derive(Debug)]
pub(super) struct TuningByLimit {
    /// Without a limit.
    usual: HeapTuning,
    /// Far below a limit.
    limited: HeapTuning,
    /// Nearer, without slack.
    exact: HeapTuning,
    /// Near a limit.
    careful: HeapTuning,
    /// [`NO_LIMIT`] without a limit.
    limit_bytes: u64,
}

impl TuningByLimit {
    pub(super) fn new(tuning: HeapTuning) -> Self {
        let tuning = tuning.clamped();
        Self {
            limited: tuning,
            exact: tuning,
            careful: tuning.careful(),
            usual: tuning,
            limit_bytes: NO_LIMIT,
        }
    }

    /// Sets the limit, in bytes.
    pub(super) fn set_limit_bytes(&mut self, limit_bytes: u64) {
        if limit_bytes == self.limit_bytes {
            return;
        }
        let HeapTuning { handle_max_pages, magazine_bytes_min, .. } = self.usual;
        let handle_pages = (limit_bytes >> PAGE_SHIFT) / HANDLES_MIN;
        let cap = u32::try_from(handle_pages).unwrap_or(u32::MAX).max(1);
        self.limited.handle_max_pages = handle_max_pages.min(cap);
        let magazine_bytes = (limit_bytes / MAGAZINE_DIVISOR).max(self.careful.magazine_bytes_min);
        self.limited.magazine_bytes_min = magazine_bytes_min.min(magazine_bytes);
        self.exact = HeapTuning {
            growth_slack_per_mille: self.careful.growth_slack_per_mille,
            growth_slack_max_per_mille: self.careful.growth_slack_max_per_mille,
            ..self.limited
        };
        self.limit_bytes = limit_bytes;
    }

    pub(super) fn has_limit(&self) -> bool {
        self.limit_bytes != NO_LIMIT
    }

    /// True once blocks have needed half of the limit.
    pub(super) fn is_careful(&self, needed_bytes: u64) -> bool {
        self.has_limit() && needed_bytes >= self.limit_bytes / CAREFUL_DIVISOR
    }

    /// The tuning once blocks have needed some bytes.
    pub(super) fn at(&self, needed_bytes: u64) -> &HeapTuning {
        match self.limit_bytes {
            NO_LIMIT => &self.usual,
            _ if self.is_careful(needed_bytes) => &self.careful,
            limit_bytes if needed_bytes >= limit_bytes / EXACT_DIVISOR => &self.exact,
            _ => &self.limited,
        }
    }
}

const NO_LIMIT: u64 = u64::MAX;
/// The fraction of the limit above which there is no slack.
const EXACT_DIVISOR: u64 = 32;
/// The fraction of the limit above which the heap is careful.
const CAREFUL_DIVISOR: u64 = 2;
/// The least number of handles that make up a limit. Below 4 GiB each is 2 MiB.
const HANDLES_MIN: u64 = 2048;
/// The maximum fraction of the limit that thread caches hold in small blocks, while it exceeds their share of the reserved memory.
const MAGAZINE_DIVISOR: u64 = 512;

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn without_a_limit_a_profile_is_what_it_says() {
        for profile in [HeapTuning::FAST, HeapTuning::BALANCED, HeapTuning::TIGHT] {
            let tuning = TuningByLimit::new(profile);
            assert_eq!(*tuning.at(0), profile);
            assert_eq!(*tuning.at(1 << 50), profile);
        }
    }

    #[test]
    fn the_heap_is_careful_near_its_limit_and_relaxes_away_from_it() {
        let mut tuning = TuningByLimit::new(HeapTuning::FAST);
        tuning.set_limit_bytes(64 * GIB);
        let relaxed = tuning.at(2 * GIB - 1);
        assert_eq!((relaxed.handle_max_pages, relaxed.growth_slack_per_mille), (16, 100));
        let exact = tuning.at(2 * GIB);
        assert_eq!((exact.handle_max_pages, exact.growth_slack_per_mille), (16, 0));
        let careful = tuning.at(32 * GIB);
        assert_eq!((careful.handle_max_pages, careful.growth_slack_per_mille), (1, 0));
        tuning.set_limit_bytes(NO_LIMIT);
        assert_eq!(*tuning.at(16 * GIB), HeapTuning::FAST);
    }

    #[test]
    fn small_limits_have_the_smallest_handles() {
        let mut tuning = TuningByLimit::new(HeapTuning::FAST);
        tuning.set_limit_bytes(0);
        assert_eq!(tuning.limited.handle_max_pages, 1);
        tuning.set_limit_bytes(GIB);
        let limited = tuning.at(0);
        assert_eq!((limited.handle_max_pages, limited.magazine_bytes_min), (1, 2 << 20));
    }

    /// Near the limit every profile has the same tuning.
    #[test]
    fn profiles_differ_near_a_limit_in_what_does_not_decide_what_fits() {
        let of = |profile: HeapTuning| HeapTuning { mapping_allowance_per_mille: 0, ..profile.careful() };
        assert_eq!(of(HeapTuning::FAST), of(HeapTuning::TIGHT));
        assert_eq!(of(HeapTuning::BALANCED), of(HeapTuning::TIGHT));
    }
}

//! [`HeapTuning`]: the trade-off between memory and driver calls.

/// The options of a heap. [`HeapTuning::FAST`], [`HeapTuning::BALANCED`] and [`HeapTuning::TIGHT`] are tested settings. A heap clamps values
/// that are out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapTuning {
    /// The amount by which reserved memory may exceed the peak of use before idle memory is remapped instead, in thousandths of
    /// that peak.
    pub growth_slack_per_mille: u32,
    /// The slack of a program that has used up its mapping allowance, in thousandths of the peak of use. Its requests keep
    /// changing.
    pub growth_slack_max_per_mille: u32,
    /// Mappings that may be made over idle memory, in thousandths of the large blocks that are allocated.
    pub mapping_allowance_per_mille: u32,
    /// The largest handle, in pages of 2 MiB: 1 to 64.
    pub handle_max_pages: u32,
    /// The heap grows by at least its reserved memory divided by this; not zero.
    pub growth_divisor: u32,
    /// In a heap over segments each larger block gets its own segment, which is never split for smaller blocks. A multiple of 2
    /// MiB, at least [`SPLIT_BYTES_MAX_MIN`]; [`u64::MAX`] for no such limit.
    pub split_bytes_max: u64,
    /// The combined capacity of magazines and depot, in thousandths of the reserved memory.
    pub magazine_share_per_mille: u32,
    /// The minimum combined capacity of magazines and depot, in bytes.
    pub magazine_bytes_min: u64,
    /// The maximum number of mappings that stay after their memory has moved to another one.
    pub empty_mappings_max: u32,
}

impl HeapTuning {
    /// Little more memory than is in use, and few driver calls.
    pub const BALANCED: Self = Self {
        growth_slack_per_mille: 2,
        growth_slack_max_per_mille: 300,
        mapping_allowance_per_mille: 45,
        handle_max_pages: 18,
        growth_divisor: 512,
        split_bytes_max: u64::MAX,
        magazine_share_per_mille: 2,
        magazine_bytes_min: 4 << 20,
        empty_mappings_max: 4096,
    };

    /// The fewest driver calls.
    pub const FAST: Self = Self {
        growth_slack_per_mille: 100,
        growth_slack_max_per_mille: 300,
        mapping_allowance_per_mille: 20,
        handle_max_pages: 32,
        growth_divisor: 64,
        magazine_share_per_mille: 5,
        magazine_bytes_min: 8 << 20,
        ..Self::BALANCED
    };

    /// The least memory, at any cost in driver calls.
    pub const TIGHT: Self = Self {
        growth_slack_per_mille: 0,
        growth_slack_max_per_mille: 0,
        handle_max_pages: 1,
        growth_divisor: 2048,
        magazine_share_per_mille: 2,
        magazine_bytes_min: 1 << 20,
        empty_mappings_max: 16384,
        ..Self::BALANCED
    };

    /// The nearest options that the heap can work with.
    pub fn clamped(&self) -> Self {
        Self {
            growth_slack_per_mille: self.growth_slack_per_mille.min(PER_MILLE_MAX),
            growth_slack_max_per_mille: self.growth_slack_max_per_mille.min(PER_MILLE_MAX),
            mapping_allowance_per_mille: self.mapping_allowance_per_mille.min(PER_MILLE_MAX),
            handle_max_pages: self.handle_max_pages.clamp(1, HANDLE_PAGES_MAX),
            growth_divisor: self.growth_divisor.max(1),
            split_bytes_max: match self.split_bytes_max {
                u64::MAX => u64::MAX,
                size_bytes => (size_bytes / PAGE_BYTES * PAGE_BYTES).max(SPLIT_BYTES_MAX_MIN),
            },
            magazine_share_per_mille: self.magazine_share_per_mille.min(PER_MILLE_MAX),
            ..*self
        }
    }

    /// The tuning near a limit, where fitting a request matters more than speed.
    pub fn careful(&self) -> Self {
        let tight = Self::TIGHT;
        Self {
            growth_slack_per_mille: tight.growth_slack_per_mille,
            growth_slack_max_per_mille: tight.growth_slack_max_per_mille,
            handle_max_pages: tight.handle_max_pages,
            growth_divisor: tight.growth_divisor,
            magazine_share_per_mille: tight.magazine_share_per_mille.min(self.magazine_share_per_mille),
            magazine_bytes_min: tight.magazine_bytes_min.min(self.magazine_bytes_min),
            empty_mappings_max: tight.empty_mappings_max.max(self.empty_mappings_max),
            ..*self
        }
    }

    /// The combined capacity of magazines and depot, in bytes, while `reserved_bytes` are reserved.
    #[inline]
    pub fn magazine_bytes(&self, reserved_bytes: u64) -> u64 {
        let share_bytes = (reserved_bytes / 1000).saturating_mul(u64::from(self.magazine_share_per_mille));
        self.magazine_bytes_min.max(share_bytes)
    }

    /// True if the slack is more than what magazines hold, so that the heap drains them only after growing by its slack.
    #[inline]
    pub fn spares_magazines(&self) -> bool {
        self.growth_slack_per_mille > self.magazine_share_per_mille
    }

    /// True if the heap may reserve more than its peak of use.
    #[inline]
    pub fn has_slack(&self) -> bool {
        self.growth_slack_per_mille > 0
    }
}

/// The minimum of [`HeapTuning::split_bytes_max`], in bytes: more than the remainder of a segment with one block, so that no other
/// block fits into it.
pub const SPLIT_BYTES_MAX_MIN: u64 = 20 << 20;

const PAGE_BYTES: u64 = 2 << 20;
/// A factor of a thousand: larger values would overflow and mean nothing.
const PER_MILLE_MAX: u32 = 1_000_000;
/// A bit of a word for each page.
const HANDLE_PAGES_MAX: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_out_of_range_are_clamped() {
        for tuning in [HeapTuning::FAST, HeapTuning::BALANCED, HeapTuning::TIGHT] {
            assert_eq!(tuning.clamped(), tuning);
        }
        let zero =
            HeapTuning { handle_max_pages: 0, growth_divisor: 0, split_bytes_max: 0, ..HeapTuning::FAST }
                .clamped();
        assert_eq!((zero.handle_max_pages, zero.growth_divisor), (1, 1));
        assert_eq!(zero.split_bytes_max, SPLIT_BYTES_MAX_MIN);
        let odd = HeapTuning { split_bytes_max: (40 << 20) + 1, ..HeapTuning::FAST }.clamped();
        assert_eq!(odd.split_bytes_max, 40 << 20);
        let most = u32::MAX;
        let most =
            HeapTuning { handle_max_pages: most, growth_slack_per_mille: most, ..HeapTuning::FAST }.clamped();
        assert_eq!((most.handle_max_pages, most.growth_slack_per_mille), (64, PER_MILLE_MAX));
    }
}

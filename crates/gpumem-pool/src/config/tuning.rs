//! [`Profile`] and [`Tuning`]: the trade-offs of the caching backend.
//!
//! | tuning option | `fast` | `balanced` | `tight` | meaning | cost of a larger value |
//! | --- | ---: | ---: | ---: | --- | --- |
//! | [`growth_slack`](Tuning::growth_slack) | 100 ‰ | 5 ‰ | 0 ‰ | how far reserved memory may exceed the peak in use before idle memory is remapped instead | memory; smaller: driver calls |
//! | [`growth_slack_max`](Tuning::growth_slack_max) | 300 ‰ | 150 ‰ | 0 ‰ | the growth slack of a program whose requests keep changing, once its allowance of mappings is used up | memory |
//! | [`window_allowance`](Tuning::window_allowance) | 20 ‰ | 45 ‰ | none | mappings created over idle memory, per allocated block above 1 MiB | driver calls; smaller: memory |
//! | [`handle_bytes_max`](Tuning::handle_bytes_max) | 64 MiB | 52 MiB | 2 MiB | the largest handle of physical memory that is created at once | idle memory that cannot be released beside memory in use; smaller: driver calls |
//! | [`growth_divisor`](Tuning::growth_divisor) | 64 | 512 | 2048 | the heap grows by at least its size divided by this number | driver calls; smaller: memory |
//! | [`rounding_divisor`](Tuning::rounding_divisor) | 64 | 64 | 0 | block sizes above 1 MiB are rounded up to a multiple of their power of two divided by this number, which may depend on the size; 0 rounds to 256 bytes only | fewer exact fits, so driver calls; smaller: memory |
//! | [`split_bytes_max`](Tuning::split_bytes_max) | none | none | none | over plain segments, each larger block has its own segment, which no smaller block shares | memory, where sizes vary; smaller: large segments that small blocks keep from being reused or released |
//! | [`magazine_share`](Tuning::magazine_share) | 5 ‰ | 5 ‰ | 2 ‰ | the part of the reserved memory that all threads together may cache in blocks up to 1 MiB | memory; smaller: locks |
//! | [`magazine_bytes_min`](Tuning::magazine_bytes_min) | 8 MiB | 8 MiB | 1 MiB | the lower bound of that cache | memory in small heaps |
//! | [`poll_budget`](Tuning::poll_budget) | 20 µs | 20 µs | 20 µs | how long one allocation may query the driver for completed work; zero disables the queries | time; smaller: memory freed on other streams is reused later |
//! | [`release_budget`](Tuning::release_budget) | 200 µs | 200 µs | 200 µs | how long an allocation on the slow path, or the start of a host wait, may release memory above the soft limit; zero leaves that to the ends of waits | time; smaller: memory stays above the soft limit longer |
//! | [`inserted_waits`](Tuning::inserted_waits) | off | on | on | whether the pool may make one stream wait for another on the device rather than exceed the slack | concurrency of streams; off: memory |
//! | [`empty_windows_max`](Tuning::empty_windows_max) | 4096 | 4096 | 16384 | mappings kept after their memory moved on, so that it can move back without a driver call; at most 8 for each 2 MiB of memory, or 256 | host memory, 12 bytes for each page of 2 MiB; smaller: driver calls |
//! | [`wait_deadline`](Tuning::wait_deadline) | 10 s | 10 s | 10 s | how long an allocation may wait for running work when memory is out, over all its attempts; all backends respect it | time before an error |
//!
//! In a pool with a hard limit, serving a request that fits takes precedence over speed, in every profile and with any
//! tuning. Handles are at most 1/2048 of the limit, and blocks are not rounded up. Once blocks have needed 1/32 of the
//! limit, there is no slack. Once they have needed half of it, handles, growth and magazines are those of `tight`. A
//! few thousand misses after the blocks were freed, the profile's own values apply again.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use crate::config::{ConfigError, SizeRounding};
use gpumem_heap::{SPLIT_BYTES_MAX_MIN, Tuning as HeapTuning};

/// A preset of [`Tuning`].
///
/// ```
/// use gpumem_pool::Profile;
///
/// assert_eq!("tight".parse::<Profile>()?, Profile::Tight);
/// assert_eq!(Profile::default().to_string(), "balanced");
/// # Ok::<(), gpumem_pool::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Profile {
    /// Fewest driver calls; reserves up to a tenth more than the peak in use.
    Fast,
    /// Little more memory than is in use, and little driver time.
    #[default]
    Balanced,
    /// Least memory, at any cost in driver calls.
    Tight,
}

/// The trade-offs of the caching backend. Other backends use only [`wait_deadline`](Tuning::wait_deadline) and, for
/// `native` with host-accessible memory, [`poll_budget`](Tuning::poll_budget).
///
/// ```
/// use gpumem_pool::{Device, Tuning, Pool, Profile};
/// use gpumem_sim::SimConfig;
///
/// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
/// let tuning = Tuning::of(Profile::Balanced).growth_slack(50).inserted_waits(false);
/// let pool = Pool::builder(&device).tuning(tuning).build()?;
/// # drop(pool);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct Tuning {
    pub(crate) heap: HeapTuning,
    pub(crate) rounding: SizeRounding,
    pub(crate) poll_budget: Duration,
    pub(crate) release_budget: Duration,
    pub(crate) inserted_waits: bool,
    pub(crate) wait_deadline: Duration,
}

impl Tuning {
    /// The values of a profile.
    pub fn of(profile: Profile) -> Self {
        let balanced = Self {
            heap: HeapTuning::BALANCED,
            rounding: SizeRounding::from(64),
            poll_budget: Duration::from_micros(20),
            release_budget: Duration::from_micros(200),
            inserted_waits: true,
            wait_deadline: Duration::from_secs(10),
        };
        match profile {
            Profile::Balanced => balanced,
            Profile::Fast => Self { heap: HeapTuning::FAST, inserted_waits: false, ..balanced },
            Profile::Tight => Self { heap: HeapTuning::TIGHT, rounding: SizeRounding::from(0), ..balanced },
        }
    }

    /// In thousandths of the peak in use. With zero, streams that share the heap do not share pages of 2 MiB.
    pub fn growth_slack(mut self, per_mille: u32) -> Self {
        self.heap.growth_slack_per_mille = per_mille;
        self
    }

    /// In thousandths of the peak in use; replaces [`Tuning::growth_slack`] while it applies.
    pub fn growth_slack_max(mut self, per_mille: u32) -> Self {
        self.heap.growth_slack_max_per_mille = per_mille;
        self
    }

    /// In thousandths: 40 is one mapping per 25 blocks. A program starts with an allowance of 512 mappings and
    /// accumulates no more.
    pub fn window_allowance(mut self, per_mille: u32) -> Self {
        self.heap.mapping_allowance_per_mille = per_mille;
        self
    }

    /// Rounded to 2 MiB, and clamped to 2 to 128 MiB.
    pub fn handle_bytes_max(mut self, size_bytes: u64) -> Self {
        self.heap.handle_max_pages = (size_bytes >> 21).clamp(1, 64) as u32;
        self
    }

    /// At least 1.
    pub fn growth_divisor(mut self, divisor: u32) -> Self {
        self.heap.growth_divisor = divisor.max(1);
        self
    }

    /// A number for all sizes, where 0 rounds to 256 bytes only, or a [`SizeRounding`] by size.
    pub fn rounding_divisor(mut self, divisor: impl Into<SizeRounding>) -> Self {
        self.rounding = divisor.into();
        self
    }

    /// Rounded up to 2 MiB, and at least 20 MiB. A larger block may leave at most this much of its segment unused. It
    /// corresponds to PyTorch's `max_split_size_mb`. Without effect over virtual memory, where splitting loses nothing.
    pub fn split_bytes_max(mut self, size_bytes: u64) -> Self {
        let rounded_bytes = size_bytes.checked_next_multiple_of(2 << 20).unwrap_or(u64::MAX);
        self.heap.split_bytes_max = rounded_bytes.max(SPLIT_BYTES_MAX_MIN);
        self
    }

    /// In thousandths of the reserved memory.
    pub fn magazine_share(mut self, per_mille: u32) -> Self {
        self.heap.magazine_share_per_mille = per_mille;
        self
    }

    /// In bytes.
    pub fn magazine_bytes_min(mut self, size_bytes: u64) -> Self {
        self.heap.magazine_bytes_min = size_bytes;
        self
    }

    /// With zero, memory freed on other streams is reused only where the program itself orders or observes streams.
    pub fn poll_budget(mut self, budget: Duration) -> Self {
        self.poll_budget = budget;
        self
    }

    /// With zero, memory is released only where the host has waited.
    pub fn release_budget(mut self, budget: Duration) -> Self {
        self.release_budget = budget;
        self
    }

    /// Streams that allow no waits never get any.
    pub fn inserted_waits(mut self, allowed: bool) -> Self {
        self.inserted_waits = allowed;
        self
    }

    /// Mappings beyond this number are removed in turn, once the last uses of the memory that left them are known to be
    /// complete.
    pub fn empty_windows_max(mut self, count: u32) -> Self {
        self.heap.empty_mappings_max = count;
        self
    }

    /// With zero, an allocation never waits. A request that reaches the deadline is refused, and its report names the
    /// streams with unfinished work ([`OutOfMemory::unfinished`](crate::OutOfMemory::unfinished)).
    ///
    /// The deadline bounds [`Pool::alloc`](crate::Pool::alloc) and its variants,
    /// [`Pool::reserve`](crate::Pool::reserve) and [`GrowableBlock::grow_to`](crate::GrowableBlock::grow_to), including
    /// reclaim callbacks and other pools that they run. It does not bound:
    ///
    /// - waits that the caller requests (`synchronize`, [`Pool::reclaim`](crate::Pool::reclaim));
    /// - drops of [`HostMemory`](crate::HostMemory) and [`ImportedBlock`](crate::ImportedBlock), and frees of the
    ///   backend `none`;
    /// - driver calls that wait by themselves (as `cuMemAlloc` may);
    /// - waits of [`Fill`](crate::adaptor::Fill) and [`Guard`](crate::adaptor::Guard) for the uses of a growable block;
    /// - with drivers before CUDA 12.5, work on other libraries' streams.
    pub fn wait_deadline(mut self, deadline: Duration) -> Self {
        self.wait_deadline = deadline.min(DEADLINE_MAX);
        self
    }

    /// The rounded size of a large block.
    #[cfg(any(test, feature = "backend-caching"))]
    pub(crate) fn rounded(&self, size_bytes: u64) -> u64 {
        let step = match self.rounding.of(size_bytes) {
            0 => 1,
            divisor => (1 << size_bytes.max(1).ilog2()) / u64::from(divisor),
        };
        size_bytes.checked_next_multiple_of(step.max(1)).unwrap_or(size_bytes)
    }
}

impl Default for Tuning {
    fn default() -> Self {
        Self::of(Profile::default())
    }
}

impl FromStr for Profile {
    type Err = ConfigError;

    fn from_str(name: &str) -> Result<Self, ConfigError> {
        match name.trim() {
            "fast" => Ok(Self::Fast),
            "balanced" => Ok(Self::Balanced),
            "tight" => Ok(Self::Tight),
            other => Err(ConfigError::UnknownProfile { name: other.into() }),
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fast => "fast",
            Self::Balanced => "balanced",
            Self::Tight => "tight",
        })
    }
}

/// A century: adding it to an `Instant` cannot overflow.
const DEADLINE_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_keeps_to_its_part_of_a_power_of_two() {
        let tuning = Tuning::default();
        assert_eq!(tuning.rounded(1 << 20), 1 << 20);
        assert_eq!(tuning.rounded((1 << 20) + 1), (1 << 20) + (1 << 14));
        assert_eq!(tuning.clone().rounding_divisor(0).rounded(12_345_677), 12_345_677);
        assert_eq!(tuning.rounded(u64::MAX), u64::MAX);
        assert_eq!((tuning.rounded(0), tuning.rounded(1)), (0, 1));
        let by_size = tuning.rounding_divisor("[64:1,>:2]".parse::<SizeRounding>().unwrap());
        assert_eq!([33, 65, 97].map(|mib| by_size.rounded(mib << 20) >> 20), [64, 96, 128]);
    }

    #[test]
    fn tuning_is_kept_to_what_works() {
        let endless = Tuning::default().wait_deadline(Duration::MAX).wait_deadline;
        assert!(std::time::Instant::now().checked_add(endless).is_some());
        let tuning = Tuning::default().handle_bytes_max(u64::MAX).growth_divisor(0);
        assert_eq!((tuning.heap.handle_max_pages, tuning.heap.growth_divisor), (64, 1));
        let tuning = tuning.handle_bytes_max(0).split_bytes_max(1);
        assert_eq!((tuning.heap.handle_max_pages, tuning.heap.split_bytes_max), (1, 20 << 20));
        assert_eq!(tuning.clone().split_bytes_max(65 << 20).heap.split_bytes_max, 66 << 20);
        assert_eq!(tuning.split_bytes_max(u64::MAX).heap.split_bytes_max, u64::MAX);
    }

    #[test]
    fn names_of_profiles_parse_as_they_print() {
        for profile in [Profile::Fast, Profile::Balanced, Profile::Tight] {
            assert_eq!(profile.to_string().parse::<Profile>().unwrap(), profile);
        }
        assert!("quick".parse::<Profile>().unwrap_err().to_string().contains("balanced"));
    }
}

//! [`Profile`] and [`Tuning`]: what the caching backend trades, in one table.
//!
//! | tuning option | `fast` | `balanced` | `tight` | what it means | what more of it costs |
//! | --- | ---: | ---: | ---: | --- | --- |
//! | [`growth_slack`](Tuning::growth_slack) | 100 ‰ | 5 ‰ | 0 ‰ | how far reserved memory may pass the most that was ever in use before idle memory is mapped anew instead | memory; less of it: driver calls |
//! | [`growth_slack_max`](Tuning::growth_slack_max) | 300 ‰ | 150 ‰ | 0 ‰ | the same for a program whose requests keep changing, once it has used up its windows | memory |
//! | [`window_allowance`](Tuning::window_allowance) | 20 ‰ | 45 ‰ | none | windows made over idle memory, of blocks beyond 1 MiB that are allocated | driver calls; less of it: memory |
//! | [`handle_bytes_max`](Tuning::handle_bytes_max) | 64 MiB | 52 MiB | 2 MiB | the largest piece of physical memory that is made at once | memory that is stuck beside what is in use; less of it: driver calls |
//! | [`growth_divisor`](Tuning::growth_divisor) | 64 | 512 | 2048 | the heap grows by at least this part of what it has | driver calls; less of it: memory |
//! | [`rounding_divisor`](Tuning::rounding_divisor) | 64 | 64 | 0 | blocks beyond 1 MiB are rounded up to this part of their power of two, or to one by their size; 0 rounds to 256 bytes only | fewer exact fits, so driver calls; less of it: memory |
//! | [`split_bytes_max`](Tuning::split_bytes_max) | none | none | none | over plain segments, blocks larger than this have a segment each, which no smaller block is cut from | memory, where sizes vary; less of it: large segments that small blocks keep from being used or given back |
//! | [`magazine_share`](Tuning::magazine_share) | 5 ‰ | 5 ‰ | 2 ‰ | what all threads may keep at hand of blocks up to 1 MiB, of what is reserved | memory; less of it: locks |
//! | [`magazine_bytes_min`](Tuning::magazine_bytes_min) | 8 MiB | 8 MiB | 1 MiB | and this much at least | memory in small heaps |
//! | [`large_share`](Tuning::large_share) | 1000 ‰ | 1000 ‰ | 1000 ‰ | how much all thread caches together may keep of larger blocks, of the memory that was reserved ahead (`Pool::reserve`) and exceeds the most that was ever in use and its slack; while there is any, a block may be a quarter larger than requested, and below 64 KiB twice as large (without slack, as in `tight`, only while a quarter of all that was ever in use is left of it; then a sixteenth, and no larger below 1 MiB) | a tighter fit inside what was reserved ahead; less of it: locks |
//! | [`poll_budget`](Tuning::poll_budget) | 20 µs | 20 µs | 20 µs | how long one allocation may ask the driver what is complete; zero never asks | time; less of it: memory that other streams have freed is had later |
//! | [`release_budget`](Tuning::release_budget) | 200 µs | 200 µs | 200 µs | how long an allocation that took the long way, or the moment before a wait of the host, may give back what is over the soft limit; zero leaves that to the ends of waits | time; less of it: memory over the soft limit for longer |
//! | [`inserted_waits`](Tuning::inserted_waits) | off | on | on | whether one stream may be made to wait for another, on the device, rather than pass the slack | concurrency of streams; off: memory |
//! | [`empty_windows_max`](Tuning::empty_windows_max) | 4096 | 4096 | 16384 | mappings kept after their memory moved on, to which it can move back for nothing; no more than 8 for each 2 MiB of memory, or 256 | host memory, 12 bytes for each frame of 2 MiB; less of it: driver calls |
//! | [`wait_deadline`](Tuning::wait_deadline) | 10 s | 10 s | 10 s | how long an allocation may wait for running work when memory is out, over all that it tries; other backends keep to it too | time before an error |
//!
//! In a pool with a hard limit a request that fits comes before speed, in every profile and whatever was set. Handles are at most
//! a 2,048th of the limit, and blocks are not rounded up. Once blocks have needed a thirty-second of the limit there is no slack, and
//! once they have needed half of it, handles, growth and magazines are those of `tight` too. Some thousand misses after the blocks
//! were freed, the profile's own values apply again.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use crate::config::{ConfigError, SizeRounding};
use gpumem_heap::{SPLIT_BYTES_MAX_MIN, Tuning as HeapTuning};

/// A set of [`Tuning`] for one aim.
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
    /// The fewest driver calls; reserves up to a tenth more than was ever in use.
    Fast,
    /// Hardly more than is in use, for hardly any driver time.
    #[default]
    Balanced,
    /// As little as possible, whatever the driver calls cost.
    Tight,
}

/// What the caching backend trades, option by option. Other backends have none of this.
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
    /// All of them as a profile has them.
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

    /// In thousandths of the most that was ever in use. Without any, streams that share the heap don't share pieces of 2 MiB.
    pub fn growth_slack(mut self, per_mille: u32) -> Self {
        self.heap.growth_slack_per_mille = per_mille;
        self
    }

    /// In thousandths of the most that was ever in use; takes the place of [`Tuning::growth_slack`] while it applies.
    pub fn growth_slack_max(mut self, per_mille: u32) -> Self {
        self.heap.growth_slack_max_per_mille = per_mille;
        self
    }

    /// In thousandths: 40 is one window in 25 blocks. A program starts with 512 windows, and saves up no more.
    pub fn window_allowance(mut self, per_mille: u32) -> Self {
        self.heap.mapping_allowance_per_mille = per_mille;
        self
    }

    /// Rounded to 2 MiB, and to between 2 and 128 MiB.
    pub fn handle_bytes_max(mut self, size_bytes: u64) -> Self {
        self.heap.handle_max_pages = (size_bytes >> 21).clamp(1, 64) as u32;
        self
    }

    /// At least 1.
    pub fn growth_divisor(mut self, divisor: u32) -> Self {
        self.heap.growth_divisor = divisor.max(1);
        self
    }

    /// A number for all sizes, 0 for no rounding but to 256 bytes; or [`SizeRounding`] by size.
    pub fn rounding_divisor(mut self, divisor: impl Into<SizeRounding>) -> Self {
        self.rounding = divisor.into();
        self
    }

    /// Rounded up to 2 MiB, and 20 MiB at least; a block may leave over as much as that of its segment. It is PyTorch's
    /// `max_split_size_mb`. Where memory can be mapped it says nothing: what is cut up is not lost there.
    pub fn split_bytes_max(mut self, size_bytes: u64) -> Self {
        let rounded_bytes = size_bytes.checked_next_multiple_of(2 << 20).unwrap_or(u64::MAX);
        self.heap.split_bytes_max = rounded_bytes.max(SPLIT_BYTES_MAX_MIN);
        self
    }

    /// In thousandths of what is reserved.
    pub fn magazine_share(mut self, per_mille: u32) -> Self {
        self.heap.magazine_share_per_mille = per_mille;
        self
    }

    /// In bytes.
    pub fn magazine_bytes_min(mut self, size_bytes: u64) -> Self {
        self.heap.magazine_bytes_min = size_bytes;
        self
    }

    /// In thousandths of what was reserved ahead, beyond the most that was ever in use and its slack. Zero keeps no more than
    /// the last few, each for a request of its size.
    pub fn large_share(mut self, per_mille: u32) -> Self {
        self.heap.large_share_per_mille = per_mille;
        self
    }

    /// Zero never asks: then other streams' frees are had only where the program itself orders or observes streams.
    pub fn poll_budget(mut self, budget: Duration) -> Self {
        self.poll_budget = budget;
        self
    }

    /// Zero gives back only where the host has waited.
    pub fn release_budget(mut self, budget: Duration) -> Self {
        self.release_budget = budget;
        self
    }

    /// Streams that allow no waits are left alone either way.
    pub fn inserted_waits(mut self, allowed: bool) -> Self {
        self.inserted_waits = allowed;
        self
    }

    /// Beyond it some are unmapped, each in its turn, as far as the last uses of what left them are known to be complete.
    pub fn empty_windows_max(mut self, count: u32) -> Self {
        self.heap.empty_mappings_max = count;
        self
    }

    /// Zero never waits. A request that has waited for so long is refused, and its report names the streams whose work was
    /// not done ([`OutOfMemory::unfinished`](crate::OutOfMemory::unfinished)).
    ///
    /// It bounds [`Pool::alloc`](crate::Pool::alloc) and its kin, [`Pool::reserve`](crate::Pool::reserve) and
    /// [`GrowableBlock::grow_to`](crate::GrowableBlock::grow_to), holders and other pools that they ask included. What it does
    /// not bound: waits that the caller asks for (`synchronize`, [`Pool::reclaim`](crate::Pool::reclaim)), the ends of
    /// [`HostMemory`](crate::HostMemory) and [`ImportedBlock`](crate::ImportedBlock), frees of the backend `none`, calls of the
    /// driver that wait by themselves (as `cuMemAlloc` may), the waits of [`Fill`](crate::adaptor::Fill) and
    /// [`Guard`](crate::adaptor::Guard) for the uses of a block that grows, and, with drivers before CUDA 12.5, work on other libraries'
    /// streams.
    pub fn wait_deadline(mut self, deadline: Duration) -> Self {
        self.wait_deadline = deadline.min(DEADLINE_MAX);
        self
    }

    /// What a large block takes.
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

/// A century: added to any time, it is still one.
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

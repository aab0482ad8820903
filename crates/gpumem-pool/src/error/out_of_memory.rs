//! [`OutOfMemory`]: a refused request in numbers, printed as a short table with one line of advice.

mod advice;
mod growth;
#[cfg(feature = "serde")]
mod json;
mod spilling;
mod table;
mod words;

use super::PoolUsage;
#[cfg(feature = "serde")]
use crate::config::seconds;
use crate::config::{BackendKind, Interface, MemoryKind, PoolId};
use crate::figures::PoolCounters;
pub use advice::Advice;
use core::fmt;
use core::time::Duration;
use gpumem_device::StreamId;
pub use gpumem_sys::ProcessUsage;
use gpumem_sys::text::{Shown, debug_is_display};
pub use growth::Growth;
pub(crate) use growth::{GrowthLog, Sample};
pub use spilling::{KeptArrays, KeptBy, SpillFileReport, SpillReport};
use std::path::PathBuf;

/// The state of the pool and the device when a request was refused, after all attempts to make room.
///
/// `Display` prints the refusal, the advice ([`OutOfMemory::advice`]) and a table of the holders of the memory. It lists the attempts that
/// gained memory, failed or were slow; `{:#}` lists all, and adds [`counters`](Self::counters).
///
/// With the feature `serde`, the report can be serialised: its fields, `advice`, and the texts `headline` and `advice_text` of `Display`.
///
/// ```
/// use gpumem_pool::{Advice, Device, Pool, PoolError, Stream};
/// use gpumem_sim::SimConfig;
///
/// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
/// let pool = Pool::builder(&device).hard_limit(64 << 20).build()?;
/// let stream = Stream::new(&device)?;
///
/// let held = pool.alloc(48 << 20, &stream)?;
/// let Err(PoolError::LimitReached(report)) = pool.alloc(32 << 20, &stream) else { unreachable!() };
/// assert_eq!((report.requested_bytes, report.in_use_bytes), (32 << 20, 48 << 20));
/// assert_eq!(report.advice(), Advice::RaiseTheLimit);
/// eprintln!("{report}");
/// # drop(held);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(remote = "Self"))]
#[non_exhaustive]
pub struct OutOfMemory {
    /// The requested size.
    pub requested_bytes: u64,
    /// The bytes that adaptors added to the request, such as guard bytes.
    pub added_bytes: u64,
    /// The requested alignment if it exceeds the alignment of every block, otherwise 0.
    pub alignment: u64,
    /// The name of the pool that refused ([`Pool::name`](crate::Pool::name)).
    pub pool: String,
    /// The ordinal of the device.
    pub device_ordinal: u32,
    /// The stream of the request, or the owner stream of a growable block; `None` for a reservation and for
    /// [`Pool::wake`](crate::Pool::wake).
    pub stream: Option<StreamId>,
    /// The tag of the request: the one given to [`Pool::alloc_tagged`](crate::Pool::alloc_tagged), the tag of the scope in which a growable
    /// block was created, or otherwise the tag of the thread's innermost scope ([`Pool::scope`](crate::Pool::scope)).
    pub tag: Option<String>,
    /// The requested kind of memory.
    pub kind: MemoryKind,
    /// The limit, device or adaptor that refused.
    pub refused_by: RefusedBy,
    /// The driver's error, unless it is `CUDA_ERROR_OUT_OF_MEMORY`: some systems return other codes for a shortage.
    pub driver_error: Option<String>,
    /// The name of the budget that refused, if any.
    pub limit_name: Option<String>,
    /// The limit that refused; `None` if the device refused.
    pub limit_bytes: Option<u64>,
    /// The name of the pool that the limit belongs to: the pool that refused, or a pool that it is private to. `None` if
    /// no pool's limit refused.
    pub limit_pool: Option<String>,
    /// Bytes that other pools count against that limit.
    pub limit_others_bytes: u64,
    /// The pools that hold those bytes, the largest first.
    pub limit_sharers: Vec<PoolUsage>,
    /// Bytes in blocks of this pool, without [`OutOfMemory::asleep_bytes`].
    pub in_use_bytes: u64,
    /// The part of [`OutOfMemory::in_use_bytes`] that other libraries have allocated from this pool
    /// ([`Pool::make_current`](crate::Pool::make_current)).
    pub other_libraries_bytes: u64,
    /// The number of blocks, growable ones excluded.
    pub block_count: u64,
    /// Bytes of this pool that sleep ([`Pool::sleep`](crate::Pool::sleep)): they are not on the device. A refused
    /// [`Pool::wake`](crate::Pool::wake) requested them.
    pub asleep_bytes: u64,
    /// The part of [`OutOfMemory::in_use_bytes`] in growable blocks.
    pub growable_bytes: u64,
    /// The part of [`OutOfMemory::in_use_bytes`] that the program has freed and that captures and graphs retain.
    pub graph_bytes: u64,
    /// The part of [`OutOfMemory::graph_bytes`] that open captures retain.
    pub capture_bytes: u64,
    /// The stream of such a capture.
    pub capture_stream: Option<StreamId>,
    /// Bytes that this pool holds from the device, blocks included.
    pub reserved_bytes: u64,
    /// Bytes that are free in the pool but wait for unfinished work of the device.
    pub pending_bytes: u64,
    /// Bytes after the ends of blocks whose sizes were rounded up, by the pool or, with the backend `none`, by the driver. They
    /// are too small for a block of their own.
    pub rounding_bytes: u64,
    /// The largest block that fits the pool's free memory; `None` where the driver does not report it.
    pub largest_free_bytes: Option<u64>,
    /// Free memory on the device, as the driver reports it.
    pub device_free_bytes: u64,
    /// The device's total memory.
    pub device_total_bytes: u64,
    /// Bytes held by other pools of this [`Device`](crate::Device), a part of [`OutOfMemory::others_bytes`].
    pub other_pools_bytes: u64,
    /// The other pools with memory of this device, the largest first. Memory of pinned pools is not part of
    /// [`OutOfMemory::other_pools_bytes`].
    pub other_pools: Vec<PoolUsage>,
    /// The known other processes on the device, the largest first. They are queried only if memory outside this pool is the cause, and only
    /// with the feature `nvml` or on the simulator.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::processes"))]
    pub processes: Vec<ProcessUsage>,
    /// The memory of this process on the device that belongs to no pool: its context, libraries, and its own `cuMemAlloc`. `None` if
    /// unknown; queried together with [`OutOfMemory::processes`].
    pub own_outside_bytes: Option<u64>,
    /// Free memory of the host, or of the container; for pinned memory, if the system reports it.
    pub host_free_bytes: Option<u64>,
    /// The refusals of other pools that adaptors turned to ([`Fallback`](crate::adaptor::Fallback)), in order.
    pub fallbacks: Vec<String>,
    /// The attempts to make room, in order. Repeated attempts are merged into one entry.
    pub attempts: Vec<Attempt>,
    /// The streams whose work was unfinished when the request reached its deadline
    /// ([`wait_deadline_ms`](crate::conf)), the longest wait first. Empty if the request ended
    /// before the deadline.
    pub unfinished: Vec<UnfinishedStream>,
    /// The largest holders by tag; untagged blocks are excluded.
    pub holders: Vec<Holder>,
    /// What has moved to the host for the request, and what stayed and why, if the pool spills
    /// ([`PoolBuilder::spill`](crate::PoolBuilder::spill)).
    pub spilling: Option<SpillReport>,
    /// Memory in use that may be of arrays, which could have moved to the host if the pool spilled: an upper bound, because without spilling
    /// a pool does not know which of its blocks are arrays, and which of these are idle. 0 if the pool spills, or has no arrays.
    pub unspilled_bytes_max: u64,
    /// The growth of memory in use, if it resembles a leak.
    pub growth: Option<Growth>,
    /// The file with the last events of the program, if the pool has a flight recorder
    /// ([`FlightRecorder`](crate::FlightRecorder)), or the reason why it could not be written.
    pub flight_record: Option<Result<PathBuf, String>>,
    /// The counters of the pool's activity since it was built, without this refusal.
    pub counters: PoolCounters,
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) facts: PoolFacts,
}

/// The cause of a refusal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum RefusedBy {
    /// The driver, which has no memory of this kind left.
    #[default]
    Device,
    /// The hard limit of the pool or, for a private pool, of its parent.
    HardLimit,
    /// The quota of a private pool.
    Quota,
    /// The margin of device memory that unified memory and all pools leave free; see the
    /// option `oversubscribe` ([`conf`](crate::conf)).
    Margin,
    /// The budget of an adaptor ([`Budget`](crate::adaptor::Budget)).
    Budget,
    /// The adaptor [`Failures`](crate::adaptor::Failures), which injects failures for tests.
    OnPurpose,
}

/// A limit that a request would exceed, and the bytes that all its pools hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitExceeded {
    pub(crate) by: RefusedBy,
    /// The pool of the limit; `None` for the margin of a device.
    pub(crate) owner: Option<PoolId>,
    pub(crate) limit_bytes: u64,
    pub(crate) held_bytes: u64,
}

/// The properties of the refusing pool that determine the advice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PoolFacts {
    pub(crate) interface: Interface,
    pub(crate) backend: Option<BackendKind>,
    /// True if idle memory can be remapped.
    pub(crate) can_map: bool,
    pub(crate) limit_owner: Option<PoolId>,
    /// True if the limit belongs to a pool that this one is private to.
    pub(crate) is_parent_limit: bool,
    /// A parent's limit that would refuse too.
    pub(crate) parent_limit_bytes: Option<u64>,
    /// The name under which the pool's hard limit was given: an option or a variable. `None` if it was set later.
    pub(crate) limit_given_as: Option<&'static str>,
    /// True if the device uses the host's memory.
    pub(crate) is_integrated: bool,
    /// True if the tuning options are those of the profile `tight`.
    pub(crate) is_tight: bool,
    /// Bytes cached by other pools of the device that the request did not try to release, because one of this pool's limits refused.
    pub(crate) others_cached_bytes: u64,
}

/// An attempt to make room.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Attempt {
    /// The name of the attempt.
    pub name: &'static str,
    /// Bytes returned to the pool's free memory or to the device.
    pub gained_bytes: u64,
    /// The duration.
    #[cfg_attr(feature = "serde", serde(rename = "took_seconds", serialize_with = "seconds"))]
    pub took: Duration,
    /// Failures of reclaim callbacks or other pools during the attempt. They did not end the request.
    pub failures: Vec<String>,
}

/// A stream whose work was unfinished at the deadline; see [`OutOfMemory::unfinished`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct UnfinishedStream {
    /// The stream.
    pub stream: StreamId,
    /// The minimum age of the unfinished work. `None` for another library's stream, which cannot be queried: its work
    /// may be complete.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "queued_ago_seconds", serialize_with = "json::optional_seconds")
    )]
    pub queued_ago: Option<Duration>,
}

impl fmt::Display for UnfinishedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.queued_ago {
            Some(queued_ago) => {
                write!(f, "{}, whose work queued {queued_ago:.1?} ago is unfinished", self.stream)
            }
            None => write!(f, "{}, a stream of another library whose work may be complete", self.stream),
        }
    }
}

/// The memory of one tag's blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Holder {
    /// The tag.
    pub tag: String,
    /// Bytes in blocks with this tag.
    pub in_use_bytes: u64,
    /// The number of those blocks.
    pub block_count: u64,
}

impl OutOfMemory {
    /// Bytes that are reserved but in no block.
    #[must_use]
    pub fn cached_bytes(&self) -> u64 {
        self.reserved_bytes.saturating_sub(self.in_use_bytes)
    }

    /// Bytes in use on the device outside this pool: other processes, other pools and libraries of this process, and the driver. The driver
    /// reports only the sum. All unified memory counts as resident on the device, because the driver does not report where its pages are.
    #[must_use]
    pub fn others_bytes(&self) -> u64 {
        let own_bytes = if self.kind == MemoryKind::Host { 0 } else { self.reserved_bytes };
        self.device_total_bytes.saturating_sub(self.device_free_bytes).saturating_sub(own_bytes)
    }

    /// Adds the limit that refused. `own_bytes` are the bytes that this pool counts against it.
    pub(crate) fn set_limit(&mut self, limit: LimitExceeded, own_bytes: u64) {
        let LimitExceeded { by, owner, limit_bytes, held_bytes } = limit;
        self.facts.limit_owner = owner;
        (self.refused_by, self.limit_bytes) = (by, Some(limit_bytes));
        self.limit_others_bytes = held_bytes.saturating_sub(own_bytes);
    }
}

debug_is_display!(OutOfMemory);

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.headline())?;
        writeln!(f, "  → {}", self.advice_text())?;
        f.write_str(self.table().trim_end())?;
        if let Some(error) = &self.driver_error {
            write!(
                f,
                "\n  the driver's answer: {error}, which some systems (WSL) give when memory is short"
            )?;
        }
        list_fallbacks(&self.fallbacks, f)?;
        f.write_str(&words::attempts(&self.attempts, f.alternate()))?;
        for stream in self.unfinished.iter().take(UNFINISHED_SHOWN) {
            write!(f, "\n  waited until the deadline for {stream}")?;
        }
        if let Some(more) = self.unfinished.len().checked_sub(UNFINISHED_SHOWN).filter(|more| *more > 0) {
            write!(f, "\n  and for {more} more streams")?;
        }
        if let Some(advice) = self.spill_text() {
            write!(f, "\n  {advice}")?;
        }
        if let Some(growth) = &self.growth {
            write!(f, "\n  {growth}")?;
        }
        if f.alternate() && self.counters != PoolCounters::default() {
            self.counters.lines().iter().try_for_each(|line| write!(f, "\n  {line}"))?;
        }
        match &self.flight_record {
            None => {}
            Some(Ok(path)) => {
                write!(
                    f,
                    "\n  the last requests are recorded in {0}\n  next: gpumem report {0}",
                    Shown::path(path)
                )?;
            }
            Some(Err(problem)) => {
                write!(f, "\n  the last requests could not be recorded: {}", Shown::sentence(problem))?;
            }
        }
        Ok(())
    }
}

/// One line, after a line break, for each refusal by a pool that an adaptor turned to.
pub(super) fn list_fallbacks(refusals: &[String], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    refusals
        .iter()
        .try_for_each(|refusal| write!(f, "\n  the fallback refused too: {}", Shown::sentence(refusal)))
}

const UNFINISHED_SHOWN: usize = 4;

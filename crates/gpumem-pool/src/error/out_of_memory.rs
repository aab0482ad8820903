//! [`OutOfMemory`]: a refused request in numbers, printed as a short table with one line of advice.

mod advice;
mod growth;
mod words;

use crate::config::{BackendKind, Bytes, MemoryKind, text::on_a_line};
pub use advice::Advice;
use core::fmt;
use core::time::Duration;
use gpumem_heap::order::StreamId;
pub use gpumem_sys::ProcessUsage;
pub use growth::Growth;
pub(crate) use growth::{GrowthLog, Sample};

/// The state of the pool and the device when a request was refused, after all attempts to make room.
///
/// `Display` prints a table that ends with [`OutOfMemory::advice`]:
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutOfMemory {
    /// The requested size.
    pub requested_bytes: u64,
    /// The requested alignment if it exceeds the alignment of every block, else 0.
    pub alignment: u64,
    /// The requested kind of memory.
    pub kind: MemoryKind,
    /// The limit, device or adaptor that refused.
    pub refused_by: RefusedBy,
    /// The limit that refused; `None` if the device refused.
    pub limit_bytes: Option<u64>,
    /// Bytes that other pools count against that limit.
    pub limit_others_bytes: u64,
    /// Bytes in blocks of this pool.
    pub in_use_bytes: u64,
    /// The number of blocks, growable ones excluded.
    pub block_count: u64,
    /// The part of [`OutOfMemory::in_use_bytes`] in growable blocks.
    pub growable_bytes: u64,
    /// The part of [`OutOfMemory::in_use_bytes`] that the program has freed and that captures and graphs retain.
    pub graph_bytes: u64,
    /// Bytes that this pool holds from the device, blocks included.
    pub reserved_bytes: u64,
    /// Bytes that are free in the pool but wait for unfinished work of the device.
    pub pending_bytes: u64,
    /// Bytes after the ends of blocks whose sizes were rounded up. They are too small for a block of their own.
    pub rounding_bytes: u64,
    /// The largest block that fits the pool's free memory; `None` where the driver does not report it.
    pub largest_free_bytes: Option<u64>,
    /// Free memory on the device, as the driver reports it.
    pub device_free_bytes: u64,
    /// The device's total memory.
    pub device_total_bytes: u64,
    /// Bytes held by other pools of this [`Device`](crate::Device), a part of [`OutOfMemory::others_bytes`].
    pub other_pools_bytes: u64,
    /// The known other processes on the device, the largest first. They are queried only if memory outside of this
    /// pool is the cause, and only with the feature `nvml` or on the simulator.
    pub processes: Vec<ProcessUsage>,
    /// The attempts to make room, in order. Repeated attempts are merged into one entry.
    pub attempts: Vec<Attempt>,
    /// The streams whose work was unfinished when the request reached its deadline
    /// ([`wait_deadline_ms`](crate::conf)), the longest wait first. Empty if the request ended
    /// before the deadline.
    pub unfinished: Vec<UnfinishedStream>,
    /// The largest holders by tag; untagged blocks are excluded.
    pub holders: Vec<Holder>,
    /// The growth of memory in use, if it resembles a leak.
    pub growth: Option<Growth>,
    pub(crate) facts: PoolFacts,
}

/// The cause of a refusal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusedBy {
    /// The driver, which has no such memory left.
    #[default]
    Device,
    /// The hard limit of the pool or, for a private pool, of its parent.
    HardLimit,
    /// The quota of a private pool.
    Quota,
    /// The margin of device memory that unified memory and all pools leave free; see the
    /// option `oversubscribe` ([`conf`](crate::conf)).
    Margin,
    /// The adaptor [`Failures`](crate::adaptor::Failures), which injects failures for tests.
    OnPurpose,
}

/// A limit that a request would exceed, and the bytes that all its pools hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitExceeded {
    pub(crate) by: RefusedBy,
    pub(crate) limit_bytes: u64,
    pub(crate) held_bytes: u64,
}

/// The properties of the refusing pool that the advice depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PoolFacts {
    pub(crate) backend: Option<BackendKind>,
    /// True if idle memory can be remapped.
    pub(crate) can_map: bool,
    /// True if the limit belongs to the parent pool.
    pub(crate) is_parent_limit: bool,
    /// A parent's limit that would refuse too.
    pub(crate) parent_limit_bytes: Option<u64>,
    /// True if the tuning options are those of the profile `tight`.
    pub(crate) is_tight: bool,
    /// Bytes cached by other pools of the device. They are not reclaimed while one of this pool's limits refuses.
    pub(crate) others_cached_bytes: u64,
}

/// An attempt to make room.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// The name of the attempt.
    pub name: &'static str,
    /// Bytes returned to the pool's free memory or to the device.
    pub gained_bytes: u64,
    /// The duration.
    pub took: Duration,
    /// Failures of reclaim callbacks or other pools during the attempt. They did not end the request.
    pub failures: Vec<String>,
}

impl Attempt {
    /// Returns whether the attempt gained nothing and reported no failure: it gets no row of its own.
    fn is_idle(&self) -> bool {
        self.gained_bytes == 0 && self.failures.is_empty()
    }
}

/// A stream whose work was unfinished at the deadline; see [`OutOfMemory::unfinished`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnfinishedStream {
    /// The stream.
    pub stream: StreamId,
    /// The minimum age of the unfinished work. `None` for another library's stream, which cannot be queried: its work
    /// may be complete.
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

    /// Bytes in use on the device outside this pool: other processes, other pools and libraries of this process, and
    /// the driver. The driver reports only the sum. All unified memory counts as if it were on the device, because the
    /// driver does not report where its pages are.
    #[must_use]
    pub fn others_bytes(&self) -> u64 {
        let own_bytes = if self.kind == MemoryKind::Host { 0 } else { self.reserved_bytes };
        self.device_total_bytes.saturating_sub(self.device_free_bytes).saturating_sub(own_bytes)
    }

    /// Adds the limit that refused. `own_bytes` are the bytes that this pool counts against it.
    pub(crate) fn set_limit(&mut self, limit: LimitExceeded, own_bytes: u64) {
        let LimitExceeded { by, limit_bytes, held_bytes } = limit;
        (self.refused_by, self.limit_bytes) = (by, Some(limit_bytes));
        self.limit_others_bytes = held_bytes.saturating_sub(own_bytes);
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.headline())?;
        let names: Vec<_> =
            self.holders.iter().map(|holder| format!("  {}", on_a_line(&holder.tag))).collect();
        let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max("device free".len());
        let mut known = |name: &str, bytes: Option<u64>, more: &str| {
            let amount = bytes.map_or("unknown".into(), |bytes| Bytes(bytes).to_string());
            let text = format!("  {name:<width$} {amount:>14}  {more}");
            writeln!(f, "{}", text.trim_end())
        };
        let mut row = |name: &str, bytes: u64, more: &str| known(name, Some(bytes), more);
        row("in use", self.in_use_bytes, &self.blocks())?;
        if self.graph_bytes > 0 {
            row("  graphs", self.graph_bytes, "freed by the program, retained by captures and graphs")?;
        }
        for (name, holder) in names.iter().zip(&self.holders) {
            row(name, holder.in_use_bytes, &words::blocks(holder.block_count))?;
        }
        let largest = self
            .largest_free_bytes
            .filter(|_| self.cached_bytes() > 0)
            .map(|largest| format!("largest free block {}", Bytes(largest)));
        row("cached", self.cached_bytes(), &largest.unwrap_or_default())?;
        if self.pending_bytes > 0 {
            row("  pending", self.pending_bytes, "freed, waiting for work on the device")?;
        }
        if self.rounding_bytes > self.reserved_bytes / NOTABLE {
            row("  rounding", self.rounding_bytes, "after blocks whose sizes are rounded up")?;
        }
        row("reserved", self.reserved_bytes, "")?;
        if self.limit_others_bytes > 0 {
            row("sharers", self.limit_others_bytes, "in other pools that share the limit")?;
        }
        // Pinned host memory is not device memory.
        if self.kind != MemoryKind::Host {
            row("others", self.others_bytes(), "other pools, libraries and processes")?;
            if self.other_pools_bytes > 0 {
                row("  pools", self.other_pools_bytes, "in other pools of this program")?;
            }
            for process in &self.processes {
                known("  process", process.in_use_bytes, &process.to_string())?;
            }
            let total = format!("of {}", Bytes(self.device_total_bytes));
            known("device free", Some(self.device_free_bytes), &total)?;
        }
        let (idle, fruitful): (Vec<_>, Vec<_>) = self.attempts.iter().partition(|tried| tried.is_idle());
        for Attempt { name, gained_bytes, took, failures } in fruitful {
            writeln!(f, "  tried: {name}: {} in {took:.1?}", Bytes(*gained_bytes))?;
            for failure in failures {
                writeln!(f, "    failed: {failure}")?;
            }
        }
        f.write_str(&words::gave_nothing(&idle))?;
        for stream in self.unfinished.iter().take(UNFINISHED_SHOWN) {
            writeln!(f, "  waited until the deadline for {stream}")?;
        }
        if let Some(more) = self.unfinished.len().checked_sub(UNFINISHED_SHOWN).filter(|more| *more > 0) {
            writeln!(f, "  and for {more} more streams")?;
        }
        if let Some(growth) = &self.growth {
            writeln!(f, "  {growth}")?;
        }
        write!(f, "  → {}", self.advice_text())
    }
}

/// At most this many unfinished streams are listed; the others are counted.
const UNFINISHED_SHOWN: usize = 4;

/// Rounding gets a row if it exceeds this fraction (1/64) of the reserved bytes.
const NOTABLE: u64 = 64;

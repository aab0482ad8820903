//! [`OutOfMemory`]: a refused request in numbers, as a short table, and with one line of advice.

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

/// Why a request was refused, at the moment of its refusal: after everything that could be given back was.
///
/// Printed, it is a table that ends with [`OutOfMemory::advice`]:
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
    /// What was asked for.
    pub requested_bytes: u64,
    /// What its start had to be a multiple of, if that was more than every block has; else 0.
    pub alignment: u64,
    /// Whose memory was asked for.
    pub kind: MemoryKind,
    /// Who refused.
    pub refused_by: RefusedBy,
    /// The limit that refused. Nothing if the device did.
    pub limit_bytes: Option<u64>,
    /// What other pools hold that count against the same limit.
    pub limit_others_bytes: u64,
    /// In blocks of this pool.
    pub in_use_bytes: u64,
    /// How many those are.
    pub block_count: u64,
    /// What of that is in blocks that grow, which are not among those.
    pub growable_bytes: u64,
    /// What of it no block of the program has any more, and is kept for captures and graphs.
    pub graph_bytes: u64,
    /// Held from the device by this pool, blocks included.
    pub reserved_bytes: u64,
    /// Free in the pool, but waiting for work that the device has not done.
    pub pending_bytes: u64,
    /// Behind the ends of blocks, whose sizes are rounded up: no block of its own fits there.
    pub rounding_bytes: u64,
    /// The largest block that what is free in the pool would have made. Nothing where the driver keeps that to itself.
    pub largest_free_bytes: Option<u64>,
    /// Free on the device, as the driver sees it.
    pub device_free_bytes: u64,
    /// All the device has.
    pub device_total_bytes: u64,
    /// What other pools of the same [`Device`](crate::Device) hold, a part of [`OutOfMemory::others_bytes`].
    pub other_pools_bytes: u64,
    /// The other processes on the device, the largest first, as far as they are known: asked for only where what others hold
    /// is in the way, and only with the feature `nvml`, or of the simulator.
    pub processes: Vec<ProcessUsage>,
    /// What was tried before giving up, in this order; once for all times that it was tried.
    pub attempts: Vec<Attempt>,
    /// The streams whose work was not done when the request had waited for as long as it may
    /// ([`Tuning::wait_deadline`](crate::Tuning::wait_deadline)), the longest first. None if it did not wait so long.
    pub unfinished: Vec<UnfinishedStream>,
    /// The largest holders, by tag; untagged blocks have none.
    pub holders: Vec<Holder>,
    /// How use has grown, if it has in the way of a program that leaks.
    pub growth: Option<Growth>,
    pub(crate) maker: Maker,
}

/// Who refused a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusedBy {
    /// The driver, which has no such memory left.
    #[default]
    Device,
    /// The hard limit of the pool, or of the one that this private pool was made from.
    HardLimit,
    /// The quota of a private pool.
    Quota,
    /// The margin that unified memory and what pools hold of the device keep below what the device has; see
    /// [`PoolBuilder::oversubscribe`](crate::PoolBuilder::oversubscribe).
    Margin,
    /// Nobody for want of memory: [`Failures`](crate::adaptor::Failures), which try what a program does then.
    OnPurpose,
}

/// A limit that a request would have passed, and what all who share it hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitExceeded {
    pub(crate) by: RefusedBy,
    pub(crate) limit_bytes: u64,
    pub(crate) held_bytes: u64,
}

/// What advice asks of the pool that refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Maker {
    pub(crate) backend: Option<BackendKind>,
    /// Whether what is idle can be mapped elsewhere.
    pub(crate) can_map: bool,
    /// Whether the limit is not its own, but one that it was made below.
    pub(crate) is_limit_above: bool,
    /// Another limit, above the one that refused, which would refuse too.
    pub(crate) limit_above_bytes: Option<u64>,
    /// Whether its tuning options are those of the profile `tight`.
    pub(crate) is_tight: bool,
    /// What other pools of the device have cached: room that is not had while a limit of our own refuses.
    pub(crate) others_cached_bytes: u64,
}

/// Something that could have made room.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// What was done.
    pub name: &'static str,
    /// What it gave back: to the pool's free memory, or to the device.
    pub gained_bytes: u64,
    /// How long it took.
    pub took: Duration,
    /// What went wrong meanwhile, in words: others' failures, which were no reason to give up.
    pub failures: Vec<String>,
}

impl Attempt {
    /// It is not worth a line.
    fn is_idle(&self) -> bool {
        self.gained_bytes == 0 && self.failures.is_empty()
    }

    /// What is tried again is one with what it was the first time.
    pub(crate) fn add_to(self, attempts: &mut Vec<Self>) {
        match attempts.iter_mut().find(|earlier| earlier.name == self.name) {
            None => attempts.push(self),
            Some(earlier) => {
                earlier.gained_bytes = earlier.gained_bytes.saturating_add(self.gained_bytes);
                earlier.took = earlier.took.saturating_add(self.took);
                earlier.failures.extend(self.failures);
            }
        }
    }
}

/// A stream whose work was not done in time; see [`OutOfMemory::unfinished`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnfinishedStream {
    /// Its name.
    pub stream: StreamId,
    /// How long ago work was queued there that is not done, at least. Nothing for a stream of others, which can't be asked: that
    /// one may be done.
    pub queued_ago: Option<Duration>,
}

impl UnfinishedStream {}

impl fmt::Display for UnfinishedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.queued_ago {
            Some(queued_ago) => {
                write!(f, "{}, where work queued {queued_ago:.1?} ago is not done", self.stream)
            }
            None => write!(f, "{}, which is another library's and may be done", self.stream),
        }
    }
}

/// What the blocks of one tag hold.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Whose they are.
    pub tag: String,
    /// What they hold.
    pub in_use_bytes: u64,
    /// How many they are.
    pub block_count: u64,
}

impl OutOfMemory {
    /// Reserved, and in no block.
    #[must_use]
    pub fn cached_bytes(&self) -> u64 {
        self.reserved_bytes.saturating_sub(self.in_use_bytes)
    }

    /// In use on the device by anybody but this pool: other processes, other pools and libraries of this one, and what the
    /// driver itself takes. The driver tells no more than the sum. Of unified memory nobody knows where its pages are: they
    /// count as if they were all on the device.
    #[must_use]
    pub fn others_bytes(&self) -> u64 {
        let own_bytes = if self.kind == MemoryKind::Host { 0 } else { self.reserved_bytes };
        self.device_total_bytes.saturating_sub(self.device_free_bytes).saturating_sub(own_bytes)
    }

    /// The same with the limit that refused, if one did; `own_bytes` are what this pool counts against it.
    pub(crate) fn limited(self, passed: Option<LimitExceeded>, own_bytes: u64) -> Self {
        let Some(LimitExceeded { by, limit_bytes, held_bytes }) = passed else { return self };
        let limit_others_bytes = held_bytes.saturating_sub(own_bytes);
        Self { refused_by: by, limit_bytes: Some(limit_bytes), limit_others_bytes, ..self }
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
            row("  graphs", self.graph_bytes, "dropped by the program, and kept for what it has captured")?;
        }
        for (name, holder) in names.iter().zip(&self.holders) {
            row(name, holder.in_use_bytes, &words::blocks(holder.block_count))?;
        }
        let largest = self
            .largest_free_bytes
            .filter(|_| self.cached_bytes() > 0)
            .map(|largest| format!("the largest piece {}", Bytes(largest)));
        row("cached", self.cached_bytes(), &largest.unwrap_or_default())?;
        if self.pending_bytes > 0 {
            row("  pending", self.pending_bytes, "freed, and waiting for the device")?;
        }
        if self.rounding_bytes > self.reserved_bytes / NOTABLE {
            row("  rounding", self.rounding_bytes, "behind blocks, whose sizes are rounded up")?;
        }
        row("reserved", self.reserved_bytes, "")?;
        if self.limit_others_bytes > 0 {
            row("sharers", self.limit_others_bytes, "in other pools that count against the same limit")?;
        }
        // Host memory is no part of the device's.
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
        write!(f, "  → {}", self.advised())
    }
}

/// More streams than this are a number.
const UNFINISHED_SHOWN: usize = 4;

/// Less than this part of what is reserved is not worth a row.
const NOTABLE: u64 = 64;

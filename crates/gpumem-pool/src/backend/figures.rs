//! The figures of a backend: [`Counts`], [`Reserved`], and [`DriverPoolUsage`] of a driver pool.

/// Usage counters. Exact while no other thread allocates or frees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) in_use_bytes: u64,
    /// An upper bound. [`Status::in_use_peak_bytes`](crate::Status::in_use_peak_bytes) documents its accuracy.
    pub(crate) in_use_peak_bytes: u64,
    pub(crate) block_count: u64,
    pub(crate) allocation_count: u64,
}

impl Counts {
    /// True if a search that found nothing may succeed now: other threads have allocated or freed since `before`, and live blocks leave
    /// room for `size_bytes` below `most_bytes`.
    pub(crate) fn may_fit_since(&self, before: &Self, size_bytes: u64, most_bytes: u64) -> bool {
        let moves = |counts: &Self| (counts.allocation_count, counts.block_count);
        moves(before) != moves(self) && self.in_use_bytes.saturating_add(size_bytes) <= most_bytes
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Reserved {
    pub(crate) current_bytes: u64,
    pub(crate) peak_bytes: u64,
    /// The part of `current_bytes` that the driver refused to free. No block has it, and no trim releases it.
    pub(crate) unfreed_bytes: u64,
    pub(crate) record_bytes: u64,
    /// The sleeping memory; not part of `current_bytes`.
    pub(crate) asleep_bytes: u64,
    pub(crate) on_host_bytes: u64,
}

/// The driver's counters of a pool, for all its users; see [`CurrentPool::usage`](crate::CurrentPool::usage).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverPoolUsage {
    /// Bytes held from the device.
    pub reserved_bytes: u64,
    /// The peak of reserved bytes, ever or since [`Pool::reset_peaks`](crate::Pool::reset_peaks).
    pub reserved_peak_bytes: u64,
    /// Bytes in allocations of this pool and of others.
    pub used_bytes: u64,
    /// The peak of bytes in allocations, ever or since [`Pool::reset_peaks`](crate::Pool::reset_peaks).
    pub used_peak_bytes: u64,
}

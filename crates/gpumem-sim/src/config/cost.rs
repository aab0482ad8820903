//! The cost of work on the virtual clock. Here are the costs on the device, as fixed cost and bytes per microsecond; the costs of
//! calls on the host are in `machine/call_cost.rs`.
//!
//! The clock is for elapsed times and never decides an order. The host's clock advances with every call and jumps when
//! the host waits; the clock of a stream advances with its work.

/// The costs of calls and work on the virtual clock. Rates are bytes per microsecond, which is MB/s.
///
/// ```
/// use gpumem_sim::{Costs, SimConfig};
///
/// let mut costs = Costs::h200();
/// costs.upload_bytes_per_us /= 2;
/// let driver = gpumem_sim::driver(SimConfig::new().costs(costs))?;
/// # let _ = driver;
/// # Ok::<(), gpumem_sim::SimError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Costs {
    /// The cost of driver calls, in percent of the cost on an H200's host: with an idle device, with a busy device, and with
    /// other threads in the driver.
    pub calls_percent: u64,
    /// Selects the cost of calls: `Some(true)` always that of a busy device, `Some(false)` always that of an idle one, `None` that of a
    /// busy device while any stream has work.
    pub is_busy: Option<bool>,
    /// Starting a kernel. Its computation costs nothing.
    pub launch_ns: u64,
    /// Recording an event, waiting for one, allocating and freeing in stream order.
    pub mark_ns: u64,
    /// Starting a copy.
    pub copy_ns: u64,
    /// Pinned memory to a device.
    pub upload_bytes_per_us: u64,
    /// Pageable memory to a device.
    pub staged_upload_bytes_per_us: u64,
    /// A device to pinned memory.
    pub download_bytes_per_us: u64,
    /// A device to pageable memory.
    pub staged_download_bytes_per_us: u64,
    /// Within a device, every byte counted once.
    pub within_bytes_per_us: u64,
    /// Between two devices, with access.
    pub peer_bytes_per_us: u64,
    /// Between two devices, through the host.
    pub staged_peer_bytes_per_us: u64,
    /// Starting a memset.
    pub fill_ns: u64,
    /// A memset.
    pub fill_bytes_per_us: u64,
    /// Page faults: moving pages of managed memory to the device that uses them.
    pub fault_bytes_per_us: u64,
    /// Moving pages of managed memory to a device ahead of use.
    pub prefetch_bytes_per_us: u64,
    /// Moving pages of managed memory to the host.
    pub prefetch_to_host_bytes_per_us: u64,
}

impl Costs {
    /// The costs measured on one H200.
    #[must_use]
    pub fn h200() -> Self {
        Self {
            calls_percent: 100,
            is_busy: None,
            launch_ns: 2_700,
            mark_ns: 100,
            copy_ns: 2_540,
            upload_bytes_per_us: 55_300,
            staged_upload_bytes_per_us: 10_400,
            download_bytes_per_us: 55_400,
            staged_download_bytes_per_us: 19_300,
            // 3,741 GB/s read and written.
            within_bytes_per_us: 1_870_000,
            peer_bytes_per_us: 396_000,
            staged_peer_bytes_per_us: 38_300,
            fill_ns: 1_470,
            fill_bytes_per_us: 3_741_000,
            // What a memset of 64 MiB takes more than on device memory.
            fault_bytes_per_us: 12_900,
            prefetch_bytes_per_us: 48_000,
            prefetch_to_host_bytes_per_us: 22_400,
        }
    }
}

impl Default for Costs {
    fn default() -> Self {
        Self::h200()
    }
}

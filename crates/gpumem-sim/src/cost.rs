//! What work costs on the virtual clock: on the device as fixed cost and bytes a microsecond, here; on the host by the
//! call, in [`super::call_cost`].
//!
//! The clock is for elapsed times and never decides an order. The host's clock advances with every call and jumps when
//! the host waits; a stream's advances with its work.

use super::operation::{Fill, Route};

/// What work costs on the virtual clock of a simulated machine. Rates are bytes a microsecond, which is MB/s.
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
    /// Calls of the driver, in percent of what they cost beside an H200: alone, while the device is busy, and with
    /// other threads in the driver.
    pub calls_percent: u64,
    /// Whether calls cost what they cost beside a busy device: always, never, or (`None`) while any stream has work.
    pub is_busy: Option<bool>,
    /// Starting a kernel. What it does inside is not priced.
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
    /// Bringing pages of managed memory to a device that uses them.
    pub fault_bytes_per_us: u64,
    /// Moving pages of managed memory to a device ahead of use.
    pub prefetch_bytes_per_us: u64,
    /// Moving pages of managed memory to the host.
    pub prefetch_to_host_bytes_per_us: u64,
}

impl Costs {
    /// As measured on one H200.
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

    /// Moving bytes.
    pub(super) fn of_copy(&self, route: Route, size_bytes: u64) -> u64 {
        let bytes_per_us = match route {
            Route::Up => self.upload_bytes_per_us,
            Route::Down => self.download_bytes_per_us,
            Route::DownPageable => self.staged_download_bytes_per_us,
            Route::Within => self.within_bytes_per_us,
            Route::Across { direct: true } => self.peer_bytes_per_us,
            Route::Across { direct: false } => self.staged_peer_bytes_per_us,
        };
        self.copy_ns + transfer_ns(size_bytes, bytes_per_us)
    }

    /// Moving bytes that were staged from pageable memory.
    pub(super) fn of_staged(&self, size_bytes: u64) -> u64 {
        self.copy_ns + transfer_ns(size_bytes, self.staged_upload_bytes_per_us)
    }

    /// A memset.
    pub(super) fn of_fill(&self, fill: &Fill) -> u64 {
        let size_bytes = fill.width.saturating_mul(fill.height).saturating_mul(fill.pattern_bytes);
        self.fill_ns + transfer_ns(size_bytes, self.fill_bytes_per_us)
    }

    /// Bringing pages of managed memory to a device that uses them.
    pub(super) fn of_faults(&self, size_bytes: u64) -> u64 {
        transfer_ns(size_bytes, self.fault_bytes_per_us)
    }

    /// Moving pages of managed memory ahead of use.
    pub(super) fn of_prefetch(&self, is_to_host: bool, size_bytes: u64) -> u64 {
        let rates = [self.prefetch_bytes_per_us, self.prefetch_to_host_bytes_per_us];
        self.mark_ns + transfer_ns(size_bytes, rates[usize::from(is_to_host)])
    }
}

impl Default for Costs {
    fn default() -> Self {
        Self::h200()
    }
}

fn transfer_ns(size_bytes: u64, bytes_per_us: u64) -> u64 {
    (u128::from(size_bytes) * 1_000 / u128::from(bytes_per_us.max(1))) as u64
}

//! [`Transfers`]: the bytes and the time of copies from and to pageable memory.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

/// Copies between the device and pageable memory, except uploads of up to 64 KiB, by one `Gpu` and its forks; see
/// [`Gpu::transfers`](super::Gpu::transfers). `Display` prints one line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Transfers {
    /// Bytes that went to the device through pinned buffers.
    pub uploaded_bytes: u64,
    /// Bytes that came from the device through pinned buffers.
    pub downloaded_bytes: u64,
    /// Bytes that the driver copied: small downloads, copies of pinned and unified arrays, and copies for which no buffer was free or
    /// the pinned pool had no memory.
    pub direct_bytes: u64,
    /// The time of the staged copies, on the calling threads.
    pub time: Duration,
    /// The part of [`Transfers::time`] that the threads waited for the device.
    pub device_wait: Duration,
}

impl Transfers {
    /// The bytes of the staged copies by their time, in GB/s; `None` before the first. Uploads return before their last copies
    /// have run, so a single one can exceed the rate of the link.
    #[must_use]
    pub fn gigabytes_per_second(&self) -> Option<f64> {
        let rate = (self.uploaded_bytes + self.downloaded_bytes) as f64 / self.time.as_secs_f64() / 1e9;
        Some(rate).filter(|rate| rate.is_finite())
    }
}

impl fmt::Display for Transfers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let rate = self.gigabytes_per_second().unwrap_or(0.0);
        write!(
            f,
            "{:.1} MiB up, {:.1} MiB down, {:.1} MiB by the driver; {rate:.1} GB/s; {:.1?} on the host, {:.1?} waiting for the device",
            mib(self.uploaded_bytes),
            mib(self.downloaded_bytes),
            mib(self.direct_bytes),
            self.time.saturating_sub(self.device_wait),
            self.device_wait,
        )
    }
}

/// The counters behind [`Transfers`].
#[derive(Default)]
pub(crate) struct TransferCounters {
    uploaded_bytes: AtomicU64,
    downloaded_bytes: AtomicU64,
    direct_bytes: AtomicU64,
    nanoseconds: AtomicU64,
    wait_nanoseconds: AtomicU64,
}

impl TransferCounters {
    pub(crate) fn add_uploaded(&self, size_bytes: usize) {
        self.uploaded_bytes.fetch_add(size_bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn add_downloaded(&self, size_bytes: usize) {
        self.downloaded_bytes.fetch_add(size_bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn add_direct(&self, size_bytes: usize) {
        self.direct_bytes.fetch_add(size_bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn add_time(&self, time: Duration) {
        self.nanoseconds.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn add_wait(&self, time: Duration) {
        self.wait_nanoseconds.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> Transfers {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Transfers {
            uploaded_bytes: load(&self.uploaded_bytes),
            downloaded_bytes: load(&self.downloaded_bytes),
            direct_bytes: load(&self.direct_bytes),
            time: Duration::from_nanos(load(&self.nanoseconds)),
            device_wait: Duration::from_nanos(load(&self.wait_nanoseconds)),
        }
    }
}

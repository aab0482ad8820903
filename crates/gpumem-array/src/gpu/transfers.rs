//! [`Transfers`]: the bytes and the time of copies from and to pageable memory. [`GpuStatus`]: these and the status of the pools.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use gpumem_pool::Status;

/// Copies between the device and pageable memory by one `Gpu` and its forks, except the asynchronous ones
/// ([`GpuArray::upload`](crate::GpuArray::upload), [`GpuView::download`](crate::GpuView::download)); see [`Gpu::transfers`](crate::Gpu::transfers). `Display`
/// prints a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Transfers {
    /// Bytes that went to the device through pinned buffers, including packed arrays.
    pub uploaded_bytes: u64,
    /// Bytes that came from the device through pinned buffers.
    pub downloaded_bytes: u64,
    /// Bytes that the driver copied: uploads of up to 64 KiB, small downloads, copies of pinned and unified arrays, and copies that found
    /// no free buffer or pinned memory.
    pub direct_bytes: u64,
    /// The time of the staged copies, on the calling threads.
    pub time: Duration,
    /// The part of [`Transfers::time`] in which the calling threads waited for the device: the link was slower than the host.
    pub device_wait: Duration,
    /// The part of [`Transfers::time`] in which the calling threads copied between pageable and pinned memory, or waited for other threads
    /// to do so: the host was slower than the link.
    pub host_wait: Duration,
}

impl Transfers {
    /// The bytes of the staged copies divided by their time, in GB/s; `None` before the first. Uploads return before their last copies have
    /// run, so the figure of a single upload can exceed the rate of the link.
    #[must_use]
    pub fn gigabytes_per_second(&self) -> Option<f64> {
        let rate = (self.uploaded_bytes + self.downloaded_bytes) as f64 / self.time.as_secs_f64() / 1e9;
        Some(rate).filter(|rate| rate.is_finite())
    }
}

impl fmt::Display for Transfers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let (up, down, direct) =
            (mib(self.uploaded_bytes), mib(self.downloaded_bytes), mib(self.direct_bytes));
        writeln!(f, "Transfers: {up:.1} MiB up, {down:.1} MiB down, {direct:.1} MiB by the driver")?;
        writeln!(f, "Transfer rate: {:.1} GB/s", self.gigabytes_per_second().unwrap_or(0.0))?;
        let Self { time, device_wait, host_wait, .. } = self;
        write!(
            f,
            "Transfer time: {time:.1?}, of which {device_wait:.1?} waiting for the device, {host_wait:.1?} copying on the host"
        )
    }
}

/// The state of a [`Gpu`](crate::Gpu); see [`Gpu::status`](crate::Gpu::status). `Display` prints a table.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GpuStatus {
    /// The pool of device memory.
    pub pool: Status,
    /// The pool of pinned memory, which staged copies use too; `None` before its first allocation.
    pub pinned: Option<Status>,
    /// The copies from and to pageable memory.
    pub transfers: Transfers,
}

impl fmt::Display for GpuStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.pool)?;
        if let Some(pinned) = &self.pinned {
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            let (in_use, reserved) = (mib(pinned.in_use_bytes), mib(pinned.reserved_bytes));
            writeln!(f, "Pinned memory: {in_use:.1} MiB in use ({reserved:.1} MiB reserved)")?;
        }
        self.transfers.fmt(f)
    }
}

#[derive(Default)]
pub(crate) struct TransferCounters {
    uploaded_bytes: AtomicU64,
    downloaded_bytes: AtomicU64,
    direct_bytes: AtomicU64,
    nanoseconds: AtomicU64,
    device_wait_nanoseconds: AtomicU64,
    host_wait_nanoseconds: AtomicU64,
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

    pub(crate) fn add_device_wait(&self, time: Duration) {
        self.device_wait_nanoseconds.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn add_host_wait(&self, time: Duration) {
        self.host_wait_nanoseconds.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> Transfers {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Transfers {
            uploaded_bytes: load(&self.uploaded_bytes),
            downloaded_bytes: load(&self.downloaded_bytes),
            direct_bytes: load(&self.direct_bytes),
            time: Duration::from_nanos(load(&self.nanoseconds)),
            device_wait: Duration::from_nanos(load(&self.device_wait_nanoseconds)),
            host_wait: Duration::from_nanos(load(&self.host_wait_nanoseconds)),
        }
    }
}

//! `native`: the driver's own stream-ordered pool of device memory.
//!
//! Each pool creates a driver pool of its own instead of using the device's default pool, so that limits and thresholds apply only to it.
//! Allocations and frees are queued like other work, and neither waits. The driver keeps freed memory reserved up to the release threshold,
//! which is the pool's soft limit, and applies the threshold when the host synchronises.
//!
//! A hard limit also bounds the memory that the driver may reserve for the pool. On an H200 with CUDA 13.0:
//!
//! - The driver rounds the bound up to 32 MiB.
//! - The driver refuses a bound beyond the device's memory as out of memory.
//! - Within the bound, the driver does not defragment: a request that finds only smaller free ranges fails, although the pool's own counter
//!   has room for it.
//! - The driver rounds each block to 512 bytes.
//!
//! The bound is one growth unit larger than the limit. That covers the rounding, but not the fragmentation. A driver
//! pool's bound is fixed, so a limit beyond it is refused. A lowered limit leaves the bound unchanged, and the pool's own counter applies
//! the lower limit to blocks.

mod driver_pool;
mod ordered;
mod pending_frees;

use super::allocation::FreeRequest;
use super::direct::DriverAllocator;
use super::figures::{DriverPoolUsage, Reserved};
use super::source::BackendSetup;
use crate::config::{BackendKind, MemoryKind};
use crate::error::{PoolError, Unsupported};
use crate::limits::Limits;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};
use driver_pool::{DriverPool, UNBOUNDED};
use gpumem_device::internal::{PeerDevice, Verdict};
use gpumem_device::{Device, DeviceError, Stream};
use gpumem_sys::types::{CUdevice_attribute, CUdeviceptr, CUresult};
use gpumem_sys::{CudaVersion, DriverError};
use ordered::Ordered;

pub(crate) struct NativeAllocator {
    device: Device,
    limits: Limits,
    /// Declared before the driver's pool, so that it drops first: its drop frees memory of that pool.
    frees: Ordered,
    pool: DriverPool,
    /// Set before the first allocation of another library.
    has_been_current: AtomicBool,
}

impl NativeAllocator {
    pub(super) fn new(setup: BackendSetup<'_>) -> Result<Self, PoolError> {
        let BackendSetup { device, config, limits, activity, .. } = setup;
        check_supported(device, config.kind)?;
        let bound_bytes = match limits.hard_bytes() {
            Some(limit_bytes) if driver_version(device)? >= MAX_SIZE_SINCE => {
                bound_bytes(limit_bytes, device.total_bytes())
            }
            _ => UNBOUNDED,
        };
        let _entered = device.enter_relaxed()?;
        let pool =
            DriverPool::new(device, bound_bytes, activity).map_err(|error| match Verdict::of(&error) {
                Verdict::Lack => without_pools(device),
                _ => error.into(),
            })?;
        pool.set_threshold(limits.soft_bytes().unwrap_or(UNBOUNDED))?;
        Ok(Self {
            device: device.clone(),
            limits: limits.clone(),
            frees: Ordered::new(device, activity),
            pool,
            has_been_current: AtomicBool::new(false),
        })
    }

    /// Refuses to be the device's current pool where it could not enforce the hard limit.
    pub(super) fn check_current(&self) -> Result<(), PoolError> {
        if self.limits.hard_bytes().is_some() && driver_version(&self.device)? < MAX_SIZE_SINCE {
            let reason = "the driver is older than CUDA 12.2 and does not bound what others allocate from a pool; build the \
                          pool without a hard limit";
            return Err(unsupported(reason.into()));
        }
        Ok(())
    }

    pub(crate) fn make_current(&self) -> Result<(), DriverError> {
        self.has_been_current.store(true, Ordering::Relaxed);
        self.pool.make_current()
    }

    /// Makes the device's default pool current, if this one is current.
    pub(crate) fn end_current(&self) -> Result<(), DriverError> {
        if self.pool.is_current()? { self.pool.make_default_current() } else { Ok(()) }
    }

    pub(crate) fn is_current(&self) -> Result<bool, DriverError> {
        self.pool.is_current()
    }

    pub(crate) fn usage(&self) -> Result<DriverPoolUsage, DriverError> {
        let _entered = self.device.enter_relaxed()?;
        Ok(DriverPoolUsage {
            reserved_bytes: self.pool.reserved_bytes()?,
            reserved_peak_bytes: self.pool.reserved_peak_bytes()?,
            used_bytes: self.pool.used_bytes()?,
            used_peak_bytes: self.pool.used_peak_bytes()?,
        })
    }

    pub(crate) fn has_been_current(&self) -> bool {
        self.has_been_current.load(Ordering::Relaxed)
    }
}

impl DriverAllocator for NativeAllocator {
    const KEEPS_MEMORY: bool = true;

    fn acquire(&self, size_bytes: u64, stream: &Stream) -> Result<CUdeviceptr, DriverError> {
        self.frees.before_acquire(stream)?;
        let _entered = self.device.enter_relaxed()?;
        let Ok(_call) = stream.call() else {
            // Another thread has retired the stream after the request was checked.
            return DriverError::check("cuMemAllocFromPoolAsync", CUresult::CUDA_ERROR_INVALID_HANDLE)
                .map(|()| 0);
        };
        // Another thread may have begun a capture after the request was checked. Memory allocated then would
        // exist only in launches of the graph.
        if stream.clocks().captures().is_open() {
            match stream.captures_for() {
                Ok(None) => {}
                Err(DeviceError::Driver(error) | DeviceError::HostFunction(error)) => {
                    return Err(error);
                }
                _ => DriverError::check("cuMemAllocFromPoolAsync", CAPTURE_BEGUN)?,
            }
        }
        #[expect(clippy::disallowed_methods, reason = "memory that is not there yet does not sleep")]
        let raw = stream.raw();
        self.pool.acquire(size_bytes, raw)
    }

    fn release(&self, _: &Device, freed: &FreeRequest) -> Result<(), DriverError> {
        self.frees.release(freed)
    }

    fn sweep(&self) -> Result<bool, DriverError> {
        self.frees.sweep()
    }

    fn has_waiting(&self) -> bool {
        self.frees.pending.has_waiting()
    }

    fn enable_peer_access(&self, device: &Device, peer: PeerDevice) -> Result<(), PoolError> {
        let _bound = device.enter()?;
        Ok(self.pool.share_with(peer)?)
    }

    fn check_hard_limit(&self, limit_bytes: u64) -> Result<(), PoolError> {
        if bound_bytes(limit_bytes, self.device.total_bytes()) <= self.pool.max_bytes {
            return Ok(());
        }
        Err(PoolError::not_on(
            BackendKind::Native,
            "raise the hard limit that the pool was built with",
            "`caching` or `none`",
        ))
    }

    /// A driver pool keeps the bound that it was created with, which is rounded up from the hard limit of that time. Older drivers have no
    /// bound.
    fn is_bounded_by(&self, bytes: u64) -> bool {
        self.pool.max_bytes <= bytes
    }

    fn reset_peak(&self) -> Result<(), DriverError> {
        let _entered = self.device.enter_relaxed()?;
        self.pool.reset_peak()
    }

    fn set_soft_limit(&self, limit_bytes: Option<u64>) -> Result<(), DriverError> {
        let _entered = self.device.enter_relaxed()?;
        self.pool.set_threshold(limit_bytes.unwrap_or(UNBOUNDED))
    }

    fn pin(&self) -> Result<(), PoolError> {
        Err(cannot_pin())
    }

    fn trim_to(&self, device: &Device, keep_bytes: u64) -> Result<(), DriverError> {
        let _entered = device.enter_relaxed()?;
        self.pool.trim_to(keep_bytes)
    }

    fn reserved(&self, device: &Device) -> Result<Option<Reserved>, DriverError> {
        let _entered = device.enter_relaxed()?;
        Ok(Some(Reserved {
            current_bytes: self.pool.reserved_bytes()?,
            peak_bytes: self.pool.reserved_peak_bytes()?,
            unfreed_bytes: 0,
            record_bytes: 0,
            asleep_bytes: 0,
            on_host_bytes: 0,
        }))
    }
}

/// The error for pinning: the handles of the driver's pool are private to it, and cannot be named.
pub(super) fn cannot_pin() -> PoolError {
    PoolError::not_on(BackendKind::Native, "pin the memory under a block", "`caching` or `none`")
}

fn check_supported(device: &Device, kind: MemoryKind) -> Result<(), PoolError> {
    if kind != MemoryKind::Device {
        return Err(PoolError::not_on(
            BackendKind::Native,
            "allocate memory that the host can access",
            "`caching` or `none`",
        ));
    }
    let table = device.driver().table();
    let has_pools = match device.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED) {
        // The driver is older than the attribute.
        Err(DeviceError::Driver(error)) if error.code() == CUresult::CUDA_ERROR_INVALID_VALUE => false,
        other => other? != 0,
    };
    let is_there = table.cuMemPoolCreate.is_some() && table.cuMemAllocFromPoolAsync.is_some() && has_pools;
    if is_there { Ok(()) } else { Err(without_pools(device)) }
}

fn without_pools(device: &Device) -> PoolError {
    unsupported(format!("{device}, or its driver, has no memory pools, which CUDA 11.2 introduced"))
}

fn unsupported(reason: String) -> PoolError {
    PoolError::Unsupported(Unsupported::Backend { backend: BackendKind::Native, reason })
}

/// The bound for a driver pool that hands out `limit_bytes`. The driver reserves whole growth units, and the pool's counter has already
/// admitted each request, so the bound is rounded up plus one unit. A bound of the device's size or more is omitted, because the device
/// enforces it.
fn bound_bytes(limit_bytes: u64, device_bytes: u64) -> u64 {
    let bound_bytes =
        limit_bytes.checked_next_multiple_of(PIECE_BYTES).and_then(|bound| bound.checked_add(PIECE_BYTES));
    bound_bytes.filter(|bound_bytes| *bound_bytes < device_bytes).unwrap_or(UNBOUNDED)
}

fn driver_version(device: &Device) -> Result<CudaVersion, DriverError> {
    let mut version: c_int = 0;
    // SAFETY: `version` outlives the call.
    unsafe { device.driver().cuDriverGetVersion(&mut version)? };
    Ok(CudaVersion(version.unsigned_abs()))
}

const CAPTURE_BEGUN: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
/// The first version that applies `maxSize`; older drivers ignore the field.
const MAX_SIZE_SINCE: CudaVersion = CudaVersion(12_020);

const PIECE_BYTES: u64 = 32 << 20;

//! `native`: the driver's own stream-ordered pool, for the configured kind of memory.
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
//! pool's bound is fixed, so a raised limit may need another driver pool: see `chain`. A lowered limit leaves the
//! bound unchanged, and the pool's own counter applies the lower limit to blocks.
//!
//! | kind | the driver's pool | bounded by it | frees |
//! | --- | --- | --- | --- |
//! | device | of the device, since CUDA 11.2 | yes | in stream order: `ordered` |
//! | host | of the host, since CUDA 12.6; all devices are given access | yes | once all uses are complete: `complete` |
//! | unified | managed, without a fixed location, since CUDA 13.0 | no: `complete` keeps held memory below the limit | like host: `complete` |

mod chain;
mod complete;
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
use chain::Chain;
use complete::Complete;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};
use driver_pool::UNBOUNDED;
use gpumem_device::DeviceError;
use gpumem_device::internal::PeerDevice;
use gpumem_device::internal::Verdict;
use gpumem_device::{Device, Stream};
use gpumem_sys::types::{CUdevice_attribute, CUdeviceptr, CUresult};
use gpumem_sys::{CudaVersion, DriverError};
use ordered::Ordered;
use std::time::Instant;

pub(crate) struct NativeAllocator {
    device: Device,
    kind: MemoryKind,
    limits: Limits,
    /// Declared before the chain, so that it drops first: its drop frees memory of the chain.
    frees: Frees,
    chain: Chain,
    /// Set before the first allocation of another library.
    has_been_current: AtomicBool,
}

/// When freed memory returns to the driver.
enum Frees {
    Ordered(Ordered),
    Complete(Complete),
}

impl NativeAllocator {
    pub(super) fn new(setup: BackendSetup<'_>) -> Result<Self, PoolError> {
        let BackendSetup { device, config, limits, activity, .. } = setup;
        let kind = config.kind;
        check_supported(device, kind)?;
        let bound_bytes = match limits.hard_bytes() {
            Some(limit_bytes) if driver_version(device)? >= MAX_SIZE_SINCE => {
                bound_bytes(device, kind, limit_bytes)
            }
            _ => UNBOUNDED,
        };
        let _entered = device.enter_relaxed()?;
        let chain = Chain::new(device, kind, bound_bytes, limits.soft_bytes().unwrap_or(UNBOUNDED), activity);
        let chain = chain.map_err(|error| match Verdict::of(&error) {
            // The driver has the function, but does not support the kind.
            Verdict::Lack => unsupported(device, kind),
            _ => error.into(),
        })?;
        let frees = if kind.is_host_accessible() {
            Frees::Complete(Complete::new(device, kind, config.tuning.poll_budget, activity)?)
        } else {
            Frees::Ordered(Ordered::new(device, activity))
        };
        let limits = limits.clone();
        Ok(Self {
            device: device.clone(),
            kind,
            limits,
            frees,
            chain,
            has_been_current: AtomicBool::new(false),
        })
    }

    /// Refuses to be the device's current pool where it could not enforce the hard limit, or has the wrong kind of memory.
    pub(super) fn check_current(&self) -> Result<(), PoolError> {
        if self.kind != MemoryKind::Device {
            return Err(PoolError::not_with_kind(self.kind, "be the device's current pool"));
        }
        if self.limits.hard_bytes().is_some() && driver_version(&self.device)? < MAX_SIZE_SINCE {
            let reason = "the driver is older than CUDA 12.2 and does not bound what others allocate from a pool; build the \
                          pool without a hard limit";
            return Err(PoolError::Unsupported(Unsupported::Backend {
                backend: BackendKind::Native,
                reason: reason.into(),
            }));
        }
        Ok(())
    }

    /// Makes it the device's current pool, which `cuMemAllocAsync` allocates from.
    pub(crate) fn make_current(&self) -> Result<(), DriverError> {
        self.has_been_current.store(true, Ordering::Relaxed);
        self.chain.make_current()
    }

    /// Makes the device's default pool current, if this one is current.
    pub(crate) fn end_current(&self) -> Result<(), DriverError> {
        self.chain.end_current()
    }

    /// True if it is the device's current pool.
    pub(crate) fn is_current(&self) -> Result<bool, DriverError> {
        self.chain.is_current()
    }

    /// The driver's counters.
    pub(crate) fn usage(&self) -> Result<DriverPoolUsage, DriverError> {
        let _entered = self.device.enter_relaxed()?;
        self.chain.usage()
    }

    /// True if it was ever made current, so other libraries may have memory from it.
    pub(crate) fn has_been_current(&self) -> bool {
        self.has_been_current.load(Ordering::Relaxed)
    }
}

impl DriverAllocator for NativeAllocator {
    const KEEPS_MEMORY: bool = true;

    fn acquire(&self, size_bytes: u64, stream: &Stream) -> Result<CUdeviceptr, DriverError> {
        if let Frees::Ordered(ordered) = &self.frees {
            ordered.before_acquire(stream)?;
        }
        let _entered = self.device.enter_relaxed()?;
        match &self.frees {
            Frees::Ordered(_) => {
                let Ok(_call) = stream.call() else {
                    // Another thread has retired the stream after the request was checked.
                    return DriverError::check(
                        "cuMemAllocFromPoolAsync",
                        CUresult::CUDA_ERROR_INVALID_HANDLE,
                    )
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
                self.chain.acquire(size_bytes, raw)
            }
            Frees::Complete(complete) => {
                let most_bytes = self.limits.hard_bytes().unwrap_or(u64::MAX);
                complete.acquire(&self.chain, size_bytes, most_bytes)
            }
        }
    }

    fn release(&self, _: &Device, freed: &FreeRequest) -> Result<(), DriverError> {
        match &self.frees {
            Frees::Ordered(ordered) => ordered.release(freed),
            Frees::Complete(complete) => complete.release(freed),
        }
    }

    fn sweep(&self) -> Result<bool, DriverError> {
        match &self.frees {
            Frees::Ordered(ordered) => ordered.sweep(),
            Frees::Complete(complete) => complete.sweep(),
        }
    }

    fn poll_and_sweep(&self) -> Result<(), DriverError> {
        match &self.frees {
            Frees::Ordered(ordered) => ordered.sweep().map(drop),
            Frees::Complete(complete) => complete.poll_and_sweep(),
        }
    }

    fn has_waiting(&self) -> bool {
        match &self.frees {
            Frees::Ordered(ordered) => ordered.pending.has_waiting(),
            Frees::Complete(complete) => complete.pending.has_waiting(),
        }
    }

    fn frees_after_uses(&self) -> bool {
        matches!(self.frees, Frees::Complete(_))
    }

    fn wait_for_free(&self, until: Instant) -> Result<bool, DriverError> {
        match &self.frees {
            Frees::Ordered(_) => Ok(false),
            Frees::Complete(complete) => complete.wait_for_free(until),
        }
    }

    fn finish_others(&self, until: Option<Instant>) -> Result<(), DriverError> {
        match &self.frees {
            Frees::Ordered(_) => Ok(()),
            Frees::Complete(complete) => complete.finish(until),
        }
    }

    fn enable_peer_access(&self, device: &Device, peer: PeerDevice) -> Result<(), PoolError> {
        // Every device can already access the other kinds.
        if self.kind != MemoryKind::Device {
            return Ok(());
        }
        let _bound = device.enter()?;
        Ok(self.chain.share_with(peer)?)
    }

    fn allow_hard_limit(&self, limit_bytes: u64) {
        self.chain.raise(bound_bytes(&self.device, self.kind, limit_bytes));
    }

    /// A driver pool keeps the bound that it was created with, which is rounded up from the hard limit of that time. Managed pools and
    /// older drivers have no bound.
    fn is_bounded_by(&self, bytes: u64) -> bool {
        self.kind != MemoryKind::Unified && self.chain.bound_bytes() <= bytes
    }

    fn reset_peak(&self) -> Result<(), DriverError> {
        let _entered = self.device.enter_relaxed()?;
        self.chain.reset_peak()
    }

    fn set_soft_limit(&self, limit_bytes: Option<u64>) -> Result<(), DriverError> {
        let _entered = self.device.enter_relaxed()?;
        self.chain.keep(limit_bytes.unwrap_or(UNBOUNDED))
    }

    fn pin(&self) -> Result<(), PoolError> {
        Err(cannot_pin())
    }

    fn trim_to(&self, device: &Device, keep_bytes: u64) -> Result<(), DriverError> {
        let _entered = device.enter_relaxed()?;
        if let Frees::Complete(complete) = &self.frees {
            complete.wait()?;
        }
        self.chain.trim_to(keep_bytes)
    }

    fn reserved(&self, device: &Device) -> Result<Option<Reserved>, DriverError> {
        let _entered = device.enter_relaxed()?;
        Ok(Some(Reserved {
            current_bytes: self.chain.reserved_bytes()?,
            peak_bytes: self.chain.reserved_peak_bytes()?,
            unfreed_bytes: 0,
            record_bytes: 0,
            asleep_bytes: 0,
            on_host_bytes: 0,
        }))
    }
}

/// The error for pinning: the handles of the driver's pool are private to it, and cannot be named.
pub(super) fn cannot_pin() -> PoolError {
    PoolError::Unsupported(Unsupported::OnBackend {
        backend: BackendKind::Native,
        what: "pin the memory under a block",
        instead: "`caching` or `none`",
    })
}

fn check_supported(device: &Device, kind: MemoryKind) -> Result<(), PoolError> {
    let table = device.driver().table();
    let has = |attribute| match device.attribute(attribute) {
        // The driver is older than the attribute.
        Err(DeviceError::Driver(error)) if error.code() == CUresult::CUDA_ERROR_INVALID_VALUE => Ok(false),
        other => other.map(|value| value != 0),
    };
    let is_there = table.cuMemPoolCreate.is_some()
        && table.cuMemAllocFromPoolAsync.is_some()
        && has(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)?
        && (kind != MemoryKind::Host
            || has(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED)?);
    if is_there { Ok(()) } else { Err(unsupported(device, kind)) }
}

fn unsupported(device: &Device, kind: MemoryKind) -> PoolError {
    let since = match kind {
        MemoryKind::Device => "11.2",
        MemoryKind::Host => "12.6",
        MemoryKind::Unified => "13.0",
    };
    let reason =
        format!("{device}, or its driver, has no pools of {kind} memory, which CUDA {since} introduced");
    PoolError::Unsupported(Unsupported::Backend { backend: BackendKind::Native, reason })
}

/// The bound on the driver's reserved memory for a limit. Managed pools accept no bound.
fn bound_bytes(device: &Device, kind: MemoryKind, limit_bytes: u64) -> u64 {
    match kind {
        MemoryKind::Device => chain::bound_bytes(limit_bytes, device.total_bytes()),
        MemoryKind::Host => chain::bound_bytes(limit_bytes, u64::MAX),
        MemoryKind::Unified => UNBOUNDED,
    }
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

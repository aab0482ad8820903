//! `native`: the driver's own stream-ordered pool, of the kind of memory that was asked for.
//!
//! Each of our pools has a driver pool of its own rather than the device's default one, so that limits and thresholds
//! are ours alone. Allocations and frees are queued like any other work, and neither waits. The driver keeps freed
//! memory reserved up to the release threshold, which is our soft limit, and looks at it whenever the host synchronises.
//!
//! A hard limit also bounds what the driver may reserve for the pool. Seen on an H200 with CUDA 13.0: the bound is
//! rounded up to 32 MiB, one beyond the device's memory is refused as out of memory, and within it free memory is not
//! moved together: a request that finds only smaller pieces fails although our own count has room for it. The driver
//! rounds each block to 512 bytes. The piece that we add on top covers the rounding, not the scattering. That bound can't
//! be changed, so a limit that is raised may take a further driver pool: see `chain`. A limit that is lowered leaves it as it
//! is: blocks are held to the lower one, by our own count.
//!
//! | kind | the driver's pool | bounded by it | frees |
//! | --- | --- | --- | --- |
//! | device | of the device, since CUDA 11.2 | yes | in the order of streams: `ordered` |
//! | host | of the host, since CUDA 12.6; all devices are given access | yes | once all uses are complete: `complete` |
//! | unified | managed, with no place of its own, since CUDA 13.0 | no: what is held is kept below the limit here | the same |

mod chain;
mod complete;
mod driver_pool;
mod ordered;

use super::direct::DriverAllocator;
use super::{FreeRequest, Reserved};
use crate::config::{BackendKind, Config, MemoryKind};
use crate::device::{CaptureModeGuard, Device, Stream};
use crate::error::PoolError;
use crate::limits::Limits;
use chain::Chain;
use complete::Complete;
use core::ffi::c_int;
use driver_pool::UNBOUNDED;
use gpumem_sys::types::{CUdevice_attribute, CUdeviceptr, CUresult};
use gpumem_sys::{CudaVersion, DriverError};
use ordered::Ordered;
use std::time::Instant;

pub(crate) struct NativeAllocator {
    device: Device,
    kind: MemoryKind,
    limits: Limits,
    /// Before the chain: what is freed in its drop is the chain's.
    frees: Frees,
    chain: Chain,
}

/// When memory goes back to the driver.
enum Frees {
    Ordered(Ordered),
    Complete(Complete),
}

impl NativeAllocator {
    pub(super) fn new(device: &Device, config: &Config, limits: &Limits) -> Result<Self, PoolError> {
        let kind = config.kind;
        check_supported(device, kind)?;
        let bound_bytes = match limits.hard_bytes() {
            Some(limit_bytes) if driver_version(device)? >= MAX_SIZE_SINCE => {
                bound_bytes(device, kind, limit_bytes)
            }
            _ => UNBOUNDED,
        };
        let _bound = device.enter()?;
        let _relaxed = CaptureModeGuard::enter(device.driver())?;
        let chain = Chain::new(device, kind, bound_bytes, limits.soft_bytes().unwrap_or(UNBOUNDED));
        let chain = chain.map_err(|error| match error.code() {
            // Drivers that know the function, but not the kind.
            CUresult::CUDA_ERROR_INVALID_VALUE | CUresult::CUDA_ERROR_NOT_SUPPORTED
                if kind != MemoryKind::Device =>
            {
                unsupported(device, kind)
            }
            _ => error.into(),
        })?;
        let frees = match kind.is_host_accessible() {
            true => Frees::Complete(Complete::new(device, kind, config.tuning.poll_budget)?),
            false => Frees::Ordered(Ordered::new(device)),
        };
        Ok(Self { device: device.clone(), kind, limits: limits.clone(), frees, chain })
    }
}

impl DriverAllocator for NativeAllocator {
    const KIND: BackendKind = BackendKind::Native;
    const KEEPS_MEMORY: bool = true;

    fn acquire(&self, size_bytes: u64, stream: &Stream) -> Result<CUdeviceptr, DriverError> {
        if let Frees::Ordered(ordered) = &self.frees {
            ordered.before_acquire(stream)?;
        }
        let _bound = self.device.enter()?;
        let _relaxed = CaptureModeGuard::enter(self.device.driver())?;
        match &self.frees {
            Frees::Ordered(_) => {
                let _call = stream.hold();
                // Another thread may have begun it since the request was looked at: the memory would be there in launches alone.
                if stream.clocks().captures().is_open() {
                    match stream.captures_for() {
                        Ok(None) => {}
                        Err(PoolError::Driver(error)) => return Err(error),
                        _ => DriverError::check("cuMemAllocFromPoolAsync", CAPTURE_BEGUN)?,
                    }
                }
                self.chain.acquire(size_bytes, stream.raw())
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

    fn look(&self) -> Result<(), DriverError> {
        match &self.frees {
            Frees::Ordered(ordered) => ordered.sweep().map(drop),
            Frees::Complete(complete) => complete.free_what_may_be_done(),
        }
    }

    fn has_waiting(&self) -> bool {
        match &self.frees {
            Frees::Ordered(ordered) => ordered.has_waiting(),
            Frees::Complete(complete) => complete.has_waiting(),
        }
    }

    fn finish_others(&self, until: Option<Instant>) -> Result<(), DriverError> {
        match &self.frees {
            Frees::Ordered(_) => Ok(()),
            Frees::Complete(complete) => complete.finish(until),
        }
    }

    fn enable_peer_access(&self, device: &Device, peer: &Device) -> Result<(), DriverError> {
        // All else is everybody's.
        if self.kind != MemoryKind::Device {
            return Ok(());
        }
        let _bound = device.enter()?;
        self.chain.share_with(peer)
    }

    fn allow_hard_limit(&self, limit_bytes: u64) {
        self.chain.raise(bound_bytes(&self.device, self.kind, limit_bytes));
    }

    fn reset_peak(&self) -> Result<(), DriverError> {
        let _bound = self.device.enter()?;
        let _relaxed = CaptureModeGuard::enter(self.device.driver())?;
        self.chain.reset_peak()
    }

    fn set_soft_limit(&self, limit_bytes: Option<u64>) -> Result<(), DriverError> {
        let _bound = self.device.enter()?;
        let _relaxed = CaptureModeGuard::enter(self.device.driver())?;
        self.chain.keep(limit_bytes.unwrap_or(UNBOUNDED))
    }

    fn pin(&self) -> Result<(), PoolError> {
        Err(cannot_pin())
    }

    fn trim_to(&self, device: &Device, keep_bytes: u64) -> Result<(), DriverError> {
        let _bound = device.enter()?;
        let _relaxed = CaptureModeGuard::enter(device.driver())?;
        if let Frees::Complete(complete) = &self.frees {
            complete.wait()?;
        }
        self.chain.trim_to(keep_bytes)
    }

    fn reserved(&self, device: &Device) -> Result<Option<Reserved>, DriverError> {
        let _bound = device.enter()?;
        let _relaxed = CaptureModeGuard::enter(device.driver())?;
        Ok(Some(Reserved {
            current_bytes: self.chain.reserved_bytes()?,
            peak_bytes: self.chain.reserved_peak_bytes()?,
            record_bytes: 0,
        }))
    }
}

/// The driver's pool takes memory from handles that nobody else can name.
pub(super) fn cannot_pin() -> PoolError {
    PoolError::NotWithBackend {
        backend: BackendKind::Native,
        what: "pin the memory under a block",
        instead: "`caching` or `none`",
    }
}

fn check_supported(device: &Device, kind: MemoryKind) -> Result<(), PoolError> {
    let table = device.driver().table();
    let has = |attribute| match device.attribute(attribute) {
        // Drivers that are older than the attribute.
        Err(PoolError::Driver(error)) if error.code() == CUresult::CUDA_ERROR_INVALID_VALUE => Ok(false),
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
    PoolError::BackendUnsupported { backend: BackendKind::Native, reason }
}

/// What the driver may reserve below a limit. It takes no bound for managed memory.
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
/// The field is ignored before.
const MAX_SIZE_SINCE: CudaVersion = CudaVersion(12_020);

//! `native`: the driver's own stream-ordered pool.
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

mod chain;
mod driver_pool;

use super::direct::Calls;
use super::{Freed, Reserved};
use crate::clock::Stamp;
use crate::context::Relaxed;
use crate::device::Device;
use crate::error::PoolError;
use crate::limit::Limits;
use crate::options::BackendKind;
use crate::stream::Stream;
use chain::Chain;
use core::ffi::c_int;
use driver_pool::UNBOUNDED;
use gpumem_sys::types::{CUdevice_attribute, CUdeviceptr};
use gpumem_sys::{CudaVersion, DriverError};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) struct NativeCalls {
    device: Device,
    chain: Chain,
    /// Frees what can't be freed in the order of its home; made on first use.
    sweeper: Mutex<Option<Stream>>,
    /// Looked at when memory is asked for or given back.
    waiting: Mutex<Vec<Waiting>>,
}

/// Memory whose block is gone, and the uses that are not known to be done.
struct Waiting {
    address: CUdeviceptr,
    stamps: Vec<Stamp>,
}

impl NativeCalls {
    pub(super) fn new(device: &Device, limits: &Limits) -> Result<Self, PoolError> {
        check_supported(device)?;
        let bound_bytes = match limits.hard_bytes() {
            Some(limit_bytes) if driver_version(device)? >= MAX_SIZE_SINCE => {
                chain::bound_bytes(limit_bytes, device.total_bytes())
            }
            _ => UNBOUNDED,
        };
        let _bound = device.enter()?;
        let _relaxed = Relaxed::enter(device.driver())?;
        let chain = Chain::new(device, bound_bytes, limits.soft_bytes().unwrap_or(UNBOUNDED))?;
        let (sweeper, waiting) = (Mutex::default(), Mutex::default());
        Ok(Self { device: device.clone(), chain, sweeper, waiting })
    }

    /// In the order of the stream that the block was allocated on. False if that is gone, or another's, or may not be
    /// made to wait for the other uses.
    fn free_at_home(&self, device: &Device, freed: &Freed) -> Result<bool, DriverError> {
        let clocks = device.clocks();
        for stamp in freed.stamps(clocks).filter(|stamp| stamp.slot() != freed.home.slot()) {
            if !clocks.order_free(stamp, freed.home)? {
                return Ok(false);
            }
        }
        let _relaxed = Relaxed::enter(device.driver())?;
        // SAFETY: the address came from `acquire` and its one block is being dropped; home has just been made to wait
        // for every other stream that used it, and is alive during the call.
        let free = |home| unsafe { device.driver().cuMemFreeAsync(freed.piece.address, home) };
        Ok(clocks.with_open(freed.home, free)?.is_some())
    }

    /// In the order of a stream of the pool's own, which waits for all uses. False if one can't be waited for now.
    fn free_apart(&self, waiting: &Waiting) -> Result<bool, DriverError> {
        let Some(sweeper) = self.sweeper()? else { return Ok(false) };
        for stamp in &waiting.stamps {
            if !self.device.clocks().order_free(*stamp, sweeper.id())? {
                return Ok(false);
            }
        }
        let _bound = self.device.enter()?;
        let _relaxed = Relaxed::enter(self.device.driver())?;
        // SAFETY: the address came from `acquire` and its one block is gone; the stream has just been made to wait for
        // every stream that used it.
        unsafe { self.device.driver().cuMemFreeAsync(waiting.address, sweeper.raw())? };
        Ok(true)
    }

    /// `None` while there are too many streams.
    fn sweeper(&self) -> Result<Option<Stream>, DriverError> {
        let mut sweeper = self.sweeper.lock().unwrap_or_else(PoisonError::into_inner);
        if sweeper.is_none() {
            *sweeper = match Stream::new(&self.device) {
                Ok(stream) => Some(stream),
                Err(PoolError::Driver(cause) | PoolError::DeviceLost(cause)) => return Err(cause),
                Err(_) => None,
            };
        }
        Ok(sweeper.clone())
    }

    fn lock_waiting(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Calls for NativeCalls {
    const KIND: BackendKind = BackendKind::Native;
    const KEEPS_MEMORY: bool = true;

    fn acquire(&self, size_bytes: u64, stream: &Stream) -> Result<CUdeviceptr, DriverError> {
        if !self.lock_waiting().is_empty() {
            // The stream is in its user's hands: what waits for it may go on.
            stream.clocks().tick_by_user(stream.slot())?;
            self.sweep()?;
        }
        let device = stream.device();
        let _bound = device.enter()?;
        let _relaxed = Relaxed::enter(device.driver())?;
        self.chain.acquire(size_bytes, stream)
    }

    fn release(&self, device: &Device, freed: &Freed) -> Result<(), DriverError> {
        if self.free_at_home(device, freed)? {
            return Ok(());
        }
        let waiting =
            Waiting { address: freed.piece.address, stamps: freed.stamps(device.clocks()).collect() };
        if !self.free_apart(&waiting)? {
            self.lock_waiting().push(waiting);
        }
        Ok(())
    }

    /// Frees that had to wait for a stream that the pool may not touch.
    fn sweep(&self) -> Result<bool, DriverError> {
        let mut waiting = self.lock_waiting();
        let (before_count, mut index) = (waiting.len(), 0);
        while let Some(block) = waiting.get(index) {
            match self.free_apart(block)? {
                true => drop(waiting.swap_remove(index)),
                false => index += 1,
            }
        }
        Ok(waiting.len() < before_count)
    }

    fn enable_peer_access(&self, device: &Device, peer: &Device) -> Result<(), DriverError> {
        let _bound = device.enter()?;
        self.chain.share_with(peer)
    }

    fn allow_hard_limit(&self, limit_bytes: u64) {
        self.chain.raise(chain::bound_bytes(limit_bytes, self.device.total_bytes()));
    }

    fn reset_peak(&self) -> Result<(), DriverError> {
        let _bound = self.device.enter()?;
        let _relaxed = Relaxed::enter(self.device.driver())?;
        self.chain.reset_peak()
    }

    fn set_soft_limit(&self, limit_bytes: Option<u64>) -> Result<(), DriverError> {
        let _bound = self.device.enter()?;
        let _relaxed = Relaxed::enter(self.device.driver())?;
        self.chain.keep(limit_bytes.unwrap_or(UNBOUNDED))
    }

    fn pin(&self) -> Result<(), PoolError> {
        Err(cannot_pin())
    }

    fn trim_to(&self, device: &Device, keep_bytes: u64) -> Result<(), DriverError> {
        let _bound = device.enter()?;
        let _relaxed = Relaxed::enter(device.driver())?;
        self.chain.trim_to(keep_bytes)
    }

    fn reserved(&self, device: &Device) -> Result<Option<Reserved>, DriverError> {
        let _bound = device.enter()?;
        let _relaxed = Relaxed::enter(device.driver())?;
        Ok(Some(Reserved {
            current_bytes: self.chain.reserved_bytes()?,
            peak_bytes: self.chain.reserved_peak_bytes()?,
            record_bytes: 0,
        }))
    }
}

impl Drop for NativeCalls {
    fn drop(&mut self) {
        // What still waits here goes with the context.
        let _ = self.sweep();
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

fn check_supported(device: &Device) -> Result<(), PoolError> {
    let unsupported = |reason: String| PoolError::BackendUnsupported { backend: BackendKind::Native, reason };
    let table = device.driver().table();
    if table.cuMemPoolCreate.is_none() || table.cuMemAllocFromPoolAsync.is_none() {
        return Err(unsupported("the driver is older than CUDA 11.2, which introduced memory pools".into()));
    }
    match device.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)? {
        0 => Err(unsupported(format!("{device} has no memory pools"))),
        _ => Ok(()),
    }
}

fn driver_version(device: &Device) -> Result<CudaVersion, DriverError> {
    let mut version: c_int = 0;
    // SAFETY: `version` outlives the call.
    unsafe { device.driver().cuDriverGetVersion(&mut version)? };
    Ok(CudaVersion(version.unsigned_abs()))
}

/// The field is ignored before.
const MAX_SIZE_SINCE: CudaVersion = CudaVersion(12_020);

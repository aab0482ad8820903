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
//! be changed, so the limit of a pool that was built with one goes up no further.
//!
//! The driver keeps a destroyed pool until its last queued free is done, so `Drop` waits for nothing.

use super::direct::Calls;
use super::{Freed, Reserved};
use crate::clock::Stamp;
use crate::context::{Handle, Relaxed};
use crate::device::Device;
use crate::error::PoolError;
use crate::limit::Limits;
use crate::options::BackendKind;
use crate::stream::Stream;
use core::ffi::{c_int, c_void};
use gpumem_sys::types::{
    CUdevice_attribute, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType,
    CUmemAllocationType, CUmemLocation, CUmemLocationType, CUmemPool_attribute, CUmemPoolHandle_st,
    CUmemPoolProps, CUmemoryPool,
};
use gpumem_sys::{CudaVersion, DriverError};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) struct NativeCalls {
    device: Device,
    pool: Handle<CUmemPoolHandle_st>,
    /// The hard limit at first, which the driver keeps too, and for good.
    highest_bytes: Option<u64>,
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
        let reserve_max_bytes = match limits.hard_bytes() {
            Some(limit_bytes) if driver_version(device)? >= MAX_SIZE_SINCE => {
                reserve_max_bytes(limit_bytes, device.total_bytes())
            }
            _ => 0,
        };
        // From here on `Drop` destroys the pool, whatever fails.
        let pool = create(device, reserve_max_bytes)?;
        let (sweeper, waiting) = (Mutex::default(), Mutex::default());
        let highest_bytes = limits.hard_bytes().filter(|_| reserve_max_bytes > 0);
        let backend = Self { device: device.clone(), pool, highest_bytes, sweeper, waiting };
        backend.set_soft_limit(limits.soft_bytes())?;
        let _relaxed = Relaxed::enter(device.driver())?;
        for reuse in [
            CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
            CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
            CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
        ] {
            let mut on: c_int = 1;
            backend.set(reuse, &mut on)?;
        }
        Ok(backend)
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

    /// `T` is the type that the driver documents for the attribute: `u64` for bytes, `c_int` for switches.
    fn set<T>(&self, attribute: CUmemPool_attribute, value: &mut T) -> Result<(), DriverError> {
        let value: *mut c_void = core::ptr::from_mut(value).cast();
        // SAFETY: the pool is alive, and `value` points to the type that the attribute has.
        unsafe { self.device.driver().cuMemPoolSetAttribute(self.pool.0, attribute, value) }
    }

    fn bytes(&self, attribute: CUmemPool_attribute) -> Result<u64, DriverError> {
        let mut value = 0_u64;
        let place: *mut c_void = core::ptr::from_mut(&mut value).cast();
        // SAFETY: the pool is alive; every attribute asked for here is a 64-bit count, which `value` has room for.
        unsafe { self.device.driver().cuMemPoolGetAttribute(self.pool.0, attribute, place)? };
        Ok(value)
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
        let mut address = 0;
        // SAFETY: `address` outlives the call; pool and stream are alive.
        unsafe {
            device.driver().cuMemAllocFromPoolAsync(
                &mut address,
                size_bytes as usize,
                self.pool.0,
                stream.raw(),
            )?;
        }
        Ok(address)
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
        let access = CUmemAccessDesc {
            location: CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: peer.raw() },
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the pool is alive, and `access` outlives the call.
        unsafe { device.driver().cuMemPoolSetAccess(self.pool.0, &access, 1) }
    }

    fn check_hard_limit(&self, limit_bytes: u64) -> Result<(), PoolError> {
        match self.highest_bytes.filter(|highest_bytes| limit_bytes > *highest_bytes) {
            Some(_) => Err(PoolError::NotWithBackend {
                backend: BackendKind::Native,
                what: "raise the hard limit above the one that the pool was built with",
                instead: "`caching`, or build it without",
            }),
            None => Ok(()),
        }
    }

    fn reset_peak(&self) -> Result<(), DriverError> {
        let _relaxed = Relaxed::enter(self.device.driver())?;
        let mut none_bytes = 0_u64;
        self.set(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &mut none_bytes)
    }

    fn set_soft_limit(&self, limit_bytes: Option<u64>) -> Result<(), DriverError> {
        let _relaxed = Relaxed::enter(self.device.driver())?;
        let mut threshold_bytes = limit_bytes.unwrap_or(u64::MAX);
        self.set(CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &mut threshold_bytes)
    }

    fn pin(&self) -> Result<(), PoolError> {
        Err(cannot_pin())
    }

    fn trim_to(&self, device: &Device, keep_bytes: u64) -> Result<(), DriverError> {
        let _bound = device.enter()?;
        let _relaxed = Relaxed::enter(device.driver())?;
        let keep_bytes = usize::try_from(keep_bytes).unwrap_or(usize::MAX);
        // SAFETY: the pool is alive.
        unsafe { device.driver().cuMemPoolTrimTo(self.pool.0, keep_bytes) }
    }

    fn reserved(&self, device: &Device) -> Result<Option<Reserved>, DriverError> {
        let _bound = device.enter()?;
        let _relaxed = Relaxed::enter(device.driver())?;
        Ok(Some(Reserved {
            current_bytes: self.bytes(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?,
            peak_bytes: self.bytes(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)?,
            record_bytes: 0,
        }))
    }
}

impl Drop for NativeCalls {
    fn drop(&mut self) {
        // What still waits here goes with the context.
        let _ = self.sweep();
        // Without its context the pool is gone already.
        let Ok(_bound) = self.device.enter() else { return };
        let Ok(_relaxed) = Relaxed::enter(self.device.driver()) else { return };
        let _guard = self.device.driver().teardown();
        // SAFETY: no handle and no block of the pool is left, so nobody passes it again. There is nobody to tell of a
        // failure.
        let _ = unsafe { self.device.driver().cuMemPoolDestroy(self.pool.0) };
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

fn create(device: &Device, reserve_max_bytes: u64) -> Result<Handle<CUmemPoolHandle_st>, DriverError> {
    let props = CUmemPoolProps {
        allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        handleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device.raw() },
        maxSize: usize::try_from(reserve_max_bytes).unwrap_or(0),
        ..Default::default()
    };
    let _bound = device.enter()?;
    let _relaxed = Relaxed::enter(device.driver())?;
    let mut pool: CUmemoryPool = core::ptr::null_mut();
    // SAFETY: both outlive the call.
    unsafe { device.driver().cuMemPoolCreate(&mut pool, &props)? };
    Ok(Handle(pool))
}

/// How much the driver may reserve for a pool that hands out `limit_bytes`; 0 is no bound. The driver grows by whole
/// pieces, and what it refuses here our own count has already admitted.
fn reserve_max_bytes(limit_bytes: u64, device_bytes: u64) -> u64 {
    let max_bytes =
        limit_bytes.checked_next_multiple_of(PIECE_BYTES).and_then(|max| max.checked_add(PIECE_BYTES));
    max_bytes.filter(|max_bytes| *max_bytes < device_bytes).unwrap_or(0)
}

/// What the driver's pool grows by.
const PIECE_BYTES: u64 = 32 << 20;

/// The field is ignored before.
const MAX_SIZE_SINCE: CudaVersion = CudaVersion(12_020);

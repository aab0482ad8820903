//! `native`: the driver's own stream-ordered pool.
//!
//! Each of our pools has a driver pool of its own rather than the device's default one, so that limits and thresholds
//! are ours alone. Allocations and frees are queued like any other work, and neither waits. The driver keeps freed
//! memory reserved up to the release threshold, which is our soft limit, and looks at it whenever the host synchronises.
//!
//! A hard limit also bounds what the driver may reserve for the pool. Seen on an H200 with CUDA 13.0: the bound is
//! rounded up to 32 MiB, one beyond the device's memory is refused as out of memory, and within it free memory is not
//! moved together: a request that finds only smaller pieces fails although our own count has room for it. The driver
//! rounds each block to 512 bytes. The piece that we add on top covers the rounding, not the scattering.
//!
//! The driver keeps a destroyed pool until its last queued free is done, so `Drop` waits for nothing.

use super::{Reserved, Source};
use crate::context::Handle;
use crate::device::Device;
use crate::error::PoolError;
use crate::options::BackendKind;
use crate::stream::Stream;
use core::ffi::{c_int, c_void};
use gpumem_sys::types::{
    CUdevice_attribute, CUdeviceptr, CUmemAllocationHandleType, CUmemAllocationType, CUmemLocation,
    CUmemLocationType, CUmemPool_attribute, CUmemPoolHandle_st, CUmemPoolProps, CUmemoryPool,
};
use gpumem_sys::{CudaVersion, DriverError};

pub(crate) struct NativeBackend {
    device: Device,
    pool: Handle<CUmemPoolHandle_st>,
}

impl NativeBackend {
    pub(crate) fn new(
        device: &Device,
        hard_limit_bytes: Option<u64>,
        soft_limit_bytes: Option<u64>,
    ) -> Result<Self, PoolError> {
        check_supported(device)?;
        let reserve_max_bytes = match hard_limit_bytes {
            Some(limit_bytes) if driver_version(device)? >= MAX_SIZE_SINCE => {
                reserve_max_bytes(limit_bytes, device.total_bytes())
            }
            _ => 0,
        };
        // From here on `Drop` destroys the pool, whatever fails.
        let backend = Self { device: device.clone(), pool: create(device, reserve_max_bytes)? };
        let mut threshold_bytes = soft_limit_bytes.unwrap_or(u64::MAX);
        backend.set(CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &mut threshold_bytes)?;
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

impl Source for NativeBackend {
    fn kind(&self) -> BackendKind {
        BackendKind::Native
    }

    fn acquire(&self, size_bytes: u64, stream: &Stream) -> Result<CUdeviceptr, DriverError> {
        let device = stream.device();
        let _bound = device.enter()?;
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

    fn release(&self, address: CUdeviceptr, home: &Stream, uses: &[Stream]) -> Result<(), DriverError> {
        uses.iter().try_for_each(|stream| home.queue_wait_for(stream))?;
        let device = home.device();
        let _bound = device.enter()?;
        // SAFETY: the address came from `acquire` and its one block is being dropped; home has just been made to wait
        // for every other stream that used it.
        unsafe { device.driver().cuMemFreeAsync(address, home.raw()) }
    }

    fn keeps_memory(&self) -> bool {
        true
    }

    fn trim_to(&self, device: &Device, keep_bytes: u64) -> Result<(), DriverError> {
        let _bound = device.enter()?;
        let keep_bytes = usize::try_from(keep_bytes).unwrap_or(usize::MAX);
        // SAFETY: the pool is alive.
        unsafe { device.driver().cuMemPoolTrimTo(self.pool.0, keep_bytes) }
    }

    fn reserved(&self, device: &Device) -> Result<Option<Reserved>, DriverError> {
        let _bound = device.enter()?;
        Ok(Some(Reserved {
            current_bytes: self.bytes(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?,
            peak_bytes: self.bytes(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)?,
        }))
    }
}

impl Drop for NativeBackend {
    fn drop(&mut self) {
        // Without its context the pool is gone already.
        let Ok(_bound) = self.device.enter() else { return };
        let _guard = self.device.driver().teardown();
        // SAFETY: no handle and no block of the pool is left, so nobody passes it again. There is nobody to tell of a
        // failure.
        let _ = unsafe { self.device.driver().cuMemPoolDestroy(self.pool.0) };
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

//! [`DriverPool`]: one memory pool of the driver, and the calls that use it.
//!
//! All functions except the drop require the device's context to be current. No capture is affected by the calls. The
//! driver keeps a destroyed pool until its last queued free is complete, so the drop never waits.

use crate::figures::ActivityCounters;
use core::ffi::{c_int, c_void};
use gpumem_device::Device;
use gpumem_device::internal::{Clocks, Handle, HowFar, PeerDevice};
use gpumem_sys::types::{
    CUdevice, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType,
    CUmemAllocationType, CUmemLocation, CUmemLocationType, CUmemPool_attribute, CUmemPoolHandle_st,
    CUmemPoolProps, CUmemoryPool, CUstream,
};
use gpumem_sys::{Driver, DriverError};
use std::sync::Arc;

pub(super) struct DriverPool {
    device: Device,
    activity: Arc<ActivityCounters>,
    handle: Handle<CUmemPoolHandle_st>,
    pub(super) max_bytes: u64,
}

pub(super) const UNBOUNDED: u64 = u64::MAX;

impl DriverPool {
    /// Creates a pool that never reserves more than `max_bytes`, a multiple of the pool's growth unit.
    pub(super) fn new(
        device: &Device,
        max_bytes: u64,
        activity: &Arc<ActivityCounters>,
    ) -> Result<Self, DriverError> {
        let props = CUmemPoolProps {
            allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            location: location(device.raw()),
            // Zero means no bound.
            maxSize: if max_bytes == UNBOUNDED { 0 } else { max_bytes as usize },
            ..Default::default()
        };
        let mut pool: CUmemoryPool = core::ptr::null_mut();
        // SAFETY: `pool` and `props` outlive the call.
        unsafe { device.driver().cuMemPoolCreate(&mut pool, &props)? };
        // From here on `Drop` destroys the pool, even if a later call fails.
        let activity = Arc::clone(activity);
        let pool = Self { device: device.clone(), activity, handle: Handle(pool), max_bytes };
        for reuse in [
            CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
            CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
            CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
        ] {
            let on: c_int = 1;
            pool.set(reuse, on)?;
        }
        Ok(pool)
    }

    pub(super) fn acquire(&self, size_bytes: u64, stream: CUstream) -> Result<CUdeviceptr, DriverError> {
        let (mut address, size) = (0, size_bytes as usize);
        // SAFETY: `address` outlives the call; pool and stream are alive.
        self.activity.driver_call(|| unsafe {
            self.device.driver().cuMemAllocFromPoolAsync(&mut address, size, self.handle.0, stream)
        })?;
        Ok(address)
    }

    pub(super) fn share_with(&self, peer: PeerDevice) -> Result<(), DriverError> {
        let access = CUmemAccessDesc {
            location: location(peer.raw()),
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the pool is alive, and `access` outlives the call.
        unsafe { self.device.driver().cuMemPoolSetAccess(self.handle.0, &access, 1) }
    }

    /// Sets the release threshold. When the host waits, the driver releases free memory beyond it.
    pub(super) fn set_threshold(&self, keep_bytes: u64) -> Result<(), DriverError> {
        self.set(CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, keep_bytes)
    }

    pub(super) fn trim_to(&self, keep_bytes: u64) -> Result<(), DriverError> {
        let keep = usize::try_from(keep_bytes).unwrap_or(usize::MAX);
        // SAFETY: the pool is alive.
        self.activity.driver_call(|| unsafe { self.device.driver().cuMemPoolTrimTo(self.handle.0, keep) })
    }

    pub(super) fn reserved_bytes(&self) -> Result<u64, DriverError> {
        self.bytes(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
    }

    pub(super) fn reserved_peak_bytes(&self) -> Result<u64, DriverError> {
        self.bytes(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
    }

    /// The bytes of all allocations, this crate's and others'.
    pub(super) fn used_bytes(&self) -> Result<u64, DriverError> {
        self.bytes(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
    }

    pub(super) fn used_peak_bytes(&self) -> Result<u64, DriverError> {
        self.bytes(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH)
    }

    pub(super) fn reset_peak(&self) -> Result<(), DriverError> {
        self.set(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0_u64)?;
        self.set(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0_u64)
    }

    pub(super) fn make_current(&self) -> Result<(), DriverError> {
        // SAFETY: the pool is alive, and of this device.
        unsafe { self.device.driver().cuDeviceSetMemPool(self.device.raw(), self.handle.0) }
    }

    pub(super) fn is_current(&self) -> Result<bool, DriverError> {
        let mut current: CUmemoryPool = core::ptr::null_mut();
        // SAFETY: `current` outlives the call.
        unsafe { self.device.driver().cuDeviceGetMemPool(&mut current, self.device.raw())? };
        Ok(current == self.handle.0)
    }

    pub(super) fn make_default_current(&self) -> Result<(), DriverError> {
        let (driver, device) = (self.device.driver(), self.device.raw());
        let mut default: CUmemoryPool = core::ptr::null_mut();
        // SAFETY: `default` outlives the call.
        unsafe { driver.cuDeviceGetDefaultMemPool(&mut default, device)? };
        // SAFETY: the device's default pool is never destroyed.
        unsafe { driver.cuDeviceSetMemPool(device, default) }
    }

    /// `T` is the driver's documented type of the attribute: `u64` for bytes, `c_int` for switches.
    fn set<T>(&self, attribute: CUmemPool_attribute, mut value: T) -> Result<(), DriverError> {
        let value: *mut c_void = (&raw mut value).cast();
        // SAFETY: the pool is alive, and `value` points to the type that the attribute has.
        unsafe { self.device.driver().cuMemPoolSetAttribute(self.handle.0, attribute, value) }
    }

    fn bytes(&self, attribute: CUmemPool_attribute) -> Result<u64, DriverError> {
        let mut value = 0_u64;
        let place: *mut c_void = (&raw mut value).cast();
        // SAFETY: the pool is alive; every attribute read here is a 64-bit count, which fits in `value`.
        unsafe { self.device.driver().cuMemPoolGetAttribute(self.handle.0, attribute, place)? };
        Ok(value)
    }
}

impl Drop for DriverPool {
    fn drop(&mut self) {
        let driver = self.device.driver();
        let destroyed = self.device.enter_relaxed().and_then(|_entered| destroy(driver, &self.handle));
        // A drop cannot report a failure, so the device's maintenance retries the call.
        if destroyed.is_err() {
            let handle = Handle(self.handle.0);
            let retry = move |driver: &Driver, _: &Clocks, _: HowFar| destroy(driver, &handle).is_ok();
            self.device.maintenance().defer_release(false, false, retry);
        }
    }
}

fn location(device: CUdevice) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

/// Destroys a pool, whose handle is not used after a success. No capture is affected by the call.
fn destroy(driver: &Driver, handle: &Handle<CUmemPoolHandle_st>) -> Result<(), DriverError> {
    let handle = Handle(handle.0);
    driver.destroy(move |driver| {
        let Handle(raw) = &handle;
        // SAFETY: the caller does not use the handle again; live blocks are named by their addresses alone.
        unsafe { driver.cuMemPoolDestroy(*raw) }
    })
}

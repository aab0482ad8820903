//! Helpers: a device, and memory of it that can be exported.

use gpumem_tests::driver::raw::Raw;
use gpumem_tests::sys::types::*;
use gpumem_tests::sys::{CUresult, Driver, DriverError};
use std::cell::RefCell;
use std::ops::Deref;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::null_mut;

pub(crate) const PIECE: usize = 2 << 20;
pub(crate) const SUCCESS: CUresult = CUresult::CUDA_SUCCESS;
pub(crate) const NONE: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
pub(crate) const POSIX: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// Device 0 with its primary context current, and its streams and pools, which are destroyed in reverse order.
pub(crate) struct Sharing {
    raw: Raw,
    streams: RefCell<Vec<CUstream>>,
    pools: RefCell<Vec<CUmemoryPool>>,
}

impl Deref for Sharing {
    type Target = Raw;

    fn deref(&self) -> &Raw {
        &self.raw
    }
}

impl Drop for Sharing {
    fn drop(&mut self) {
        // SAFETY: the handles were created here, and a case has waited for all work that it queued. After a failure work may be
        // pending: then the driver refuses the calls.
        unsafe {
            for stream in self.streams.get_mut().drain(..).rev() {
                let _ = self.raw.driver.cuStreamDestroy_v2(stream);
            }
            for pool in self.pools.get_mut().drain(..).rev() {
                let _ = self.raw.driver.cuMemPoolDestroy(pool);
            }
        }
    }
}

impl Sharing {
    pub(crate) fn new(driver: &Driver) -> Self {
        let raw = Raw::new(driver).unwrap();
        Self { raw, streams: RefCell::default(), pools: RefCell::default() }
    }

    /// Creates a fixture and a stream.
    pub(crate) fn with_stream(driver: &Driver) -> (Self, CUstream) {
        let gpu = Self::new(driver);
        let stream = gpu.stream();
        (gpu, stream)
    }

    pub(crate) fn stream(&self) -> CUstream {
        let stream = self.raw.stream().unwrap();
        self.streams.borrow_mut().push(stream);
        stream
    }

    pub(crate) fn attribute(&self, attribute: CUdevice_attribute) -> i32 {
        let mut value = 0;
        // SAFETY: a local outlives the call.
        unsafe { self.driver.cuDeviceGetAttribute(&mut value, attribute, self.device).unwrap() };
        value
    }

    pub(crate) fn location(&self) -> CUmemLocation {
        CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: self.device }
    }

    pub(crate) fn create(&self, types: CUmemAllocationHandleType) -> Result<u64, DriverError> {
        let properties = CUmemAllocationProp {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: types,
            location: self.location(),
            ..Default::default()
        };
        let mut handle = 0;
        // SAFETY: locals outlive the call.
        unsafe { self.driver.cuMemCreate(&mut handle, PIECE, &properties, 0)? };
        Ok(handle)
    }

    pub(crate) fn export(&self, handle: u64) -> Result<OwnedFd, DriverError> {
        let mut descriptor = -1;
        // SAFETY: a local outlives the call, and the descriptor is the caller's.
        unsafe {
            self.driver.cuMemExportToShareableHandle((&raw mut descriptor).cast(), handle, POSIX, 0)?;
            Ok(OwnedFd::from_raw_fd(descriptor))
        }
    }

    pub(crate) fn import(&self, descriptor: i32) -> Result<u64, DriverError> {
        let mut handle = 0;
        let shareable = std::ptr::without_provenance_mut(descriptor as usize);
        // SAFETY: a local outlives the call.
        unsafe { self.driver.cuMemImportFromShareableHandle(&mut handle, shareable, POSIX)? };
        Ok(handle)
    }

    pub(crate) fn pool(&self, types: CUmemAllocationHandleType) -> CUmemoryPool {
        let props = CUmemPoolProps {
            allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: types,
            location: self.location(),
            ..Default::default()
        };
        let mut pool = null_mut();
        // SAFETY: locals outlive the call.
        unsafe { self.driver.cuMemPoolCreate(&mut pool, &props).unwrap() };
        self.pools.borrow_mut().push(pool);
        pool
    }

    pub(crate) fn alloc_from(&self, pool: CUmemoryPool, stream: CUstream) -> Result<u64, DriverError> {
        let mut address = 0;
        // SAFETY: a local outlives the call; the handles are live.
        unsafe { self.driver.cuMemAllocFromPoolAsync(&mut address, PIECE, pool, stream)? };
        Ok(address)
    }

    pub(crate) fn export_pool(&self, pool: CUmemoryPool) -> Result<OwnedFd, DriverError> {
        let mut descriptor = -1;
        // SAFETY: a local outlives the call, and the descriptor is the caller's.
        unsafe {
            self.driver.cuMemPoolExportToShareableHandle((&raw mut descriptor).cast(), pool, POSIX, 0)?;
            Ok(OwnedFd::from_raw_fd(descriptor))
        }
    }

    pub(crate) fn import_pool(&self, descriptor: i32) -> Result<CUmemoryPool, DriverError> {
        let mut pool = null_mut();
        let shareable = std::ptr::without_provenance_mut(descriptor as usize);
        // SAFETY: a local outlives the call.
        unsafe { self.driver.cuMemPoolImportFromShareableHandle(&mut pool, shareable, POSIX, 0)? };
        self.pools.borrow_mut().push(pool);
        Ok(pool)
    }

    pub(crate) fn export_pointer(&self, address: u64) -> Result<CUmemPoolPtrExportData, DriverError> {
        let mut data = CUmemPoolPtrExportData::default();
        // SAFETY: a local outlives the call.
        unsafe { self.driver.cuMemPoolExportPointer(&mut data, address)? };
        Ok(data)
    }

    pub(crate) fn import_pointer(
        &self,
        pool: CUmemoryPool,
        mut data: CUmemPoolPtrExportData,
    ) -> Result<u64, DriverError> {
        let mut address = 0;
        // SAFETY: locals outlive the call; the pool is live.
        unsafe { self.driver.cuMemPoolImportPointer(&mut address, pool, &mut data)? };
        Ok(address)
    }

    pub(crate) fn interprocess_event(&self) -> CUevent {
        let flags = CUevent_flags::CU_EVENT_INTERPROCESS.0 | CUevent_flags::CU_EVENT_DISABLE_TIMING.0;
        let mut event = null_mut();
        // SAFETY: a local outlives the call.
        unsafe { self.driver.cuEventCreate(&mut event, flags).unwrap() };
        event
    }

    /// Maps a handle at a new address.
    pub(crate) fn place(&self, handle: u64) -> u64 {
        let flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let wish = CUmemAccessDesc { location: self.location(), flags };
        let mut base = 0;
        // SAFETY: locals outlive the calls; the handle is live and the range was just reserved.
        unsafe {
            self.driver.cuMemAddressReserve(&mut base, PIECE, 0, 0, 0).unwrap();
            self.driver.cuMemMap(base, PIECE, 0, handle, 0).unwrap();
            self.driver.cuMemSetAccess(base, PIECE, &wish, 1).unwrap();
        }
        base
    }

    /// Undoes [`Sharing::place`] and releases the handle.
    pub(crate) fn take_away(&self, base: u64, handle: u64) {
        // SAFETY: all work on the range is complete.
        unsafe {
            self.driver.cuCtxSynchronize().unwrap();
            self.driver.cuMemUnmap(base, PIECE).unwrap();
            self.driver.cuMemAddressFree(base, PIECE).unwrap();
            self.driver.cuMemRelease(handle).unwrap();
        }
    }
}

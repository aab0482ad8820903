//! Virtual memory management through the raw table: reserved addresses, handles, mappings, access.
//!
//! For tests of the driver itself. A test releases what it reserves, creates and maps.

use crate::driver::raw::Raw;
use crate::sys::types::*;
use crate::sys::{Driver, DriverError};
use std::ops::Deref;

/// The granularity of handles.
pub const PIECE: usize = 2 << 20;

/// Device 0 with its primary context current, for virtual memory management.
pub struct Vmm(Raw);

impl Deref for Vmm {
    type Target = Raw;

    fn deref(&self) -> &Raw {
        &self.0
    }
}

impl Vmm {
    /// Opens device 0. Returns `None` if the device has no virtual memory management: the simulator on systems other than Linux.
    ///
    /// # Panics
    ///
    /// If the driver refuses device 0, or a device that should have virtual memory management does not.
    #[must_use]
    pub fn new(driver: &Driver) -> Option<Self> {
        let raw = Raw::new(driver).unwrap_or_else(|error| panic!("{error}"));
        let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
        let mut supported = 0;
        // SAFETY: a local outlives the call.
        let asked = unsafe { driver.cuDeviceGetAttribute(&mut supported, attribute, raw.device) };
        assert!(asked.is_ok() && (supported == 1 || cfg!(not(target_os = "linux"))), "{asked:?}");
        (supported == 1).then_some(Self(raw))
    }

    /// The properties of the handles: pinned memory of the device.
    #[must_use]
    pub fn properties(&self) -> CUmemAllocationProp {
        CUmemAllocationProp {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            location: location(self.device),
            ..Default::default()
        }
    }

    /// Reserves addresses.
    ///
    /// # Errors
    ///
    /// [`DriverError::Failed`] if a driver call fails.
    pub fn reserve(&self, size_bytes: usize) -> Result<CUdeviceptr, DriverError> {
        let mut base = 0;
        // SAFETY: a local outlives the call.
        unsafe { self.driver.cuMemAddressReserve(&mut base, size_bytes, 0, 0, 0)? };
        Ok(base)
    }

    /// Creates a handle.
    ///
    /// # Errors
    ///
    /// [`DriverError::Failed`] if a driver call fails.
    pub fn create(&self, size_bytes: usize) -> Result<CUmemGenericAllocationHandle, DriverError> {
        let mut handle = 0;
        // SAFETY: locals outlive the call.
        unsafe { self.driver.cuMemCreate(&mut handle, size_bytes, &self.properties(), 0)? };
        Ok(handle)
    }

    /// Maps a whole handle to an address.
    ///
    /// # Errors
    ///
    /// [`DriverError::Failed`] if a driver call fails.
    pub fn map(
        &self,
        base: CUdeviceptr,
        size_bytes: usize,
        handle: CUmemGenericAllocationHandle,
    ) -> Result<(), DriverError> {
        // SAFETY: the driver checks addresses and handles.
        unsafe { self.driver.cuMemMap(base, size_bytes, 0, handle, 0) }
    }

    /// Lets the device read and write a range.
    ///
    /// # Errors
    ///
    /// [`DriverError::Failed`] if a driver call fails.
    pub fn grant(&self, base: CUdeviceptr, size_bytes: usize) -> Result<(), DriverError> {
        // SAFETY: a local outlives the call; the driver checks addresses.
        unsafe { self.driver.cuMemSetAccess(base, size_bytes, &read_write(self.device), 1) }
    }

    /// The access rights of the device to an address.
    ///
    /// # Errors
    ///
    /// [`DriverError::Failed`] if a driver call fails.
    pub fn access(&self, base: CUdeviceptr) -> Result<CUmemAccess_flags, DriverError> {
        let mut flags = 0;
        // SAFETY: locals outlive the call.
        unsafe { self.driver.cuMemGetAccess(&mut flags, &location(self.device), base)? };
        Ok(CUmemAccess_flags(flags as u32))
    }
}

/// The location of a device's memory.
#[must_use]
pub fn location(device: CUdevice) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

/// Read and write access for a device.
#[must_use]
pub fn read_write(device: CUdevice) -> CUmemAccessDesc {
    CUmemAccessDesc {
        location: location(device),
        flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    }
}

//! The driver's calls for physical memory and addresses.

use super::access::{Access, Memory};
use crate::backend::plain;
use crate::error::LimitExceeded;
use gpumem_heap::{PhysicalMemory, RawHandle};
use gpumem_sys::types::{CUmemAccessDesc, CUresult};
use gpumem_sys::{Driver, DriverError};

/// The driver's word for that it has no more memory, or a limit's in its place: others may have taken what the limit
/// allowed a moment ago, or it has become a lower one.
pub(super) struct BackingError {
    pub(super) error: DriverError,
    pub(super) passed: Option<LimitExceeded>,
}

/// The driver itself, for one device. Its context is current.
pub(super) struct Vmm<'a> {
    driver: &'a Driver,
    access: &'a Access,
    /// The limit that did not allow what was asked for last.
    passed: Option<LimitExceeded>,
}

impl<'a> Vmm<'a> {
    pub(super) fn new(driver: &'a Driver, access: &'a Access) -> Self {
        Self { driver, access, passed: None }
    }

    /// For one device, the others keep what they have.
    pub(super) fn set_access_of(
        &self,
        address: u64,
        size_bytes: u64,
        access: &CUmemAccessDesc,
    ) -> Result<(), DriverError> {
        // SAFETY: `access` outlives the call; the heap has mapped the range.
        unsafe { self.driver.cuMemSetAccess(address, size_bytes as usize, access, 1) }
    }

    /// Beyond the limits that the pool shares there is no memory, as far as the heap can tell.
    fn admit(&mut self, size_bytes: u64) -> Result<(), DriverError> {
        self.passed = self.access.admission().admit(size_bytes).err();
        match self.passed {
            None => Ok(()),
            Some(_) => {
                Err(DriverError::Failed { call: "cuMemCreate", code: CUresult::CUDA_ERROR_OUT_OF_MEMORY })
            }
        }
    }

    /// Who is behind an error that says that there is no more memory.
    pub(super) fn said(&self, error: DriverError) -> BackingError {
        BackingError { error, passed: self.passed }
    }

    fn create_handle(&self, size_bytes: u64) -> Result<u64, DriverError> {
        let props = self.access.props();
        let mut handle = 0;
        // SAFETY: both outlive the call.
        unsafe { self.driver.cuMemCreate(&mut handle, size_bytes as usize, &props, 0)? };
        Ok(handle)
    }

    /// Addresses for so many bytes, with nothing behind them.
    pub(super) fn reserve(&self, size_bytes: u64) -> Result<u64, DriverError> {
        let mut address = 0;
        // SAFETY: `address` outlives the call.
        unsafe { self.driver.cuMemAddressReserve(&mut address, size_bytes as usize, 0, 0, 0)? };
        Ok(address)
    }

    /// Gives addresses back behind which nothing is mapped.
    pub(super) fn free(&self, address: u64, size_bytes: u64) -> Result<(), DriverError> {
        // SAFETY: the range came from `reserve`, and its heap is empty.
        unsafe { self.driver.cuMemAddressFree(address, size_bytes as usize) }
    }
}

impl PhysicalMemory for Vmm<'_> {
    type Error = DriverError;

    fn create(&mut self, size_bytes: u64) -> Result<RawHandle, DriverError> {
        self.admit(size_bytes)?;
        let created = match self.access.memory() {
            Memory::Virtual => self.create_handle(size_bytes),
            Memory::Segments(kind) => plain::acquire(self.driver, kind, size_bytes),
        };
        created.map(RawHandle).inspect_err(|_| self.access.admission().give_back(size_bytes))
    }

    fn map(&mut self, address: u64, size_bytes: u64, handle: RawHandle) -> Result<(), DriverError> {
        // SAFETY: the heap has the addresses to itself and knows that nothing is mapped there; the handle is alive.
        unsafe { self.driver.cuMemMap(address, size_bytes as usize, 0, handle.0, 0) }
    }

    fn set_access(&mut self, address: u64, size_bytes: u64) -> Result<(), DriverError> {
        let set = |granted: &[CUmemAccessDesc]| {
            // SAFETY: `granted` outlives the call; the heap has mapped the range.
            unsafe {
                self.driver.cuMemSetAccess(address, size_bytes as usize, granted.as_ptr(), granted.len())
            }
        };
        self.access.with(set)
    }

    fn unmap(&mut self, address: u64, size_bytes: u64) -> Result<(), DriverError> {
        // SAFETY: the heap has mapped the range, and all work that used it is complete.
        unsafe { self.driver.cuMemUnmap(address, size_bytes as usize) }
    }

    fn release(&mut self, handle: RawHandle, size_bytes: u64) -> Result<(), DriverError> {
        match self.access.memory() {
            // SAFETY: the handle was created here, and is not named again.
            Memory::Virtual => unsafe { self.driver.cuMemRelease(handle.0)? },
            // SAFETY: the segment was allocated here and is not named again, and the heap knows that all uses are complete.
            Memory::Segments(kind) => unsafe { plain::release(self.driver, kind, handle.0)? },
        }
        self.access.admission().give_back(size_bytes);
        Ok(())
    }
}

//! The driver's calls for physical memory and addresses.

use gpumem_sys::DriverError;

/// The driver's name of some physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RawHandle(pub(super) u64);

/// What a heap asks of the driver.
pub(super) trait Backing {
    fn create(&mut self, size_bytes: u64) -> Result<RawHandle, DriverError>;
    fn map(&mut self, address: u64, size_bytes: u64, handle: RawHandle) -> Result<(), DriverError>;
    fn set_access(&mut self, address: u64, size_bytes: u64) -> Result<(), DriverError>;
    fn unmap(&mut self, address: u64, size_bytes: u64) -> Result<(), DriverError>;
    fn release(&mut self, handle: RawHandle) -> Result<(), DriverError>;
}

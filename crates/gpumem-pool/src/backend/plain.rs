//! Plain device memory: the driver's calls that every device has.

use crate::device::Device;
use gpumem_sys::types::{CUdeviceptr, CUresult};
use gpumem_sys::{Driver, DriverError};

/// Memory of the device whose context is current.
pub(super) fn acquire(driver: &Driver, size_bytes: u64) -> Result<CUdeviceptr, DriverError> {
    let mut address = 0;
    // SAFETY: `address` outlives the call, and a context is current.
    unsafe { driver.cuMemAlloc_v2(&mut address, size_bytes as usize)? };
    Ok(address)
}

/// Gives it back. Drivers wait for the device here, whether or not any of its work uses the memory.
///
/// # Safety
///
/// The address came from [`acquire`] under this context, all work that used the memory is done, and nobody names it again.
pub(super) unsafe fn release(driver: &Driver, address: CUdeviceptr) -> Result<(), DriverError> {
    // SAFETY: the caller's promise.
    unsafe { driver.cuMemFree_v2(address) }
}

/// Lets another device use all plain memory of this one.
pub(super) fn enable_peer_access(device: &Device, peer: &Device) -> Result<(), DriverError> {
    let _bound = peer.enter()?;
    // SAFETY: the peer's context is current, and the other one alive.
    let enabled = unsafe { device.driver().cuCtxEnablePeerAccess(device.context(), 0) };
    match enabled {
        Err(error) if error.code() == CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
        other => other,
    }
}

//! Memory that is neither mapped nor in any stream's order: the driver's calls for each kind of it.

use crate::config::MemoryKind;
use crate::device::Device;
use core::ffi::c_void;
use gpumem_sys::types::{CUdeviceptr, CUmemAttach_flags, CUresult};
use gpumem_sys::{Driver, DriverError};

/// Memory for the device whose context is current; pinned host memory for all devices.
pub(super) fn acquire(
    driver: &Driver,
    kind: MemoryKind,
    size_bytes: u64,
) -> Result<CUdeviceptr, DriverError> {
    let (mut address, size) = (0, usize::try_from(size_bytes).unwrap_or(usize::MAX));
    // SAFETY: a context is current, and the place for the address outlives each call.
    unsafe {
        match kind {
            MemoryKind::Device => driver.cuMemAlloc_v2(&mut address, size)?,
            MemoryKind::Unified => {
                driver.cuMemAllocManaged(&mut address, size, CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL.0)?;
            }
            MemoryKind::Host => {
                let mut host: *mut c_void = core::ptr::null_mut();
                driver.cuMemHostAlloc(&mut host, size, PORTABLE | MAPPED)?;
                // Where addresses are shared by host and devices, which is everywhere with 64 bits, it has one.
                address = host.expose_provenance() as CUdeviceptr;
            }
        }
    }
    Ok(address)
}

/// Gives it back. Drivers wait for the device here, whether or not any of its work uses the memory.
///
/// # Safety
///
/// The address came from [`acquire`] with this kind and under this context, all work that used the memory is done, and
/// nobody names it again.
pub(super) unsafe fn release(
    driver: &Driver,
    kind: MemoryKind,
    address: CUdeviceptr,
) -> Result<(), DriverError> {
    // SAFETY: the caller's promise.
    unsafe {
        match kind {
            MemoryKind::Device | MemoryKind::Unified => driver.cuMemFree_v2(address),
            MemoryKind::Host => {
                driver.cuMemFreeHost(core::ptr::with_exposed_provenance_mut(address as usize))
            }
        }
    }
}

/// Lets another device use all memory of a kind that this one has. All but its own anybody can use anyway.
pub(super) fn enable_peer_access(
    device: &Device,
    kind: MemoryKind,
    peer: &Device,
) -> Result<(), DriverError> {
    if kind != MemoryKind::Device {
        return Ok(());
    }
    let _bound = peer.enter()?;
    // SAFETY: the peer's context is current, and the other one alive.
    let enabled = unsafe { device.driver().cuCtxEnablePeerAccess(device.context(), 0) };
    match enabled {
        Err(error) if error.code() == CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
        other => other,
    }
}

/// Pinned for every context, and with an address for devices.
const PORTABLE: u32 = 1;
const MAPPED: u32 = 2;

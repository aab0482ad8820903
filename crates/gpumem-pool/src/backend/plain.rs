//! Plain memory: neither mapped nor stream-ordered. One driver call allocates each [`MemoryKind`].

use crate::config::MemoryKind;
use crate::error::PoolError;
use core::ffi::c_void;
use gpumem_device::Device;
use gpumem_device::internal::PeerDevice;
use gpumem_sys::types::{CUdeviceptr, CUmemAttach_flags, CUresult};
use gpumem_sys::{Driver, DriverError};

/// Allocates memory of the device whose context is current, or pinned host memory that all devices can access.
///
/// # Errors
///
/// [`DriverError::Failed`] or [`DriverError::Missing`] of the driver call.
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
                // Host and devices share one address space on every 64-bit platform, so devices use the host address.
                address = host.expose_provenance() as CUdeviceptr;
            }
        }
    }
    Ok(address)
}

/// Frees plain memory. Drivers wait for the device here, whether or not any of its work uses the memory.
///
/// # Safety
///
/// The address came from [`acquire`] with this kind and under this context, all work that used the memory is
/// complete, and the address is not used again.
pub(super) unsafe fn release(
    driver: &Driver,
    kind: MemoryKind,
    address: CUdeviceptr,
) -> Result<(), DriverError> {
    // SAFETY: the caller upholds this function's contract.
    unsafe {
        match kind {
            MemoryKind::Device | MemoryKind::Unified => driver.cuMemFree_v2(address),
            MemoryKind::Host => {
                driver.cuMemFreeHost(core::ptr::with_exposed_provenance_mut(address as usize))
            }
        }
    }
}

/// Gives a peer device access to all plain device memory of a device. Every device can access the other kinds anyway.
pub(super) fn enable_peer_access(
    device: &Device,
    kind: MemoryKind,
    peer: PeerDevice,
) -> Result<(), PoolError> {
    if kind != MemoryKind::Device {
        return Ok(());
    }
    // The pool above keeps the peer's context, with which the access ends.
    let peer = Device::new(device.driver(), peer.ordinal())?;
    let _bound = peer.enter()?;
    // SAFETY: the peer's context is current, and the other one alive.
    let enabled = unsafe { device.driver().cuCtxEnablePeerAccess(device.context(), 0) };
    match enabled {
        Err(error) if error.code() == CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
        other => Ok(other?),
    }
}

/// Flags of `cuMemHostAlloc`: pinned for every context, and mapped into the devices' address space.
const PORTABLE: u32 = 1;
const MAPPED: u32 = 2;

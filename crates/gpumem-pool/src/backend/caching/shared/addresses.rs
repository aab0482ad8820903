//! The heap's addresses, and what a device must offer for a heap.

use crate::backend::caching::vmm::Vmm;
use crate::device::Device;
use crate::error::PoolError;
use crate::options::{BackendKind, HandleUse};
use gpumem_sys::DriverError;
use gpumem_sys::types::CUdevice_attribute;

/// Two ranges: for small blocks and for others. The device's context is current.
pub(super) fn reserve(device: &Device, vmm: &Vmm<'_>) -> Result<[(u64, u64); 2], DriverError> {
    let unit_bytes = (device.total_bytes() / RANGE_UNIT_BYTES + 1) * RANGE_UNIT_BYTES;
    let small = reserve_range(vmm, unit_bytes, SMALL_TIMES)?;
    let large = reserve_range(vmm, unit_bytes, LARGE_TIMES).inspect_err(|_| {
        let _ = vmm.free(small.0, small.1);
    })?;
    Ok([small, large])
}

/// What virtual memory, and this use of it, need.
pub(super) fn check_supported(device: &Device, handle_use: HandleUse) -> Result<(), PoolError> {
    let unsupported =
        |reason: String| PoolError::BackendUnsupported { backend: BackendKind::Caching, reason };
    let table = device.driver().table();
    if table.cuMemCreate.is_none() || table.cuMemAddressReserve.is_none() {
        return Err(unsupported(
            "the driver is older than CUDA 10.2, which introduced virtual memory".into(),
        ));
    }
    let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    let rdma = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
    let export = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
    let needed = [
        (true, attribute, "has no virtual memory management"),
        (handle_use.rdma, rdma, "has no virtual memory that network cards can reach"),
        (handle_use.exportable, export, "has no memory that file descriptors can stand for"),
    ];
    for (_, attribute, lack) in needed.into_iter().filter(|(is_needed, ..)| *is_needed) {
        if device.attribute(attribute)? == 0 {
            return Err(unsupported(format!("{device} {lack}")));
        }
    }
    Ok(())
}

/// So many times the device's memory, or less where other pools have the addresses: where a range begins, and its size.
fn reserve_range(vmm: &Vmm<'_>, unit_bytes: u64, times: u64) -> Result<(u64, u64), DriverError> {
    let size_bytes = unit_bytes * times;
    match vmm.reserve(size_bytes) {
        Err(_) if times > 1 => reserve_range(vmm, unit_bytes, times / 2),
        reserved => Ok((reserved?, size_bytes)),
    }
}

/// Addresses cost nothing but that there are 128 TiB of them, for all pools and whoever else is in the process.
const SMALL_TIMES: u64 = 2;
const LARGE_TIMES: u64 = 4;
/// What the device has is rounded up to this.
const RANGE_UNIT_BYTES: u64 = 8 << 30;

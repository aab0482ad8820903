//! Reserves the heap's addresses where the driver supports virtual memory. Plain segments bring their own addresses.
//! They replace virtual memory where it is missing or refused, and they hold all host-accessible memory.

use super::orphaned_heap::leave;
use crate::backend::{BackendSetup, caching::access::Access, caching::access::Memory, caching::vmm::Vmm};
use crate::config::{BackendKind, Config, MemoryKind};
use crate::device::Device;
use crate::error::{PoolError, Refusal};
use gpumem_heap::PhysicalMemory;
use gpumem_sys::DriverError;
use gpumem_sys::types::{CUdevice_attribute, CUresult};

/// Two address ranges, each as address and size: one for small blocks and one for large blocks.
type Ranges = [(u64, u64); 2];

/// Chooses the type of the pool's memory, and reserves its addresses. The device's context must be current.
///
/// # Errors
///
/// `PoolError::BackendUnsupported` if the configuration requires exportable or RDMA-capable memory that the device
/// lacks.
pub(super) fn choose(setup: BackendSetup<'_>) -> Result<(Memory, Ranges), PoolError> {
    let config = setup.config;
    let no_ranges = Ranges::default();
    if config.kind != MemoryKind::Device {
        return match config.handle_use.exportable {
            true => {
                Err(PoolError::not_with_kind(config.kind, "be exported as descriptors (exportable:true)"))
            }
            false => Ok((Memory::Segments(config.kind), no_ranges)),
        };
    }
    let found = match config.expandable_segments {
        Some(false) => Err(ASKED_FOR.into()),
        _ => virtual_memory(setup)?,
    };
    match found {
        Ok(ranges) => Ok((Memory::Virtual, ranges)),
        Err(_) if !config.handle_use.exportable => Ok((Memory::Segments(MemoryKind::Device), no_ranges)),
        Err(lack) => Err(unsupported(format!("{lack}, and nothing else can be exported as descriptors"))),
    }
}

/// Reserves addresses for virtual memory. The inner error is the reason why virtual memory is unavailable. A device
/// may report support and still refuse the calls.
fn virtual_memory(setup: BackendSetup<'_>) -> Result<Result<Ranges, String>, PoolError> {
    let device = setup.device;
    let table = device.driver().table();
    if table.cuMemCreate.is_none() || table.cuMemAddressReserve.is_none() {
        return Ok(Err("the driver is older than CUDA 10.2, which introduced virtual memory".into()));
    }
    let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    if device.attribute(attribute)? == 0 {
        return Ok(Err(format!("{device} has no virtual memory management")));
    }
    check_handle_use(device, setup.config)?;
    let access = Access::new(Memory::Virtual, setup);
    let mut vmm = Vmm::new(device.driver(), &access);
    if let Some(refusal) = refusal_to_create(device, &access, &mut vmm)? {
        return Ok(Err(format!("{device} refuses virtual memory ({refusal})")));
    }
    let ranges = reserve_ranges(device, &access, &vmm);
    ranges.map(Ok).or_else(|error| match error.code() {
        NOT_SUPPORTED | NOT_PERMITTED | OUT_OF_MEMORY => Ok(Err(format!("no addresses are left ({error})"))),
        _ => Err(error.into()),
    })
}

/// Creates and releases the smallest handle. Returns the error if the driver refuses it; a lack of memory is not a
/// refusal.
fn refusal_to_create(
    device: &Device,
    access: &Access,
    vmm: &mut Vmm<'_>,
) -> Result<Option<DriverError>, DriverError> {
    match vmm.create(HANDLE_BYTES_MIN) {
        Ok(handle) => {
            let released = vmm.release(handle, HANDLE_BYTES_MIN);
            let left = (handle, HANDLE_BYTES_MIN);
            released.inspect_err(|_| leave(device, access, Some(left), Vec::new())).map(|()| None)
        }
        Err(Refusal::Driver(error)) if matches!(error.code(), NOT_SUPPORTED | NOT_PERMITTED) => {
            Ok(Some(error))
        }
        Err(_) => Ok(None),
    }
}

fn check_handle_use(device: &Device, config: &Config) -> Result<(), PoolError> {
    let handle_use = config.handle_use;
    let rdma = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
    let export = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
    let needed = [
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

fn unsupported(reason: String) -> PoolError {
    PoolError::BackendUnsupported { backend: BackendKind::Caching, reason }
}

fn reserve_ranges(device: &Device, access: &Access, vmm: &Vmm<'_>) -> Result<Ranges, DriverError> {
    let unit_bytes = (device.total_bytes() / RANGE_UNIT_BYTES + 1) * RANGE_UNIT_BYTES;
    let small = reserve_range(vmm, unit_bytes, SMALL_TIMES)?;
    let large = reserve_range(vmm, unit_bytes, LARGE_TIMES).inspect_err(|_| {
        if vmm.free(small.0, small.1).is_err() {
            leave(device, access, None, vec![small]);
        }
    })?;
    Ok([small, large])
}

/// Reserves `times` units of addresses, or fewer where other pools have used up the address space. Returns address
/// and size.
fn reserve_range(vmm: &Vmm<'_>, unit_bytes: u64, times: u64) -> Result<(u64, u64), DriverError> {
    let size_bytes = unit_bytes * times;
    match vmm.reserve(size_bytes) {
        Err(_) if times > 1 => reserve_range(vmm, unit_bytes, times / 2),
        reserved => Ok((reserved?, size_bytes)),
    }
}

const ASKED_FOR: &str = "the pool was asked for plain segments";

const NOT_SUPPORTED: CUresult = CUresult::CUDA_ERROR_NOT_SUPPORTED;
const NOT_PERMITTED: CUresult = CUresult::CUDA_ERROR_NOT_PERMITTED;
const OUT_OF_MEMORY: CUresult = CUresult::CUDA_ERROR_OUT_OF_MEMORY;

const HANDLE_BYTES_MIN: u64 = 2 << 20;
/// Multiples of the device's memory that the ranges reserve. Addresses are free, but the process has only 128 TiB of
/// them.
const SMALL_TIMES: u64 = 2;
const LARGE_TIMES: u64 = 4;
/// The unit to which the device's memory is rounded up.
const RANGE_UNIT_BYTES: u64 = 8 << 30;

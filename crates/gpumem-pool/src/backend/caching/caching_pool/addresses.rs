//! Reserves the heap's addresses where the driver supports virtual memory. Plain segments bring their own addresses. They replace virtual
//! memory where it is missing or refused, and hold all host-accessible memory.

use super::orphaned_heap::leave;
use super::probe;
use crate::backend::caching::access::{HeapMemory, MemoryAccess};
use crate::backend::caching::vmm::Vmm;
use crate::backend::source::BackendSetup;
use crate::config::{BackendKind, HandleUse, MemoryKind};
use crate::error::{PoolError, Unsupported};
use gpumem_device::Device;
use gpumem_device::internal::{PeerDevice, Verdict};
use gpumem_sys::DriverError;
use gpumem_sys::types::CUdevice_attribute;

/// Two address ranges, each as address and size: one for small blocks and one for large blocks.
type Ranges = [(u64, u64); 2];

pub(super) struct Chosen {
    pub(super) memory: HeapMemory,
    pub(super) ranges: Ranges,
    pub(super) lack: Option<String>,
}

/// Chooses the type of the pool's memory, and reserves its addresses. The device's context must be current.
///
/// # Errors
///
/// `PoolError::Unsupported` if the configuration requires exportable memory that the device lacks.
pub(super) fn choose(setup: BackendSetup<'_>) -> Result<Chosen, PoolError> {
    let config = setup.config;
    let segments = |lack| {
        let memory = HeapMemory::Segments(config.kind);
        Ok(Chosen { memory, ranges: Ranges::default(), lack })
    };
    if config.kind != MemoryKind::Device {
        return match config.handle_use.exportable {
            true => {
                Err(PoolError::not_with_kind(config.kind, "be exported as descriptors (exportable:true)"))
            }
            false => segments(None),
        };
    }
    let is_exported = config.handle_use.exportable;
    if config.expandable_segments == Some(false) {
        return if is_exported { Err(not_exported(ASKED_FOR)) } else { segments(None) };
    }
    let is_open = config.expandable_segments.is_none() && !is_exported;
    if is_open
        && config.is_copied_by_address
        && let Some(other) = PeerDevice::without_link_to(setup.device)?
    {
        return segments(Some(format!(
            "there is no link to {other}, and other libraries copy between devices by addresses, which needs plain memory then; \
             with expandable_segments:true such copies fail"
        )));
    }
    match virtual_memory(setup)? {
        Ok(ranges) => Ok(Chosen { memory: HeapMemory::Virtual, ranges, lack: None }),
        Err(lack) if is_exported => Err(not_exported(&lack)),
        Err(lack) => segments(Some(lack)),
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
    let handle_use = setup.config.handle_use;
    for (_, attribute, lack) in NEEDED.into_iter().filter(|(is_needed, ..)| is_needed(handle_use)) {
        if device.attribute(attribute)? == 0 {
            return Ok(Err(format!("{device} {lack}")));
        }
    }
    let access = MemoryAccess::new(HeapMemory::Virtual, setup);
    if let Some(refusal) = probe::refusal(device, &access)? {
        let of_cards = if handle_use.rdma { " for network cards (rdma:true)" } else { "" };
        return Ok(Err(format!("{device} refuses virtual memory{of_cards} ({refusal})")));
    }
    let ranges = reserve_ranges(device, &access, &Vmm::new(device.driver(), &access));
    ranges.map(Ok).or_else(|error| match Verdict::of(&error) {
        Verdict::Lack | Verdict::Shortage => Ok(Err(format!("no addresses are left ({error})"))),
        _ => Err(error.into()),
    })
}

/// A use of handles, the attribute that it needs, and the name of the missing capability.
type Need = (fn(HandleUse) -> bool, CUdevice_attribute, &'static str);

const NEEDED: [Need; 3] = [
    (
        |_| true,
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        "has no virtual memory management",
    ),
    (
        |handle_use| handle_use.rdma,
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
        "has no virtual memory that network cards can reach (rdma:true)",
    ),
    (
        |handle_use| handle_use.exportable,
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
        "has no memory that file descriptors can stand for",
    ),
];

fn not_exported(lack: &str) -> PoolError {
    let reason = format!("{lack}, and nothing else can be exported as descriptors");
    PoolError::Unsupported(Unsupported::Backend { backend: BackendKind::Caching, reason })
}

fn reserve_ranges(device: &Device, access: &MemoryAccess, vmm: &Vmm<'_>) -> Result<Ranges, DriverError> {
    let unit_bytes = (device.total_bytes() / RANGE_UNIT_BYTES + 1) * RANGE_UNIT_BYTES;
    let small = reserve_range(vmm, unit_bytes, SMALL_TIMES)?;
    let large = reserve_range(vmm, unit_bytes, LARGE_TIMES).inspect_err(|_| {
        if vmm.free(small.0, small.1).is_err() {
            leave(device, access, vec![small]);
        }
    })?;
    Ok([small, large])
}

/// Reserves `times` units of addresses, or fewer if other pools have used up the address space. Returns address and size.
fn reserve_range(vmm: &Vmm<'_>, unit_bytes: u64, times: u64) -> Result<(u64, u64), DriverError> {
    let size_bytes = unit_bytes * times;
    match vmm.reserve(size_bytes) {
        Err(_) if times > 1 => reserve_range(vmm, unit_bytes, times / 2),
        reserved => Ok((reserved?, size_bytes)),
    }
}

const ASKED_FOR: &str = "the pool was asked for plain segments";

/// Multiples of the device's memory that the ranges reserve. Addresses are free, but the process has only 128 TiB of
/// them.
const SMALL_TIMES: u64 = 2;
const LARGE_TIMES: u64 = 4;
const RANGE_UNIT_BYTES: u64 = 8 << 30;

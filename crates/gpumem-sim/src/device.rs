//! Devices: their attributes, and the objects that they own.
//!
//! A device of the simulator has the attributes of an H200, except its memory size and whether it is integrated. Capabilities that the simulator lacks are
//! reported as 0, so that programs use their alternative.

#[allow(unsafe_code)]
pub(crate) mod compiler_options;
pub(crate) mod context;
#[allow(unsafe_code)]
pub(crate) mod declared;
pub(crate) mod fat_binary;
pub(crate) mod image;
#[allow(unsafe_code)]
pub(crate) mod launch;
pub(crate) mod library;
pub(crate) mod linker;
pub(crate) mod module;
pub(crate) mod settings;

use crate::backing::pages;
use gpumem_sys::types::CUdevice_attribute as Attribute;

/// The name of every device.
pub(crate) const NAME: &str = "gpumem simulated device";

/// A number that identifies a device among all instances.
pub(crate) fn uuid(instance: u64, device: usize) -> [u8; 16] {
    let mut bytes = *b"gpumem\0\0\0\0\0\0\0\0\0\0";
    bytes[6..14].copy_from_slice(&instance.to_be_bytes());
    bytes[14..].copy_from_slice(&(device as u16).to_be_bytes());
    bytes
}

/// The position of a device on the bus, as in its attributes, in the form that tools print.
pub(crate) fn bus_name(ordinal: usize) -> String {
    format!("0000:{:02X}:00.0", ordinal + 1)
}

/// The shared memory of a block by default, and at most.
pub(crate) const MULTIPROCESSORS: i32 = 132;
pub(crate) const SHARED_BYTES: i32 = 48 << 10;
pub(crate) const SHARED_BYTES_OPTIN: i32 = 227 << 10;

/// The largest grid and block.
pub(crate) const GRID_MAX: [u32; 3] = [2_147_483_647, 65_535, 65_535];
pub(crate) const BLOCK_MAX: [u32; 3] = [1024, 1024, 64];
pub(crate) const BLOCK_THREADS_MAX: u64 = 1024;

/// An attribute of any device; 0 for a missing capability, `None` for an unknown attribute.
pub(crate) fn attribute(attribute: Attribute, ordinal: usize, is_integrated: bool) -> Option<i32> {
    if attribute.0 == 0 || attribute.0 >= Attribute::CU_DEVICE_ATTRIBUTE_MAX.0 {
        return None;
    }
    if attribute == Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID {
        return Some(0);
    }
    if attribute == Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID {
        return Some(ordinal as i32 + 1);
    }
    if attribute == Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED {
        return Some(i32::from(is_integrated));
    }
    if NEEDS_PAGES.contains(&attribute) {
        return Some(i32::from(pages::IS_SUPPORTED));
    }
    let known = ATTRIBUTES.iter().find(|(known, _)| *known == attribute);
    Some(known.map_or(0, |(_, value)| *value))
}

/// Attributes that require the files of `pages`. Of the ways to share a pool, descriptors have number 1; an H200 also supports
/// fabric handles.
const NEEDS_PAGES: &[Attribute] = &[
    Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
    Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
    Attribute::CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES,
    Attribute::CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED,
];

const ATTRIBUTES: &[(Attribute, i32)] = &[
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2_147_483_647),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65_535),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65_535),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, SHARED_BYTES),
    (Attribute::CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65_536),
    (Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_PITCH, i32::MAX),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65_536),
    (Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1_980_000),
    (Attribute::CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512),
    (Attribute::CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, MULTIPROCESSORS),
    (Attribute::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT, 512),
    (Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_ECC_ENABLED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 60 << 20),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048),
    (Attribute::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3),
    (Attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32),
    (Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9),
    (Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0),
    (Attribute::CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 228 << 10),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65_536),
    (Attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, SHARED_BYTES_OPTIN),
    (Attribute::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32),
    (Attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED, 1),
    (Attribute::CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED, 1),
];

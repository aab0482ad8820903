//! The address space: where devices and reserved ranges lie.

/// The first device address: beyond what a host's pointer can be, and with the bit set that sends ARM processors
/// (which ignore the top byte) into the kernel's half, so that following one faults everywhere.
pub(crate) const DEVICE_SPACE: u64 = 0x4080_0000_0000_0000;

/// The addresses of one device, and so the most memory it can have (half of it, so that addresses never run out).
pub(crate) const DEVICE_SPACE_BYTES: u64 = 1 << 43;

/// The first address of a device of an instance.
pub(crate) fn device_space(slot: usize, device: usize) -> u64 {
    DEVICE_SPACE + ((slot as u64) << 49) + device as u64 * DEVICE_SPACE_BYTES
}

pub(crate) fn is_device_address(address: u64) -> bool {
    address >= DEVICE_SPACE
}

/// The first address of the ranges that an instance's programs reserve, behind every device's.
pub(crate) fn reserved_space(slot: usize) -> u64 {
    DEVICE_SPACE + (1 << 56) + ((slot as u64) << 49)
}

/// The addresses that an instance's programs can reserve.
pub(crate) const RESERVED_SPACE_BYTES: u64 = 1 << 49;

/// The unit in which a device's memory is counted.
pub(crate) const CHUNK_BYTES: u64 = 2 << 20;

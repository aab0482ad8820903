//! The device memory that another process has allocated.

pub(crate) mod context;
pub(crate) mod launch;
pub(crate) mod library;
pub(crate) mod linker;
pub(crate) mod module;
pub(crate) mod occupancy;
pub(crate) mod peers;
#[allow(unsafe_code)]
pub(crate) mod view;

use crate::machine::Machine;

impl Machine {
    /// Lets another process allocate up to this much memory of a device. Returns the allocated bytes.
    pub(crate) fn take_memory(&mut self, device: u32, size_bytes: u64) -> u64 {
        let Some(found) = self.devices.get_mut(device as usize) else { return 0 };
        let taken_bytes = found.take_for_others(size_bytes);
        self.managed_fit(device as usize);
        taken_bytes
    }

    /// The device memory that another process has allocated.
    pub(crate) fn others_bytes(&self, device: u32) -> u64 {
        self.devices.get(device as usize).map_or(0, |found| found.others_bytes)
    }

    /// The device memory that this process has allocated, without unified memory.
    pub(crate) fn own_bytes(&self, device: u32) -> u64 {
        self.devices.get(device as usize).map_or(0, |found| found.reserved_bytes - found.others_bytes)
    }

    /// Lets another process free up to this much memory. Returns the freed bytes.
    pub(crate) fn return_memory(&mut self, device: u32, size_bytes: u64) -> u64 {
        self.devices.get_mut(device as usize).map_or(0, |found| found.return_from_others(size_bytes))
    }
}

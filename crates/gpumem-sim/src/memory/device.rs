//! [`Device`]: the memory of a device, and the objects that it belongs to.

use crate::backing::{Backing, Spares};
use crate::base::address::{DEVICE_SPACE_BYTES, device_space};
use crate::base::codes::{Answer, OUT_OF_MEMORY};
use crate::base::extents::Extents;
use crate::base::handle::Handle;
use crate::memory::plain::{GAP_BYTES, Plain};

/// One device.
pub(crate) struct Device {
    pub(crate) total_bytes: u64,
    /// Plain chunks, the pools' segments, handles, and the memory of other processes.
    pub(crate) reserved_bytes: u64,
    /// The memory of other processes.
    pub(crate) others_bytes: u64,
    /// Free addresses.
    pub(crate) space: Extents,
    pub(crate) spares: Spares,
    pub(crate) plain: Plain,
    pub(crate) primary: Option<Handle>,
    pub(crate) primary_count: u32,
    pub(crate) primary_flags: u32,
    pub(crate) default_pool: Handle,
    /// The pool that `cuMemAllocAsync` allocates from.
    pub(crate) pool: Handle,
}

impl Device {
    pub(crate) fn new(slot: usize, index: usize, total_bytes: u64, default_pool: Handle) -> Self {
        let mut space = Extents::default();
        space.give(device_space(slot, index), DEVICE_SPACE_BYTES);
        Self {
            total_bytes,
            reserved_bytes: 0,
            others_bytes: 0,
            space,
            spares: Spares::default(),
            plain: Plain::default(),
            primary: None,
            primary_count: 0,
            primary_flags: 0,
            default_pool,
            pool: default_pool,
        }
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        self.total_bytes - self.reserved_bytes
    }

    pub(crate) fn take_for_others(&mut self, size_bytes: u64) -> u64 {
        let taken_bytes = size_bytes.min(self.free_bytes());
        self.others_bytes += taken_bytes;
        self.reserved_bytes += taken_bytes;
        taken_bytes
    }

    pub(crate) fn return_from_others(&mut self, size_bytes: u64) -> u64 {
        let returned_bytes = size_bytes.min(self.others_bytes);
        self.others_bytes -= returned_bytes;
        self.reserved_bytes -= returned_bytes;
        returned_bytes
    }
}

impl Device {
    /// Allocates addresses with memory. The caller has had the memory admitted.
    pub(crate) fn map(&mut self, size_bytes: u64) -> Answer<(u64, Backing)> {
        self.map_with(size_bytes, |spares| spares.take(size_bytes))
    }

    /// Like `map`, with memory supplied by the caller.
    pub(crate) fn map_with(
        &mut self,
        size_bytes: u64,
        make: impl FnOnce(&mut Spares) -> Answer<Backing>,
    ) -> Answer<(u64, Backing)> {
        let mapped = self.space.take(size_bytes + GAP_BYTES).ok_or(OUT_OF_MEMORY).and_then(|base| {
            make(&mut self.spares)
                .map(|backing| (base, backing))
                .inspect_err(|_| self.space.give(base, size_bytes + GAP_BYTES))
        });
        mapped.inspect_err(|_| self.reserved_bytes -= size_bytes)
    }

    /// Frees the result of [`Device::map`], including its capacity.
    pub(crate) fn unmap(&mut self, base: u64, size_bytes: u64, backing: Backing) {
        self.space.give(base, size_bytes + GAP_BYTES);
        self.reserved_bytes -= size_bytes;
        self.spares.give(backing);
    }
}

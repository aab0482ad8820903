//! Virtual memory management: reserved addresses, handles of physical memory, and their mappings.
//!
//! A handle is memory of one device. It counts against the device from its creation until the program has released it and no
//! mapping is left. A mapping is an allocation like any other, in both views of `memory.rs` from the call on: mapping and
//! unmapping do not wait, so work queued for an address that is unmapped faults when it runs. A mapping is accessible to no
//! device until access is given.
//!
//! Exportable handles are in `shared`.

use crate::backing::pages::{AddressRange, PageFile};
use crate::base::address::{CHUNK_BYTES, DEVICE_SPACE_BYTES, RESERVED_SPACE_BYTES, reserved_space};
use crate::base::codes::{Answer, INVALID_VALUE, OUT_OF_MEMORY};
use crate::base::extents::Extents;
use crate::base::handle::{Handle, Kind, Slab};
use crate::memory::Allocation;
use crate::memory::allocated_by::AllocatedBy;
use crate::memory::virtual_memory_shared::Shared;
use crate::memory::window::Windows;
use gpumem_sys::types::CUmemAllocationProp_st__bindgen_ty_1 as AllocationFlags;
use std::collections::BTreeMap;

/// The reservations and handles of an instance.
pub(crate) struct VirtualMemory {
    pub(crate) reservations: BTreeMap<u64, Reservation>,
    pub(crate) handles: Slab<Physical>,
    /// Addresses that are not reserved.
    pub(crate) space: Extents,
    /// Created with the first handle; its size is that of all pieces taken.
    pub(crate) file: Option<PageFile>,
    /// The parts of the file that no handle uses.
    pub(crate) pieces: Extents,
    pub(crate) windows: Windows,
}

/// A reserved range of addresses, of the program and of this process.
pub(crate) struct Reservation {
    pub(crate) size_bytes: u64,
    pub(crate) range: AddressRange,
    /// The range taken from the space, which also contains the alignment and a gap behind it.
    pub(crate) taken: (u64, u64),
}

/// Physical memory of one device.
pub(crate) struct Physical {
    pub(crate) device: usize,
    pub(crate) size_bytes: u64,
    /// The offset in the instance's file. A handle with a file of its own has an offset too, so that offsets are unique.
    pub(crate) file_offset_bytes: u64,
    /// The handle's own file, if it is exportable.
    pub(crate) shared: Option<Shared>,
    /// The number of the call that created it.
    pub(crate) call: u64,
    pub(crate) flags: AllocationFlags,
    /// The number of references that the program must release.
    pub(crate) holder_count: u32,
    pub(crate) mapping_count: u32,
}

impl VirtualMemory {
    pub(crate) fn new(slot: usize, instance: u64) -> Self {
        let (mut space, mut pieces) = (Extents::default(), Extents::default());
        space.give(reserved_space(slot), RESERVED_SPACE_BYTES);
        pieces.give(0, DEVICE_SPACE_BYTES);
        Self {
            reservations: BTreeMap::new(),
            handles: Slab::new(Kind::Physical, instance),
            space,
            file: None,
            pieces,
            windows: Windows::default(),
        }
    }

    /// The number of handles that the program has not released.
    pub(crate) fn handle_count(&self) -> usize {
        self.handles.iter().filter(|(_, physical)| physical.holder_count > 0).count()
    }

    /// The handles without a mapping that the program has not released: device, size, and the call that created each.
    pub(crate) fn unmapped(&self) -> impl Iterator<Item = (Handle, usize, u64, u64)> {
        let is_unmapped = |physical: &Physical| physical.holder_count > 0 && physical.mapping_count == 0;
        let unmapped = self.handles.iter().filter(move |(_, physical)| is_unmapped(physical));
        unmapped.map(|(handle, physical)| (handle, physical.device, physical.size_bytes, physical.call))
    }

    /// A handle with a reference of the program. A handle kept by mappings only is not found.
    pub(crate) fn held(&mut self, handle: Handle) -> Answer<&mut Physical> {
        self.handles.get_mut(handle).filter(|physical| physical.holder_count > 0).ok_or(INVALID_VALUE)
    }

    /// The offset of a mapping's bytes in the file, which is the same for all mappings of its handle.
    pub(crate) fn file_offset_of(&self, mapping: &Allocation) -> Option<u64> {
        let AllocatedBy::Mapped { handle, .. } = mapping.allocated_by else { return None };
        self.handles.get(handle).map(|physical| physical.file_offset_bytes)
    }

    /// The reservation that contains a whole range of addresses.
    pub(crate) fn reservation(&self, base: u64, size_bytes: u64) -> Answer<(u64, &Reservation)> {
        let (&start, found) = self.reservations.range(..=base).next_back().ok_or(INVALID_VALUE)?;
        let end = base.checked_add(size_bytes).ok_or(INVALID_VALUE)?;
        if end <= start + found.size_bytes { Ok((start, found)) } else { Err(INVALID_VALUE) }
    }
}

impl VirtualMemory {
    pub(crate) fn create(
        &mut self,
        device: usize,
        size_bytes: u64,
        flags: AllocationFlags,
        shared: Option<Shared>,
    ) -> Answer<Handle> {
        if self.file.is_none() {
            self.file = Some(PageFile::new(DEVICE_SPACE_BYTES)?);
        }
        let file_offset_bytes = self.pieces.take(size_bytes).ok_or(OUT_OF_MEMORY)?;
        let physical = Physical {
            device,
            size_bytes,
            file_offset_bytes,
            shared,
            call: 0,
            flags,
            holder_count: 1,
            mapping_count: 0,
        };
        let room = self.handles.insert(physical);
        room.inspect_err(|_| self.pieces.give(file_offset_bytes, size_bytes))
    }
}

/// The unit of sizes and addresses, both the minimum and the recommended one.
pub(crate) const GRANULARITY_BYTES: u64 = CHUNK_BYTES;

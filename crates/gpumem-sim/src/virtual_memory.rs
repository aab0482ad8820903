//! Virtual memory management: reserved addresses, handles of physical memory, and what is mapped where.
//!
//! A handle is memory of one device; it counts against the device from its creation until the program has released
//! it and no mapping is left. A mapping is an allocation like any other, in both views of [`super::memory`] from the
//! call on: mapping and unmapping wait for nothing, so work that is still queued for an address that is unmapped
//! faults when it runs. A mapping belongs to no device until access is given.
//!
//! Handles that are to be shared are in `shared`.

mod shared;

use super::call_cost::{
    ACCESS_NS_PER_HANDLE, ACCESS_NS_PER_MIB, CREATE_NS_PER_MIB, RELEASE_NS_PER_MIB, UNMAP_NS_PER_HANDLE,
    UNMAP_NS_PER_MIB,
};
use super::codes::{Answer, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};
use super::extents::Extents;
use super::handle::{Handle, Kind, Slab};
use super::machine::Machine;
use super::memory::{Allocation, DEVICE_SPACE_BYTES, Memory, RESERVED_SPACE_BYTES, reserved_space};
use super::owner::Owner;
use super::pages::{self, AddressRange, PageFile};
use super::plain::{CHUNK_BYTES, GAP_BYTES};
use super::window::Windows;
use gpumem_sys::types::{
    CUmemAccess_flags as Access, CUmemAccessDesc, CUmemAllocationHandleType as HandleType,
    CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1 as AllocationFlags, CUmemAllocationType,
    CUmemLocation, CUmemLocationType,
};
use shared::Shared;
use std::collections::BTreeMap;

/// What an instance has reserved and created.
pub(super) struct VirtualMemory {
    pub(super) reservations: BTreeMap<u64, Reservation>,
    handles: Slab<Physical>,
    /// Addresses that are not reserved.
    space: Extents,
    /// Made with the first handle, as many bytes as `pieces` gives out.
    file: Option<PageFile>,
    /// What no handle has of the file.
    pieces: Extents,
    pub(super) windows: Windows,
}

/// A range of addresses, the program's and this process's.
pub(super) struct Reservation {
    size_bytes: u64,
    pub(super) range: AddressRange,
    /// What was taken from the space for it: more than it has, for its alignment and a gap behind it.
    taken: (u64, u64),
}

/// Physical memory of one device.
struct Physical {
    device: usize,
    size_bytes: u64,
    /// Its place in the instance's file; also of a handle whose bytes are elsewhere, so that no two have the same.
    file_offset_bytes: u64,
    /// Its own file, if it is to be shared.
    shared: Option<Shared>,
    /// The call that created it.
    call: u64,
    flags: AllocationFlags,
    /// How often the program has to release it.
    holder_count: u32,
    mapping_count: u32,
}

impl VirtualMemory {
    pub(super) fn new(slot: usize, instance: u64) -> Self {
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

    /// The handles that the program has to release yet.
    pub(super) fn handle_count(&self) -> usize {
        self.handles.iter().filter(|(_, physical)| physical.holder_count > 0).count()
    }

    /// The handles that the program has to release yet and that are mapped nowhere: device, size, and the call
    /// that created each.
    pub(super) fn unmapped(&self) -> impl Iterator<Item = (Handle, usize, u64, u64)> {
        let is_unmapped = |physical: &Physical| physical.holder_count > 0 && physical.mapping_count == 0;
        let unmapped = self.handles.iter().filter(move |(_, physical)| is_unmapped(physical));
        unmapped.map(|(handle, physical)| (handle, physical.device, physical.size_bytes, physical.call))
    }

    /// A handle that the program holds; one that only mappings keep is no longer its own.
    fn held(&mut self, handle: Handle) -> Answer<&mut Physical> {
        self.handles.get_mut(handle).filter(|physical| physical.holder_count > 0).ok_or(INVALID_VALUE)
    }

    /// Where the bytes of a mapping lie in the file, which is the same for all mappings of its handle.
    pub(super) fn file_offset_of(&self, mapping: &Allocation) -> Option<u64> {
        let Owner::Mapped { handle, .. } = mapping.owner else { return None };
        self.handles.get(handle).map(|physical| physical.file_offset_bytes)
    }

    /// The reservation that a range of addresses lies in, whole.
    pub(super) fn reservation(&self, base: u64, size_bytes: u64) -> Answer<(u64, &Reservation)> {
        let (&start, found) = self.reservations.range(..=base).next_back().ok_or(INVALID_VALUE)?;
        let end = base.checked_add(size_bytes).ok_or(INVALID_VALUE)?;
        if end <= start + found.size_bytes { Ok((start, found)) } else { Err(INVALID_VALUE) }
    }
}

impl Machine {
    /// Addresses without memory.
    pub(super) fn address_reserve(&mut self, size_bytes: u64, alignment_bytes: u64) -> Answer<u64> {
        check_size(size_bytes)?;
        if alignment_bytes != 0 && !alignment_bytes.is_power_of_two() {
            return Err(INVALID_VALUE);
        }
        let alignment_bytes = alignment_bytes.max(CHUNK_BYTES);
        let slack_bytes = alignment_bytes - CHUNK_BYTES + GAP_BYTES;
        let taken_bytes = size_bytes.checked_add(slack_bytes).ok_or(OUT_OF_MEMORY)?;
        let range = AddressRange::reserve(size_bytes)?;
        let all = &mut self.virtual_memory;
        let taken_base = all.space.take(taken_bytes).ok_or(OUT_OF_MEMORY)?;
        let base = taken_base.next_multiple_of(alignment_bytes);
        let reservation = Reservation { size_bytes, range, taken: (taken_base, taken_bytes) };
        all.reservations.insert(base, reservation);
        Ok(base)
    }

    /// Gives a reservation back, whole and with nothing mapped in it.
    pub(super) fn address_free(&mut self, base: u64, size_bytes: u64) -> Answer<()> {
        let all = &mut self.virtual_memory;
        let reservation = all.reservations.get(&base).ok_or(INVALID_VALUE)?;
        if reservation.size_bytes != size_bytes || !is_vacant(&self.memory, base, size_bytes) {
            return Err(INVALID_VALUE);
        }
        let (taken_base, taken_bytes) = reservation.taken;
        all.space.give(taken_base, taken_bytes);
        all.reservations.remove(&base);
        Ok(())
    }

    /// Physical memory without an address.
    pub(super) fn physical_create(
        &mut self,
        size_bytes: u64,
        properties: &CUmemAllocationProp,
    ) -> Answer<Handle> {
        let device = self.check_properties(properties)?;
        check_size(size_bytes)?;
        self.admit(device, size_bytes)?;
        self.charge_pages(size_bytes, CREATE_NS_PER_MIB);
        let shared = match properties.requestedHandleTypes {
            HandleType::CU_MEM_HANDLE_TYPE_NONE => Ok(None),
            _ => Shared::new(self.instance, device, size_bytes).map(Some),
        };
        let all = &mut self.virtual_memory;
        let created = shared.and_then(|shared| all.create(device, size_bytes, properties.allocFlags, shared));
        let handle = created.inspect_err(|_| self.devices[device].reserved_bytes -= size_bytes)?;
        let call = self.made_here();
        if let Some(physical) = self.virtual_memory.handles.get_mut(handle) {
            physical.call = call;
        }
        Ok(handle)
    }

    /// The device that properties name; what they ask for otherwise has to be what there is.
    pub(super) fn check_properties(&self, properties: &CUmemAllocationProp) -> Answer<usize> {
        if properties.type_ != CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED {
            return Err(INVALID_VALUE);
        }
        let handle_types = properties.requestedHandleTypes;
        let is_known = matches!(
            handle_types,
            HandleType::CU_MEM_HANDLE_TYPE_NONE | HandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        );
        if !is_known || !pages::IS_SUPPORTED {
            return Err(NOT_SUPPORTED);
        }
        self.location_device(&properties.location)
    }

    fn location_device(&self, location: &CUmemLocation) -> Answer<usize> {
        match location.type_ {
            CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE => self.device_index(location.id),
            CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID => Err(INVALID_VALUE),
            _ => Err(NOT_SUPPORTED),
        }
    }

    /// One holder less; afterwards the handle is not the program's if that was the last.
    pub(super) fn physical_release(&mut self, handle: Handle) -> Answer<()> {
        self.virtual_memory.held(handle)?.holder_count -= 1;
        self.physical_free_if_unused(handle);
        Ok(())
    }

    fn physical_free_if_unused(&mut self, handle: Handle) {
        let all = &mut self.virtual_memory;
        let is_used = |physical: &Physical| physical.holder_count > 0 || physical.mapping_count > 0;
        if all.handles.get(handle).is_none_or(is_used) {
            return;
        }
        let Some(physical) = all.handles.remove(handle) else { return };
        if let (Some(file), None) = (&all.file, &physical.shared) {
            file.discard(physical.file_offset_bytes, physical.size_bytes);
        }
        all.pieces.give(physical.file_offset_bytes, physical.size_bytes);
        if !physical.shared.is_some_and(|shared| shared.is_imported) {
            self.devices[physical.device].reserved_bytes -= physical.size_bytes;
        }
        self.memory.origins.forget(physical.call);
        self.note_physical_gone(physical.file_offset_bytes, physical.size_bytes);
        self.charge_pages(physical.size_bytes, RELEASE_NS_PER_MIB);
    }

    /// The handle behind an address, with one holder more.
    pub(super) fn physical_retain(&mut self, address: u64) -> Answer<Handle> {
        let found = self.memory.known(address, 1).ok_or(INVALID_VALUE)?;
        let Owner::Mapped { handle, .. } = found.owner else { return Err(INVALID_VALUE) };
        self.virtual_memory.handles.get_mut(handle).ok_or(INVALID_VALUE)?.holder_count += 1;
        Ok(handle)
    }

    pub(super) fn physical_properties(&mut self, handle: Handle) -> Answer<CUmemAllocationProp> {
        let physical = self.virtual_memory.held(handle)?;
        Ok(CUmemAllocationProp {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: physical.handle_types(),
            location: CUmemLocation {
                type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                id: physical.device as i32,
            },
            win32HandleMetaData: core::ptr::null_mut(),
            allocFlags: physical.flags,
        })
    }

    /// Puts a handle, whole, at reserved addresses that are vacant.
    pub(super) fn map(&mut self, base: u64, size_bytes: u64, handle: Handle) -> Answer<()> {
        check_size(size_bytes)?;
        if !base.is_multiple_of(CHUNK_BYTES) || !is_vacant(&self.memory, base, size_bytes) {
            return Err(INVALID_VALUE);
        }
        let physical = self.virtual_memory.held(handle)?;
        let device = physical.device;
        if physical.size_bytes != size_bytes {
            return Err(INVALID_VALUE);
        }
        let (start, reservation) = self.virtual_memory.reservation(base, size_bytes)?;
        let bytes = reservation.range.bytes().at(base - start);
        self.virtual_memory.held(handle)?.mapping_count += 1;
        let owner = Owner::Mapped { handle, devices: 0 };
        let call = self.made_here();
        self.memory.insert(Allocation {
            call,
            base,
            size_bytes,
            bytes,
            device,
            context: Handle::NONE,
            owner,
            born: None,
        });
        self.note_mapped(base);
        Ok(())
    }

    /// Takes whole mappings away, one or several in a row. What is queued for them faults when it runs.
    pub(super) fn unmap(&mut self, base: u64, size_bytes: u64) -> Answer<()> {
        let mappings = self.mappings(base, size_bytes)?;
        self.close_windows(base, size_bytes)?;
        self.charge(UNMAP_NS_PER_HANDLE * (mappings.len() as u64 - 1));
        self.charge_pages(size_bytes, UNMAP_NS_PER_MIB);
        for mapping in mappings {
            self.note_unmapped(&mapping);
            self.memory.remove(mapping.base);
            let Owner::Mapped { handle, .. } = mapping.owner else { continue };
            if let Some(physical) = self.virtual_memory.handles.get_mut(handle) {
                physical.mapping_count -= 1;
            }
            self.physical_free_if_unused(handle);
        }
        Ok(())
    }

    /// Says which devices may use whole mappings, one or several in a row; devices that are not named keep what they
    /// have.
    pub(super) fn set_access(
        &mut self,
        base: u64,
        size_bytes: u64,
        wishes: &[CUmemAccessDesc],
    ) -> Answer<()> {
        let mappings = self.mappings(base, size_bytes)?;
        let (mut granted, mut withdrawn) = (0, 0);
        for wish in wishes {
            let device = self.location_device(&wish.location)?;
            mappings.iter().try_for_each(|mapping| self.check_reach(device, mapping.device))?;
            let bit = 1 << device;
            match wish.flags {
                Access::CU_MEM_ACCESS_FLAGS_PROT_READWRITE => granted |= bit,
                Access::CU_MEM_ACCESS_FLAGS_PROT_NONE => withdrawn |= bit,
                Access::CU_MEM_ACCESS_FLAGS_PROT_READ => return Err(NOT_SUPPORTED),
                _ => return Err(INVALID_VALUE),
            }
        }
        self.charge(ACCESS_NS_PER_HANDLE * (mappings.len() as u64 - 1));
        self.charge_pages(size_bytes, ACCESS_NS_PER_MIB);
        for mapping in mappings {
            if let Owner::Mapped { handle, devices } = mapping.owner {
                let owner = Owner::Mapped { handle, devices: (devices | granted) & !withdrawn };
                self.memory.insert(Allocation { owner, ..mapping });
            }
        }
        Ok(())
    }

    /// What a device may do with a mapped address.
    pub(super) fn access(&self, address: u64, location: &CUmemLocation) -> Answer<Access> {
        let device = self.location_device(location)?;
        match self.memory.known(address, 1).map(|found| found.owner) {
            Some(Owner::Mapped { devices, .. }) if devices >> device & 1 == 1 => {
                Ok(Access::CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            }
            Some(Owner::Mapped { .. }) => Ok(Access::CU_MEM_ACCESS_FLAGS_PROT_NONE),
            _ => Err(INVALID_VALUE),
        }
    }

    /// The mappings that make up a range, whole and without a gap.
    fn mappings(&self, base: u64, size_bytes: u64) -> Answer<Vec<Allocation>> {
        check_size(size_bytes)?;
        let end = base.checked_add(size_bytes).ok_or(INVALID_VALUE)?;
        let found: Vec<Allocation> = self.memory.at_call.range(base..end).map(|(_, found)| *found).collect();
        let mut at = base;
        for mapping in found.iter().filter(|mapping| mapping.is_mapped()) {
            if mapping.base != at {
                return Err(INVALID_VALUE);
            }
            at = mapping.end();
        }
        if at == end { Ok(found) } else { Err(INVALID_VALUE) }
    }
}

impl VirtualMemory {
    fn create(
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

/// Whether nothing is mapped in a range of reserved addresses.
fn is_vacant(memory: &Memory, base: u64, size_bytes: u64) -> bool {
    let last = base.saturating_add(size_bytes - 1);
    memory.at_call.range(..=last).next_back().is_none_or(|(_, found)| found.end() <= base)
}

/// Everything is a multiple of the granularity.
fn check_size(size_bytes: u64) -> Answer<()> {
    if size_bytes > 0 && size_bytes.is_multiple_of(CHUNK_BYTES) { Ok(()) } else { Err(INVALID_VALUE) }
}

/// The unit of sizes and addresses, the least and the recommended.
pub(super) const GRANULARITY_BYTES: u64 = CHUNK_BYTES;

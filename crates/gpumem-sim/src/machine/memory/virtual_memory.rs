//! Virtual memory management: reservations, handles, mappings and access.

use crate::backing::pages;
use crate::backing::pages::AddressRange;
use crate::base::address::CHUNK_BYTES;
use crate::base::codes::{Answer, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::base::handle::Handle;
use crate::machine::Machine;
use crate::machine::call_cost::{
    ACCESS_NS_PER_HANDLE, ACCESS_NS_PER_MIB, CREATE_NS_PER_MIB, RELEASE_NS_PER_MIB, UNMAP_NS_PER_HANDLE,
    UNMAP_NS_PER_MIB,
};
use crate::memory::allocated_by::AllocatedBy;
use crate::memory::plain::GAP_BYTES;
use crate::memory::virtual_memory::{Physical, Reservation};
use crate::memory::virtual_memory_shared::Shared;
use crate::memory::{Allocation, Memory};
use gpumem_sys::types::{
    CUmemAccess_flags as Access, CUmemAccessDesc, CUmemAllocationHandleType as HandleType,
    CUmemAllocationProp, CUmemAllocationType, CUmemLocation, CUmemLocationType,
};

impl Machine {
    /// Reserves addresses without memory.
    pub(crate) fn address_reserve(&mut self, size_bytes: u64, alignment_bytes: u64) -> Answer<u64> {
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

    /// Frees a whole reservation in which nothing is mapped.
    pub(crate) fn address_free(&mut self, base: u64, size_bytes: u64) -> Answer<()> {
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

    /// Creates physical memory without an address.
    pub(crate) fn physical_create(
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

    /// The device that the properties name. Other properties must have supported values.
    pub(crate) fn check_properties(&self, properties: &CUmemAllocationProp) -> Answer<usize> {
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

    /// Releases one reference of the program. After the last one, the program cannot use the handle.
    pub(crate) fn physical_release(&mut self, handle: Handle) -> Answer<()> {
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

    /// The handle that is mapped at an address, with one additional reference.
    pub(crate) fn physical_retain(&mut self, address: u64) -> Answer<Handle> {
        let found = self.memory.known(address, 1).ok_or(INVALID_VALUE)?;
        let AllocatedBy::Mapped { handle, .. } = found.allocated_by else { return Err(INVALID_VALUE) };
        self.virtual_memory.handles.get_mut(handle).ok_or(INVALID_VALUE)?.holder_count += 1;
        Ok(handle)
    }

    pub(crate) fn physical_properties(&mut self, handle: Handle) -> Answer<CUmemAllocationProp> {
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

    /// Maps a whole handle at reserved addresses where nothing is mapped.
    pub(crate) fn map(&mut self, base: u64, size_bytes: u64, handle: Handle) -> Answer<()> {
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
        let allocated_by = AllocatedBy::Mapped { handle, devices: 0 };
        let call = self.made_here();
        self.memory.insert(Allocation {
            call,
            base,
            size_bytes,
            bytes,
            device,
            context: Handle::NONE,
            allocated_by,
            born: None,
        });
        self.note_mapped(base);
        Ok(())
    }

    /// Unmaps one or several adjacent mappings, each as a whole. Queued work that accesses them faults when it runs.
    pub(crate) fn unmap(&mut self, base: u64, size_bytes: u64) -> Answer<()> {
        let mappings = self.mappings(base, size_bytes)?;
        self.close_windows(base, size_bytes)?;
        self.charge(UNMAP_NS_PER_HANDLE * (mappings.len() as u64 - 1));
        self.charge_pages(size_bytes, UNMAP_NS_PER_MIB);
        for mapping in mappings {
            self.note_unmapped(&mapping);
            self.memory.remove(mapping.base);
            let AllocatedBy::Mapped { handle, .. } = mapping.allocated_by else { continue };
            if let Some(physical) = self.virtual_memory.handles.get_mut(handle) {
                physical.mapping_count -= 1;
            }
            self.physical_free_if_unused(handle);
        }
        Ok(())
    }

    /// Sets the devices' access to one or several adjacent mappings, each as a whole. Devices that are not named keep their
    /// access.
    pub(crate) fn set_access(
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
            if let AllocatedBy::Mapped { handle, devices } = mapping.allocated_by {
                let allocated_by = AllocatedBy::Mapped { handle, devices: (devices | granted) & !withdrawn };
                self.memory.insert(Allocation { allocated_by, ..mapping });
            }
        }
        Ok(())
    }

    /// The access of a device to a mapped address.
    pub(crate) fn access(&self, address: u64, location: &CUmemLocation) -> Answer<Access> {
        let device = self.location_device(location)?;
        match self.memory.known(address, 1).map(|found| found.allocated_by) {
            Some(AllocatedBy::Mapped { devices, .. }) if devices >> device & 1 == 1 => {
                Ok(Access::CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            }
            Some(AllocatedBy::Mapped { .. }) => Ok(Access::CU_MEM_ACCESS_FLAGS_PROT_NONE),
            _ => Err(INVALID_VALUE),
        }
    }

    /// The mappings of a range, each as a whole and without a gap.
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

/// True if a range of reserved addresses has no mapping.
fn is_vacant(memory: &Memory, base: u64, size_bytes: u64) -> bool {
    let last = base.saturating_add(size_bytes - 1);
    memory.at_call.range(..=last).next_back().is_none_or(|(_, found)| found.end() <= base)
}

/// Addresses and sizes are multiples of the granularity.
pub(crate) fn check_size(size_bytes: u64) -> Answer<()> {
    if size_bytes > 0 && size_bytes.is_multiple_of(CHUNK_BYTES) { Ok(()) } else { Err(INVALID_VALUE) }
}

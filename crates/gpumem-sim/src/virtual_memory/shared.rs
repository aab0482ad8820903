//! Handles that are to be shared: each has a file of its own, and a descriptor of it is what is exported.
//!
//! Whoever imports a descriptor, here, in another instance or in another process, is another holder of the same memory.
//! It counts against the device of the instance that created it, and against no other's. The file is there for as long
//! as anybody has it open, so the bytes outlive their creator.

use super::{Physical, VirtualMemory, check_size};
use crate::codes::{Answer, INVALID_VALUE};
use crate::handle::Handle;
use crate::machine::Machine;
use crate::memory::Allocation;
use crate::owner::Owner;
use crate::pages::PageFile;
use crate::ticket::{Ticket, TicketKind};
use gpumem_sys::types::{
    CUmemAllocationHandleType as HandleType, CUmemAllocationProp_st__bindgen_ty_1 as AllocationFlags,
};

/// Memory that others may have as well.
pub(super) struct Shared {
    file: PageFile,
    label: Ticket,
    /// Whoever created it counts it.
    pub(super) is_imported: bool,
}

impl Machine {
    /// A descriptor of a handle that was created to be shared.
    pub(crate) fn physical_export(&mut self, handle: Handle) -> Answer<i32> {
        self.virtual_memory.held(handle)?.shared.as_ref().ok_or(INVALID_VALUE)?.file.export()
    }

    /// What a descriptor opens: a handle that is known with one holder more, or a new one.
    pub(crate) fn physical_import(&mut self, descriptor: i32) -> Answer<Handle> {
        let (file, label) = PageFile::open(descriptor, TicketKind::Physical)?;
        let device = self.device_index(label.device as i32)?;
        check_size(label.size_bytes)?;
        let all = &mut self.virtual_memory;
        let is_same =
            |found: &Physical| found.shared.as_ref().is_some_and(|shared| shared.label.is_about(&label));
        let known = all.handles.iter().find(|(_, found)| is_same(found)).map(|(handle, _)| handle);
        if let Some(found) = known.and_then(|handle| all.handles.get_mut(handle)) {
            found.holder_count += 1;
            return known.ok_or(INVALID_VALUE);
        }
        let shared = Shared { file, label, is_imported: true };
        let handle = all.create(device, label.size_bytes, AllocationFlags::default(), Some(shared))?;
        let call = self.made_here();
        if let Some(physical) = self.virtual_memory.handles.get_mut(handle) {
            physical.call = call;
        }
        Ok(handle)
    }
}

impl VirtualMemory {
    /// The file that has the bytes of a mapping, and where in it.
    pub(crate) fn pages_of(&self, mapping: &Allocation) -> Option<(&PageFile, u64)> {
        let Owner::Mapped { handle, .. } = mapping.owner else { return None };
        let physical = self.handles.get(handle)?;
        match &physical.shared {
            Some(shared) => Some((&shared.file, 0)),
            None => Some((self.file.as_ref()?, physical.file_offset_bytes)),
        }
    }

    /// In which forms a mapped handle can be exported.
    pub(crate) fn handle_types(&self, handle: Handle) -> HandleType {
        self.handles.get(handle).map_or(HandleType::CU_MEM_HANDLE_TYPE_NONE, Physical::handle_types)
    }
}

impl Physical {
    pub(super) fn handle_types(&self) -> HandleType {
        match self.shared {
            Some(_) => HandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            None => HandleType::CU_MEM_HANDLE_TYPE_NONE,
        }
    }
}

impl Shared {
    pub(super) fn new(instance: u64, device: usize, size_bytes: u64) -> Answer<Self> {
        let label = Ticket::new(TicketKind::Physical, instance, device, size_bytes);
        Ok(Self { file: PageFile::labelled(&label)?, label, is_imported: false })
    }
}

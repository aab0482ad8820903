//! Handles that are to be shared: each has a file of its own, and a descriptor of it is what is exported.
//!
//! Whoever imports a descriptor, here, in another instance or in another process, is another holder of the same memory.
//! It counts against the device of the instance that created it, and against no other's. The file is there for as long
//! as anybody has it open, so the bytes outlive their creator.

use crate::backing::pages::PageFile;
use crate::backing::ticket::{Ticket, TicketKind};
use crate::base::codes::Answer;
use crate::base::handle::Handle;
use crate::memory::Allocation;
use crate::memory::owner::Owner;
use crate::memory::virtual_memory::{Physical, VirtualMemory};
use gpumem_sys::types::CUmemAllocationHandleType as HandleType;

/// Memory that others may have as well.
pub(crate) struct Shared {
    pub(crate) file: PageFile,
    pub(crate) label: Ticket,
    /// Whoever created it counts it.
    pub(crate) is_imported: bool,
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
    pub(crate) fn handle_types(&self) -> HandleType {
        match self.shared {
            Some(_) => HandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            None => HandleType::CU_MEM_HANDLE_TYPE_NONE,
        }
    }
}

impl Shared {
    pub(crate) fn new(instance: u64, device: usize, size_bytes: u64) -> Answer<Self> {
        let label = Ticket::new(TicketKind::Physical, instance, device, size_bytes);
        Ok(Self { file: PageFile::labelled(&label)?, label, is_imported: false })
    }
}

//! Exportable handles: each has a file of its own, and the program exports a descriptor of the file.
//!
//! Each import of a descriptor, in this instance, another instance or another process, is another reference to the memory.
//! The memory counts only against the device of the instance that created it. The file exists as long as any process has
//! it open, so the bytes may outlive their creator.

use crate::backing::pages::PageFile;
use crate::backing::ticket::{Ticket, TicketKind};
use crate::base::codes::Answer;
use crate::base::handle::Handle;
use crate::memory::Allocation;
use crate::memory::allocated_by::AllocatedBy;
use crate::memory::virtual_memory::{Physical, VirtualMemory};
use gpumem_sys::types::CUmemAllocationHandleType as HandleType;

/// Memory that other processes can access.
pub(crate) struct Shared {
    pub(crate) file: PageFile,
    pub(crate) label: Ticket,
    /// True if it is imported: imported memory counts at its creator.
    pub(crate) is_imported: bool,
}

impl VirtualMemory {
    /// The file with the bytes of a mapping, and their offset.
    pub(crate) fn pages_of(&self, mapping: &Allocation) -> Option<(&PageFile, u64)> {
        let AllocatedBy::Mapped { handle, .. } = mapping.allocated_by else { return None };
        let physical = self.handles.get(handle)?;
        match &physical.shared {
            Some(shared) => Some((&shared.file, 0)),
            None => Some((self.file.as_ref()?, physical.file_offset_bytes)),
        }
    }

    /// The forms in which a mapped handle can be exported.
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

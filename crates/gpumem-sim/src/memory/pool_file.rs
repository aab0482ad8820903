//! Pools that other processes can access: the file of a pool, its export, and imported pools.
//!
//! An exportable pool takes its segments from one file; the export is a descriptor of that file. A block is identified by its
//! offset in the file. An imported pool cannot allocate; blocks are imported through it (`import.rs`).

use crate::backing::pages::PageFile;
use crate::backing::ticket::{Ticket, TicketKind};
use crate::backing::{Backing, pages};
use crate::base::address::DEVICE_SPACE_BYTES;
use crate::base::codes::{Answer, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::base::extents::Extents;
use crate::memory::device::Device;
use gpumem_sys::types::CUmemAllocationHandleType as HandleType;

/// The access of other processes to the memory of a pool.
pub(crate) enum Sharing {
    /// No access.
    Private,
    /// Access for each process that gets a descriptor of the file.
    Exportable(PoolFile),
    /// An exportable pool of another instance.
    Imported { file: PageFile, label: Ticket },
}

/// The file of an exportable pool.
pub(crate) struct PoolFile {
    pub(crate) file: PageFile,
    label: Ticket,
    /// The parts of the file that no segment uses.
    pieces: Extents,
    /// True if the pool was exported. Before that, no process can have imported it, and its blocks have no tickets.
    pub(crate) was_exported: bool,
}

impl Sharing {
    pub(crate) fn new(types: HandleType, instance: u64, device: usize) -> Answer<Self> {
        match types {
            HandleType::CU_MEM_HANDLE_TYPE_NONE => Ok(Self::Private),
            HandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR if pages::IS_SUPPORTED => {
                let label = Ticket::new(TicketKind::Pool, instance, device, DEVICE_SPACE_BYTES);
                let mut pieces = Extents::default();
                pieces.give(0, DEVICE_SPACE_BYTES);
                let file = PageFile::labelled(&label)?;
                Ok(Self::Exportable(PoolFile { file, label, pieces, was_exported: false }))
            }
            _ => Err(NOT_SUPPORTED),
        }
    }

    pub(crate) fn is_imported(&self) -> bool {
        matches!(self, Self::Imported { .. })
    }

    pub(crate) fn handle_types(&self) -> HandleType {
        match self {
            Self::Private => HandleType::CU_MEM_HANDLE_TYPE_NONE,
            _ => HandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        }
    }

    /// Allocates addresses of the device with memory for a segment, and the offset in the file.
    pub(crate) fn map(&mut self, device: &mut Device, size_bytes: u64) -> Answer<(u64, (Backing, u64))> {
        let Self::Exportable(PoolFile { file, pieces, .. }) = self else {
            return device.map(size_bytes).map(|(base, backing)| (base, (backing, 0)));
        };
        let Some(offset_bytes) = pieces.take(size_bytes) else {
            device.reserved_bytes -= size_bytes;
            return Err(OUT_OF_MEMORY);
        };
        let mapped = device.map_with(size_bytes, |_| file.backing(offset_bytes, size_bytes));
        let mapped = mapped.inspect_err(|_| pieces.give(offset_bytes, size_bytes));
        mapped.map(|(base, backing)| (base, (backing, offset_bytes)))
    }

    /// Releases the pages of a removed segment.
    pub(crate) fn discard(&mut self, offset_bytes: u64, size_bytes: u64) {
        if let Self::Exportable(PoolFile { file, pieces, .. }) = self {
            file.discard(offset_bytes, size_bytes);
            pieces.give(offset_bytes, size_bytes);
        }
    }

    /// The label of a pool that has been exported.
    pub(crate) fn exported_as(&self) -> Option<&Ticket> {
        match self {
            Self::Exportable(PoolFile { label, was_exported: true, .. }) => Some(label),
            _ => None,
        }
    }
}

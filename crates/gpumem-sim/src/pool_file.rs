//! Pools that others may have as well: the file behind one, its export, and what an import of it is.
//!
//! An exportable pool takes its segments from one file, of which a descriptor is the export. A block is named by its
//! place in that file. An imported pool allocates nothing; it is what blocks are imported through ([`super::import`]).

use super::backing::Backing;
use super::codes::{Answer, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};
use super::device::Device;
use super::extents::Extents;
use super::handle::Handle;
use super::machine::Machine;
use super::memory::DEVICE_SPACE_BYTES;
use super::owner::Owner;
use super::pages::{self, PageFile};
use super::pool::Pool;
use super::ticket::{Ticket, TicketKind};
use gpumem_sys::types::CUmemAllocationHandleType as HandleType;

/// Who else may have the memory of a pool.
pub(super) enum Sharing {
    /// Nobody.
    Private,
    /// Whoever gets a descriptor of the file.
    Exportable(PoolFile),
    /// It is somebody's exportable pool.
    Imported { file: PageFile, label: Ticket },
}

/// The file of an exportable pool.
pub(super) struct PoolFile {
    file: PageFile,
    label: Ticket,
    /// What no segment has of it.
    pieces: Extents,
    /// Before, nobody could have imported it, and its blocks have no names.
    was_exported: bool,
}

impl Sharing {
    pub(super) fn new(types: HandleType, instance: u64, device: usize) -> Answer<Self> {
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

    pub(super) fn is_imported(&self) -> bool {
        matches!(self, Self::Imported { .. })
    }

    pub(super) fn handle_types(&self) -> HandleType {
        match self {
            Self::Private => HandleType::CU_MEM_HANDLE_TYPE_NONE,
            _ => HandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        }
    }

    /// Addresses of the device with memory for a segment, and its place in the file.
    pub(super) fn map(&mut self, device: &mut Device, size_bytes: u64) -> Answer<(u64, (Backing, u64))> {
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

    /// A segment is gone.
    pub(super) fn discard(&mut self, offset_bytes: u64, size_bytes: u64) {
        if let Self::Exportable(PoolFile { file, pieces, .. }) = self {
            file.discard(offset_bytes, size_bytes);
            pieces.give(offset_bytes, size_bytes);
        }
    }

    /// The label of a pool that has been exported.
    pub(super) fn exported_as(&self) -> Option<&Ticket> {
        match self {
            Self::Exportable(PoolFile { label, was_exported: true, .. }) => Some(label),
            _ => None,
        }
    }
}

impl Machine {
    /// A descriptor of an exportable pool.
    pub(super) fn pool_export(&mut self, pool: Handle) -> Answer<i32> {
        let found = self.pools.get_mut(pool).filter(|pool| !pool.is_closing).ok_or(INVALID_VALUE)?;
        match &mut found.sharing {
            Sharing::Exportable(PoolFile { file, was_exported, .. }) => {
                let descriptor = file.export()?;
                *was_exported = true;
                Ok(descriptor)
            }
            _ => Err(INVALID_VALUE),
        }
    }

    /// The pool that a descriptor is of.
    pub(super) fn pool_import(&mut self, descriptor: i32) -> Answer<Handle> {
        let (file, label) = PageFile::open(descriptor, TicketKind::Pool)?;
        let device = self.device_index(label.device as i32)?;
        let sharing = Sharing::Imported { file, label };
        self.pools.insert(Pool::new(device, false, 0).shared(sharing))
    }

    /// What names a block of an exportable pool to whoever imports the pool.
    pub(super) fn pool_export_pointer(&self, address: u64) -> Answer<Ticket> {
        let found = self.memory.at_call.get(&address).ok_or(INVALID_VALUE)?;
        let Owner::Pool(pool) = found.owner else { return Err(INVALID_VALUE) };
        let pool = self.pools.get(pool).ok_or(INVALID_VALUE)?;
        let label = pool.sharing.exported_as().ok_or(INVALID_VALUE)?;
        let offset_bytes = pool.file_offset_of(address).ok_or(INVALID_VALUE)?;
        Ok(label.part(TicketKind::PoolBlock, offset_bytes, found.size_bytes))
    }
}

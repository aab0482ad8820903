//! Export and import of pools.

use crate::backing::pages::PageFile;
use crate::backing::ticket::{Ticket, TicketKind};
use crate::base::codes::{Answer, INVALID_VALUE};
use crate::base::handle::Handle;
use crate::machine::Machine;
use crate::memory::allocated_by::AllocatedBy;
use crate::memory::pool::Pool;
use crate::memory::pool_file::{PoolFile, Sharing};

impl Machine {
    /// Creates a descriptor of an exportable pool.
    pub(crate) fn pool_export(&mut self, pool: Handle) -> Answer<i32> {
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

    /// The pool of a descriptor.
    pub(crate) fn pool_import(&mut self, descriptor: i32) -> Answer<Handle> {
        let (file, label) = PageFile::open(descriptor, TicketKind::Pool)?;
        let device = self.device_index(label.device as i32)?;
        let sharing = Sharing::Imported { file, label };
        self.pools.insert(Pool::new(device, false, 0).shared(sharing))
    }

    /// The ticket of a block of an exportable pool, for processes that import the pool.
    pub(crate) fn pool_export_pointer(&self, address: u64) -> Answer<Ticket> {
        let found = self.memory.at_call.get(&address).ok_or(INVALID_VALUE)?;
        let AllocatedBy::Pool(pool) = found.allocated_by else { return Err(INVALID_VALUE) };
        let pool = self.pools.get(pool).ok_or(INVALID_VALUE)?;
        let label = pool.sharing.exported_as().ok_or(INVALID_VALUE)?;
        let offset_bytes = pool.file_offset_of(address).ok_or(INVALID_VALUE)?;
        Ok(label.part(TicketKind::PoolBlock, offset_bytes, found.size_bytes))
    }
}

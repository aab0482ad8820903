//! Imports: blocks of memory that another instance or process exported.

use crate::backing::ticket::{TICKET_BYTES, Ticket, TicketKind};
use crate::base::address::CHUNK_BYTES;
use crate::base::codes::{Answer, INVALID_VALUE, OUT_OF_MEMORY};
use crate::base::handle::Handle;
use crate::machine::Machine;
use crate::memory::Allocation;
use crate::memory::allocated_by::AllocatedBy;
use crate::memory::import::{Import, Source};
use crate::memory::plain::{GAP_BYTES, round_up};
use crate::memory::pool_file::Sharing;

impl Machine {
    /// Adds an address for a block of an imported pool.
    pub(crate) fn pool_import_pointer(&mut self, pool: Handle, bytes: &[u8; TICKET_BYTES]) -> Answer<u64> {
        let found = self.pool(pool)?;
        let Sharing::Imported { file, label } = &found.sharing else { return Err(INVALID_VALUE) };
        let part = Ticket::decode_as(TicketKind::PoolBlock, bytes)?;
        if !label.has_part(&part) {
            return Err(INVALID_VALUE);
        }
        let device = found.device;
        let source = match label.is_of(self.instance) {
            true => self.own_block(&part)?,
            false => Source::Foreign(file.backing(part.offset_bytes, part.size_bytes)?),
        };
        let base = self.import_insert(pool, source, (device, part.size_bytes), Handle::NONE, None)?;
        if self.is_alias(base) {
            self.note_mapped(base);
        }
        Ok(base)
    }

    /// The block of this instance that a ticket names, if it is still allocated.
    fn own_block(&self, part: &Ticket) -> Answer<Source> {
        let is_exporter = |found: &crate::memory::pool::Pool| {
            found.sharing.exported_as().is_some_and(|label| label.is_about(part))
        };
        let mut pools = self.pools.iter().map(|(_, pool)| pool);
        let exporter = pools.find(|pool| is_exporter(pool)).ok_or(INVALID_VALUE)?;
        let base = exporter.address_at(part.offset_bytes).ok_or(INVALID_VALUE)?;
        let block = self.memory.at_call.get(&base).filter(|block| block.size_bytes == part.size_bytes);
        let Allocation { base, born, bytes, .. } = *block.ok_or(INVALID_VALUE)?;
        Ok(Source::Own { base, born, bytes })
    }

    /// Gives memory an address, for the host and the device at once.
    pub(crate) fn import_insert(
        &mut self,
        pool: Handle,
        source: Source,
        (device, size_bytes): (usize, u64),
        context: Handle,
        opened: Option<Ticket>,
    ) -> Answer<u64> {
        let space_bytes = round_up(size_bytes, CHUNK_BYTES)? + GAP_BYTES;
        let base = self.devices[device].space.take(space_bytes).ok_or(OUT_OF_MEMORY)?;
        let bytes = match &source {
            Source::Own { bytes, .. } => *bytes,
            Source::Foreign(backing) => backing.bytes(),
        };
        let allocated_by = if opened.is_some() { AllocatedBy::Opened } else { AllocatedBy::Imported(pool) };
        let call = self.made_here();
        self.memory.insert(Allocation {
            base,
            size_bytes,
            bytes,
            device,
            context,
            allocated_by,
            call,
            born: None,
        });
        let opened = opened.map(|ticket| (ticket, 1));
        self.imports.insert(base, Import { pool, source, space_bytes, opened });
        Ok(base)
    }

    /// Removes the imports of a pool's block that the device has freed.
    pub(crate) fn imports_lose(&mut self, block: &Allocation) {
        let is_of_block = |import: &Import| matches!(import.source, Source::Own { base, born, .. } if (base, born) == (block.base, block.born));
        for (&base, _) in self.imports.iter().filter(|(_, import)| is_of_block(import)) {
            self.memory.free_now(base);
        }
    }

    /// True if an address is an import of memory of this instance, whose access history is kept at the original address.
    pub(crate) fn is_alias(&self, base: u64) -> bool {
        self.imports.get(&base).is_some_and(|import| matches!(import.source, Source::Own { .. }))
    }

    /// True if blocks of an imported pool are still allocated.
    pub(crate) fn has_imports(&self, pool: Handle) -> bool {
        self.imports.values().any(|import| import.pool == pool)
    }

    /// Removes all imports through a handle, however often it was opened.
    pub(crate) fn import_close(&mut self, base: u64) {
        if let Some(found) = self.memory.at_call.get(&base).copied() {
            self.retire(base);
            self.release(&found, None);
        }
    }

    /// Removes an address.
    pub(crate) fn import_release(&mut self, base: u64) {
        let Some(import) = self.imports.remove(&base) else { return };
        let pool = self.pools.get(import.pool).map(|pool| pool.device);
        let device = pool.or(import.opened.map(|(ticket, _)| ticket.device as usize));
        if let Some(device) = device.and_then(|device| self.devices.get_mut(device)) {
            device.space.give(base, import.space_bytes);
        }
        self.pool_close_if_empty(import.pool);
    }
}

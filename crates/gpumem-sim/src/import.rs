//! Memory at a second address: blocks of imported pools, and plain memory that another process has opened.
//!
//! An import costs the device nothing, since whoever allocated the memory counts it, and goes before the memory does:
//! that is the program's duty. A block of a pool of one's own is the same bytes to the race detector, and work that
//! follows the import after the block was freed faults. Of another instance, in this process or another, there are only the
//! bytes: what it does and when is not seen here, as it is not by the driver. The bytes stay when the exporter of a pool is
//! killed, where the vendor's driver takes them away and calls their addresses invalid.
//!
//! **Two instances of one process have a lock each**, so work of both on the same bytes could run at once on two threads.
//! Safe code does not get there: another instance's memory is an address, and all that follows it are unsafe calls of the
//! driver, whose condition is that the program orders what its processes do to shared memory. Where it does, no two
//! accesses are at once: the work of the first ran under its instance's lock, which was given back before the wait for that
//! work returned, and the second queues its own after it was told. Where it does not, it breaks that condition, and the
//! bytes are anybody's, as on a device.

use super::backing::{Backing, Bytes};
use super::codes::{Answer, INVALID_VALUE, OUT_OF_MEMORY};
use super::handle::Handle;
use super::machine::Machine;
use super::memory::Allocation;
use super::owner::Owner;
use super::plain::{CHUNK_BYTES, GAP_BYTES, round_up};
use super::pool_file::Sharing;
use super::stream::Point;
use super::ticket::{TICKET_BYTES, Ticket, TicketKind};

/// One import.
pub(super) struct Import {
    /// The pool that it came through; none of what was opened by a handle.
    pool: Handle,
    source: Source,
    /// What it takes of the device's addresses.
    space_bytes: u64,
    /// What was opened, and how often.
    pub(super) opened: Option<(Ticket, u32)>,
}

/// Whose memory it is.
pub(super) enum Source {
    /// A block of this instance: its address, and when it was allocated, for addresses are used again.
    Own { base: u64, born: Option<Point>, bytes: Bytes },
    /// Another's, mapped by this process.
    Foreign(Backing),
}

impl Machine {
    /// Another address for a block, through the pool that was imported for it.
    pub(super) fn pool_import_pointer(&mut self, pool: Handle, bytes: &[u8; TICKET_BYTES]) -> Answer<u64> {
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

    /// The block of this instance that a ticket names, as long as it is there.
    fn own_block(&self, part: &Ticket) -> Answer<Source> {
        let is_exporter =
            |found: &super::pool::Pool| found.sharing.exported_as().is_some_and(|label| label.is_about(part));
        let mut pools = self.pools.iter().map(|(_, pool)| pool);
        let exporter = pools.find(|pool| is_exporter(pool)).ok_or(INVALID_VALUE)?;
        let base = exporter.address_at(part.offset_bytes).ok_or(INVALID_VALUE)?;
        let block = self.memory.at_call.get(&base).filter(|block| block.size_bytes == part.size_bytes);
        let Allocation { base, born, bytes, .. } = *block.ok_or(INVALID_VALUE)?;
        Ok(Source::Own { base, born, bytes })
    }

    /// Gives memory an address, for the host and the device at once.
    pub(super) fn import_insert(
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
        let owner = if opened.is_some() { Owner::Opened } else { Owner::Imported(pool) };
        let call = self.made_here();
        self.memory.insert(Allocation { base, size_bytes, bytes, device, context, owner, call, born: None });
        let opened = opened.map(|ticket| (ticket, 1));
        self.imports.insert(base, Import { pool, source, space_bytes, opened });
        Ok(base)
    }

    /// A block of a pool is gone for the device: so are the imports of it.
    pub(super) fn imports_lose(&mut self, block: &Allocation) {
        let is_of_block = |import: &Import| matches!(import.source, Source::Own { base, born, .. } if (base, born) == (block.base, block.born));
        for (&base, _) in self.imports.iter().filter(|(_, import)| is_of_block(import)) {
            self.memory.free_now(base);
        }
    }

    /// Whether an address is another one for memory of this instance, whose history goes on without it.
    pub(super) fn is_alias(&self, base: u64) -> bool {
        self.imports.get(&base).is_some_and(|import| matches!(import.source, Source::Own { .. }))
    }

    /// Whether blocks that came through a pool are still there.
    pub(super) fn has_imports(&self, pool: Handle) -> bool {
        self.imports.values().any(|import| import.pool == pool)
    }

    /// What was opened by a handle goes, however often it was opened.
    pub(super) fn import_close(&mut self, base: u64) {
        if let Some(found) = self.memory.at_call.get(&base).copied() {
            self.retire(base);
            self.release(&found, None);
        }
    }

    /// An address is nobody's any more.
    pub(super) fn import_release(&mut self, base: u64) {
        let Some(import) = self.imports.remove(&base) else { return };
        let pool = self.pools.get(import.pool).map(|pool| pool.device);
        let device = pool.or(import.opened.map(|(ticket, _)| ticket.device as usize));
        if let Some(device) = device.and_then(|device| self.devices.get_mut(device)) {
            device.space.give(base, import.space_bytes);
        }
        self.pool_close_if_empty(import.pool);
    }
}

//! Plain device memory: allocation, export and free.

use crate::backing::Bytes;
use crate::backing::pages::PageFile;
use crate::backing::ticket::{Ticket, TicketKind};
use crate::base::address::CHUNK_BYTES;
use crate::base::codes::{Answer, INVALID_VALUE, OUT_OF_MEMORY};
use crate::base::handle::Handle;
use crate::machine::Machine;
use crate::machine::stream::execute::copy_bytes;
use crate::memory::Allocation;
use crate::memory::allocated_by::AllocatedBy;
use crate::memory::plain::{Chunk, SMALL_BYTES_MAX, room_bytes, round_up};

impl Machine {
    /// Allocates device memory for all streams at once.
    pub(crate) fn alloc(&mut self, context: Handle, size_bytes: u64) -> Answer<u64> {
        self.plain_alloc(context, size_bytes, AllocatedBy::Plain)
    }

    /// Allocates a variable of a module.
    pub(crate) fn alloc_variable(&mut self, context: Handle, size_bytes: u64) -> Answer<u64> {
        self.plain_alloc(context, size_bytes, AllocatedBy::Variable)
    }

    /// Writes the initial contents of a variable, which fill it.
    pub(crate) fn write_variable(&mut self, base: u64, contents: &[u8]) {
        if let Some(found) = self.memory.known(base, contents.len() as u64) {
            copy_bytes(Bytes(contents.as_ptr().cast_mut()), found.bytes, contents.len() as u64);
        }
    }

    /// Frees a variable of a module.
    pub(crate) fn free_variable(&mut self, base: u64) {
        if let Some(allocation) = self.memory.at_call.get(&base).copied() {
            self.retire(base);
            self.release(&allocation, None);
        }
    }

    fn plain_alloc(&mut self, context: Handle, size_bytes: u64, allocated_by: AllocatedBy) -> Answer<u64> {
        if size_bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let device = self.contexts.get(context).ok_or(INVALID_VALUE)?.device;
        let base = self.plain_take(device, size_bytes)?;
        let plain = &self.devices[device].plain;
        let (chunk_base, chunk) = plain.chunk(base).ok_or(OUT_OF_MEMORY)?;
        let bytes = chunk.backing.bytes().at(base - chunk_base);
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
        Ok(base)
    }

    fn plain_take(&mut self, device: usize, size_bytes: u64) -> Answer<u64> {
        if size_bytes > SMALL_BYTES_MAX {
            return self.chunk_create(device, round_up(size_bytes, CHUNK_BYTES)?, false);
        }
        let size_bytes = room_bytes(size_bytes)?;
        if let Some(base) = self.devices[device].plain.free.take(size_bytes) {
            return Ok(base);
        }
        let base = self.chunk_create(device, CHUNK_BYTES, true)?;
        let free = &mut self.devices[device].plain.free;
        free.give(base, CHUNK_BYTES);
        free.take(size_bytes).ok_or(OUT_OF_MEMORY)
    }

    fn chunk_create(&mut self, device: usize, size_bytes: u64, is_shared: bool) -> Answer<u64> {
        self.admit(device, size_bytes)?;
        self.charge_chunk(size_bytes);
        let device = &mut self.devices[device];
        let (base, backing) = device.map(size_bytes)?;
        device.plain.chunks.insert(base, Chunk { backing, size_bytes, is_shared, file: None });
        Ok(base)
    }

    /// The ticket of an allocation, for other processes. Its chunk becomes a file that they can open.
    pub(crate) fn plain_export(&mut self, found: &Allocation) -> Answer<Ticket> {
        let instance = self.instance;
        let chunks = &mut self.devices[found.device].plain.chunks;
        let (base, chunk) = chunks.range_mut(..=found.base).next_back().ok_or(INVALID_VALUE)?;
        let (file, label) = match &chunk.file {
            Some(known) => known,
            None => {
                let label = Ticket::new(TicketKind::Chunk, instance, found.device, chunk.size_bytes);
                let file = PageFile::labelled(&label)?;
                chunk.backing.share(&file)?;
                chunk.file.insert((file, label))
            }
        };
        let part = label.part(TicketKind::Plain, found.base - base, found.size_bytes);
        Ok(Ticket { descriptor: file.descriptor(), ..part })
    }

    pub(crate) fn plain_release(&mut self, allocation: &Allocation) {
        let device = &mut self.devices[allocation.device];
        let plain = &mut device.plain;
        let Some((base, chunk)) = plain.chunk(allocation.base) else { return };
        let (size_bytes, is_shared) = (chunk.size_bytes, chunk.is_shared);
        if is_shared && let Ok(room_bytes) = room_bytes(allocation.size_bytes) {
            plain.free.give(allocation.base, room_bytes);
        }
        if (!is_shared || plain.free.take_whole(base, size_bytes))
            && let Some(chunk) = plain.chunks.remove(&base)
        {
            device.unmap(base, size_bytes, chunk.backing);
            self.charge_chunk(size_bytes);
        }
    }

    /// Counts memory against a device's capacity. If too little is free, the pools first release their unused memory.
    pub(crate) fn admit(&mut self, index: usize, size_bytes: u64) -> Answer<()> {
        if self.devices[index].free_bytes() < size_bytes {
            self.pools_trim(index);
        }
        let device = &mut self.devices[index];
        if device.free_bytes() < size_bytes {
            return Err(OUT_OF_MEMORY);
        }
        device.reserved_bytes += size_bytes;
        self.managed_fit(index);
        Ok(())
    }
}

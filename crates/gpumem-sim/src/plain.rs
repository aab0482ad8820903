//! Plain device memory (`cuMemAlloc`): chunks of 2 MiB for small blocks, chunks of their own for large ones.
//!
//! Chunks are what counts against the device's capacity, like the pages of the real one. Between two chunks lies a
//! gap of addresses: free ranges of different chunks never merge, and running off a chunk's end hits nothing.

use super::backing::{Backing, Spares};
use super::codes::{Answer, INVALID_VALUE, OUT_OF_MEMORY};
use super::device::Device;
use super::extents::Extents;
use super::handle::Handle;
use super::machine::Machine;
use super::memory::Allocation;
use super::owner::Owner;
use super::pages::PageFile;
use super::ticket::{Ticket, TicketKind};
use std::collections::BTreeMap;

/// The chunks of one device.
#[derive(Default)]
pub(super) struct Plain {
    chunks: BTreeMap<u64, Chunk>,
    /// What is free in the chunks for small blocks.
    free: Extents,
}

struct Chunk {
    backing: Backing,
    size_bytes: u64,
    is_shared: bool,
    /// The file that other processes open, if they may.
    file: Option<(PageFile, Ticket)>,
}

impl Plain {
    fn chunk(&self, address: u64) -> Option<(u64, &Chunk)> {
        self.chunks.range(..=address).next_back().map(|(&base, chunk)| (base, chunk))
    }
}

impl Machine {
    /// Device memory for any stream at once.
    pub(super) fn alloc(&mut self, context: Handle, size_bytes: u64) -> Answer<u64> {
        if size_bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let device = self.contexts.get(context).ok_or(INVALID_VALUE)?.device;
        let base = self.plain_take(device, size_bytes)?;
        let plain = &self.devices[device].plain;
        let (chunk_base, chunk) = plain.chunk(base).ok_or(OUT_OF_MEMORY)?;
        let bytes = chunk.backing.bytes().at(base - chunk_base);
        let owner = Owner::Plain;
        let call = self.made_here();
        self.memory.insert(Allocation { base, size_bytes, bytes, device, context, owner, call, born: None });
        Ok(base)
    }

    fn plain_take(&mut self, device: usize, size_bytes: u64) -> Answer<u64> {
        if size_bytes > SMALL_BYTES_MAX {
            return self.chunk_create(device, round_up(size_bytes, CHUNK_BYTES)?, false);
        }
        let size_bytes = round_up(size_bytes, ALIGNMENT_BYTES)?;
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

    /// What names an allocation to other processes. Its chunk becomes a file that they can open.
    pub(super) fn plain_export(&mut self, found: &Allocation) -> Answer<Ticket> {
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

    pub(super) fn plain_release(&mut self, allocation: &Allocation) {
        let device = &mut self.devices[allocation.device];
        let plain = &mut device.plain;
        let Some((base, chunk)) = plain.chunk(allocation.base) else { return };
        let (size_bytes, is_shared) = (chunk.size_bytes, chunk.is_shared);
        if is_shared {
            plain.free.give(allocation.base, allocation.size_bytes.next_multiple_of(ALIGNMENT_BYTES));
        }
        if (!is_shared || plain.free.take_whole(base, size_bytes))
            && let Some(chunk) = plain.chunks.remove(&base)
        {
            device.unmap(base, size_bytes, chunk.backing);
            self.charge_chunk(size_bytes);
        }
    }

    /// Counts memory against a device's capacity, after the pools have given back what they hold for nothing if that
    /// is what it takes.
    pub(super) fn admit(&mut self, index: usize, size_bytes: u64) -> Answer<()> {
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

impl Device {
    /// Addresses with memory behind them; the caller has had them admitted.
    pub(super) fn map(&mut self, size_bytes: u64) -> Answer<(u64, Backing)> {
        self.map_with(size_bytes, |spares| spares.take(size_bytes))
    }

    /// The same with memory from elsewhere.
    pub(super) fn map_with(
        &mut self,
        size_bytes: u64,
        make: impl FnOnce(&mut Spares) -> Answer<Backing>,
    ) -> Answer<(u64, Backing)> {
        let mapped = self.space.take(size_bytes + GAP_BYTES).ok_or(OUT_OF_MEMORY).and_then(|base| {
            make(&mut self.spares)
                .map(|backing| (base, backing))
                .inspect_err(|_| self.space.give(base, size_bytes + GAP_BYTES))
        });
        mapped.inspect_err(|_| self.reserved_bytes -= size_bytes)
    }

    /// Gives back what [`Device::map`] gave, capacity included.
    pub(super) fn unmap(&mut self, base: u64, size_bytes: u64, backing: Backing) {
        self.space.give(base, size_bytes + GAP_BYTES);
        self.reserved_bytes -= size_bytes;
        self.spares.give(backing);
    }
}

/// Rounds up to a multiple; beyond any device's size is out of memory.
pub(super) fn round_up(size_bytes: u64, multiple: u64) -> Answer<u64> {
    size_bytes.checked_next_multiple_of(multiple).filter(|&bytes| bytes < 1 << 60).ok_or(OUT_OF_MEMORY)
}

/// What the addresses of allocations are multiples of.
pub(super) const ALIGNMENT_BYTES: u64 = 512;
/// The unit in which a device's memory is counted.
pub(super) const CHUNK_BYTES: u64 = 2 << 20;
/// Addresses that stay unused behind each mapping.
pub(super) const GAP_BYTES: u64 = CHUNK_BYTES;
const SMALL_BYTES_MAX: u64 = 1 << 20;

//! Plain device memory (`cuMemAlloc`): chunks of 2 MiB for small blocks, chunks of their own for large ones.
//!
//! Chunks count against the device's capacity, like the pages of a real device. Between two chunks lies a gap of addresses: free
//! ranges of different chunks never merge, and an access past the end of a chunk faults.

use crate::backing::Backing;
use crate::backing::pages::PageFile;
use crate::backing::ticket::Ticket;
use crate::base::address::CHUNK_BYTES;
use crate::base::codes::{Answer, OUT_OF_MEMORY};
use crate::base::extents::Extents;
use std::collections::BTreeMap;

/// The chunks of one device.
#[derive(Default)]
pub(crate) struct Plain {
    pub(crate) chunks: BTreeMap<u64, Chunk>,
    /// The free ranges in the chunks of small blocks.
    pub(crate) free: Extents,
}

pub(crate) struct Chunk {
    pub(crate) backing: Backing,
    pub(crate) size_bytes: u64,
    pub(crate) is_shared: bool,
    /// The file that other processes open, if the chunk is exported.
    pub(crate) file: Option<(PageFile, Ticket)>,
}

impl Plain {
    pub(crate) fn chunk(&self, address: u64) -> Option<(u64, &Chunk)> {
        self.chunks.range(..=address).next_back().map(|(&base, chunk)| (base, chunk))
    }
}

/// Rounds up to a multiple. Sizes beyond any device are out of memory.
pub(crate) fn round_up(size_bytes: u64, multiple: u64) -> Answer<u64> {
    size_bytes.checked_next_multiple_of(multiple).filter(|&bytes| bytes < 1 << 60).ok_or(OUT_OF_MEMORY)
}

/// The room that a block takes of a range that it shares with others. What is unused behind it, one byte at least, keeps an overrun from
/// being an access to a neighbour.
pub(crate) fn room_bytes(size_bytes: u64) -> Answer<u64> {
    round_up(size_bytes.saturating_add(1), ALIGNMENT_BYTES)
}

/// The alignment of allocations.
pub(crate) const ALIGNMENT_BYTES: u64 = 512;
/// Addresses that stay unused behind each mapping.
pub(crate) const GAP_BYTES: u64 = CHUNK_BYTES;
pub(crate) const SMALL_BYTES_MAX: u64 = 1 << 20;

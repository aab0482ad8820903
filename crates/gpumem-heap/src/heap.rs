//! [`Heap`]: all memory of a pool that no thread cache holds, shared by the pool's streams. The caller keeps it behind one lock.
//!
//! Addresses are reserved once, in two *spaces*: one for blocks up to 1 MiB, one for larger blocks, so that no small block splits a large
//! free range. A request first searches the memory that its own stream has freed, and the memory that is ready for all streams, by size. If
//! that finds nothing, it tries these steps, each more expensive than the one before:
//!
//! 1. adjacent free ranges of several streams, all ordered before the request (`take_ready`);
//! 2. address ranges whose memory is idle at other addresses: the memory moves back, without a driver call;
//! 3. a new mapping over idle parts of handles (steps 2 and 3 are `take_recycled`);
//! 4. new handles, up to the bytes that the caller allows (`take_grown`).
//!
//! If the tuning allows no growth slack and several streams share the heap, streams receive memory in whole pages: a block of two or more
//! pages starts at a page boundary, the rest of its last page belongs to the block's stream (`keeps_pages`), and another block of that
//! stream may start there (`partial_page`). A page that is shared by two streams serves the large blocks of neither.
//!
//! Without virtual memory the spaces are filled with segments instead (`segments`), and steps 2 and 3 find nothing.
//!
//! # Host memory
//!
//! 48 bytes for each block and each free range, and up to as much again in reserve; an equal amount for each handle, with a word
//! for each stream that has used it; 12 bytes, and a sixteenth of that, for each 2 MiB of addresses ever used; and 5 KiB of lists
//! for each stream and space. Mappings that cannot be unmapped yet need no more, although there may be a hundred for each page.
//!
//! # Terms
//!
//! | term | meaning |
//! | --- | --- |
//! | page | 2 MiB of physical memory, or of addresses |
//! | handle | physical memory created by one call, 1 to 64 pages |
//! | mapping | a handle mapped at an address; a handle may have many |
//! | resident | a page is resident in the one mapping whose addresses stand for its bytes |
//! | gap | addresses without resident memory |
//! | record | the host's description of one block, free range or gap |
//! | ready | free, and complete on every stream |
//! | idle | free, and ordered before the request |

mod blockers;
mod build;
mod careful;
mod check;
mod extension;
mod fit;
mod free_va_ranges;
mod grow;
mod idle_scan;
mod lost;
mod mappings;
mod pages;
mod partial_page;
mod pinning;
mod plan;
mod ready;
mod record;
mod recycle;
mod remap;
mod segments;
mod shares;
mod sleep;
mod space;
mod stamps;
#[cfg(test)]
mod tests;
mod totals;
mod trim;

use crate::block::HeapBlock;
use crate::order::{Stamp, StreamIndex};
use crate::tuning::Tuning;
use careful::TuningByLimit;
use fit::UNIT_BYTES;
pub use free_va_ranges::FreeVaRanges;
pub use lost::Lost;
use pages::Pages;
pub use pinning::BlockBacking;
use record::{Kind, Record, Records};
use segments::Segments;
use shares::Shares;
use sleep::Sleeper;
use space::{PAGE_BYTES, Space};
use stamps::FreeState;

/// A request for a block.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The size in bytes; not zero. Rounded up to a multiple of 256.
    pub size_bytes: u64,
    /// The alignment of the address in bytes: a power of two.
    pub alignment: u64,
    /// The stream that uses the block first.
    pub stream: StreamIndex,
}

/// The memory of one pool that no thread cache holds. The caller keeps it behind a lock.
#[derive(Debug)]
pub struct Heap {
    spaces: [Space; 2],
    pages: Pages,
    /// Replaces handles and mappings on devices without virtual memory.
    segments: Option<Segments>,
    records: Records,
    tuning: TuningByLimit,
    shares: Shares,
    /// The size of all blocks.
    used_bytes: u64,
    used_peak_bytes: u64,
    /// A peak of `used_bytes` that decays with each miss; see `careful`.
    fading_peak_bytes: u64,
    reserved_peak_bytes: u64,
    /// The peak of `used_bytes` without `kept_bytes`, and the large blocks that thread caches retain.
    needed_peak_bytes: u64,
    kept_bytes: u64,
    /// The amount that thread caches may retain, as of its last query.
    keepable_bytes: u64,
    /// The part of `blocks_bytes` that was reserved before it was needed, and that has not been released since.
    reserved_ahead_bytes: u64,
    lost: Lost,
    sleepers: Vec<Sleeper>,
    /// Memory of the caller that counts against the same limit.
    outside_bytes: u64,
    /// The mappings that may be made before the heap grows instead, in thousandths.
    mapping_credit: u32,
    /// From this number of empty mappings on, those that could not be unmapped are tried again.
    empty_retry: usize,
}

impl Heap {
    /// Creates a heap over two reserved address ranges, given by start and size in bytes: for small blocks and for large ones.
    pub fn new(tuning: Tuning, ranges: [(u64, u64); 2]) -> Self {
        let space = |index: usize| {
            let (base, size_bytes) = ranges[index];
            Space::new(index as u8, base, size_bytes.min(SPACE_BYTES_MAX) / PAGE_BYTES * PAGE_BYTES)
        };
        Self {
            spaces: [space(0), space(1)],
            pages: Pages::default(),
            segments: None,
            records: Records::new(),
            tuning: TuningByLimit::new(tuning),
            shares: Shares::default(),
            used_bytes: 0,
            used_peak_bytes: 0,
            fading_peak_bytes: 0,
            reserved_peak_bytes: 0,
            needed_peak_bytes: 0,
            kept_bytes: 0,
            keepable_bytes: 0,
            reserved_ahead_bytes: 0,
            lost: Lost::default(),
            sleepers: Vec::new(),
            outside_bytes: 0,
            mapping_credit: MAPPING_CREDIT_MAX,
            empty_retry: 0,
        }
    }

    /// Creates a heap that reserves no addresses: [`PhysicalMemory::create`](crate::PhysicalMemory::create) returns the address of each
    /// segment.
    pub fn of_segments(tuning: Tuning) -> Self {
        Self { segments: Some(Segments::default()), ..Self::new(tuning, [(0, SPACE_BYTES_MAX); 2]) }
    }

    /// Returns a block to the heap. The memory becomes usable once all `uses` are complete or ordered before the next user; immediately if
    /// there are none.
    ///
    /// `uses` must include the stream that the block was taken for, unless all work queued on it before the block was taken is
    /// complete.
    pub fn give(&mut self, record: u32, uses: &[Stamp]) {
        let Some(Record { kind: Kind::Live, space, size_bytes, state, .. }) =
            self.records.get(record).copied()
        else {
            debug_assert!(false, "record {record} is not live");
            return;
        };
        self.used_bytes -= size_bytes;
        if let Some(stream) = state.stream_index() {
            self.shares.give(stream, size_bytes);
        }
        let pending = match *uses {
            [stamp] if stamp != Stamp::COMPLETE => {
                stamps::Pending { state: FreeState::OneStream(stamp.stream_index()), stamp }
            }
            _ => self.records.stamp_sets.pending(uses),
        };
        self.spaces[usize::from(space)].give(&mut self.records, record, pending);
    }

    /// The physical memory that this heap has created and not released, in bytes.
    pub fn reserved_bytes(&self) -> u64 {
        (self.blocks_bytes() + self.lost.bytes()).saturating_add(self.outside_bytes)
    }

    /// The part of [`Heap::reserved_bytes`] that holds blocks or can hold them.
    pub fn blocks_bytes(&self) -> u64 {
        let segments_bytes = self.segments.as_ref().map_or(0, |segments| segments.reserved_bytes);
        self.pages.reserved_bytes + segments_bytes
    }

    /// Sets the bytes of physical memory that the caller holds outside the heap. They count as reserved too.
    pub fn set_outside_bytes(&mut self, size_bytes: u64) {
        self.outside_bytes = size_bytes;
        self.reserved_peak_bytes = self.reserved_peak_bytes.max(self.reserved_bytes());
    }

    /// The bytes last set by [`Heap::set_outside_bytes`].
    pub fn outside_bytes(&self) -> u64 {
        self.outside_bytes
    }

    /// Starts a new peak of [`Heap::reserved_bytes`] at its current value.
    pub fn reset_peak(&mut self) {
        self.reserved_peak_bytes = self.reserved_bytes();
    }

    /// The peak of [`Heap::reserved_bytes`] since the last [`Heap::reset_peak`].
    pub fn reserved_peak_bytes(&self) -> u64 {
        self.reserved_peak_bytes
    }

    /// The size of all blocks outside the heap, including those in thread caches.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// The actual size of a block, at least its requested size; 0 if the record is invalid.
    pub fn room_bytes(&self, record: u32) -> u64 {
        self.records.get(record).map_or(0, |record| record.size_bytes)
    }

    #[cfg(test)]
    pub(crate) fn mapping_count(&self) -> usize {
        self.pages.mapping_count()
    }

    /// The host memory of the heap's records, in bytes.
    pub fn record_bytes(&self) -> usize {
        let tables: usize = self.spaces.iter().map(Space::table_bytes).sum();
        let segments = self.segments.as_ref().map_or(0, Segments::size_bytes);
        self.records.size_bytes() + self.pages.size_bytes() + segments + tables
    }

    fn claimed(&mut self, index: usize, start: u64, size_bytes: u64, stream: StreamIndex) -> HeapBlock {
        let id = self.spaces[index].claim(&mut self.records, start, size_bytes);
        self.taken(index, id, stream)
    }

    fn taken(&mut self, index: usize, record: u32, stream: StreamIndex) -> HeapBlock {
        let Record { start, size_bytes, state, .. } = &mut self.records[record];
        *state = FreeState::OneStream(stream);
        let (start, size_bytes) = (*start, *size_bytes);
        if index == LARGE_SPACE && self.keeps_pages(stream) {
            self.spaces[index].own_pages(&mut self.records, record, stream);
        }
        self.shares.take(stream, size_bytes);
        if index == LARGE_SPACE {
            let credit = self.mapping_credit.saturating_add(self.tuning().mapping_allowance_per_mille);
            self.mapping_credit = credit.min(MAPPING_CREDIT_MAX);
        }
        self.used_bytes += size_bytes;
        self.used_peak_bytes = self.used_peak_bytes.max(self.used_bytes);
        self.fading_peak_bytes = self.fading_peak_bytes.max(self.used_bytes);
        let address = match &self.segments {
            None => self.spaces[index].base + start,
            Some(segments) => segments.address(index, start).unwrap_or_default(),
        };
        HeapBlock { address, record }
    }
}

/// The space of a request: small blocks have a separate one.
fn space_of(request: &Request) -> usize {
    usize::from(request.size_bytes > SMALL_MAX_BYTES)
}

fn rounded(size_bytes: u64) -> Option<u64> {
    size_bytes.max(1).checked_next_multiple_of(UNIT_BYTES).filter(|size| *size <= SIZE_MAX_BYTES)
}

fn pages_in(size_bytes: u64) -> u32 {
    u32::try_from(size_bytes.div_ceil(PAGE_BYTES)).unwrap_or(u32::MAX)
}

/// The largest space, in bytes: more than any device has. Addresses are free.
const SPACE_BYTES_MAX: u64 = 1 << 50;
/// The mapping credit of a program before its first large blocks.
const MAPPING_CREDIT_MAX: u32 = 512 * 1000;
const LARGE_SPACE: usize = 1;
const SMALL_MAX_BYTES: u64 = 1 << 20;
/// More than any device has; the sum of a few such sizes fits a word.
const SIZE_MAX_BYTES: u64 = 1 << 50;

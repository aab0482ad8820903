//! [`Heap`]: all of a device's cached memory, shared by its streams. Called under one lock.
//!
//! Addresses are reserved once, in two spaces: one for blocks up to 1 MiB, one for larger ones, so that no small block
//! holds a large stretch. A request looks at what its own stream has freed and at what is ready for all, by size. Only
//! when that finds nothing does it look further, each step dearer than the one before:
//!
//! 1. free stretches of several streams side by side, all ordered before the request (`take_ready`);
//! 2. stretches of addresses whose memory is idle under other addresses: it moves back, without a driver call;
//! 3. a new mapping over idle parts of handles (both `take_recycled`);
//! 4. new handles, up to the bytes that the caller allows (`take_grown`).
//!
//! Where the dials leave no slack and several streams share the heap, it is dealt out to them by the page: blocks of two
//! pages and more start with one, what is left of a page belongs to the stream that began it (`keeps_pages`), and
//! another of its blocks may start there ([`partial_page`]). A piece of a page that two streams have begun serves neither's large
//! blocks.
//!
//! Where there is no virtual memory, the spaces are filled with segments instead (`segments`), and 2 and 3 find nothing.
//!
//! What it keeps of all this on the host: 48 bytes for each stretch (a block, what is free beside it), and up to as much
//! again in reserve; likewise for each handle, with a word for each stream that has used it; 12 bytes, and a sixteenth of
//! that, for each 2 MiB of addresses ever in use, whether they are mapped or a gap; and 5 KiB of lists for each stream and
//! space. Nothing else grows with mappings that can't be unmapped yet, of which there may be a hundred for each page.
//!
//! Nothing here knows a driver: the calls go through [`PhysicalMemory`](PhysicalMemory), and what streams
//! have done is asked of [`Order`](crate::order::Order).

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
mod space;
mod stamps;
#[cfg(test)]
mod tests;
mod totals;
mod trim;
mod waits;

use crate::block::HeapBlock;
use crate::order::{Stamp, StreamIndex};
use crate::tuning::Tuning;
use careful::TuningByLimit;
use fit::UNIT_BYTES;
pub use lost::Lost;
use pages::Pages;
pub use pinning::BlockBacking;
use record::{Kind, Record, Records};
use segments::Segments;
use shares::Shares;
use space::{PAGE_BYTES, Space};
use stamps::Owner;

/// What a block is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Not zero; rounded up to 256.
    pub size_bytes: u64,
    /// A power of two.
    pub alignment: u64,
    /// The stream that will use it first.
    pub slot: StreamIndex,
}

/// The memory of one pool that no thread cache holds. The caller keeps it behind a lock.
#[derive(Debug)]
pub struct Heap {
    spaces: [Space; 2],
    pages: Pages,
    /// Instead of handles and mappings, where there is no virtual memory.
    segments: Option<Segments>,
    records: Records,
    tuning: TuningByLimit,
    shares: Shares,
    /// What blocks have, by the sizes that they were given.
    used_bytes: u64,
    used_peak_bytes: u64,
    /// A peak of `used_bytes` that decays with each miss; see `careful`.
    fading_peak_bytes: u64,
    reserved_peak_bytes: u64,
    /// As used, but for what threads keep at hand of large blocks: the most when that was asked for, and what they keep.
    needed_peak_bytes: u64,
    kept_bytes: u64,
    /// What they may keep, as it was last asked for.
    keepable_bytes: u64,
    /// How far `blocks_bytes` was reserved before it was needed, and has not been given back since.
    reserved_ahead_bytes: u64,
    lost: Lost,
    /// What others hold under the same limit.
    outside_bytes: u64,
    /// Mappings that may yet be made anew before the heap grows instead, in thousandths.
    mapping_credit: u32,
    /// How many mappings have to be empty before those that could not be unmapped are tried again.
    empty_retry: usize,
}

impl Heap {
    /// A heap over two reserved ranges of addresses, given by their starts and sizes: for small blocks and for others.
    pub fn new(tuning: Tuning, ranges: [(u64, u64); 2]) -> Self {
        let space = |index: usize| {
            let (base, size_bytes) = ranges[index];
            Space::new(index as u8, base, size_bytes / PAGE_BYTES * PAGE_BYTES)
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
            outside_bytes: 0,
            mapping_credit: MAPPING_CREDIT_MAX,
            empty_retry: 0,
        }
    }

    /// A heap without addresses of its own: the driver says with each segment where it is.
    pub fn of_segments(tuning: Tuning) -> Self {
        Self { segments: Some(Segments::default()), ..Self::new(tuning, [(0, SEGMENT_SPACE_BYTES); 2]) }
    }

    /// Takes back what a piece had: it waits for these uses, of which none are left when there are none.
    ///
    /// `uses` covers the stream that the piece was taken for, unless all work that was queued there before the piece was
    /// taken is complete too.
    pub fn give(&mut self, record: u32, uses: &[Stamp]) {
        let Some(Record { kind: Kind::Live, space, size_bytes, owner, .. }) =
            self.records.get(record).copied()
        else {
            debug_assert!(false, "record {record} is not live");
            return;
        };
        self.used_bytes -= size_bytes;
        if let Some(slot) = owner.slot() {
            self.shares.give(slot, size_bytes);
        }
        let pending = match *uses {
            [stamp] if stamp != Stamp::COMPLETE => stamps::Pending { owner: Owner::of(stamp.slot()), stamp },
            _ => self.records.sets.pending(uses),
        };
        self.spaces[usize::from(space)].give(&mut self.records, record, pending);
    }

    /// Physical memory that the driver has made for this heap and that it has not got back.
    pub fn reserved_bytes(&self) -> u64 {
        self.blocks_bytes() + self.lost.bytes() + self.outside_bytes
    }

    /// That part of it which blocks have, or could have.
    pub fn blocks_bytes(&self) -> u64 {
        let segments_bytes = self.segments.as_ref().map_or(0, |segments| segments.reserved_bytes);
        self.pages.reserved_bytes + segments_bytes
    }

    /// Physical memory that the caller holds beside the heap: it counts as reserved too.
    pub fn set_outside_bytes(&mut self, size_bytes: u64) {
        self.outside_bytes = size_bytes;
        self.reserved_peak_bytes = self.reserved_peak_bytes.max(self.reserved_bytes());
    }

    /// As last set by [`Heap::set_outside_bytes`].
    pub fn outside_bytes(&self) -> u64 {
        self.outside_bytes
    }

    /// From now on the peak is of what comes.
    pub fn reset_peak(&mut self) {
        self.reserved_peak_bytes = self.reserved_bytes();
    }

    /// The peak of [`Heap::reserved_bytes`] since it was last reset.
    pub fn reserved_peak_bytes(&self) -> u64 {
        self.reserved_peak_bytes
    }

    /// The sizes of all pieces that are handed out, thread caches included.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// What a piece that is out has.
    pub fn room_bytes(&self, record: u32) -> u64 {
        self.records.get(record).map_or(0, |record| record.size_bytes)
    }

    #[cfg(test)]
    pub(crate) fn mapping_count(&self) -> usize {
        self.pages.mapping_count()
    }

    /// The host memory of all records.
    pub fn record_bytes(&self) -> usize {
        let tables: usize = self.spaces.iter().map(Space::table_bytes).sum();
        let segments = self.segments.as_ref().map_or(0, Segments::size_bytes);
        self.records.size_bytes() + self.pages.size_bytes() + segments + tables
    }

    fn claimed(&mut self, index: usize, start: u64, size_bytes: u64, slot: StreamIndex) -> HeapBlock {
        let id = self.spaces[index].claim(&mut self.records, start, size_bytes);
        self.taken(index, id, slot)
    }

    fn taken(&mut self, index: usize, record: u32, slot: StreamIndex) -> HeapBlock {
        let Record { start, size_bytes, owner, .. } = &mut self.records[record];
        *owner = Owner::of(slot);
        let (start, size_bytes) = (*start, *size_bytes);
        if index == LARGE_SPACE && self.keeps_pages(slot) {
            self.spaces[index].own_pages(&mut self.records, record, slot);
        }
        self.shares.take(slot, size_bytes);
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

/// Small blocks have a space of their own.
fn space_of(request: &Request) -> usize {
    usize::from(request.size_bytes > SMALL_MAX_BYTES)
}

fn rounded(size_bytes: u64) -> Option<u64> {
    size_bytes.max(1).checked_next_multiple_of(UNIT_BYTES).filter(|size| *size <= SIZE_MAX_BYTES)
}

fn pages_in(size_bytes: u64) -> u32 {
    u32::try_from(size_bytes.div_ceil(PAGE_BYTES)).unwrap_or(u32::MAX)
}

/// Offsets cost nothing; there are more of them than any device has bytes.
const SEGMENT_SPACE_BYTES: u64 = 1 << 50;
/// What a program may use up before its first large blocks have earned any.
const MAPPING_CREDIT_MAX: u32 = 512 * 1000;
const LARGE_SPACE: usize = 1;
const SMALL_MAX_BYTES: u64 = 1 << 20;
/// More than any device has; sums of a few such sizes fit a word.
const SIZE_MAX_BYTES: u64 = 1 << 50;

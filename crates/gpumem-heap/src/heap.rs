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
mod demand;
mod extension;
mod fit;
mod glue;
mod grow;
mod idle_scan;
mod lost;
mod mappings;
mod memory_map;
mod pages;
mod partial_page;
mod plan;
mod ready;
mod record;
mod recycle;
mod remap;
mod request;
mod segments;
mod shares;
mod sleep;
mod space;
mod stamps;
mod stretches;
#[cfg(test)]
mod tests;
mod view;

use crate::block::HeapBlock;
use crate::memory::{PhysicalMemory, RawHandle};
use careful::TuningByLimit;
use check::{Check, expect};
use demand::Demand;
use extension::Extension;
use fit::UNIT_BYTES;
use glue::glued;
use gpumem_base::HeapTuning;
use gpumem_base::order::{Order, Stamp, StreamIndex};
use grow::GrowthLimits;
use idle_scan::IdleScan;
pub use lost::Lost;
use mappings::MappingId;
use memory_map::MemoryMap;
use pages::{Pages, ones, runs};
use plan::MappingPlan;
use ready::FreePlace;
use record::{RangeRecord, RecordKind, Records};
use recycle::Recycled;
use remap::Remap;
pub use request::BlockRequest;
use request::{LARGE_SPACE, SMALL_MAX_BYTES};
use segments::Segments;
use shares::Shares;
use sleep::SleepingHandles;
use space::{PAGE_BYTES, PAGE_SHIFT, Space, pages_in};
use stamps::{FreeState, PendingUses};
use std::collections::BTreeSet;
use stretches::longest_stretch;
use view::{OnlyComplete, View};

/// The memory of one pool that no thread cache holds. The caller keeps it behind a lock.
#[derive(Debug)]
pub struct Heap {
    map: MemoryMap,
    /// Replaces handles and mappings on devices without virtual memory.
    segments: Option<Segments>,
    lost: Lost,
    sleepers: SleepingHandles,
    tuning: TuningByLimit,
    shares: Shares,
    demand: Demand,
    reserved_peak_bytes: u64,
    /// Memory of the caller that counts against the same limit.
    outside_bytes: u64,
    /// The mappings that may be made before the heap grows instead, in thousandths.
    mapping_credit: u32,
    /// From this number of empty mappings on, those that could not be unmapped are tried again.
    empty_retry: usize,
}

/// The physical memory under a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockBacking {
    /// The handles from left to right, each with its size in bytes.
    pub handles: Vec<(RawHandle, u64)>,
    /// The offset of the block in the first handle.
    pub offset_bytes: u64,
}

/// The memory to search, and whether the block starts at a page boundary or with a partial page.
#[derive(Clone, Copy)]
struct Look {
    with_ready: bool,
    in_pages: bool,
}

impl Heap {
    /// Creates a heap over two reserved address ranges, given by start and size in bytes: for small blocks and for large ones.
    pub fn new(tuning: HeapTuning, ranges: [(u64, u64); 2]) -> Self {
        let space = |index: usize| {
            let (base, size_bytes) = ranges[index];
            Space::new(index as u8, base, size_bytes.min(SPACE_BYTES_MAX) / PAGE_BYTES * PAGE_BYTES)
        };
        Self {
            map: MemoryMap { spaces: [space(0), space(1)], pages: Pages::default(), records: Records::new() },
            segments: None,
            lost: Lost::default(),
            sleepers: SleepingHandles::default(),
            tuning: TuningByLimit::new(tuning),
            shares: Shares::default(),
            demand: Demand::default(),
            reserved_peak_bytes: 0,
            outside_bytes: 0,
            mapping_credit: MAPPING_CREDIT_MAX,
            empty_retry: 0,
        }
    }

    /// Creates a heap that reserves no addresses: [`PhysicalMemory::create`] returns the address of each segment.
    pub fn of_segments(tuning: HeapTuning) -> Self {
        Self { segments: Some(Segments::default()), ..Self::new(tuning, [(0, SPACE_BYTES_MAX); 2]) }
    }

    /// Returns a block to the heap. The memory becomes usable once all `uses` are complete or ordered before the next user; immediately if
    /// there are none.
    ///
    /// `uses` must include the stream that the block was taken for, unless all work queued on it before the block was taken is
    /// complete.
    pub fn give(&mut self, record: u32, uses: &[Stamp]) {
        let MemoryMap { spaces, records, .. } = &mut self.map;
        let Some(RangeRecord { kind: RecordKind::Live, space, size_bytes, state, .. }) =
            records.get(record).copied()
        else {
            debug_assert!(false, "record {record} is not live");
            return;
        };
        self.demand.give(size_bytes);
        if let Some(stream) = state.stream_index() {
            self.shares.give(stream, size_bytes);
        }
        let pending = match *uses {
            [stamp] if stamp != Stamp::COMPLETE => {
                PendingUses { state: FreeState::OneStream(stamp.stream_index()), stamp }
            }
            _ => records.stamp_sets.pending(uses),
        };
        spaces[usize::from(space)].give(records, record, pending);
    }

    /// Takes a block of free, mapped memory. Calls no [`PhysicalMemory`] function.
    pub fn take_ready(&mut self, request: &BlockRequest, order: &impl Order) -> Option<HeapBlock> {
        let with_ready = self.may_take_ready(request);
        let alignment = if self.starts_in_pages(request) { PAGE_BYTES } else { request.alignment };
        self.take_free(request.space(), &BlockRequest { alignment, ..*request }, order, with_ready)
    }

    /// Takes up to `count_max` blocks of one size side by side, of free, mapped memory, and appends them to `blocks`. All of them come
    /// from one free range, and have at most 1 MiB together. Calls no [`PhysicalMemory`] function.
    pub fn take_ready_run(
        &mut self,
        request: &BlockRequest,
        count_max: usize,
        order: &impl Order,
        blocks: &mut Vec<HeapBlock>,
    ) {
        let Some(size_bytes) = request.rounded_bytes() else { return };
        let mut count = (SMALL_MAX_BYTES / size_bytes).min(count_max as u64);
        while count > 0 {
            let run = BlockRequest { size_bytes: count * size_bytes, ..*request };
            if let Some(first) = self.take_ready(&run, order) {
                return self.split_run(first, size_bytes, blocks);
            }
            count /= 2;
        }
    }

    /// Splits a block into blocks of one size, and appends them to `blocks`.
    fn split_run(&mut self, first: HeapBlock, size_bytes: u64, blocks: &mut Vec<HeapBlock>) {
        let MemoryMap { spaces, records, .. } = &mut self.map;
        let RangeRecord { start, space, size_bytes: run_bytes, .. } = records[first.record];
        let mut record = first.record;
        blocks.push(first);
        for offset in (size_bytes..run_bytes).step_by(size_bytes as usize) {
            record = spaces[usize::from(space)].split(records, record, start + offset);
            blocks.push(HeapBlock { address: first.address + offset, record });
        }
    }

    /// Takes a small block from free memory among the large blocks. The last resort.
    pub fn take_leftover(&mut self, request: &BlockRequest, order: &impl Order) -> Option<HeapBlock> {
        self.take_free(LARGE_SPACE, request, order, true)
    }

    fn take_free(
        &mut self,
        index: usize,
        request: &BlockRequest,
        order: &impl Order,
        with_ready: bool,
    ) -> Option<HeapBlock> {
        let size_bytes = request.rounded_bytes()?;
        let view = View { with_ready, ..self.map.view(request.stream, order) };
        let allows = |start| self.allows(index, start, size_bytes);
        let found = FreePlace::find(&self.map, index, (size_bytes, request.alignment), &view, allows)?;
        let MemoryMap { spaces, records, .. } = &mut self.map;
        let id = match found {
            FreePlace::Alone { id, start } => spaces[index].take(records, id, start, size_bytes),
            FreePlace::Neighbours { start } => spaces[index].claim(records, start, size_bytes),
        };
        Some(self.taken(index, id, request.stream))
    }

    fn claimed(&mut self, index: usize, start: u64, size_bytes: u64, stream: StreamIndex) -> HeapBlock {
        let id = self.map.spaces[index].claim(&mut self.map.records, start, size_bytes);
        self.taken(index, id, stream)
    }

    fn taken(&mut self, index: usize, record: u32, stream: StreamIndex) -> HeapBlock {
        let RangeRecord { start, size_bytes, state, .. } = &mut self.map.records[record];
        *state = FreeState::OneStream(stream);
        let (start, size_bytes) = (*start, *size_bytes);
        if index == LARGE_SPACE && self.keeps_pages(stream) {
            self.map.spaces[index].own_pages(&mut self.map.records, record, stream);
        }
        self.shares.take(stream, size_bytes);
        if index == LARGE_SPACE {
            let credit = self.mapping_credit.saturating_add(self.tuning().mapping_allowance_per_mille);
            self.mapping_credit = credit.min(MAPPING_CREDIT_MAX);
        }
        self.demand.take(size_bytes);
        let address = match &self.segments {
            None => self.map.spaces[index].base + start,
            Some(segments) => segments.address(index, start).unwrap_or_default(),
        };
        HeapBlock { address, record }
    }

    /// True if streams receive memory in whole pages: there is no slack, and other streams could not use the rest of this stream's page.
    fn keeps_pages(&self, stream: StreamIndex) -> bool {
        self.tuning().growth_slack_per_mille == 0 && self.segments.is_none() && self.shares.has_others(stream)
    }

    /// True if a block must start at a page boundary.
    fn starts_in_pages(&self, request: &BlockRequest) -> bool {
        request.size_bytes >= 2 * PAGE_BYTES
            && request.alignment <= UNIT_BYTES
            && self.keeps_pages(request.stream)
    }

    fn may_take_ready(&self, request: &BlockRequest) -> bool {
        let BlockRequest { stream, size_bytes, .. } = *request;
        let slack = || self.tuning().growth_slack_per_mille;
        size_bytes <= SMALL_MAX_BYTES
            || self.has_plenty()
            || self.shares.may_take_ready(stream, size_bytes, slack(), &self.map.spaces)
    }

    /// True if more memory is ready than was ever in use at once, so streams need not economise.
    pub fn has_plenty(&self) -> bool {
        let ready = self.map.spaces[LARGE_SPACE].fit(FreeState::Ready);
        self.demand.keepable_bytes > 0
            || ready.is_some_and(|fit| fit.size_bytes > self.demand.used_peak_bytes)
    }

    /// True if a block may lie at a place: some segments may not be split.
    fn allows(&self, index: usize, start: u64, size_bytes: u64) -> bool {
        let Some(segments) = self.segments.as_ref().filter(|_| index == LARGE_SPACE) else { return true };
        let most_bytes = self.tuning().split_bytes_max;
        most_bytes == u64::MAX || segments.allows(start, size_bytes, most_bytes)
    }

    /// Takes a block of memory that is free at other addresses. The memory moves back to an earlier mapping, or is mapped again.
    ///
    /// # Errors
    ///
    /// The error of the [`PhysicalMemory`] call that failed. Nothing has changed then.
    pub fn take_recycled<M: PhysicalMemory>(
        &mut self,
        request: &BlockRequest,
        order: &impl Order,
        backing: &mut M,
    ) -> Result<Option<HeapBlock>, M::Refusal> {
        if self.starts_in_pages(request) {
            if let Some(block) = self.recycle(request, order, backing, true)? {
                return Ok(Some(block));
            }
            // A start within a page is better than growth of the heap.
            let with_ready = self.may_take_ready(request);
            if let Some(block) = self.take_free(request.space(), request, order, with_ready) {
                return Ok(Some(block));
            }
        }
        self.recycle(request, order, backing, false)
    }

    fn recycle<M: PhysicalMemory>(
        &mut self,
        request: &BlockRequest,
        order: &impl Order,
        backing: &mut M,
        in_pages: bool,
    ) -> Result<Option<HeapBlock>, M::Refusal> {
        let all = Look { with_ready: true, in_pages };
        if self.may_take_ready(request) {
            return self.take_idle(request, order, backing, all);
        }
        if let Some(block) = self.take_idle(request, order, backing, Look { with_ready: false, in_pages })? {
            return Ok(Some(block));
        }
        if let Some(block) = self.take_own_first(request, order, backing, in_pages)? {
            return Ok(Some(block));
        }
        let alignment = if in_pages { PAGE_BYTES } else { request.alignment };
        match self.take_free(request.space(), &BlockRequest { alignment, ..*request }, order, true) {
            Some(block) => Ok(Some(block)),
            None => self.take_idle(request, order, backing, all),
        }
    }

    fn take_idle<M: PhysicalMemory>(
        &mut self,
        request: &BlockRequest,
        order: &impl Order,
        backing: &mut M,
        look: Look,
    ) -> Result<Option<HeapBlock>, M::Refusal> {
        let (Some(size_bytes), index) = (request.rounded_bytes(), request.space()) else { return Ok(None) };
        let alignment = if look.in_pages { PAGE_BYTES } else { request.alignment };
        let view = View { with_ready: look.with_ready, ..self.map.view(request.stream, order) };
        let scan = self.movable(request, &view, look.in_pages);
        let ahead_bytes = self.ahead_bytes(index);
        match recycle::find(&self.map, index, (size_bytes, alignment), ahead_bytes, &view, &scan) {
            Some(Recycled::Remapped(Remap { start, moves })) => {
                moves.into_iter().for_each(|(mapping, mask)| self.map.move_pages(mapping, mask));
                Ok(Some(self.claimed(index, start, size_bytes, request.stream)))
            }
            Some(Recycled::Planned(place, row)) => self.build(request, Some((place, row)), backing),
            None => Ok(None),
        }
    }

    /// Takes all idle memory that the stream owns, and only the rest from memory that is ready for all streams.
    fn take_own_first<M: PhysicalMemory>(
        &mut self,
        request: &BlockRequest,
        order: &impl Order,
        backing: &mut M,
        in_pages: bool,
    ) -> Result<Option<HeapBlock>, M::Refusal> {
        let Some(size_bytes) = request.rounded_bytes().filter(|_| request.alignment <= PAGE_BYTES) else {
            return Ok(None);
        };
        let all = self.map.view(request.stream, order);
        let own_idle = IdleScan::movable(&self.map, &View { with_ready: false, ..all });
        let all_idle = self.movable(request, &all, in_pages);
        let row = recycle::own_first(&self.map, size_bytes, &own_idle, &all_idle);
        self.build(request, row.map(|row| (None, row)), backing)
    }

    /// The idle pages that may move, and for a block that starts in a page of its stream, the partial pages for that.
    fn movable(&self, request: &BlockRequest, view: &View<impl Order>, in_pages: bool) -> IdleScan {
        let scan = IdleScan::movable(&self.map, view);
        if in_pages { scan.with_ends(&self.map, request.space(), request.stream) } else { scan }
    }

    /// The bytes that small blocks take over at a time while there is slack or plenty of memory, so that the next requests find free
    /// memory.
    fn ahead_bytes(&self, index: usize) -> u64 {
        if index == LARGE_SPACE {
            return 0;
        }
        let share = |per_mille: u32| self.map.spaces[index].end() / 1000 * u64::from(per_mille);
        let slack_bytes = share(self.tuning().growth_slack_per_mille);
        let spare_bytes = (self.demand.keepable_bytes / SPARE_DIVISOR).min(SPARE_BYTES_MAX);
        let plenty_bytes = if self.has_plenty() { share(PLENTY_PER_MILLE) } else { 0 };
        slack_bytes.max(plenty_bytes).max(spare_bytes) / PAGE_BYTES * PAGE_BYTES
    }

    /// Makes a row of mappings, as an extension or separately, and takes a block there.
    fn build<M: PhysicalMemory>(
        &mut self,
        request: &BlockRequest,
        plan: Option<(Option<Extension>, MappingPlan)>,
        backing: &mut M,
    ) -> Result<Option<HeapBlock>, M::Refusal> {
        let Some((place, row)) = plan else { return Ok(None) };
        let (Some(size_bytes), index) = (request.rounded_bytes(), request.space()) else { return Ok(None) };
        let reserved_bytes = self.reserved_bytes();
        let built =
            build::build(&mut self.map, &mut self.lost, (index, reserved_bytes), place, &row, backing);
        self.note_reserved();
        let Some(start) = built? else { return Ok(None) };
        self.mapping_credit = self.mapping_credit.saturating_sub(1000 * row.mapping_count() as u32);
        Ok(Some(self.claimed(index, start, size_bytes, request.stream)))
    }

    /// Takes a block that includes new handles. At most `reserved_max_bytes` are reserved afterwards.
    ///
    /// # Errors
    ///
    /// The error of the [`PhysicalMemory`] call that failed, out of memory included. Nothing has changed then.
    pub fn take_grown<M: PhysicalMemory>(
        &mut self,
        request: &BlockRequest,
        order: &impl Order,
        backing: &mut M,
        reserved_max_bytes: u64,
    ) -> Result<Option<HeapBlock>, M::Refusal> {
        if self.segments.is_some() {
            return self.take_of_new_segment(request, backing, reserved_max_bytes);
        }
        if self.starts_in_pages(request) {
            let block = self.grow(request, order, backing, (reserved_max_bytes, true))?;
            if block.is_some() || reserved_max_bytes <= self.reserved_bytes() {
                return Ok(block);
            }
        }
        self.grow(request, order, backing, (reserved_max_bytes, false))
    }

    fn grow<M: PhysicalMemory>(
        &mut self,
        request: &BlockRequest,
        order: &impl Order,
        backing: &mut M,
        (reserved_max_bytes, in_pages): (u64, bool),
    ) -> Result<Option<HeapBlock>, M::Refusal> {
        let (Some(size_bytes), index) = (request.rounded_bytes(), request.space()) else { return Ok(None) };
        let alignment = if in_pages { PAGE_BYTES } else { request.alignment };
        let view = self.map.view(request.stream, order);
        let scan = self.movable(request, &view, in_pages);
        let growth = self.growth(request, reserved_max_bytes);
        let plan = growth.plan(&self.map, index, (size_bytes, alignment), &scan, &view);
        self.build(request, plan, backing)
    }

    /// Takes a block that starts and ends in pages that other blocks use in part, with new handles between them. The last resort.
    ///
    /// # Errors
    ///
    /// The error of the [`PhysicalMemory`] call that failed. Nothing has changed then.
    pub fn take_glued<M: PhysicalMemory>(
        &mut self,
        request: &BlockRequest,
        order: &impl Order,
        backing: &mut M,
        reserved_max_bytes: u64,
    ) -> Result<Option<HeapBlock>, M::Refusal> {
        let Some(size_bytes) = request.rounded_bytes().filter(|_| self.is_careful()) else {
            return Ok(None);
        };
        let view = self.map.view(request.stream, order);
        let scan = IdleScan::movable(&self.map, &view);
        let growth = self.growth(request, reserved_max_bytes);
        let row = glued(&self.map, (size_bytes, request.alignment), &scan, &view, &growth);
        self.build(request, row.map(|row| (None, row)), backing)
    }

    fn growth(&self, request: &BlockRequest, reserved_max_bytes: u64) -> GrowthLimits {
        GrowthLimits {
            room_pages: self.room_pages(reserved_max_bytes),
            target_pages: self.room_pages(self.growth_target_bytes(request)),
            step_pages: self.growth_pages(request.space()),
            handle_max_pages: self.tuning().handle_max_pages,
        }
    }

    /// The pages that may be added until some bytes are reserved.
    fn room_pages(&self, reserved_max_bytes: u64) -> u64 {
        reserved_max_bytes.saturating_sub(self.reserved_bytes()) >> PAGE_SHIFT
    }

    /// Takes a block of a new segment.
    fn take_of_new_segment<M: PhysicalMemory>(
        &mut self,
        request: &BlockRequest,
        backing: &mut M,
        reserved_max_bytes: u64,
    ) -> Result<Option<HeapBlock>, M::Refusal> {
        let (Some(size_bytes), index) = (request.rounded_bytes(), request.space()) else { return Ok(None) };
        let (needed, room) = (u64::from(pages_in(size_bytes)), self.room_pages(reserved_max_bytes));
        if needed > room {
            return Ok(None);
        }
        // Large while the limit has room; at the limit, the rest of a segment would be lost to other requests.
        let wanted = Some(self.new_segment_pages(request)).filter(|wanted| *wanted <= room);
        let wanted = wanted.unwrap_or(needed);
        let Some(segments) = &mut self.segments else { return Ok(None) };
        let start = match segments.add(&mut self.map, index, wanted, backing) {
            // The device may have less memory than the limit allows.
            Err(_) if needed < wanted => segments.add(&mut self.map, index, needed, backing)?,
            start => start?,
        };
        self.note_reserved();
        Ok(start.map(|start| self.claimed(index, start, size_bytes, request.stream)))
    }

    /// Creates memory that is ready for all streams. False if more than `reserved_max_bytes` would be reserved.
    ///
    /// # Errors
    ///
    /// The error of the [`PhysicalMemory`] call that failed. Segments that were created before it stay, ready for all streams.
    pub fn reserve<M: PhysicalMemory>(
        &mut self,
        size_bytes: u64,
        backing: &mut M,
        reserved_max_bytes: u64,
    ) -> Result<bool, M::Refusal> {
        let page_count = pages_in(size_bytes);
        let room = self.room_pages(reserved_max_bytes);
        if u64::from(page_count) > room {
            return Ok(false);
        }
        let HeapTuning { handle_max_pages, split_bytes_max, .. } = *self.tuning();
        let is_made = if let Some(segments) = &mut self.segments {
            segments.reserve(&mut self.map, u64::from(page_count), split_bytes_max >> PAGE_SHIFT, backing)
        } else {
            let new = grow::handles(page_count, handle_max_pages);
            let (row, end) =
                (MappingPlan { new, ..MappingPlan::default() }, self.map.spaces[LARGE_SPACE].end());
            build::make(&mut self.map, &mut self.lost, (LARGE_SPACE, end), &row, backing)
        };
        self.note_reserved();
        let is_made = is_made?;
        if is_made {
            self.demand.reserve_ahead(self.blocks_bytes());
        }
        Ok(is_made)
    }

    /// The growth, in bytes, up to which a new handle is preferred to more expensive steps.
    pub fn growth_target_bytes(&self, request: &BlockRequest) -> u64 {
        let used = self.demand.with(request.size_bytes);
        // Without mappings there must be room for the rest of a segment.
        let segment_pages =
            self.segments.as_ref().map_or(0, |_| self.segment_pages(request.space(), request.size_bytes));
        let HeapTuning { growth_slack_per_mille: usual, growth_slack_max_per_mille: most, .. } =
            *self.tuning();
        let beyond = |used: u64, per_mille: u32| {
            let slack_bytes = (used / 1000).saturating_mul(u64::from(per_mille));
            used.saturating_add(slack_bytes).saturating_add(segment_pages << PAGE_SHIFT)
        };
        if self.mapping_credit >= 1000 || most <= usual {
            return beyond(used, usual);
        }
        // Streams need the sum of their peaks if none is ever ordered after another.
        beyond(used.max(self.shares.peak_bytes()), most)
    }

    /// The least growth of a space, in pages: few handles for a large heap, little waste in a small one.
    fn growth_pages(&self, index: usize) -> u32 {
        let reserved = self.map.spaces[index].end().min(self.reserved_bytes());
        let bytes = reserved / u64::from(self.tuning().growth_divisor);
        let pages = (bytes >> PAGE_SHIFT).max(1).next_power_of_two();
        (pages as u32).min(self.tuning().handle_max_pages)
    }

    /// The size of a new segment for a request, in pages, if limits and device have room for it.
    fn new_segment_pages(&self, request: &BlockRequest) -> u64 {
        let size_bytes = request.rounded_bytes().unwrap_or(request.size_bytes);
        u64::from(pages_in(size_bytes)).max(self.segment_pages(request.space(), size_bytes))
    }

    /// The least size of a new segment, in pages: as much as is reserved already, up to the largest handle, rounded up to a power of two,
    /// because the rests of segments cannot be joined. Segments for small blocks are smaller, so that one small block keeps less memory.
    fn segment_pages(&self, space: usize, size_bytes: u64) -> u64 {
        match space {
            // The segment of a block that may not be split has the size of the block.
            LARGE_SPACE if size_bytes > self.tuning().split_bytes_max => 1,
            LARGE_SPACE => {
                let most_pages = u64::from(self.tuning().handle_max_pages.next_power_of_two())
                    .min(self.tuning().split_bytes_max >> PAGE_SHIFT);
                (self.reserved_bytes() >> PAGE_SHIFT).clamp(1, most_pages)
            }
            _ => u64::from(self.growth_pages(space)),
        }
    }

    /// True if a new segment for a request would take the heap far beyond what blocks have needed, and if smaller segments are free as a
    /// whole, with any last uses: [`Heap::release_outgrown`] then makes room for it.
    ///
    /// The heap may exceed its target by half of that need, so that a program with growing sizes pays for an occasional release instead of
    /// one per request. A tuning without slack leaves no such margin.
    pub fn has_outgrown(&self, request: &BlockRequest) -> bool {
        let need_bytes = self.demand.with(request.size_bytes);
        let margin_bytes = if self.tuning().has_slack() { need_bytes / 2 } else { 0 };
        let new_pages = self.new_segment_pages(request);
        self.reserved_bytes().saturating_add(new_pages << PAGE_SHIFT)
            > self.growth_target_bytes(request).saturating_add(margin_bytes)
            && self.segments.as_ref().is_some_and(|segments| segments.has_free(&self.map, new_pages))
    }

    /// Releases segments whose work is complete, for a new segment that is larger than each of them, until the heap is back at its
    /// target with the new one.
    ///
    /// Only smaller segments are released, so each exchange leaves the heap with a larger segment, and a program that repeats its requests
    /// stops exchanging: two requests cannot keep releasing each other's segments.
    ///
    /// # Errors
    ///
    /// The error of the [`PhysicalMemory`] call that failed. Segments released before the failure stay released.
    pub fn release_outgrown<M: PhysicalMemory>(
        &mut self,
        request: &BlockRequest,
        order: &impl Order,
        backing: &mut M,
    ) -> Result<(), M::Error> {
        let new_pages = self.new_segment_pages(request);
        let keep_bytes = self.growth_target_bytes(request).saturating_sub(new_pages << PAGE_SHIFT);
        self.release_segments(new_pages, keep_bytes, order, backing)
    }

    fn release_segments<M: PhysicalMemory>(
        &mut self,
        below_pages: u64,
        keep_bytes: u64,
        order: &impl Order,
        backing: &mut M,
    ) -> Result<(), M::Error> {
        let excess_bytes = self.reserved_bytes().saturating_sub(keep_bytes);
        let Some(segments) = &mut self.segments else { return Ok(()) };
        segments.release(&mut self.map, (below_pages, excess_bytes), order, backing)
    }

    /// A small set of stamps: once they are complete, free memory suffices for the request. If one stream suffices, this is its earliest
    /// suitable free. Empty if waiting for all stamps that `can_wait` accepts would not suffice.
    pub fn blockers(
        &self,
        request: &BlockRequest,
        order: &impl Order,
        can_wait: impl Fn(Stamp) -> bool,
    ) -> Vec<Stamp> {
        let size_bytes = request.rounded_bytes().unwrap_or(request.size_bytes);
        let allows = |start| self.allows(request.space(), start, size_bytes);
        blockers::blockers(&self.map, request, order, can_wait, allows)
    }

    /// True if frees of other streams are pending in the space of the request.
    pub fn has_pending_of_others(&self, request: &BlockRequest) -> bool {
        self.map.spaces[request.space()].has_pending_of_others(FreeState::OneStream(request.stream))
    }

    /// For each stream whose frees the request may not use, the stamp of the latest free.
    pub fn latest_pending(&self, request: &BlockRequest, order: &impl Order) -> Vec<Stamp> {
        blockers::latest_pending(&self.map, request.stream, order)
    }

    /// The streams that free memory waits for.
    pub fn pending_streams(&self) -> Vec<StreamIndex> {
        let records = &self.map.records;
        let mut streams = BTreeSet::new();
        for id in self.map.free_ids() {
            let pending = records[id].pending();
            streams.extend(records.stamp_sets.stamps(&pending).iter().map(|stamp| stamp.stream_index()));
        }
        streams.into_iter().collect()
    }

    /// Makes free memory ready for all streams if all its uses are complete. Call it after the clocks have advanced.
    pub fn settle(&mut self, order: &impl Order) {
        self.map.settle(order);
    }

    /// Releases handles that are free as a whole, until at most `keep_bytes` are reserved or no such handle is left. Returns the
    /// bytes released.
    ///
    /// # Errors
    ///
    /// The error of the [`PhysicalMemory`] call that failed. Memory released before the failure stays released.
    pub fn trim<M: PhysicalMemory>(
        &mut self,
        keep_bytes: u64,
        order: &impl Order,
        backing: &mut M,
    ) -> Result<u64, M::Error> {
        // Small blocks of several streams would hide a handle that is idle as a whole.
        self.settle(order);
        let before_bytes = self.reserved_bytes();
        self.release_segments(u64::MAX, keep_bytes, order, backing)?;
        let mut handles = self.releasable(order);
        handles.sort_unstable_by_key(|handle| self.map.handle_bytes(*handle));
        while !handles.is_empty() && self.reserved_bytes() > keep_bytes {
            let excess_bytes = self.reserved_bytes() - keep_bytes;
            // The smallest that suffices, otherwise the largest.
            let enough = handles.partition_point(|handle| self.map.handle_bytes(*handle) < excess_bytes);
            self.map.release(handles.remove(enough.min(handles.len() - 1)), &mut self.lost, backing)?;
        }
        Ok(before_bytes - self.reserved_bytes())
    }

    /// The handles whose pages are all idle and whose last uses, through any mapping, are complete.
    fn releasable(&self, order: &impl Order) -> Vec<u32> {
        let complete = OnlyComplete(order);
        let scan = IdleScan::collect(&self.map, &self.map.view(StreamIndex::HOST, &complete));
        let whole = scan.idle.iter().filter(|idle| {
            // A handle that sleeps has no memory to release.
            !self.sleepers.has(idle.handle)
                && idle.mask == ones(0, self.map.pages.handle(idle.handle).page_count)
                && self.map.pages.is_left(idle.handle, order)
        });
        whole.map(|idle| idle.handle).collect()
    }

    /// Unmaps mappings in which nothing is resident, until `keep_count` are left or none of the others may be unmapped. Their
    /// addresses are reused. Returns the number of mappings.
    ///
    /// # Errors
    ///
    /// The error of the [`PhysicalMemory`] call that failed. Mappings removed before the failure stay unmapped.
    pub fn unmap_empty<M: PhysicalMemory>(
        &mut self,
        keep_count: usize,
        order: &impl Order,
        backing: &mut M,
    ) -> Result<usize, M::Error> {
        let pages = &self.map.pages;
        let excess = pages.empty_count().saturating_sub(keep_count);
        let old = pages.empty_mappings().filter(|(_, handle)| pages.is_left(*handle, order));
        let old: Vec<MappingId> = old.take(excess).map(|(id, _)| id).collect();
        let unmapped = old.iter().try_for_each(|mapping| self.map.unmap(*mapping, backing));
        if let Some(last) = old.last() {
            self.map.pages.move_hand(*last);
        }
        let left = self.map.pages.empty_count();
        self.empty_retry = if left <= keep_count { 0 } else { left + left / 8 };
        unmapped.map(|()| old.len())
    }

    /// The number of empty mappings that are worth their records: several for each page of memory, within the tuning's maximum.
    pub fn kept_mappings(&self) -> usize {
        let page_count = (self.reserved_bytes() >> PAGE_SHIFT) as usize;
        (self.tuning().empty_mappings_max as usize).min((MAPPINGS_A_PAGE * page_count).max(MAPPINGS_MIN))
    }

    /// True if more than `keep_count` mappings are empty and, if the last try left some, enough of them for another try.
    pub fn is_unmapping_due(&self, keep_count: usize) -> bool {
        self.map.pages.empty_count() > keep_count.max(self.empty_retry)
    }

    /// Adds a handle that is not mapped, which the caller could not release.
    pub fn lose(&mut self, handle: RawHandle, size_bytes: u64) {
        self.lost.add(handle, size_bytes);
    }

    /// Tries again to unmap and release everything that could not be released before.
    ///
    /// # Errors
    ///
    /// The first error. Everything was tried.
    pub fn release_lost<M: PhysicalMemory>(&mut self, backing: &mut M) -> Result<(), M::Error> {
        if self.lost.is_empty() {
            return Ok(());
        }
        let unmapped = self.lost.unmap(&mut self.map.pages, backing);
        let released = self.lost.release(backing);
        unmapped.and(released)
    }

    /// Pins the handles under a block for as long as the handles exist: their pages do not move to other mappings, and they get no
    /// new mappings. They are released like other handles, once all their memory is free.
    pub fn pin(&mut self, record: u32) {
        let MemoryMap { pages, records, .. } = &mut self.map;
        let Some(RangeRecord { start, size_bytes, space, .. }) = records.get(record).copied() else { return };
        for slot in start >> PAGE_SHIFT..(start + size_bytes).div_ceil(PAGE_BYTES) {
            if let Some(entry) = pages.entry(usize::from(space), slot) {
                pages.pin(entry.handle());
            }
        }
    }

    /// Pins the handles under a block, and returns them with the offset of `address`. `None` if the record names no block.
    pub fn backing(&mut self, record: u32, address: u64) -> Option<BlockBacking> {
        self.pin(record);
        let MemoryMap { spaces, pages, records } = &self.map;
        let RangeRecord { start, size_bytes, space, .. } = records.get(record).copied()?;
        let space = usize::from(space);
        let first = pages.mapping_at(space, start >> PAGE_SHIFT)?;
        let (mut slot, mut handles) = (u64::from(first.slot()), Vec::new());
        let offset_bytes = address - spaces[space].base - (slot << PAGE_SHIFT);
        while slot << PAGE_SHIFT < start + size_bytes {
            let handle = pages.handle(pages.entry(space, slot)?.handle());
            handles.push((handle.raw, u64::from(handle.page_count) << PAGE_SHIFT));
            slot += u64::from(handle.page_count);
        }
        Some(BlockBacking { handles, offset_bytes })
    }

    /// True if any handle is pinned. A heap with pinned handles must not sleep.
    pub fn pins_any(&self) -> bool {
        self.map.pages.pins_any()
    }

    /// All mapped address ranges: start and size in bytes. Handles that sleep are not mapped.
    pub fn mappings(&self) -> impl Iterator<Item = (u64, u64)> {
        (0..self.map.spaces.len()).flat_map(|index| {
            let mapped = self.map.pages.mappings_in(index).map(|(id, _)| id);
            mapped.filter(|id| !self.sleepers.is_unmapped(*id)).map(|id| self.map.address_of(id))
        })
    }

    /// The address ranges at which the heap's memory is: start and size in bytes. Other mappings of the same memory are left out. A page that
    /// blocks at several addresses share is at each of them. Memory that sleeps is nowhere.
    pub fn resident_ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        let mapped = (0..self.map.spaces.len()).flat_map(|index| {
            let mapped = self.map.pages.mappings_in(index).filter(|(id, _)| !self.sleepers.is_unmapped(*id));
            mapped.flat_map(|(id, handle)| {
                let (whole, partial) = self.map.pages.resident_of(id, handle);
                let (start, _) = self.map.address_of(id);
                runs(whole | partial).map(move |(first, count)| {
                    (start + u64::from(first) * PAGE_BYTES, u64::from(count) * PAGE_BYTES)
                })
            })
        });
        mapped.chain(self.segments.iter().flat_map(Segments::ranges))
    }

    /// True if an address that belonged to a block has a mapping: it has none once its handle was forgotten.
    pub fn has_mapping(&self, address: u64) -> bool {
        self.map.spaces.iter().enumerate().any(|(index, space)| {
            let slot = address.checked_sub(space.base).map(|offset| offset >> PAGE_SHIFT);
            slot.is_some_and(|slot| self.map.pages.entry(index, slot).is_some())
        })
    }

    /// Selects all handles, and removes their empty mappings. Their pages do not move from then on, so the caller can copy the blocks.
    /// Returns the address ranges of the blocks, each within one mapping: start and size in bytes. All uses are complete, and nothing is
    /// pinned. The caller takes no block before [`Heap::end_sleep`].
    ///
    /// # Errors
    ///
    /// The error of the [`PhysicalMemory`] call that failed. No handle is selected then.
    pub fn begin_sleep<M: PhysicalMemory>(&mut self, backing: &mut M) -> Result<Vec<(u64, u64)>, M::Error> {
        self.sleepers.begin(&mut self.map, backing)
    }

    /// Unmaps the selected handles, and then releases them. Returns the bytes released.
    ///
    /// # Errors
    ///
    /// The error of the [`PhysicalMemory`] call that failed. [`Heap::wake`] undoes the calls before it. Contents are lost only in
    /// handles that were released.
    pub fn put_to_sleep<M: PhysicalMemory>(&mut self, backing: &mut M) -> Result<u64, M::Error> {
        self.sleepers.release(&mut self.map, backing)
    }

    /// Creates the handles that were released and maps them where they were. Handles whose blocks were all freed during the sleep are
    /// forgotten. Returns the bytes created.
    ///
    /// # Errors
    ///
    /// The error of the [`PhysicalMemory`] call that failed, out of memory included. A further call continues, and
    /// [`Heap::put_to_sleep`] releases the memory again.
    pub fn wake<M: PhysicalMemory>(&mut self, backing: &mut M) -> Result<u64, M::Refusal> {
        let woken = self.sleepers.wake(&mut self.map, backing);
        self.note_reserved();
        woken
    }

    /// Ends the sleep of a heap whose handles are all mapped: their pages may move again.
    pub fn end_sleep(&mut self) {
        self.sleepers.end(&mut self.map.pages);
    }

    /// True if handles sleep, or are about to.
    pub fn is_sleeping(&self) -> bool {
        !self.sleepers.is_empty()
    }

    /// The memory that sleeps, in bytes.
    pub fn sleeping_bytes(&self) -> u64 {
        self.sleepers.bytes(&self.map)
    }

    /// Forgets the handles that sleep, for a heap without blocks. What is still mapped is left to [`Heap::trim`].
    pub fn forget_sleepers(&mut self) {
        self.sleepers.forget(&mut self.map, &mut self.lost);
    }

    /// Sets the bytes that may be reserved, as the caller's limits allow; [`u64::MAX`] for no limit. Without virtual memory this
    /// changes nothing, because segments cannot be remapped. Call this once for each allocation that misses the thread caches: the
    /// peak of use that determines the distance from the limit decays with each call.
    pub fn set_limit_bytes(&mut self, limit_bytes: u64) {
        self.demand.fade();
        if self.segments.is_none() {
            self.tuning.set_limit_bytes(limit_bytes);
        }
    }

    /// True if the heap has a limit. Block sizes are not rounded up then.
    pub fn has_limit(&self) -> bool {
        self.tuning.has_limit()
    }

    /// The tuning for the current distance from the limit.
    pub fn tuning(&self) -> &HeapTuning {
        self.tuning.at(self.needed_bytes())
    }

    /// The decaying peak of use, but no more than is reserved. Memory that was reserved ahead and never used does not count.
    fn needed_bytes(&self) -> u64 {
        self.reserved_bytes().min(self.demand.fading_peak_bytes.saturating_add(self.outside_bytes))
    }

    /// True once blocks have needed half of the limit.
    fn is_careful(&self) -> bool {
        self.tuning.is_careful(self.needed_bytes())
    }

    /// The combined capacity of magazines and depot, in bytes.
    pub fn magazine_bytes(&self) -> u64 {
        self.tuning().magazine_bytes(self.reserved_bytes())
    }

    /// True if a miss leaves small blocks in the thread caches: the heap may grow by its slack first, or has enough free memory.
    pub fn spares_magazines(&self) -> bool {
        self.tuning().spares_magazines() || self.has_plenty()
    }

    /// Updates the bytes of large blocks that one thread cache retains: at its last visit, and now.
    ///
    /// The sum over all caches combines values of different times, and only limits how much they may retain. After a drain, the
    /// sum is too high until the thread's next visit; an allocation that lacks memory empties the caches in that case. Blocks
    /// retained since the last visit count as needed memory, so caches may retain less.
    pub fn note_kept(&mut self, before_bytes: u64, now_bytes: u64) {
        self.demand.note_kept(before_bytes, now_bytes);
    }

    /// The bytes of large blocks that thread caches may retain: the memory that was reserved ahead and never needed.
    pub fn keepable_bytes(&mut self) -> u64 {
        self.demand.update_keepable(self.blocks_bytes(), self.tuning().growth_slack_per_mille)
    }

    /// True if the unused memory that was reserved ahead exceeds a quarter of the peak of use, so that every block could be a
    /// quarter larger.
    pub fn is_far_ahead(&self) -> bool {
        self.demand.is_far_ahead()
    }

    /// The physical memory that this heap has created and not released, in bytes.
    pub fn reserved_bytes(&self) -> u64 {
        (self.blocks_bytes() + self.lost.bytes()).saturating_add(self.outside_bytes)
    }

    /// The part of [`Heap::reserved_bytes`] that holds blocks or can hold them.
    pub fn blocks_bytes(&self) -> u64 {
        let segments_bytes = self.segments.as_ref().map_or(0, |segments| segments.reserved_bytes);
        self.map.pages.reserved_bytes + segments_bytes
    }

    /// Sets the bytes of physical memory that the caller holds outside the heap. They count as reserved too.
    pub fn set_outside_bytes(&mut self, size_bytes: u64) {
        self.outside_bytes = size_bytes;
        self.note_reserved();
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

    /// Raises the peak after a step that may have reserved memory.
    fn note_reserved(&mut self) {
        self.reserved_peak_bytes = self.reserved_peak_bytes.max(self.reserved_bytes());
    }

    /// The size of all blocks outside the heap, including those in thread caches.
    pub fn used_bytes(&self) -> u64 {
        self.demand.used_bytes
    }

    /// The actual size of a block, at least its requested size; 0 if the record is invalid.
    pub fn room_bytes(&self, record: u32) -> u64 {
        self.map.records.get(record).map_or(0, |record| record.size_bytes)
    }

    /// Free memory for work on a stream, minus reserved memory. If this number changes, memory was freed to the heap, or released.
    pub fn free_bytes(&self, stream: StreamIndex) -> i64 {
        let states = [FreeState::Ready, FreeState::OneStream(stream)];
        let spaces = &self.map.spaces;
        let free = states.iter().flat_map(|state| spaces.iter().filter_map(|space| space.fit(*state)));
        let free_bytes: u64 = free.map(|fit| fit.size_bytes).sum();
        free_bytes.cast_signed() - self.reserved_bytes().cast_signed()
    }

    /// Free memory that is not ready for all streams: uses on the stream that freed it may be pending.
    pub fn pending_bytes(&self) -> u64 {
        let fits = self.map.spaces.iter().flat_map(|space| space.fits_by_state());
        fits.filter(|(state, _)| *state != FreeState::Ready.index()).map(|(_, fit)| fit.size_bytes).sum()
    }

    /// The largest block that needs no wait and no new handle; mappings may be needed.
    pub fn largest_free_bytes(&self, order: &impl Order) -> u64 {
        let complete = OnlyComplete(order);
        let view = self.map.view(StreamIndex::HOST, &complete);
        let lengths = self.map.spaces.iter().enumerate().map(|(index, space)| {
            let may_be_had = |(start, end): &(u64, u64)| self.allows(index, *start, end - start);
            // A block in the space of small blocks is small, except in pages that the other space takes over.
            let most_bytes = if index == LARGE_SPACE { u64::MAX } else { SMALL_MAX_BYTES };
            longest_stretch(space, &view, may_be_had).min(most_bytes)
        });
        let longest = lengths.max().unwrap_or(0);
        let movable = IdleScan::movable(&self.map, &view);
        // Other idle pages lie between blocks of the same handles.
        let sizes = |handle| self.map.pages.handle(handle).page_count;
        let (parts, last) = plan::reach(&movable.idle, sizes, false);
        let in_a_row: u32 = parts.iter().chain(&last).map(|part| part.count).sum();
        let in_one = movable.idle.iter().flat_map(|idle| runs(idle.mask)).map(|(_, count)| count).max();
        longest.max(u64::from(in_a_row.max(in_one.unwrap_or(0))) * PAGE_BYTES)
    }

    #[cfg(test)]
    pub(crate) fn mapping_count(&self) -> usize {
        self.map.pages.mapping_count()
    }

    /// The address and the size of each block outside the heap, thread caches included. The size may be rounded up.
    pub fn live_blocks(&self) -> impl Iterator<Item = (u64, u64)> {
        let MemoryMap { spaces, records, .. } = &self.map;
        records.live().filter_map(|record| {
            let space = spaces.get(usize::from(record.space))?;
            Some((space.base + record.start, record.size_bytes))
        })
    }

    /// The host memory of the heap's records, in bytes.
    pub fn record_bytes(&self) -> usize {
        let MemoryMap { spaces, pages, records } = &self.map;
        let tables: usize = spaces.iter().map(Space::table_bytes).sum();
        let segments = self.segments.as_ref().map_or(0, Segments::size_bytes);
        records.size_bytes() + pages.size_bytes() + segments + tables
    }

    /// Checks all invariants, and returns the number of blocks outside the heap.
    ///
    /// # Errors
    ///
    /// A description of the first contradiction.
    pub fn check(&self) -> Result<u64, String> {
        let Demand { used_bytes, used_peak_bytes, .. } = self.demand;
        let (segments, sleeping_bytes) = (self.segments.as_ref(), self.sleeping_bytes());
        let (live_count, live_bytes) = Check { map: &self.map, segments, sleeping_bytes }
            .run(|index, start, size_bytes| self.allows(index, start, size_bytes))?;
        expect(live_bytes == used_bytes, || format!("{live_bytes} bytes are live, {used_bytes} counted"))?;
        expect(used_bytes <= used_peak_bytes, || "used_bytes exceeds its peak".into())?;
        expect(self.lost.check(), || "the size of lost handles is wrong".into())?;
        expect(self.reserved_bytes() <= self.reserved_peak_bytes, || {
            "reserved_bytes exceeds its peak".into()
        })?;
        Ok(live_count)
    }
}

/// The largest space, in bytes: more than any device has. Addresses are free.
const SPACE_BYTES_MAX: u64 = 1 << 50;
/// The mapping credit of a program before its first large blocks.
const MAPPING_CREDIT_MAX: u32 = 512 * 1000;
/// The fraction of their own space that small blocks take over at a time, while more memory is ready than was ever in use.
const PLENTY_PER_MILLE: u32 = 100;
/// The fraction of the retainable memory that small blocks take over at a time.
const SPARE_DIVISOR: u64 = 64;
/// The most that small blocks take over at a time: the heap's lock is held while it is mapped.
const SPARE_BYTES_MAX: u64 = 64 << 20;
/// The number of empty mappings kept for each page. They take 100 bytes, 0.005 % of the page.
const MAPPINGS_A_PAGE: usize = 8;
/// The least number, for small heaps.
const MAPPINGS_MIN: usize = 256;

//! [`Segments`]: memory that cannot be mapped elsewhere, for devices without virtual memory.
//!
//! The heap's spaces are then offsets, backed by segments that have an address each. A page between two segments is always a gap, so no
//! free range and no block crosses the border. There are no mappings, so nothing is recycled: free memory is used where it is, and a
//! segment that is free as a whole is released.
//!
//! A segment that was split is whole again only when all of its blocks are freed. To keep small blocks from preventing that, segments above
//! a size can be reserved for blocks that need nearly all of them (`split_bytes_max`). The remainder of such a segment is unused until the
//! block is freed.

use super::memory_map::MemoryMap;
use super::request::LARGE_SPACE;
use super::space::{PAGE_BYTES, PAGE_SHIFT};
use super::stamps::PendingUses;
use super::view::OnlyComplete;
use crate::memory::{PhysicalMemory, RawHandle};
use gpumem_base::SPLIT_BYTES_MAX_MIN;
use gpumem_base::order::{Order, Stamp, StreamIndex};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct Segments {
    /// For each space, by the first slot of the segment.
    by_place: [BTreeMap<u64, Segment>; 2],
    pub(super) reserved_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    raw: RawHandle,
    page_count: u64,
}

impl Segments {
    /// The address of an offset in a space.
    pub(super) fn address(&self, space: usize, place: u64) -> Option<u64> {
        let (slot, segment) = self.at(space, place >> PAGE_SHIFT)?;
        Some(segment.raw.0 + (place - (slot << PAGE_SHIFT)))
    }

    /// The addresses of all segments: start and size in bytes.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        let segments = self.by_place.iter().flat_map(BTreeMap::values);
        segments.map(|segment| (segment.raw.0, segment.page_count << PAGE_SHIFT))
    }

    /// The segment of a slot.
    fn at(&self, space: usize, slot: u64) -> Option<(u64, Segment)> {
        let (first, segment) = self.by_place[space].range(..=slot).next_back()?;
        (slot < first + segment.page_count).then_some((*first, *segment))
    }

    pub(super) fn has(&self, space: usize, slot: u64) -> bool {
        self.at(space, slot).is_some()
    }

    /// For [`super::check`]: true if there is a gap behind each segment, and if the sum is right.
    pub(super) fn is_consistent(&self) -> bool {
        let is_apart = |by_place: &BTreeMap<u64, Segment>| {
            let ends = by_place.iter().map(|(slot, segment)| slot + segment.page_count + WALL_PAGES);
            ends.zip(by_place.keys().skip(1)).all(|(end, next)| end <= *next)
        };
        let page_count: u64 = self.all().map(|(_, _, segment)| segment.page_count).sum();
        self.by_place.iter().all(is_apart) && page_count << PAGE_SHIFT == self.reserved_bytes
    }

    fn all(&self) -> impl Iterator<Item = (usize, u64, Segment)> {
        let of = |(space, by_place)| {
            let named = move |(slot, segment): (&u64, &Segment)| (space, *slot, *segment);
            BTreeMap::iter(by_place).map(named)
        };
        self.by_place.iter().enumerate().flat_map(of)
    }

    /// True if a block may lie at a place: a segment above `split_bytes_max` holds only one block, which needs nearly all of it.
    pub(super) fn allows(&self, start: u64, size_bytes: u64, split_bytes_max: u64) -> bool {
        let Some((_, segment)) = self.at(LARGE_SPACE, start >> PAGE_SHIFT) else { return true };
        let segment_bytes = segment.page_count << PAGE_SHIFT;
        if size_bytes > split_bytes_max {
            segment_bytes <= size_bytes.saturating_add(split_bytes_max.min(SPLIT_BYTES_MAX_MIN))
        } else {
            segment_bytes <= split_bytes_max
        }
    }

    /// Creates a segment that is ready for all streams, and returns its place. `None` if the space has no room.
    pub(super) fn add<M: PhysicalMemory>(
        &mut self,
        map: &mut MemoryMap,
        space: usize,
        page_count: u64,
        backing: &mut M,
    ) -> Result<Option<u64>, M::Refusal> {
        let place_count = page_count + WALL_PAGES;
        let free_range = map.pages.free_va_ranges(space).find(place_count);
        if free_range.is_none() && map.spaces[space].room_bytes() >> PAGE_SHIFT < place_count {
            return Ok(None);
        }
        let size_bytes = page_count << PAGE_SHIFT;
        let raw = backing.create(size_bytes)?;
        let start = match free_range {
            Some(slot) => slot << PAGE_SHIFT,
            None => map.spaces[space].end(),
        };
        match free_range {
            Some(slot) => map.pages.free_va_ranges_mut(space).fill(slot, place_count),
            None => map.spaces[space].extend(&mut map.records, place_count << PAGE_SHIFT),
        }
        map.spaces[space].occupy(&mut map.records, start, start + size_bytes, PendingUses::READY);
        self.by_place[space].insert(start >> PAGE_SHIFT, Segment { raw, page_count });
        self.reserved_bytes += size_bytes;
        Ok(Some(start))
    }

    /// Creates segments of at most `most_pages`, for a number of pages together. False if the space has no room.
    pub(super) fn reserve<M: PhysicalMemory>(
        &mut self,
        map: &mut MemoryMap,
        page_count: u64,
        most_pages: u64,
        backing: &mut M,
    ) -> Result<bool, M::Refusal> {
        let mut left = page_count;
        while left > 0 {
            if self.add(map, LARGE_SPACE, left.min(most_pages), backing)?.is_none() {
                return Ok(false);
            }
            left -= left.min(most_pages);
        }
        Ok(true)
    }

    /// Segments of fewer pages than `below_pages` that are free as a whole and whose last uses are complete.
    fn free(&self, map: &MemoryMap, order: &impl Order, below_pages: u64) -> Vec<(usize, u64, Segment)> {
        let complete = OnlyComplete(order);
        let view = map.view(StreamIndex::HOST, &complete);
        let is_idle = |(index, slot, segment): &(usize, u64, Segment)| {
            let (space, start) = (&map.spaces[*index], slot << PAGE_SHIFT);
            let id = space.at(&map.records, start);
            let end = start + (segment.page_count << PAGE_SHIFT);
            view.is_usable(&map.records[id]) && space.run_around(id, &view) == (start, end)
        };
        let small = |(_, _, segment): &(usize, u64, Segment)| segment.page_count < below_pages;
        self.all().filter(small).filter(is_idle).collect()
    }

    /// True if a segment of fewer pages than `below_pages` is free as a whole, with any last uses.
    pub(super) fn has_free(&self, map: &MemoryMap, below_pages: u64) -> bool {
        !self.free(map, &AllComplete, below_pages).is_empty()
    }

    /// Releases segments of fewer pages than `below_pages` that are free as a whole and whose last uses are complete, until
    /// `excess_bytes` are released or none is left.
    pub(super) fn release<M: PhysicalMemory>(
        &mut self,
        map: &mut MemoryMap,
        (below_pages, mut excess_bytes): (u64, u64),
        order: &impl Order,
        backing: &mut M,
    ) -> Result<(), M::Error> {
        let mut free = self.free(map, order, below_pages);
        free.sort_unstable_by_key(|(_, _, segment)| segment.page_count);
        while !free.is_empty() && excess_bytes > 0 {
            let excess_pages = excess_bytes.div_ceil(PAGE_BYTES);
            // The smallest that suffices, otherwise the largest.
            let enough = free.partition_point(|(_, _, segment)| segment.page_count < excess_pages);
            let (space, slot, Segment { raw, page_count }) = free.remove(enough.min(free.len() - 1));
            let (start, size_bytes) = (slot << PAGE_SHIFT, page_count << PAGE_SHIFT);
            backing.release(raw, size_bytes)?;
            map.clear(space, (start, start + size_bytes));
            map.pages.free_va_ranges_mut(space).add(slot, page_count + WALL_PAGES);
            self.by_place[space].remove(&slot);
            self.reserved_bytes -= size_bytes;
            excess_bytes = excess_bytes.saturating_sub(size_bytes);
        }
        Ok(())
    }

    pub(super) fn size_bytes(&self) -> usize {
        self.by_place.iter().map(BTreeMap::len).sum::<usize>() * size_of::<(u64, Segment)>()
    }
}

/// An order in which all work is complete.
struct AllComplete;

impl Order for AllComplete {
    fn is_ordered(&self, _: Stamp, _before: StreamIndex) -> bool {
        true
    }

    fn is_complete(&self, _: Stamp) -> bool {
        true
    }
}

/// The gap behind each segment.
const WALL_PAGES: u64 = 1;

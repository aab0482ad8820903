//! [`Segments`]: memory that cannot be mapped elsewhere, for devices without virtual memory.
//!
//! The heap's spaces are then offsets, backed by segments that have an address each. A page between two segments is always a gap, so no
//! free range and no block crosses the border. There are no mappings, so nothing is recycled: free memory is used where it is, and a
//! segment that is free as a whole is released.
//!
//! A segment that was split is whole again only when all of its blocks are freed. To keep small blocks from preventing that, segments above
//! a size can be reserved for blocks that need nearly all of them (`split_bytes_max`). The remainder of such a segment is unused until the
//! block is freed.

use super::idle_scan::View;
use super::record::Records;
use super::space::{PAGE_BYTES, PAGE_SHIFT};
use super::stamps::Pending;
use super::trim::Complete;
use super::{Heap, LARGE_SPACE, Request, pages_in, rounded, space_of};
use crate::block::HeapBlock;
use crate::memory::{PhysicalMemory, RawHandle};
use crate::order::{Order, Stamp, StreamIndex};
use crate::tuning::SPLIT_BYTES_MAX_MIN;
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

    pub(super) fn size_bytes(&self) -> usize {
        self.by_place.iter().map(BTreeMap::len).sum::<usize>() * size_of::<(u64, Segment)>()
    }
}

impl Heap {
    /// Takes a block of a new segment. Like [`Heap::take_grown`].
    pub(super) fn take_of_new_segment<M: PhysicalMemory>(
        &mut self,
        request: &Request,
        backing: &mut M,
        reserved_max_bytes: u64,
    ) -> Result<Option<HeapBlock>, M::Refusal> {
        let Some(size_bytes) = rounded(request.size_bytes) else { return Ok(None) };
        let (index, needed) = (space_of(request), u64::from(pages_in(size_bytes)));
        let room = reserved_max_bytes.saturating_sub(self.reserved_bytes()) >> PAGE_SHIFT;
        if needed > room {
            return Ok(None);
        }
        // Large while the limit has room; at the limit, the rest of a segment would be lost to other requests.
        let wanted = Some(self.new_segment_pages(request)).filter(|wanted| *wanted <= room);
        let wanted = wanted.unwrap_or(needed);
        let start = match self.add_segment(index, wanted, backing) {
            // The device may have less memory than the limit allows.
            Err(_) if needed < wanted => self.add_segment(index, needed, backing)?,
            start => start?,
        };
        Ok(start.map(|start| self.claimed(index, start, size_bytes, request.stream)))
    }

    /// True if a block may lie at a place: a segment above `split_bytes_max` holds only one block, which needs nearly all of it.
    pub(super) fn allows(&self, index: usize, start: u64, size_bytes: u64) -> bool {
        let most_bytes = self.tuning().split_bytes_max;
        if index != LARGE_SPACE || most_bytes == u64::MAX {
            return true;
        }
        let segment = self.segments.as_ref().and_then(|segments| segments.at(index, start >> PAGE_SHIFT));
        let Some((_, segment)) = segment else { return true };
        let segment_bytes = segment.page_count << PAGE_SHIFT;
        if size_bytes > most_bytes {
            segment_bytes <= size_bytes.saturating_add(most_bytes.min(SPLIT_BYTES_MAX_MIN))
        } else {
            segment_bytes <= most_bytes
        }
    }

    /// Creates a segment that is ready for all streams, and returns its place. `None` if the space has no room.
    pub(super) fn add_segment<M: PhysicalMemory>(
        &mut self,
        space: usize,
        page_count: u64,
        backing: &mut M,
    ) -> Result<Option<u64>, M::Refusal> {
        let place_count = page_count + WALL_PAGES;
        let free_range = self.pages.free_va_ranges(space).find(place_count);
        if free_range.is_none() && self.spaces[space].room_bytes() >> PAGE_SHIFT < place_count {
            return Ok(None);
        }
        let size_bytes = page_count << PAGE_SHIFT;
        let raw = backing.create(size_bytes)?;
        let start = match free_range {
            Some(slot) => slot << PAGE_SHIFT,
            None => self.spaces[space].end(),
        };
        match free_range {
            Some(slot) => self.pages.free_va_ranges_mut(space).fill(slot, place_count),
            None => self.spaces[space].extend(&mut self.records, place_count << PAGE_SHIFT),
        }
        self.spaces[space].occupy(&mut self.records, start, start + size_bytes, Pending::READY);
        if let Some(segments) = &mut self.segments {
            segments.by_place[space].insert(start >> PAGE_SHIFT, Segment { raw, page_count });
            segments.reserved_bytes += size_bytes;
        }
        self.reserved_peak_bytes = self.reserved_peak_bytes.max(self.reserved_bytes());
        Ok(Some(start))
    }

    /// Creates segments that may be split, for a number of pages together. False if the space has no room.
    pub(super) fn reserve_segments<M: PhysicalMemory>(
        &mut self,
        page_count: u64,
        backing: &mut M,
    ) -> Result<bool, M::Refusal> {
        let most_pages = self.tuning().split_bytes_max >> PAGE_SHIFT;
        let mut left = page_count;
        while left > 0 {
            if self.add_segment(LARGE_SPACE, left.min(most_pages), backing)?.is_none() {
                return Ok(false);
            }
            left -= left.min(most_pages);
        }
        Ok(true)
    }

    /// True if a new segment for a request would take the heap far beyond what blocks have needed, and if smaller segments are free as a
    /// whole, with any last uses: [`Heap::release_outgrown`] then makes room for it.
    ///
    /// The heap may exceed its target by half of that need, so that a program with growing sizes pays for an occasional release instead of
    /// one per request. A tuning without slack leaves no such margin.
    pub fn has_outgrown(&self, request: &Request) -> bool {
        let need_bytes = self.growth_need_bytes(request);
        let margin_bytes = if self.tuning().has_slack() { need_bytes / 2 } else { 0 };
        let new_bytes = self.new_segment_pages(request) << PAGE_SHIFT;
        self.reserved_bytes().saturating_add(new_bytes)
            > self.growth_target_bytes(request).saturating_add(margin_bytes)
            && !self.free_segments(&AllComplete, self.new_segment_pages(request)).is_empty()
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
        request: &Request,
        order: &impl Order,
        backing: &mut M,
    ) -> Result<(), M::Error> {
        let new_pages = self.new_segment_pages(request);
        let keep_bytes = self.growth_target_bytes(request).saturating_sub(new_pages << PAGE_SHIFT);
        self.release_of(self.free_segments(order, new_pages), keep_bytes, backing)
    }

    /// Releases segments that are free as a whole. Like [`Heap::trim`].
    pub(super) fn trim_segments<M: PhysicalMemory>(
        &mut self,
        keep_bytes: u64,
        order: &impl Order,
        backing: &mut M,
    ) -> Result<(), M::Error> {
        self.release_of(self.free_segments(order, u64::MAX), keep_bytes, backing)
    }

    /// Releases segments of a list until at most `keep_bytes` are reserved or none is left.
    fn release_of<M: PhysicalMemory>(
        &mut self,
        mut idle: Vec<(usize, u64, Segment)>,
        keep_bytes: u64,
        backing: &mut M,
    ) -> Result<(), M::Error> {
        idle.sort_unstable_by_key(|(_, _, segment)| segment.page_count);
        while !idle.is_empty() && self.reserved_bytes() > keep_bytes {
            let excess = (self.reserved_bytes() - keep_bytes).div_ceil(PAGE_BYTES);
            // The smallest that suffices, otherwise the largest.
            let enough = idle.partition_point(|(_, _, segment)| segment.page_count < excess);
            let (space, slot, segment) = idle.remove(enough.min(idle.len() - 1));
            self.release_segment(space, slot, segment, backing)?;
        }
        Ok(())
    }

    /// Segments of fewer pages than `below_pages` that are free as a whole and whose last uses are complete.
    fn free_segments(&self, order: &impl Order, below_pages: u64) -> Vec<(usize, u64, Segment)> {
        let complete = Complete(order);
        let view =
            View { records: &self.records, stream: StreamIndex::HOST, order: &complete, with_ready: true };
        let is_idle = |(index, slot, segment): &(usize, u64, Segment)| {
            let (space, start) = (&self.spaces[*index], slot << PAGE_SHIFT);
            let id = space.at(&self.records, start);
            let end = start + (segment.page_count << PAGE_SHIFT);
            view.is_usable(&self.records[id]) && space.run_around(id, &view) == (start, end)
        };
        let small = |(_, _, segment): &(usize, u64, Segment)| segment.page_count < below_pages;
        self.segments.iter().flat_map(Segments::all).filter(small).filter(is_idle).collect()
    }

    fn release_segment<M: PhysicalMemory>(
        &mut self,
        space: usize,
        slot: u64,
        Segment { raw, page_count }: Segment,
        backing: &mut M,
    ) -> Result<(), M::Error> {
        let (start, size_bytes) = (slot << PAGE_SHIFT, page_count << PAGE_SHIFT);
        backing.release(raw, size_bytes)?;
        let drop_uses =
            |records: &mut Records, _: u64, _: u64, pending: Pending| records.stamp_sets.drop(pending);
        self.spaces[space].vacate(&mut self.records, start, start + size_bytes, drop_uses);
        self.pages.free_va_ranges_mut(space).add(slot, page_count + WALL_PAGES);
        if let Some(segments) = &mut self.segments {
            segments.by_place[space].remove(&slot);
            segments.reserved_bytes -= size_bytes;
        }
        Ok(())
    }

    /// The size of a new segment for a request, in pages, if limits and device have room for it.
    fn new_segment_pages(&self, request: &Request) -> u64 {
        let size_bytes = rounded(request.size_bytes).unwrap_or(request.size_bytes);
        u64::from(pages_in(size_bytes)).max(self.segment_pages(space_of(request), size_bytes))
    }

    /// The least size of a new segment, in pages: as much as is reserved already, up to the largest handle, rounded up to a power of two,
    /// because the rests of segments cannot be joined. Segments for small blocks are smaller, so that one small block keeps less memory.
    pub(super) fn segment_pages(&self, space: usize, size_bytes: u64) -> u64 {
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

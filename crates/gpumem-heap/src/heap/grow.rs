//! Growth: how many new handles or segments, how large, and how far.

use super::build::{self, MappingPlan};
use super::extension::Extension;
use super::idle_scan::{Idle, IdleScan, View};
use super::plan;
use super::space::{PAGE_BYTES, PAGE_SHIFT};
use super::{Heap, LARGE_SPACE, Request, pages_in, rounded, space_of};
use crate::block::HeapBlock;
use crate::memory::PhysicalMemory;
use crate::order::Order;
use crate::tuning::Tuning;

impl Heap {
    /// Takes a block that includes new handles. At most `reserved_max_bytes` are reserved afterwards.
    ///
    /// # Errors
    ///
    /// The error of the [`PhysicalMemory`] call that failed, out of memory included. Nothing has changed then.
    pub fn take_grown<M: PhysicalMemory>(
        &mut self,
        request: &Request,
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

    /// Takes a block that starts and ends in pages that other blocks use in part, with new handles between them. The last resort.
    ///
    /// # Errors
    ///
    /// The error of the [`PhysicalMemory`] call that failed. Nothing has changed then.
    pub fn take_glued<M: PhysicalMemory>(
        &mut self,
        request: &Request,
        order: &impl Order,
        backing: &mut M,
        reserved_max_bytes: u64,
    ) -> Result<Option<HeapBlock>, M::Refusal> {
        let Some(size_bytes) = rounded(request.size_bytes) else { return Ok(None) };
        let room = reserved_max_bytes.saturating_sub(self.reserved_bytes()) >> PAGE_SHIFT;
        let view = View { records: &self.records, stream: request.stream, order, with_ready: true };
        let scan = IdleScan::movable(&self.pages, &self.spaces, &view);
        match self.glued((size_bytes, request.alignment), &scan, &view, room) {
            Some(row) => {
                self.build(space_of(request), &Request { size_bytes, ..*request }, None, &row, backing)
            }
            None => Ok(None),
        }
    }

    fn grow<M: PhysicalMemory>(
        &mut self,
        request: &Request,
        order: &impl Order,
        backing: &mut M,
        (reserved_max_bytes, in_pages): (u64, bool),
    ) -> Result<Option<HeapBlock>, M::Refusal> {
        let alignment = if in_pages { PAGE_BYTES } else { request.alignment };
        let Some(size_bytes) = rounded(request.size_bytes) else { return Ok(None) };
        let index = space_of(request);
        let room = reserved_max_bytes.saturating_sub(self.reserved_bytes()) >> PAGE_SHIFT;
        let view = View { records: &self.records, stream: request.stream, order, with_ready: true };
        let mut scan = IdleScan::movable(&self.pages, &self.spaces, &view);
        if in_pages {
            scan.ends = self.ends(index, request.stream, &scan);
        }
        let mut extensions = self.extensions(index, (size_bytes, alignment), &scan, &view);
        let target = self.growth_target_bytes(request).saturating_sub(self.reserved_bytes()) >> PAGE_SHIFT;
        let Some(last) = extensions.last() else { return Ok(None) };
        let (place, row) = if last.missing_pages == 0 {
            (extensions.pop(), MappingPlan::default())
        } else if u64::from(last.missing_pages) <= room.min(target) {
            let page_count = last
                .missing_pages
                .max(self.growth_pages(index))
                .min(u32::try_from(room.min(target)).unwrap_or(u32::MAX));
            let place = extensions.pop().filter(|one| one.is_worth_it(alignment));
            (place, MappingPlan { new: self.new_handles(page_count), ..MappingPlan::default() })
        } else {
            match self.mixed(extensions, &scan, (size_bytes, alignment), room) {
                Some(found) => found,
                None => return Ok(None),
            }
        };
        self.build(index, &Request { size_bytes, ..*request }, place, &row, backing)
    }

    /// The plan with the fewest new pages.
    fn mixed(
        &self,
        extensions: Vec<Extension>,
        scan: &IdleScan,
        (size_bytes, alignment): (u64, u64),
        room: u64,
    ) -> Option<(Option<Extension>, MappingPlan)> {
        let extensions = extensions.into_iter().filter(|one| one.is_worth_it(alignment));
        let extended = extensions.filter_map(|extension| {
            let rest = scan.without(&extension.scan);
            let row = self.mixed_row(&rest.idle, extension.missing_pages, room, true)?;
            (row.size_bytes(&self.pages) >> PAGE_SHIFT <= extension.room_pages)
                .then_some((Some(extension), row))
        });
        let fresh = (alignment <= PAGE_BYTES)
            .then(|| self.mixed_row(&scan.idle, pages_in(size_bytes), room, false))
            .flatten();
        let partial = scan.partial(size_bytes).and_then(|partial| {
            let rest = pages_in(size_bytes - partial.size_bytes);
            Some(MappingPlan { partial: Some(partial), ..self.mixed_row(&scan.idle, rest, room, true)? })
        });
        let all = extended.chain(fresh.into_iter().chain(partial).map(|row| (None, row)));
        all.min_by_key(|(_, row)| (row.new.iter().sum::<u32>(), row.mapping_count()))
    }

    /// A row of all idle pages that can be adjacent, and new handles for the rest.
    pub(super) fn mixed_row(
        &self,
        idle: &[Idle],
        missing: u32,
        room: u64,
        from_start: bool,
    ) -> Option<MappingPlan> {
        let sizes = |handle| self.pages.handle(handle).page_count;
        let (mut parts, last) = plan::reach(idle, sizes, from_start);
        let mut missing = missing.checked_sub(last.map_or(0, |part| part.count))?;
        parts.retain_mut(|part| {
            part.count = part.count.min(missing);
            missing -= part.count;
            part.count > 0
        });
        (missing > 0 && u64::from(missing) <= room).then(|| MappingPlan {
            parts,
            new: self.new_handles(missing),
            last,
            ..MappingPlan::default()
        })
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
        let room = reserved_max_bytes.saturating_sub(self.reserved_bytes()) >> PAGE_SHIFT;
        if u64::from(page_count) > room {
            return Ok(false);
        }
        let is_made = if self.segments.is_some() {
            self.reserve_segments(u64::from(page_count), backing)?
        } else {
            let row = MappingPlan { new: self.new_handles(page_count), ..MappingPlan::default() };
            build::make(self, (LARGE_SPACE, self.spaces[LARGE_SPACE].end()), &row, backing)?
        };
        self.reserved_peak_bytes = self.reserved_peak_bytes.max(self.reserved_bytes());
        if is_made {
            self.reserved_ahead_bytes = self.blocks_bytes();
        }
        Ok(is_made)
    }

    /// Updates the bytes of large blocks that one thread cache retains: at its last visit, and now.
    ///
    /// The sum over all caches combines values of different times, and only limits how much they may retain. After a drain, the
    /// sum is too high until the thread's next visit; an allocation that lacks memory empties the caches in that case. Blocks
    /// retained since the last visit count as needed memory, so caches may retain less.
    pub fn note_kept(&mut self, before_bytes: u64, now_bytes: u64) {
        self.kept_bytes = (self.kept_bytes + now_bytes).saturating_sub(before_bytes);
    }

    /// The bytes of large blocks that thread caches may retain: the memory that was reserved ahead and never needed.
    pub fn keepable_bytes(&mut self) -> u64 {
        let needed_bytes = self.used_bytes.saturating_sub(self.kept_bytes);
        self.needed_peak_bytes = self.needed_peak_bytes.max(needed_bytes);
        let slack_bytes = self.needed_peak_bytes / 1000 * u64::from(self.tuning().growth_slack_per_mille);
        let needed_bytes = self.needed_peak_bytes + slack_bytes;
        self.reserved_ahead_bytes = self.reserved_ahead_bytes.min(self.blocks_bytes());
        self.keepable_bytes = self.reserved_ahead_bytes.saturating_sub(needed_bytes);
        self.keepable_bytes
    }

    /// True if the unused memory that was reserved ahead exceeds a quarter of the peak of use, so that every block could be a
    /// quarter larger.
    pub fn is_far_ahead(&self) -> bool {
        self.keepable_bytes > self.needed_peak_bytes / 4
    }

    /// The growth, in bytes, up to which a new handle is preferred to more expensive steps.
    pub fn growth_target_bytes(&self, request: &Request) -> u64 {
        let used = self.growth_need_bytes(request);
        // Without mappings there must be room for the rest of a segment.
        let segment_pages =
            self.segments.as_ref().map_or(0, |_| self.segment_pages(space_of(request), request.size_bytes));
        let Tuning { growth_slack_per_mille: usual, growth_slack_max_per_mille: most, .. } = *self.tuning();
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

    /// The bytes that blocks need including a request, or have needed.
    pub(super) fn growth_need_bytes(&self, request: &Request) -> u64 {
        self.used_bytes.saturating_add(request.size_bytes).max(self.used_peak_bytes)
    }

    /// The least growth of a space, in pages: few handles for a large heap, little waste in a small one.
    pub(super) fn growth_pages(&self, index: usize) -> u32 {
        let reserved = self.spaces[index].end().min(self.reserved_bytes());
        let bytes = reserved / u64::from(self.tuning().growth_divisor);
        let pages = (bytes >> PAGE_SHIFT).max(1).next_power_of_two();
        (pages as u32).min(self.tuning().handle_max_pages)
    }

    pub(super) fn new_handles(&self, page_count: u32) -> Vec<u32> {
        let largest = self.tuning().handle_max_pages;
        let mut handles = vec![largest; (page_count / largest) as usize];
        let rest = page_count % largest;
        handles.extend((rest > 0).then_some(rest));
        handles
    }
}

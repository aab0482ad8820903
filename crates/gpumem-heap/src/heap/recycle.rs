//! Memory that is idle under other addresses: it moves back to an earlier mapping, or is mapped again.

use super::build::MappingPlan;
use super::extension::Extension;
use super::idle_scan::{IdleScan, View};
use super::pages::move_pages;
use super::plan;
use super::remap::{Remap, remap};
use super::space::PAGE_BYTES;
use super::{Heap, LARGE_SPACE, Request, pages_in, rounded, space_of};
use crate::block::HeapBlock;
use crate::memory::PhysicalMemory;
use crate::order::Order;

/// How idle memory can come to the addresses of a block.
enum Found {
    Remapped(Remap),
    /// What the new mappings extend, and the mappings.
    Planned(Option<Extension>, MappingPlan),
}

impl Heap {
    /// Takes a block of memory that is free under other addresses. The memory moves back to an earlier mapping, or is mapped again.
    ///
    /// # Errors
    ///
    /// The error of the [`PhysicalMemory`] call that failed. Nothing has changed then.
    pub fn take_recycled<M: PhysicalMemory>(
        &mut self,
        request: &Request,
        order: &impl Order,
        backing: &mut M,
    ) -> Result<Option<HeapBlock>, M::Refusal> {
        if self.may_take_ready(request) {
            return self.take_idle(request, order, backing, true);
        }
        if let Some(block) = self.take_idle(request, order, backing, false)? {
            return Ok(Some(block));
        }
        if let Some(block) = self.take_own_first(request, order, backing)? {
            return Ok(Some(block));
        }
        match self.take_free(space_of(request), request, order, true) {
            Some(block) => Ok(Some(block)),
            None => self.take_idle(request, order, backing, true),
        }
    }

    fn take_idle<M: PhysicalMemory>(
        &mut self,
        request: &Request,
        order: &impl Order,
        backing: &mut M,
        with_ready: bool,
    ) -> Result<Option<HeapBlock>, M::Refusal> {
        let Some(size_bytes) = rounded(request.size_bytes) else { return Ok(None) };
        let view = View { records: &self.records, stream: request.stream, order, with_ready };
        let scan = IdleScan::movable(&self.pages, &self.spaces, &view);
        let ahead_bytes = self.ahead_bytes(space_of(request)).max(size_bytes);
        for moved_bytes in [ahead_bytes, size_bytes] {
            // The block's first and last page need not be idle.
            if scan.idle.is_empty() || scan.page_count() + 2 < pages_in(moved_bytes) {
                continue;
            }
            match self.find_idle(space_of(request), (moved_bytes, request.alignment), &view, &scan) {
                Some(Found::Remapped(found)) => {
                    for (mapping, mask) in found.moves {
                        move_pages(&mut self.pages, &mut self.spaces, &mut self.records, mapping, mask);
                    }
                    let index = space_of(request);
                    return Ok(Some(self.claimed(index, found.start, size_bytes, request.stream)));
                }
                Some(Found::Planned(place, row)) => {
                    let request = Request { size_bytes, ..*request };
                    return self.build(space_of(&request), &request, place, &row, backing);
                }
                None if moved_bytes == size_bytes => break,
                None => {}
            }
        }
        Ok(None)
    }

    /// A place for idle memory of a size.
    fn find_idle(
        &self,
        index: usize,
        place: (u64, u64),
        view: &View<impl Order>,
        scan: &IdleScan,
    ) -> Option<Found> {
        let found = remap(scan, &self.pages, (index, &self.spaces[index]), place, view);
        found.map(Found::Remapped).or_else(|| {
            let (place, row) = self.plan(index, place, scan, view)?;
            Some(Found::Planned(place, row))
        })
    }

    /// The bytes that small blocks take over at a time while there is slack or plenty, so that the next requests find free memory.
    fn ahead_bytes(&self, index: usize) -> u64 {
        if index == LARGE_SPACE {
            return 0;
        }
        let share = |per_mille: u32| self.spaces[index].end() / 1000 * u64::from(per_mille);
        let slack_bytes = share(self.tuning().growth_slack_per_mille);
        let spare_bytes = (self.keepable_bytes / SPARE_DIVISOR).min(SPARE_BYTES_MAX);
        let plenty_bytes = if self.has_plenty() { share(PLENTY_PER_MILLE) } else { 0 };
        slack_bytes.max(plenty_bytes).max(spare_bytes) / PAGE_BYTES * PAGE_BYTES
    }

    /// Takes all idle memory that the stream owns, and of the memory that is ready for all streams only the rest.
    fn take_own_first<M: PhysicalMemory>(
        &mut self,
        request: &Request,
        order: &impl Order,
        backing: &mut M,
    ) -> Result<Option<HeapBlock>, M::Refusal> {
        let Some(size_bytes) = rounded(request.size_bytes).filter(|_| request.alignment <= PAGE_BYTES) else {
            return Ok(None);
        };
        let own = View { records: &self.records, stream: request.stream, order, with_ready: false };
        let own_idle = IdleScan::movable(&self.pages, &self.spaces, &own);
        let all_idle = IdleScan::movable(&self.pages, &self.spaces, &View { with_ready: true, ..own });
        let sizes = |handle| self.pages.handle(handle).page_count;
        let (mut parts, _) = plan::reach(&own_idle.idle, sizes, false);
        let own_count: u32 = parts.iter().map(|part| part.count).sum();
        let Some(rest) = pages_in(size_bytes).checked_sub(own_count).filter(|_| own_count > 0) else {
            return Ok(None);
        };
        let Some(ready) = plan::plan(&all_idle.without(&own_idle).idle, sizes, rest, true) else {
            return Ok(None);
        };
        parts.extend(ready);
        let row = MappingPlan { parts, ..MappingPlan::default() };
        self.build(space_of(request), &Request { size_bytes, ..*request }, None, &row, backing)
    }

    /// The plan with the fewest mappings: an extension, or a row on its own.
    pub(super) fn plan(
        &self,
        index: usize,
        place: (u64, u64),
        scan: &IdleScan,
        view: &View<impl Order>,
    ) -> Option<(Option<Extension>, MappingPlan)> {
        let sizes = |handle| self.pages.handle(handle).page_count;
        let extensions = self.extensions(index, place, scan, view).into_iter();
        let extended = extensions.filter(|one| one.is_worth_it(place.1)).filter_map(|extension| {
            let rest = scan.without(&extension.scan);
            let parts = plan::plan(&rest.idle, sizes, extension.missing_pages, true)?;
            let row_pages: u64 = parts.iter().map(|part| u64::from(sizes(part.handle))).sum();
            let row = MappingPlan { parts, ..MappingPlan::default() };
            (row_pages <= extension.room_pages).then_some((Some(extension), row))
        });
        let extended = extended.min_by_key(|(_, row)| row.mapping_count());
        if place.1 > PAGE_BYTES {
            return extended;
        }
        // A row that extends nothing.
        let fresh = plan::plan(&scan.idle, sizes, pages_in(place.0), false)
            .map(|parts| (None, MappingPlan { parts, ..MappingPlan::default() }));
        match (extended, fresh) {
            (Some(extended), Some(fresh)) if fresh.1.mapping_count() < extended.1.mapping_count() => {
                Some(fresh)
            }
            (extended, fresh) => extended.or(fresh),
        }
    }
}

/// The part of their own space that small blocks take over at a time, while more memory is ready than was ever in use.
const PLENTY_PER_MILLE: u32 = 100;

/// The part of what thread caches may retain that small blocks take over at a time.
const SPARE_DIVISOR: u64 = 64;

/// The most that small blocks take over at a time: the heap's lock is held while it is mapped.
const SPARE_BYTES_MAX: u64 = 64 << 20;

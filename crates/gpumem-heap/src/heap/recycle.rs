//! Memory that is idle at other addresses: it moves back to an earlier mapping, or is mapped again.

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

/// The way in which idle memory moves to the addresses of a block.
enum Found {
    Remapped(Remap),
    /// The extended range, if any, and the new mappings.
    Planned(Option<Extension>, MappingPlan),
}

/// The memory to search, and whether the block starts at a page boundary or with a partial page.
#[derive(Clone, Copy)]
struct Look {
    with_ready: bool,
    in_pages: bool,
}

impl Heap {
    /// Takes a block of memory that is free at other addresses. The memory moves back to an earlier mapping, or is mapped again.
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
        if self.starts_in_pages(request) {
            if let Some(block) = self.recycle(request, order, backing, true)? {
                return Ok(Some(block));
            }
            // A start within a page is better than growth of the heap.
            let with_ready = self.may_take_ready(request);
            if let Some(block) = self.take_free(space_of(request), request, order, with_ready) {
                return Ok(Some(block));
            }
        }
        self.recycle(request, order, backing, false)
    }

    fn recycle<M: PhysicalMemory>(
        &mut self,
        request: &Request,
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
        match self.take_free(space_of(request), &Request { alignment, ..*request }, order, true) {
            Some(block) => Ok(Some(block)),
            None => self.take_idle(request, order, backing, all),
        }
    }

    fn take_idle<M: PhysicalMemory>(
        &mut self,
        request: &Request,
        order: &impl Order,
        backing: &mut M,
        look: Look,
    ) -> Result<Option<HeapBlock>, M::Refusal> {
        let Some(size_bytes) = rounded(request.size_bytes) else { return Ok(None) };
        let view =
            View { records: &self.records, stream: request.stream, order, with_ready: look.with_ready };
        let mut scan = IdleScan::movable(&self.pages, &self.spaces, &view);
        if look.in_pages {
            scan.ends = self.ends(space_of(request), request.stream, &scan);
        }
        let alignment = if look.in_pages { PAGE_BYTES } else { request.alignment };
        let ahead_bytes = self.ahead_bytes(space_of(request)).max(size_bytes);
        for moved_bytes in [ahead_bytes, size_bytes] {
            // The block's first and last page need not be idle.
            if scan.idle.is_empty() || scan.page_count() + 2 < pages_in(moved_bytes) {
                continue;
            }
            match self.find_idle(space_of(request), (moved_bytes, alignment), &view, &scan) {
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

    /// The bytes that small blocks take over at a time while there is slack or plenty of memory, so that the next requests find free
    /// memory.
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

    /// Takes all idle memory that the stream owns, and only the rest from memory that is ready for all streams.
    fn take_own_first<M: PhysicalMemory>(
        &mut self,
        request: &Request,
        order: &impl Order,
        backing: &mut M,
        in_pages: bool,
    ) -> Result<Option<HeapBlock>, M::Refusal> {
        let Some(size_bytes) = rounded(request.size_bytes).filter(|_| request.alignment <= PAGE_BYTES) else {
            return Ok(None);
        };
        let own = View { records: &self.records, stream: request.stream, order, with_ready: false };
        let own_idle = IdleScan::movable(&self.pages, &self.spaces, &own);
        let mut all_idle = IdleScan::movable(&self.pages, &self.spaces, &View { with_ready: true, ..own });
        if in_pages {
            all_idle.ends = self.ends(space_of(request), request.stream, &all_idle);
        }
        let partial = all_idle.partial(size_bytes);
        let sizes = |handle| self.pages.handle(handle).page_count;
        let (mut parts, _) = plan::reach(&own_idle.idle, sizes, partial.is_some());
        let own_count: u32 = parts.iter().map(|part| part.count).sum();
        let page_count = pages_in(size_bytes - partial.map_or(0, |partial| partial.size_bytes));
        let Some(rest) = page_count.checked_sub(own_count).filter(|_| own_count > 0) else {
            return Ok(None);
        };
        let Some(ready) = plan::plan(&all_idle.without(&own_idle).idle, sizes, rest, true) else {
            return Ok(None);
        };
        parts.extend(ready);
        let row = MappingPlan { partial, parts, ..MappingPlan::default() };
        self.build(space_of(request), &Request { size_bytes, ..*request }, None, &row, backing)
    }

    /// The plan with the fewest mappings: an extension, or a separate row.
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
        let fresh = self.fresh(place.0, scan).map(|row| (None, row));
        match (extended, fresh) {
            (Some(extended), Some(fresh)) if fresh.1.mapping_count() < extended.1.mapping_count() => {
                Some(fresh)
            }
            (extended, fresh) => extended.or(fresh),
        }
    }

    /// A row that extends nothing. It starts with a partial page if that takes no more mappings.
    fn fresh(&self, size_bytes: u64, scan: &IdleScan) -> Option<MappingPlan> {
        let sizes = |handle| self.pages.handle(handle).page_count;
        let plan = |size_bytes, from_start| plan::plan(&scan.idle, sizes, pages_in(size_bytes), from_start);
        let plain = plan(size_bytes, false).map(|parts| MappingPlan { parts, ..MappingPlan::default() });
        let partial = scan.partial(size_bytes).and_then(|partial| {
            let parts = plan(size_bytes - partial.size_bytes, true)?;
            Some(MappingPlan { partial: Some(partial), parts, ..MappingPlan::default() })
        });
        match (partial, plain) {
            (Some(partial), Some(plain)) if plain.mapping_count() < partial.mapping_count() => Some(plain),
            (partial, plain) => partial.or(plain),
        }
    }
}

/// The fraction of their own space that small blocks take over at a time, while more memory is ready than was ever in use.
const PLENTY_PER_MILLE: u32 = 100;

/// The fraction of the retainable memory that small blocks take over at a time.
const SPARE_DIVISOR: u64 = 64;

/// The most that small blocks take over at a time: the heap's lock is held while it is mapped.
const SPARE_BYTES_MAX: u64 = 64 << 20;

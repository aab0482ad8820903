//! [`Extension`]: a free address range that is too short for a block, with room for new mappings behind it.
//!
//! Rows of mappings that extend nothing are made with a gap before them. A request that is a little too large for a row adds mappings
//! behind it: only the new mappings cost driver calls, not all mappings of the block.

use super::idle_scan::{IdlePages, IdleScan};
use super::mappings::MappingId;
use super::memory_map::MemoryMap;
use super::pages::{Pages, ones};
use super::space::{PAGE_BYTES, PAGE_SHIFT, Space, pages_in};
use super::view::View;
use gpumem_base::order::Order;

/// The start of a block, and the pages that are missing there.
#[derive(Debug)]
pub(super) struct Extension {
    pub(super) start: u64,
    /// The place of the new mappings, and the pages of addresses that are free there.
    pub(super) row_start: u64,
    pub(super) room_pages: u64,
    pub(super) missing_pages: u32,
    /// Mappings in the range, and the pages that move back to each.
    pub(super) moves: Vec<(MappingId, u64)>,
    /// The range's own memory, which cannot be mapped elsewhere for this block.
    pub(super) scan: IdleScan,
}

impl Extension {
    /// True if the new mappings are cheaper here than elsewhere: something is extended, or the alignment is larger than a page.
    pub(super) fn is_worth_it(&self, alignment: u64) -> bool {
        self.start < self.row_start || alignment > PAGE_BYTES
    }
}

/// The extensions with the fewest missing pages, fewest first. The end of the space, which suits any alignment, is always the last one.
pub(super) fn extensions(
    map: &MemoryMap,
    index: usize,
    place: (u64, u64),
    scan: &IdleScan,
    view: &View<impl Order>,
) -> Vec<Extension> {
    let (space, pages) = (&map.spaces[index], &map.pages);
    let idle =
        if pages.pins_any() { IdleScan::collect(map, view).by_handle(pages) } else { scan.by_handle(pages) };
    let stretch = Stretch { pages, index, idle };
    let end = (space.end() >> PAGE_SHIFT, space.room_bytes() >> PAGE_SHIFT);
    let at = |(slot, room_pages)| stretch.extension(space, (slot, room_pages), place, view);
    let mut found: Vec<Extension> = Vec::new();
    if place.1 <= PAGE_BYTES {
        let free_va_ranges = pages.free_va_ranges(index).iter();
        found.extend(free_va_ranges.filter_map(at).filter(|found| found.start < found.row_start));
        found.sort_by_key(|extension| extension.missing_pages);
        found.truncate(LOOKS_MAX);
    }
    found.extend(at(end));
    found
}

/// The pages of a mapping that are part of a range.
struct Before {
    mapping: MappingId,
    handle: u32,
    mask: u64,
}

struct Stretch<'a> {
    pages: &'a Pages,
    index: usize,
    /// For each handle, its idle pages.
    idle: Vec<u64>,
}

impl Stretch<'_> {
    /// The range before a free range of addresses: only the part that the block needs.
    fn extension(
        &self,
        space: &Space,
        (slot, room_pages): (u64, u64),
        (size_bytes, alignment): (u64, u64),
        view: &View<impl Order>,
    ) -> Option<Extension> {
        let parts = self.before(slot, pages_in(size_bytes));
        let page_count: u32 = parts.iter().map(|part| part.mask.count_ones()).sum();
        let row_start = slot << PAGE_SHIFT;
        let low = row_start - (u64::from(page_count) << PAGE_SHIFT);
        let left = self.free_before(space, low, view);
        let start = space.base.checked_add(left)?.checked_next_multiple_of(alignment)? - space.base;
        let missing_pages = pages_in(start.checked_add(size_bytes)?.saturating_sub(row_start));
        if u64::from(missing_pages) > room_pages {
            return None;
        }
        let moves = parts.iter().filter_map(|part| {
            let skipped = (start >> PAGE_SHIFT).saturating_sub(u64::from(part.mapping.slot())).min(64) as u32;
            let away = part.mask & !self.pages.resident(part.mapping) & !ones(0, skipped);
            (away != 0).then_some((part.mapping, away))
        });
        let idle = parts.iter().map(|part| IdlePages { handle: part.handle, mask: part.mask, slot: 0 });
        Some(Extension {
            start,
            row_start,
            room_pages,
            missing_pages,
            moves: moves.collect(),
            scan: IdleScan::of(idle.collect()),
        })
    }

    /// The adjacent mappings up to a place, and the idle pages of each: each page of memory once.
    fn before(&self, mut slot: u64, most_pages: u32) -> Vec<Before> {
        let mut parts: Vec<Before> = Vec::new();
        let mut missing = most_pages;
        while missing > 0 && slot > 0 {
            let Some(entry) = self.pages.entry(self.index, slot - 1) else { break };
            let (handle, last) = (entry.handle(), entry.page());
            let mapping = MappingId::new(self.index, slot as u32 - 1 - last);
            let mut idle = self.idle[handle as usize];
            // Pinned memory may be used where it is.
            if self.pages.is_pinned(handle) {
                idle &= self.pages.resident(mapping);
            }
            for other in parts.iter().filter(|other| other.handle == handle) {
                idle &= !other.mask;
            }
            let count = (idle << (63 - last)).leading_ones().min(last + 1).min(missing);
            if count == 0 {
                break;
            }
            parts.push(Before { mapping, handle, mask: ones(last + 1 - count, count) });
            missing -= count;
            slot -= u64::from(count);
            if count < last + 1 {
                break;
            }
        }
        parts
    }

    /// The page before a place is not idle as a whole, but its last bytes may be free: returns where they start. A page with
    /// several mappings is left out, because it may be about to move.
    fn free_before(&self, space: &Space, place: u64, view: &View<impl Order>) -> u64 {
        let entry = place.checked_sub(1).and_then(|last| self.pages.entry(self.index, last >> PAGE_SHIFT));
        let Some(_) = entry.filter(|entry| !entry.is_part()) else { return place };
        let id = space.at(view.records, place - 1);
        if !view.is_usable(&view.records[id]) {
            return place;
        }
        let start = space.run_around(id, view).0;
        if place - start < PAGE_BYTES { start } else { place }
    }
}

const LOOKS_MAX: usize = 4;

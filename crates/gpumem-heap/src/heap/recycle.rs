//! Memory that is idle at other addresses: it moves back to an earlier mapping, or is mapped again.

use super::extension::{Extension, extensions};
use super::idle_scan::IdleScan;
use super::memory_map::MemoryMap;
use super::plan::{self, MappingPlan};
use super::remap::{Remap, remap};
use super::space::{PAGE_BYTES, pages_in};
use super::view::View;
use gpumem_base::order::Order;

/// The way in which idle memory moves to the addresses of a block.
pub(super) enum Recycled {
    Remapped(Remap),
    /// The extended range, if any, and the new mappings.
    Planned(Option<Extension>, MappingPlan),
}

/// Finds idle memory for a block. If more of it can be moved at once, up to `ahead_bytes`, the rest stays free beside the block.
pub(super) fn find(
    map: &MemoryMap,
    index: usize,
    (size_bytes, alignment): (u64, u64),
    ahead_bytes: u64,
    view: &View<impl Order>,
    scan: &IdleScan,
) -> Option<Recycled> {
    let find = |moved_bytes: u64| {
        // The block's first and last page need not be idle.
        if scan.idle.is_empty() || scan.page_count() + 2 < pages_in(moved_bytes) {
            return None;
        }
        let place = (moved_bytes, alignment);
        let found = remap(scan, &map.pages, (index, &map.spaces[index]), place, view);
        found.map(Recycled::Remapped).or_else(|| {
            let (place, row) = plan(map, index, place, scan, view)?;
            Some(Recycled::Planned(place, row))
        })
    };
    let ahead = if ahead_bytes > size_bytes { find(ahead_bytes) } else { None };
    ahead.or_else(|| find(size_bytes))
}

/// A row of all idle memory that the stream owns, and only the rest from memory that is ready for all streams.
pub(super) fn own_first(
    map: &MemoryMap,
    size_bytes: u64,
    own: &IdleScan,
    all: &IdleScan,
) -> Option<MappingPlan> {
    let partial = all.partial(size_bytes);
    let sizes = |handle| map.pages.handle(handle).page_count;
    let (mut parts, _) = plan::reach(&own.idle, sizes, partial.is_some());
    let own_count: u32 = parts.iter().map(|part| part.count).sum();
    let page_count = pages_in(size_bytes - partial.map_or(0, |partial| partial.size_bytes));
    let rest = page_count.checked_sub(own_count).filter(|_| own_count > 0)?;
    parts.extend(plan::plan(&all.without(own).idle, sizes, rest, true)?);
    Some(MappingPlan { partial, parts, ..MappingPlan::default() })
}

/// The plan with the fewest mappings: an extension, or a separate row.
pub(super) fn plan(
    map: &MemoryMap,
    index: usize,
    place: (u64, u64),
    scan: &IdleScan,
    view: &View<impl Order>,
) -> Option<(Option<Extension>, MappingPlan)> {
    let sizes = |handle| map.pages.handle(handle).page_count;
    let extensions = extensions(map, index, place, scan, view).into_iter();
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
    let fresh = fresh(map, place.0, scan).map(|row| (None, row));
    match (extended, fresh) {
        (Some(extended), Some(fresh)) if fresh.1.mapping_count() < extended.1.mapping_count() => Some(fresh),
        (extended, fresh) => extended.or(fresh),
    }
}

/// A row that extends nothing. It starts with a partial page if that takes no more mappings.
fn fresh(map: &MemoryMap, size_bytes: u64, scan: &IdleScan) -> Option<MappingPlan> {
    let sizes = |handle| map.pages.handle(handle).page_count;
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

//! [`glued`]: a block that starts and ends in pages that other blocks use in part.

use super::fit::UNIT_BYTES;
use super::grow::{GrowthLimits, handles};
use super::idle_scan::IdleScan;
use super::memory_map::MemoryMap;
use super::partial_page::{PageSide, PartialPage};
use super::plan::MappingPlan;
use super::space::{PAGE_BYTES, PAGE_SHIFT};
use super::view::View;
use gpumem_base::order::Order;

/// A row for a block that starts in the free end of one page and ends in the free start of another, with the fewest new pages between
/// them. Each such block costs up to two mappings that give it little memory, so only the last steps near a limit use it.
pub(super) fn glued(
    map: &MemoryMap,
    (size_bytes, alignment): (u64, u64),
    scan: &IdleScan,
    view: &View<impl Order>,
    growth: &GrowthLimits,
) -> Option<MappingPlan> {
    if alignment > PAGE_BYTES {
        return None;
    }
    let (mut heads, mut tails) = (Vec::new(), Vec::new());
    for id in map.free_ids() {
        if view.is_usable(&map.records[id]) {
            heads.extend(scan.partial_at(map, id, PageSide::Start));
            tails.extend(scan.partial_at(map, id, PageSide::End));
        }
    }
    // A block that starts in the middle of a page has no larger alignment.
    tails.retain(|_| alignment <= UNIT_BYTES);
    heads.sort_unstable_by_key(|head: &PartialPage| (head.size_bytes, head.handle));
    let bytes = |partial: Option<PartialPage>| partial.map_or(0, |partial| partial.size_bytes);
    let pages = |tail, head| size_bytes.saturating_sub(bytes(tail) + bytes(head)).div_ceil(PAGE_BYTES);
    let is_apart =
        |tail: Option<PartialPage>, head: &PartialPage| tail.is_none_or(|tail| tail.handle != head.handle);
    let fewest = |tail| pages(tail, heads.iter().rev().find(|head| is_apart(tail, head)).copied());
    let tails = core::iter::once(None).chain(tails.into_iter().map(Some));
    let tail = tails.min_by_key(|tail| (fewest(*tail), bytes(*tail)))?;
    let new_pages = fewest(tail);
    let fitting = heads.iter().copied().filter(|head| is_apart(tail, head)).map(Some);
    let head = core::iter::once(None).chain(fitting).find(|head| pages(tail, *head) == new_pages)?;
    if new_pages > growth.room_pages || tail.is_none() && head.is_none() {
        return None;
    }
    let partial_bytes = size_bytes - (new_pages << PAGE_SHIFT).min(size_bytes);
    let tail_bytes = bytes(tail).min(partial_bytes);
    let cut = |partial: Option<PartialPage>, size_bytes| {
        partial.filter(|_| size_bytes > 0).map(|partial| PartialPage { size_bytes, ..partial })
    };
    Some(MappingPlan {
        partial: cut(tail, tail_bytes),
        new: handles(u32::try_from(new_pages).ok()?, growth.handle_max_pages),
        head: cut(head, partial_bytes - tail_bytes),
        ..MappingPlan::default()
    })
}

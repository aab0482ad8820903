//! [`build`]: makes a row of mappings, or leaves everything as it was.
//!
//! The memory is called first, and the heap's records change only once all calls have succeeded. If one fails, the calls before it are
//! undone. If undoing fails too, the remaining mappings and handles count as reserved and go to [`Lost`]: their addresses are not reused
//! before they are unmapped.

use super::extension::Extension;
use super::lost::Lost;
use super::mappings::HANDLES_MAX;
use super::memory_map::MemoryMap;
use super::pages::ones;
use super::plan::MappingPlan;
use super::request::LARGE_SPACE;
use super::space::{PAGE_BYTES, PAGE_SHIFT};
use super::stamps::PendingUses;
use crate::memory::{PhysicalMemory, RawHandle};

/// Makes a row of mappings, as an extension or separately. Returns the start of a block there. `None` if the space has no room, or if the
/// handles are used up.
pub(super) fn build<M: PhysicalMemory>(
    map: &mut MemoryMap,
    lost: &mut Lost,
    (index, reserved_bytes): (usize, u64),
    place: Option<Extension>,
    row: &MappingPlan,
    backing: &mut M,
) -> Result<Option<u64>, M::Refusal> {
    let row_start = match &place {
        Some(extension) => extension.row_start,
        None => own_place(map, (index, reserved_bytes), row),
    };
    if !make(map, lost, (index, row_start), row, backing)? {
        return Ok(None);
    }
    let Some(Extension { start, moves, .. }) = place else {
        return Ok(Some(row_start + row.block_start(&map.pages)));
    };
    for (mapping, mask) in moves {
        map.move_pages(mapping, mask);
    }
    Ok(Some(start))
}

/// The place of a row that extends nothing: a range where much was unmapped, otherwise the end of the space. A gap before it lets the
/// preceding row be extended later. A row of new handles only has no gap, because adjacent new handles are more useful. When addresses
/// run short, gaps are used up.
fn own_place(map: &MemoryMap, (index, reserved_bytes): (usize, u64), row: &MappingPlan) -> u64 {
    let (space, row_bytes) = (&map.spaces[index], row.size_bytes(&map.pages));
    let free_range = |size_bytes: u64| map.pages.free_va_ranges(index).find(size_bytes >> PAGE_SHIFT);
    let is_new = row.mapping_count() == 0;
    let gap_bytes = if is_new || index != LARGE_SPACE { 0 } else { GAP_BYTES };
    if let Some(slot) = free_range(row_bytes + 2 * GAP_BYTES) {
        return (slot << PAGE_SHIFT) + gap_bytes;
    }
    let end = space.end();
    let behind_gap = if end == 0 { 0 } else { end + gap_bytes };
    let taken_bytes = behind_gap + row_bytes;
    let is_roomy = taken_bytes <= (reserved_bytes + row_bytes).saturating_mul(SPAN)
        && taken_bytes <= space.size_bytes() / 2;
    if is_roomy { behind_gap } else { free_range(row_bytes).map_or(end, |slot| slot << PAGE_SHIFT) }
}

#[derive(Default)]
struct DoneCalls {
    created: Vec<(RawHandle, u32)>,
    mapped: Vec<(u64, u64)>,
}

impl DoneCalls {
    fn created_bytes(&self) -> impl Iterator<Item = (RawHandle, u64)> {
        self.created.iter().map(|(raw, page_count)| (*raw, u64::from(*page_count) << PAGE_SHIFT))
    }
}

/// Makes the mappings at a place that is a free range or the end of the space, and moves the pages of the plan into them. False if
/// the space has no room, or if the handles are used up.
pub(super) fn make<M: PhysicalMemory>(
    map: &mut MemoryMap,
    lost: &mut Lost,
    (space, start): (usize, u64),
    row: &MappingPlan,
    backing: &mut M,
) -> Result<bool, M::Refusal> {
    let size_bytes = row.size_bytes(&map.pages);
    if size_bytes == 0 {
        return Ok(true);
    }
    let end = map.spaces[space].end();
    let more_bytes = (start + size_bytes).saturating_sub(end);
    let has_numbers = map.pages.handles.len() + row.new.len() < HANDLES_MAX;
    if map.spaces[space].room_bytes() < more_bytes || !has_numbers {
        return Ok(false);
    }
    let mut done = DoneCalls::default();
    let asked = ask(map, map.spaces[space].base + start, row, backing, &mut done);
    let still_mapped = if asked.is_ok() { Vec::new() } else { undo(lost, &done, backing) };
    let is_undone = still_mapped.is_empty();
    if more_bytes > 0 && (asked.is_ok() || !is_undone) {
        map.spaces[space].extend(&mut map.records, more_bytes);
        if start > end {
            map.pages.free_va_ranges_mut(space).add(end >> PAGE_SHIFT, (start - end) >> PAGE_SHIFT);
        }
    }
    match asked {
        Ok(()) => commit(map, (space, start), row, &done.created),
        // Addresses that are still mapped are not a free range.
        Err(_) if !is_undone => {
            map.pages.free_va_ranges_mut(space).fill(start >> PAGE_SHIFT, size_bytes >> PAGE_SHIFT);
            lost.add_row((space, start), size_bytes, still_mapped, done.created_bytes().collect());
        }
        Err(_) => {}
    }
    asked.map(|()| true)
}

fn ask<M: PhysicalMemory>(
    map: &MemoryMap,
    base: u64,
    row: &MappingPlan,
    backing: &mut M,
    done: &mut DoneCalls,
) -> Result<(), M::Refusal> {
    for page_count in &row.new {
        done.created.push((backing.create(u64::from(*page_count) << PAGE_SHIFT)?, *page_count));
    }
    let mut address = base;
    let known = |handle: u32| {
        let handle = map.pages.handle(handle);
        (handle.raw, handle.page_count)
    };
    let first =
        row.partial.iter().map(|partial| partial.handle).chain(row.parts.iter().map(|part| part.handle));
    let last = row.last.iter().map(|part| part.handle).chain(row.head.iter().map(|head| head.handle));
    let handles: Vec<(RawHandle, u32)> =
        first.map(known).chain(done.created.iter().copied()).chain(last.map(known)).collect();
    for (raw, page_count) in handles {
        let size_bytes = u64::from(page_count) << PAGE_SHIFT;
        backing.map(address, size_bytes, raw)?;
        done.mapped.push((address, size_bytes));
        address += size_bytes;
    }
    Ok(backing.set_access(base, address - base)?)
}

/// Undoes the calls, and returns the mappings that could not be undone. If there are any, the new handles stay too.
fn undo(lost: &mut Lost, done: &DoneCalls, backing: &mut impl PhysicalMemory) -> Vec<(u64, u64)> {
    let mut mapped = done.mapped.clone();
    mapped.retain(|(address, size_bytes)| backing.unmap(*address, *size_bytes).is_err());
    if mapped.is_empty() {
        for (raw, size_bytes) in done.created_bytes() {
            if backing.release(raw, size_bytes).is_err() {
                lost.add(raw, size_bytes);
            }
        }
    }
    mapped
}

fn commit(
    map: &mut MemoryMap,
    (space, start): (usize, u64),
    row: &MappingPlan,
    created: &[(RawHandle, u32)],
) {
    let mut slot = start >> PAGE_SHIFT;
    let mut mapping = |map: &mut MemoryMap, handle: u32| {
        let mapping = map.pages.add_mapping(handle, space, slot);
        slot += u64::from(map.pages.handle(handle).page_count);
        mapping
    };
    if let Some(partial) = &row.partial {
        let to = mapping(map, partial.handle);
        map.move_partial_page(partial, to);
    }
    for part in &row.parts {
        let to = mapping(map, part.handle);
        map.move_pages(to, ones(part.first, part.count));
    }
    for (raw, page_count) in created {
        let handle = map.pages.add_handle(*raw, *page_count);
        let id = mapping(map, handle);
        map.pages.set_resident(id, (ones(0, *page_count), 0));
        let start = u64::from(id.slot()) << PAGE_SHIFT;
        let end = start + u64::from(*page_count) * PAGE_BYTES;
        map.spaces[space].occupy(&mut map.records, start, end, PendingUses::READY);
    }
    if let Some(part) = &row.last {
        let to = mapping(map, part.handle);
        map.move_pages(to, ones(part.first, part.count));
    }
    if let Some(head) = &row.head {
        let to = mapping(map, head.handle);
        map.move_partial_page(head, to);
    }
}

/// Room for later extensions of the row before.
const GAP_BYTES: u64 = 32 << 20;
/// The addresses in use, as a multiple of the reserved memory; each page of them takes 12 bytes of tables.
const SPAN: u64 = 16;

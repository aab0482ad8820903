//! [`make`]: makes a row of mappings, or leaves everything as it was.
//!
//! The memory is called first, and the heap's records change only once all calls have succeeded. If one fails, the calls before it are
//! undone. If undoing fails too, the remaining mappings and handles count as reserved and go to [`Lost`](super::lost::Lost): their
//! addresses are not reused before they are unmapped.

use super::extension::Extension;
use super::mappings::HANDLES_MAX;
use super::pages::{Pages, move_pages, ones};
use super::partial_page::{PartialPage, move_partial_page};
use super::plan::Part;
use super::space::{PAGE_BYTES, PAGE_SHIFT};
use super::stamps::Pending;
use super::{Heap, LARGE_SPACE, Request};
use crate::block::HeapBlock;
use crate::memory::{PhysicalMemory, RawHandle};

/// A plan for adjacent mappings, from left to right.
#[derive(Clone, Debug, Default)]
pub(super) struct MappingPlan {
    /// The partial page that the block starts with.
    pub(super) partial: Option<PartialPage>,
    pub(super) parts: Vec<Part>,
    /// The sizes of new handles, in pages, behind the parts.
    pub(super) new: Vec<u32>,
    /// The start of a handle, behind the new ones.
    pub(super) last: Option<Part>,
    /// The free start of a page that another block uses in part. It takes the last bytes of the block, behind the new handles.
    pub(super) head: Option<PartialPage>,
}

impl MappingPlan {
    /// The number of mappings of existing handles.
    pub(super) fn mapping_count(&self) -> usize {
        self.parts.len()
            + [self.last.is_some(), self.partial.is_some(), self.head.is_some()]
                .map(usize::from)
                .iter()
                .sum::<usize>()
    }

    /// The offset of the block in the row.
    fn block_start(&self, pages: &Pages) -> u64 {
        match (self.partial, self.parts.first()) {
            (Some(partial), _) => partial.start(pages),
            // The part may be the end of its handle.
            (None, Some(part)) => u64::from(part.first) << PAGE_SHIFT,
            (None, None) => 0,
        }
    }

    /// The addresses that the row takes, in bytes.
    pub(super) fn size_bytes(&self, pages: &Pages) -> u64 {
        let known = self.parts.iter().chain(&self.last).map(|part| part.handle);
        let known = known
            .chain(self.partial.iter().chain(&self.head).map(|partial| partial.handle))
            .map(|handle| pages.handle(handle).page_count);
        let page_count: u64 = known.chain(self.new.iter().copied()).map(u64::from).sum();
        page_count << PAGE_SHIFT
    }
}

impl Heap {
    /// Makes a row of mappings, as an extension or separately, and takes a block there.
    pub(super) fn build<M: PhysicalMemory>(
        &mut self,
        index: usize,
        request: &Request,
        place: Option<Extension>,
        row: &MappingPlan,
        backing: &mut M,
    ) -> Result<Option<HeapBlock>, M::Refusal> {
        let row_start = match &place {
            Some(extension) => extension.row_start,
            None => self.own_place(index, row),
        };
        if !make(self, (index, row_start), row, backing)? {
            return Ok(None);
        }
        self.spend_credit(row);
        self.reserved_peak_bytes = self.reserved_peak_bytes.max(self.reserved_bytes());
        let start = match place {
            Some(Extension { start, moves, .. }) => {
                for (mapping, mask) in moves {
                    move_pages(&mut self.pages, &mut self.spaces, &mut self.records, mapping, mask);
                }
                start
            }
            None => row_start + row.block_start(&self.pages),
        };
        Ok(Some(self.claimed(index, start, request.size_bytes, request.stream)))
    }

    /// The place of a row that extends nothing: a range where much was unmapped, otherwise the end of the space. A gap before it lets the
    /// preceding row be extended later. A row of new handles only has no gap, because adjacent new handles are more useful. When addresses
    /// run short, gaps are used up.
    fn own_place(&self, index: usize, row: &MappingPlan) -> u64 {
        let (space, row_bytes) = (&self.spaces[index], row.size_bytes(&self.pages));
        let free_range = |size_bytes: u64| self.pages.free_va_ranges(index).find(size_bytes >> PAGE_SHIFT);
        let is_new = row.mapping_count() == 0;
        let gap_bytes = if is_new || index != LARGE_SPACE { 0 } else { GAP_BYTES };
        if let Some(slot) = free_range(row_bytes + 2 * GAP_BYTES) {
            return (slot << PAGE_SHIFT) + gap_bytes;
        }
        let end = space.end();
        let behind_gap = if end == 0 { 0 } else { end + gap_bytes };
        let taken_bytes = behind_gap + row_bytes;
        let is_roomy = taken_bytes <= (self.reserved_bytes() + row_bytes).saturating_mul(SPAN)
            && taken_bytes <= space.size_bytes() / 2;
        if is_roomy { behind_gap } else { free_range(row_bytes).map_or(end, |slot| slot << PAGE_SHIFT) }
    }

    fn spend_credit(&mut self, row: &MappingPlan) {
        self.mapping_credit = self.mapping_credit.saturating_sub(1000 * row.mapping_count() as u32);
    }
}

/// The calls that were made, in case they have to be undone.
#[derive(Default)]
struct Done {
    created: Vec<(RawHandle, u32)>,
    /// Address and size of each mapping.
    mapped: Vec<(u64, u64)>,
}

impl Done {
    /// Each new handle with its size in bytes.
    fn created_bytes(&self) -> impl Iterator<Item = (RawHandle, u64)> {
        self.created.iter().map(|(raw, page_count)| (*raw, u64::from(*page_count) << PAGE_SHIFT))
    }
}

/// Makes the mappings at a place that is a free range or the end of the space, and moves the pages of the plan into them. False if
/// the space has no room, or if the handles are used up.
pub(super) fn make<M: PhysicalMemory>(
    heap: &mut Heap,
    (space, start): (usize, u64),
    row: &MappingPlan,
    backing: &mut M,
) -> Result<bool, M::Refusal> {
    let size_bytes = row.size_bytes(&heap.pages);
    if size_bytes == 0 {
        return Ok(true);
    }
    let end = heap.spaces[space].end();
    let more_bytes = (start + size_bytes).saturating_sub(end);
    let has_numbers = heap.pages.handles.len() + row.new.len() < HANDLES_MAX;
    if heap.spaces[space].room_bytes() < more_bytes || !has_numbers {
        return Ok(false);
    }
    let mut done = Done::default();
    let asked = ask(heap, heap.spaces[space].base + start, row, backing, &mut done);
    let still_mapped = if asked.is_ok() { Vec::new() } else { undo(heap, &done, backing) };
    let is_undone = still_mapped.is_empty();
    if more_bytes > 0 && (asked.is_ok() || !is_undone) {
        heap.spaces[space].extend(&mut heap.records, more_bytes);
        if start > end {
            heap.pages.free_va_ranges_mut(space).add(end >> PAGE_SHIFT, (start - end) >> PAGE_SHIFT);
        }
    }
    match asked {
        Ok(()) => commit(heap, (space, start), row, &done.created),
        // Addresses that are still mapped are not a free range.
        Err(_) if !is_undone => {
            heap.pages.free_va_ranges_mut(space).fill(start >> PAGE_SHIFT, size_bytes >> PAGE_SHIFT);
            heap.lose_row((space, start), size_bytes, still_mapped, done.created_bytes().collect());
            heap.reserved_peak_bytes = heap.reserved_peak_bytes.max(heap.reserved_bytes());
        }
        Err(_) => {}
    }
    asked.map(|()| true)
}

fn ask<M: PhysicalMemory>(
    heap: &Heap,
    base: u64,
    row: &MappingPlan,
    backing: &mut M,
    done: &mut Done,
) -> Result<(), M::Refusal> {
    for page_count in &row.new {
        done.created.push((backing.create(u64::from(*page_count) << PAGE_SHIFT)?, *page_count));
    }
    let mut address = base;
    let known = |handle: u32| {
        let handle = heap.pages.handle(handle);
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
fn undo(heap: &mut Heap, done: &Done, backing: &mut impl PhysicalMemory) -> Vec<(u64, u64)> {
    let mut mapped = done.mapped.clone();
    mapped.retain(|(address, size_bytes)| backing.unmap(*address, *size_bytes).is_err());
    if mapped.is_empty() {
        for (raw, size_bytes) in done.created_bytes() {
            if backing.release(raw, size_bytes).is_err() {
                heap.lost.add(raw, size_bytes);
            }
        }
        heap.reserved_peak_bytes = heap.reserved_peak_bytes.max(heap.reserved_bytes());
    }
    mapped
}

fn commit(heap: &mut Heap, (space, start): (usize, u64), row: &MappingPlan, created: &[(RawHandle, u32)]) {
    let Heap { spaces, pages, records, .. } = heap;
    let mut slot = start >> PAGE_SHIFT;
    let mut mapping = |pages: &mut Pages, handle: u32| {
        let mapping = pages.add_mapping(handle, space, slot);
        slot += u64::from(pages.handle(handle).page_count);
        mapping
    };
    if let Some(partial) = &row.partial {
        let to = mapping(pages, partial.handle);
        move_partial_page(pages, spaces, records, (partial, to));
    }
    for part in &row.parts {
        let to = mapping(pages, part.handle);
        move_pages(pages, spaces, records, to, ones(part.first, part.count));
    }
    for (raw, page_count) in created {
        let handle = pages.add_handle(*raw, *page_count);
        let id = mapping(pages, handle);
        pages.set_resident(id, (ones(0, *page_count), 0));
        let start = u64::from(id.slot()) << PAGE_SHIFT;
        spaces[space].occupy(records, start, start + u64::from(*page_count) * PAGE_BYTES, Pending::READY);
    }
    if let Some(part) = &row.last {
        let to = mapping(pages, part.handle);
        move_pages(pages, spaces, records, to, ones(part.first, part.count));
    }
    if let Some(head) = &row.head {
        let to = mapping(pages, head.handle);
        move_partial_page(pages, spaces, records, (head, to));
    }
}

/// Room for later extensions of the row before.
const GAP_BYTES: u64 = 32 << 20;
/// The addresses in use, as a multiple of the reserved memory; each page of them takes 12 bytes of tables.
const SPAN: u64 = 16;

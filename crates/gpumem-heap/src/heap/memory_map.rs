//! [`MemoryMap`]: the heap's addresses, the physical memory mapped there, and the records over both.
//!
//! Changes of several of them at once are here, so that records and pages agree: memory that moves between mappings, and mappings and
//! handles that are removed.

use super::lost::Lost;
use super::mappings::MappingId;
use super::pages::{Pages, ones, runs};
use super::partial_page::PartialPage;
use super::record::{NONE, RecordKind, Records};
use super::space::{PAGE_BYTES, PAGE_SHIFT, Space};
use super::stamps::{FreeState, PendingUses};
use super::view::View;
use crate::memory::PhysicalMemory;
use gpumem_base::order::{Order, Stamp, StreamIndex};

#[derive(Debug)]
pub(super) struct MemoryMap {
    /// For small blocks and for large ones.
    pub(super) spaces: [Space; 2],
    pub(super) pages: Pages,
    pub(super) records: Records,
}

impl MemoryMap {
    /// The records as work on a stream may use them.
    pub(super) fn view<'a, O>(&'a self, stream: StreamIndex, order: &'a O) -> View<'a, O> {
        View { records: &self.records, stream, order, with_ready: true }
    }

    pub(super) fn free_ids(&self) -> impl Iterator<Item = u32> {
        self.spaces.iter().flat_map(Space::fits).flat_map(|fit| fit.ids(&self.records, 0))
    }

    pub(super) fn handle_bytes(&self, handle: u32) -> u64 {
        u64::from(self.pages.handle(handle).page_count) << PAGE_SHIFT
    }

    /// The offsets of a mapping in its space: start and end.
    pub(super) fn range_of(&self, mapping: MappingId) -> (u64, u64) {
        let start = u64::from(mapping.slot()) << PAGE_SHIFT;
        (start, start + self.handle_bytes(self.pages.handle_of(mapping)))
    }

    /// The address and the size of a mapping.
    pub(super) fn address_of(&self, mapping: MappingId) -> (u64, u64) {
        let (start, end) = self.range_of(mapping);
        (self.spaces[mapping.space()].base + start, end - start)
    }

    /// Calls `work` for each block within a mapping, with the addresses of its part there: start and end.
    pub(super) fn each_block(&self, mapping: MappingId, mut work: impl FnMut(u64, u64)) {
        let space = &self.spaces[mapping.space()];
        let (start, end) = self.range_of(mapping);
        let mut id = space.at(&self.records, start);
        while id != NONE && self.records[id].start < end {
            let record = &self.records[id];
            if record.kind == RecordKind::Live {
                work(space.base + record.start.max(start), space.base + record.end().min(end));
            }
            id = record.next;
        }
    }

    /// Makes free memory ready for all streams if all its uses are complete.
    pub(super) fn settle(&mut self, order: &impl Order) {
        for space in &mut self.spaces {
            let pending = space.fits_by_state().filter(|(state, _)| *state != FreeState::Ready.index());
            let ids: Vec<u32> = pending.flat_map(|(_, fit)| fit.ids(&self.records, 0)).collect();
            for id in ids {
                // It may have been merged into a neighbour that was made ready before.
                let Some(record) =
                    self.records.get(id).filter(|record| record.kind == RecordKind::Free).copied()
                else {
                    continue;
                };
                let pending = record.pending();
                if record.state != FreeState::Ready && self.records.stamp_sets.is_complete(pending, order) {
                    space.unlink(&mut self.records, id);
                    self.records.stamp_sets.drop(pending);
                    space.give(&mut self.records, id, PendingUses::READY);
                }
            }
        }
    }

    /// Moves free pages, as a whole, to another mapping of their handle, with the stamps that they wait for.
    pub(super) fn move_pages(&mut self, to: MappingId, mask: u64) {
        let Self { spaces, pages, records } = self;
        let handle = pages.handle_of(to);
        let mut lifted = Lifted::default();
        let others =
            pages.mappings_of(handle).filter(|id| *id != to).map(|id| (id, pages.resident_of(id, handle)));
        let left: Vec<_> = others.filter(|(_, (wholes, parts))| (wholes | parts) & mask != 0).collect();
        for (id, (wholes, parts)) in left {
            let leaving = (wholes | parts) & mask;
            pages.set_resident(id, (wholes & !mask, parts & !mask));
            for (first, count) in runs(leaving) {
                let (start, end) = (u64::from(first) * PAGE_BYTES, u64::from(first + count) * PAGE_BYTES);
                lifted.lift(&mut spaces[id.space()], records, id, (start, end));
            }
        }
        pages.note_departed(handle, &lifted.stamps);
        let (wholes, parts) = pages.resident_of(to, handle);
        pages.set_resident(to, (wholes | mask, parts & !mask));
        pages.unshare(handle, mask);
        lifted.put(&mut spaces[to.space()], records, to);
    }

    /// Moves a partial page to another mapping of its handle.
    pub(super) fn move_partial_page(&mut self, partial: &PartialPage, to: MappingId) {
        let Self { spaces, pages, records } = self;
        let (from, start) = (partial.mapping, partial.start(pages));
        let mut lifted = Lifted::default();
        lifted.lift(&mut spaces[from.space()], records, from, (start, start + partial.size_bytes));
        pages.note_departed(partial.handle, &lifted.stamps);
        let page = (start >> PAGE_SHIFT) as u32;
        let is_left = !spaces[from.space()].is_gap(records, u64::from(from.slot() + page));
        pages.share(partial.handle, page, (from, is_left), to);
        lifted.put(&mut spaces[to.space()], records, to);
    }

    /// Removes the memory of a range that free records and gaps cover.
    pub(super) fn clear(&mut self, space: usize, (start, end): (u64, u64)) {
        self.spaces[space]
            .vacate(&mut self.records, start, end, |records, _, _, pending| records.stamp_sets.drop(pending));
    }

    /// Removes a mapping that was unmapped, with the memory that is resident in it.
    pub(super) fn remove_mapping(&mut self, mapping: MappingId) {
        self.clear(mapping.space(), self.range_of(mapping));
        self.pages.set_resident(mapping, (0, 0));
        self.pages.remove_mapping(mapping);
    }

    /// Unmaps a mapping in which nothing is resident, and removes it.
    pub(super) fn unmap<M: PhysicalMemory>(
        &mut self,
        mapping: MappingId,
        backing: &mut M,
    ) -> Result<(), M::Error> {
        let (address, size_bytes) = self.address_of(mapping);
        backing.unmap(address, size_bytes)?;
        self.pages.remove_mapping(mapping);
        Ok(())
    }

    /// Releases a handle that is free as a whole. Its pages first move to one mapping, so that a failure leaves a consistent heap.
    pub(super) fn release<M: PhysicalMemory>(
        &mut self,
        handle: u32,
        lost: &mut Lost,
        backing: &mut M,
    ) -> Result<(), M::Error> {
        let resident_count = |id: &MappingId| self.pages.resident(*id).count_ones();
        let Some(last) = self.pages.mappings_of(handle).max_by_key(resident_count) else {
            return Ok(());
        };
        let away = ones(0, self.pages.handle(handle).page_count) & !self.pages.resident(last);
        self.move_pages(last, away);
        let others: Vec<MappingId> = self.pages.mappings_of(handle).filter(|id| *id != last).collect();
        others.into_iter().try_for_each(|mapping| self.unmap(mapping, backing))?;
        let (address, size_bytes) = self.address_of(last);
        backing.unmap(address, size_bytes)?;
        self.remove_mapping(last);
        let raw = self.pages.handle(handle).raw;
        self.pages.remove_handle(handle);
        backing.release(raw, size_bytes).inspect_err(|_| lost.add(raw, size_bytes))
    }
}

/// Memory that moves between mappings of one handle.
#[derive(Default)]
struct Lifted {
    /// Offsets in the handle, and what each part waits for.
    parts: Vec<(u64, u64, PendingUses)>,
    stamps: Vec<Stamp>,
}

impl Lifted {
    /// Takes the memory of a range of the handle away from a mapping.
    fn lift(&mut self, space: &mut Space, records: &mut Records, from: MappingId, (start, end): (u64, u64)) {
        let base = u64::from(from.slot()) << PAGE_SHIFT;
        space.vacate(records, base + start, base + end, |records, start, end, pending| {
            self.stamps.extend_from_slice(records.stamp_sets.stamps(&pending));
            self.parts.push((start - base, end - base, pending));
        });
    }

    fn put(self, space: &mut Space, records: &mut Records, to: MappingId) {
        let base = u64::from(to.slot()) << PAGE_SHIFT;
        for (start, end, pending) in self.parts {
            space.occupy(records, base + start, base + end, pending);
        }
    }
}

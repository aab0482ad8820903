//! [`Space`]: one reserved address range, tiled by records.
//!
//! Every free record has resident memory at its own addresses, so a request that finds one needs nothing else. Free neighbours in one state
//! are merged at once; neighbours that wait for different streams stay apart. [`super::pages`] tracks what is mapped where; this file only
//! tracks which slots have memory.

use super::fit::FreeLists;
use super::mappings::extend;
use super::record::{NONE, RangeRecord, RecordKind, Records};
use super::stamps::{FreeState, PendingUses};
use super::view::View;
use gpumem_base::order::{Order, Stamp, StreamIndex};

/// The unit of physical memory and of mappings.
pub(super) const PAGE_BYTES: u64 = 1 << PAGE_SHIFT;
pub(super) const PAGE_SHIFT: u32 = 21;

/// The pages that cover some bytes.
pub(super) fn pages_in(size_bytes: u64) -> u32 {
    u32::try_from(size_bytes.div_ceil(PAGE_BYTES)).unwrap_or(u32::MAX)
}

#[derive(Debug)]
pub(super) struct Space {
    index: u8,
    /// The start address.
    pub(super) base: u64,
    size_bytes: u64,
    /// The last record, up to which the space is tiled.
    last: u32,
    /// By state; made with the first free record of each.
    fits: Vec<Option<Box<FreeLists>>>,
    /// For each slot, the first record that starts in it.
    starts: Vec<u32>,
}

impl Space {
    pub(super) fn new(index: u8, base: u64, size_bytes: u64) -> Self {
        Self { index, base, size_bytes, last: NONE, fits: Vec::new(), starts: Vec::new() }
    }

    /// The end of the tiled part.
    pub(super) fn end(&self) -> u64 {
        (self.starts.len() as u64) << PAGE_SHIFT
    }

    /// The size of the address range.
    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The size of the part that is not tiled yet.
    pub(super) fn room_bytes(&self) -> u64 {
        self.size_bytes - self.end()
    }

    pub(super) fn fit(&self, state: FreeState) -> Option<&FreeLists> {
        self.fits.get(state.index())?.as_deref().filter(|fit| !fit.is_empty())
    }

    pub(super) fn fits(&self) -> impl Iterator<Item = &FreeLists> {
        self.fits.iter().flatten().map(|fit| &**fit)
    }

    /// With the index of each state, for [`super::check`].
    pub(super) fn fits_by_state(&self) -> impl Iterator<Item = (usize, &FreeLists)> {
        self.fits.iter().enumerate().filter_map(|(state, fit)| Some((state, &**fit.as_ref()?)))
    }

    /// True if free records wait for a stream other than the state's.
    pub(super) fn has_pending_of_others(&self, state: FreeState) -> bool {
        let others = self.fits.iter().enumerate().skip(1).filter(|(index, _)| *index != state.index());
        others.flat_map(|(_, fit)| fit).any(|fit| !fit.is_empty())
    }

    /// Takes a place in a free record; the rest on both sides stays free.
    pub(super) fn take(&mut self, records: &mut Records, id: u32, start: u64, size_bytes: u64) -> u32 {
        self.unlink(records, id);
        let id = self.isolate(records, id, start, start + size_bytes);
        self.drop_pending(records, id);
        records[id].kind = RecordKind::Live;
        id
    }

    /// Frees a live record, or fills a gap. The record waits for `pending`, and owns it from here on.
    pub(super) fn give(&mut self, records: &mut Records, mut id: u32, pending: PendingUses) {
        let record = &mut records[id];
        (record.kind, record.state, record.stamp) = (RecordKind::Free, pending.state, pending.stamp);
        let (prev, next) = (record.prev, record.next);
        #[cfg(gpumem_planted_bugs)]
        if gpumem_base::injected_bugs::has(gpumem_base::injected_bugs::Bug::MissedCoalescing) {
            return self.link(records, id);
        }
        if next != NONE && records[id].joins(&records[next]) {
            self.unlink(records, next);
            self.absorb_next(records, id);
        }
        if prev != NONE && records[prev].joins(&records[id]) {
            self.unlink(records, prev);
            self.absorb_next(records, prev);
            id = prev;
        }
        self.link(records, id);
    }

    /// Gives the ready rest of the pages that a block splits to the block's stream.
    pub(super) fn own_pages(&mut self, records: &mut Records, id: u32, stream: StreamIndex) {
        let RangeRecord { start, prev, next, .. } = records[id];
        let end = records[id].end();
        let pending = PendingUses { state: FreeState::OneStream(stream), stamp: Stamp::new(stream, 0) };
        let low = start >> PAGE_SHIFT << PAGE_SHIFT;
        let high = end.next_multiple_of(PAGE_BYTES);
        let is_ready =
            |record: &RangeRecord| record.kind == RecordKind::Free && record.state == FreeState::Ready;
        if low < start && prev != NONE && is_ready(&records[prev]) && records[prev].start <= low {
            self.unlink(records, prev);
            let part = self.isolate(records, prev, low, start);
            self.give(records, part, pending);
        }
        if end < high && next != NONE && is_ready(&records[next]) && records[next].end() >= high {
            self.unlink(records, next);
            let part = self.isolate(records, next, end, high);
            self.give(records, part, pending);
        }
    }

    /// Takes a range that free records cover without a break, as one live record.
    pub(super) fn claim(&mut self, records: &mut Records, start: u64, size_bytes: u64) -> u32 {
        let end = start + size_bytes;
        let mut id = self.at(records, start);
        self.unlink(records, id);
        id = self.isolate(records, id, start, end.min(records[id].end()));
        self.drop_pending(records, id);
        records[id].kind = RecordKind::Live;
        while records[id].end() < end {
            let next = records[id].next;
            self.unlink(records, next);
            let until = end.min(records[next].end());
            let next = self.isolate(records, next, records[id].end(), until);
            self.drop_pending(records, next);
            self.absorb_next(records, id);
        }
        id
    }

    /// Removes the memory of a range that free records and gaps cover: all of it becomes a gap. `left` receives what each part
    /// waits for, and owns it.
    pub(super) fn vacate(
        &mut self,
        records: &mut Records,
        start: u64,
        end: u64,
        mut left: impl FnMut(&mut Records, u64, u64, PendingUses),
    ) {
        let mut place = start;
        while place < end {
            let id = self.at(records, place);
            let until = end.min(records[id].end());
            if records[id].kind == RecordKind::Gap {
                place = until;
                continue;
            }
            self.unlink(records, id);
            let id = self.isolate(records, id, place, until);
            let pending = records[id].pending();
            left(records, place, until, pending);
            records[id].kind = RecordKind::Gap;
            (records[id].state, records[id].stamp) = (FreeState::Ready, Stamp::COMPLETE);
            self.join_gaps(records, id);
            place = until;
        }
    }

    /// Adds memory to a part of a gap, as a free record.
    pub(super) fn occupy(&mut self, records: &mut Records, start: u64, end: u64, pending: PendingUses) {
        let id = self.at(records, start);
        let id = self.isolate(records, id, start, end);
        self.give(records, id, pending);
    }

    /// Tiles `size_bytes` more of the space, with a gap.
    pub(super) fn extend(&mut self, records: &mut Records, size_bytes: u64) {
        let start = self.end();
        let pages = (size_bytes >> PAGE_SHIFT) as usize;
        let length = self.starts.len() + pages;
        extend(&mut self.starts, length, NONE);
        let id = records.add(RangeRecord {
            start,
            size_bytes,
            stamp: Stamp::COMPLETE,
            prev: self.last,
            next: NONE,
            list_prev: NONE,
            list_next: NONE,
            state: FreeState::Ready,
            kind: RecordKind::Gap,
            space: self.index,
        });
        if self.last != NONE {
            records[self.last].next = id;
        }
        self.last = id;
        self.note_start(records, id);
        self.join_gaps(records, id);
    }

    /// The record that covers a place.
    pub(super) fn at(&self, records: &Records, place: u64) -> u32 {
        let mut page = (place >> PAGE_SHIFT) as usize;
        // Starts at the first record of the nearest slot that has one, not beyond the place.
        let mut id = loop {
            let id = self.starts[page];
            if id != NONE && records[id].start <= place {
                break id;
            }
            // The first record of all starts at the start of the first slot.
            page -= 1;
        };
        while records[id].end() <= place {
            id = records[id].next;
        }
        id
    }

    /// The range of a free record and its usable neighbours on both sides.
    pub(super) fn run_around(&self, id: u32, view: &View<impl Order>) -> (u64, u64) {
        let records = view.records;
        let (mut first, mut last) = (id, id);
        while let Some(prev) = neighbour(records[first].prev, view) {
            first = prev;
        }
        while let Some(next) = neighbour(records[last].next, view) {
            last = next;
        }
        (records[first].start, records[last].end())
    }

    /// From the last record to the first.
    pub(super) fn ids_backwards<'a>(&self, records: &'a Records) -> impl Iterator<Item = u32> + 'a {
        let some = |id: u32| (id != NONE).then_some(id);
        core::iter::successors(some(self.last), move |id| some(records[*id].prev))
    }

    pub(super) fn link(&mut self, records: &mut Records, id: u32) {
        let index = records[id].state.index();
        if self.fits.len() <= index {
            self.fits.resize_with(index + 1, || None);
        }
        self.fits[index].get_or_insert_with(|| Box::new(FreeLists::new())).insert(records, id);
    }

    pub(super) fn unlink(&mut self, records: &mut Records, id: u32) {
        if let Some(Some(fit)) = self.fits.get_mut(records[id].state.index()) {
            fit.remove(records, id);
        }
    }

    fn drop_pending(&mut self, records: &mut Records, id: u32) {
        let pending = records[id].pending();
        records.stamp_sets.drop(pending);
        (records[id].state, records[id].stamp) = (FreeState::Ready, Stamp::COMPLETE);
    }

    /// Cuts a record that is in no list down to a range; parts cut off a free record are free.
    fn isolate(&mut self, records: &mut Records, id: u32, start: u64, end: u64) -> u32 {
        let is_free = records[id].kind == RecordKind::Free;
        if records[id].end() > end {
            let rest = self.split(records, id, end);
            if is_free {
                self.link(records, rest);
            }
        }
        if records[id].start == start {
            return id;
        }
        let inner = self.split(records, id, start);
        if is_free {
            self.link(records, id);
        }
        inner
    }

    /// Splits a record that is in no list into two, and returns the second.
    pub(super) fn split(&mut self, records: &mut Records, id: u32, place: u64) -> u32 {
        let record = records[id];
        records.stamp_sets.share(record.pending());
        let size_bytes = record.end() - place;
        let second = records.add(RangeRecord { start: place, size_bytes, prev: id, ..record });
        records[id].size_bytes -= size_bytes;
        records[id].next = second;
        match record.next {
            NONE => self.last = second,
            next => records[next].prev = second,
        }
        self.note_start(records, second);
        second
    }

    /// Merges a record with its next neighbour; the later stamp wins.
    fn absorb_next(&mut self, records: &mut Records, id: u32) {
        let absorbed = records[id].next;
        let gone = records[absorbed];
        self.forget_start(records, absorbed);
        let record = &mut records[id];
        record.size_bytes += gone.size_bytes;
        record.next = gone.next;
        record.stamp = record.stamp.max(gone.stamp);
        if gone.kind == RecordKind::Free {
            records.stamp_sets.drop(gone.pending());
        }
        match gone.next {
            NONE => self.last = id,
            next => records[next].prev = id,
        }
        records.remove(absorbed);
    }

    fn join_gaps(&mut self, records: &mut Records, mut id: u32) {
        let RangeRecord { prev, next, .. } = records[id];
        if next != NONE && records[id].joins(&records[next]) {
            self.absorb_next(records, id);
        }
        if prev != NONE && records[prev].joins(&records[id]) {
            id = prev;
            self.absorb_next(records, id);
        }
    }

    fn note_start(&mut self, records: &Records, id: u32) {
        let first = &mut self.starts[(records[id].start >> PAGE_SHIFT) as usize];
        if *first == NONE || records[*first].start > records[id].start {
            *first = id;
        }
    }

    fn forget_start(&mut self, records: &Records, id: u32) {
        let page = records[id].start >> PAGE_SHIFT;
        let first = &mut self.starts[page as usize];
        if *first == id {
            let next = records[id].next;
            let is_here = next != NONE && records[next].start >> PAGE_SHIFT == page;
            *first = if is_here { next } else { NONE };
        }
    }

    /// True if a slot has no resident memory.
    pub(super) fn is_gap(&self, records: &Records, slot: u64) -> bool {
        let (start, end) = (slot << PAGE_SHIFT, (slot + 1) << PAGE_SHIFT);
        let record = &records[self.at(records, start)];
        record.kind == RecordKind::Gap && record.end() >= end
    }

    /// True if all resident memory of a slot is usable.
    pub(super) fn is_usable(&self, slot: u64, view: &View<impl Order>) -> bool {
        let end = (slot + 1) << PAGE_SHIFT;
        let mut place = slot << PAGE_SHIFT;
        while place < end {
            let record = &view.records[self.at(view.records, place)];
            if record.kind != RecordKind::Gap && !view.is_usable(record) {
                return false;
            }
            place = record.end();
        }
        true
    }

    /// The first record that starts in a slot, for [`super::check`].
    pub(super) fn start_in(&self, page: usize) -> u32 {
        self.starts[page]
    }

    /// The host memory of the tables.
    pub(super) fn table_bytes(&self) -> usize {
        self.starts.capacity() * size_of::<u32>() + self.fits().count() * size_of::<FreeLists>()
    }
}

fn neighbour(id: u32, view: &View<impl Order>) -> Option<u32> {
    (id != NONE && view.is_usable(&view.records[id])).then_some(id)
}

//! [`remap`]: a place whose memory is idle at other addresses of the same handles.
//!
//! Mappings stay when their pages move away, so pages can return without a driver call. A program that repeats itself finds the mappings of
//! the previous round.

use super::idle_scan::IdleScan;
use super::mappings::{MappingId, SlotEntry};
use super::pages::{Pages, ones, runs};
use super::space::{PAGE_BYTES, PAGE_SHIFT, Space};
use super::view::View;
use gpumem_base::order::Order;

/// A place for a block in one space, where some pages have to move back first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Remap {
    pub(super) start: u64,
    /// Mappings, and the pages that move to each.
    pub(super) moves: Vec<(MappingId, u64)>,
}

/// The place for a size and an alignment that moves the fewest pages.
pub(super) fn remap(
    scan: &IdleScan,
    pages: &Pages,
    (index, space): (usize, &Space),
    (size_bytes, alignment): (u64, u64),
    view: &View<impl Order>,
) -> Option<Remap> {
    let mut best: Option<(u32, Remap)> = None;
    let mut consider = |run: &Run| {
        let found = run.place((pages, index, space), size_bytes, alignment, view);
        if let Some((move_count, start)) = found
            && best.as_ref().is_none_or(|(fewest, _)| move_count < *fewest)
        {
            best = Some((move_count, Remap { start, moves: run.moves(start, size_bytes) }));
        }
    };
    let mut run = Run::new(pages);
    let idle = scan.by_handle(pages);
    for (id, handle) in pages.mappings_in(index) {
        for (first, count) in runs(idle[handle as usize]) {
            if !run.extend(pages, (id, handle), (first, count)) {
                consider(&run);
                run.clear();
                run.extend(pages, (id, handle), (first, count));
            }
        }
    }
    consider(&run);
    best.map(|(_, remap)| remap)
}

/// Adjacent slots whose memory is idle. No page of memory occurs twice.
struct Run {
    first_slot: u32,
    /// For each slot, its mapping and its page of the handle.
    pages: Vec<(MappingId, u32)>,
    /// The number of pages before each slot that are resident elsewhere; one element more than slots.
    away: Vec<u32>,
    /// By handle: its pages that are in the run.
    taken: Vec<u64>,
    handles: Vec<u32>,
}

impl Run {
    fn new(pages: &Pages) -> Self {
        let taken = vec![0; pages.handles.len()];
        Self { first_slot: 0, pages: Vec::new(), away: vec![0], taken, handles: Vec::new() }
    }

    fn clear(&mut self) {
        self.pages.clear();
        self.away.truncate(1);
        for handle in self.handles.drain(..) {
            self.taken[handle as usize] = 0;
        }
    }

    /// Adds a slot. False if it is not the next one, or if its memory is in the run already.
    fn extend(&mut self, pages: &Pages, (id, handle): (MappingId, u32), (first, count): (u32, u32)) -> bool {
        let slot = id.slot() + first;
        let mask = ones(first, count);
        if self.pages.is_empty() {
            self.first_slot = slot;
        } else if self.first_slot + self.pages.len() as u32 != slot {
            return false;
        }
        let taken = &mut self.taken[handle as usize];
        if *taken & mask != 0 {
            return false;
        }
        *taken |= mask;
        self.handles.push(handle);
        let mut away_count = self.away[self.away.len() - 1];
        for bit in first..first + count {
            self.pages.push((id, bit));
            let entry = pages.entry(id.space(), u64::from(id.slot() + bit));
            away_count += u32::from(!entry.is_some_and(SlotEntry::is_resident));
            self.away.push(away_count);
        }
        true
    }

    /// The place in the run where the fewest pages have to move, and their number.
    fn place(
        &self,
        (pages, index, space): (&Pages, usize, &Space),
        size_bytes: u64,
        alignment: u64,
        view: &View<impl Order>,
    ) -> Option<(u32, u64)> {
        let (first, end) = (u64::from(self.first_slot), u64::from(self.first_slot) + self.pages.len() as u64);
        if self.pages.is_empty() || ((end - first + 2) << PAGE_SHIFT) < size_bytes {
            return None;
        }
        let (left, right) = self.edges((pages, index, space), view);
        let last = right.checked_sub(size_bytes)?;
        let align = |start: u64| Some((space.base + start).checked_next_multiple_of(alignment)? - space.base);
        let starts = core::iter::once(left).chain((first..end).map(|slot| slot << PAGE_SHIFT)).chain([last]);
        let places = starts.filter_map(align).filter(|start| *start >= left && *start <= last);
        places.map(|start| (self.away_in(start, size_bytes), start)).min()
    }

    /// Extends the run by the free bytes of the slots on both sides, which are not idle as a whole.
    fn edges(&self, (pages, index, space): (&Pages, usize, &Space), view: &View<impl Order>) -> (u64, u64) {
        let low = u64::from(self.first_slot) << PAGE_SHIFT;
        let high = low + ((self.pages.len() as u64) << PAGE_SHIFT);
        let free_around = |place: u64| {
            // A page with several mappings may be about to move.
            pages.entry(index, place >> PAGE_SHIFT).filter(|entry| !entry.is_part())?;
            let id = space.at(view.records, place);
            view.is_usable(&view.records[id]).then(|| space.run_around(id, view))
        };
        let before = (low > 0).then(|| free_around(low - 1)).flatten();
        let behind = (high < space.end()).then(|| free_around(high)).flatten();
        // An idle page beside the run is left out because its memory is in the run: it may be about to move.
        let left = before.map(|(start, _)| start).filter(|start| low - start.min(&low) < PAGE_BYTES);
        let right = behind.map(|(_, end)| end).filter(|end| end.max(&high) - high < PAGE_BYTES);
        (left.unwrap_or(low), right.unwrap_or(high))
    }

    /// The slots of the run that a block covers.
    fn covered(&self, start: u64, size_bytes: u64) -> core::ops::Range<usize> {
        let index =
            |slot: u64| (slot.saturating_sub(u64::from(self.first_slot)) as usize).min(self.pages.len());
        index(start >> PAGE_SHIFT)..index((start + size_bytes).div_ceil(PAGE_BYTES))
    }

    fn away_in(&self, start: u64, size_bytes: u64) -> u32 {
        let covered = self.covered(start, size_bytes);
        self.away[covered.end] - self.away[covered.start]
    }

    fn moves(&self, start: u64, size_bytes: u64) -> Vec<(MappingId, u64)> {
        let mut moves: Vec<(MappingId, u64)> = Vec::new();
        for index in self.covered(start, size_bytes).filter(|index| self.away[index + 1] > self.away[*index])
        {
            let (mapping, bit) = self.pages[index];
            match moves.last_mut().filter(|(last, _)| *last == mapping) {
                Some((_, mask)) => *mask |= 1 << bit,
                None => moves.push((mapping, 1 << bit)),
            }
        }
        moves
    }
}

//! [`PartialPage`]: lets a block start with the free end of a page that an earlier block of its stream left over.
//!
//! A block of 90.5 pages takes 91, and half a page is left behind it. If several streams share a heap without slack, these ends add up,
//! because the large blocks of one stream cannot use the page of another. So a block may start with the free end of its own stream's page,
//! in a new mapping of that handle, and continue with whole pages. The bytes of that page are then resident in two mappings, each byte in
//! one of them, until all of them are free; then the whole page moves to one mapping.
//!
//! At a limit, where a request would be refused otherwise, a block may also end with the free start of a page, and either end may
//! belong to any stream that is ordered before the request ([`Heap::glued`]).

use super::Heap;
use super::build::MappingPlan;
use super::fit::UNIT_BYTES;
use super::idle_scan::{IdleScan, View};
use super::mappings::MappingId;
use super::pages::Pages;
use super::record::{Kind, Records};
use super::space::{PAGE_BYTES, PAGE_SHIFT, Space};
use super::stamps::{FreeState, Pending};
use crate::order::{Order, Stamp, StreamIndex};

/// The end of a handle that a block can start with, or the start of a handle that it can end with. The page is not idle as a whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartialPage {
    pub(super) handle: u32,
    /// The mapping where the bytes are resident now.
    mapping: MappingId,
    pub(super) size_bytes: u64,
    side: Side,
}

/// The side of a handle that has free bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Start,
    End,
}

impl PartialPage {
    /// The offset of the bytes in the handle.
    pub(super) fn start(&self, pages: &Pages) -> u64 {
        match self.side {
            Side::Start => 0,
            Side::End => (u64::from(pages.handle(self.handle).page_count) << PAGE_SHIFT) - self.size_bytes,
        }
    }
}

impl IdleScan {
    /// The smallest that a block can start with.
    pub(super) fn partial(&self, size_bytes: u64) -> Option<PartialPage> {
        let partial_bytes = size_bytes % PAGE_BYTES;
        if partial_bytes == 0 {
            return None;
        }
        let fitting = self.ends.iter().filter(|partial| partial.size_bytes >= partial_bytes);
        let best = fitting.min_by_key(|partial| (partial.size_bytes, partial.handle))?;
        Some(PartialPage { size_bytes: partial_bytes, ..*best })
    }
}

impl Heap {
    /// The free ends of handles that a stream owns, except pages that are idle as a whole.
    pub(super) fn ends(&self, index: usize, stream: StreamIndex, scan: &IdleScan) -> Vec<PartialPage> {
        let fit = self.spaces[index].fit(FreeState::OneStream(stream));
        let ids = fit.into_iter().flat_map(|fit| fit.ids(&self.records, 0));
        ids.filter_map(|id| self.free_side(id, Side::End, scan)).collect()
    }

    /// A row for a block that starts in the free end of one page and ends in the free start of another, with the fewest new pages between
    /// them. Each such block costs up to two mappings that give it little memory, so only the last steps near a limit use it.
    pub(super) fn glued(
        &self,
        (size_bytes, alignment): (u64, u64),
        scan: &IdleScan,
        view: &View<impl Order>,
        room: u64,
    ) -> Option<MappingPlan> {
        if !self.is_careful() || alignment > PAGE_BYTES {
            return None;
        }
        let (mut heads, mut tails) = (Vec::new(), Vec::new());
        for id in self.spaces.iter().flat_map(Space::fits).flat_map(|fit| fit.ids(&self.records, 0)) {
            if view.is_usable(&self.records[id]) {
                heads.extend(self.free_side(id, Side::Start, scan));
                tails.extend(self.free_side(id, Side::End, scan));
            }
        }
        // A block that starts in the middle of a page has no larger alignment.
        tails.retain(|_| alignment <= UNIT_BYTES);
        heads.sort_unstable_by_key(|head: &PartialPage| (head.size_bytes, head.handle));
        let bytes = |partial: Option<PartialPage>| partial.map_or(0, |partial| partial.size_bytes);
        let pages = |tail, head| size_bytes.saturating_sub(bytes(tail) + bytes(head)).div_ceil(PAGE_BYTES);
        let is_apart = |tail: Option<PartialPage>, head: &PartialPage| {
            tail.is_none_or(|tail| tail.handle != head.handle)
        };
        let fewest = |tail| pages(tail, heads.iter().rev().find(|head| is_apart(tail, head)).copied());
        let tails = core::iter::once(None).chain(tails.into_iter().map(Some));
        let tail = tails.min_by_key(|tail| (fewest(*tail), bytes(*tail)))?;
        let new_pages = fewest(tail);
        let fitting = heads.iter().copied().filter(|head| is_apart(tail, head)).map(Some);
        let head = core::iter::once(None).chain(fitting).find(|head| pages(tail, *head) == new_pages)?;
        if new_pages > room || tail.is_none() && head.is_none() {
            return None;
        }
        let partial_bytes = size_bytes - (new_pages << PAGE_SHIFT).min(size_bytes);
        let tail_bytes = bytes(tail).min(partial_bytes);
        let cut = |partial: Option<PartialPage>, size_bytes| {
            partial.filter(|_| size_bytes > 0).map(|partial| PartialPage { size_bytes, ..partial })
        };
        Some(MappingPlan {
            partial: cut(tail, tail_bytes),
            new: self.new_handles(u32::try_from(new_pages).ok()?),
            head: cut(head, partial_bytes - tail_bytes),
            ..MappingPlan::default()
        })
    }

    /// The part of a page that a free record covers at one side of a handle. The page is not free as a whole.
    fn free_side(&self, id: u32, side: Side, scan: &IdleScan) -> Option<PartialPage> {
        let record = &self.records[id];
        let index = usize::from(record.space);
        let (slot, size_bytes) = match side {
            Side::Start => {
                let start = record.end() / PAGE_BYTES * PAGE_BYTES;
                (start >> PAGE_SHIFT, (start >= record.start).then(|| record.end() - start)?)
            }
            Side::End => {
                let end = record.start.next_multiple_of(PAGE_BYTES);
                ((end >> PAGE_SHIFT).checked_sub(1)?, (end <= record.end()).then(|| end - record.start)?)
            }
        };
        if size_bytes == 0 {
            return None;
        }
        let entry = self.pages.entry(index, slot)?;
        let (handle, page) = (entry.handle(), entry.page());
        let outermost = match side {
            Side::Start => 0,
            Side::End => self.pages.handle(handle).page_count - 1,
        };
        let mapping = MappingId::new(index, slot as u32 - page);
        (page == outermost && !self.pages.is_pinned(handle) && !scan.has(handle, page))
            .then_some(PartialPage { handle, mapping, size_bytes, side })
    }
}

/// Moves a partial page to another mapping of its handle.
pub(super) fn move_partial_page(
    pages: &mut Pages,
    spaces: &mut [Space; 2],
    records: &mut Records,
    (partial, to): (&PartialPage, MappingId),
) {
    let start = partial.start(pages);
    let base = |id: MappingId| u64::from(id.slot()) << PAGE_SHIFT;
    let (from_base, to_base) = (base(partial.mapping), base(to));
    let (from, end) = (from_base + start, from_base + start + partial.size_bytes);
    let mut moved: Vec<(u64, u64, Pending)> = Vec::new();
    let mut stamps: Vec<Stamp> = Vec::new();
    spaces[partial.mapping.space()].vacate(records, from, end, |records, start, end, pending| {
        stamps.extend_from_slice(records.stamp_sets.stamps(&pending));
        moved.push((start - from_base, end - from_base, pending));
    });
    pages.note_departed(partial.handle, &stamps);
    let is_left = !spaces[partial.mapping.space()].is_gap(records, from >> PAGE_SHIFT);
    pages.share(partial.handle, (start >> PAGE_SHIFT) as u32, (partial.mapping, is_left), to);
    for (start, end, pending) in moved {
        spaces[to.space()].occupy(records, to_base + start, to_base + end, pending);
    }
}

impl Space {
    /// True if a slot has no resident memory.
    fn is_gap(&self, records: &Records, slot: u64) -> bool {
        let (start, end) = (slot << PAGE_SHIFT, (slot + 1) << PAGE_SHIFT);
        let record = &records[self.at(records, start)];
        record.kind == Kind::Gap && record.end() >= end
    }

    /// True if all resident memory of a slot is usable.
    pub(super) fn is_usable(&self, slot: u64, view: &View<impl Order>) -> bool {
        let end = (slot + 1) << PAGE_SHIFT;
        let mut place = slot << PAGE_SHIFT;
        while place < end {
            let record = &view.records[self.at(view.records, place)];
            if record.kind != Kind::Gap && !view.is_usable(record) {
                return false;
            }
            place = record.end();
        }
        true
    }
}

//! [`IdleScan`]: the pages that are idle from one stream's point of view.
//!
//! It is made when a request found nothing else. It walks the free records, not the whole heap. It finds the two ways to reuse memory at
//! other addresses: address ranges whose memory can move back ([`super::remap`]), and parts of handles that a new mapping can be made of
//! ([`super::plan`]).

use super::memory_map::MemoryMap;
use super::pages::{Pages, ones};
use super::partial_page::{PageSide, PartialPage};
use super::space::{PAGE_BYTES, PAGE_SHIFT};
use super::stamps::FreeState;
use super::stretches::stretches;
use super::view::View;
use gpumem_base::order::{Order, StreamIndex};

/// The idle pages of one handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IdlePages {
    pub(super) handle: u32,
    pub(super) mask: u64,
    /// The place where the first of them is resident.
    pub(super) slot: u32,
}

#[derive(Debug, Default)]
pub(super) struct IdleScan {
    pub(super) idle: Vec<IdlePages>,
    /// The partial pages that a block may start with.
    pub(super) ends: Vec<PartialPage>,
}

impl IdleScan {
    pub(super) fn collect(map: &MemoryMap, view: &View<impl Order>) -> Self {
        let mut scan = Self::default();
        for (index, space) in map.spaces.iter().enumerate() {
            for (start, end) in stretches(space, PAGE_BYTES, view) {
                scan.add(&map.pages, index, start, end);
            }
        }
        for (handle, page, parts) in map.pages.shared() {
            let mut slots = parts.map(|id| (id.space(), id.slot() + page)).peekable();
            let slot = slots.peek().map_or(0, |(_, slot)| *slot);
            if slots.all(|(space, slot)| map.spaces[space].is_usable(u64::from(slot), view)) {
                scan.idle.push(IdlePages { handle, mask: ones(page, 1), slot });
            }
        }
        scan.merge();
        scan
    }

    /// Like [`IdleScan::collect`], without pages that are pinned to their place.
    pub(super) fn movable(map: &MemoryMap, view: &View<impl Order>) -> Self {
        let mut scan = Self::collect(map, view);
        scan.idle.retain(|idle| !map.pages.is_pinned(idle.handle));
        scan
    }

    /// Adds the free ends of handles that a stream owns in a space, except pages that are idle as a whole.
    pub(super) fn with_ends(mut self, map: &MemoryMap, index: usize, stream: StreamIndex) -> Self {
        let fit = map.spaces[index].fit(FreeState::OneStream(stream));
        let ids = fit.into_iter().flat_map(|fit| fit.ids(&map.records, 0));
        self.ends = ids.filter_map(|id| self.partial_at(map, id, PageSide::End)).collect();
        self
    }

    /// The part of a page that a free record covers at one side of a handle. The page is not idle as a whole.
    pub(super) fn partial_at(&self, map: &MemoryMap, id: u32, side: PageSide) -> Option<PartialPage> {
        let partial = PartialPage::at(&map.records[id], side, &map.pages)?;
        (!self.has(partial.handle, partial.page(&map.pages))).then_some(partial)
    }

    /// The smallest partial page that a block of a size can start with.
    pub(super) fn partial(&self, size_bytes: u64) -> Option<PartialPage> {
        let partial_bytes = size_bytes % PAGE_BYTES;
        if partial_bytes == 0 {
            return None;
        }
        let fitting = self.ends.iter().filter(|partial| partial.size_bytes >= partial_bytes);
        let best = fitting.min_by_key(|partial| (partial.size_bytes, partial.handle))?;
        Some(PartialPage { size_bytes: partial_bytes, ..*best })
    }

    /// Makes a scan of idle pages in any order.
    pub(super) fn of(idle: Vec<IdlePages>) -> Self {
        let mut scan = Self { idle, ends: Vec::new() };
        scan.merge();
        scan
    }

    pub(super) fn without(&self, other: &Self) -> Self {
        let mut others = other.idle.iter().peekable();
        let masked = self.idle.iter().map(|idle| {
            while others.next_if(|other| other.handle < idle.handle).is_some() {}
            let taken = others.peek().filter(|other| other.handle == idle.handle);
            IdlePages { mask: idle.mask & !taken.map_or(0, |taken| taken.mask), ..*idle }
        });
        Self { idle: masked.filter(|idle| idle.mask != 0).collect(), ends: Vec::new() }
    }

    fn has(&self, handle: u32, page: u32) -> bool {
        let found = self.idle.binary_search_by_key(&handle, |idle| idle.handle);
        found.is_ok_and(|at| self.idle[at].mask >> page & 1 == 1)
    }

    pub(super) fn page_count(&self) -> u32 {
        self.idle.iter().map(|idle| idle.mask.count_ones()).sum()
    }

    /// For each handle, its idle pages.
    pub(super) fn by_handle(&self, pages: &Pages) -> Vec<u64> {
        let mut masks = vec![0; pages.handles.len()];
        self.idle.iter().for_each(|idle| masks[idle.handle as usize] = idle.mask);
        masks
    }

    fn add(&mut self, pages: &Pages, space: usize, start: u64, end: u64) {
        let mut slot = start.div_ceil(PAGE_BYTES);
        let end = end >> PAGE_SHIFT;
        while slot < end {
            let Some(entry) = pages.entry(space, slot) else { break };
            let (handle, first) = (entry.handle(), entry.page());
            let count = (pages.handle(handle).page_count - first).min((end - slot) as u32);
            self.idle.push(IdlePages { handle, mask: ones(first, count), slot: slot as u32 });
            slot += u64::from(count);
        }
    }

    fn merge(&mut self) {
        self.idle.sort_unstable_by_key(|idle| idle.handle);
        self.idle.dedup_by(|idle, kept| {
            let is_same = idle.handle == kept.handle;
            if is_same {
                kept.mask |= idle.mask;
            }
            is_same
        });
    }
}

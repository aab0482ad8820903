//! [`IdleScan`]: the pages that are idle from one stream's point of view.
//!
//! It is made when a request found nothing else. It walks the free records, not the whole heap. It finds the two ways to reuse memory at
//! other addresses: address ranges whose memory can move back ([`super::remap`]), and parts of handles that a new mapping can be made of
//! ([`super::plan`]).

use super::pages::{Pages, ones};
use super::partial_page::PartialPage;
use super::record::{Kind, Record, Records};
use super::space::{PAGE_BYTES, PAGE_SHIFT, Space};
use super::stamps::FreeState;
use crate::order::{Order, StreamIndex};

/// The idle pages of one handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Idle {
    pub(super) handle: u32,
    pub(super) mask: u64,
    /// The place where the first of them is resident.
    pub(super) slot: u32,
}

#[derive(Debug, Default)]
pub(super) struct IdleScan {
    /// By handle.
    pub(super) idle: Vec<Idle>,
    /// The partial pages that a block may start with.
    pub(super) ends: Vec<PartialPage>,
}

/// The records as work on one stream may use them.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a, O> {
    pub(super) records: &'a Records,
    pub(super) stream: StreamIndex,
    pub(super) order: &'a O,
    /// False to leave out memory that is ready for all streams.
    pub(super) with_ready: bool,
}

impl<O: Order> View<'_, O> {
    /// True if a record is free, and its last uses are ordered before the stream's next operation.
    pub(super) fn is_usable(&self, record: &Record) -> bool {
        let pending = record.pending();
        record.kind == Kind::Free
            && (self.with_ready || record.state != FreeState::Ready)
            && self.records.stamp_sets.is_usable(pending, self.stream, self.order)
    }
}

impl IdleScan {
    pub(super) fn collect(pages: &Pages, spaces: &[Space; 2], view: &View<impl Order>) -> Self {
        let mut scan = Self::default();
        for (index, space) in spaces.iter().enumerate() {
            for (start, end) in stretches(space, PAGE_BYTES, view) {
                scan.add(pages, index, start, end);
            }
        }
        for (handle, page, parts) in pages.shared() {
            let mut slots = parts.map(|id| (id.space(), id.slot() + page)).peekable();
            let slot = slots.peek().map_or(0, |(_, slot)| *slot);
            if slots.all(|(space, slot)| spaces[space].is_usable(u64::from(slot), view)) {
                scan.idle.push(Idle { handle, mask: ones(page, 1), slot });
            }
        }
        scan.merge();
        scan
    }

    /// Like [`IdleScan::collect`], without pages that are pinned to their place.
    pub(super) fn movable(pages: &Pages, spaces: &[Space; 2], view: &View<impl Order>) -> Self {
        let mut scan = Self::collect(pages, spaces, view);
        scan.idle.retain(|idle| !pages.is_pinned(idle.handle));
        scan
    }

    /// Makes a scan of idle pages in any order.
    pub(super) fn of(idle: Vec<Idle>) -> Self {
        let mut scan = Self { idle, ends: Vec::new() };
        scan.merge();
        scan
    }

    pub(super) fn without(&self, other: &Self) -> Self {
        let mut others = other.idle.iter().peekable();
        let masked = self.idle.iter().map(|idle| {
            while others.next_if(|other| other.handle < idle.handle).is_some() {}
            let taken = others.peek().filter(|other| other.handle == idle.handle);
            Idle { mask: idle.mask & !taken.map_or(0, |taken| taken.mask), ..*idle }
        });
        Self { idle: masked.filter(|idle| idle.mask != 0).collect(), ends: Vec::new() }
    }

    pub(super) fn has(&self, handle: u32, page: u32) -> bool {
        let found = self.idle.binary_search_by_key(&handle, |idle| idle.handle);
        found.is_ok_and(|at| self.idle[at].mask >> page & 1 == 1)
    }

    /// The number of idle pages.
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
            self.idle.push(Idle { handle, mask: ones(first, count), slot: slot as u32 });
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

/// The maximal ranges of usable free records. Ranges shorter than `size_bytes` may be left out.
pub(super) fn stretches(space: &Space, size_bytes: u64, view: &View<impl Order>) -> Vec<(u64, u64)> {
    let is_merged = is_merged(space);
    let seed_bytes = if is_merged { size_bytes } else { size_bytes / SEEDS };
    let records = view.records;
    let seeds =
        space.fits().flat_map(|fit| fit.ids(records, seed_bytes)).filter(|id| view.is_usable(&records[*id]));
    if is_merged {
        let mut found: Vec<_> = seeds.map(|id| (records[id].start, records[id].end())).collect();
        found.sort_unstable();
        return found;
    }
    let mut seeds: Vec<_> = seeds.map(|id| (records[id].start, id)).collect();
    seeds.sort_unstable();
    let mut found: Vec<(u64, u64)> = Vec::new();
    for (start, id) in seeds {
        // A range is walked once even if several of its records are seeds.
        if found.last().is_none_or(|(_, end)| *end <= start) {
            found.push(space.run_around(id, view));
        }
    }
    found
}

/// The size of the longest of these ranges that `may_be_had` accepts.
pub(super) fn longest_stretch(
    space: &Space,
    view: &View<impl Order>,
    may_be_had: impl Fn(&(u64, u64)) -> bool,
) -> u64 {
    // Merged ranges above a size are few and are found without the others.
    let mut least_bytes = if is_merged(space) { LONGEST_BYTES_MAX } else { 0 };
    loop {
        let found = stretches(space, least_bytes, view).into_iter().filter(&may_be_had);
        let longest_bytes = found.map(|(start, end)| end - start).max().unwrap_or(0);
        if longest_bytes >= least_bytes {
            return longest_bytes;
        }
        least_bytes = if least_bytes > LONGEST_BYTES_MIN { least_bytes / 4 } else { 0 };
    }
}

/// True if no two free records are neighbours. Neighbours of one state with the same set of stamps are merged when they become free.
fn is_merged(space: &Space) -> bool {
    let mut lists = space.fits_by_state().filter(|(_, fit)| !fit.is_empty());
    lists.next().is_none_or(|(state, _)| state != FreeState::MultiStream.index()) && lists.next().is_none()
}

/// No range is longer than the largest of these sizes. Ranges shorter than the least are examined together.
const LONGEST_BYTES_MAX: u64 = 1 << 48;
const LONGEST_BYTES_MIN: u64 = 1 << 10;

/// Where neighbours may be in different states, a record is examined only if it has at least this fraction of a range's size.
const SEEDS: u64 = 8;

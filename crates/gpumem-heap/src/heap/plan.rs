//! [`plan`]: selects the handles, and the parts of them, for a row of mappings.
//!
//! A handle is mapped as a whole, so adjacent memory in a row of mappings consists of the end of one handle, whole handles, and the start
//! of another. Each part costs one mapping of any size. The plan with the fewest parts wins, and among those the one that leaves the
//! largest ranges alone.

use super::idle_scan::IdlePages;
use super::pages::{Pages, runs};
use super::partial_page::PartialPage;
use super::space::PAGE_SHIFT;

/// A mapping to be made: a handle, and those of its pages that the block needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MappedPart {
    pub(super) handle: u32,
    pub(super) first: u32,
    pub(super) count: u32,
}

/// A plan for adjacent mappings, from left to right.
#[derive(Clone, Debug, Default)]
pub(super) struct MappingPlan {
    /// The partial page that the block starts with.
    pub(super) partial: Option<PartialPage>,
    pub(super) parts: Vec<MappedPart>,
    /// The sizes of new handles, in pages, behind the parts.
    pub(super) new: Vec<u32>,
    /// The start of a handle, behind the new ones.
    pub(super) last: Option<MappedPart>,
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
    pub(super) fn block_start(&self, pages: &Pages) -> u64 {
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

/// The idle pages of one handle: how many at its start, and how many at its end.
#[derive(Clone, Copy, Debug)]
struct HandleRange {
    handle: u32,
    slot: u32,
    page_count: u32,
    prefix: u32,
    suffix: u32,
}

impl HandleRange {
    fn is_whole(&self) -> bool {
        self.prefix == self.page_count
    }
}

/// The fewest parts with `page_count` adjacent pages, if enough pages are idle. `from_start`: the row extends something, so its first part
/// starts at its handle's first page.
pub(super) fn plan(
    idle: &[IdlePages],
    sizes: impl Fn(u32) -> u32 + Copy,
    page_count: u32,
    from_start: bool,
) -> Option<Vec<MappedPart>> {
    if !from_start && let Some(part) = single(idle, sizes, page_count) {
        return Some(vec![part]);
    }
    let parts = HandleRanges::new(idle, sizes).fewest(page_count, from_start)?;
    debug_assert_eq!(
        parts.iter().map(|part| part.count).sum::<u32>(),
        page_count,
        "exactly what was asked for"
    );
    Some(parts)
}

/// All idle pages that can be adjacent, as parts. The second value is the start of a handle; new handles go in front of it.
pub(super) fn reach(
    idle: &[IdlePages],
    sizes: impl Fn(u32) -> u32,
    from_start: bool,
) -> (Vec<MappedPart>, Option<MappedPart>) {
    let ranges = HandleRanges::new(idle, sizes);
    let mut row: Vec<MappedPart> = Vec::new();
    row.extend(ranges.best_suffix.filter(|_| !from_start).map(HandleRange::end_part));
    row.extend(ranges.wholes.iter().map(|range| range.start_part(range.page_count)));
    (row, ranges.best_prefix.map(|range| range.start_part(range.prefix)))
}

/// The smallest sufficient run of one handle's idle pages.
fn single(idle: &[IdlePages], sizes: impl Fn(u32) -> u32, page_count: u32) -> Option<MappedPart> {
    let stretches = idle.iter().flat_map(|idle| {
        let size = sizes(idle.handle);
        let part =
            move |(first, count)| (count, size, MappedPart { handle: idle.handle, first, count: page_count });
        runs(idle.mask).filter(|(_, count)| *count >= page_count).map(part)
    });
    let smallest = stretches.min_by_key(|(count, size, part)| (*count, *size, part.handle));
    // Taken from the end of a run that reaches the handle's end, so that the start of the run stays whole.
    smallest.map(|(count, size, part)| {
        let is_end = part.first > 0 && part.first + count == size;
        MappedPart { first: if is_end { size - page_count } else { part.first }, ..part }
    })
}

struct HandleRanges {
    /// Idle as a whole, largest first.
    wholes: Vec<HandleRange>,
    best_prefix: Option<HandleRange>,
    best_suffix: Option<HandleRange>,
    partly: Vec<HandleRange>,
}

impl HandleRange {
    fn start_part(&self, count: u32) -> MappedPart {
        MappedPart { handle: self.handle, first: 0, count }
    }

    fn end_part(self) -> MappedPart {
        MappedPart { handle: self.handle, first: self.page_count - self.suffix, count: self.suffix }
    }
}

impl HandleRanges {
    fn new(idle: &[IdlePages], sizes: impl Fn(u32) -> u32) -> Self {
        let ranges = idle.iter().map(|idle| {
            let page_count = sizes(idle.handle);
            let prefix = idle.mask.trailing_ones();
            let suffix = (idle.mask << (64 - page_count)).leading_ones();
            HandleRange { handle: idle.handle, slot: idle.slot, page_count, prefix, suffix }
        });
        let (mut wholes, partly): (Vec<HandleRange>, Vec<HandleRange>) =
            ranges.partition(HandleRange::is_whole);
        wholes.sort_unstable_by_key(|range| (core::cmp::Reverse(range.page_count), range.slot, range.handle));
        Self {
            best_prefix: partly
                .iter()
                .copied()
                .filter(|range| range.prefix > 0)
                .max_by_key(|range| range.prefix),
            best_suffix: partly
                .iter()
                .copied()
                .filter(|range| range.suffix > 0)
                .max_by_key(|range| range.suffix),
            wholes,
            partly,
        }
    }

    fn fewest(&self, page_count: u32, from_start: bool) -> Option<Vec<MappedPart>> {
        let ends = [None, self.best_suffix.filter(|_| !from_start)];
        let starts = [None, self.best_prefix];
        let mut best: Option<Vec<MappedPart>> = None;
        for (end, start) in ends.into_iter().flat_map(|end| starts.map(|start| (end, start))) {
            if let Some(row) = self.row(page_count, end, start)
                && best.as_ref().is_none_or(|best| row.len() < best.len())
            {
                best = Some(row);
            }
        }
        best
    }

    /// The end of a handle, whole handles, and the start of another.
    fn row(
        &self,
        page_count: u32,
        end: Option<HandleRange>,
        start: Option<HandleRange>,
    ) -> Option<Vec<MappedPart>> {
        let mut row: Vec<MappedPart> = Vec::new();
        let mut missing = page_count;
        if let Some(end) = end {
            let count = end.suffix.min(missing);
            row.push(MappedPart { handle: end.handle, first: end.page_count - count, count });
            missing -= count;
        }
        let kept = start.map_or(0, |start| start.prefix);
        let mut used = 0;
        while missing > kept {
            let whole = self.wholes.get(used)?;
            if whole.page_count >= missing && start.is_none() {
                row.push(self.last(used, missing)?);
                return Some(row);
            }
            row.push(whole.start_part(whole.page_count.min(missing)));
            missing -= whole.page_count.min(missing);
            used += 1;
        }
        if missing > 0 {
            row.push(self.last(self.wholes.len(), missing)?);
        }
        Some(row)
    }

    /// The smallest start of a handle that suffices for the last part, after the first `used` whole handles.
    fn last(&self, used: usize, missing: u32) -> Option<MappedPart> {
        let candidates = self.partly.iter().chain(self.wholes.get(used..).unwrap_or(&[]));
        let smallest = candidates.filter(|range| range.prefix >= missing).min_by_key(|range| range.prefix)?;
        Some(smallest.start_part(missing))
    }
}

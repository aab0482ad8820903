//! [`plan`]: which parts of which handles a new mapping is made of. Pure.
//!
//! A handle is mapped whole, so what stands side by side in a row of mappings is the end of one handle, whole handles,
//! and the start of another. Each part costs one mapping, whatever its size: the fewest parts win, and among those that
//! leave the largest pieces alone.

use super::idle_scan::Idle;
use super::pages::runs;

/// A mapping to be made: the handle and which of its pages the block needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) handle: u32,
    pub(super) first: u32,
    pub(super) count: u32,
}

/// One handle's idle pages: how many it has from its start, to its end, and at a stretch.
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

/// The fewest parts that make `page_count` pages in a row, if there are enough. `from_start`: the row continues
/// something, so its first part starts at its handle's first page.
pub(super) fn plan(
    idle: &[Idle],
    sizes: impl Fn(u32) -> u32 + Copy,
    page_count: u32,
    from_start: bool,
) -> Option<Vec<Part>> {
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

/// All that can stand in one row: how much that is, and its parts; the place for new handles is before the last part
/// when that is only the start of a handle.
pub(super) fn reach(
    idle: &[Idle],
    sizes: impl Fn(u32) -> u32,
    from_start: bool,
) -> (Vec<Part>, Option<Part>) {
    let pieces = HandleRanges::new(idle, sizes);
    let mut row: Vec<Part> = Vec::new();
    row.extend(pieces.best_suffix.filter(|_| !from_start).map(HandleRange::end_part));
    row.extend(pieces.wholes.iter().map(|piece| piece.start_part(piece.page_count)));
    (row, pieces.best_prefix.map(|piece| piece.start_part(piece.prefix)))
}

/// The smallest stretch of one handle that suffices.
fn single(idle: &[Idle], sizes: impl Fn(u32) -> u32, page_count: u32) -> Option<Part> {
    let stretches = idle.iter().flat_map(|idle| {
        let size = sizes(idle.handle);
        let part =
            move |(first, count)| (count, size, Part { handle: idle.handle, first, count: page_count });
        runs(idle.mask).filter(|(_, count)| *count >= page_count).map(part)
    });
    let smallest = stretches.min_by_key(|(count, size, part)| (*count, *size, part.handle));
    // At the end of a stretch that reaches the handle's end, its start stays in one piece.
    smallest.map(|(count, size, part)| {
        let is_end = part.first > 0 && part.first + count == size;
        Part { first: if is_end { size - page_count } else { part.first }, ..part }
    })
}

struct HandleRanges {
    /// Idle from start to end, largest first.
    wholes: Vec<HandleRange>,
    best_prefix: Option<HandleRange>,
    best_suffix: Option<HandleRange>,
    partly: Vec<HandleRange>,
}

impl HandleRange {
    fn start_part(&self, count: u32) -> Part {
        Part { handle: self.handle, first: 0, count }
    }

    fn end_part(self) -> Part {
        Part { handle: self.handle, first: self.page_count - self.suffix, count: self.suffix }
    }
}

impl HandleRanges {
    fn new(idle: &[Idle], sizes: impl Fn(u32) -> u32) -> Self {
        let pieces = idle.iter().map(|idle| {
            let page_count = sizes(idle.handle);
            let prefix = idle.mask.trailing_ones();
            let suffix = (idle.mask << (64 - page_count)).leading_ones();
            HandleRange { handle: idle.handle, slot: idle.slot, page_count, prefix, suffix }
        });
        let (mut wholes, partly): (Vec<HandleRange>, Vec<HandleRange>) =
            pieces.partition(HandleRange::is_whole);
        wholes.sort_unstable_by_key(|piece| (core::cmp::Reverse(piece.page_count), piece.slot, piece.handle));
        Self {
            best_prefix: partly
                .iter()
                .copied()
                .filter(|piece| piece.prefix > 0)
                .max_by_key(|piece| piece.prefix),
            best_suffix: partly
                .iter()
                .copied()
                .filter(|piece| piece.suffix > 0)
                .max_by_key(|piece| piece.suffix),
            wholes,
            partly,
        }
    }

    fn fewest(&self, page_count: u32, from_start: bool) -> Option<Vec<Part>> {
        let ends = [None, self.best_suffix.filter(|_| !from_start)];
        let starts = [None, self.best_prefix];
        let mut best: Option<Vec<Part>> = None;
        for (end, start) in ends.into_iter().flat_map(|end| starts.map(|start| (end, start))) {
            if let Some(row) = self.row(page_count, end, start)
                && best.as_ref().is_none_or(|best| row.len() < best.len())
            {
                best = Some(row);
            }
        }
        best
    }

    /// The end of a handle, whole ones, and the start of another.
    fn row(
        &self,
        page_count: u32,
        end: Option<HandleRange>,
        start: Option<HandleRange>,
    ) -> Option<Vec<Part>> {
        let mut row: Vec<Part> = Vec::new();
        let mut missing = page_count;
        if let Some(end) = end {
            let count = end.suffix.min(missing);
            row.push(Part { handle: end.handle, first: end.page_count - count, count });
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

    /// The smallest start of a handle that suffices for the last part, the first wholes being in use.
    fn last(&self, used: usize, missing: u32) -> Option<Part> {
        let candidates = self.partly.iter().chain(self.wholes.get(used..).unwrap_or(&[]));
        let smallest = candidates.filter(|piece| piece.prefix >= missing).min_by_key(|piece| piece.prefix)?;
        Some(smallest.start_part(missing))
    }
}

//! The memory that kernels access, and what they accessed.

use core::cell::Cell;
use core::ops::Range;
use std::collections::HashMap;

/// Device memory, as a kernel reaches it by addresses.
pub trait DeviceMemory {
    /// The memory around an access: at least the accessed bytes, and as much more of the same allocation as may be accessed in the same
    /// way. The accessed bytes end below 2^64. `None` refuses the access, which ends the kernel; the implementation keeps the reason.
    fn region(&self, address: u64, size_bytes: u64, is_write: bool) -> Option<Region<'_>>;

    /// True if all these bytes were written before the launch, as far as the implementation knows. Asked with
    /// [`Checks::uninitialised`](crate::Checks::uninitialised) alone.
    fn is_written(&self, address: u64, size_bytes: u64) -> bool {
        let _ = (address, size_bytes);
        true
    }
}

/// A part of an allocation.
#[derive(Clone, Copy, Debug)]
pub struct Region<'m> {
    /// The address of the first byte.
    pub start: u64,
    /// The bytes. Cells, because a kernel may have several addresses of one byte.
    pub cells: &'m [Cell<u8>],
    /// False for memory that may only be read.
    pub is_writable: bool,
}

/// The bytes that a launch accessed, as ranges of addresses in rising order with gaps between them.
///
/// Strong accesses are atomics, and those that state `volatile`, `relaxed`, `acquire`, `release` or the like, with a scope that has other
/// launches. Two of them do not race. Those of the scope of a block are among the others here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Touched {
    /// The ranges that were read.
    pub reads: Vec<Range<u64>>,
    /// The ranges that were written.
    pub writes: Vec<Range<u64>>,
    /// The ranges that strong loads read.
    pub strong_reads: Vec<Range<u64>>,
    /// The ranges that atomics and strong stores wrote.
    pub strong_writes: Vec<Range<u64>>,
}

impl Touched {
    /// Weak reads and writes, then strong ones.
    pub(crate) fn new(ranges: [Ranges; 4]) -> Self {
        let [reads, writes, strong_reads, strong_writes] = ranges.map(Ranges::finish);
        Self { reads, writes, strong_reads, strong_writes }
    }

    pub(crate) fn ranges(&self) -> [&[Range<u64>]; 4] {
        [&self.reads, &self.writes, &self.strong_reads, &self.strong_writes]
    }
}

/// An access that is looked for among those of a launch: the first one of this kind to any of these bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sought {
    /// The addresses.
    pub bytes: Range<u64>,
    /// True for a write.
    pub is_write: bool,
    /// True for a strong one, as [`Touched`] has it.
    pub is_strong: bool,
}

/// Collects ranges. Where they are many and short, as of a kernel that reads here and there, a page has a bit for each byte.
pub(crate) struct Ranges {
    ranges: Vec<Range<u64>>,
    /// How many there may be before they are joined again.
    len_max: usize,
    /// The bytes of pages, by the numbers of the pages.
    pages: HashMap<u64, usize>,
    bits: Vec<PageBits>,
    /// The number of a page and the place of its bits.
    last: (u64, usize),
}

type PageBits = [u64; (PAGE_BYTES / 64) as usize];

impl Ranges {
    pub(crate) fn new() -> Self {
        Self {
            ranges: Vec::new(),
            len_max: 2 * RANGES_MAX,
            pages: HashMap::new(),
            bits: Vec::new(),
            last: (u64::MAX, 0),
        }
    }

    pub(crate) fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        if self.ranges.len() < RANGES_MAX {
            self.ranges.push(range);
        } else {
            self.add_scattered(range);
        }
    }

    #[cold]
    fn join_all(&mut self) {
        self.ranges.sort_unstable_by_key(|range| range.start);
        join(&mut self.ranges);
    }

    /// Adds one more than the list has room for.
    fn add_scattered(&mut self, range: Range<u64>) {
        let page = range.start / PAGE_BYTES;
        if range.end.div_ceil(PAGE_BYTES) != page + 1 {
            self.ranges.push(range);
            // Long ranges are joined each time that their number has doubled since they were last joined.
            if self.ranges.len() >= self.len_max {
                self.join_all();
                self.len_max = 2 * self.ranges.len().max(RANGES_MAX);
            }
            return;
        }
        if self.last.0 != page {
            let bits = &mut self.bits;
            let place = *self.pages.entry(page).or_insert_with(|| {
                bits.push([0; (PAGE_BYTES / 64) as usize]);
                bits.len() - 1
            });
            self.last = (page, place);
        }
        let bits = &mut self.bits[self.last.1];
        let (mut at, end) = (range.start % PAGE_BYTES, range.end - page * PAGE_BYTES);
        while at < end {
            let bit = at % 64;
            let count = (64 - bit).min(end - at);
            bits[(at / 64) as usize] |= u64::MAX >> (64 - count) << bit;
            at += count;
        }
    }

    fn finish(mut self) -> Vec<Range<u64>> {
        self.join_all();
        if self.bits.is_empty() {
            return self.ranges;
        }
        let mut pages: Vec<_> = self.pages.into_iter().collect();
        pages.sort_unstable();
        let mut short = Vec::new();
        for (page, place) in pages {
            for (at, word) in self.bits[place].iter().enumerate() {
                let start = page * PAGE_BYTES + 64 * at as u64;
                runs(*word, |first, end| short.push(start + first..start + end));
            }
        }
        join(&mut short);
        // Both are sorted.
        let mut all = Vec::with_capacity(self.ranges.len() + short.len());
        let (mut one, mut other) = (self.ranges.into_iter().peekable(), short.into_iter().peekable());
        while let Some(next) = match (one.peek(), other.peek()) {
            (Some(a), Some(b)) if b.start < a.start => other.next(),
            (Some(_), _) => one.next(),
            _ => other.next(),
        } {
            all.push(next);
        }
        join(&mut all);
        all
    }
}

/// Joins sorted ranges that touch.
fn join(ranges: &mut Vec<Range<u64>>) {
    ranges.dedup_by(|next, first| {
        let is_joined = next.start <= first.end;
        if is_joined {
            first.end = first.end.max(next.end);
        }
        is_joined
    });
}

/// Calls `found` with each run of ones.
fn runs(mut word: u64, mut found: impl FnMut(u64, u64)) {
    while word != 0 {
        let first = word.trailing_zeros();
        let end = first + (word >> first).trailing_ones();
        found(first.into(), end.into());
        word = word.checked_shr(end).unwrap_or(0).checked_shl(end).unwrap_or(0);
    }
}

/// The number of ranges up to which they are a list.
const RANGES_MAX: usize = 1 << 12;
const PAGE_BYTES: u64 = 4096;

/// A little-endian number in `cells`, which are as many as its bytes.
pub(crate) fn get(cells: &[Cell<u8>]) -> u64 {
    fn bytes<const N: usize>(cells: &[Cell<u8>]) -> [u8; N] {
        core::array::from_fn(|at| cells[at].get())
    }
    match cells.len() {
        1 => u64::from(cells[0].get()),
        2 => u64::from(u16::from_le_bytes(bytes(cells))),
        4 => u64::from(u32::from_le_bytes(bytes(cells))),
        8 => u64::from_le_bytes(bytes(cells)),
        _ => 0,
    }
}

/// Writes the low bytes of a number, as many as there are cells.
pub(crate) fn set(cells: &[Cell<u8>], value: u64) {
    fn write<const N: usize>(cells: &[Cell<u8>], bytes: [u8; N]) {
        for (cell, byte) in cells[..N].iter().zip(bytes) {
            cell.set(byte);
        }
    }
    match cells.len() {
        1 => cells[0].set(value as u8),
        2 => write(cells, (value as u16).to_le_bytes()),
        4 => write(cells, (value as u32).to_le_bytes()),
        8 => write(cells, value.to_le_bytes()),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_are_one() {
        let mut ranges = Ranges::new();
        for start in (0..100_000).rev().step_by(2) {
            ranges.add(4 * start..4 * start + 4);
        }
        ranges.add(0..4);
        ranges.add(10..10);
        let found = ranges.finish();
        assert_eq!(found.len(), 50_000);
        let mut ranges = Ranges::new();
        (0..100_000).for_each(|start| ranges.add(4 * start..4 * start + 4));
        assert_eq!(ranges.finish(), std::slice::from_ref(&(0..400_000)));
    }

    /// Long ranges that come again and again are joined now and then, and not each time.
    #[test]
    fn long_ranges_are_seldom_joined() {
        let mut ranges = Ranges::new();
        let long = |number: u64| 4 * PAGE_BYTES * number..(4 * number + 2) * PAGE_BYTES;
        let count = 2 * RANGES_MAX as u64 - 1;
        (0..count).for_each(|number| ranges.add(long(number)));
        let (mut joined, mut len_max) = (0, 0);
        for number in 0..8 * count {
            let before = ranges.ranges.len();
            ranges.add(long(number % count));
            joined += usize::from(ranges.ranges.len() <= before);
            len_max = len_max.max(ranges.ranges.len());
        }
        assert!((4..=16).contains(&joined), "{joined}");
        assert!(len_max <= 2 * count as usize, "{len_max}");
        assert!(ranges.finish().into_iter().eq((0..count).map(long)));
    }

    #[test]
    fn many_ranges_are_those_of_a_list() {
        let mut number = 1_u64;
        let mut random = |below: u64| {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (number >> 33) % below
        };
        for (space, longest) in [(1 << 16, 8), (1 << 20, 64), (1 << 20, 3 * PAGE_BYTES), (1 << 40, 9)] {
            let mut ranges = Ranges::new();
            let mut all: Vec<_> = (0..4 * RANGES_MAX)
                .map(|_| {
                    let start = random(space);
                    start..start + random(longest)
                })
                .filter(|range| !range.is_empty())
                .collect();
            all.iter().for_each(|range| ranges.add(range.clone()));
            all.sort_unstable_by_key(|range| range.start);
            join(&mut all);
            assert_eq!(ranges.finish(), all);
        }
    }
}

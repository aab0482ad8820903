//! The memory that kernels access, and what they accessed.

use core::cell::Cell;
use core::ops::Range;

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

/// Collects ranges.
pub(crate) struct Ranges {
    ranges: Vec<Range<u64>>,
    /// The number of ranges at which they are joined.
    joined_at: usize,
}

impl Ranges {
    pub(crate) fn new() -> Self {
        Self { ranges: Vec::new(), joined_at: JOINED_AT_MIN }
    }

    pub(crate) fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        self.ranges.push(range);
        if self.ranges.len() >= self.joined_at {
            self.join();
            self.joined_at = (2 * self.ranges.len()).max(JOINED_AT_MIN);
        }
    }

    fn join(&mut self) {
        self.ranges.sort_unstable_by_key(|range| range.start);
        self.ranges.dedup_by(|next, first| {
            let is_joined = next.start <= first.end;
            if is_joined {
                first.end = first.end.max(next.end);
            }
            is_joined
        });
    }

    fn finish(mut self) -> Vec<Range<u64>> {
        self.join();
        self.ranges
    }
}

const JOINED_AT_MIN: usize = 1 << 12;

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
}

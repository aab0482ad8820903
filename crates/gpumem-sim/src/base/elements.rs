//! [`Elements`]: bytes with gaps between them.

use core::ops::Range;

/// Elements with gaps between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Elements {
    /// The first byte of one of them.
    pub(crate) start: u64,
    pub(crate) element_bytes: u64,
    /// The distance from one element to the next, greater than `element_bytes`.
    pub(crate) step_bytes: u64,
}

impl Elements {
    /// The elements at places that are smaller by `shift`.
    pub(crate) fn before(self, shift: u64) -> Self {
        Self { start: self.start.wrapping_sub(shift), ..self }
    }

    /// The parts of a range that belong to elements.
    pub(crate) fn within(self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let Self { start, element_bytes, step_bytes } = self;
        let after_start = (i128::from(range.start) - i128::from(start)).rem_euclid(i128::from(step_bytes));
        let first = i128::from(range.start) - after_start;
        let clip = move |at: i128| at.clamp(i128::from(range.start), i128::from(range.end)) as u64;
        let end = range.end;
        (0..)
            .map(move |index| first + index * i128::from(step_bytes))
            .take_while(move |&at| at < i128::from(end))
            .map(move |at| clip(at)..clip(at + i128::from(element_bytes)))
            .filter(|part| !part.is_empty())
    }
}

//! [`Elements`]: bytes with gaps between them.

use core::ops::Range;

/// Elements with gaps between them, in rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Elements {
    /// The first byte of a row.
    pub(crate) start: u64,
    pub(crate) element_bytes: u64,
    /// The distance from one element of a row to the next, at least `element_bytes`.
    pub(crate) step_bytes: u64,
    /// The number of elements in a row.
    pub(crate) row_len: u64,
    /// The distance from one row to the next, at least the bytes from the first to the last of a row.
    pub(crate) pitch_bytes: u64,
}

impl Elements {
    /// The elements at places that are smaller by `shift`.
    pub(crate) fn before(self, shift: u64) -> Self {
        Self { start: self.start.wrapping_sub(shift), ..self }
    }

    /// The parts of a range that belong to elements.
    pub(crate) fn within(self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let [start, element, step, row_len, pitch] =
            [self.start, self.element_bytes, self.step_bytes, self.row_len, self.pitch_bytes].map(i128::from);
        let (low, high) = (i128::from(range.start), i128::from(range.end));
        let first_row = start + (low - start).div_euclid(pitch) * pitch;
        let rows = (0..).map(move |index| first_row + index * pitch).take_while(move |row| *row < high);
        let elements = rows.flat_map(move |row| {
            let first = ((low - row) / step).clamp(0, row_len);
            (first..row_len).map(move |index| row + index * step).take_while(move |at| *at < high)
        });
        let clip = move |at: i128| at.clamp(low, high) as u64;
        elements.map(move |at| clip(at)..clip(at + element)).filter(|part| !part.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::Random;

    /// Compared with a list of all bytes.
    #[test]
    fn the_parts_of_a_range_are_the_bytes_of_elements() {
        let mut random = Random::new(7);
        for _ in 0..2000 {
            let element_bytes = 1 + random.below(4) as u64;
            let step_bytes = element_bytes + random.below(4) as u64;
            let row_len = 1 + random.below(4) as u64;
            let reach = (row_len - 1) * step_bytes + element_bytes;
            let pitch_bytes = reach + random.below(6) as u64;
            let start = 500 + random.below(20) as u64;
            let elements = Elements { start, element_bytes, step_bytes, row_len, pitch_bytes };
            let (low, len) = (480 + random.below(60) as u64, random.below(60) as u64);
            let is_element = |byte: u64| {
                let in_row = (byte + 100 * pitch_bytes - start) % pitch_bytes;
                in_row < reach && in_row % step_bytes < element_bytes
            };
            let expected: Vec<u64> = (low..low + len).filter(|byte| is_element(*byte)).collect();
            let found: Vec<u64> = elements.within(low..low + len).flatten().collect();
            assert_eq!(found, expected, "{elements:?} in {len} bytes from {low}");
        }
    }
}

//! [`FreeLists`]: the free records of one state, by size (two-level segregated fit: Masmano, Ripoll, Crespo and Real, "TLSF", ECRTS
//! 2004).
//!
//! The first level is the size's power of two, the second has 32 steps within it. Bitmaps record which lists are not empty, so that
//! a search looks at a few records of the request's own step and then takes the first record of the next step that has any.

use super::record::{NONE, RangeRecord, Records};

/// All sizes are multiples of this.
pub(super) const UNIT_BYTES: u64 = 1 << UNIT_SHIFT;

#[derive(Debug)]
pub(super) struct FreeLists {
    /// The rows that are not empty.
    rows: u64,
    /// The steps of each row that are not empty.
    steps: [u32; ROW_COUNT],
    heads: [u32; STEP_COUNT],
    /// The sum of the sizes of all records.
    pub(super) size_bytes: u64,
}

impl FreeLists {
    pub(super) fn new() -> Self {
        Self { rows: 0, steps: [0; ROW_COUNT], heads: [NONE; STEP_COUNT], size_bytes: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows == 0
    }

    pub(super) fn insert(&mut self, records: &mut Records, id: u32) {
        let record = &mut records[id];
        self.size_bytes += record.size_bytes;
        let step = step_of(record.size_bytes);
        let head = self.heads[step];
        record.list_prev = NONE;
        record.list_next = head;
        if head != NONE {
            records[head].list_prev = id;
        }
        self.heads[step] = id;
        self.steps[step / STEPS] |= 1 << (step % STEPS);
        self.rows |= 1 << (step / STEPS);
    }

    pub(super) fn remove(&mut self, records: &mut Records, id: u32) {
        let RangeRecord { size_bytes, list_prev, list_next, .. } = records[id];
        self.size_bytes -= size_bytes;
        if list_next != NONE {
            records[list_next].list_prev = list_prev;
        }
        if list_prev != NONE {
            records[list_prev].list_next = list_next;
            return;
        }
        let step = step_of(size_bytes);
        self.heads[step] = list_next;
        if list_next == NONE {
            self.steps[step / STEPS] &= !(1 << (step % STEPS));
            if self.steps[step / STEPS] == 0 {
                self.rows &= !(1 << (step / STEPS));
            }
        }
    }

    /// A record with room for `size_bytes` at an alignment, among the smallest.
    pub(super) fn find(&self, records: &Records, size_bytes: u64, base: u64, alignment: u64) -> Option<u32> {
        let fits = |record: &RangeRecord| place(record, size_bytes, base, alignment).is_some();
        let own = step_of(size_bytes);
        let mut best: Option<u32> = None;
        let mut id = self.heads[own];
        for _ in 0..LOOKS_MAX {
            if id == NONE {
                break;
            }
            let record = &records[id];
            if fits(record) && best.is_none_or(|best| record.size_bytes < records[best].size_bytes) {
                if record.size_bytes == size_bytes {
                    return Some(id);
                }
                best = Some(id);
            }
            id = record.list_next;
        }
        if best.is_some() {
            return best;
        }
        let mut step = self.next_step(own + 1)?;
        if alignment <= UNIT_BYTES {
            return Some(self.heads[step]);
        }
        // Any record with room for the padding of the alignment fits; a smaller one may.
        let surely = step_of(size_bytes.saturating_add(alignment)) + 1;
        loop {
            let id = self.heads[step];
            if fits(&records[id]) {
                return Some(id);
            }
            step = self.next_step(if step < surely { step + 1 } else { surely.max(step + 1) })?;
        }
    }

    /// The first list from a step on that is not empty.
    fn next_step(&self, step: usize) -> Option<usize> {
        let row = step / STEPS;
        if row >= ROW_COUNT {
            return None;
        }
        let steps = self.steps[row] & (u32::MAX << (step % STEPS));
        if steps != 0 {
            return Some(row * STEPS + steps.trailing_zeros() as usize);
        }
        let rows = self.rows & (u64::MAX << (row + 1));
        if rows == 0 {
            return None;
        }
        let row = rows.trailing_zeros() as usize;
        Some(row * STEPS + self.steps[row].trailing_zeros() as usize)
    }

    /// All records from a size on; the result may contain a few slightly smaller ones.
    pub(super) fn ids<'a>(&'a self, records: &'a Records, size_bytes: u64) -> impl Iterator<Item = u32> + 'a {
        let first = self.next_step(step_of(size_bytes));
        let steps = core::iter::successors(first, |step| self.next_step(step + 1));
        steps.flat_map(move |step| {
            let some = |id: u32| (id != NONE).then_some(id);
            core::iter::successors(some(self.heads[step]), move |id| some(records[*id].list_next))
        })
    }

    /// True if the bitmaps agree with the lists, for [`super::check`].
    pub(super) fn is_consistent(&self, records: &Records) -> bool {
        let heads = self.heads.iter().enumerate().all(|(step, head)| {
            let bit = self.steps[step / STEPS] >> (step % STEPS) & 1 == 1;
            bit == (*head != NONE) && (*head == NONE || records[*head].list_prev == NONE)
        });
        let size_bytes: u64 = self.ids(records, 0).map(|id| records[id].size_bytes).sum();
        heads
            && size_bytes == self.size_bytes
            && self.steps.iter().enumerate().all(|(row, steps)| (self.rows >> row & 1 == 1) == (*steps != 0))
    }
}

/// The first place in a record for this many bytes, with the alignment relative to `-base`.
pub(super) fn place(record: &RangeRecord, size_bytes: u64, base: u64, alignment: u64) -> Option<u64> {
    let start = (base + record.start).checked_next_multiple_of(alignment)? - base;
    (start.checked_add(size_bytes)? <= record.end()).then_some(start)
}

/// The list for records of a size.
fn step_of(size_bytes: u64) -> usize {
    let units = size_bytes >> UNIT_SHIFT;
    if units < STEPS as u64 {
        return units as usize;
    }
    let power = units.ilog2();
    let step = (units >> (power - STEP_SHIFT)) as usize - STEPS;
    ((power - STEP_SHIFT + 1) as usize * STEPS + step).min(STEP_COUNT - 1)
}

const UNIT_SHIFT: u32 = 8;
const STEP_SHIFT: u32 = 5;
const STEPS: usize = 1 << STEP_SHIFT;
/// Enough for records of a PiB.
const ROW_COUNT: usize = 38;
const STEP_COUNT: usize = ROW_COUNT * STEPS;

/// The records of the request's own step that a search looks at.
const LOOKS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_grow_with_sizes_and_never_by_more_than_a_32nd() {
        let mut size_bytes = UNIT_BYTES;
        while size_bytes < 1 << 44 {
            let larger = (size_bytes + size_bytes / 16).next_multiple_of(UNIT_BYTES);
            assert!(step_of(size_bytes) < step_of(larger), "{size_bytes}");
            assert!(step_of(size_bytes) <= step_of(size_bytes + UNIT_BYTES));
            assert!(step_of(size_bytes + UNIT_BYTES) <= step_of(size_bytes) + 1);
            size_bytes = larger;
        }
    }
}

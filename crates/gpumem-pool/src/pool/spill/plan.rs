//! [`SpillPlan`]: which contents move out, and which come back ahead of their use. Pure.
//!
//! While contents move, each operation is recorded with the arrays that it uses. Programs repeat themselves: an operation is *matched* with
//! an earlier one, by the arrays that both use and by their signature, a hash of sizes and accesses. What followed the earlier operation
//! is expected to follow the later one. So an array that the earlier operation used next after *n* operations is expected after *n*
//! operations, even if it is a new array in place of one that was dropped.
//!
//! The contents with the most distant expected use move out first. Contents that the host has no copy of count as nearer, because their
//! memory is free only after a copy down. An array without an expectation counts as expected as far ahead as its last use lies back, so such
//! arrays leave least recently used first. What moved out after the earlier operation is expected to move out after the later one, and is
//! copied down at once, while the link is free.
//!
//! The operations since the match are one repetition of the program's loop. What it needs at once, beyond what was in device memory at once,
//! has to be copied in each repetition: a lower bound, which the status of the pool states.

#[cfg(test)]
mod tests;

use crate::limits::spills::Repetition;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

/// A use of an array by an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpillUse {
    /// The number of the array, which no other array has ever had.
    pub(crate) array: u64,
    pub(crate) is_write: bool,
}

/// What is known of an array.
#[derive(Clone, Copy, Debug)]
struct KnownArray {
    size_bytes: u64,
    is_resident: bool,
    /// The operation that used it last.
    used_at: u64,
    /// The operation before which it returned last.
    returned_at: u64,
    /// The operation that is expected to use it next.
    expected_at: Option<u64>,
    /// True from an early return until the use that was expected.
    is_early: bool,
}

/// A recorded operation.
#[derive(Debug)]
struct RecordedOperation {
    signature: u64,
    /// The bytes of all arrays at that time, and of those in device memory.
    live_bytes: u64,
    resident_bytes: u64,
    uses: Vec<RecordedSpillUse>,
}

#[derive(Clone, Copy, Debug)]
struct RecordedSpillUse {
    array: u64,
    is_write: bool,
    /// The operation that used the array next.
    next: Option<u64>,
    /// True if the contents moved out before that.
    has_left: bool,
}

/// The plan of one pool.
#[derive(Debug, Default)]
pub(crate) struct SpillPlan {
    /// The number of operations so far, which is the number of the next one.
    now: u64,
    arrays: HashMap<u64, KnownArray>,
    resident_bytes: u64,
    away_bytes: u64,
    /// The bytes of arrays that returned early, before the use that was expected.
    early_bytes: u64,
    /// The arrays that are away, with the operations that are expected to use them.
    due: BTreeSet<(u64, u64)>,
    /// The recorded operations, the latest last. Its number is `now - 1`.
    recorded: VecDeque<RecordedOperation>,
    /// The earlier operation that the latest one was matched with.
    matched: Option<u64>,
    /// The first operation of the iteration that the program has marked last.
    iteration: Option<u64>,
    /// The number of operations in a row whose match follows the match of the one before.
    streak: u64,
    /// The latest operation for each sequence of signatures, and for each pair of operations by their arrays.
    sequences: HashMap<u64, u64>,
    /// The operation at which all recorded ones were read last.
    read_ahead_at: u64,
    /// The largest array, and the largest sum of sizes of an operation's arrays.
    largest_array_bytes: u64,
    largest_bytes: u64,
    /// Early returns that were used in time, and those that were not. Older ones count less.
    early_right: f64,
    early_wrong: f64,
}

impl SpillPlan {
    pub(crate) fn add(&mut self, array: u64, size_bytes: u64) {
        let known = KnownArray {
            size_bytes,
            is_resident: true,
            used_at: self.now,
            returned_at: self.now,
            expected_at: None,
            is_early: false,
        };
        self.arrays.insert(array, known);
        self.resident_bytes += size_bytes;
        self.largest_array_bytes = self.largest_array_bytes.max(size_bytes);
    }

    pub(crate) fn remove(&mut self, array: u64) {
        if let Some(known) = self.arrays.remove(&array) {
            *self.bytes_of(known.is_resident) -= known.size_bytes;
            self.early_bytes -= if known.is_early { known.size_bytes } else { 0 };
            if let Some(at) = known.expected_at {
                self.due.remove(&(at, array));
            }
        }
    }

    /// The array is in device memory from now on, or no longer. `is_early`: it returned before its use.
    pub(crate) fn set_resident(&mut self, array: u64, is_resident: bool, is_early: bool) {
        let Some(known) = self.arrays.get_mut(&array) else { return };
        let (was_resident, size_bytes) = (known.is_resident, known.size_bytes);
        let was_early = core::mem::replace(&mut known.is_early, is_early);
        let used_at = known.used_at;
        known.is_resident = is_resident;
        if is_resident {
            known.returned_at = self.now;
        }
        if let Some(at) = known.expected_at {
            if is_resident {
                self.due.remove(&(at, array))
            } else {
                self.due.insert((at, array))
            };
        }
        self.early_bytes += if is_early { size_bytes } else { 0 };
        self.early_bytes -= if was_early { size_bytes } else { 0 };
        if was_early && !is_resident {
            self.judge_early(false);
        }
        if was_resident && !is_resident {
            self.uses_at(used_at, array).for_each(|one| one.has_left = true);
        }
        if was_resident != is_resident {
            *self.bytes_of(was_resident) -= size_bytes;
            *self.bytes_of(is_resident) += size_bytes;
        }
    }

    /// The bytes of arrays whose contents are on the host alone, and their number.
    pub(crate) fn away(&self) -> (u64, u64) {
        (self.away_bytes, self.arrays.values().filter(|known| !known.is_resident).count() as u64)
    }

    /// The latest repetition of the program's loop; `None` while operations match no earlier ones.
    pub(crate) fn repetition(&self) -> Option<Repetition> {
        let matched = self.matched.filter(|_| self.streak >= STREAK_MIN)?;
        // The latest operation is `now - 1`.
        let begin = matched + 1;
        let operations = self.recorded.range(usize::try_from(begin.checked_sub(self.oldest())?).ok()?..);
        let written: HashSet<u64> = operations
            .clone()
            .flat_map(|operation| &operation.uses)
            .filter(|one| one.is_write)
            .map(|one| one.array)
            .collect();
        let (mut idle_bytes, mut clean_bytes) = (0, 0);
        for (array, known) in &self.arrays {
            if known.used_at < begin {
                idle_bytes += known.size_bytes;
            } else if !written.contains(array) {
                clean_bytes += known.size_bytes;
            }
        }
        let live_bytes = operations.clone().map(|operation| operation.live_bytes).max()?;
        let room_bytes = operations.map(|operation| operation.resident_bytes).max()?;
        let needed_bytes = live_bytes.saturating_sub(idle_bytes);
        let least_up_bytes = needed_bytes.saturating_sub(room_bytes);
        let least_down_bytes = least_up_bytes.saturating_sub(clean_bytes);
        Some(Repetition { needed_bytes, room_bytes, least_up_bytes, least_down_bytes })
    }

    /// Records an operation, which has been queued. Returns the arrays whose contents are expected to move out before their next use, because
    /// those of the earlier operation did.
    pub(crate) fn note(&mut self, uses: &[SpillUse]) -> Vec<u64> {
        let (now, signature) = (self.now, self.signature(uses));
        self.match_with_earlier(signature, uses);
        let recorded = uses
            .iter()
            .map(|one| RecordedSpillUse {
                array: one.array,
                is_write: one.is_write,
                next: None,
                has_left: false,
            })
            .collect();
        self.recorded.push_back(RecordedOperation {
            signature,
            live_bytes: self.resident_bytes + self.away_bytes,
            resident_bytes: self.resident_bytes,
            uses: recorded,
        });
        self.now += 1;
        for one in uses {
            self.note_use(now, one.array);
        }
        self.expect_next_uses(now, uses);
        if self.streak == MATCHES_MIN && now - self.read_ahead_at.min(now) > self.recorded.len() as u64 / 4 {
            self.read_ahead(now);
        }
        let bytes =
            uses.iter().filter_map(|one| self.arrays.get(&one.array)).map(|known| known.size_bytes).sum();
        self.largest_bytes = self.largest_bytes.max(bytes);
        if self.recorded.len() > RECORDED_MAX {
            self.recorded.pop_front();
        }
        if self.sequences.len() > 4 * RECORDED_MAX {
            let oldest = self.oldest();
            self.sequences.retain(|_, at| *at >= oldest);
        }
        self.leaving(uses)
    }

    /// The program begins an iteration: what followed the last mark is expected to follow this one.
    pub(crate) fn begin_iteration(&mut self) {
        let last = self.iteration.replace(self.now).filter(|last| *last < self.now);
        let Some(before_last) = last.and_then(|last| last.checked_sub(1)) else { return };
        if before_last >= self.oldest() {
            (self.matched, self.streak) = (Some(before_last), self.streak.max(STREAK_MIN));
            self.read_ahead(self.now - 1);
        }
    }

    fn leaving(&self, uses: &[SpillUse]) -> Vec<u64> {
        let matched = self.matched.filter(|_| self.streak >= MATCHES_MIN).and_then(|at| self.operation(at));
        let pairs = matched.into_iter().flat_map(|earlier| earlier.uses.iter().zip(uses));
        pairs.filter(|(earlier, _)| earlier.has_left).map(|(_, one)| one.array).collect()
    }

    fn note_use(&mut self, now: u64, array: u64) {
        let Some(known) = self.arrays.get_mut(&array) else { return };
        let (before, was_early) = (known.used_at, known.is_early);
        (known.used_at, known.is_early) = (now, false);
        if was_early {
            self.early_bytes -= known.size_bytes;
            self.judge_early(true);
        }
        if before != now {
            self.uses_at(before, array).for_each(|other| other.next = Some(now));
        }
    }

    /// Expects the arrays of the recorded operations that followed the match, in the first repetition.
    fn read_ahead(&mut self, now: u64) {
        self.read_ahead_at = now;
        let Some(matched) = self.matched else { return };
        let first = usize::try_from(matched + 1 - self.oldest()).unwrap_or(usize::MAX);
        for (ahead, operation) in (1..).zip(self.recorded.iter().skip(first)) {
            for one in &operation.uses {
                if let Some(known) = self.arrays.get_mut(&one.array)
                    && known.expected_at.is_none_or(|at| at <= now)
                {
                    let before = known.expected_at.replace(now + ahead);
                    if !known.is_resident {
                        if let Some(at) = before {
                            self.due.remove(&(at, one.array));
                        }
                        self.due.insert((now + ahead, one.array));
                    }
                }
            }
        }
    }

    /// Arrays whose contents should move out, until at least `size_bytes` are free: those that are not expected within `nearest` operations.
    /// `place` gives the address of an array and the relative cost of a move; `None` for an array that must stay.
    pub(crate) fn victims(
        &self,
        size_bytes: u64,
        nearest: u64,
        place: impl Fn(u64) -> Option<(u64, f64)>,
    ) -> Vec<u64> {
        let resident = self.arrays.iter().filter(|(_, known)| known.is_resident);
        let resident = resident.filter(|(_, known)| self.distance(known) > nearest as f64);
        let mut candidates: Vec<_> = resident
            .filter_map(|(array, known)| {
                let (address, cost) = place(*array)?;
                let score = self.distance(known) / cost;
                Some(Candidate { array: *array, address, size_bytes: known.size_bytes, score })
            })
            .collect();
        // Ties are broken by number, so that runs repeat.
        candidates.sort_by(|one, other| other.score.total_cmp(&one.score).then(one.array.cmp(&other.array)));
        let mut chosen_bytes = 0;
        let needed = candidates.iter().take_while(|one| {
            let is_needed = chosen_bytes < size_bytes;
            chosen_bytes += one.size_bytes;
            is_needed
        });
        let best: Vec<u64> = needed.map(|one| one.array).collect();
        let least_score = best.len().checked_sub(1).and_then(|last| candidates.get(last));
        let least_score = least_score.map_or(0.0, |last| NEIGHBOUR_FACTOR * last.score);
        let count = candidates.partition_point(|one| one.score >= least_score);
        candidates.truncate(count);
        match side_by_side(candidates, size_bytes) {
            Some(neighbours) if best.len() > 1 => neighbours,
            _ => best,
        }
    }

    /// Arrays that should return now, the one that is used first comes first. None while expectations were wrong.
    pub(crate) fn returning(&self) -> Vec<u64> {
        let were_right = 3.0 * self.early_wrong <= self.early_right + EARLY_SLACK;
        if self.away_bytes == 0 || self.streak < STREAK_MIN || !were_right {
            return Vec::new();
        }
        let (window_bytes, mut sum_bytes) = (self.window_bytes(), self.early_bytes);
        let due = self.due.range((self.now, 0)..).map(|(_, array)| *array);
        let fitting = due.take_while(|array| {
            // One at a time may exceed the window.
            let is_first = sum_bytes == 0;
            sum_bytes += self.arrays.get(array).map_or(0, |known| known.size_bytes);
            is_first || sum_bytes <= window_bytes
        });
        fitting.collect()
    }

    /// The size of the largest array that may have to return.
    pub(crate) fn largest_away_bytes(&self) -> u64 {
        if self.away_bytes == 0 { 0 } else { self.largest_array_bytes.min(self.away_bytes) }
    }

    /// After how many operations the next use of an array is expected, or how far its last use lies back.
    pub(crate) fn distance_of(&self, array: u64) -> f64 {
        self.arrays.get(&array).map_or(0.0, |known| self.distance(known))
    }

    /// The operation that used an array last.
    pub(crate) fn used_at(&self, array: u64) -> u64 {
        self.arrays.get(&array).map_or(0, |known| known.used_at)
    }

    /// How many operations ahead the next use of an array is expected; `None` without an expectation.
    pub(crate) fn expected_in(&self, array: u64) -> Option<u64> {
        let at = self.arrays.get(&array)?.expected_at?;
        at.checked_sub(self.now)
    }

    /// The bytes that may return before their use: enough to hide the copies behind an operation, and little beside the memory.
    fn window_bytes(&self) -> u64 {
        let largest_bytes = self.largest_bytes.max(WINDOW_BYTES_MIN);
        largest_bytes.min(self.resident_bytes / WINDOW_DIVISOR).min(self.away_bytes / EXCESS_DIVISOR)
    }

    fn distance(&self, known: &KnownArray) -> f64 {
        match known.expected_at {
            Some(at) if at >= self.now => (at - self.now + 1) as f64,
            // What has returned is about to be used.
            _ => (self.now - known.used_at.max(known.returned_at).min(self.now) + 1) as f64,
        }
    }

    fn match_with_earlier(&mut self, signature: u64, uses: &[SpillUse]) {
        let now = self.now;
        let next = self.matched.map(|at| at + 1).filter(|at| *at < now && self.is_like(*at, signature, uses));
        if let Some(at) = next {
            (self.matched, self.streak) = (Some(at), self.streak + 1);
            // Mistakes are forgotten while operations come as expected.
            self.early_wrong *= FORGETTING;
        } else {
            let known = |sequence: u64| {
                self.sequences.get(&sequence).copied().filter(|at| self.is_like(*at, signature, uses))
            };
            // The last use of a written array says little, because accumulators are used all the time.
            let by_array = |is_write| {
                let of = uses.iter().filter(move |one| one.is_write == is_write);
                let at = of.filter_map(|one| self.arrays.get(&one.array)).map(|known| known.used_at);
                at.filter(|at| *at < now && self.is_like(*at, signature, uses)).min()
            };
            let matched =
                known(self.pair_ending_with(uses)).or_else(|| by_array(false)).or_else(|| by_array(true));
            self.matched = matched.or_else(|| known(self.sequence_ending_with(signature)));
            self.streak = 0;
        }
        for sequence in [self.pair_ending_with(uses), self.sequence_ending_with(signature)] {
            self.sequences.insert(sequence, now);
        }
    }

    /// True if an earlier operation may be the same step of the program: it has the same signature, and where it used arrays that still
    /// exist, it used the same.
    fn is_like(&self, at: u64, signature: u64, uses: &[SpillUse]) -> bool {
        let Some(earlier) = self.operation(at) else { return false };
        earlier.signature == signature
            && earlier.uses.len() == uses.len()
            && earlier
                .uses
                .iter()
                .zip(uses)
                .all(|(earlier, one)| earlier.array == one.array || !self.arrays.contains_key(&earlier.array))
    }

    fn expect_next_uses(&mut self, now: u64, uses: &[SpillUse]) {
        let next_of = |plan: &Self, slot: usize| {
            let at = plan.matched?;
            let next = plan.operation(at)?.uses.get(slot)?.next?;
            Some(now + (next - at))
        };
        for (slot, one) in uses.iter().enumerate() {
            let expected_at = next_of(self, slot);
            if let Some(known) = self.arrays.get_mut(&one.array) {
                let before = core::mem::replace(&mut known.expected_at, expected_at);
                if !known.is_resident {
                    if let Some(at) = before {
                        self.due.remove(&(at, one.array));
                    }
                    self.due.extend(expected_at.map(|at| (at, one.array)));
                }
            }
        }
    }

    fn signature(&self, uses: &[SpillUse]) -> u64 {
        let words = uses.iter().map(|one| {
            let size_bytes = self.arrays.get(&one.array).map_or(0, |known| known.size_bytes);
            size_bytes << 1 | u64::from(one.is_write)
        });
        words.fold(uses.len() as u64, mixed)
    }

    /// Of the arrays of an operation and of the one before it: a program that leaves one loop for another does so with the same pair.
    fn pair_ending_with(&self, uses: &[SpillUse]) -> u64 {
        let before =
            self.recorded.back().into_iter().flat_map(|recorded| &recorded.uses).map(|one| one.array);
        before.chain(uses.iter().map(|one| one.array)).fold(uses.len() as u64, mixed)
    }

    fn sequence_ending_with(&self, signature: u64) -> u64 {
        let earlier = self.recorded.iter().rev().take(SEQUENCE_LENGTH - 1).map(|recorded| recorded.signature);
        earlier.fold(signature, mixed)
    }

    fn oldest(&self) -> u64 {
        self.now - self.recorded.len() as u64
    }

    fn operation(&self, at: u64) -> Option<&RecordedOperation> {
        self.recorded.get(usize::try_from(at.checked_sub(self.oldest())?).ok()?)
    }

    /// The uses of an array by a recorded operation.
    fn uses_at(&mut self, at: u64, array: u64) -> impl Iterator<Item = &mut RecordedSpillUse> {
        let index = at.checked_sub(self.oldest()).and_then(|index| usize::try_from(index).ok());
        let operation = index.and_then(|index| self.recorded.get_mut(index));
        operation.into_iter().flat_map(|operation| &mut operation.uses).filter(move |one| one.array == array)
    }

    fn judge_early(&mut self, is_right: bool) {
        (self.early_right, self.early_wrong) = (0.98 * self.early_right, 0.98 * self.early_wrong);
        *(if is_right { &mut self.early_right } else { &mut self.early_wrong }) += 1.0;
    }

    fn bytes_of(&mut self, is_resident: bool) -> &mut u64 {
        if is_resident { &mut self.resident_bytes } else { &mut self.away_bytes }
    }
}

/// An array that may move out. The largest score is the best.
#[derive(Debug)]
struct Candidate {
    array: u64,
    address: u64,
    size_bytes: u64,
    score: f64,
}

/// Neighbours in memory that are large enough together: their memory serves a request where it is. Of several rows, the one whose least
/// score is the largest.
fn side_by_side(mut candidates: Vec<Candidate>, size_bytes: u64) -> Option<Vec<u64>> {
    candidates.sort_by_key(|one| one.address);
    let mut best: Option<(f64, &[Candidate])> = None;
    let (mut first, mut sum_bytes, mut end) = (0, 0, 0);
    for (index, one) in candidates.iter().enumerate() {
        if one.address.saturating_sub(end) > GAP_BYTES_MAX {
            (first, sum_bytes) = (index, 0);
        }
        end = one.address + one.size_bytes;
        sum_bytes += one.size_bytes;
        while let Some(left) = candidates.get(first).filter(|left| sum_bytes - left.size_bytes >= size_bytes)
        {
            sum_bytes -= left.size_bytes;
            first += 1;
        }
        let row = candidates.get(first..=index).unwrap_or_default();
        let least = row.iter().map(|one| one.score).fold(f64::MAX, f64::min);
        if sum_bytes >= size_bytes && best.as_ref().is_none_or(|(score, _)| least > *score) {
            best = Some((least, row));
        }
    }
    best.map(|(_, row)| row.iter().map(|one| one.array).collect())
}

/// A step of a hash: multiplication spreads the low bits, and the shift brings them back.
fn mixed(hash: u64, word: u64) -> u64 {
    let product = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ product >> 29
}

/// The operations that are kept: some periods of a long program, in a few megabytes.
const RECORDED_MAX: usize = 1 << 16;
/// Signatures that identify a place in a program without arrays that last.
const SEQUENCE_LENGTH: usize = 4;
/// Matches in a row before all recorded operations are read, and before contents are copied down that left at that place.
const MATCHES_MIN: u64 = 3;
/// Matches in a row before contents return early.
const STREAK_MIN: u64 = 8;
/// Mistakes that are allowed before anything was right.
const EARLY_SLACK: f64 = 1.0;
const FORGETTING: f64 = 0.99;
/// Neighbours may have as much less than the best score: mapping memory elsewhere costs time of the host and of the device.
const NEIGHBOUR_FACTOR: f64 = 0.55;
/// Blocks with such a gap are neighbours: the rest of a page.
const GAP_BYTES_MAX: u64 = 2 << 20;
const WINDOW_BYTES_MIN: u64 = 256 << 20;
/// The window as a fraction of the resident bytes and of those that are away. Larger ones double the copies of programs that need little more
/// than there is.
const WINDOW_DIVISOR: u64 = 8;
const EXCESS_DIVISOR: u64 = 4;

//! [`RealRun`]: what a recording states of the program itself, to hold a replay against.

use gpumem_pool::trace::{PoolSettings, Recording, What};
use std::collections::BTreeMap;

/// The settings and the memory of a recorded program, as its record states them.
#[derive(Clone, Debug, Default)]
pub struct RealRun {
    /// The peak of the memory that its pools reserved together.
    pub peak_reserved_bytes: Option<u64>,
    /// Its pools.
    pub pools: Vec<PoolSettings>,
    /// The number of the pool with the most allocated bytes.
    pub main_pool: Option<u32>,
    /// The reports of refused requests, from a flight recorder.
    pub reports: Vec<String>,
    /// The arrays that moved to the host and back.
    pub moves: MoveSums,
}

/// The sums of the moves of arrays between the device and the host, in a program whose pools spill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MoveSums {
    /// The number of moves to the host.
    pub out_count: u64,
    /// Their bytes.
    pub out_bytes: u64,
    /// Those of them that were copied: the host did not have the contents.
    pub copied_bytes: u64,
    /// The number of moves back.
    pub back_count: u64,
    /// Their bytes.
    pub back_bytes: u64,
    /// Those of them that moved ahead of their use.
    pub early_bytes: u64,
    /// The bytes that stayed on the device at the last refusal.
    pub kept_bytes: u64,
}

impl MoveSums {
    fn note(&mut self, what: What) {
        let add = |sum: &mut u64, bytes: u64| *sum = sum.saturating_add(bytes);
        match what {
            What::MovedOut { size_bytes, is_copied, .. } => {
                self.out_count += 1;
                add(&mut self.out_bytes, size_bytes);
                add(&mut self.copied_bytes, if is_copied { size_bytes } else { 0 });
            }
            What::MovedBack { size_bytes, is_early, .. } => {
                self.back_count += 1;
                add(&mut self.back_bytes, size_bytes);
                add(&mut self.early_bytes, if is_early { size_bytes } else { 0 });
            }
            What::Refused { .. } => self.kept_bytes = 0,
            What::Kept { bytes, .. } => add(&mut self.kept_bytes, bytes),
            _ => {}
        }
    }
}

impl RealRun {
    pub(crate) fn of(recording: &Recording) -> Self {
        let mut allocated: BTreeMap<u32, u64> = BTreeMap::new();
        let mut reserved: BTreeMap<u32, u64> = BTreeMap::new();
        let (mut sum_peak_bytes, mut own_peak_bytes) = (0, 0);
        let mut moves = MoveSums::default();
        for event in &recording.events {
            moves.note(event.what);
            match event.what {
                What::Alloc { pool, size_bytes, .. } => {
                    let sum = allocated.entry(pool).or_default();
                    *sum = sum.saturating_add(size_bytes);
                }
                What::Reserved { pool, reserved_bytes, peak_bytes } => {
                    reserved.insert(pool, reserved_bytes);
                    own_peak_bytes = own_peak_bytes.max(peak_bytes);
                    let sum = reserved.values().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
                    sum_peak_bytes = sum_peak_bytes.max(sum);
                }
                _ => {}
            }
        }
        // A pool's own peak is exact; the sum of several is that of the recorded moments.
        let peak_bytes = sum_peak_bytes.max(own_peak_bytes);
        Self {
            peak_reserved_bytes: (peak_bytes > 0).then_some(peak_bytes),
            pools: recording.pools.clone(),
            main_pool: allocated.iter().max_by_key(|(_, bytes)| **bytes).map(|(pool, _)| *pool),
            moves,
            reports: recording.reports.iter().map(|report| report.text.clone()).collect(),
        }
    }

    /// The settings of the main pool, if the recording has them.
    #[must_use]
    pub fn settings(&self) -> Option<&PoolSettings> {
        self.pools.iter().find(|pool| Some(pool.pool) == self.main_pool)
    }
}

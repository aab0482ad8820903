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
}

impl RealRun {
    pub(crate) fn of(recording: &Recording) -> Self {
        let mut allocated: BTreeMap<u32, u64> = BTreeMap::new();
        let mut reserved: BTreeMap<u32, u64> = BTreeMap::new();
        let (mut sum_peak_bytes, mut own_peak_bytes) = (0, 0);
        for event in &recording.events {
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
            reports: recording.reports.iter().map(|report| report.text.clone()).collect(),
        }
    }

    /// The settings of the main pool, if the recording has them.
    #[must_use]
    pub fn settings(&self) -> Option<&PoolSettings> {
        self.pools.iter().find(|pool| Some(pool.pool) == self.main_pool)
    }
}

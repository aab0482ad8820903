//! Compares the profiles on programs at a hard limit.
//!
//! Each program runs on a driver of its own under every profile. The limit is a multiple of the program's peak live bytes. A difference is a
//! program that `tight` completes and another profile does not; it states the request that was refused.

use crate::driver::virtual_time;
use crate::pool::{BackendKind, Profile};
use crate::programs::random_program;
use crate::sys::Driver;
use core::time::Duration;
use gpumem_trace::fit::{Attempt, Candidate};
use gpumem_trace::{ReplayError, Setup, Trace, TraceLimit, Waits};
use std::sync::atomic::{AtomicU64, Ordering};

const COUNT: usize = Profile::ALL.len();

/// The compared profiles. The first one is the reference.
pub const PROFILES: [Profile; COUNT] = {
    let mut all = [Profile::Tight; COUNT];
    let mut index = 0;
    while index < COUNT {
        all[index] = Profile::ALL[COUNT - 1 - index];
        index += 1;
    }
    all
};

const _: () = assert!(matches!(PROFILES[0], Profile::Tight), "`tight` is the last profile");

/// One program at one limit, under every profile.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The seed of the program.
    pub seed: u64,
    /// Its limit, as a multiple of its peak live bytes.
    pub factor: f64,
    /// One result for each profile, in the order of [`PROFILES`].
    pub attempts: Vec<Attempt>,
}

/// The counts of many comparisons at one limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// The number of programs.
    pub programs: u64,
    /// Programs that each profile completed.
    pub completed: [u64; COUNT],
    /// Programs that `tight` completed and the profile did not.
    pub lost: [u64; COUNT],
    /// Programs that the profile completed and `tight` did not.
    pub gained: [u64; COUNT],
    /// The time of the driver calls, over the programs that all profiles completed.
    pub driver_time: [Duration; COUNT],
}

impl Counts {
    /// Adds a comparison.
    pub fn add(&mut self, comparison: &Comparison) {
        self.programs += 1;
        let outcomes = || comparison.attempts.iter().map(Attempt::fit);
        let is_complete: Vec<_> = outcomes().map(|outcome| outcome.is_some()).collect();
        for (index, outcome) in outcomes().enumerate() {
            self.completed[index] += u64::from(is_complete[index]);
            self.lost[index] += u64::from(is_complete[0] && !is_complete[index]);
            self.gained[index] += u64::from(!is_complete[0] && is_complete[index]);
            if let Some(outcome) = outcome.filter(|_| !is_complete.contains(&false)) {
                self.driver_time[index] += outcome.driver_time;
            }
        }
    }

    /// The share of the programs completed by `tight` that a profile completed too.
    #[must_use]
    pub fn share(&self, profile: usize) -> f64 {
        1.0 - self.lost[profile] as f64 / self.completed[0].max(1) as f64
    }
}

/// Runs one program under every profile.
///
/// # Errors
///
/// Those of `driver`, and [`ReplayError`], except for a refused allocation, which is a result.
pub fn compare<E: From<ReplayError>>(
    seed: u64,
    factor: f64,
    driver: impl Fn() -> Result<Driver, E>,
) -> Result<Comparison, E> {
    let trace = random_program(seed);
    let attempt = |profile| -> Result<Attempt, E> { Ok(run(&trace, factor, profile, &driver()?)?) };
    Ok(Comparison { seed, factor, attempts: PROFILES.into_iter().map(attempt).collect::<Result<_, E>>()? })
}

/// Runs one trace under a profile, at a multiple of its peak live bytes.
///
/// # Errors
///
/// [`ReplayError`], except for a refused allocation, which is a result.
pub fn run(trace: &Trace, factor: f64, profile: Profile, driver: &Driver) -> Result<Attempt, ReplayError> {
    let hard_limit = Some(TraceLimit::TimesPeak(factor).of(trace));
    let setup = Setup { waits: Waits::Off, hard_limit, clock: Some(virtual_time), ..Setup::default() };
    Candidate { backend: BackendKind::Caching, profile: Some(profile) }.attempt(trace, driver, &setup)
}

/// Compares the profiles on several seeds and limits, on `jobs` threads. Calls `on_result` with each comparison, in any order.
///
/// # Errors
///
/// The first error of [`compare`].
pub fn compare_all<E: From<ReplayError> + Send>(
    seeds: core::ops::Range<u64>,
    factors: &[f64],
    jobs: usize,
    driver: impl Fn() -> Result<Driver, E> + Sync,
    on_result: impl Fn(Comparison) + Sync,
) -> Result<(), E> {
    let next = AtomicU64::new(seeds.start);
    let work = || -> Result<(), E> {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return Ok(());
            }
            for factor in factors {
                on_result(compare(seed, *factor, &driver)?);
            }
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}

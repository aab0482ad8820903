//! Compares the profiles on programs at a hard limit.
//!
//! Each program runs on a simulator under every profile. The limit is a multiple of the program's peak live bytes. A difference is a
//! program that `tight` completes and another profile does not; it states the request that was refused.

use crate::pool::{OutOfMemory, Profile};
use crate::replay::{Outcome, ReplayError, Setup, TraceLimit, Waits, replay};
use crate::trace::{Trace, random_program};
use core::fmt;
use core::time::Duration;
use gpumem_sim::SimConfig;
use std::sync::atomic::{AtomicU64, Ordering};

/// The compared profiles. The first one is the reference.
pub const PROFILES: [Profile; 3] = [Profile::Tight, Profile::Balanced, Profile::Fast];

/// The result of one program under one profile at one limit.
#[derive(Clone, Debug)]
pub enum Fit {
    /// The program ran to its end.
    Completed {
        /// The time of the driver calls.
        driver_time: Duration,
    },
    /// An allocation was refused.
    Refused {
        /// The number of events before it.
        event: usize,
        /// The size of the request.
        requested_bytes: u64,
        /// The bytes of all live blocks.
        in_use_bytes: u64,
        /// The bytes that the pool held from the device.
        reserved_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
}

impl Fit {
    /// Returns whether the program ran to its end.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        matches!(self, Self::Completed { .. })
    }
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        match self {
            Self::Completed { driver_time } => {
                write!(f, "completed, {:.1} ms in the driver", driver_time.as_secs_f64() * 1e3)
            }
            Self::Refused { event, requested_bytes, in_use_bytes, reserved_bytes, limit_bytes } => write!(
                f,
                "event {event}: {:.3} MiB refused; {:.3} MiB in use, {:.3} MiB free in pages that live blocks hold, limit {:.3} MiB",
                mib(*requested_bytes),
                mib(*in_use_bytes),
                mib(reserved_bytes.saturating_sub(*in_use_bytes)),
                mib(*limit_bytes)
            ),
        }
    }
}

/// One program at one limit, under every profile.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The seed of the program.
    pub seed: u64,
    /// Its limit, as a multiple of its peak live bytes.
    pub factor: f64,
    /// One result for each profile, in the order of [`PROFILES`].
    pub fits: [Fit; 3],
}

/// The counts of many comparisons at one limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// The number of programs.
    pub programs: u64,
    /// Programs that each profile completed.
    pub completed: [u64; 3],
    /// Programs that `tight` completed and the profile did not.
    pub lost: [u64; 3],
    /// Programs that the profile completed and `tight` did not.
    pub gained: [u64; 3],
    /// The time of the driver calls, over the programs that all profiles completed.
    pub driver_time: [Duration; 3],
}

impl Counts {
    /// Adds a comparison.
    pub fn add(&mut self, comparison: &Comparison) {
        self.programs += 1;
        let is_complete = comparison.fits.each_ref().map(Fit::is_complete);
        for (index, fit) in comparison.fits.iter().enumerate() {
            self.completed[index] += u64::from(is_complete[index]);
            self.lost[index] += u64::from(is_complete[0] && !is_complete[index]);
            self.gained[index] += u64::from(!is_complete[0] && is_complete[index]);
            if let Fit::Completed { driver_time } = fit
                && is_complete == [true; 3]
            {
                self.driver_time[index] += *driver_time;
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
/// [`ReplayError::Event`], except for a refused allocation, which is a result; [`ReplayError::Setup`] or
/// [`ReplayError::Simulator`] if the replay cannot begin.
pub fn compare(seed: u64, factor: f64) -> Result<Comparison, ReplayError> {
    let trace = random_program(seed);
    let [tight, balanced, fast] = PROFILES.map(|profile| run(&trace, factor, profile));
    Ok(Comparison { seed, factor, fits: [tight?, balanced?, fast?] })
}

/// Runs one trace under a profile, at a multiple of its peak live bytes.
///
/// # Errors
///
/// [`ReplayError::Event`], except for a refused allocation, which is a result; [`ReplayError::Setup`] or
/// [`ReplayError::Simulator`] if the replay cannot begin.
pub fn run(trace: &Trace, factor: f64, profile: Profile) -> Result<Fit, ReplayError> {
    let driver = gpumem_sim::driver(SimConfig::h200().races(false))?;
    let setup = Setup {
        tuning: format!("profile:{profile}"),
        waits: Waits::Off,
        hard_limit: Some(TraceLimit::TimesPeak(factor).of(trace)),
        ..Setup::default()
    };
    match replay(trace, &driver, &setup, |_| ()) {
        Ok(Outcome { driver_time, .. }) => Ok(Fit::Completed { driver_time }),
        Err(ReplayError::Event { line, error, .. }) if error.out_of_memory().is_some() => {
            let report = error.out_of_memory().cloned().unwrap_or_default();
            let OutOfMemory { requested_bytes, in_use_bytes, reserved_bytes, limit_bytes, .. } = report;
            let limit_bytes = limit_bytes.unwrap_or_default();
            Ok(Fit::Refused { event: line - 2, requested_bytes, in_use_bytes, reserved_bytes, limit_bytes })
        }
        Err(error) => Err(error),
    }
}

/// Compares the profiles on several seeds and limits, on `jobs` threads. Calls `on_result` with each comparison, in any order.
///
/// # Errors
///
/// [`ReplayError::Event`], [`ReplayError::Setup`] or [`ReplayError::Simulator`]: the first error of [`compare`].
pub fn compare_all(
    seeds: core::ops::Range<u64>,
    factors: &[f64],
    jobs: usize,
    on_result: impl Fn(Comparison) + Sync,
) -> Result<(), ReplayError> {
    let next = AtomicU64::new(seeds.start);
    let work = || -> Result<(), ReplayError> {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return Ok(());
            }
            for factor in factors {
                on_result(compare(seed, *factor)?);
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

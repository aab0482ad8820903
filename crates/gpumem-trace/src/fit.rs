//! The settings that a program fits with: [`Candidate::attempt`] replays it with one backend and profile at a limit, [`best`] chooses
//! among the attempts, and [`find_limit`] finds the smallest limit of one candidate.
//!
//! A program *fits* if every request is served, those included that were refused when it was recorded.
//!
//! ```
//! use gpumem_trace::fit::{CANDIDATES, best, find_limit};
//! use gpumem_trace::{ReplayError, Setup, Trace};
//!
//! let trace = Trace::read_from(&b"#{\"format\":1}\na,1,4194304,0\na,2,2097152,0\nf,1,0\na,3,6291456,0\n"[..], "small")?;
//! let driver = gpumem_sim::driver(gpumem_sim::SimConfig::h200().races(false))?;
//! let setup = Setup { hard_limit: Some("8GiB".parse()?), ..Setup::default() };
//! let mut attempts = Vec::new();
//! for candidate in CANDIDATES {
//!     attempts.push((candidate, candidate.attempt(&trace, &driver, &setup)?));
//! }
//! println!("{:?}", best(&attempts).map(|best| best.conf())); // for GPUMEM_CONF
//!
//! let new_driver = || Ok::<_, ReplayError>(driver.clone());
//! let smallest = find_limit(&trace, CANDIDATES[2], &Setup::default(), new_driver, |_| ())?;
//! assert!(smallest.is_some_and(|found| found.limit_bytes >= trace.peaks().live_bytes));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::replay::{Outcome, ReplayError, Setup, replay};
use crate::trace::Trace;
use core::fmt;
use gpumem_pool::sys::Driver;
use gpumem_pool::{BackendKind, Bytes, Limit, PoolError, Profile};

/// A backend, with a profile where it has profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The backend.
    pub backend: BackendKind,
    /// The profile; `None` for backends without profiles.
    pub profile: Option<Profile>,
}

/// All candidates, the profiles first.
pub const CANDIDATES: [Candidate; Profile::ALL.len() + 2] = {
    let mut all = [Candidate { backend: BackendKind::None, profile: None }; Profile::ALL.len() + 2];
    let mut index = 0;
    while index < Profile::ALL.len() {
        all[index] = Candidate { backend: BackendKind::Caching, profile: Some(Profile::ALL[index]) };
        index += 1;
    }
    all[index].backend = BackendKind::Native;
    all
};

impl Candidate {
    /// The options that select it, for `GPUMEM_CONF`.
    #[must_use]
    pub fn conf(self) -> String {
        match self.profile {
            Some(profile) => format!("backend:{},profile:{profile}", self.backend),
            None => format!("backend:{}", self.backend),
        }
    }

    /// Replays a trace with this candidate. Backend and profile of `setup` are replaced.
    ///
    /// # Errors
    ///
    /// [`ReplayError`], except for a refused request, which is a result.
    pub fn attempt(self, trace: &Trace, driver: &Driver, setup: &Setup) -> Result<Attempt, ReplayError> {
        Attempt::of(trace, driver, &self.setup(setup))
    }

    /// The settings with this candidate's backend and profile.
    #[must_use]
    pub fn setup(self, setup: &Setup) -> Setup {
        let tuning = self.profile.map_or(String::new(), |profile| format!("profile:{profile}"));
        Setup { backend: Some(self.backend), tuning, ..setup.clone() }
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.profile {
            Some(profile) => f.pad(&format!("{}, {profile}", self.backend)),
            None => f.pad(&self.backend.to_string()),
        }
    }
}

/// The result of a program with one candidate.
#[derive(Clone, Debug)]
pub enum Attempt {
    /// The program ran to its end.
    Completed(Box<Outcome>),
    /// A request was refused that the recorded program got.
    Refused {
        /// The number of events before it.
        event: usize,
        /// The error.
        refusal: Box<PoolError>,
    },
}

impl Attempt {
    /// Replays a trace.
    ///
    /// # Errors
    ///
    /// [`ReplayError`], except for a refused request, which is a result.
    pub fn of(trace: &Trace, driver: &Driver, setup: &Setup) -> Result<Self, ReplayError> {
        match replay(trace, driver, setup, |_| ()) {
            Ok(outcome) => Ok(Self::Completed(Box::new(outcome))),
            Err(ReplayError::Event { event, error, .. }) if error.is_out_of_memory() => {
                Ok(Self::Refused { event, refusal: Box::new(error) })
            }
            Err(error) => Err(error),
        }
    }

    /// The size of the request that was refused.
    #[must_use]
    pub fn refused_bytes(&self) -> Option<u64> {
        match self {
            Self::Refused { refusal, .. } => match &**refusal {
                PoolError::TooLarge { requested_bytes, .. } => Some(*requested_bytes),
                refusal => refusal.out_of_memory().map(|report| report.requested_bytes),
            },
            Self::Completed(_) => None,
        }
    }

    /// The outcome, if every request was served.
    #[must_use]
    pub fn fit(&self) -> Option<&Outcome> {
        match self {
            Self::Completed(outcome) if outcome.refusal_count == 0 => Some(outcome),
            _ => None,
        }
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Completed(outcome) => {
                write!(f, "completed, {:.1} ms in the driver", outcome.driver_time.as_secs_f64() * 1e3)
            }
            Self::Refused { event, refusal } => match refusal.out_of_memory() {
                Some(report) => write!(
                    f,
                    "event {event}: {} refused with {} in use and {} reserved",
                    Bytes(report.requested_bytes),
                    Bytes(report.in_use_bytes),
                    Bytes(report.reserved_bytes)
                ),
                None => write!(f, "event {event}: {refusal}"),
            },
        }
    }
}

/// The candidate that fits with the least driver time, and of those with the same time the one that reserves the least.
#[must_use]
pub fn best(attempts: &[(Candidate, Attempt)]) -> Option<Candidate> {
    let fitting = attempts.iter().filter_map(|(candidate, attempt)| Some((candidate, attempt.fit()?)));
    let best = fitting.min_by_key(|(_, outcome)| (outcome.driver_time, outcome.peak_reserved_bytes));
    best.map(|(candidate, _)| *candidate)
}

/// The smallest limit that a program fits into.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SmallestLimit {
    /// The limit; the next smaller one that was tried, [`SmallestLimit::step_bytes`] below, is too small.
    pub limit_bytes: u64,
    /// The distance between limits that were tried last.
    pub step_bytes: u64,
    /// The outcome with that limit.
    pub outcome: Box<Outcome>,
    /// The peak of reserved memory without a limit.
    pub free_peak_reserved_bytes: u64,
}

/// Finds the smallest limit that a program fits into with a candidate. Backend and profile of `setup` are replaced; see [`find_limit_of`].
///
/// # Errors
///
/// [`ReplayError`], except for a refused request.
pub fn find_limit<E: From<ReplayError>>(
    trace: &Trace,
    candidate: Candidate,
    setup: &Setup,
    driver: impl Fn() -> Result<Driver, E>,
    on_replay: impl FnMut(Option<u64>),
) -> Result<Option<SmallestLimit>, E> {
    find_limit_of(trace, &candidate.setup(setup), driver, on_replay)
}

/// Finds the smallest limit that a program fits into with these settings, by bisection. `None` if it does not fit without a limit
/// either. Each replay runs on a driver of its own. Calls `on_replay` before each, with the limit.
///
/// If blocks are freed while other streams use them, the trace is replayed twice within each limit: with frees that take effect when they did
/// in the trace, and with frees that take effect only when memory is short ([`Setup::are_frees_late`]). Both must fit.
///
/// A pool at its limit works in other ways than one below it, so a program may fail at some limit and complete at a smaller one.
/// Bisection finds one limit where the result changes.
///
/// # Errors
///
/// [`ReplayError`], except for a refused request.
pub fn find_limit_of<E: From<ReplayError>>(
    trace: &Trace,
    setup: &Setup,
    driver: impl Fn() -> Result<Driver, E>,
    mut on_replay: impl FnMut(Option<u64>),
) -> Result<Option<SmallestLimit>, E> {
    let mut attempt = |limit_bytes: Option<u64>| -> Result<Option<Outcome>, E> {
        on_replay(limit_bytes);
        let setup = Setup { hard_limit: limit_bytes.map(Limit::Bytes), ..setup.clone() };
        let outcome = Attempt::of(trace, &driver()?, &setup)?.fit().cloned();
        if limit_bytes.is_none() || outcome.is_none() || !trace.has_late_frees() {
            return Ok(outcome);
        }
        let late = Setup { are_frees_late: true, ..setup };
        Ok(Attempt::of(trace, &driver()?, &late)?.fit().and(outcome))
    };
    let Some(free) = attempt(None)? else { return Ok(None) };
    let live_bytes = trace.peaks().live_bytes.max(1);
    let step_bytes = (live_bytes / STEPS_IN_PEAK).next_multiple_of(PAGE_BYTES).max(PAGE_BYTES);
    // In steps: too small, and large enough.
    let mut small = (live_bytes - 1) / step_bytes;
    let mut large = free.peak_reserved_bytes.max(live_bytes).div_ceil(step_bytes);
    let mut best = None;
    while best.is_none() {
        best = attempt(Some(large * step_bytes))?;
        if best.is_none() {
            // `native` and `none` may need more than they reserve without a limit.
            small = large;
            large += large.div_ceil(8);
        }
        if large * step_bytes > 4 * free.peak_reserved_bytes.max(live_bytes) + 8 * step_bytes {
            return Ok(None);
        }
    }
    while large - small > 1 {
        let middle = small + (large - small) / 2;
        match attempt(Some(middle * step_bytes))? {
            Some(outcome) => (large, best) = (middle, Some(outcome)),
            None => small = middle,
        }
    }
    Ok(best.map(|outcome| SmallestLimit {
        limit_bytes: large * step_bytes,
        step_bytes,
        outcome: Box::new(outcome),
        free_peak_reserved_bytes: free.peak_reserved_bytes,
    }))
}

const PAGE_BYTES: u64 = 2 << 20;

/// A limit is found to a part of the peak, or to a page if that is larger.
const STEPS_IN_PEAK: u64 = 512;

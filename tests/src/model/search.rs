//! Runs cases from consecutive seeds. The first case that fails is shrunk and printed as a short program.

use super::coverage::Coverage;
use super::draw::case;
use super::operation::Case;
use super::subject::Subject;
use super::threads;
use super::world;
use crate::sys::Table;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;

/// The seeds and backends of a search.
#[derive(Clone, Debug)]
pub struct Search {
    /// The subjects. Each seed runs on each of them.
    pub subjects: Vec<Subject>,
    /// The first seed.
    pub first_seed: u64,
    /// The number of seeds; unlimited if `None`.
    pub seed_count: Option<u64>,
    /// The number of seeds that run in parallel.
    pub jobs: usize,
    /// The interval of seeds that run with adaptors. Adaptors fill every block, which takes ten times as long.
    pub seeds_between_adapted: u64,
    /// The maximum number of cases that shrinking tries; fewer with adaptors.
    pub shrink_runs_max: u32,
    /// Breaks the driver, to test that a search finds the error.
    pub sabotage: Option<fn(&mut Table)>,
}

/// A case that fails, shrunk.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed of the case.
    pub seed: u64,
    /// The backend and its configuration.
    pub subject: Subject,
    /// The bug.
    pub what: String,
    /// The shrunk case, as a program.
    pub program: Vec<String>,
}

impl Search {
    /// A search over `seed_count` seeds, on every backend that is built in, with every profile.
    #[must_use]
    pub fn seeds(first_seed: u64, seed_count: u64) -> Self {
        let subjects = Subject::all();
        Self {
            subjects,
            first_seed,
            seed_count: Some(seed_count),
            jobs: 1,
            seeds_between_adapted: 1,
            shrink_runs_max: 1024,
            sabotage: None,
        }
    }

    /// Runs seeds until one fails, all are done, or `go_on`, which is called after each seed, returns `Break`.
    ///
    /// # Errors
    ///
    /// The first failure, shrunk. It is boxed because it contains a program.
    pub fn run(&self, mut go_on: impl FnMut(&Coverage) -> ControlFlow<()>) -> Result<Coverage, Box<Failure>> {
        let end = self.seed_count.map_or(u64::MAX, |count| self.first_seed.saturating_add(count));
        let (next, is_over) = (AtomicU64::new(self.first_seed), AtomicBool::new(false));
        let next_seed = || {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            (seed < end && !is_over.load(Ordering::Relaxed)).then_some(seed)
        };
        let mut sum = Coverage::default();
        std::thread::scope(|scope| {
            let (results, outcomes) = sync_channel(0);
            for _ in 0..self.jobs.max(1) {
                let (results, is_over, next_seed) = (results.clone(), &is_over, &next_seed);
                scope.spawn(move || {
                    while let Some(seed) = next_seed() {
                        let outcome = self.try_subjects(seed, is_over);
                        if results.send(outcome).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(results);
            // The receiver is dropped when this scope ends, which ends the threads.
            for outcome in outcomes {
                sum.add(outcome?);
                if go_on(&sum).is_break() {
                    is_over.store(true, Ordering::Relaxed);
                    break;
                }
            }
            Ok::<(), Box<Failure>>(())
        })?;
        Ok(sum)
    }

    /// Runs one seed on each subject.
    fn try_subjects(&self, seed: u64, is_over: &AtomicBool) -> Result<Coverage, Box<Failure>> {
        let mut coverage = Coverage { seeds: 1, ..Coverage::default() };
        let mut runner = self.runner(seed, self.shrink_runs_max);
        // The strategies have no filter, so they always generate a case.
        let tree = case().new_tree(&mut runner).unwrap_or_else(|reason| panic!("{reason}"));
        let first = tree.current();
        let is_due =
            |subject: &&Subject| !subject.is_adapted || seed.is_multiple_of(self.seeds_between_adapted);
        for subject in self.subjects.iter().filter(is_due) {
            if let Err(what) = self.try_case(&first, *subject, &mut coverage).0 {
                is_over.store(true, Ordering::Relaxed);
                let runner = self.runner(seed, self.shrink_runs_max / slowness_of(*subject));
                let (what, program) = self.shrunk(runner, tree, *subject, what);
                return Err(Box::new(Failure { seed, subject: *subject, what, program }));
            }
            self.try_threads(seed, *subject, &mut coverage, is_over)?;
        }
        Ok(coverage)
    }

    fn runner(&self, seed: u64, shrink_runs_max: u32) -> TestRunner {
        let config =
            Config { max_shrink_iters: shrink_runs_max, failure_persistence: None, ..Config::default() };
        TestRunner::new_with_rng(config, rng(seed))
    }

    /// Shrinks a failing case. Returns the error of the smallest case that still fails, and its program.
    fn shrunk(
        &self,
        mut runner: TestRunner,
        tree: impl ValueTree<Value = Case>,
        subject: Subject,
        what: String,
    ) -> (String, Vec<String>) {
        let first = tree.current();
        let found = Cell::new(Found { operation_count: usize::MAX, schedule: 0 });
        let outcome = runner.run_one(tree, |case| match self.try_schedules(&case, subject, &found) {
            Some((what, _)) => Err(TestCaseError::fail(what)),
            None => Ok(()),
        });
        let smallest = if let Err(TestError::Fail(_, smallest)) = outcome { smallest } else { first };
        let again = self.try_schedules(&smallest, subject, &found);
        again.unwrap_or_else(|| (format!("{what} (but not when the same case ran again)"), Vec::new()))
    }

    /// Runs concurrent threads on some of the seeds.
    fn try_threads(
        &self,
        seed: u64,
        subject: Subject,
        coverage: &mut Coverage,
        is_over: &AtomicBool,
    ) -> Result<(), Box<Failure>> {
        if !subject.is_caching() || self.sabotage.is_some() || !seed.is_multiple_of(SEEDS_BETWEEN_THREADS) {
            return Ok(());
        }
        match std::panic::catch_unwind(|| threads::run(seed, subject)) {
            Ok(Ok(count)) => {
                coverage.blocks_of_threads += count;
                Ok(())
            }
            outcome => {
                is_over.store(true, Ordering::Relaxed);
                let what =
                    outcome.unwrap_or_else(|_| Err("the pool panicked".into())).err().unwrap_or_default();
                let program = vec!["threads that allocate, pass on, free and drain".into()];
                Err(Box::new(Failure { seed, subject, what, program }))
            }
        }
    }

    /// Runs a case under the schedule of the last failure and under some others: without the removed operation, the same seed
    /// orders the rest differently, so a smaller program may fail under another schedule only. A case of unchanged length differs
    /// in a number only and is tried under few schedules, because most shrinking steps are of that kind and fail. These runs do
    /// not count as coverage.
    fn try_schedules(
        &self,
        case: &Case,
        subject: Subject,
        found: &Cell<Found>,
    ) -> Option<(String, Vec<String>)> {
        let last = found.get();
        let operation_count = case.operations.len();
        let is_shorter = operation_count < last.operation_count;
        let schedule_count = match is_shorter {
            true => SCHEDULE_COUNT / u64::from(slowness_of(subject)),
            false => SCHEDULE_COUNT_AS_LONG,
        };
        let mut case = case.clone();
        let first_seed = case.sim_seed;
        (0..schedule_count).find_map(|more| {
            let schedule = (last.schedule + more) % SCHEDULE_COUNT;
            case.sim_seed = first_seed.wrapping_add(schedule);
            let (outcome, program) = self.try_case(&case, subject, &mut Coverage::default());
            let what = outcome.err()?;
            found.set(Found { operation_count, schedule });
            Some((what, program))
        })
    }

    /// Runs a case once. A panic of the pool is a failure.
    fn try_case(&self, case: &Case, subject: Subject, coverage: &mut Coverage) -> Tried {
        let transcript = RefCell::new(Vec::new());
        let run = || world::run(case, subject, self.sabotage, coverage, &mut transcript.borrow_mut());
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        (outcome.unwrap_or_else(|_| Err("the pool panicked".into())), transcript.into_inner())
    }
}

/// The outcome of a case, and its transcript.
type Tried = (Result<(), String>, Vec<String>);

/// The interval of seeds that also run threads: a run of threads takes as long as many cases.
const SEEDS_BETWEEN_THREADS: u64 = 32;

/// The number of schedules for a case that became shorter.
const SCHEDULE_COUNT: u64 = 32;

/// The number of schedules for a case of the length of the last failure.
const SCHEDULE_COUNT_AS_LONG: u64 = 2;

/// The last failure while a case is shrunk.
#[derive(Clone, Copy)]
struct Found {
    operation_count: usize,
    /// The seed of its schedule, relative to the seed of the case.
    schedule: u64,
}

/// Runs with adaptors are slower, because every block is filled. Shrinking tries fewer cases by this factor.
fn slowness_of(subject: Subject) -> u32 {
    if subject.is_adapted { 8 } else { 1 }
}

fn rng(seed: u64) -> TestRng {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    TestRng::from_seed(RngAlgorithm::ChaCha, &bytes)
}

impl Failure {
    /// The shell command that repeats this failure.
    #[must_use]
    pub fn command(&self) -> String {
        format!("cargo xtask fuzz --subject {} --seed {} --cases 1", self.subject, self.seed)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {} on {}: {}", self.seed, self.subject, self.what)?;
        for line in &self.program {
            writeln!(f, "    {line}")?;
        }
        write!(f, "repeat: {}", self.command())
    }
}

//! Runs cases from consecutive seeds. The first case that fails is shrunk and printed as a short program.

use super::subject::Subject;
use crate::sys::Table;
use proptest::strategy::{BoxedStrategy, Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;

/// A layer that random programs are run on, and their comparison with a naive twin.
pub trait Model: fmt::Debug {
    /// A program, and the machine that it runs on.
    type Case: Clone + fmt::Debug + 'static;
    /// The operations and states that a search has reached.
    type Coverage: Coverage;
    /// The name of the layer, as in `--target pool`.
    const TARGET: &'static str;

    /// The subjects of a search that names none.
    fn subjects() -> Vec<Subject>;

    /// Generates cases.
    fn cases() -> BoxedStrategy<Self::Case>;

    /// The number of operations of a case.
    fn operation_count(case: &Self::Case) -> usize;

    /// The seed of the simulator's schedule.
    fn sim_seed(case: &mut Self::Case) -> &mut u64;

    /// Runs a case. The transcript lists all operations, even if the case fails.
    ///
    /// # Errors
    ///
    /// A sentence that describes the bug.
    fn run(
        case: &Self::Case,
        subject: Subject,
        sabotage: Option<fn(&mut Table)>,
        coverage: &mut Self::Coverage,
        transcript: &mut Vec<String>,
    ) -> Result<(), String>;

    /// Runs concurrent threads, whose operations depend on the seed and whose order does not. Called for some of the seeds.
    ///
    /// # Errors
    ///
    /// A sentence that describes the bug.
    fn run_threads(seed: u64, subject: Subject, coverage: &mut Self::Coverage) -> Result<(), String> {
        let _ = (seed, subject, coverage);
        Ok(())
    }
}

/// Counts of what a search has exercised.
pub trait Coverage: Default + fmt::Display + Send {
    /// The coverage of one seed, before its programs.
    fn of_seed() -> Self;

    /// The number of seeds.
    fn seed_count(&self) -> u64;

    /// Adds the coverage of another search.
    fn add(&mut self, other: Self);

    /// The whole coverage, at the end of a search.
    fn summary(&self) -> String {
        self.to_string()
    }
}

/// The seeds and backends of a search.
#[derive(Clone, Debug)]
pub struct Search<M> {
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
    model: PhantomData<fn() -> M>,
}

/// A case that fails, shrunk.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The layer, as in `--target pool`.
    pub target: &'static str,
    /// The seed of the case.
    pub seed: u64,
    /// The backend and its configuration.
    pub subject: Subject,
    /// The bug.
    pub what: String,
    /// The shrunk case, as a program.
    pub program: Vec<String>,
}

impl<M: Model> Search<M> {
    /// A search over `seed_count` seeds, on every backend that is built in, with every profile.
    #[must_use]
    pub fn seeds(first_seed: u64, seed_count: u64) -> Self {
        Self {
            subjects: M::subjects(),
            first_seed,
            seed_count: Some(seed_count),
            jobs: 1,
            seeds_between_adapted: 1,
            shrink_runs_max: 1024,
            sabotage: None,
            model: PhantomData,
        }
    }

    /// Runs seeds until one fails, all are done, or `go_on`, which is called after each seed, returns `Break`.
    ///
    /// # Errors
    ///
    /// The first failure, shrunk. It is boxed because it contains a program.
    pub fn run(
        &self,
        mut go_on: impl FnMut(&M::Coverage) -> ControlFlow<()>,
    ) -> Result<M::Coverage, Box<Failure>> {
        let end = self.seed_count.map_or(u64::MAX, |count| self.first_seed.saturating_add(count));
        let (next, is_over) = (AtomicU64::new(self.first_seed), AtomicBool::new(false));
        let next_seed = || {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            (seed < end && !is_over.load(Ordering::Relaxed)).then_some(seed)
        };
        let mut sum = M::Coverage::default();
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
    fn try_subjects(&self, seed: u64, is_over: &AtomicBool) -> Result<M::Coverage, Box<Failure>> {
        let mut coverage = M::Coverage::of_seed();
        let mut runner = self.runner(seed, self.shrink_runs_max);
        // The strategies have no filter, so they always generate a case.
        let tree = M::cases().new_tree(&mut runner).unwrap_or_else(|reason| panic!("{reason}"));
        let first = tree.current();
        let is_due =
            |subject: &&Subject| !subject.is_adapted || seed.is_multiple_of(self.seeds_between_adapted);
        for subject in self.subjects.iter().filter(is_due) {
            if let Err(what) = self.try_case(&first, *subject, &mut coverage).0 {
                is_over.store(true, Ordering::Relaxed);
                let runner = self.runner(seed, self.shrink_runs_max / slowness_of(*subject));
                let (what, program) = self.shrunk(runner, tree, *subject, what);
                return Err(Box::new(Failure { target: M::TARGET, seed, subject: *subject, what, program }));
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
        tree: impl ValueTree<Value = M::Case>,
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
        coverage: &mut M::Coverage,
        is_over: &AtomicBool,
    ) -> Result<(), Box<Failure>> {
        if self.sabotage.is_some() || !seed.is_multiple_of(SEEDS_BETWEEN_THREADS) {
            return Ok(());
        }
        let outcome = caught(|| M::run_threads(seed, subject, coverage));
        outcome.map_err(|what| {
            is_over.store(true, Ordering::Relaxed);
            let program = vec!["concurrent threads".into()];
            Box::new(Failure { target: M::TARGET, seed, subject, what, program })
        })
    }

    /// Runs a case under the schedule of the last failure and under some others: without the removed operation, the same seed
    /// orders the rest differently, so a smaller program may fail under another schedule only. A case of unchanged length differs
    /// in a number only and is tried under few schedules, because most shrinking steps are of that kind and fail. These runs do
    /// not count as coverage.
    fn try_schedules(
        &self,
        case: &M::Case,
        subject: Subject,
        found: &Cell<Found>,
    ) -> Option<(String, Vec<String>)> {
        let last = found.get();
        let operation_count = M::operation_count(case);
        let is_shorter = operation_count < last.operation_count;
        let schedule_count = match is_shorter {
            true => SCHEDULE_COUNT / u64::from(slowness_of(subject)),
            false => SCHEDULE_COUNT_AS_LONG,
        };
        let mut case = case.clone();
        let first_seed = *M::sim_seed(&mut case);
        (0..schedule_count).find_map(|more| {
            let schedule = (last.schedule + more) % SCHEDULE_COUNT;
            *M::sim_seed(&mut case) = first_seed.wrapping_add(schedule);
            let (outcome, program) = self.try_case(&case, subject, &mut M::Coverage::default());
            let what = outcome.err()?;
            found.set(Found { operation_count, schedule });
            Some((what, program))
        })
    }

    /// Runs a case once. A panic is a failure.
    fn try_case(&self, case: &M::Case, subject: Subject, coverage: &mut M::Coverage) -> Tried {
        let mut transcript = Vec::new();
        let outcome = caught(|| M::run(case, subject, self.sabotage, coverage, &mut transcript));
        (outcome, transcript)
    }
}

/// The error of a panic, with its message.
fn caught(run: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    // What the panic left behind is dropped, or counted only.
    std::panic::catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_string());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        Err(format!("panicked: {}", text.unwrap_or_default()))
    })
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
        let Self { target, subject, seed, .. } = self;
        format!("cargo xtask fuzz --target {target} --subject {subject} --seed {seed} --cases 1")
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, seed {} on {}: {}", self.target, self.seed, self.subject, self.what)?;
        for line in &self.program {
            writeln!(f, "    {line}")?;
        }
        write!(f, "repeat: {}", self.command())
    }
}

//! Cases out of seeds, one after another; the first that fails is shrunk and told as a short program.

use super::operation::{Case, case};
use super::world;
use crate::pool::{BackendKind, Block, PoolError};
use crate::sys::Table;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use std::cell::RefCell;
use std::fmt;
use std::ops::ControlFlow;

/// Which seeds to try, on which backends.
#[derive(Clone, Debug)]
pub struct Search {
    /// Each seed is tried on each of them.
    pub backends: Vec<BackendKind>,
    /// Seeds count up from here.
    pub first_seed: u64,
    /// How many seeds; as many as there are, if not said.
    pub seed_count: Option<u64>,
    /// How many smaller cases shrinking may try.
    pub shrink_runs_max: u32,
    /// Breaks the driver, to see that a search finds it.
    pub sabotage: Option<fn(&mut Table)>,
}

/// What a search has been through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Seeds that were tried.
    pub seeds: u64,
    /// Operations that were carried out.
    pub operations: u64,
    /// Blocks that were handed out.
    pub blocks: u64,
    /// Requests that met a full device.
    pub out_of_memory: u64,
    /// Requests that met the limit.
    pub limit_reached: u64,
    /// Requests beyond the device's size.
    pub too_large: u64,
}

/// A case that fails, shrunk.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed that made it.
    pub seed: u64,
    /// The backend under test.
    pub backend: BackendKind,
    /// What the pool did wrong.
    pub what: String,
    /// The shrunk case, as a program.
    pub program: Vec<String>,
}

impl Search {
    /// Some seeds on every backend that is built in.
    #[must_use]
    pub fn seeds(first_seed: u64, seed_count: u64) -> Self {
        let backends = vec![BackendKind::None, BackendKind::Native];
        let native = cfg!(feature = "backend-native");
        let backends = backends.into_iter().filter(|kind| native || *kind != BackendKind::Native).collect();
        Self { backends, first_seed, seed_count: Some(seed_count), shrink_runs_max: 1024, sabotage: None }
    }

    /// Tries seed after seed until one fails, they are used up, or `go_on` says to stop.
    ///
    /// # Errors
    ///
    /// The first failure, shrunk. It is boxed because it carries a program.
    pub fn run(&self, mut go_on: impl FnMut(&Coverage) -> ControlFlow<()>) -> Result<Coverage, Box<Failure>> {
        let mut coverage = Coverage::default();
        let end = self.seed_count.map_or(u64::MAX, |count| self.first_seed.saturating_add(count));
        for seed in self.first_seed..end {
            for backend in &self.backends {
                self.try_seed(seed, *backend, &mut coverage)?;
            }
            coverage.seeds += 1;
            if go_on(&coverage).is_break() {
                break;
            }
        }
        Ok(coverage)
    }

    fn try_seed(&self, seed: u64, backend: BackendKind, coverage: &mut Coverage) -> Result<(), Box<Failure>> {
        let failed = |what: String, program: Vec<String>| Box::new(Failure { seed, backend, what, program });
        let config =
            Config { max_shrink_iters: self.shrink_runs_max, failure_persistence: None, ..Config::default() };
        let mut runner = TestRunner::new_with_rng(config, rng(seed));
        let tree = case().new_tree(&mut runner).map_err(|reason| failed(reason.to_string(), Vec::new()))?;
        let first = tree.current();
        let Err(what) = self.try_case(&first, backend, coverage).0 else { return Ok(()) };
        let outcome = runner.run_one(tree, |case| match self.try_schedules(&case, backend) {
            Some((what, _)) => Err(TestCaseError::fail(what)),
            None => Ok(()),
        });
        let smallest = if let Err(TestError::Fail(_, smallest)) = outcome { smallest } else { first };
        Err(match self.try_schedules(&smallest, backend) {
            Some((what, program)) => failed(what, program),
            None => failed(format!("{what} (but not when the same case ran again)"), Vec::new()),
        })
    }

    /// Runs a case under its own schedule and some others: taking an operation out changes what the rest meets, so a
    /// smaller program may fail under another schedule only. Not part of what was covered.
    fn try_schedules(&self, case: &Case, backend: BackendKind) -> Option<(String, Vec<String>)> {
        let mut case = case.clone();
        let first_seed = case.sim_seed;
        (0..SCHEDULE_COUNT).find_map(|more| {
            case.sim_seed = first_seed.wrapping_add(more);
            let (outcome, program) = self.try_case(&case, backend, &mut Coverage::default());
            outcome.err().map(|what| (what, program))
        })
    }

    /// Runs a case once. A panic of the pool's is a failure like any other.
    fn try_case(&self, case: &Case, backend: BackendKind, coverage: &mut Coverage) -> Tried {
        let transcript = RefCell::new(Vec::new());
        let run = || world::run(case, backend, self.sabotage, coverage, &mut transcript.borrow_mut());
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        (outcome.unwrap_or_else(|_| Err("the pool panicked".into())), transcript.into_inner())
    }
}

/// What came of running a case, and what was done.
type Tried = (Result<(), String>, Vec<String>);

/// How many schedules a case that is being shrunk is tried under.
const SCHEDULE_COUNT: u64 = 32;

fn rng(seed: u64) -> TestRng {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    TestRng::from_seed(RngAlgorithm::ChaCha, &bytes)
}

impl Coverage {
    /// Counts what came of a request.
    pub(super) fn count(&mut self, outcome: &Result<Block, PoolError>) {
        match outcome {
            Ok(_) => self.blocks += 1,
            Err(PoolError::OutOfMemory { .. }) => self.out_of_memory += 1,
            Err(PoolError::LimitReached { .. }) => self.limit_reached += 1,
            Err(PoolError::TooLarge { .. }) => self.too_large += 1,
            Err(_) => {}
        }
    }
}

impl Failure {
    /// The shell command that finds this failure again.
    #[must_use]
    pub fn command(&self) -> String {
        format!("cargo xtask fuzz --backend {} --seed {} --cases 1", self.backend, self.seed)
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seeds, operations, blocks, out_of_memory, limit_reached, too_large } = self;
        write!(
            f,
            "{seeds} seeds, {operations} operations, {blocks} blocks; refused: {out_of_memory} by a full device, \
             {limit_reached} by the limit, {too_large} beyond the device"
        )
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {} on the backend {}: {}", self.seed, self.backend, self.what)?;
        for line in &self.program {
            writeln!(f, "    {line}")?;
        }
        write!(f, "repeat: {}", self.command())
    }
}

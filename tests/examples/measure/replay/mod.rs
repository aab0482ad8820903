//! `cargo xtask replay`: replays recorded traces through a pool, and prints the results.
//!
//! `gpumem_trace` does the replay; this has what developers of gpumem ask: generated and random programs, figures beside other allocators, the
//! comparison of all settings. `gpumem replay` is the command for users. It runs on the driver that
//! `GPUMEM_DRIVER` names, or on a GPU if there is one, or else on a simulator with the size and the prices of an H200. The
//! simulator's race detection is off, because a replay accesses no memory.

#[path = "../../../../crates/gpumem-cli/src/replay/figures.rs"]
pub(crate) mod figures;
mod pareto;
mod random;

use crate::beside::beside;
use anyhow::{Context, Result, ensure};
use gpumem_sim::{Costs, SimConfig};
use gpumem_tests::driver::virtual_time;
use gpumem_tests::pool::{BackendKind, Profile};
use gpumem_tests::programs::Synthetic;
use gpumem_tests::sys::{Driver, DriverKind, env};
use gpumem_trace::{Outcome, ReplayError, Setup, StreamKind, Trace, TraceLimit, Waits, replay};
use indicatif::{ProgressBar, ProgressStyle};
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Recordings of GPUMEM_TRACE and of flight recorders, memory snapshots of PyTorch, logs of RMM, or traces in text, as in
    /// tests/traces [default: the recorded ones]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// A generated trace: periodic, varlen, kv, churn, dataframe or prefetch; may be repeated
    #[arg(long, value_name = "NAME")]
    synthetic: Vec<Synthetic>,
    /// The seed of generated traces
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// The length of generated traces: steps, tokens, tables, or thousands of blocks
    #[arg(long, value_name = "N")]
    rounds: Option<u32>,
    /// The pool's backend: caching, native or none [default: the recorded one, else the pool's]
    #[arg(long, value_name = "NAME")]
    backend: Option<BackendKind>,
    /// The profile of the backend `caching`, such as tight [default: the recorded one, else balanced]
    #[arg(long, value_name = "NAME")]
    profile: Option<Profile>,
    /// The pool's hard limit: 100M, 1.5GiB, 50% or 10000; or 1.02x for a multiple of each trace's peak live bytes
    #[arg(long, value_name = "SIZE", value_delimiter = ',')]
    limit: Vec<TraceLimit>,
    /// Run this number of random programs, starting with --seed, under every profile: at 1.02, 1.05 and 1.1 times their peak live
    /// bytes, or at every --limit (1.02x,1.1x)
    #[arg(long, value_name = "SEEDS", conflicts_with_all = ["files", "synthetic", "backend", "profile", "conf", "waits", "json", "streams"])]
    random: Option<u64>,
    /// Options of the pool by name, in the syntax of GPUMEM_CONF; they override the profile and the limit
    #[arg(long, value_name = "KEY:VALUE,…", default_value = "")]
    conf: String,
    /// Let the pool make a stream wait for another to get its memory: profile (as the profile has it), on, or off; the waits are
    /// counted. `--waits` alone is on
    #[arg(long, value_name = "WHEN", default_value_t, default_missing_value = "on", num_args = 0..=1, require_equals = true)]
    waits: Waits,
    /// The owner of the streams: own, foreign (another library's, named in each call as in PyTorch) or long-lived
    #[arg(long, value_name = "KIND", default_value_t)]
    streams: StreamKind,
    /// Print one JSON object a trace, one trace a line
    #[arg(long)]
    json: bool,
    /// Compare every setting of the pool with the peers, as Markdown, on the simulator
    #[arg(long, conflicts_with_all = ["json", "backend", "profile", "limit", "conf", "waits", "random", "streams"])]
    pareto: bool,
    #[command(flatten)]
    recorded: Recorded,
}

/// The folders of the recorded traces and of the recorded runs.
#[derive(clap::Args)]
pub(crate) struct Recorded {
    /// The folder of the recorded traces [default: traces/ beside this program]
    #[arg(long = "recorded", value_name = "DIR", hide = true)]
    folder: Option<PathBuf>,
    /// The folder of the recorded runs [default: runs/ beside this program]
    #[arg(long, value_name = "DIR", hide = true)]
    runs: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    if let Some(count) = args.random {
        return random::run(args.seed, count, &args.limit);
    }
    ensure!(args.limit.len() < 2, "several limits are for --random only");
    let traces = args.traces()?;
    if args.pareto {
        print!("{}", pareto::markdown(&traces, &args.recorded.runs()?)?);
        return Ok(());
    }
    let machine = Machine::find()?;
    if !args.json {
        println!("{}", machine.describe());
    }
    let (mut outcomes, mut refused_count) = (Vec::new(), 0);
    for trace in &traces {
        for disagreement in trace.disagreements() {
            eprintln!("warning: {}: {disagreement}", trace.name());
        }
        let setup = args.setup(trace);
        let outcome = match watched(trace, &machine.driver()?, &setup) {
            Ok(outcome) => outcome,
            Err(error) if is_refusal(&error) => {
                eprintln!("refused: {error:#}");
                refused_count += 1;
                continue;
            }
            Err(error) => return Err(error),
        };
        if args.json {
            println!("{}", figures::json(trace, Some(&outcome)));
        }
        // Every trace has the same options, so they are reported once.
        if outcomes.is_empty() {
            outcome.ignored_options.iter().for_each(|notice| eprintln!("warning: {notice}"));
        }
        outcomes.push((trace, outcome));
    }
    if !args.json {
        print!("{}", figures::text(&outcomes, machine.kind));
    }
    ensure!(refused_count == 0, "{refused_count} of {} traces were refused memory", traces.len());
    Ok(())
}

/// Returns whether a request was refused: the other traces may still fit.
fn is_refusal(error: &anyhow::Error) -> bool {
    let refused =
        |error: &ReplayError| matches!(error, ReplayError::Event { error, .. } if error.is_out_of_memory());
    error.downcast_ref::<ReplayError>().is_some_and(refused)
}

impl Args {
    /// The settings of a replay: those of the recorded program, unless some are given.
    fn setup(&self, trace: &Trace) -> Setup {
        let is_given = self.backend.is_some() || self.profile.is_some() || !self.conf.is_empty();
        let recorded = Setup::of_recording(trace).filter(|_| !is_given && self.limit.is_empty());
        let profile = self.profile.map_or(String::new(), |profile| format!("profile:{profile}"));
        let given = Setup {
            backend: self.backend,
            tuning: profile,
            hard_limit: self.limit.first().map(|limit| limit.of(trace)),
            ..Setup::default()
        };
        let setup = recorded.unwrap_or(given);
        Setup {
            conf: self.conf.clone(),
            waits: self.waits,
            streams: self.streams,
            clock: Some(virtual_time),
            ..setup
        }
    }

    fn traces(&self) -> Result<Vec<Trace>> {
        let mut traces = Vec::new();
        for file in &self.files {
            traces.push(Trace::read(file)?);
        }
        for kind in &self.synthetic {
            traces.push(kind.trace(self.seed, self.rounds.unwrap_or_else(|| kind.usual_round_count())));
        }
        if traces.is_empty() {
            traces = self.recorded.read()?;
        }
        Ok(traces)
    }
}

impl Recorded {
    /// The folder of the recorded runs.
    pub(crate) fn runs(&self) -> Result<PathBuf> {
        self.runs.clone().map_or_else(|| beside("runs"), Ok)
    }

    /// All recorded traces, by name.
    pub(crate) fn read(&self) -> Result<Vec<Trace>> {
        let folder = self.folder.clone().map_or_else(|| beside("traces"), Ok)?;
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            files.push(entry?.path());
        }
        files.retain(|file| file.to_string_lossy().ends_with(".csv.gz"));
        files.sort();
        ensure!(!files.is_empty(), "{} holds no trace", folder.display());
        files.iter().map(|file| Ok(Trace::read(file)?)).collect()
    }
}

/// Replays a trace with a progress bar, if the output is a terminal.
pub(crate) fn watched(trace: &Trace, driver: &Driver, setup: &Setup) -> Result<Outcome> {
    let progress = ProgressBar::new(trace.events().len() as u64);
    progress.set_style(ProgressStyle::with_template("{prefix} {bar:40} {human_pos}/{human_len} {eta}")?);
    progress.set_prefix(trace.name().to_string());
    let outcome = replay(trace, driver, setup, |done_count| progress.set_position(done_count));
    progress.finish_and_clear();
    Ok(outcome?)
}

/// The machine of replays: the vendor's driver, or a new simulator for each.
pub(crate) struct Machine {
    pub(crate) kind: DriverKind,
}

impl Machine {
    pub(crate) fn find() -> Result<Self> {
        Ok(Self { kind: gpumem_sim::driver_or_sim()?.kind() })
    }

    pub(crate) fn driver(&self) -> Result<Driver> {
        if self.kind == DriverKind::Cuda { Ok(Driver::cuda()?) } else { Self::simulated(None) }
    }

    /// A new simulator, with the prices of an idle device, a busy device, or one whose load follows the program's calls.
    fn simulated(is_busy: Option<bool>) -> Result<Driver> {
        let mut costs = Costs::h200();
        costs.is_busy = is_busy;
        let mut config = SimConfig::from_env()?.races(false).costs(costs);
        if env::read(gpumem_sim::VARIABLES, "GPUMEM_SIM_MEMORY")?.is_none() {
            config = config.memory_bytes(H200_BYTES);
        }
        Ok(gpumem_sim::driver(config)?)
    }

    fn describe(&self) -> String {
        match self.kind {
            DriverKind::Cuda => "on the GPU: driver time is the host's, spent in its calls".into(),
            _ => "on the simulator: driver time is its virtual clock's, at an H200's prices".into(),
        }
    }
}

/// The memory of an H200.
const H200_BYTES: u64 = 143_771 << 20;

//! Runs random programs over the pool, or over arrays, and shrinks those that fail: `cargo xtask fuzz`.
//!
//! `gpumem_tests::model` does the search; this is its command line and its progress output.

#![allow(clippy::print_stdout, reason = "a program that prints its progress")]

use anyhow::{Context, Result, bail};
use clap::Parser;
use gpumem_tests::model::search::Coverage;
use gpumem_tests::model::{Arrays, Failure, Model, Pools, Search, Subject};
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

/// Runs random programs over the pool, or over arrays, on the simulator, and shrinks those that fail.
#[derive(Parser)]
#[command(name = "fuzz", bin_name = "cargo xtask fuzz")]
struct Args {
    /// The layer that the programs use: pool, or array
    #[arg(long, value_enum, value_name = "LAYER", default_value = Pools::TARGET)]
    target: Target,
    /// Stop after this number of seconds [default: 60, unless --cases is given]
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// The first seed [default: random]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Stop after this number of seeds
    #[arg(long, value_name = "N")]
    cases: Option<u64>,
    /// The number of seeds that run in parallel [default: one for each core]
    #[arg(long, value_name = "J")]
    jobs: Option<usize>,
    /// Run only this: native, none, caching/segments, or a profile (caching/tight); with /unified or /host for
    /// that kind of memory, with /adapted for adaptors
    #[arg(long, value_name = "NAME")]
    subject: Option<Subject>,
    /// Inject a bug into the pool, and fail unless it is found
    #[arg(long, value_name = "MISTAKE")]
    plant: Option<String>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Target {
    Pool,
    Array,
}

fn main() -> Result<()> {
    let args = Args::parse();
    match args.target {
        Target::Pool => run_on::<Pools>(args),
        Target::Array => run_on::<Arrays>(args),
    }
}

fn run_on<M: Model>(args: Args) -> Result<()> {
    if let Some(name) = &args.plant
        && !injected::plant(name)?
    {
        return injected::run_again();
    }
    let search = args.search::<M>()?;
    let limit = args.limit();
    let progress = ProgressBar::new_spinner();
    progress.set_style(ProgressStyle::with_template("{spinner} {elapsed} {msg}")?);
    let start = Instant::now();
    let outcome = search.run(|coverage| {
        progress.set_message(coverage.to_string());
        progress.tick();
        let over = limit.is_some_and(|limit| start.elapsed() >= limit);
        if over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    progress.finish_and_clear();
    let seconds = start.elapsed().as_secs_f64();
    match (outcome, &args.plant) {
        (Ok(coverage), None) => {
            println!("{}", summary(&search, &coverage, start.elapsed()));
            Ok(())
        }
        (Ok(coverage), Some(name)) => bail!("{name} was not found in {seconds:.1} s: {coverage}"),
        (Err(found), None) => {
            println!("{found}");
            println!("{}", keep(&found)?);
            bail!("failed after {seconds:.1} s")
        }
        (Err(found), Some(name)) => {
            println!(
                "{found}\nfound: {name}, after {seconds:.1} s with shrinking; the command to repeat it needs --plant {name} too"
            );
            Ok(())
        }
    }
}

/// Adds the seed of a failure to the regressions, which `tests/stress/model.rs` repeats on each run.
fn keep(found: &Failure) -> Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("regressions/{}.txt", found.target));
    let what = found.what.lines().next().unwrap_or_default();
    let line = format!("{} {} {what}", found.subject, found.seed);
    let before = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    if !before.lines().any(|kept| kept == line) {
        std::fs::write(&path, format!("{before}{line}\n"))?;
    }
    Ok(format!("kept in {}", path.display()))
}

impl Args {
    fn search<M: Model>(&self) -> Result<Search<M>> {
        let first_seed = self.seed.unwrap_or_else(drawn_seed);
        let mut search = Search::<M>::seeds(first_seed, self.cases.unwrap_or(u64::MAX));
        search.jobs =
            self.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        match self.subject {
            Some(subject) => search.subjects = vec![subject],
            None => search.seeds_between_adapted = 4,
        }
        Ok(search)
    }

    fn limit(&self) -> Option<Duration> {
        let unsaid = if self.cases.is_some() { None } else { Some(60) };
        self.seconds.or(unsaid).map(Duration::from_secs)
    }
}

/// Six digits are easier to pass on than twenty.
fn drawn_seed() -> u64 {
    RandomState::new().build_hasher().finish() % 1_000_000
}

fn summary<M: Model>(search: &Search<M>, coverage: &M::Coverage, elapsed: Duration) -> String {
    let subjects: Vec<String> = search.subjects.iter().map(ToString::to_string).collect();
    let last = search.first_seed.saturating_add(coverage.seed_count()).saturating_sub(1);
    format!(
        "clean: {}\n{}; seeds {} to {last}, {:.1} s",
        coverage.summary(),
        subjects.join(", "),
        search.first_seed,
        elapsed.as_secs_f64()
    )
}

/// Injected bugs, available only in a build with `--cfg gpumem_planted_bugs`.
#[cfg(gpumem_planted_bugs)]
mod injected {
    use anyhow::{Context, Result};
    use gpumem_tests::pool::injected_bugs::{Bug, inject};

    /// Injects the bug with this name. Returns whether it exists in this build.
    pub(super) fn plant(name: &str) -> Result<bool> {
        let known: Vec<&str> = Bug::NAMES.iter().map(|(name, _)| *name).collect();
        let bug = Bug::NAMES.iter().find(|(known, _)| *known == name);
        let (_, bug) = bug.with_context(|| format!("{name} is none of {}", known.join(", ")))?;
        // SAFETY: the injected bug corrupts simulated memory only, which is the purpose of this program.
        unsafe { inject(*bug) };
        Ok(true)
    }

    pub(super) fn run_again() -> Result<()> {
        Ok(())
    }
}

#[cfg(not(gpumem_planted_bugs))]
mod injected {
    use anyhow::{Result, ensure};
    use std::process::Command;

    pub(super) fn plant(_: &str) -> Result<bool> {
        Ok(false)
    }

    /// Runs this command in a build with the injected bugs, in a target directory of its own.
    pub(super) fn run_again() -> Result<()> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let build = [
            "run",
            "-q",
            "-p",
            "gpumem-tests",
            "--example",
            "fuzz",
            "--target-dir",
            "target/injected-bugs",
            "--",
        ];
        let mut command = Command::new(cargo);
        command.env("RUSTFLAGS", "--cfg gpumem_planted_bugs");
        let status = command.args(build).args(std::env::args_os().skip(1)).status()?;
        ensure!(status.success(), "the build with injected bugs failed: {status}");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Args {
        Args::parse_from(line.split(' '))
    }

    #[test]
    fn cases_alone_are_not_cut_short() {
        assert_eq!(args("fuzz --cases 5").limit(), None);
        assert_eq!(args("fuzz --cases 5 --seconds 3").limit(), Some(Duration::from_secs(3)));
        assert_eq!(args("fuzz --seed 5").limit(), Some(Duration::from_secs(60)));
    }

    /// The command line that a failure prints is valid for this task.
    #[test]
    fn the_printed_command_is_understood() {
        understands::<Pools>();
        understands::<Arrays>();
    }

    fn understands<M: Model>() {
        let found = Failure {
            target: M::TARGET,
            seed: 8113,
            subject: "none".parse().unwrap(),
            what: String::new(),
            program: Vec::new(),
        };
        let command = found.command();
        let args = args(command.strip_prefix("cargo xtask ").unwrap());
        assert_eq!(
            <Target as clap::ValueEnum>::from_str(M::TARGET, false).ok().map(|t| t as u8),
            Some(args.target as u8)
        );
        let search = args.search::<M>().unwrap();
        assert_eq!((search.first_seed, search.seed_count), (8113, Some(1)));
        assert_eq!(search.subjects, [found.subject]);
    }
}

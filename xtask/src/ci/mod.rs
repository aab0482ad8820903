//! `cargo xtask ci`: the steps of CI, in an order in which the cheap steps fail first.
//!
//! The gate has the steps whose failures changes cause often. `--full` adds those that take long and seldom fail: other targets and
//! toolchains, packages, all combinations of features, miri.
//!
//! A step that needs something unavailable on this machine (a toolchain, a target, the Python package index) prints it and counts
//! as skipped. Any other failure ends the run, including a command that hangs (`watched`). Steps share one target folder, except
//! for those with folders of their own in it (`folders`). Some of those run beside the others (`beside`), because tests and builds of single
//! crates leave processors idle.

mod beside;
mod command;
mod folders;
mod packages;
mod steps;
mod watched;

use anyhow::{Result, bail};
use beside::Beside;
use std::time::{Duration, Instant};
use steps::STEPS;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run only these steps, in their usual order [default: those of the gate]
    #[arg(value_name = "STEP", value_parser = step_names())]
    steps: Vec<String>,
    /// Run all steps, not only those of the gate
    #[arg(long)]
    full: bool,
    /// List the steps
    #[arg(long)]
    list: bool,
    /// Continue after a step that failed
    #[arg(long)]
    keep_going: bool,
    /// Run one step after another, to time them or to read their output as it comes
    #[arg(long)]
    one_by_one: bool,
}

struct Step {
    name: &'static str,
    about: &'static str,
    /// True if it is left to `--full`.
    is_full: bool,
    /// True if all that it builds is in folders of its own, so that it can run beside the steps that share one.
    is_apart: bool,
    run: fn() -> Result<Outcome>,
}

const fn gate(name: &'static str, about: &'static str, run: fn() -> Result<Outcome>) -> Step {
    Step { name, about, is_full: false, is_apart: false, run }
}

/// A step of the full run alone.
const fn full(name: &'static str, about: &'static str, run: fn() -> Result<Outcome>) -> Step {
    Step { is_full: true, ..gate(name, about, run) }
}

impl Step {
    const fn apart(self) -> Self {
        Self { is_apart: true, ..self }
    }
}

/// The outcome of a step that did not fail.
enum Outcome {
    Passed,
    /// Skipped, with the thing that this machine lacks.
    Skipped(String),
}

fn step_names() -> clap::builder::PossibleValuesParser {
    STEPS
        .iter()
        .map(|step| clap::builder::PossibleValue::new(step.name).help(step.about))
        .collect::<Vec<_>>()
        .into()
}

pub(crate) fn run(args: Args) -> Result<()> {
    if args.list {
        for step in STEPS {
            let ring = if step.is_full { "full" } else { "gate" };
            println!("{:<12} {ring}  {}", step.name, step.about);
        }
        return Ok(());
    }
    command::IS_FULL.store(args.full, std::sync::atomic::Ordering::Relaxed);
    let is_chosen = |step: &&Step| match args.steps.as_slice() {
        [] => args.full || !step.is_full,
        names => names.iter().any(|name| name == step.name),
    };
    let chosen = STEPS.iter().filter(is_chosen);
    let chosen: Vec<&Step> = chosen.collect();
    let is_apart =
        |step: &&Step| step.is_apart && !args.one_by_one && chosen.iter().any(|other| !other.is_apart);
    let (apart, in_turn): (Vec<&Step>, Vec<&Step>) = chosen.iter().copied().partition(is_apart);
    let start = Instant::now();
    let mut ended = Vec::new();
    // Not before the cheap steps, which end the run if they fail.
    let (cheap, in_turn): (Vec<&Step>, Vec<&Step>) =
        in_turn.into_iter().partition(|step| ["fmt", "tidy", "made", "clippy"].contains(&step.name));
    for step in cheap {
        let goes_on = args.keep_going || !has_failed(&ended);
        ended.push((step.name, if goes_on { run_step(step) } else { not_run() }));
    }
    let begins = args.keep_going || !has_failed(&ended);
    let beside = Beside::start(if begins { &apart } else { &[] }, args.keep_going);
    if !begins {
        ended.extend(apart.iter().map(|step| (step.name, not_run())));
    }
    for step in in_turn {
        let goes_on = args.keep_going || !has_failed(&ended);
        ended.push((step.name, if goes_on { run_step(step) } else { not_run() }));
    }
    ended.extend(beside.end());
    let place = |name: &str| STEPS.iter().position(|step| step.name == name);
    ended.sort_by_key(|(name, _)| place(name));
    let failed: Vec<_> =
        ended.iter().filter(|(_, (result, _))| result == FAILED).map(|(name, _)| *name).collect();
    let row = |(name, (result, took)): (&str, Ended)| [name.to_string(), seconds(took), result];
    let mut rows: Vec<_> = ended.into_iter().map(row).collect();
    let busy = processor_time().map(|time| format!("{} s of processors", seconds(time))).unwrap_or_default();
    rows.push(["total".to_string(), seconds(start.elapsed()), busy]);
    println!("\n{}", crate::table::render(["step", "seconds", "result"], &rows));
    if !failed.is_empty() {
        bail!("failed: {0}; repeat with `cargo xtask ci {1}`", failed.join(", "), failed.join(" "));
    }
    Ok(())
}

const FAILED: &str = "FAILED";

/// The result of a step, and the time that it took.
type Ended = (String, Duration);

fn has_failed(ended: &[(&str, Ended)]) -> bool {
    ended.iter().any(|(_, (result, _))| result == FAILED)
}

fn not_run() -> Ended {
    ("not run".to_string(), Duration::ZERO)
}

fn run_step(step: &Step) -> Ended {
    println!("\n== {}: {} ==", step.name, step.about);
    let (start, busy) = (Instant::now(), processor_time());
    let result = match (step.run)().and_then(|outcome| folders::remove_after(step.name).map(|()| outcome)) {
        Ok(Outcome::Passed) => "passed".to_string(),
        Ok(Outcome::Skipped(reason)) => format!("skipped: {reason}"),
        Err(error) => {
            println!("{}: {error:#}", step.name);
            FAILED.to_string()
        }
    };
    let took = start.elapsed();
    if let Some((before, after)) = busy.zip(processor_time()) {
        println!("{}: {} s of processors", step.name, seconds(after.saturating_sub(before)));
    }
    println!("== {} {result}, {} s ==", step.name, seconds(took));
    (result, took)
}

/// The processor time of all ended child processes, on Linux.
fn processor_time() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the program, in parentheses, is the second field. Those of the children are the 16th and 17th.
    let (_, fields) = stat.rsplit_once(") ")?;
    let ticks = fields.split(' ').skip(13).take(2).map(str::parse::<u64>).sum::<Result<u64, _>>().ok()?;
    // The kernel counts a hundred a second, whatever its timer does.
    Some(Duration::from_millis(ticks * 10))
}

fn seconds(took: Duration) -> String {
    format!("{:.1}", took.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_steps_are_distinct() {
        let mut names: Vec<_> = STEPS.iter().map(|step| step.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), STEPS.len());
    }

    #[test]
    fn a_step_reports_how_it_ended() {
        let step = |run| gate("step", "for this test", run);
        assert_eq!(run_step(&step(|| Ok(Outcome::Passed))).0, "passed");
        assert_eq!(run_step(&step(|| Ok(Outcome::Skipped("no net".into())))).0, "skipped: no net");
        assert_eq!(run_step(&step(|| bail!("broken"))).0, FAILED);
    }
}

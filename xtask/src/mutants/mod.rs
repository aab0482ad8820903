//! `cargo xtask mutants`: small changes of the library, each of which some test should detect.
//!
//! A seed draws the changes, as many from each room ([`rooms`]). All are written into one copy of the workspace, each behind a
//! switch ([`switches`]). So there is one build, and each mutant costs one run of the tests of its room. In a bundle the same
//! runner is a program of its own (`xtask/src/bin/mutants.rs`).

mod bundle;
mod draw;
mod equivalent;
mod plan;
mod points;
mod report;
mod rooms;
mod runner;
mod switches;
mod tree;

use crate::table;
use anyhow::{Context, Result, bail};
pub(crate) use equivalent::equivalents;
use plan::{Plan, Results};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The seed of the draw
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// The number of mutants
    #[arg(long, value_name = "N", default_value_t = 150)]
    count: usize,
    /// The number of mutants that run in parallel [default: one for each core]
    #[arg(long, value_name = "J")]
    jobs: Option<usize>,
    /// Draw only from this room, or from files whose path contains this
    #[arg(long, value_name = "FILE")]
    only: Option<String>,
    /// Run mutants again that have survived before
    #[arg(long)]
    again: bool,
    /// Print the drawn mutants, and run nothing
    #[arg(long)]
    list: bool,
    /// Print one mutant by its number, and how to run a test with it
    #[arg(long, value_name = "NUMBER")]
    show: Option<usize>,
    /// Print the table of the existing results, and run nothing
    #[arg(long)]
    report: bool,
    /// Write the test programs and a run.sh into DIR, for a machine without Rust, instead of running them
    #[arg(long, value_name = "DIR")]
    bundle: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let folder = crate::workspace::root().join("target/mutants");
    std::fs::create_dir_all(&folder)?;
    let plan = draw::plan(&args, &folder)?;
    let results = folder.join(format!("{}.jsonl", args.seed));
    if args.list {
        plan.mutants.iter().for_each(|mutant| println!("{}", report::diff(mutant)));
        return Ok(());
    }
    if let Some(number) = args.show {
        return show(&plan, number, &folder);
    }
    let list = equivalents(&std::fs::read_to_string(crate::workspace::root().join(EQUIVALENT))?)?;
    if let Some(target) = &args.bundle {
        return bundle::write(&plan, &list, &folder, target);
    }
    let mut done = Results::open(&results, plan.sources)?;
    if !args.report {
        println!(
            "{} mutants of seed {}; results are kept in {}",
            plan.mutants.len(),
            args.seed,
            results.display()
        );
        let jobs = args.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        done = runner::run(&plan, &folder, done, &runner::Options { jobs, is_again: args.again })?;
    }
    report::print(&plan, &done, &list)
}

/// The list of mutants without effect.
pub(crate) const EQUIVALENT: &str = "tests/mutants.md";

fn show(plan: &Plan, number: usize, folder: &Path) -> Result<()> {
    let Some(mutant) = plan.mutants.iter().find(|mutant| mutant.number == number) else {
        bail!("no mutant has the number {number}; --list prints all");
    };
    print!("{}", report::diff(mutant));
    for name in &mutant.suites {
        let suite = plan.suites.iter().find(|suite| suite.name == *name).context("the plan is damaged")?;
        println!("  MUTANT_NUMBER={number} {}", folder.join(&suite.program).display());
    }
    Ok(())
}

//! The runner of a bundle: `cargo xtask mutants` for machines without cargo. It runs the programs beside it.

#[path = "../mutants/plan.rs"]
mod plan;
#[path = "../mutants/report.rs"]
mod report;
#[path = "../mutants/runner.rs"]
mod runner;
#[path = "../table.rs"]
mod table;

use anyhow::{Context, Result};
use clap::Parser;
use std::path::Path;
use std::process::ExitCode;

/// Run the mutants of this bundle on this machine
#[derive(Parser)]
#[command(name = "run.sh", bin_name = "run.sh")]
struct Args {
    /// The number of mutants that run in parallel
    jobs: usize,
    /// Run mutants again that have survived before
    #[arg(long)]
    again: bool,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let program = std::env::current_exe()?;
    let folder = program.parent().context("this program lies in no folder")?;
    let plan: plan::Plan = read(&folder.join("plan.json"))?;
    let results = plan::Results::open(&folder.join("results.jsonl"), plan.sources)?;
    let options = runner::Options { jobs: args.jobs, is_again: args.again };
    let results = runner::run(&plan, folder, results, &options)?;
    let list: Vec<report::Equivalent> = read(&folder.join("equivalent.json"))?;
    report::print(&plan, &results, &list)
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let text = std::fs::read(path).with_context(|| path.display().to_string())?;
    Ok(serde_json::from_slice(&text)?)
}

//! The runner of a bundle: `cargo xtask gpu-test` for machines without cargo. It runs the programs beside it.

#[path = "../gpu_test/device.rs"]
mod device;
#[path = "../gpu_test/libtest.rs"]
mod libtest;
#[path = "../gpu_test/runner.rs"]
mod runner;
#[path = "../gpu_test/suite.rs"]
mod suite;
#[path = "../../../crates/gpumem-cli/src/table.rs"]
mod table;

use anyhow::{Context, Result};
use clap::Parser;
use std::path::Path;
use std::process::ExitCode;
use suite::{FOLDERS, Program, Suite};

/// Run the GPU tests of this bundle on this machine
#[derive(Parser)]
#[command(name = "run.sh", bin_name = "run.sh")]
struct Args {
    #[command(flatten)]
    choice: runner::Choice,
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
    runner::run(|| read(folder), &args.choice)
}

fn read(folder: &Path) -> Result<Vec<Suite>> {
    let mut suites = Vec::new();
    for (kind_folder, kind) in FOLDERS {
        let source = folder.join(kind_folder);
        let entries = std::fs::read_dir(&source)
            .with_context(|| format!("{} is not a bundle: it has no {kind_folder}/", folder.display()))?;
        let mut programs = Vec::new();
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            programs.push(Program { name, kind, path: entry.path() });
        }
        programs.sort_by(|a, b| a.name.cmp(&b.name));
        for program in programs {
            suites.extend(program.suites("cuda::")?);
        }
    }
    // A module with cases for the simulator alone.
    suites.retain(|suite| suite.cases.as_ref().is_none_or(|cases| !cases.is_empty()));
    Ok(suites)
}

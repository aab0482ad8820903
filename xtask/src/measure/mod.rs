//! `cargo xtask bench`, `replay` and `fuzz`: builds the programs in tests/examples and starts them.
//!
//! `measure`, optimised, has the benches and replays, and a bundle includes it. Runs that it recorded are in docs/runs; [`plots`] draws
//! the README's plots from them.

pub(crate) mod plots;
mod runs;

use crate::workspace::{programs, root};
use anyhow::{Context, Result, bail};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::Command;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Arguments of the program; see `--help`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARG")]
    args: Vec<OsString>,
}

pub(crate) fn replay(args: &Args) -> Result<()> {
    start("replay", args, &[])
}

pub(crate) fn bench(args: &Args) -> Result<()> {
    // Under names without the hash that cargo appends.
    let folder = root().join("target/benches");
    std::fs::create_dir_all(&folder)?;
    for old in std::fs::read_dir(&folder)? {
        std::fs::remove_file(old?.path())?;
    }
    for bench in programs::benches()? {
        std::fs::copy(&bench.program, folder.join(&bench.name))?;
    }
    start("bench", args, &["--benches".as_ref(), folder.as_os_str()])
}

pub(crate) fn fuzz(args: &Args) -> Result<()> {
    run(&["build", "--quiet", "--package", TESTS, "--example", "fuzz"], |command| {
        command.args(&args.args);
    })
}

/// The folder of the recorded traces.
pub(crate) fn traces() -> PathBuf {
    root().join("tests/traces")
}

/// The folder of the recorded runs, from the root of the repository.
pub(crate) const RUNS: &str = "docs/runs";

/// Starts `measure` with the recorded traces and runs.
fn start(task: &str, args: &Args, more: &[&OsStr]) -> Result<()> {
    run(&["build", "--release", "--package", TESTS, "--example", "measure"], |command| {
        command.arg(task).args(more).arg("--recorded").arg(traces()).arg("--runs").arg(root().join(RUNS));
        command.args(&args.args);
    })
}

/// Builds a program, starts it in the current folder, so that relative paths stay valid, and exits with its status unless it has
/// succeeded. The program has printed its own errors.
fn run(build: &[&str], arguments: impl FnOnce(&mut Command)) -> Result<()> {
    let built = programs::build(build)?;
    let program = &built.first().context("cargo reported no program")?.program;
    let mut command = Command::new(program);
    arguments(&mut command);
    let status = command.status().with_context(|| program.display().to_string())?;
    match status.code() {
        Some(0) => Ok(()),
        Some(code) => std::process::exit(code),
        None => bail!("{} ended with {status}", program.display()),
    }
}

/// The package of the programs.
const TESTS: &str = "gpumem-tests";

//! `cargo xtask bench`, `replay` and `fuzz`: builds the programs in tests/examples and starts them.
//!
//! `measure`, optimised, has the benches and replays, and a bundle includes it. Runs that it recorded are in docs/runs.

use crate::workspace::{programs, root};
use anyhow::{Context, Result, bail, ensure};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
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
    let folder = lay_out_benches(&["--release"])?;
    start("bench", args, &["--benches".as_ref(), folder.as_os_str()])
}

/// Runs each bench with little work on the simulator, and parses its rows. The bench of the C interface has no simulator of its own, and
/// runs on the drop-in, which is in a folder.
pub(crate) fn check_benches(drop_in: &Path) -> Result<()> {
    let folder = lay_out_benches(&[])?;
    let measure = built(&["build", "--workspace", "--example", "measure"])?;
    let names = std::fs::read_dir(&folder)?.map(|entry| Ok(entry?.file_name()));
    let names = names.collect::<Result<Vec<_>>>()?;
    let (on_drop_in, own): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| name == C_BENCH);
    ensure!(!on_drop_in.is_empty(), "there is no bench {C_BENCH}");
    for (names, library_path, driver) in [(own, None, "sim"), (on_drop_in, Some(drop_in), "drop-in")] {
        let mut command = Command::new(&measure);
        command.args(["bench", "--quick", "--benches"]).arg(&folder).args(names);
        command
            .arg("--recorded")
            .arg(traces())
            .arg("--runs")
            .arg(root().join(RUNS))
            .env("GPUMEM_DRIVER", driver);
        command.envs(library_path.map(|path| ("LD_LIBRARY_PATH", path)));
        let status = command.status().with_context(|| measure.display().to_string())?;
        ensure!(status.success(), "the benches failed ({status})");
    }
    Ok(())
}

/// The bench of the C interface.
const C_BENCH: &str = "pair";

/// Builds the benches, and copies them into a folder under names without the hash that cargo appends.
fn lay_out_benches(profile: &[&str]) -> Result<PathBuf> {
    let folder = root().join("target/benches");
    std::fs::create_dir_all(&folder)?;
    for old in std::fs::read_dir(&folder)? {
        std::fs::remove_file(old?.path())?;
    }
    for bench in programs::benches(profile)? {
        std::fs::copy(&bench.program, folder.join(&bench.name))?;
    }
    Ok(folder)
}

pub(crate) fn fuzz(args: &Args) -> Result<()> {
    run(&["build", "--quiet", "--package", TESTS, "--example", "fuzz"], |command| {
        command.args(&args.args);
    })
}

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
    let program = built(build)?;
    let mut command = Command::new(&program);
    arguments(&mut command);
    let status = command.status().with_context(|| program.display().to_string())?;
    match status.code() {
        Some(0) => Ok(()),
        Some(code) => std::process::exit(code),
        None => bail!("{} ended with {status}", program.display()),
    }
}

fn built(build: &[&str]) -> Result<PathBuf> {
    let example = programs::build(build)?.into_iter().find(|built| built.kind == programs::Kind::Example);
    Ok(example.context("cargo reported no program")?.program)
}

const TESTS: &str = "gpumem-tests";

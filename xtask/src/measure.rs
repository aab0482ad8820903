//! `cargo xtask bench` and `cargo xtask replay`: builds what measures, with optimisation, and starts it.
//!
//! What it does is in xtask/measure, a program of its own that a bundle takes along.

use crate::programs;
use anyhow::{Context, Result, ensure};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::Command;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Passed on; `--help` tells
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARG")]
    args: Vec<OsString>,
}

pub(crate) fn replay(args: &Args) -> Result<()> {
    start("replay", args, &[])
}

pub(crate) fn bench(args: &Args) -> Result<()> {
    // Under names without the hash that cargo appends.
    let folder = crate::root().join("target/benches");
    std::fs::create_dir_all(&folder)?;
    for old in std::fs::read_dir(&folder)? {
        std::fs::remove_file(old?.path())?;
    }
    for bench in programs::benches()? {
        std::fs::copy(&bench.program, folder.join(&bench.name))?;
    }
    start("bench", args, &["--benches".as_ref(), folder.as_os_str()])
}

/// Where the recorded traces lie.
pub(crate) fn traces() -> PathBuf {
    crate::root().join("tests/traces")
}

/// Stays in the folder that this was started in: files are named from there.
fn start(task: &str, args: &Args, more: &[&OsStr]) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["run", "--release", "--package", "gpumem-measure", "--manifest-path"]);
    command.arg(crate::root().join("Cargo.toml")).args(["--", task]).args(more);
    command.arg("--recorded").arg(traces()).args(&args.args);
    let status = command.status().context("cargo can't be started")?;
    ensure!(status.success(), "measuring ended with {status}");
    Ok(())
}

//! Builds a program with cargo, and runs one on the drop-in under a seed.

use super::Layout;
use crate::drop_in;
use crate::workspace::programs;
use anyhow::{Context, Result};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A call of cargo on a manifest, which reports what it builds.
pub(super) fn cargo(
    layout: &Layout,
    manifest: &Path,
    args: &[&str],
    variables: &[(&str, OsString)],
) -> Command {
    let mut command = programs::cargo(args);
    command.arg("--manifest-path").arg(manifest);
    command.env("CARGO_TARGET_DIR", layout.made.join("build"));
    command.env("CUDA_LIBRARY_PATH", layout.toolkit());
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    command
}

/// Runs [`cargo`] and returns the program that it built.
pub(super) fn build(
    layout: &Layout,
    manifest: &Path,
    args: &[&str],
    variables: &[(&str, OsString)],
) -> Result<PathBuf> {
    let mut program = None;
    programs::report(cargo(layout, manifest, args, variables), |artifact| {
        program = artifact.executable.or(program.take());
    })?;
    Ok(program.context("cargo reported no program")?.into())
}

/// What a program needs beside the drop-in when it runs.
#[derive(Default)]
pub(super) struct Needs {
    /// Folders with libraries, searched after the drop-in's.
    pub(super) libraries: Vec<PathBuf>,
    pub(super) variables: Vec<(&'static str, OsString)>,
}

/// Runs a program to its end, and returns its output and how it failed.
pub(super) fn run(
    layout: &Layout,
    program: &Path,
    needs: &Needs,
    args: &[&str],
    seed: u64,
) -> Result<(String, Option<String>)> {
    let mut command = drop_in::command(program, &folders(layout, needs), seed)?;
    command.args(args).envs(needs.variables.iter().map(|(name, value)| (name, value)));
    drop_in::run_to_end(command)
}

fn folders<'a>(layout: &'a Layout, needs: &'a Needs) -> Vec<&'a Path> {
    [&layout.drop_in].into_iter().chain(&needs.libraries).map(PathBuf::as_path).collect()
}

/// The shell command that repeats a run.
pub(super) fn shown(layout: &Layout, program: &Path, needs: &Needs, seed: u64) -> String {
    let folders: Vec<String> =
        folders(layout, needs).iter().map(|folder| folder.display().to_string()).collect();
    let variables: String =
        needs.variables.iter().map(|(name, value)| format!("{name}={} ", value.display())).collect();
    format!(
        "LD_LIBRARY_PATH={} {variables}GPUMEM_SIM_DEVICES=2 GPUMEM_SIM_SEED={seed} {}",
        folders.join(":"),
        program.display()
    )
}

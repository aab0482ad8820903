//! Builds a program with cargo, and runs one on the drop-in under a seed.

use super::Layout;
use crate::drop_in;
use crate::workspace::programs;
use anyhow::{Context, Result};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Runs cargo on a manifest and returns the program that it built.
pub(super) fn build(
    layout: &Layout,
    manifest: &Path,
    args: &[&str],
    variables: &[(&str, OsString)],
) -> Result<PathBuf> {
    let mut command = programs::cargo(args);
    command.arg("--manifest-path").arg(manifest);
    command.env("CARGO_TARGET_DIR", layout.made.join("build"));
    command.env("CUDA_LIBRARY_PATH", layout.toolkit());
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    let mut program = None;
    programs::report(command, |artifact| program = artifact.executable.or(program.take()))?;
    Ok(program.context("cargo reported no program")?.into())
}

/// Runs a program to its end, and returns its output and how it failed. `libraries` are folders beside the drop-in's.
pub(super) fn run(
    layout: &Layout,
    program: &Path,
    libraries: &[&Path],
    args: &[&str],
    seed: u64,
) -> Result<(String, Option<String>)> {
    let folders: Vec<&Path> = [&*layout.drop_in].into_iter().chain(libraries.iter().copied()).collect();
    let mut command = drop_in::command(program, &folders, seed)?;
    command.args(args);
    drop_in::run_to_end(command)
}

/// The shell command that repeats a run.
pub(super) fn shown(layout: &Layout, program: &Path, seed: u64) -> String {
    let (library_path, program) = (layout.drop_in.display(), program.display());
    format!("LD_LIBRARY_PATH={library_path} GPUMEM_SIM_DEVICES=2 GPUMEM_SIM_SEED={seed} {program}")
}

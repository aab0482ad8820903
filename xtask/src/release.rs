//! Tasks that measure: an unoptimised `cargo xtask` starts an optimised one in its place.

use anyhow::{Context, Result, ensure};
use std::process::Command;

/// Runs `task` in an optimised build of this program, with the same arguments.
pub(crate) fn optimised(task: impl FnOnce() -> Result<()>) -> Result<()> {
    if !cfg!(debug_assertions) {
        return task();
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    let manifest = crate::root().join("Cargo.toml");
    // Where this was started, since files are named from there. Cargo says what it builds only if there is something.
    command.args(["run", "--quiet", "--release", "--package", "xtask", "--bin", "xtask", "--manifest-path"]);
    command.arg(manifest).arg("--").args(std::env::args_os().skip(1));
    let status = command.status().context("cargo can't be started")?;
    ensure!(status.success(), "the optimised build ended with {status}");
    Ok(())
}

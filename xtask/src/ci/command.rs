//! The programs that the steps run: cargo, with the current toolchain or another one, and tests that it has built.

use super::watched::{self, SILENCE_MAX};
use crate::workspace::clean;
use crate::workspace::programs::Built;
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// True in a full run: tests run every case of long series.
pub(super) static IS_FULL: AtomicBool = AtomicBool::new(false);

pub(super) struct Cargo {
    command: Command,
    shown: String,
}

/// `cargo ARGS` with the current toolchain.
pub(super) fn cargo(args: &str) -> Cargo {
    Cargo::new(clean("cargo"), String::new(), args)
}

/// `cargo ARGS` with another toolchain.
pub(super) fn cargo_of(toolchain: &str, args: &str) -> Cargo {
    let mut command = clean("rustup");
    command.args(["run", toolchain, "cargo"]);
    Cargo::new(command, format!("+{toolchain} "), args)
}

/// `cargo ARGS` in another workspace.
pub(super) fn cargo_in(folder: &Path, args: &str) -> Cargo {
    let mut cargo = cargo(args);
    cargo.command.current_dir(folder);
    cargo.shown = format!("{} (in {})", cargo.shown, folder.display());
    cargo
}

/// A test program, in the folder of its package as cargo starts it.
pub(super) fn program_of(built: &Built, args: &str) -> Cargo {
    let mut program = Cargo::new(clean(&built.program), String::new(), args);
    program.command.current_dir(built.manifest.parent().unwrap_or(Path::new(".")));
    program.shown = format!("{} {args}", built.name);
    program
}

impl Cargo {
    fn new(mut command: Command, toolchain: String, args: &str) -> Self {
        if IS_FULL.load(Ordering::Relaxed) {
            command.env("THOROUGH", "1");
        }
        // Many tests wait, for threads of the simulator or for a deadline.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        command.env("RUST_TEST_THREADS", (2 * cores).to_string());
        command.current_dir(crate::workspace::root()).args(args.split_whitespace());
        Self { command, shown: format!("cargo {toolchain}{args}") }
    }

    pub(super) fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self.shown = format!("{name}='{value}' {}", self.shown);
        self
    }

    /// Runs the command and returns its output.
    pub(super) fn output(self) -> Result<String> {
        let mut printed = Vec::new();
        let status = watched::run(self.command, SILENCE_MAX, &mut printed);
        let status = status.with_context(|| format!("`{}`", self.shown))?;
        let printed = String::from_utf8_lossy(&printed).into_owned();
        ensure!(status.success(), "`{}` failed ({status})\n{printed}", self.shown);
        Ok(printed)
    }

    /// Runs the command and passes its output on.
    pub(super) fn run(self) -> Result<()> {
        println!("$ {}", self.shown);
        let status = watched::run(self.command, SILENCE_MAX, &mut std::io::stdout());
        let status = status.with_context(|| format!("`{}`", self.shown))?;
        ensure!(status.success(), "`{}` failed ({status})", self.shown);
        Ok(())
    }
}

/// Runs rustup and returns its output; the error states why it failed.
pub(super) fn rustup(args: &str) -> Result<String> {
    let (mut command, mut printed) = (Command::new("rustup"), Vec::new());
    command.args(args.split_whitespace());
    let status =
        watched::run(command, SILENCE_MAX, &mut printed).with_context(|| format!("`rustup {args}`"))?;
    let printed = String::from_utf8_lossy(&printed).into_owned();
    let why = printed.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    ensure!(status.success(), "`rustup {args}`: {}", why.trim());
    Ok(printed)
}

/// Installs a toolchain with components (`-c NAME …`), unless it is installed.
pub(super) fn toolchain(name: &str, components: &[&str]) -> Result<()> {
    let has = |list: &str, wanted: &str| list.lines().any(|line| line.starts_with(wanted));
    if !has(&rustup("toolchain list")?, name) {
        rustup(&format!("toolchain install {name} --profile minimal --no-self-update"))?;
    }
    let installed = rustup(&format!("component list --toolchain {name} --installed"))?;
    for component in components.iter().filter(|component| !has(&installed, component)) {
        rustup(&format!("component add --toolchain {name} {component}"))?;
    }
    Ok(())
}

//! `cargo xtask command DIR`: the command `gpumem` as one file for older Linux systems.

use crate::workspace::programs::{Kind, cargo, report};
use crate::workspace::{root, wheel};
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;
use std::process::Command;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder for the program; created if it does not exist
    dir: PathBuf,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let program = build()?;
    let newest = newest_glibc(&std::fs::read(&program)?);
    ensure!(newest <= GLIBC, "the program needs glibc 2.{newest}, and 2.{GLIBC} was asked for");
    std::fs::create_dir_all(&args.dir)?;
    let file = args.dir.join("gpumem");
    std::fs::copy(&program, &file).with_context(|| file.display().to_string())?;
    println!("{}: runs on Linux with glibc 2.{newest} or later", file.display());
    Ok(())
}

/// The C library of 2018: RHEL 8, Debian 10, and what came later.
const GLIBC: u32 = 28;

/// Links with zig, which has the C libraries of all years.
fn build() -> Result<PathBuf> {
    let tools = environment()?;
    let target = format!("{}-unknown-linux-gnu.2.{GLIBC}", std::env::consts::ARCH);
    let mut path = vec![tools.join("bin")];
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    let mut command =
        cargo(&["zigbuild", "--release", "--package", "gpumem-cli", "--bin", "gpumem", "--target", &target]);
    command.current_dir(root()).env("PATH", std::env::join_paths(path)?);
    let mut program = None;
    report(command, |artifact| {
        if Kind::of(&artifact) == Kind::Other && artifact.target.name == "gpumem" {
            program = artifact.executable.map(PathBuf::from).or(program.take());
        }
    })?;
    program.context("cargo reported no program gpumem")
}

/// The environment of Python that has cargo-zigbuild and zig.
fn environment() -> Result<PathBuf> {
    let folder = root().join("target/xtask/zig");
    if folder.join("complete").exists() {
        return Ok(folder);
    }
    succeed(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder), "python3 -m venv")?;
    let mut pip = Command::new(folder.join("bin/python3"));
    succeed(pip.args(["-m", "pip", "install", "--quiet", TOOL]), "pip install")
        .with_context(|| wheel::Unreachable(TOOL.into()))?;
    std::fs::write(folder.join("complete"), "")?;
    Ok(folder)
}

fn succeed(command: &mut Command, name: &str) -> Result<()> {
    ensure!(
        command.status().with_context(|| format!("{name} cannot be started"))?.success(),
        "{name} failed"
    );
    Ok(())
}

/// The newest minor version of glibc 2 that a program names.
fn newest_glibc(program: &[u8]) -> u32 {
    let mut newest = 0;
    let mut rest = program;
    while let Some(at) = find(rest, b"GLIBC_2.") {
        rest = &rest[at + b"GLIBC_2.".len()..];
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).take(3);
        newest = newest.max(digits.fold(0, |number, digit| number * 10 + u32::from(digit - b'0')));
    }
    newest
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

const TOOL: &str = "cargo-zigbuild>=0.20";

#[cfg(test)]
mod tests {
    use super::newest_glibc;

    #[test]
    fn the_newest_version_of_glibc_is_found() {
        assert_eq!(newest_glibc(b"\0GLIBC_2.2.5\0GLIBC_2.28\0GLIBC_2.4\0GLIBC_PRIVATE"), 28);
        assert_eq!(newest_glibc(b"GLIBC_"), 0);
    }
}

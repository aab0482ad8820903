//! Programs built by cargo, and their paths.

use anyhow::{Context, Result, ensure};
use cargo_metadata::{Message, MetadataCommand};
use std::io::BufReader;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A program that cargo has built.
pub(crate) struct Built {
    pub(crate) name: String,
    /// True if it is a test harness.
    pub(crate) is_test: bool,
    pub(crate) program: PathBuf,
}

/// Runs cargo and collects the programs that it reports, by name.
pub(crate) fn build(args: &[&str]) -> Result<Vec<Built>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(super::root()).args(args).arg("--message-format=json-render-diagnostics");
    let mut child = command.stdout(Stdio::piped()).spawn().context("cargo cannot be started")?;
    let output = child.stdout.take().context("cargo has no output")?;
    let mut programs = Vec::new();
    for message in Message::parse_stream(BufReader::new(output)) {
        let Message::CompilerArtifact(artifact) = message? else { continue };
        if let Some(program) = artifact.executable {
            let (name, is_test) = (artifact.target.name, artifact.profile.test);
            programs.push(Built { name, is_test, program: program.into() });
        }
    }
    ensure!(child.wait()?.success(), "cargo {} failed", args.join(" "));
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(programs)
}

/// Builds every bench of the workspace.
pub(crate) fn benches() -> Result<Vec<Built>> {
    let manifest = super::root().join("Cargo.toml");
    let metadata = MetadataCommand::new().manifest_path(manifest).no_deps().exec()?;
    let targets = metadata.packages.iter().flat_map(|package| &package.targets);
    let names: Vec<&str> =
        targets.filter(|target| target.is_bench()).map(|target| target.name.as_str()).collect();
    let mut args = vec!["build", "--release", "--workspace"];
    args.extend(names.iter().flat_map(|name| ["--bench", name]));
    let mut built = build(&args)?;
    built.retain(|built| names.contains(&built.name.as_str()));
    Ok(built)
}

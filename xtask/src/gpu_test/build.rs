//! The programs to run: each test program of `gpumem-tests`, and the examples that check themselves.
//!
//! Every test program must have GPU cases. One that can't is named in tests/Cargo.toml, under
//! `[package.metadata.gpu-test]` as `simulator-only`, so that leaving GPU cases out is a decision.

use super::suite::{Kind, Suite};
use anyhow::{Context, Result, ensure};
use cargo_metadata::{Message, MetadataCommand};
use std::collections::BTreeSet;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const PACKAGE: &str = "gpumem-tests";
const EXAMPLES: [(&str, &str); 2] = [("gpumem-adapt", "train"), (PACKAGE, "stress")];

/// Builds every program.
pub(super) fn suites() -> Result<Vec<Suite>> {
    let simulator_only = simulator_only()?;
    let tests = ["test", "--no-run", "--package", PACKAGE, "--lib", "--tests", "--features", "gpu"];
    let mut suites = cargo(&tests, Kind::Tests)?;
    for name in &simulator_only {
        ensure!(
            suites.iter().any(|suite| suite.name == *name),
            "tests/Cargo.toml lists {name} as simulator-only, but there is no such suite; remove it from the list"
        );
    }
    for suite in suites.extract_if(.., |suite| simulator_only.contains(&suite.name)) {
        ensure!(
            !has_gpu_cases(&suite)?,
            "{} has GPU cases, but tests/Cargo.toml lists it as simulator-only; remove it from the list",
            suite.name
        );
    }
    for (package, example) in EXAMPLES {
        let build = ["build", "--release", "--package", package, "--example", example];
        suites.extend(cargo(&build, Kind::Example)?);
    }
    Ok(suites)
}

/// Builds the runner of a bundle.
pub(super) fn runner() -> Result<PathBuf> {
    let mut built = cargo(&["build", "--package", "xtask", "--bin", "gpu-test"], Kind::Example)?;
    Ok(built.pop().context("cargo reported no runner")?.program)
}

fn simulator_only() -> Result<BTreeSet<String>> {
    let manifest = crate::root().join("Cargo.toml");
    let metadata = MetadataCommand::new().manifest_path(manifest).no_deps().exec()?;
    let package = metadata.packages.iter().find(|package| package.name == PACKAGE);
    let package = package.with_context(|| format!("the workspace has no package {PACKAGE}"))?;
    let names = package.metadata.pointer("/gpu-test/simulator-only").and_then(|names| names.as_array());
    Ok(names.into_iter().flatten().filter_map(|name| name.as_str()).map(str::to_string).collect())
}

fn has_gpu_cases(suite: &Suite) -> Result<bool> {
    let output = Command::new(&suite.program).args(["--list", "--format", "terse"]).output()?;
    ensure!(output.status.success(), "{} can't list its tests", suite.name);
    Ok(String::from_utf8_lossy(&output.stdout).contains("cuda::"))
}

/// Runs cargo and collects the programs that it reports.
fn cargo(args: &[&str], kind: Kind) -> Result<Vec<Suite>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(crate::root()).args(args).arg("--message-format=json-render-diagnostics");
    let mut child = command.stdout(Stdio::piped()).spawn().context("cargo can't be started")?;
    let output = child.stdout.take().context("cargo has no output")?;
    let mut suites = Vec::new();
    for message in Message::parse_stream(BufReader::new(output)) {
        let Message::CompilerArtifact(artifact) = message? else { continue };
        if let Some(program) = artifact.executable.filter(|_| artifact.profile.test || kind == Kind::Example)
        {
            suites.push(Suite { name: artifact.target.name, kind, program: program.into() });
        }
    }
    ensure!(child.wait()?.success(), "cargo {} failed", args.join(" "));
    suites.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(suites)
}

//! The programs to run: each test program of `gpumem-tests`, and the examples that check their own results.
//!
//! Every test program must have GPU cases. A program that cannot is listed in tests/Cargo.toml, under
//! `[package.metadata.gpu-test]` as `simulator-only`, so that an omission is explicit.

use super::suite::{Kind, Suite};
use crate::workspace::programs;
use anyhow::{Context, Result, ensure};
use cargo_metadata::MetadataCommand;
use std::collections::BTreeSet;
use std::process::Command;

const PACKAGE: &str = "gpumem-tests";
// `data_parallel` starts `train`, which is beside it.
const EXAMPLES: [(&str, &str); 5] = [
    ("gpumem-array", "kmeans"),
    ("gpumem-adapt", "train"),
    (PACKAGE, "data_parallel"),
    (PACKAGE, "stress"),
    (PACKAGE, "limit_stress"),
];

/// Builds every program.
pub(super) fn suites() -> Result<Vec<Suite>> {
    let simulator_only = simulator_only()?;
    let tests = ["test", "--no-run", "--package", PACKAGE, "--lib", "--tests", "--features", "gpu"];
    let mut suites = built(&tests, Kind::Tests)?;
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
        suites.extend(built(&build, Kind::Example)?);
    }
    Ok(suites)
}

/// Builds the two programs that start the others in a bundle: one for tests and one, optimised, for benches.
pub(super) fn runners() -> Result<Vec<programs::Built>> {
    let mut runners = programs::build(&["build", "--package", "xtask", "--bin", "gpu-test"])?;
    runners.extend(programs::build(&["build", "--release", "--package", PACKAGE, "--example", "measure"])?);
    Ok(runners)
}

fn simulator_only() -> Result<BTreeSet<String>> {
    let manifest = crate::workspace::root().join("Cargo.toml");
    let metadata = MetadataCommand::new().manifest_path(manifest).no_deps().exec()?;
    let package = metadata.packages.iter().find(|package| package.name == PACKAGE);
    let package = package.with_context(|| format!("the workspace has no package {PACKAGE}"))?;
    let names = package.metadata.pointer("/gpu-test/simulator-only").and_then(|names| names.as_array());
    Ok(names.into_iter().flatten().filter_map(|name| name.as_str()).map(str::to_string).collect())
}

fn has_gpu_cases(suite: &Suite) -> Result<bool> {
    let output = Command::new(&suite.program).args(["--list", "--format", "terse"]).output()?;
    ensure!(output.status.success(), "{} cannot list its tests", suite.name);
    Ok(String::from_utf8_lossy(&output.stdout).contains("cuda::"))
}

/// Builds programs and selects those of a kind: cargo also reports their dependencies.
fn built(args: &[&str], kind: Kind) -> Result<Vec<Suite>> {
    let programs = programs::build(args)?.into_iter().filter(|built| built.is_test || kind == Kind::Example);
    Ok(programs.map(|built| Suite { name: built.name, kind, program: built.program }).collect())
}

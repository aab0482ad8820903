//! The programs to run: each test program of `gpumem-tests`, and the examples that check their own results.
//!
//! Every test program must have GPU cases. A program that cannot is listed in tests/Cargo.toml, under
//! `[package.metadata.gpu-test]` as `simulator-only`, so that an omission is explicit.

use super::suite::{self, Suite};
use crate::workspace::programs::{self, Built, Kind};
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
    let tests = ["test", "--no-run", "--package", PACKAGE, "--lib", "--tests", "--features", "gpu"];
    let mut suites = test_suites(programs::build(&tests)?, "cuda::")?;
    for (package, example) in EXAMPLES {
        let built = programs::build(&["build", "--release", "--package", package, "--example", example])?;
        suites.push(example_suite(built, example)?);
    }
    Ok(suites)
}

/// The same suites as `cargo test --workspace` builds them: without feature `gpu` and unoptimised. Each GPU case has a twin on the
/// simulator, so a suite without cases is found without a second build.
pub(super) fn suites_on_simulator() -> Result<Vec<Suite>> {
    let mut built = programs::build(&["test", "--no-run", "--workspace"])?;
    let examples: Vec<_> = built.extract_if(.., |built| built.kind == Kind::Example).collect();
    let manifest = crate::workspace::root().join("tests/Cargo.toml");
    built.retain(|built| built.manifest == manifest);
    let mut suites = test_suites(built, "sim::")?;
    let of_name = |name: &str| examples.iter().filter(|built| built.name == name).cloned().collect();
    for (_, example) in EXAMPLES {
        suites.push(example_suite(of_name(example), example)?);
    }
    Ok(suites)
}

/// The test programs that a GPU runs. Each has a case whose name contains `cases`.
fn test_suites(built: Vec<Built>, cases: &str) -> Result<Vec<Suite>> {
    let simulator_only = simulator_only()?;
    let tests = built.into_iter().filter(|built| built.kind == Kind::Suite);
    let mut suites: Vec<Suite> = tests.map(|built| suite(built, suite::Kind::Tests)).collect();
    for name in &simulator_only {
        ensure!(
            suites.iter().any(|suite| suite.name == *name),
            "tests/Cargo.toml lists {name} as simulator-only, but there is no such suite; remove it from the list"
        );
    }
    for suite in suites.extract_if(.., |suite| simulator_only.contains(&suite.name)) {
        ensure!(
            !has_cases(&suite, "cuda::")?,
            "{} has GPU cases, but tests/Cargo.toml lists it as simulator-only; remove it from the list",
            suite.name
        );
    }
    for suite in &suites {
        ensure!(
            has_cases(suite, cases)?,
            "{} has no case `{cases}…`, and a suite without GPU cases fails; write its cases with `cases!`, or list it in tests/Cargo.toml as simulator-only",
            suite.name
        );
    }
    Ok(suites)
}

fn example_suite(built: Vec<Built>, name: &str) -> Result<Suite> {
    let example = built.into_iter().find(|built| built.kind == Kind::Example);
    Ok(suite(example.with_context(|| format!("cargo built no example {name}"))?, suite::Kind::Example))
}

fn suite(built: Built, kind: suite::Kind) -> Suite {
    Suite { name: built.name, kind, program: built.program }
}

/// Builds the two programs that start the others in a bundle: one for tests and one, optimised, for benches.
pub(super) fn runners() -> Result<Vec<Built>> {
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

fn has_cases(suite: &Suite, cases: &str) -> Result<bool> {
    let output = Command::new(&suite.program).args(["--list", "--format", "terse"]).output()?;
    ensure!(output.status.success(), "{} cannot list its tests", suite.name);
    Ok(String::from_utf8_lossy(&output.stdout).contains(cases))
}

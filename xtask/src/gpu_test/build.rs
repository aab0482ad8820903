//! The programs to run: the test programs of `gpumem-tests`, and the examples that check their own results.
//!
//! Every suite must have GPU cases. A suite that cannot is listed in tests/Cargo.toml, under
//! `[package.metadata.gpu-test]` as `simulator-only`, so that an omission is explicit.

use super::suite::{Kind, Program, Suite};
use crate::workspace::programs::{self, Built};
use anyhow::{Context, Result, ensure};
use cargo_metadata::MetadataCommand;
use std::collections::BTreeSet;

const PACKAGE: &str = "gpumem-tests";
// `data_parallel` starts `train`, which is beside it.
const EXAMPLES: [(&str, &str); 5] = [
    ("gpumem", "programs"),
    ("gpumem-adapt", "train"),
    (PACKAGE, "data_parallel"),
    (PACKAGE, "stress"),
    (PACKAGE, "limit_stress"),
];

/// Builds every program, and checks that each suite has GPU cases.
pub(super) fn programs() -> Result<Vec<Program>> {
    let tests = ["test", "--no-run", "--package", PACKAGE, "--lib", "--tests", "--features", "gpu"];
    let mut programs = tests_of(programs::build(&tests)?);
    check_cases(&programs, "cuda::")?;
    // One command, because separate ones would build the dependencies with different features.
    let mut examples = vec!["build", "--release"];
    examples
        .extend(EXAMPLES.iter().flat_map(|(package, example)| ["--package", package, "--example", example]));
    let built = programs::build(&examples)?;
    for (_, example) in EXAMPLES {
        programs.push(example_of(built.clone(), example)?);
    }
    Ok(programs)
}

pub(super) fn suites() -> Result<Vec<Suite>> {
    let suites = programs()?.into_iter().map(|program| program.suites("cuda::"));
    let suites: Vec<Suite> = suites.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
    let simulator_only = simulator_only()?;
    Ok(suites.into_iter().filter(|suite| !simulator_only.contains(&suite.name)).collect())
}

/// The same programs as `cargo test --workspace` builds them: without feature `gpu` and unoptimised. Each GPU case has a twin on the
/// simulator, so a suite without cases is found without a second build.
pub(super) fn programs_on_simulator() -> Result<Vec<Program>> {
    let mut built = programs::build(&programs::TESTS)?;
    let examples: Vec<_> = built.extract_if(.., |built| built.kind == programs::Kind::Example).collect();
    let manifest = crate::workspace::root().join("tests/Cargo.toml");
    built.retain(|built| built.manifest == manifest);
    let mut programs = tests_of(built);
    check_cases(&programs, "sim::")?;
    for (_, example) in EXAMPLES {
        programs.push(example_of(examples.clone(), example)?);
    }
    Ok(programs)
}

fn tests_of(built: Vec<Built>) -> Vec<Program> {
    let tests = built.into_iter().filter(|built| built.kind == programs::Kind::Suite);
    let library = PACKAGE.replace('-', "_");
    let kind = |name: &str| if name == library { Kind::Library } else { Kind::Room };
    tests.map(|built| Program { kind: kind(&built.name), name: built.name, path: built.program }).collect()
}

/// Fails if a suite has no case whose name contains `part`, unless it is listed as simulator-only.
fn check_cases(programs: &[Program], part: &str) -> Result<()> {
    let simulator_only = simulator_only()?;
    let mut known = BTreeSet::new();
    for program in programs {
        let Program { name, kind, path } = program;
        let listed = Program { name: name.clone(), kind: *kind, path: path.clone() };
        for suite in listed.suites(part)? {
            let has_cases = suite.cases.is_some_and(|cases| !cases.is_empty());
            let is_listed = simulator_only.contains(&suite.name);
            ensure!(
                has_cases || is_listed,
                "{} has no case `{part}…`, and a suite without GPU cases fails; write its cases with `cases!`, or list it in tests/Cargo.toml as simulator-only",
                suite.name
            );
            ensure!(
                !has_cases || !is_listed || part != "cuda::",
                "{} has GPU cases, but tests/Cargo.toml lists it as simulator-only; remove it from the list",
                suite.name
            );
            known.insert(suite.name);
        }
    }
    match simulator_only.iter().find(|name| !known.contains(*name)) {
        None => Ok(()),
        Some(name) => anyhow::bail!(
            "tests/Cargo.toml lists {name} as simulator-only, but there is no such suite; remove it from the list"
        ),
    }
}

fn example_of(built: Vec<Built>, name: &str) -> Result<Program> {
    let example = built.into_iter().find(|built| built.kind == programs::Kind::Example && built.name == name);
    let example = example.with_context(|| format!("cargo built no example {name}"))?;
    Ok(Program { name: example.name, kind: Kind::Example, path: example.program })
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

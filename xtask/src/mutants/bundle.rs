//! A folder with everything that a machine without Rust needs to run the mutants: the plan, the test programs, the files that
//! tests read, the runner and a `run.sh` that starts it.

use super::plan::Plan;
use super::report::Equivalent;
use anyhow::{Context, Result, ensure};
use std::path::Path;

/// The files that tests read at run time, from the repository's root.
const READ_BY_TESTS: [&str; 5] = [
    "tests/traces",
    "tests/regressions",
    "tests/pool/snapshots",
    "crates/gpumem-pool/tests/pool/snapshots",
    "crates/gpumem-pool/src",
];

const RUN: &str = include_str!("run.sh");

/// Writes the bundle, and replaces an earlier one in the folder.
pub(super) fn write(plan: &Plan, list: &[Equivalent], from: &Path, folder: &Path) -> Result<()> {
    if folder.exists() {
        ensure!(
            folder.join("plan.json").exists(),
            "{} exists and is not a bundle; choose another folder",
            folder.display()
        );
        std::fs::remove_dir_all(folder)?;
    }
    std::fs::create_dir_all(folder.join("programs"))?;
    let mut suites = plan.suites.clone();
    suites.retain(|suite| plan.mutants.iter().any(|mutant| mutant.suites.contains(&suite.name)));
    for suite in &mut suites {
        let program = format!("programs/{}", suite.name.replace('/', "-"));
        // With symbols, which some tests need to recognise functions in a backtrace.
        std::fs::copy(from.join(&suite.program), folder.join(&program))?;
        std::fs::create_dir_all(folder.join(&suite.folder))?;
        suite.program = program;
    }
    for path in READ_BY_TESTS {
        copy(&from.join("tree").join(path), &folder.join("tree").join(path))?;
    }
    std::fs::write(folder.join("equivalent.json"), serde_json::to_string(list)?)?;
    let (seed, sources, mutants) = (plan.seed, plan.sources, plan.mutants.clone());
    let plan = Plan { seed, sources, mutants, suites };
    std::fs::write(folder.join("plan.json"), serde_json::to_string_pretty(&plan)?)?;
    for runner in crate::workspace::programs::build(&["build", "--package", "xtask", "--bin", "mutants"])? {
        std::fs::copy(&runner.program, folder.join(&runner.name))?;
    }
    std::fs::write(folder.join("run.sh"), RUN)?;
    make_executable(&folder.join("run.sh"))?;
    let results = from.join(format!("{seed}.jsonl"));
    println!(
        "wrote {}; start run.sh there, and bring results.jsonl back as {}",
        folder.display(),
        results.display()
    );
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy(&entry.path(), &target)?,
            false => drop(std::fs::copy(entry.path(), target)?),
        }
    }
    Ok(())
}

#[cfg(unix)]
fn make_executable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    Ok(std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?)
}

#[cfg(not(unix))]
fn make_executable(_path: &Path) -> Result<()> {
    anyhow::bail!("bundles are for Linux and are written on Linux")
}

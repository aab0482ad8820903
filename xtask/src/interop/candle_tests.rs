//! The CUDA tests of candle-core and candle-nn from their published packages, on the drop-in.
//!
//! candle's kernels have PTX. NVIDIA's cuBLAS, cuRAND and runtime library have none and do not start on the drop-in, so the tests are given
//! `interop/cuda-libraries` in their place. All pass; one that cannot would be listed in `interop/candle/Cargo.toml`, with the reason.

use super::candle::{LINKED, RUNTIME, environment, toolkit};
use super::process::{self, Needs};
use super::suite::{Expected, copy, parse, published};
use super::{CANDLE, Layout};
use crate::workspace::programs;
use crate::workspace::wheel::Unreachable;
use anyhow::{Context, Result, ensure};
use cargo_metadata::Package;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

const LIST: &str = "interop/candle/Cargo.toml";

pub(super) fn run(layout: &Layout, _name: &str, _seeds: u64) -> Result<String> {
    let (variables, needs) = match prepared(layout) {
        Err(error) if error.is::<Unreachable>() => return Ok(format!("skipped: {error:#}")),
        prepared => prepared?,
    };
    let manifest = layout.manifest(CANDLE);
    let [own, core, nn] = published(&manifest, ["interop-candle", "candle-core", "candle-nn"])?;
    let expected = Expected::read(&own, "cuda-tests", "")?;
    let mut results = BTreeMap::new();
    for package in [core, nn] {
        results.extend(tests(layout, &package, &variables, &needs, &expected)?);
    }
    expected.summary(&results, LIST)
}

pub(super) type Variables = Vec<(&'static str, OsString)>;

/// The variables for builds, and what the programs need when they run.
pub(super) fn prepared(layout: &Layout) -> Result<(Variables, Needs)> {
    let home = toolkit(layout, CANDLE)?;
    let variables = environment(layout, home.clone(), false)?;
    let manifest = layout.manifest(super::LIBRARIES);
    let library = library(layout, &manifest, &variables)?;
    let folder = layout.made.join(super::LIBRARIES);
    std::fs::create_dir_all(&folder)?;
    let loaded = LINKED.iter().filter(|(_, module, _)| !matches!(*module, "driver" | "nvrtc"));
    // One file under all names, which the loader loads once.
    for name in loaded.map(|(.., name)| *name).chain([RUNTIME]) {
        crate::drop_in::link(&library.display().to_string(), &folder.join(name))?;
    }
    crate::drop_in::link(&library.display().to_string(), &home.join("lib64").join(RUNTIME))?;
    Ok((variables, Needs { libraries: vec![folder], variables: Vec::new() }))
}

/// Builds the libraries that stand in for NVIDIA's.
fn library(layout: &Layout, manifest: &Path, variables: &Variables) -> Result<PathBuf> {
    let command = process::cargo(layout, manifest, &["build", "--release", "--locked"], variables);
    let mut found = None;
    programs::report(command, |artifact| found = artifact.filenames.into_iter().next().or(found.take()))?;
    Ok(found.context("cargo reported no library")?.into())
}

/// Builds and runs the tests of a package. Those of candle's backend for CPUs are not run.
fn tests(
    layout: &Layout,
    package: &Package,
    variables: &Variables,
    needs: &Needs,
    expected: &Expected,
) -> Result<BTreeMap<String, bool>> {
    let target = layout.made.join(format!("{}-{}", package.name, package.version));
    let is_new = !target.is_dir();
    let copied = copy(package, &target)?;
    if is_new {
        // The versions of the program, so that little is compiled twice.
        std::fs::copy(layout.manifest(CANDLE).with_extension("lock"), target.join("Cargo.lock"))?;
    }
    let mut args = BUILD.to_vec();
    // Others have tests for CPUs alone.
    let targets = package.targets.iter().filter(|target| target.is_test());
    let targets = targets.filter(|target| {
        std::fs::read_to_string(&target.src_path)
            .is_ok_and(|text| FILTERS.iter().any(|part| text.contains(part)))
    });
    targets.for_each(|target| args.extend(["--test", &target.name]));
    let mut built = Vec::new();
    programs::report(process::cargo(layout, &copied, &args, variables), |artifact| {
        if let Some(program) = artifact.executable.filter(|_| artifact.profile.test) {
            built.push((artifact.target.name, PathBuf::from(program)));
        }
    })?;
    let mut results = BTreeMap::new();
    for (target, program) in built {
        results.extend(run_target(layout, &program, &target, expected, needs)?);
    }
    Ok(results)
}

fn run_target(
    layout: &Layout,
    program: &Path,
    target: &str,
    expected: &Expected,
    needs: &Needs,
) -> Result<BTreeMap<String, bool>> {
    let prefix = format!("{target}::");
    let skips = expected.skips.iter().filter_map(|name| name.strip_prefix(&prefix));
    let skips: Vec<&str> = skips.flat_map(|name| ["--skip", name]).collect();
    let args = [&FILTERS[..], &["--test-threads=2"], &skips].concat();
    let (output, failure) = process::run(layout, program, needs, &args, 0)?;
    ensure!(
        output.contains("test result: "),
        "{output}\n{} before the last test",
        failure.unwrap_or_default()
    );
    let results: BTreeMap<String, bool> =
        parse(&output).into_iter().map(|(name, passed)| (format!("{prefix}{name}"), passed)).collect();
    println!("{target}: {} of {} pass", results.values().filter(|passed| **passed).count(), results.len());
    // Races of candle's, which fail no test.
    if let Some((_, found)) = output.split_once("gpumem's simulator has found") {
        println!("the simulator has found{found}");
    }
    let surprises = expected.surprises(&results);
    let said = |name: &String| expected.explain(name, &output.replace("---- ", &format!("---- {prefix}")));
    ensure!(
        surprises.is_empty(),
        "{}(the list is in {LIST}; repeat with\n    {} {})",
        surprises.iter().map(said).collect::<String>(),
        process::shown(layout, program, needs, 0),
        args.join(" ")
    );
    Ok(results)
}

/// candle-core is not optimised, which compiles faster: the time goes to its kernels.
#[rustfmt::skip]
const BUILD: &[&str] = &[
    "test", "--no-run", "--release", "--features=cuda", "--lib", "--config=profile.release.package.candle-core.opt-level=0",
];

/// What the names of candle's CUDA tests have in them.
const FILTERS: [&str; 2] = ["gpu", "cuda"];

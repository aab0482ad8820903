//! cudarc's own driver tests, from its published package, on the drop-in.
//!
//! `interop/cudarc/Cargo.toml` lists the tests that cannot pass, with the reason. Any other failing test is an error, and so is a
//! listed one that passes, so the list stays true. Tests that compare times of the host run, but either result is accepted.

use super::Layout;
use super::process::{self, Needs, build};
use crate::workspace::wheel::Unreachable;
use crate::workspace::{copy_folder, nvrtc};
use anyhow::{Context, Result, anyhow, ensure};
use cargo_metadata::{MetadataCommand, Package};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The tests that need no library of NVIDIA but NVRTC, which compiles their kernels without a GPU.
const FILTER: &str = "driver::";

#[rustfmt::skip]
const BUILD: &[&str] = &[
    "test", "--no-run", "--lib", "--no-default-features",
    "--features=std,driver,nvrtc,fallback-dynamic-loading,cuda-version-from-build-system,fallback-latest",
];

pub(super) fn run(layout: &Layout, _name: &str, _seeds: u64) -> Result<String> {
    let compiler = match nvrtc::folder() {
        Err(error) if error.is::<Unreachable>() => return Ok(format!("skipped: {error:#}")),
        compiler => compiler?,
    };
    let needs = Needs { libraries: vec![compiler], ..Needs::default() };
    let [own, package] = published(&layout.manifest("cudarc"), ["interop-cudarc", "cudarc"])?;
    let expected = Expected::read(&own, "driver-tests", FILTER)?;
    let target = layout.made.join(format!("{}-{}", package.name, package.version));
    let program = build(layout, &copy(&package, &target)?, BUILD, &[])?;
    let mut results = BTreeMap::new();
    // The second run has the tests that must run alone, or need two devices. All run one at a time: calls of one test break the
    // capture of another, as on a GPU.
    let skips: Vec<&str> = expected.skips.iter().flat_map(|name| ["--skip", name]).collect();
    for kind in [&[][..], &["--ignored"]] {
        let args = [&[FILTER, "--test-threads=1"], kind, &skips].concat();
        let (output, failure) = process::run(layout, &program, &needs, &args, 0)?;
        let found = parse(&output);
        ensure!(
            output.contains("test result: "),
            "{output}\n{} before the last test",
            failure.unwrap_or_default()
        );
        let surprises = expected.surprises(&found);
        ensure!(
            surprises.is_empty(),
            "{}(the list is in interop/cudarc/Cargo.toml; repeat with\n    {} {})",
            surprises.iter().map(|name| expected.explain(name, &output)).collect::<String>(),
            process::shown(layout, &program, &needs, 0),
            args.join(" ")
        );
        results.extend(found);
    }
    expected.summary(&results, "interop/cudarc/Cargo.toml")
}

/// These packages among those that a program is built of. Cargo downloads those that are missing.
pub(super) fn published<const N: usize>(manifest: &Path, names: [&str; N]) -> Result<[Package; N]> {
    let metadata = MetadataCommand::new().manifest_path(manifest).exec()?;
    let find = |name: &str| metadata.packages.iter().find(|package| package.name == name).cloned();
    let found: Vec<Package> = names.iter().filter_map(|name| find(name)).collect();
    found.try_into().map_err(|_| anyhow!("{} does not name {}", manifest.display(), names.join(" or ")))
}

/// A copy of a package that can be built by itself, because the registry's files must not change. Returns its manifest.
pub(super) fn copy(package: &Package, target: &Path) -> Result<PathBuf> {
    let source = package.manifest_path.parent().context("a manifest lies in a folder")?;
    if !target.is_dir() {
        // Renamed last, so that an interrupted copy is repeated. Cargo must not look for a workspace above it.
        let new = target.with_extension("new");
        copy_folder(source.as_std_path(), &new)?;
        let text = std::fs::read_to_string(&package.manifest_path)?;
        std::fs::write(new.join("Cargo.toml"), format!("{text}\n[workspace]\n"))?;
        std::fs::rename(&new, target)?;
    }
    Ok(target.join("Cargo.toml"))
}

/// The tests with another expected result than a pass.
#[derive(Default)]
pub(super) struct Expected {
    fails: BTreeSet<String>,
    varies: BTreeSet<String>,
    pub(super) skips: BTreeSet<String>,
}

impl Expected {
    /// Reads `[[package.metadata.KEY]]`: each entry has a `reason`, its `tests` (their names behind `prefix`), and `varies = true` if they
    /// may pass, `skip = true` if they are not run.
    pub(super) fn read(package: &Package, key: &str, prefix: &str) -> Result<Self> {
        let mut expected = Self::default();
        let groups = package.metadata.get(key).and_then(|groups| groups.as_array());
        for group in groups.into_iter().flatten() {
            ensure!(group.get("reason").is_some_and(|reason| reason.is_string()), "a group without a reason");
            let is = |key: &str| group.get(key).and_then(|value| value.as_bool()).unwrap_or_default();
            let tests = group.get("tests").and_then(|tests| tests.as_array()).into_iter().flatten();
            let tests = tests.filter_map(|test| test.as_str()).map(|test| format!("{prefix}{test}"));
            let list = if is("varies") {
                &mut expected.varies
            } else if is("skip") {
                &mut expected.skips
            } else {
                &mut expected.fails
            };
            list.extend(tests);
        }
        Ok(expected)
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.fails.iter().chain(&self.varies).map(String::as_str)
    }

    /// Refuses a list with names of no test; otherwise states how many pass.
    pub(super) fn summary(&self, results: &BTreeMap<String, bool>, list: &str) -> Result<String> {
        let unknown = self.names().filter(|name| !results.contains_key(*name)).collect::<Vec<_>>();
        ensure!(unknown.is_empty(), "{list} lists tests that do not exist: {}", unknown.join(", "));
        let passed = results.values().filter(|passed| **passed).count();
        let skipped = self.skips.len();
        let skips = if skipped == 0 { String::new() } else { format!("; {skipped} would take minutes") };
        Ok(format!("{passed} of {} pass, as listed{skips}", results.len() + skipped))
    }

    /// The tests with an unexpected result.
    pub(super) fn surprises(&self, results: &BTreeMap<String, bool>) -> Vec<String> {
        let results = results.iter().filter(|(name, _)| !self.varies.contains(*name));
        results
            .filter(|(name, passed)| **passed == self.fails.contains(*name))
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// The advice on an unexpected result, below the output of the test.
    pub(super) fn explain(&self, name: &str, output: &str) -> String {
        match self.fails.contains(name) {
            true => format!("{name} passes; take it off the list\n"),
            false => {
                let said = output
                    .split("---- ")
                    .find_map(|part| part.strip_prefix(&format!("{name} stdout ----\n")));
                let said = said.unwrap_or_default().trim_end();
                format!("{said}\n{name} fails; correct the simulator, or list it with the reason\n")
            }
        }
    }
}

/// Parses libtest's output: which tests passed. Ignored ones are omitted.
pub(super) fn parse(output: &str) -> BTreeMap<String, bool> {
    let mut results = BTreeMap::new();
    for line in output.lines() {
        let Some((name, result)) = line.strip_prefix("test ").and_then(|line| line.rsplit_once(" ... "))
        else {
            continue;
        };
        let name = name.trim_end_matches(" - should panic");
        match result {
            "ok" => results.insert(name.to_string(), true),
            "FAILED" => results.insert(name.to_string(), false),
            _ => None,
        };
    }
    results
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "running 4 tests\ntest a::b ... ok\ntest a::c - should panic ... ok\n\
        test a::d ... FAILED\ntest a::e ... ignored, slow\n\ntest result: FAILED. 2 passed\n";

    #[test]
    fn results_are_read_from_what_libtest_prints() {
        let expected = [("a::b", true), ("a::c", true), ("a::d", false)];
        assert_eq!(parse(OUTPUT), expected.map(|(name, passed)| (name.to_string(), passed)).into());
    }

    #[test]
    fn a_failure_that_is_not_listed_and_a_pass_that_is_are_surprises() {
        let set = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<BTreeSet<_>>();
        let surprises = |fails: &[&str], varies: &[&str]| {
            Expected { fails: set(fails), varies: set(varies), ..Expected::default() }
                .surprises(&parse(OUTPUT))
        };
        assert!(surprises(&["a::d"], &[]).is_empty());
        assert!(surprises(&[], &["a::d"]).is_empty());
        assert_eq!(surprises(&[], &[]), ["a::d"]);
        assert_eq!(surprises(&["a::b", "a::d"], &[]), ["a::b"]);
    }

    #[test]
    fn a_surprise_is_explained_with_what_the_test_printed() {
        let listed = Expected { fails: BTreeSet::from(["a::b".to_string()]), ..Expected::default() };
        assert!(listed.explain("a::b", OUTPUT).starts_with("a::b passes; take it off"));
        let output = "---- a::c stdout ----\nother\n\n---- a::d stdout ----\nwrong value\n\n";
        assert!(listed.explain("a::d", output).starts_with("wrong value\na::d fails; correct"));
    }
}

//! Compares the order of the layers with cargo's metadata.

use super::rooms::LAYERS;
use super::{Files, Finding};
use anyhow::Result;
use cargo_metadata::semver::VersionReq;
use cargo_metadata::{Dependency, DependencyKind, MetadataCommand, Package};
use std::path::Path;

/// The layer that may appear in dev-dependencies only, and the crates that may also have it as an optional dependency.
const FOR_TESTS: (&str, [&str; 2]) = ("gpumem-sim", ["gpumem-array", "gpumem"]);

/// Published crates beside the layers, each with the topmost layer that it may name. No layer names them.
const SATELLITES: [(&str, &str); 2] = [("gpumem-libcuda", "gpumem-sim"), ("gpumem-capi", "gpumem-pool")];

/// Crates for tools and for the examples of [`WITH_COMMAND_LINES`]; a library has no command line and no progress bars.
const NOT_FOR_LIBRARIES: [&str; 3] = ["anyhow", "clap", "indicatif"];

/// The lowest layer whose examples have command lines.
const WITH_COMMAND_LINES: &str = "gpumem-adapt";

/// Features that are in no package's default: a program that does not ask for the simulator compiles none of it.
const NEVER_DEFAULT: [&str; 1] = ["sim"];

/// Checks the manifests below `root`.
pub(crate) fn check(root: &Path) -> Result<Vec<Finding>> {
    let metadata = MetadataCommand::new().manifest_path(root.join("Cargo.toml")).no_deps().exec()?;
    let mut findings = Vec::new();
    for package in &metadata.packages {
        let path = package.manifest_path.strip_prefix(root).unwrap_or(&package.manifest_path);
        let manifest =
            Manifest { path: path.as_str(), text: &std::fs::read_to_string(&package.manifest_path)? };
        let dependencies = package.dependencies.iter();
        findings
            .extend(dependencies.flat_map(|dependency| arrow(package.name.as_str(), dependency, &manifest)));
        findings.extend(features(package, &manifest));
    }
    Ok(findings)
}

/// A manifest, with its lines, for the position of a finding.
struct Manifest<'a> {
    path: &'a str,
    text: &'a str,
}

impl Manifest<'_> {
    fn finding(&self, key: &str, what: String, advice: &'static str) -> Finding {
        let mut lines = self.text.lines();
        let line = lines
            .position(|line| line.strip_prefix(key).is_some_and(|rest| rest.starts_with(['.', ' ', '='])));
        Finding::new(self.path, line.map_or(1, |index| index + 1), what, advice)
    }
}

fn arrow(package: &str, dependency: &Dependency, manifest: &Manifest<'_>) -> Option<Finding> {
    let name = dependency.name.as_str();
    let place = |name: &str| LAYERS.iter().position(|layer| *layer == name);
    let satellite = SATELLITES.iter().find(|(satellite, _)| *satellite == package);
    // A satellite ranks right above the topmost layer that it may name.
    let own = satellite.map_or_else(|| place(package), |(_, topmost)| Some(place(topmost)? + 1))?;
    let finding = |what: String, advice| Some(manifest.finding(name, what, advice));
    // A package may enable its own features for its tests through a path dependency: with a version, it could not be published
    // before itself.
    let is_development = dependency.kind == DependencyKind::Development;
    if name == package && is_development && dependency.req == VersionReq::STAR {
        return None;
    }
    let is_optional = dependency.optional && FOR_TESTS.1.contains(&package);
    if name == FOR_TESTS.0 && satellite.is_none() && !is_development && !is_optional {
        return finding(
            format!("{package} names {name} outside of its dev-dependencies"),
            "take a `Driver` from the caller; tests and examples start the simulator",
        );
    }
    if let Some(other) = place(name) {
        return match other < own {
            false => finding(
                format!("{package} names {name}, which is not below it"),
                "take what you need as an argument or a callback; tests across layers live in tests/",
            ),
            true if dependency.uses_default_features => finding(
                format!("{package} takes {name} with its default features"),
                "use the workspace's entry, which turns them off, and forward features by name",
            ),
            true => None,
        };
    }
    if dependency.path.is_some() {
        return finding(
            format!("{package} names {name}, which is not a layer"),
            "move what you need into a layer",
        );
    }
    if NOT_FOR_LIBRARIES.contains(&name) && (!is_development || Some(own) < place(WITH_COMMAND_LINES)) {
        return finding(format!("{package} depends on {name}"), "libraries leave that to examples and tools");
    }
    None
}

/// Checks that a package does not turn on by default what programs must ask for.
fn features(package: &Package, manifest: &Manifest<'_>) -> Vec<Finding> {
    let default = package.features.get("default").map(Vec::as_slice).unwrap_or_default();
    let loud = default.iter().filter(|feature| NEVER_DEFAULT.contains(&feature.as_str()));
    loud.map(|feature| {
        let what = format!("{} turns {feature} on by default", package.name);
        manifest.finding("default", what, "leave it to the user")
    })
    .collect()
}

/// Checks that the layers deny `unsafe_code`, so that each module that needs it says so; the raw driver is unsafe throughout. Clippy checks that each `unsafe` has a reason.
pub(super) fn deny_unsafe(files: &Files) -> Vec<Finding> {
    let advice = "add `#![deny(unsafe_code)]`, and `#[allow(unsafe_code)]` to the modules that need it";
    let above = LAYERS.iter().filter(|layer| *layer != "gpumem-sys");
    let above = above.map(|layer| format!("crates/{layer}/src/lib.rs"));
    let lacking = above.filter(|path| {
        let text = files.get(path).map(String::as_str).unwrap_or("#![deny(unsafe_code)]");
        !text.contains("#![deny(unsafe_code)]") && !text.contains("#![forbid(unsafe_code)]")
    });
    lacking.map(|path| Finding::new(&path, 1, "`unsafe` is allowed anywhere in this crate", advice)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dependency(name: &str, kind: &str, default_features: bool, path: Option<&str>) -> Dependency {
        let json = serde_json::json!({
            "name": name, "req": "*", "kind": kind, "optional": false, "features": [], "target": null,
            "uses_default_features": default_features, "path": path, "rename": null, "registry": null,
        });
        serde_json::from_value(json).unwrap()
    }

    fn said(package: &str, dependency: &Dependency) -> Option<String> {
        let text = format!("[dependencies]\n{}.workspace = true\n", dependency.name);
        let finding = arrow(package, dependency, &Manifest { path: "crates/a/Cargo.toml", text: &text })?;
        let text = finding.to_string();
        assert!(text.starts_with("crates/a/Cargo.toml:2: "), "{text}");
        Some(text)
    }

    #[test]
    fn arrows_point_down_only() {
        let below = dependency("gpumem-sys", "normal", false, Some("/x/sys"));
        assert_eq!(said("gpumem-pool", &below), None);
        for kind in ["normal", "dev", "build"] {
            let above = dependency("gpumem-array", kind, false, Some("/x/array"));
            assert!(said("gpumem-pool", &above).unwrap().contains("not below it"));
        }
        let tests = dependency("gpumem-tests", "dev", false, Some("/x/tests"));
        assert!(said("gpumem-pool", &tests).unwrap().contains("not a layer"));
    }

    #[test]
    fn the_simulator_is_for_tests() {
        let simulator = |kind| dependency("gpumem-sim", kind, false, Some("/x/sim"));
        assert_eq!(said("gpumem-pool", &simulator("dev")), None);
        assert!(said("gpumem-pool", &simulator("normal")).unwrap().contains("dev-dependencies"));
        assert!(said("gpumem-sys", &simulator("dev")).unwrap().contains("not below it"));
        assert!(said("gpumem-array", &simulator("normal")).unwrap().contains("dev-dependencies"));
        let mut optional = simulator("normal");
        optional.optional = true;
        assert_eq!(said("gpumem-array", &optional), None);
        assert!(said("gpumem-pool", &optional).unwrap().contains("dev-dependencies"));
        assert_eq!(said("gpumem-libcuda", &simulator("normal")), None);
    }

    #[test]
    fn a_package_turns_its_own_features_on_by_path_alone() {
        let mut own = dependency("gpumem-array", "dev", false, Some("/x/array"));
        assert_eq!(said("gpumem-array", &own), None);
        own.req = VersionReq::parse("0.1.0").unwrap();
        assert!(said("gpumem-array", &own).unwrap().contains("not below it"));
    }

    #[test]
    fn satellites_name_layers_and_no_layer_names_them() {
        assert_eq!(said("gpumem-libcuda", &dependency("gpumem-sys", "normal", false, Some("/x/sys"))), None);
        let pool = dependency("gpumem-pool", "normal", false, Some("/x/pool"));
        assert!(said("gpumem-libcuda", &pool).unwrap().contains("not below it"));
        let satellite = dependency("gpumem-libcuda", "dev", true, Some("/x/libcuda"));
        assert!(said("gpumem-adapt", &satellite).unwrap().contains("not a layer"));
    }

    #[test]
    fn layers_below_come_without_their_defaults() {
        let loud = dependency("gpumem-sys", "normal", true, Some("/x/sys"));
        assert!(said("gpumem-pool", &loud).unwrap().contains("default features"));
    }

    #[test]
    fn command_lines_are_for_the_topmost_example() {
        assert_eq!(said("gpumem-adapt", &dependency("clap", "dev", true, None)), None);
        assert!(said("gpumem-adapt", &dependency("clap", "normal", true, None)).is_some());
        assert!(said("gpumem-pool", &dependency("indicatif", "dev", true, None)).is_some());
        assert_eq!(said("xtask", &dependency("clap", "normal", true, None)), None);
    }

    #[test]
    fn a_layer_must_deny_unsafe_code() {
        let files = Files::from([
            ("crates/gpumem-sys/src/lib.rs".into(), String::new()),
            ("crates/gpumem-pool/src/lib.rs".into(), "//! A pool.\n#![deny(unsafe_code)]\n".into()),
            ("crates/gpumem-array/src/lib.rs".into(), "//! Arrays.\n".into()),
        ]);
        let paths: Vec<_> = deny_unsafe(&files).into_iter().map(|finding| finding.path).collect();
        assert_eq!(paths, ["crates/gpumem-array/src/lib.rs"]);
    }
}

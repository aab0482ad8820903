//! Type names: each stands for one type.
//!
//! A type is a struct, an enum, a union, a trait or a type alias. Associated types and types inside of functions do not count.

use super::Finding;
use super::imports::Package;
use std::collections::BTreeMap;

const PACKAGES: [&str; 7] = [
    "gpumem-base",
    "gpumem-heap",
    "gpumem-device",
    "gpumem-pool",
    "gpumem-array",
    "gpumem-adapt",
    "gpumem-capi",
];

/// The beginning of the names of files that stand in for a module whose feature is off. Their types are variants of its types.
const STAND_IN: &str = "without_";

/// A finding for each definition of a name with definitions in several files, without macros' and tests'.
pub(super) fn check(packages: &[Package<'_>]) -> Vec<Finding> {
    let mut names: BTreeMap<&str, Vec<(&str, usize)>> = BTreeMap::new();
    for package in packages.iter().filter(|package| PACKAGES.contains(&package.name)) {
        let is_stand_in = |path: &str| path.rsplit('/').next().is_some_and(|file| file.starts_with(STAND_IN));
        for module in package.modules.iter().filter(|module| !is_stand_in(module.path)) {
            for found in &module.scan.types {
                let of_name = names.entry(&found.name).or_default();
                // Variants of one type for several configurations are in one file.
                if of_name.iter().all(|(path, _)| *path != module.path) {
                    of_name.push((module.path, found.line));
                }
            }
        }
    }
    let shared = names.iter().filter(|(_, definitions)| definitions.len() > 1);
    let findings = shared.flat_map(|(name, definitions)| {
        definitions.iter().map(move |(path, line)| {
            let what = format!("`{name}` is the name of {} types", definitions.len());
            Finding::new(path, *line, what, "give each type a name of its own, or join the types")
        })
    });
    findings.collect()
}

#[cfg(test)]
mod tests {
    use super::super::Files;
    use super::super::imports::packages;
    use super::*;

    fn findings(sources: &[(&str, &str)]) -> Vec<String> {
        let manifests = ["heap", "pool"].map(|name| {
            (format!("crates/gpumem-{name}/Cargo.toml"), format!("[package]\nname = \"gpumem-{name}\"\n"))
        });
        let sources =
            sources.iter().map(|(path, text)| (format!("crates/gpumem-{path}"), (*text).to_string()));
        let files: Files = manifests.into_iter().chain(sources).collect();
        check(&packages(&files)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn two_types_of_one_name_are_found_with_file_and_line() {
        let found = findings(&[
            ("heap/src/a.rs", "struct Found;\nstruct One;\n"),
            ("pool/src/b.rs", "\nmod inner {\n    enum Found {}\n}\n"),
        ]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[1].starts_with("crates/gpumem-pool/src/b.rs:3: `Found` is the name of 2 types"),
            "{found:?}"
        );
    }

    #[test]
    fn every_kind_of_type_is_found() {
        for text in [
            "pub struct Found;",
            "union Found {}",
            "pub(super) trait Found {}",
            "pub unsafe trait Found {}",
            "pub(in crate::a) type Found = u8;",
        ] {
            let found = findings(&[("heap/src/a.rs", text), ("pool/src/b.rs", "enum Found {}")]);
            assert_eq!(found.len(), 2, "{text}: {found:?}");
        }
    }

    #[test]
    fn what_is_no_second_type_is_not_found() {
        for (path, text) in [
            ("pool/src/b.rs", "#[cfg(test)]\nmod tests {\n    struct Found;\n}\n"),
            ("pool/src/b.rs", "impl Iterator for A {\n    type Found = u8;\n}\n"),
            ("pool/src/b.rs", "fn f() {\n    struct Found;\n}\n"),
            ("pool/src/b.rs", "#[cfg(a)]\nstruct Other;\n#[cfg(not(a))]\nstruct Other;\n"),
            ("pool/src/b.rs", "use other::Found;\n"),
            ("pool/src/b/without_a.rs", "enum Found {}\n"),
        ] {
            assert_eq!(findings(&[("heap/src/a.rs", "struct Found;"), (path, text)]), [""; 0], "{text}");
        }
    }
}

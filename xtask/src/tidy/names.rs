//! Type names that stand for two types: few, and each of these types is private to its file.
//!
//! A type is a struct, an enum, a union, a trait or a type alias. Associated types and types inside of functions do not count.

use super::Finding;
use super::cycles::Tree;
use super::imports::Package;
use std::collections::{BTreeMap, BTreeSet};

/// The packages whose names are compared.
const PACKAGES: [&str; 6] =
    ["gpumem-heap", "gpumem-device", "gpumem-pool", "gpumem-array", "gpumem-adapt", "gpumem-capi"];

/// The largest number of names with several types. It only goes down.
const NAMES_MAX: usize = 37;

/// The largest number of such names with a type that another file sees. It only goes down.
const SEEN_MAX: usize = 35;

const ADVICE: &str = "give each type a name of its own, or join the types";

/// A definition of a type.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Definition {
    path: String,
    line: usize,
    /// True if other files may name the type, or do.
    is_seen: bool,
}

pub(super) fn check(packages: &[Package<'_>]) -> Vec<Finding> {
    findings(&shared(packages), NAMES_MAX, SEEN_MAX)
}

/// Names with definitions in several files, without macros' and tests'.
fn shared(packages: &[Package<'_>]) -> BTreeMap<String, Vec<Definition>> {
    let mut names: BTreeMap<String, Vec<Definition>> = BTreeMap::new();
    for package in packages.iter().filter(|package| PACKAGES.contains(&package.name)) {
        let modules = &package.modules;
        let tree = Tree::new(modules);
        let mut seen: BTreeSet<(usize, String)> = BTreeSet::new();
        for (index, module) in modules.iter().enumerate() {
            let homes = tree.imports(module).into_iter().filter_map(|(_, path)| tree.home(&path));
            let others = homes.filter(|(home, _)| *home != index);
            seen.extend(others.filter_map(|(home, rest)| Some((home, rest.last()?.clone()))));
        }
        for (index, module) in modules.iter().enumerate() {
            for found in &module.scan.types {
                let of_name = names.entry(found.name.clone()).or_default();
                // Variants of one type for several configurations are in one file.
                if of_name.iter().all(|other| other.path != module.path) {
                    let is_seen = found.is_exported || seen.contains(&(index, found.name.clone()));
                    of_name.push(Definition { path: module.path.to_string(), line: found.line, is_seen });
                }
            }
        }
    }
    names.retain(|_, definitions| definitions.len() > 1);
    names
}

/// If there are too many names, a finding for each definition.
fn findings(shared: &BTreeMap<String, Vec<Definition>>, names_max: usize, seen_max: usize) -> Vec<Finding> {
    let is_seen = |definitions: &&Vec<Definition>| definitions.iter().any(|one| one.is_seen);
    let seen_count = shared.values().filter(is_seen).count();
    let mut findings = Vec::new();
    for (name, definitions) in shared {
        for Definition { path, line, is_seen } in definitions {
            if shared.len() > names_max {
                let what = format!(
                    "`{name}` is one of {} names with several types, more than {names_max}",
                    shared.len()
                );
                findings.push(Finding::new(path, *line, what, ADVICE));
            } else if seen_count > seen_max && *is_seen {
                let what = format!(
                    "`{name}` is seen outside of this file, and is the name of another type: one of {seen_count} names, \
                     more than {seen_max}"
                );
                findings.push(Finding::new(path, *line, what, ADVICE));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::Files;
    use super::super::imports::packages;
    use super::*;

    fn names(sources: &[(&str, &str)]) -> BTreeMap<String, Vec<Definition>> {
        let manifests = ["heap", "pool"].map(|name| {
            (format!("crates/gpumem-{name}/Cargo.toml"), format!("[package]\nname = \"gpumem-{name}\"\n"))
        });
        let sources =
            sources.iter().map(|(path, text)| (format!("crates/gpumem-{path}"), (*text).to_string()));
        let files: Files = manifests.into_iter().chain(sources).collect();
        shared(&packages(&files))
    }

    #[test]
    fn two_types_of_one_name_are_found_with_file_and_line() {
        let shared = names(&[
            ("heap/src/a.rs", "struct Found;\nstruct One;\n"),
            ("pool/src/b.rs", "\nmod inner {\n    enum Found {}\n}\n"),
        ]);
        let found = findings(&shared, 0, 0).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[1].starts_with("crates/gpumem-pool/src/b.rs:3: `Found` is one of 1 names"),
            "{found:?}"
        );
        assert_eq!(findings(&shared, 1, 0), []);
    }

    #[test]
    fn a_shared_name_is_private_to_its_file() {
        for (text, other) in [
            ("pub struct Found;", ""),
            ("pub(super) trait Found {}", ""),
            ("pub unsafe trait Found {}", ""),
            ("pub(in crate::a) type Found = u8;", ""),
            ("struct Found;", "use super::Found;"),
            ("struct Found;", "fn f(found: super::Found) {}"),
        ] {
            let shared = names(&[
                ("heap/src/a.rs", text),
                ("heap/src/a/b.rs", other),
                ("pool/src/b.rs", "enum Found {}"),
            ]);
            let found = findings(&shared, 1, 0).iter().map(ToString::to_string).collect::<Vec<_>>();
            assert_eq!(found.len(), 1, "{text}: {found:?}");
            assert!(
                found[0].starts_with("crates/gpumem-heap/src/a.rs:1: `Found` is seen outside"),
                "{found:?}"
            );
            assert_eq!(findings(&shared, 1, 1), []);
        }
    }

    #[test]
    fn what_is_no_second_type_is_not_found() {
        for text in [
            "#[cfg(test)]\nmod tests {\n    struct Found;\n}\n",
            "impl Iterator for A {\n    type Found = u8;\n}\n",
            "fn f() {\n    struct Found;\n}\n",
            "#[cfg(a)]\nstruct Other;\n#[cfg(not(a))]\nstruct Other;\n",
            "use other::Found;\n",
        ] {
            assert!(
                names(&[("heap/src/a.rs", "struct Found;"), ("pool/src/b.rs", text)]).is_empty(),
                "{text}"
            );
        }
    }
}

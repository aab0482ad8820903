//! Checks that the table of public traits in docs/develop/rooms.md is complete: each is there with the reason why safe implementations
//! cannot break memory safety.

use super::imports::Package;
use super::rooms::LIST;
use super::{Files, Finding};
use std::collections::BTreeSet;

/// The first cells of the table's head.
const HEAD: &str = "| implementations | traits |";
const UNLISTED: &str =
    "add it to the table of public traits in docs/develop/rooms.md, in the row that keeps it sound";

pub(super) fn check(files: &Files, packages: &[Package<'_>]) -> Vec<Finding> {
    let Some(text) = files.get(LIST) else { return Vec::new() };
    let listed = listed(text);
    let mut findings = Vec::new();
    let mut known = BTreeSet::new();
    let modules = packages.iter().flat_map(|package| &package.modules);
    for module in modules.filter(|module| module.path.starts_with("crates/")) {
        for found in module.scan.types.iter().filter(|found| found.is_public_trait) {
            if !listed.iter().any(|(_, other)| *other == found.name) {
                let what = format!("the public trait {} is not listed", found.name);
                findings.push(Finding::new(module.path, found.line, what, UNLISTED));
            }
            known.insert(found.name.clone());
        }
    }
    let gone = listed.into_iter().filter(|(_, name)| !known.contains(name));
    findings.extend(gone.map(|(line, name)| {
        Finding::new(LIST, line, format!("no public trait is called {name}"), "remove it")
    }));
    findings
}

/// The traits in the table, each with its line.
fn listed(text: &str) -> Vec<(usize, String)> {
    let lines = text.lines().enumerate().skip_while(|(_, line)| !line.starts_with(HEAD));
    let rows = lines.skip(2).take_while(|(_, line)| line.starts_with('|'));
    rows.flat_map(|(index, row)| {
        let cell = row.split('|').nth(2).unwrap_or_default();
        cell.split('`').skip(1).step_by(2).map(move |name| (index + 1, name.to_string())).collect::<Vec<_>>()
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::super::imports::packages;
    use super::*;

    fn found(table: &str, source: &str) -> Vec<String> {
        let list = format!("# A\n\n| implementations | traits |\n| --- | --- |\n{table}\n");
        let manifest = ("crates/a/Cargo.toml".into(), "[package]\nname = \"a\"\n".into());
        let files = Files::from([manifest, (LIST.into(), list), ("crates/a/src/b.rs".into(), source.into())]);
        check(&files, &packages(&files)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_public_trait_must_be_listed() {
        let source = "pub trait Known<T>: Sized {}\npub unsafe trait Other {}\npub(crate) trait Own {}\n";
        assert_eq!(found("| sealed | `Known` |\n| unsafe | `Other` |", source), Vec::<String>::new());
        let findings = found("| sealed | `Known` |", source);
        assert_eq!(findings.len(), 1);
        assert!(
            findings[0].starts_with("crates/a/src/b.rs:2: the public trait Other is not listed; add it"),
            "{findings:?}"
        );
    }

    #[test]
    fn a_listed_trait_must_exist() {
        let findings = found("| sealed | `Known`, `Gone` |", "pub trait Known {}\n");
        assert_eq!(findings.len(), 1);
        assert!(
            findings[0].starts_with("docs/develop/rooms.md:5: no public trait is called Gone"),
            "{findings:?}"
        );
    }

    #[test]
    fn traits_that_seal_others_need_no_entry() {
        assert_eq!(
            found(
                "",
                "pub(crate) mod sealed {\n    pub trait Sealed {}\n\n    pub trait Normal {\n    }\n}\n"
            ),
            Vec::<String>::new()
        );
    }

    #[test]
    fn text_is_no_trait() {
        assert_eq!(
            found("", "/// pub trait A {}\nconst B: &str = \"\npub trait C {}\";\n"),
            Vec::<String>::new()
        );
    }
}

//! Checks that the table of public traits in docs/develop/rooms.md is complete: each is there with the reason why safe implementations
//! cannot break memory safety.

use super::rooms::LIST;
use super::source::Source;
use super::{Files, Finding};
use std::collections::BTreeSet;

/// The first cells of the table's head.
const HEAD: &str = "| implementations | traits |";
const UNLISTED: &str =
    "add it to the table of public traits in docs/develop/rooms.md, in the row that keeps it sound";

pub(super) fn check(files: &Files) -> Vec<Finding> {
    let Some(text) = files.get(LIST) else { return Vec::new() };
    let listed = listed(text);
    let mut findings = Vec::new();
    let mut known = BTreeSet::new();
    for (path, text) in files.iter().filter(|(path, _)| is_library(path)) {
        for (line, name) in public_traits(&Source::parse(text)) {
            if !listed.iter().any(|(_, other)| *other == name) {
                findings.push(Finding::new(
                    path,
                    line,
                    format!("the public trait {name} is not listed"),
                    UNLISTED,
                ));
            }
            known.insert(name);
        }
    }
    let gone = listed.into_iter().filter(|(_, name)| !known.contains(name));
    findings.extend(gone.map(|(line, name)| {
        Finding::new(LIST, line, format!("no public trait is called {name}"), "remove it")
    }));
    findings
}

fn is_library(path: &str) -> bool {
    path.ends_with(".rs")
        && path.strip_prefix("crates/").is_some_and(|rest| rest.split('/').nth(1) == Some("src"))
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

/// The traits that are declared `pub`, each with its line, except those of private modules in a file: these seal others.
fn public_traits(source: &Source) -> Vec<(usize, String)> {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let codes: Vec<_> = source.lines.iter().map(|line| line.code.as_str()).collect();
    let mut found = Vec::new();
    for (index, code) in codes.iter().enumerate() {
        let item = code.trim_start();
        let item = item.strip_prefix("pub unsafe trait ").or_else(|| item.strip_prefix("pub trait "));
        let Some(item) = item else { continue };
        let above = codes[..index]
            .iter()
            .rev()
            .find(|above| !above.trim().is_empty() && indent(above) < indent(code));
        let is_hidden = above.is_some_and(|above| {
            let above = above.trim_start();
            above.contains("mod ") && !above.starts_with("pub mod ")
        });
        if !is_hidden {
            let end = item.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(item.len());
            found.push((index + 1, item[..end].to_string()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(table: &str, source: &str) -> Vec<String> {
        let list = format!("# A\n\n| implementations | traits |\n| --- | --- |\n{table}\n");
        let files = Files::from([(LIST.into(), list), ("crates/a/src/b.rs".into(), source.into())]);
        check(&files).iter().map(ToString::to_string).collect()
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
        assert_eq!(found("", "pub mod open {\n    pub trait Reached {}\n}\n").len(), 1);
        assert_eq!(
            found("", "macro_rules! m {\n    () => {\n        pub trait Made {}\n    };\n}\n").len(),
            1
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

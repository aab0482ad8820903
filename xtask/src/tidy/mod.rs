//! `cargo xtask tidy`: checks that a reviewer should not have to do.
//!
//! Every check is a function from a path and a text to findings; this file calls them with the repository's files, tracked or
//! new. A finding names a line, the problem, and the correction.

mod cycles;
mod docs;
mod imports;
mod layers;
mod names;
mod rooms;
mod traits;

use crate::workspace::{Files, files, root};
use anyhow::{Result, bail};
pub(crate) use rooms::LAYERS;
use std::fmt;

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    path: String,
    line: usize,
    what: String,
    advice: &'static str,
}

impl Finding {
    /// Creates a finding. Lines count from 1.
    pub(crate) fn new(path: &str, line: usize, what: impl Into<String>, advice: &'static str) -> Self {
        Self { path: path.to_string(), line, what: what.into(), advice }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}; {}", self.path, self.line, self.what, self.advice)
    }
}

pub(crate) fn run() -> Result<()> {
    let files = files(&root())?;
    let mut findings = layers::check(&root())?;
    findings.extend(check(&files));
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => println!("{} files are tidy", files.len()),
        count => bail!("tidy has {count} findings"),
    }
    Ok(())
}

fn check(files: &Files) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in files {
        findings.extend(machine_paths(path, text));
        if path.ends_with(".rs") && !is_generated(text) {
            findings.extend(header(path, text));
        } else if path.ends_with(".md") {
            findings.extend(docs::links(path, text, |target| exists(files, target)));
            findings.extend(docs::named_tests(path, text, files));
        } else if path.ends_with(".txt") && is_below(path, "tests/regressions") {
            findings.extend(docs::links(path, text, |target| exists(files, target)));
        }
    }
    findings.extend(docs::book(files));
    findings.extend(docs::cells(files));
    let packages = imports::packages(files);
    findings.extend(rooms::check(files, &packages));
    findings.extend(cycles::check(&packages));
    findings.extend(names::check(&packages));
    findings.extend(traits::check(files, &packages));
    findings.extend(layers::deny_unsafe(files));
    findings
}

/// Finds absolute paths that exist on one machine only.
fn machine_paths(path: &str, text: &str) -> Vec<Finding> {
    let begins_path = |before: &str| !before.ends_with(|c: char| c.is_alphanumeric() || "-_.~/}".contains(c));
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for folder in MACHINE_FOLDERS {
            if line.match_indices(folder).any(|(at, _)| begins_path(&line[..at])) {
                let what = format!("{folder} is a folder of one machine");
                findings.push(Finding::new(path, index + 1, what, "use a path from the repository's root"));
            }
        }
    }
    findings
}

/// Split, so that this file is not a finding itself.
const MACHINE_FOLDERS: [&str; 3] = [concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/Us", "ers/")];

fn is_generated(text: &str) -> bool {
    text.starts_with("// Made by ")
}

fn header(path: &str, text: &str) -> Option<Finding> {
    let advice = "open the file with what it is about: the noun, who owns it, what the file does not do";
    (!text.starts_with("//!")).then(|| Finding::new(path, 1, "no `//!` header", advice))
}

/// Returns whether a path from the root is a file, or a folder with files.
fn exists(files: &Files, path: &str) -> bool {
    let path = path.trim_end_matches('/');
    path.is_empty() || files.contains_key(path) || files.keys().any(|file| is_below(file, path))
}

fn is_below(file: &str, folder: &str) -> bool {
    file.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_header_is_found() {
        assert_eq!(header("a.rs", "//! What it is.\n"), None);
        let finding = header("a.rs", "use std::fmt;\n//! Too late.\n").unwrap();
        assert!(finding.to_string().starts_with("a.rs:1: no `//!` header; open"), "{finding}");
    }

    #[test]
    fn generated_sources_are_left_alone() {
        let files = Files::from([("a.rs".into(), "// Made by `cargo xtask x`\nfn f() {}".into())]);
        assert_eq!(check(&files), []);
    }

    #[test]
    fn folders_of_one_machine_are_found() {
        let [home, ..] = MACHINE_FOLDERS;
        assert_eq!(machine_paths("a", &format!("see {home}me/x\n")).len(), 1);
        assert_eq!(machine_paths("a", &format!("see docs{home}x and https://a.org{home}\n")), []);
    }

    #[test]
    fn folders_exist_through_their_files() {
        let files = Files::from([("docs/testing.md".into(), String::new())]);
        assert!(exists(&files, "docs/testing.md") && exists(&files, "docs/") && exists(&files, "docs"));
        assert!(!exists(&files, "doc") && !exists(&files, "docs/testing"));
    }

    #[test]
    fn each_kind_of_file_gets_its_checks() {
        let files = Files::from([
            ("a.rs".into(), "fn f() {}\n".into()),
            ("b.md".into(), "[gone](gone.md)\n".into()),
            ("c.sh".into(), format!("ls {}me/x\n", MACHINE_FOLDERS[0])),
            ("tests/regressions/d.txt".into(), "# Tried again by `tests/gone.rs`.\n".into()),
        ]);
        let found = check(&files).iter().map(|finding| finding.path.clone()).collect::<Vec<_>>();
        assert_eq!(found, ["a.rs", "b.md", "c.sh", "tests/regressions/d.txt"]);
    }
}

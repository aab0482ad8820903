//! A program that `gpu-test` runs, and its place in a bundle.

use anyhow::{Result, bail, ensure};
use std::path::PathBuf;

/// One program.
pub(crate) struct Suite {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) program: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A libtest program, whose cases under `cuda::` count.
    Tests,
    /// A program that checks its own result and reports it by its exit code.
    Example,
}

/// The folders of a bundle, by kind of program.
pub(crate) const FOLDERS: [(&str, Kind); 2] = [("tests", Kind::Tests), ("examples", Kind::Example)];

/// Selects suites by name; all of them if no name is given.
pub(crate) fn select(mut suites: Vec<Suite>, names: &[String]) -> Result<Vec<Suite>> {
    let known: Vec<String> = suites.iter().map(|suite| suite.name.clone()).collect();
    if let Some(name) = names.iter().find(|name| !known.contains(name)) {
        bail!("no suite is called {name}; there are: {}", known.join(", "));
    }
    suites.retain(|suite| names.is_empty() || names.contains(&suite.name));
    ensure!(!suites.is_empty(), "there is no suite to run");
    Ok(suites)
}

/// A program for tests. Another process writes the file: a child that another thread starts meanwhile would inherit an open file
/// descriptor, and a file that is open for writing cannot be executed.
#[cfg(all(test, unix))]
pub(super) fn write_script(program: &std::path::Path, text: &str) {
    let write = r#"printf '#!/bin/sh\n%s\n' "$1" >"$0" && chmod 755 "$0""#;
    let written = std::process::Command::new("sh").args(["-c", write]).arg(program).arg(text).status();
    assert!(written.unwrap().success());
}

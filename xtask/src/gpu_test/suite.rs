//! The programs that `gpu-test` runs, their suites, and their places in a bundle.

use anyhow::{Context, Result, bail, ensure};
use std::path::PathBuf;
use std::process::Command;

pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) path: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A libtest program whose modules are suites. Its cases under `cuda::` count.
    Room,
    /// A libtest program that is one suite.
    Library,
    /// A program that checks its own result and reports it by its exit code.
    Example,
}

/// The folders of a bundle, by kind of program.
pub(crate) const FOLDERS: [(&str, Kind); 3] =
    [("tests", Kind::Room), ("lib", Kind::Library), ("examples", Kind::Example)];

/// The cases of a program that run in one process.
pub(crate) struct Suite {
    /// `ROOM/MODULE` for a module of a room, otherwise the program's name.
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    /// The names of the cases; `None` for an example.
    pub(crate) cases: Option<Vec<String>>,
}

impl Program {
    /// The suites of the program. A case counts if its name contains `part`.
    pub(crate) fn suites(self, part: &str) -> Result<Vec<Suite>> {
        if self.kind == Kind::Example {
            return Ok(vec![Suite { name: self.name, program: self.path, cases: None }]);
        }
        let output = Command::new(&self.path).args(["--list", "--format", "terse"]).output();
        let output = output.with_context(|| self.path.display().to_string())?;
        ensure!(output.status.success(), "{} cannot list its tests", self.name);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut suites: Vec<Suite> = Vec::new();
        for case in text.lines().filter_map(|line| line.strip_suffix(": test")) {
            let name = match self.kind {
                Kind::Room => format!("{}/{}", self.name, case.split("::").next().unwrap_or_default()),
                _ => self.name.clone(),
            };
            if suites.last().is_none_or(|last| last.name != name) {
                suites.push(Suite { name, program: self.path.clone(), cases: Some(Vec::new()) });
            }
            if let Some(cases) = suites.last_mut().and_then(|suite| suite.cases.as_mut())
                && case.contains(part)
            {
                cases.push(case.to_string());
            }
        }
        Ok(suites)
    }
}

/// Selects suites by name, or by the name of their room; all of them if no name is given.
pub(crate) fn select(mut suites: Vec<Suite>, names: &[String]) -> Result<Vec<Suite>> {
    let is_named = |suite: &Suite, name: &str| {
        suite.name == name
            || suite.name.split_once('/').is_some_and(|(room, module)| room == name || module == name)
    };
    if let Some(name) = names.iter().find(|name| !suites.iter().any(|suite| is_named(suite, name))) {
        let known: Vec<&str> = suites.iter().map(|suite| suite.name.as_str()).collect();
        bail!("no suite is called {name}; there are: {}", known.join(", "));
    }
    suites.retain(|suite| names.is_empty() || names.iter().any(|name| is_named(suite, name)));
    ensure!(!suites.is_empty(), "there is no suite to run");
    Ok(suites)
}

/// A program for tests. Another process writes the file: a child that another thread starts meanwhile would inherit an open file
/// descriptor, and a file that is open for writing cannot be executed.
#[cfg(all(test, unix))]
pub(super) fn write_script(program: &std::path::Path, text: &str) {
    let write = r#"printf '#!/bin/sh\n%s\n' "$1" >"$0" && chmod 755 "$0""#;
    let written = Command::new("sh").args(["-c", write]).arg(program).arg(text).status();
    assert!(written.unwrap().success());
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn each_module_of_a_room_is_a_suite() {
        let path = std::env::temp_dir().join(format!("gpumem-room-{}", std::process::id()));
        let list = r"echo 'a::cuda::one: test'; echo 'a::sim::one: test'; echo 'b::c::cuda::two: test'; echo 'd: test'";
        write_script(&path, list);
        let of = |kind| {
            let program = Program { name: "room".to_string(), kind, path: path.clone() };
            let suites = program.suites("cuda::").unwrap().into_iter();
            suites.map(|suite| (suite.name, suite.cases.unwrap().join(" "))).collect::<Vec<_>>()
        };
        let pair = |name: &str, cases: &str| (name.to_string(), cases.to_string());
        assert_eq!(
            of(Kind::Room),
            [pair("room/a", "a::cuda::one"), pair("room/b", "b::c::cuda::two"), pair("room/d", "")]
        );
        assert_eq!(of(Kind::Library), [pair("room", "a::cuda::one b::c::cuda::two")]);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_suite_is_selected_by_its_name_or_its_room() {
        let suites = || {
            let one = |name: &str| Suite { name: name.to_string(), program: PathBuf::new(), cases: None };
            vec![one("pool/limits"), one("pool/kinds"), one("layers/array"), one("train")]
        };
        let selected = |name: &str| {
            select(suites(), &[name.to_string()])
                .map(|found| found.into_iter().map(|suite| suite.name).collect::<Vec<_>>())
        };
        assert_eq!(selected("pool").unwrap(), ["pool/limits", "pool/kinds"]);
        assert_eq!(selected("limits").unwrap(), ["pool/limits"]);
        assert_eq!(selected("layers/array").unwrap(), ["layers/array"]);
        assert!(
            selected("arrays").is_err_and(|error| error.to_string().contains("there are: pool/limits, "))
        );
        assert_eq!(select(suites(), &[]).unwrap().len(), 4);
    }
}

//! Checks that the lines named in the list of equivalent mutants are in the sources.

use super::{Files, Finding};
use crate::mutants::{EQUIVALENT, equivalents};

pub(super) fn check(files: &Files) -> Vec<Finding> {
    let Some(list) = files.get(EQUIVALENT) else { return Vec::new() };
    let entries = match equivalents(list) {
        Ok(entries) => entries,
        Err(error) => return vec![Finding::new(EQUIVALENT, 1, format!("{error:#}"), "correct the entry")],
    };
    let mut findings = Vec::new();
    for entry in entries {
        let source = files.get(&entry.file).map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "));
        if source.is_some_and(|source| source.contains(&entry.before)) {
            continue;
        }
        let line = list.lines().position(|line| line.contains(&format!("- `{}`", entry.before)));
        let what = format!("{} has no line `{}`", entry.file, entry.before);
        let advice = "follow the source, or remove the entry";
        findings.push(Finding::new(EQUIVALENT, line.map_or(1, |index| index + 1), what, advice));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_gone_are_found() {
        let list = "# Title\n\n## `a/b.rs`\n\n- `let a = 1;` → `let a = 2;`: nothing reads it.\n- `let b = f( 1);` → `let b = f(2);`: nothing reads it.\n";
        let source = "fn f() {\n    let a\n        = 1;\n}\n";
        let files = Files::from([(EQUIVALENT.into(), list.into()), ("a/b.rs".into(), source.into())]);
        let found: Vec<String> = check(&files).iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("tests/mutants.md:6: a/b.rs has no line `let b"), "{found:?}");
        let files = Files::from([(EQUIVALENT.into(), list.into())]);
        assert_eq!(check(&files).len(), 2, "a file that is gone");
    }
}

//! Reads the list of mutants without effect on behaviour.

use super::report::Equivalent;
use anyhow::{Context, Result, ensure};

/// Reads the list: a heading for each file, under it items of the form "- `line` → `changed line`: why".
pub(crate) fn equivalents(text: &str) -> Result<Vec<Equivalent>> {
    let (mut file, mut found) = (String::new(), Vec::new());
    for (index, line) in text.lines().enumerate() {
        if let Some(heading) = line.strip_prefix("## ") {
            file = heading.trim_matches('`').to_string();
        }
        let Some(item) = line.strip_prefix("- ").filter(|_| !file.is_empty()) else { continue };
        let parsed = item.strip_prefix('`').and_then(|rest| rest.split_once("` → `"));
        let parsed = parsed.and_then(|(before, rest)| Some((before, rest.split_once('`')?)));
        let (before, (after, why)) =
            parsed.with_context(|| format!("line {}: expected - `line` → `changed line`: why", index + 1))?;
        ensure!(why.len() > 10, "line {}: the reason is missing", index + 1);
        found.push(Equivalent { file: file.clone(), before: before.into(), after: after.into() });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_equivalent_mutants_is_understood() {
        let text = "# Title\n\n- a remark\n\n## `a/b.rs`\n\n- `if a < b {` → `if a <= b {`: equal values take either way.\n";
        let list = equivalents(text).unwrap();
        let expected =
            Equivalent { file: "a/b.rs".into(), before: "if a < b {".into(), after: "if a <= b {".into() };
        assert_eq!(list, [expected]);
        assert!(equivalents("## `a.rs`\n- `a` → `b`\n").is_err());
        assert!(equivalents("## `a.rs`\n- a is b: always the same\n").is_err());
    }
}

//! Checks for leftovers: reminders, debugging output, permitted dead code, and paths of one machine.

use super::Finding;
use super::source::Source;

const REMINDERS: [&str; 3] = [concat!("FIX", "ME"), concat!("XX", "X"), concat!("TO", "DO")];
const MACROS: [&str; 3] = ["todo", "unimplemented", "dbg"];
/// Split, so that this file is not a finding itself.
const MACHINE_FOLDERS: [&str; 3] = [concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/Us", "ers/")];

pub(super) fn in_rust(path: &str, source: &Source) -> Vec<Finding> {
    let comments = source.lines.iter().enumerate().filter_map(|(index, line)| {
        let word = reminder(&line.comment)?;
        Some(Finding::new(path, index + 1, format!("{word} in a comment"), "do it, or open an issue"))
    });
    let macros = source.words().filter(|(_, word, after)| MACROS.contains(word) && after.starts_with('!'));
    let macros = macros.map(|(index, word, _)| {
        Finding::new(path, index + 1, format!("{word}! is left"), "finish the code, or take the line away")
    });
    let dead = source.words().filter(|(index, word, _)| *word == "dead_code" && is_allowed(source, *index));
    let dead = dead.map(|(index, ..)| {
        let advice = "remove the code, put the `cfg` of its callers on it, or `expect` it with a reason";
        Finding::new(path, index + 1, "dead code is allowed", advice)
    });
    comments.chain(macros).chain(dead).collect()
}

/// Returns whether the attribute that ends at or below a line is `allow`.
fn is_allowed(source: &Source, index: usize) -> bool {
    let line = source.lines[..=index]
        .iter()
        .rev()
        .find(|line| line.code.contains("#[") || line.code.contains("#!["));
    line.is_some_and(|line| line.code.contains("allow("))
}

pub(super) fn in_text(path: &str, text: &str) -> Vec<Finding> {
    let lines = text.lines().enumerate();
    lines
        .filter_map(|(index, line)| {
            Some(Finding::new(
                path,
                index + 1,
                format!("{} is left", reminder(line)?),
                "do it, or open an issue",
            ))
        })
        .collect()
}

fn reminder(text: &str) -> Option<&'static str> {
    let mut words = text.split(|c: char| !c.is_alphanumeric());
    words.find_map(|word| REMINDERS.into_iter().find(|reminder| *reminder == word))
}

/// Finds absolute paths that exist on one machine only.
pub(super) fn machine_paths(path: &str, text: &str) -> Vec<Finding> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reminders_are_found_in_comments_only() {
        let text = format!("// {}: later\nlet a = \"{}\";\n", REMINDERS[0], REMINDERS[1]);
        let found = in_rust("a.rs", &Source::parse(&text));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].line, 1);
        assert_eq!(in_text("a.sh", "mktemp XXXXXX\n"), []);
        assert_eq!(in_text("a.sh", &format!("true # {}\n", REMINDERS[2])).len(), 1);
    }

    #[test]
    fn debugging_is_found_in_code_only() {
        let found =
            in_rust("a.rs", &Source::parse("fn f() {\n    todo!()\n}\n// dbg!(x) prints\nlet dbg = 1;"));
        assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn allowed_dead_code_is_found() {
        for text in [
            "#[allow(dead_code)]\nfn f() {}",
            "#![allow(unused, dead_code)]",
            "#[cfg_attr(not(unix), allow(\n    dead_code,\n    reason = \"x\"\n))]\nfn f() {}",
        ] {
            assert_eq!(in_rust("a.rs", &Source::parse(text)).len(), 1, "{text}");
        }
        let expected = "#[expect(dead_code, reason = \"x\")]\nfn f() {} // not allow(dead_code)";
        assert_eq!(in_rust("a.rs", &Source::parse(expected)), []);
    }

    #[test]
    fn folders_of_one_machine_are_found() {
        let [home, ..] = MACHINE_FOLDERS;
        assert_eq!(machine_paths("a", &format!("see {home}me/x\n")).len(), 1);
        assert_eq!(machine_paths("a", &format!("see docs{home}x and https://a.org{home}\n")), []);
    }
}

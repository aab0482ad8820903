//! Checks the first words of doc comments: a sentence begins with its subject or with a verb.

use super::Finding;
use super::source::Source;

/// Words that begin a clause instead of a sentence.
const OPENINGS: [&str; 5] = ["What", "Whether", "Who", "Whoever", "Nobody"];

pub(super) fn openings(path: &str, source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut is_inside = false;
    for (index, line) in source.lines.iter().enumerate() {
        let text = doc(&line.comment).map(str::trim);
        let word = text.and_then(|text| text.split(|c: char| !c.is_alphabetic()).next()).unwrap_or_default();
        if !is_inside && OPENINGS.contains(&word) {
            let what = format!("a doc comment begins with {word}");
            let advice = "name the subject, or begin with a verb: \"Returns whether …\", \"True if …\", \"The uses that …\"";
            findings.push(Finding::new(path, index + 1, what, advice));
        }
        is_inside = text.is_some_and(|text| !text.is_empty());
    }
    findings
}

/// The text of a doc comment.
fn doc(comment: &str) -> Option<&str> {
    comment.strip_prefix("///").or_else(|| comment.strip_prefix("//!"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clause_at_the_start_is_found() {
        let text = "//! What it is.\n\n/// Whether it is.\nfn f() {}\n\n/// First.\n///\n/// Nobody knows.\nfn g() {}\n";
        let found = openings("a.rs", &Source::parse(text));
        assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [1, 3, 8]);
        for text in [
            "/// Returns whether it is, or\n/// What it was.\nfn f() {}",
            "// What a comment may say.",
            "let a = \"/// What\";",
        ] {
            assert_eq!(openings("a.rs", &Source::parse(text)), [], "{text}");
        }
    }
}

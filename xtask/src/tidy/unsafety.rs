//! Checks that every `unsafe` has a reason.
//!
//! Clippy sees the code that one build compiles. This check reads every source: code for other systems, disabled features, bodies
//! of macros, and private functions.

use super::rooms::LAYERS;
use super::source::Source;
use super::{Files, Finding};

const REASON: &str = "say above it, after `// SAFETY:`, why its contract holds here";
/// Comments that refer to another one: the reason may differ here, and a later change of one is not made in the other.
const POINTERS: [&str; 2] = ["SAFETY: as above", "SAFETY: see above"];
const CONTRACT: &str = "list the caller's duties under `# Safety`";

pub(super) fn check(path: &str, source: &Source) -> Vec<Finding> {
    let mut findings: Vec<_> = source
        .lines
        .iter()
        .enumerate()
        .filter(|(_, line)| POINTERS.iter().any(|pointer| line.comment.contains(pointer)))
        .map(|(index, _)| Finding::new(path, index + 1, "a reason that only points at another", REASON))
        .collect();
    let one_reason_for_all = path.contains("tests/") && has_one_reason(source);
    for (index, word, after) in source.words() {
        if word != "unsafe" {
            continue;
        }
        let (what, advice, explained) = match Use::of(source, index, after) {
            Use::Block if one_reason_for_all => continue,
            Use::Block => ("`unsafe` block", REASON, explained(source, index, "SAFETY:")),
            Use::Impl => ("`unsafe impl`", REASON, explained(source, index, "SAFETY:")),
            Use::Item if is_promised_elsewhere(source, index) => continue,
            Use::Item => ("`unsafe` item", CONTRACT, explained(source, index, "# Safety")),
            Use::Other => continue,
        };
        if !explained {
            findings.push(Finding::new(path, index + 1, format!("{what} without a reason"), advice));
        }
    }
    findings
}

/// The item that an `unsafe` introduces.
enum Use {
    Block,
    Impl,
    /// A function or a trait, which has a contract.
    Item,
    /// The type of a function pointer, a foreign function or block (with a contract of its own), an attribute.
    Other,
}

impl Use {
    fn of(source: &Source, index: usize, after: &str) -> Self {
        let below = source.lines.get(index + 1).map(|line| line.code.as_str()).unwrap_or_default();
        let after = if after.trim().is_empty() { below.trim() } else { after.trim() };
        let is = |keyword: &str| after.strip_prefix(keyword).is_some_and(|rest| rest.starts_with([' ', '<']));
        match after {
            _ if after.starts_with('{') => Self::Block,
            _ if is("impl") => Self::Impl,
            _ if is("fn") || is("trait") => Self::Item,
            _ => Self::Other,
        }
    }
}

/// Returns whether the file allows clippy's lint: tests of raw calls would repeat one reason in every block, and state it at the
/// `allow`.
fn has_one_reason(source: &Source) -> bool {
    let lint = "#![allow(clippy::undocumented_unsafe_blocks)]";
    source.lines.iter().any(|line| line.code.trim() == lint && line.comment.len() > "// ".len())
}

/// Returns whether a comment of the statement at `index` contains `sign`: on its line or the line below, or above it, up to the end
/// of the previous statement.
fn explained(source: &Source, index: usize, sign: &str) -> bool {
    let says = |index: usize| source.lines.get(index).is_some_and(|line| line.comment.contains(sign));
    if says(index) || says(index + 1) {
        return true;
    }
    for above in (0..index).rev() {
        let line = &source.lines[above];
        let code = line.code.trim_end();
        let ends_statement = code.ends_with([';', '{', '}']) && !code.trim_start().starts_with("#[");
        if line.is_blank() || ends_statement {
            return false;
        }
        if says(above) {
            return true;
        }
    }
    false
}

/// Returns whether a function implements a trait, whose contract it keeps: the nearest line above with less indentation opens `impl
/// … for …`.
fn is_promised_elsewhere(source: &Source, index: usize) -> bool {
    let indent = |index: usize| source.lines[index].code.find(|c: char| c != ' ');
    let Some(own) = indent(index) else { return false };
    let parent = (0..index).rev().find(|above| indent(*above).is_some_and(|indent| indent < own));
    parent.is_some_and(|parent| {
        let code = source.lines[parent].code.trim_start();
        (code.starts_with("impl") || code.starts_with("unsafe impl")) && code.contains(" for ")
    })
}

/// Checks that the layers deny `unsafe_code`, so that each module that needs it says so; the raw driver is unsafe throughout.
pub(super) fn layers_deny(files: &Files) -> Vec<Finding> {
    let advice = "add `#![deny(unsafe_code)]`, and `#[allow(unsafe_code)]` to the modules that need it";
    let above = LAYERS.iter().filter(|layer| *layer != "gpumem-sys");
    let above = above.map(|layer| format!("crates/{layer}/src/lib.rs"));
    let lacking = above.filter(|path| {
        let text = files.get(path).map(String::as_str).unwrap_or("#![deny(unsafe_code)]");
        !text.contains("#![deny(unsafe_code)]") && !text.contains("#![forbid(unsafe_code)]")
    });
    lacking.map(|path| Finding::new(&path, 1, "`unsafe` is allowed anywhere in this crate", advice)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [usize; 0] = [];

    fn found(text: &str) -> Vec<usize> {
        check("a.rs", &Source::parse(text)).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_reason_belongs_to_its_statement() {
        assert_eq!(found("// SAFETY: it lives.\nunsafe { f() };"), NONE);
        assert_eq!(found("// SAFETY: it lives.\n#[inline]\nlet a =\n    unsafe { f() };"), NONE);
        assert_eq!(found("unsafe { f() } // SAFETY: it lives."), NONE);
        assert_eq!(found("unsafe { f() };"), [1]);
        assert_eq!(found("// SAFETY: it lives.\nlet a = 1;\nunsafe { f() };"), [3]);
        assert_eq!(found("// SAFETY: it lives.\n\nunsafe { f() };"), [3]);
        assert_eq!(found("// It lives.\nunsafe\n{ f() };"), [2]);
        assert_eq!(found("unsafe impl Send for A {}"), [1]);
    }

    #[test]
    fn a_reason_is_given_where_it_counts() {
        assert_eq!(
            found("// SAFETY: it lives.\nunsafe { f() };\n// SAFETY: as above.\nunsafe { f() };"),
            [3]
        );
        assert_eq!(found("unsafe { f() } // SAFETY: see above; and it lives."), [1]);
        assert_eq!(found("// SAFETY: it lives, as does the one above.\nunsafe { f() };"), NONE);
    }

    #[test]
    fn a_file_of_tests_may_have_one_reason() {
        let reason = "#![allow(clippy::undocumented_unsafe_blocks)] // Every pointer is a local's.";
        let text = format!("{reason}\nfn f() {{\n    unsafe {{ g() }}\n}}\n");
        assert_eq!(check("crates/a/tests/b.rs", &Source::parse(&text)), []);
        assert_eq!(found(&text), [3]);
        let silent = text.replace(" // Every pointer is a local's.", "");
        assert_eq!(check("crates/a/tests/b.rs", &Source::parse(&silent)).len(), 1);
    }

    #[test]
    fn a_contract_is_in_the_documentation() {
        assert_eq!(
            found("/// Frees.\n///\n/// # Safety\n///\n/// Once.\n#[inline]\npub unsafe fn f() {}"),
            NONE
        );
        assert_eq!(found("/// Frees.\npub unsafe fn f() {}"), [2]);
        assert_eq!(found("fn g() {}\nunsafe trait T {}"), [2]);
        assert_eq!(found("unsafe impl T for A { // SAFETY: always.\n    unsafe fn f() {}\n}"), NONE);
        assert_eq!(found("impl A {\n    unsafe fn f() {}\n}"), [2]);
    }

    #[test]
    fn what_is_no_use_of_unsafe_is_left_alone() {
        assert_eq!(found("type F = unsafe fn(u32);\ntype G = unsafe extern \"C\" fn();"), NONE);
        assert_eq!(found("unsafe extern \"C\" {\n    fn f();\n}\n#[unsafe(no_mangle)]\nfn g() {}"), NONE);
        assert_eq!(found("let a = \"unsafe { }\"; // unsafe { }"), NONE);
    }

    #[test]
    fn macros_are_looked_into() {
        assert_eq!(found("macro_rules! m {\n    () => {\n        unsafe { f() }\n    };\n}"), [3]);
    }

    #[test]
    fn a_layer_must_deny_unsafe_code() {
        let files = Files::from([
            ("crates/gpumem-sys/src/lib.rs".into(), String::new()),
            ("crates/gpumem-pool/src/lib.rs".into(), "//! A pool.\n#![deny(unsafe_code)]\n".into()),
            ("crates/gpumem-array/src/lib.rs".into(), "//! Arrays.\n".into()),
        ]);
        let paths: Vec<_> = layers_deny(&files).into_iter().map(|finding| finding.path).collect();
        assert_eq!(paths, ["crates/gpumem-array/src/lib.rs"]);
    }
}

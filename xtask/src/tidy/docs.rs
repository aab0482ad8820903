//! Checks of the documents: links lead to files, and named tests exist.

use super::{Files, Finding};
use pulldown_cmark::{Event, Options, Parser, Tag};

/// Checks that relative links, and paths in code spans that look like paths of the repository, lead to a file.
pub(super) fn links(path: &str, text: &str, exists: impl Fn(&str) -> bool) -> Vec<Finding> {
    let folder = path.rsplit_once('/').map(|(folder, _)| folder).unwrap_or_default();
    let mut findings = Vec::new();
    for (event, range) in Parser::new(text).into_offset_iter() {
        let (target, from) = match &event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => (dest_url, folder),
            Event::Code(code) if is_repository_path(code) => (code, ""),
            _ => continue,
        };
        let file = target.split(['#', '?']).next().unwrap_or_default();
        if file.is_empty() || target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        if !resolve(from, file).is_some_and(|file| exists(&file)) {
            let line = text[..range.start].matches('\n').count() + 1;
            findings.push(Finding::new(path, line, format!("{target} leads nowhere"), "correct it"));
        }
    }
    findings
}

/// The table of contents of the book.
const SUMMARY: &str = "docs/SUMMARY.md";

/// The file that compiles the examples of the pages.
const DOCTESTS: &str = "tests/src/lib.rs";

/// Checks that each page of the book is in its table of contents, and that a page with Rust code is a doctest.
pub(super) fn book(files: &Files) -> Vec<Finding> {
    let Some(summary) = files.get(SUMMARY) else { return Vec::new() };
    let doctests = files.get(DOCTESTS).map(String::as_str).unwrap_or_default();
    let mut findings = Vec::new();
    let is_page = |path: &str| path != SUMMARY && path.ends_with(".md");
    let pages = files.iter().filter_map(|(path, text)| Some((path, path.strip_prefix("docs/")?, text)));
    for (path, page, text) in pages.filter(|(path, ..)| is_page(path)) {
        if !summary.contains(&format!("]({page})")) {
            findings.push(Finding::new(path, 1, format!("{SUMMARY} lacks this page"), "add it to its shelf"));
        }
        let code = text.lines().position(|line| line.trim_start().starts_with("```rust"));
        if let Some(index) = code.filter(|_| !doctests.contains(&format!("\"../../{path}\""))) {
            let what = format!("{DOCTESTS} does not compile the examples of this page");
            findings.push(Finding::new(path, index + 1, what, "add the page to its list"));
        }
    }
    findings
}

/// Checks that a test named in a document, such as `pool/limits.rs::the_limit_is_exact`, exists in one of the test folders. Functions of C
/// and C++ programs and methods of Python's tests are named in the same way.
pub(super) fn named_tests(path: &str, text: &str, files: &Files) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        let Event::Code(code) = &event else { continue };
        let Some((file, test)) = code.split_once("::") else { continue };
        let Some((_, extension)) = file.rsplit_once('.') else { continue };
        let defines = |line: &str| {
            let has = |start: &str| line.contains(&format!("{start}{test}("));
            match extension {
                "rs" => has("fn "),
                "py" => has("def "),
                // A call is indented.
                _ => !line.starts_with(' ') && (has(" ") || has(" *")),
            }
        };
        if !["rs", "py", "c", "cpp"].contains(&extension) {
            continue;
        }
        let named = TEST_FOLDERS.iter().find_map(|(short, folder)| {
            let below = file.strip_prefix(short)?;
            files.get(&format!("{folder}{below}"))
        });
        if !named.is_some_and(|source| source.lines().any(defines)) {
            let line = text[..range.start].matches('\n').count() + 1;
            findings.push(Finding::new(path, line, format!("there is no test {code}"), "correct it"));
        }
    }
    findings
}

/// The page that says what each language and library has.
const INTERFACES: &str = "docs/reference/interfaces.md";

/// Checks that each cell of the tables of [`INTERFACES`] has a test, refers to another cell (`as C`), or says `*not here*`.
pub(super) fn cells(files: &Files) -> Vec<Finding> {
    let Some(text) = files.get(INTERFACES) else { return Vec::new() };
    let mut findings = Vec::new();
    let lines: Vec<_> = text.lines().collect();
    let is_row = |index: usize| lines[index].starts_with("| ");
    // After a heading and its rule. The first cell is the feature.
    for index in (2..lines.len()).filter(|index| (index - 2..=*index).all(is_row)) {
        let cells = lines[index].trim_matches('|').split(" | ").skip(1).map(str::trim);
        let is_told = |cell: &str| {
            cell.starts_with("as ")
                || cell.contains("*not here*")
                || cell.split('`').skip(1).step_by(2).any(|code| code.contains("::"))
        };
        for cell in cells.filter(|cell| !is_told(cell)) {
            let what = format!("the cell {cell:?} has no test");
            findings.push(Finding::new(INTERFACES, index + 1, what, "name one, or write *not here* and why"));
        }
    }
    findings
}

/// The abbreviations of test folders in documents.
const TEST_FOLDERS: [(&str, &str); 10] = [
    ("c/", "crates/gpumem-capi/tests/c/"),
    ("python/", "python/tests/"),
    ("interop/", "interop/"),
    ("pool/", "crates/gpumem-pool/tests/pool/"),
    ("pool-src/", "crates/gpumem-pool/src/"),
    ("trace-src/", "crates/gpumem-trace/src/"),
    ("sim/", "crates/gpumem-sim/tests/sim/"),
    ("array/", "crates/gpumem-array/tests/array/"),
    ("adapt/", "crates/gpumem-adapt/tests/adapt/"),
    ("tests/", "tests/"),
];

/// Returns whether code looks like `crates/gpumem-pool/src/pool/block.rs`: a plain path from the root into a folder with sources.
fn is_repository_path(code: &str) -> bool {
    let plain = code.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c));
    plain
        && ["crates/", "tests/", "xtask/", "docs/", ".ci/", ".cargo/"]
            .iter()
            .any(|start| code.starts_with(start))
}

/// Resolves `target` relative to `folder`, without `.` and `..`; `None` above the root.
fn resolve(folder: &str, target: &str) -> Option<String> {
    let (folder, target) = target.strip_prefix('/').map_or((folder, target), |absolute| ("", absolute));
    let mut parts = Vec::new();
    for part in folder.split('/').chain(target.split('/')) {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_listed_and_their_examples_compiled() {
        let files = |summary: &str, doctests: &str| {
            let rust = "# A\n\n```rust,no_run\nf();\n```\n";
            Files::from([
                (SUMMARY.into(), summary.into()),
                (DOCTESTS.into(), doctests.into()),
                ("docs/a/b.md".into(), rust.into()),
                ("docs/a/c.md".into(), "```sh\n```\n".into()),
                ("other/d.md".into(), rust.into()),
            ])
        };
        let listed = "- [A](a/b.md)\n- [C](a/c.md)\n";
        assert_eq!(book(&files(listed, "B = \"../../docs/a/b.md\";")), []);
        let found = |files| book(&files).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(
            found(files("- [A](a/b.md)", "\"../../docs/a/b.md\""))[0]
                .starts_with("docs/a/c.md:1: docs/SUMMARY.md lacks")
        );
        assert!(found(files(listed, ""))[0].starts_with("docs/a/b.md:3: tests/src/lib.rs does not compile"));
    }

    #[test]
    fn tests_that_are_named_must_exist() {
        let files =
            Files::from([("crates/gpumem-pool/tests/pool/a.rs".into(), "#[test]\nfn it_works() {}".into())]);
        let text =
            "| what | test |\n| --- | --- |\n| x | `pool/a.rs::it_works` |\n| y | `pool/a.rs::it_fails` |\n";
        let findings = named_tests("docs/x.md", text, &files);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].to_string().starts_with("docs/x.md:4: there is no test pool/a.rs::it_fails"));
    }

    #[test]
    fn every_cell_has_a_test_or_a_reason() {
        let text = "| what | C | D |\n| --- | --- | --- |\n| a | `c/a.c::a` | as C, too |\n| b | *not here*: why | `c/a.c::b` |\n\
                    | c | `c/a.c::c` | yes |\n| d | `peers` of it | `c/a.c::d`; more |\n";
        let files = Files::from([(INTERFACES.into(), text.into())]);
        let found: Vec<_> = cells(&files).iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].starts_with("docs/reference/interfaces.md:5: the cell \"yes\" has no test"),
            "{found:?}"
        );
        assert!(found[1].contains(":6: the cell \"`peers` of it\""), "{found:?}");
    }

    #[test]
    fn tests_in_other_languages_must_exist_too() {
        let files = Files::from([
            ("crates/gpumem-capi/tests/c/a.c".into(), "static void works(void) {\n    fails();\n}".into()),
            ("python/tests/test_a.py".into(), "class A:\n    def test_it(self):\n        test_that()".into()),
        ]);
        let text = "`c/a.c::works` `c/a.c::fails` `python/test_a.py::test_it` `python/test_a.py::test_that` `c/b.cpp::a` `a.b::c` `Pool::a`";
        let found: Vec<_> =
            named_tests("docs/x.md", text, &files).into_iter().map(|finding| finding.what).collect();
        let missing = ["c/a.c::fails", "python/test_a.py::test_that", "c/b.cpp::a"];
        assert_eq!(found, missing.map(|test| format!("there is no test {test}")));
    }

    fn found(path: &str, text: &str) -> Vec<(usize, String)> {
        let exists = |file: &str| ["docs/testing.md", "README.md", "xtask/src"].contains(&file);
        links(path, text, exists).into_iter().map(|finding| (finding.line, finding.what)).collect()
    }

    #[test]
    fn links_are_followed_from_their_file() {
        assert_eq!(found("README.md", "[a](docs/testing.md#top) [b](https://x.org) [c](#here)"), []);
        assert_eq!(found("docs/a.md", "[a](testing.md) ![b](../README.md) [c](/README.md)"), []);
        assert_eq!(
            found("docs/a.md", "\n[a](docs/testing.md)"),
            [(2, "docs/testing.md leads nowhere".into())]
        );
        assert_eq!(found("docs/a.md", "[a](../../b.md)"), [(1, "../../b.md leads nowhere".into())]);
    }

    #[test]
    fn paths_in_code_are_followed_from_the_root() {
        assert_eq!(found("docs/a.md", "`xtask/src`, `cargo xtask x`, `tests/*.rs`, `sim/mod.rs`"), []);
        assert_eq!(found("a.md", "```\ncrates/in/a/block\n```"), []);
        assert_eq!(found("a.md", "`xtask/gone.rs`"), [(1, "xtask/gone.rs leads nowhere".into())]);
    }
}

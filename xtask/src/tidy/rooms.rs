//! Reads the order of the crates from ARCHITECTURE.md and the rooms of each from docs/develop/rooms.md, and compares the rooms with the
//! imports of the sources.
//!
//! A room is a module at the root of a package's `src`, with everything below it. `lib.rs` or `main.rs` is above all rooms. A package
//! with rooms must have a table.

use super::{Files, Finding};
use crate::workspace::root;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

/// The file with the table of the crates.
const CRATES: &str = "ARCHITECTURE.md";

/// The file with the tables of rooms, and of public traits.
pub(crate) const LIST: &str = "docs/develop/rooms.md";

/// The maximum number of rooms of a crate.
const ROOMS_MAX: usize = 12;

/// The layers in the order of [`CRATES`], lowest first.
pub(crate) static LAYERS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let text = std::fs::read_to_string(root().join(CRATES)).unwrap_or_default();
    let layers = Plan::parse(&text).crates;
    assert!(!layers.is_empty(), "{CRATES} has no table that begins with `| crate |`");
    layers
});

/// The tables of [`CRATES`] and [`LIST`].
#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    /// The crates, lowest first.
    crates: Vec<String>,
    /// The rooms by crate, lowest first.
    rooms: BTreeMap<String, Vec<Room>>,
}

#[derive(Debug, PartialEq, Eq)]
struct Room {
    name: String,
    /// The line in [`LIST`].
    line: usize,
    imports: Imports,
}

#[derive(Debug, PartialEq, Eq)]
enum Imports {
    AllAbove,
    These(Vec<String>),
}

impl Plan {
    /// Reads the table `| crate | …` and, below headings such as "Rooms of `gpumem-sim`", the tables `| room | imports | …`.
    fn parse(text: &str) -> Self {
        let mut plan = Self::default();
        let (mut owner, mut table) = (None, "");
        for (index, line) in text.lines().enumerate() {
            if line.starts_with('#') {
                owner = line.split_once("Rooms of ").map(|(_, name)| names(name).concat());
            }
            let Some(row) = line.strip_prefix('|') else {
                table = "";
                continue;
            };
            let cells: Vec<_> = row.split('|').map(str::trim).collect();
            let (first, second) = (cells[0], cells.get(1).copied().unwrap_or_default());
            match (table, &owner) {
                ("", _) => table = first,
                _ if first.starts_with("--") => {}
                ("crate", _) => plan.crates.extend(names(first)),
                ("room", Some(owner)) => {
                    let imports = match second {
                        "all above" => Imports::AllAbove,
                        list => Imports::These(names(list)),
                    };
                    let room = Room { name: names(first).concat(), line: index + 1, imports };
                    plan.rooms.entry(owner.clone()).or_default().push(room);
                }
                _ => {}
            }
        }
        plan
    }
}

/// The words in code spans.
fn names(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_string).collect()
}

/// Checks the list, and the imports of the sources against it.
pub(crate) fn check(files: &Files) -> Vec<Finding> {
    let Some(text) = files.get(LIST) else { return Vec::new() };
    let plan = Plan::parse(text);
    let packages = packages(files);
    let mut findings = Vec::new();
    for (name, rooms) in &plan.rooms {
        findings.extend(check_list(name, rooms));
        if packages.iter().all(|package| package.name != *name) {
            let what = format!("no package is called {name}");
            findings.push(Finding::new(
                LIST,
                rooms[0].line,
                what,
                "correct the heading, or remove the table",
            ));
        }
    }
    for package in &packages {
        let rooms = plan.rooms.get(package.name).map(Vec::as_slice).unwrap_or_default();
        findings.extend(check_sources(package, rooms, files));
    }
    findings
}

/// A package of the repository.
struct Package<'a> {
    name: &'a str,
    manifest: &'a str,
    /// The line of its name in the manifest.
    line: usize,
    /// The folder of its sources, with a slash at the end.
    sources: String,
}

fn packages(files: &Files) -> Vec<Package<'_>> {
    files.iter().filter_map(|(path, text)| Package::read(path, text)).collect()
}

impl<'a> Package<'a> {
    /// `None` if the file is no manifest of a package.
    fn read(manifest: &'a str, text: &'a str) -> Option<Self> {
        let folder = manifest
            .strip_suffix("Cargo.toml")
            .filter(|folder| folder.is_empty() || folder.ends_with('/'))?;
        let mut lines = text.lines().enumerate().skip_while(|(_, line)| *line != "[package]");
        let (index, name) = lines.find_map(|(index, line)| Some((index, line.strip_prefix("name = ")?)))?;
        Some(Self {
            name: name.trim_matches('"'),
            manifest,
            line: index + 1,
            sources: format!("{folder}src/"),
        })
    }
}

/// Checks the list itself: rooms import from rooms above them, so cycles are impossible.
fn check_list(name: &str, rooms: &[Room]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, room) in rooms.iter().enumerate() {
        let Imports::These(imports) = &room.imports else { continue };
        for import in
            imports.iter().filter(|import| rooms[..index].iter().all(|above| above.name != **import))
        {
            let what = format!("{name}: `{}` may import `{import}`, which is not above it", room.name);
            findings.push(Finding::new(LIST, room.line, what, "put the rooms in an order without cycles"));
        }
    }
    if rooms.len() > ROOMS_MAX {
        let what = format!("{name} has {} rooms, more than {ROOMS_MAX}", rooms.len());
        findings.push(Finding::new(LIST, rooms[0].line, what, "join rooms with one purpose"));
    }
    findings
}

fn check_sources(package: &Package<'_>, rooms: &[Room], files: &Files) -> Vec<Finding> {
    let Package { name, manifest, line, sources: folder } = package;
    let mut sources: Vec<Module<'_>> = Vec::new();
    let mut findings = Vec::new();
    for (path, text) in files {
        let inside = path.strip_prefix(folder.as_str()).and_then(|inside| inside.strip_suffix(".rs"));
        // A program in `bin/` is a crate of its own.
        let Some(inside) = inside.filter(|inside| !inside.starts_with("bin/")) else { continue };
        match Module::read(path, inside, text) {
            Ok(module) => sources.push(module),
            Err(error) => findings.push(Finding::new(path, 1, format!("not Rust: {error}"), "correct it")),
        }
    }
    let of_tests: Vec<_> = sources.iter().flat_map(|module| module.scan.of_tests.iter().cloned()).collect();
    sources.retain(|module| !of_tests.iter().any(|test| module.place.starts_with(test)));
    let declared = sources.iter().filter(|module| module.place.is_empty());
    let declared = declared.flat_map(|root| root.scan.declared.iter().map(String::as_str));
    let found: BTreeSet<&str> = sources.iter().filter_map(Module::room).chain(declared).collect();
    if rooms.is_empty() && !found.is_empty() {
        let what = format!(
            "{LIST} has no table of the rooms of {name}: {}",
            found.into_iter().collect::<Vec<_>>().join(", ")
        );
        findings.push(Finding::new(manifest, *line, what, "add the table, lowest room first"));
        return findings;
    }
    for room in rooms.iter().filter(|room| !found.contains(room.name.as_str())) {
        let what = format!("{name} has no room `{}`", room.name);
        findings.push(Finding::new(LIST, room.line, what, "take it out of the list"));
    }
    for room in found.iter().filter(|found| rooms.iter().all(|room| room.name != **found)) {
        let what = format!("the table of {name} in {LIST} lacks the room `{room}`");
        findings.push(Finding::new(manifest, *line, what, "add it, with what it may import"));
    }
    let at_root = names_at_root(&sources);
    for module in &sources {
        let Some(own) = module.room().and_then(|own| rooms.iter().position(|room| room.name == own)) else {
            continue;
        };
        for import in &module.scan.imports {
            findings.extend(module.judge(import, own, rooms, &at_root));
        }
    }
    findings
}

/// The meaning of `crate::NAME`: names imported by `lib.rs`, and macros, by the room that defines them.
fn names_at_root(sources: &[Module<'_>]) -> BTreeMap<String, String> {
    let lib = sources.iter().filter(|module| module.place.is_empty());
    let imported = lib
        .flat_map(|lib| lib.scan.used.iter())
        .filter_map(|path| Some((path.last()?.clone(), path.first()?.clone())));
    let macros = sources.iter().filter_map(|module| Some((module.room()?, &module.scan.macros)));
    let macros =
        macros.flat_map(|(room, macros)| macros.iter().map(move |name| (name.clone(), room.to_string())));
    imported.chain(macros).collect()
}

/// A source file of a crate.
struct Module<'a> {
    path: &'a str,
    /// The module's path from the root of the crate.
    place: Vec<String>,
    scan: Scan,
}

impl<'a> Module<'a> {
    /// `inside` is the path from the crate's `src`, without the extension.
    fn read(path: &'a str, inside: &str, text: &str) -> Result<Self, proc_macro2::LexError> {
        let mut place: Vec<_> = inside.split('/').map(str::to_string).collect();
        place.pop_if(|last| last == "mod" || ["lib", "main"].contains(&inside));
        let tokens: Vec<_> = text.parse::<TokenStream>()?.into_iter().collect();
        let mut scan = Scan { place: place.clone(), ..Scan::default() };
        scan.walk(&tokens);
        Ok(Self { path, place, scan })
    }

    fn room(&self) -> Option<&str> {
        self.place.first().map(String::as_str)
    }

    fn judge(
        &self,
        import: &Import,
        own: usize,
        rooms: &[Room],
        at_root: &BTreeMap<String, String>,
    ) -> Option<Finding> {
        let is_room = |name: &String| rooms.iter().any(|room| room.name == *name);
        let star = "*".to_string();
        let first = import.path.first().unwrap_or(&star);
        let target = match at_root.get(first) {
            Some(origin) if !is_room(first) => origin,
            _ => first,
        };
        // `lib.rs` imports the name from another crate.
        if target != first && !is_room(target) {
            return None;
        }
        let room = &rooms[own];
        if *target == room.name {
            return None;
        }
        let place = rooms.iter().position(|other| other.name == *target);
        let is_allowed = place.is_some_and(|place| match &room.imports {
            Imports::AllAbove => place < own,
            Imports::These(these) => these.contains(target),
        });
        let whence = match place {
            Some(_) => format!("`{target}`"),
            None => "the root of the crate".to_string(),
        };
        let written = import.path.join("::");
        let what = format!(
            "room `{}` imports `crate::{written}` from {whence}, which {LIST} does not allow",
            room.name
        );
        let advice =
            "move the item to a room below both, take it as an argument, or list the room if it is above";
        (!is_allowed).then(|| Finding::new(self.path, import.line, what, advice))
    }
}

/// A path into the crate, from its root.
#[derive(Debug, PartialEq, Eq)]
struct Import {
    line: usize,
    path: Vec<String>,
}

/// The paths in the tokens of a source, without test code.
#[derive(Default)]
struct Scan {
    place: Vec<String>,
    imports: Vec<Import>,
    /// The paths of `use` statements at the root of the file, including those without `crate`.
    used: Vec<Vec<String>>,
    macros: Vec<String>,
    /// The rooms that the root of the crate declares.
    declared: Vec<String>,
    /// Modules in separate files that are compiled for tests only.
    of_tests: Vec<Vec<String>>,
}

impl Scan {
    fn walk(&mut self, tokens: &[TokenTree]) {
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            let rest = &tokens[at..];
            at += match token {
                TokenTree::Punct(punct) if punct.as_char() == '#' => self.attribute(rest),
                TokenTree::Group(group) => {
                    self.walk(&group.stream().into_iter().collect::<Vec<_>>());
                    1
                }
                TokenTree::Ident(ident) => self.word(&ident.to_string(), rest),
                _ => 1,
            };
        }
    }

    /// The number of tokens of an attribute, including its item if the item is for tests only.
    fn attribute(&mut self, tokens: &[TokenTree]) -> usize {
        let Some(TokenTree::Group(group)) = tokens.get(1) else { return 1 };
        if !is_for_tests(group.stream()) {
            return 2;
        }
        let is_end = |token: &TokenTree| match token {
            TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
            TokenTree::Punct(punct) => punct.as_char() == ';',
            _ => false,
        };
        let len = tokens.iter().position(is_end).map_or(tokens.len(), |end| end + 1);
        let module =
            tokens[..len].windows(3).find(|three| is_word(&three[0], "mod") && is_punct(&three[2], ';'));
        if let Some([_, name, _]) = module {
            self.of_tests.push(self.place.iter().cloned().chain([name.to_string()]).collect());
        }
        len
    }

    /// The number of tokens of a word and the path that follows it.
    fn word(&mut self, word: &str, tokens: &[TokenTree]) -> usize {
        match (word, tokens) {
            // `pub(crate)` and the like name no item.
            ("pub", [_, TokenTree::Group(group), ..]) if is_restriction(group.stream()) => 2,
            ("mod", [_, name, TokenTree::Group(group), ..]) => {
                self.place.push(name.to_string());
                self.walk(&group.stream().into_iter().collect::<Vec<_>>());
                self.place.pop();
                3
            }
            ("mod", [_, name, end, ..]) if is_punct(end, ';') && self.place.is_empty() => {
                self.declared.push(name.to_string());
                3
            }
            ("macro_rules", [_, _, name, ..]) => {
                self.macros.push(name.to_string());
                3
            }
            ("use", [_, ..]) => {
                let mut paths = Vec::new();
                let taken = 1 + tree(&tokens[1..], Vec::new(), &mut paths);
                for Import { line, path } in paths {
                    let resolved = self.resolve(&path);
                    self.used.push(resolved.clone().unwrap_or(path));
                    self.imports.extend(resolved.map(|path| Import { line, path }));
                }
                taken
            }
            ("crate" | "super" | "self", [_, colon, ..]) if is_punct(colon, ':') => {
                let mut paths = Vec::new();
                let taken = tree(tokens, Vec::new(), &mut paths);
                for Import { line, path } in paths {
                    self.imports.extend(self.resolve(&path).map(|path| Import { line, path }));
                }
                taken
            }
            _ => 1,
        }
    }

    /// Resolves a path that begins with `crate`, `super` or `self` to one from the root of the crate.
    fn resolve(&self, path: &[String]) -> Option<Vec<String>> {
        let ups = path.iter().take_while(|segment| *segment == "super").count();
        let base = match path.first()?.as_str() {
            "crate" => return Some(path[1..].to_vec()),
            "self" => return Some([&self.place[..], &path[1..]].concat()),
            "super" => self.place.len().checked_sub(ups)?,
            _ => return None,
        };
        Some([&self.place[..base], &path[ups..]].concat())
    }
}

/// Reads a path or a tree of paths. Returns the number of tokens.
fn tree(tokens: &[TokenTree], mut prefix: Vec<String>, found: &mut Vec<Import>) -> usize {
    let mut at = 0;
    let line = |at: usize| tokens.get(at).map_or(1, |token| token.span().start().line);
    loop {
        match tokens.get(at) {
            Some(TokenTree::Ident(ident)) => {
                let segment = ident.to_string();
                if segment != "self" || prefix.is_empty() {
                    prefix.push(segment);
                }
                at += 1;
            }
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                let inner: Vec<_> = group.stream().into_iter().collect();
                for part in inner.split(|token| is_punct(token, ',')).filter(|part| !part.is_empty()) {
                    tree(part, prefix.clone(), found);
                }
                return at + 1;
            }
            // A star, or generic arguments.
            Some(_) | None => {
                found.push(Import { line: line(at.saturating_sub(1)), path: prefix });
                return at.max(1);
            }
        }
        if !tokens.get(at).is_some_and(|token| is_punct(token, ':'))
            || !tokens.get(at + 1).is_some_and(|token| is_punct(token, ':'))
        {
            found.push(Import { line: line(at - 1), path: prefix });
            return at;
        }
        at += 2;
    }
}

fn is_punct(token: &TokenTree, c: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == c)
}

fn is_word(token: &TokenTree, word: &str) -> bool {
    matches!(token, TokenTree::Ident(ident) if ident == word)
}

/// Returns whether an attribute is `cfg(test)` or `cfg(all(test, …))`; code under `any` or `not` is compiled without tests too.
fn is_for_tests(attribute: TokenStream) -> bool {
    let tokens: Vec<_> = attribute.into_iter().collect();
    tokens.windows(2).any(|two| match &two[1] {
        TokenTree::Group(group) if is_word(&two[0], "cfg") || is_word(&two[0], "all") => {
            let inner: Vec<_> = group.stream().into_iter().collect();
            inner.iter().any(|token| is_word(token, "test")) || is_for_tests(group.stream())
        }
        _ => false,
    })
}

fn is_restriction(inside: TokenStream) -> bool {
    let first = inside.into_iter().next();
    first.is_some_and(|token| ["crate", "super", "self", "in"].iter().any(|word| is_word(&token, word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = "\
| crate | knows |
| --- | --- |
| `gpumem-a` | x |
| `gpumem-b` | y |

### Rooms of `gpumem-b`

| room | imports | contents |
| --- | --- | --- |
| `low` | – | |
| `middle` | `low` | |
| `high` | all above | |
";

    const MANIFEST: &str = "[package]\nname = \"gpumem-b\"\n";

    fn found(sources: &[(&str, &str)]) -> Vec<String> {
        let rooms =
            ["low", "middle", "high"].map(|room| (format!("crates/gpumem-b/src/{room}.rs"), String::new()));
        let mut files: Files = rooms.into_iter().collect();
        files.insert(LIST.into(), PLAN.into());
        files.insert("crates/gpumem-b/Cargo.toml".into(), MANIFEST.into());
        let sources =
            sources.iter().map(|(path, text)| (format!("crates/gpumem-b/src/{path}"), (*text).to_string()));
        files.extend(sources);
        check(&files).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_list_is_read_from_its_tables() {
        let plan = Plan::parse(PLAN);
        assert_eq!(plan.crates, ["gpumem-a", "gpumem-b"]);
        let rooms = &plan.rooms["gpumem-b"];
        assert_eq!(
            rooms.iter().map(|room| room.name.as_str()).collect::<Vec<_>>(),
            ["low", "middle", "high"]
        );
        assert_eq!(rooms[1].imports, Imports::These(vec!["low".into()]));
        assert_eq!((&rooms[2].imports, rooms[2].line), (&Imports::AllAbove, 12));
    }

    #[test]
    fn imports_of_lower_rooms_pass() {
        let text = "use crate::low::{a, b::*};\nfn f(x: crate::low::X) { crate::middle::g(); self::h() }\n";
        assert_eq!(found(&[("middle.rs", text), ("high.rs", text)]), [""; 0]);
    }

    #[test]
    fn an_import_of_a_higher_room_is_found_with_file_and_line() {
        let line = |finding: &str| finding.split(": ").next().unwrap_or_default().to_string();
        for (text, at) in [
            ("use crate::middle::A;", 1),
            ("use core::fmt;\nuse crate::{\n    low::B,\n    high::{C, D as E},\n};", 4),
            ("\nfn f() -> super::high::X {}", 2),
            ("fn f() {\n    matches!(a, crate::high::B)\n}", 2),
            ("mod inner {\n    use super::super::high;\n}", 2),
            ("pub(in crate::low) use crate::high::X;", 1),
        ] {
            let findings = found(&[("low.rs", text)]);
            let lines: Vec<_> = findings.iter().map(|finding| line(finding)).collect();
            let expected = format!("crates/gpumem-b/src/low.rs:{at}");
            assert!(!lines.is_empty() && lines.iter().all(|line| *line == expected), "{text}: {findings:?}");
        }
        let findings = found(&[("low/inner/deep.rs", "use super::super::super::middle::A;")]);
        assert!(
            findings[0].starts_with(
                "crates/gpumem-b/src/low/inner/deep.rs:1: room `low` imports `crate::middle::A`"
            ),
            "{findings:?}"
        );
    }

    #[test]
    fn names_at_the_root_belong_to_the_rooms_that_define_them() {
        let lib = ("lib.rs", "mod low;\npub use high::Top;\npub use crate::low::Bottom;\npub struct Own;");
        assert_eq!(found(&[lib, ("middle.rs", "use crate::Bottom;")]), [""; 0]);
        assert!(found(&[lib, ("middle.rs", "use crate::Top;")])[0].contains("from `high`"));
        assert!(found(&[lib, ("middle.rs", "use crate::Own;")])[0].contains("from the root of the crate"));
        let lib = ("lib.rs", "pub use other_crate::part;");
        assert_eq!(found(&[lib, ("low.rs", "use crate::part::Of;")]), [""; 0]);
        let with_macro = ("low.rs", "macro_rules! each { () => {}; }");
        assert_eq!(found(&[with_macro, ("middle.rs", "crate::each!();")]), [""; 0]);
    }

    #[test]
    fn tests_may_import_anything() {
        for text in [
            "#[cfg(test)]\nmod tests { use crate::high::A; }",
            "#[cfg(test)]\n#[allow(unused)]\nuse crate::high::A;\nfn f() {}",
            "#[cfg(all(test, unix))]\nmod tests { use crate::high::A; }",
        ] {
            assert_eq!(found(&[("low.rs", text)]), [""; 0], "{text}");
        }
        let of_tests = ("low/tests/a.rs", "use crate::high::A;");
        assert_eq!(found(&[("low.rs", "#[cfg(test)]\nmod tests;"), of_tests]), [""; 0]);
        assert_eq!(found(&[of_tests]).len(), 1);
        assert_eq!(found(&[("low.rs", "#[cfg(any(test, unix))]\nuse crate::high::A;")]).len(), 1);
    }

    #[test]
    fn rooms_and_list_agree() {
        assert!(found(&[("other.rs", "")])[0].contains("lacks the room `other`"));
        let cyclic = PLAN.replace("| `low` | –", "| `low` | `high`");
        let plan = Plan::parse(&cyclic);
        let text = check_list("gpumem-b", &plan.rooms["gpumem-b"])[0].to_string();
        assert!(text.starts_with("docs/develop/rooms.md:10: gpumem-b: `low` may import `high`"), "{text}");
    }

    #[test]
    fn a_package_with_rooms_needs_a_table() {
        let manifest = "[workspace]\n\n[package]\nname = \"tool\"\n";
        let mut files = Files::from([
            (LIST.into(), String::new()),
            ("tool/Cargo.toml".into(), manifest.into()),
            ("tool/src/main.rs".into(), "fn main() {}".into()),
            ("tool/src/bin/other.rs".into(), "#[path = \"../part.rs\"]\nmod part;".into()),
        ]);
        assert_eq!(check(&files), []);
        files.insert("tool/src/main.rs".into(), "#[path = \"../shared.rs\"]\nmod shared;\nmod part;".into());
        files.insert("tool/src/part.rs".into(), "use crate::shared::A;".into());
        let findings = check(&files).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(
            findings[0].starts_with(
                "tool/Cargo.toml:4: docs/develop/rooms.md has no table of the rooms of tool: part, shared;"
            ),
            "{findings:?}"
        );
        let plan =
            "## Rooms of `tool`\n| room | imports |\n| --- | --- |\n| `part` | – |\n| `shared` | – |\n";
        files.insert(LIST.into(), plan.into());
        assert!(
            check(&files)[0]
                .to_string()
                .starts_with("tool/src/part.rs:1: room `part` imports `crate::shared::A`")
        );
        files.insert(LIST.into(), plan.replace("tool", "other"));
        assert!(
            check(&files).iter().any(|finding| finding.to_string().contains("no package is called other"))
        );
    }
}

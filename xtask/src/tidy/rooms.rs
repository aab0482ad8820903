//! Reads the order of the crates from ARCHITECTURE.md and the rooms of each from docs/develop/rooms.md, and compares the rooms with the
//! imports of the sources.
//!
//! A room is a module at the root of a package's `src`, with everything below it. `lib.rs` or `main.rs` is above all rooms. A package
//! with rooms must have a table.

use super::imports::{Import, Module, Package};
use super::{Files, Finding};
use crate::workspace::root;
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
pub(super) fn check(files: &Files, packages: &[Package<'_>]) -> Vec<Finding> {
    let Some(text) = files.get(LIST) else { return Vec::new() };
    let plan = Plan::parse(text);
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
    for package in packages {
        let rooms = plan.rooms.get(package.name).map(Vec::as_slice).unwrap_or_default();
        findings.extend(check_sources(package, rooms));
    }
    findings
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

fn check_sources(package: &Package<'_>, rooms: &[Room]) -> Vec<Finding> {
    let Package { name, manifest, line, modules: sources, unread } = package;
    let not_rust =
        |(path, error): &(&str, String)| Finding::new(path, 1, format!("not Rust: {error}"), "correct it");
    let mut findings: Vec<Finding> = unread.iter().map(not_rust).collect();
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
    let at_root = names_at_root(sources);
    for module in sources {
        let Some(own) = module.room().and_then(|own| rooms.iter().position(|room| room.name == own)) else {
            continue;
        };
        let imports = &module.scan.imports;
        findings.extend(imports.iter().filter_map(|import| judge(module.path, import, own, rooms, &at_root)));
    }
    findings
}

/// The meaning of `crate::NAME`: names imported by `lib.rs`, and macros, by the room that defines them.
fn names_at_root(sources: &[Module<'_>]) -> BTreeMap<String, String> {
    let lib = sources.iter().filter(|module| module.place.is_empty());
    let imported = lib
        .flat_map(|lib| lib.scan.uses.iter().map(|used| &used.path))
        .filter_map(|path| Some((path.last()?.clone(), path.first()?.clone())));
    let macros = sources.iter().filter_map(|module| Some((module.room()?, &module.scan.macros)));
    let macros =
        macros.flat_map(|(room, macros)| macros.iter().map(move |name| (name.clone(), room.to_string())));
    imported.chain(macros).collect()
}

/// Judges one import of a file in the room `own`.
fn judge(
    path: &str,
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
    let what =
        format!("room `{}` imports `crate::{written}` from {whence}, which {LIST} does not allow", room.name);
    let advice =
        "move the item to a room below both, take it as an argument, or list the room if it is above";
    (!is_allowed).then(|| Finding::new(path, import.line, what, advice))
}

#[cfg(test)]
mod tests {
    use super::super::imports::packages;
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
        check(&files, &packages(&files)).iter().map(ToString::to_string).collect()
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
        assert_eq!(check(&files, &packages(&files)), []);
        files.insert("tool/src/main.rs".into(), "#[path = \"../shared.rs\"]\nmod shared;\nmod part;".into());
        files.insert("tool/src/part.rs".into(), "use crate::shared::A;".into());
        let findings = check(&files, &packages(&files)).iter().map(ToString::to_string).collect::<Vec<_>>();
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
            check(&files, &packages(&files))[0]
                .to_string()
                .starts_with("tool/src/part.rs:1: room `part` imports `crate::shared::A`")
        );
        files.insert(LIST.into(), plan.replace("tool", "other"));
        assert!(
            check(&files, &packages(&files))
                .iter()
                .any(|finding| finding.to_string().contains("no package is called other"))
        );
    }
}

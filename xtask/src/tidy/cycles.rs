//! Files that import each other: at most four of them may form one cycle.
//!
//! A file imports another if it names an item whose home is there, in a `use` or by a path from `crate` or `super`. A `mod`
//! declaration is no import, nor is a re-export of a name that the file itself does not use. Names that a module re-exports lead to
//! the file that defines them.

use super::Finding;
use super::imports::{Module, Package};
use std::collections::{BTreeMap, BTreeSet};

/// The largest number of files that may import each other, directly or through others.
const FILES_MAX: usize = 4;

const ADVICE: &str = "move what both files need below both, or take it as an argument";

pub(super) fn check(packages: &[Package<'_>]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in packages {
        let modules = &package.modules;
        let graph = Graph::new(modules, &Tree::new(modules));
        for set in graph.sets().into_iter().filter(|set| set.len() > FILES_MAX) {
            findings.extend(graph.findings(modules, &set, package.name));
        }
    }
    findings
}

/// The modules of a crate that are files, and what each re-exports.
struct Tree<'a> {
    files: BTreeMap<&'a [String], usize>,
    /// By file: names and their paths from the root of the crate.
    exports: Vec<BTreeMap<&'a str, Vec<String>>>,
}

impl<'a> Tree<'a> {
    fn new(modules: &'a [Module<'_>]) -> Self {
        let files = modules.iter().enumerate().map(|(index, module)| (&module.place[..], index)).collect();
        let mut tree = Self { files, exports: Vec::new() };
        for module in modules {
            let exported = module.scan.uses.iter().filter(|used| used.is_exported);
            let exports = exported.filter_map(|used| {
                let path = tree.absolute(&used.path, used.relative_to.as_deref())?;
                Some((used.name.as_str(), path))
            });
            let exports = exports.collect();
            tree.exports.push(exports);
        }
        tree
    }

    /// The path from the root of the crate. `None` if a relative path leads out of the crate.
    fn absolute(&self, path: &[String], relative_to: Option<&[String]>) -> Option<Vec<String>> {
        let Some(base) = relative_to else { return Some(path.to_vec()) };
        let inner = [base, &path[..path.len().min(1)]].concat();
        self.files.contains_key(&inner[..]).then(|| [base, path].concat())
    }

    /// The file that defines the item of a path from the root of the crate, and the path's segments behind that file.
    fn home(&self, path: &[String]) -> Option<(usize, Vec<String>)> {
        let mut path = path.to_vec();
        for _ in 0..RE_EXPORTS_MAX {
            let depth = (0..=path.len()).rev().find(|depth| self.files.contains_key(&path[..*depth]))?;
            let (file, rest) = (self.files[&path[..depth]], &path[depth..]);
            match rest.first().and_then(|name| self.exports[file].get(name.as_str())) {
                // A name that comes from another crate is at home where it is re-exported.
                Some(target) if *target != path => path = [&target[..], &rest[1..]].concat(),
                _ => return Some((file, rest.to_vec())),
            }
        }
        None
    }

    /// The imports of a file: the line, and the path from the root of the crate.
    fn imports(&self, module: &Module<'_>) -> Vec<(usize, Vec<String>)> {
        let inline = module.scan.inline.iter().map(|import| (import.line, import.path.clone()));
        let is_own =
            |used: &&super::imports::Use| !used.is_exported || module.scan.words.contains(&used.name);
        let uses =
            module.scan.uses.iter().filter(is_own).filter_map(|used| {
                Some((used.line, self.absolute(&used.path, used.relative_to.as_deref())?))
            });
        inline.chain(uses).collect()
    }
}

/// The files of a crate, and for each the files that it imports, with the first line that does.
struct Graph(Vec<BTreeMap<usize, usize>>);

impl Graph {
    fn new(modules: &[Module<'_>], tree: &Tree<'_>) -> Self {
        let imports = |(index, module): (usize, &Module<'_>)| {
            let mut lines: BTreeMap<usize, usize> = BTreeMap::new();
            for (line, path) in tree.imports(module) {
                if let Some((file, _)) = tree.home(&path).filter(|(file, _)| *file != index) {
                    lines.entry(file).and_modify(|first| *first = line.min(*first)).or_insert(line);
                }
            }
            lines
        };
        Self(modules.iter().enumerate().map(imports).collect())
    }

    /// The sets of files that import each other.
    fn sets(&self) -> Vec<BTreeSet<usize>> {
        let reached: Vec<BTreeSet<usize>> = (0..self.0.len()).map(|file| self.reached(file)).collect();
        let set = |file: usize| -> BTreeSet<usize> {
            reached[file].iter().copied().filter(|other| reached[*other].contains(&file)).collect()
        };
        (0..self.0.len())
            .map(set)
            .filter(|set| !set.is_empty())
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    }

    /// The files that a file imports, directly or through others.
    fn reached(&self, file: usize) -> BTreeSet<usize> {
        let (mut reached, mut open) = (BTreeSet::new(), vec![file]);
        while let Some(file) = open.pop() {
            open.extend(self.0[file].keys().filter(|other| reached.insert(**other)));
        }
        reached
    }

    /// A finding for each import inside a set.
    fn findings(&self, modules: &[Module<'_>], set: &BTreeSet<usize>, name: &str) -> Vec<Finding> {
        let all = set.iter().map(|file| modules[*file].path).collect::<Vec<_>>().join(", ");
        let imports = set
            .iter()
            .flat_map(|file| self.0[*file].iter().map(move |(imported, line)| (file, imported, line)));
        let import = |(file, imported, line): (&usize, &usize, &usize)| {
            let path = modules[*imported].path;
            let what = format!(
                "imports {path} in a cycle; {} files of {name} import each other, more than {FILES_MAX}: {all}",
                set.len()
            );
            Finding::new(modules[*file].path, *line, what, ADVICE)
        };
        imports.filter(|(_, imported, _)| set.contains(imported)).map(import).collect()
    }
}

/// More re-exports of a re-export than any name has.
const RE_EXPORTS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::super::Files;
    use super::super::imports::packages;
    use super::*;

    /// Files that import each other in a row: a tree of modules, with an import of `b` by `a` in its second line, and so on.
    fn row(planted: &str) -> Vec<String> {
        let text = |next: &str| format!("//! A module.\nuse crate::{next};\npub struct Item;\n");
        let mut files = Files::from([
            ("crates/gpumem-b/Cargo.toml".into(), "[package]\nname = \"gpumem-b\"\n".into()),
            (
                "crates/gpumem-b/src/lib.rs".into(),
                "mod a;\nmod b;\npub use a::{Item, e::Item as Last};\n".into(),
            ),
        ]);
        for (file, next) in [("a", "b::Item"), ("b", "c::Item"), ("c", "d::Item"), ("d", "a::e::Last")] {
            files.insert(format!("crates/gpumem-b/src/{file}.rs"), text(next));
        }
        files.insert("crates/gpumem-b/src/a/e.rs".into(), planted.into());
        check(&packages(&files)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_planted_back_import_is_found_with_file_and_line() {
        for planted in [
            "//! The end.\n\nuse super::Item;\n",
            "//! The end.\n\nuse crate::Item;\n",
            "//! The end.\npub struct Last;\nfn f(item: crate::{a::Item}) {}\n",
            "//! The end.\n\npub use super::Item;\nfn f(item: Item) {}\n",
        ] {
            let findings = row(planted);
            assert_eq!(findings.len(), 5, "{planted}: {findings:?}");
            let expected = "crates/gpumem-b/src/a/e.rs:3: imports crates/gpumem-b/src/a.rs in a cycle; \
                            5 files of gpumem-b import each other, more than 4: ";
            assert!(findings.iter().any(|finding| finding.starts_with(expected)), "{planted}: {findings:?}");
        }
    }

    #[test]
    fn what_is_no_import_makes_no_cycle() {
        for text in [
            "//! The end.\n",
            "//! The end: [`crate::a::Item`].\n",
            "pub use super::Item;\n",
            "#[cfg(test)]\nmod tests {\n    use crate::a::Item;\n}\n",
            "use other::a::Item;\n",
        ] {
            assert_eq!(row(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn four_files_may_import_each_other() {
        let mut files = Files::from([("Cargo.toml".into(), "[package]\nname = \"a\"\n".into())]);
        for (file, next) in [("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")] {
            files.insert(format!("src/{file}.rs"), format!("use crate::{next}::Item;\n"));
        }
        assert_eq!(check(&packages(&files)), []);
    }
}

//! The environment variables: documents name only those that exist, one page lists all, and `gpumem-sys` accepts each. Options and profiles
//! have a page each too.

use gpumem_tests::pool::{Profile, conf};
use gpumem_tests::sys::env::{self, Variable};
use std::path::{Path, PathBuf};

/// The page whose table lists every variable.
const PAGE: &str = "docs/reference/environment.md";

const HEADER: &str = include_str!("../../crates/gpumem-capi/include/gpumem.h");

fn known() -> impl Iterator<Item = &'static Variable> {
    let lists = [
        env::VARIABLES,
        gpumem_sim::VARIABLES,
        gpumem_tests::pool::VARIABLES,
        gpumem_tests::array::VARIABLES,
    ];
    lists.into_iter().flatten()
}

/// The variables of this project in a line. A bare prefix such as `GPUMEM_…` does not count.
fn names(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("GPUMEM_") && !word.ends_with('_'))
}

/// True if the header of the C interface defines the name.
fn is_in_header(name: &str) -> bool {
    HEADER.contains(&format!("#define {name} ")) || HEADER.contains(&format!("  {name} = "))
}

/// The documents of the repository, without folders of builds.
fn documents(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            documents(&path, found);
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
}

#[test]
fn documents_name_variables_that_exist() {
    let (root, mut found) = (gpumem_tests::folder().join(".."), Vec::new());
    documents(&root, &mut found);
    assert!(found.len() > 10, "{found:?}");
    for document in found {
        let text = std::fs::read_to_string(&document).unwrap();
        for (index, line) in text.lines().enumerate() {
            let unknown: Vec<_> = names(line)
                .filter(|name| !known().any(|one| one.name == *name) && !is_in_header(name))
                .collect();
            assert!(unknown.is_empty(), "{}:{}: there is no {unknown:?}", document.display(), index + 1);
        }
    }
}

#[test]
fn the_page_lists_every_variable_with_its_meaning() {
    let text = page(PAGE);
    for variable in known() {
        let row = format!("| `{}` | {} |", variable.name, variable.meaning);
        assert!(text.lines().any(|line| line == row), "{PAGE} lacks this row: {row}");
    }
}

fn page(path: &str) -> String {
    std::fs::read_to_string(gpumem_tests::folder().join("..").join(path)).unwrap()
}

/// The first cells of the tables below a heading.
fn first_cells<'a>(text: &'a str, heading: &str) -> Vec<&'a str> {
    let (_, section) = text.split_once(&format!("\n## {heading}\n")).unwrap();
    let section = section.split("\n## ").next().unwrap();
    section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect()
}

#[test]
fn the_page_lists_every_option() {
    let text = page("docs/reference/options.md");
    let [public, hidden] = conf::names();
    let listed = first_cells(&text, "Options that programs set");
    assert!(listed.len() <= 16 && listed.iter().all(|name| public.contains(name)), "{listed:?}");
    for name in public.iter().chain(&hidden) {
        assert!(text.contains(&format!("`{name}`")), "there is no `{name}`");
    }
    assert!(!hidden.iter().any(|name| listed.contains(name)), "{listed:?}");
}

#[test]
fn the_page_about_the_heap_lists_every_profile() {
    let names: Vec<_> = Profile::ALL.iter().map(ToString::to_string).collect();
    assert_eq!(first_cells(&page("docs/explain/heap.md"), "How much is reserved"), names);
}

/// A variable is accepted before its crate has registered it.
#[test]
fn every_variable_is_reserved() {
    for variable in known().filter(|variable| !env::VARIABLES.contains(variable)) {
        let is_reserved = |reserved: &&str| {
            variable.name == *reserved || reserved.ends_with('_') && variable.name.starts_with(reserved)
        };
        assert!(env::RESERVED.iter().any(is_reserved), "{}", variable.name);
    }
}

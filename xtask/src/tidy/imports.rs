//! [`Module`]: a source file of a package, with the paths in it that lead into its crate. Test code is left out.

use super::Files;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::BTreeSet;

pub(super) struct Package<'a> {
    pub(super) name: &'a str,
    pub(super) manifest: &'a str,
    /// The line of its name in the manifest.
    pub(super) line: usize,
    /// Its source files, without those for tests only.
    pub(super) modules: Vec<Module<'a>>,
    /// Source files that are not Rust, each with the error.
    pub(super) unread: Vec<(&'a str, String)>,
}

pub(super) fn packages(files: &Files) -> Vec<Package<'_>> {
    files.iter().filter_map(|(path, text)| Package::read(path, text, files)).collect()
}

impl<'a> Package<'a> {
    /// `None` if the file is no manifest of a package.
    fn read(manifest: &'a str, text: &'a str, files: &'a Files) -> Option<Self> {
        let folder = manifest
            .strip_suffix("Cargo.toml")
            .filter(|folder| folder.is_empty() || folder.ends_with('/'))?;
        let mut lines = text.lines().enumerate().skip_while(|(_, line)| *line != "[package]");
        let (index, name) = lines.find_map(|(index, line)| Some((index, line.strip_prefix("name = ")?)))?;
        let (name, line) = (name.trim_matches('"'), index + 1);
        let mut package = Self { name, manifest, line, modules: Vec::new(), unread: Vec::new() };
        package.read_modules(&format!("{folder}src/"), files);
        Some(package)
    }

    fn read_modules(&mut self, sources: &str, files: &'a Files) {
        for (path, text) in files {
            let inside = path.strip_prefix(sources).and_then(|inside| inside.strip_suffix(".rs"));
            // A program in `bin/` is a crate of its own.
            let Some(inside) = inside.filter(|inside| !inside.starts_with("bin/")) else { continue };
            match Module::read(path, inside, text) {
                Ok(module) => self.modules.push(module),
                Err(error) => self.unread.push((path, error.to_string())),
            }
        }
        let of_tests = self.modules.iter().flat_map(|module| module.scan.of_tests.iter().cloned());
        let of_tests: Vec<_> = of_tests.collect();
        self.modules.retain(|module| !of_tests.iter().any(|test| module.place.starts_with(test)));
    }
}

pub(super) struct Module<'a> {
    pub(super) path: &'a str,
    /// The module's path from the root of the crate.
    pub(super) place: Vec<String>,
    pub(super) scan: Scan,
}

impl<'a> Module<'a> {
    /// `inside` is the path from the crate's `src`, without the extension.
    fn read(path: &'a str, inside: &str, text: &str) -> Result<Self, proc_macro2::LexError> {
        let mut place: Vec<_> = inside.split('/').map(str::to_string).collect();
        place.pop_if(|last| last == "mod" || ["lib", "main"].contains(&inside));
        let tokens = into_tokens(text.parse()?);
        let mut scan = Scan { place: place.clone(), ..Scan::default() };
        scan.walk(&tokens);
        Ok(Self { path, place, scan })
    }

    pub(super) fn room(&self) -> Option<&str> {
        self.place.first().map(String::as_str)
    }
}

/// A path into the crate, from its root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Import {
    pub(super) line: usize,
    pub(super) path: Vec<String>,
}

/// A name that a `use` statement brings into its module.
pub(super) struct Use {
    pub(super) line: usize,
    /// From the root of the crate if the statement begins with `crate`, `self` or `super`; otherwise as it is written.
    pub(super) path: Vec<String>,
    /// The module of the statement, if the path is as it is written.
    pub(super) relative_to: Option<Vec<String>>,
    /// The name in the module: the last of the path, or the one after `as`.
    pub(super) name: String,
    /// True if other modules may import the name from here.
    pub(super) is_exported: bool,
}

/// The paths in the tokens of a source, without test code.
#[derive(Default)]
pub(super) struct Scan {
    place: Vec<String>,
    /// From `use` statements and from paths in the code.
    pub(super) imports: Vec<Import>,
    /// Paths in the code.
    pub(super) inline: Vec<Import>,
    pub(super) uses: Vec<Use>,
    /// The names outside of `use` statements.
    pub(super) words: BTreeSet<String>,
    pub(super) types: Vec<Type>,
    pub(super) macros: Vec<String>,
    /// The rooms that the root of the crate declares.
    pub(super) declared: Vec<String>,
    /// Modules in separate files that are compiled for tests only.
    of_tests: Vec<Vec<String>>,
    /// True behind `pub` and the like.
    is_exported: bool,
    /// True behind `pub` and `pub unsafe`.
    is_public: bool,
    /// True in a module that is no file of its own.
    is_inline: bool,
    /// The number of bodies around the current token.
    depth: usize,
}

/// A struct, enum, union, trait or type alias at the root of a module.
pub(super) struct Type {
    pub(super) line: usize,
    pub(super) name: String,
    /// True for a trait that is `pub` in its file. Traits in modules of the file seal others.
    pub(super) is_public_trait: bool,
}

impl Scan {
    fn walk(&mut self, tokens: &[TokenTree]) {
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            let rest = &tokens[at..];
            at += match token {
                TokenTree::Punct(punct) if punct.as_char() == '#' => self.attribute(rest),
                TokenTree::Group(group) => {
                    // Items in the braces of a macro are in its module.
                    let is_inner = usize::from(at == 0 || !is_punct(&tokens[at - 1], '!'));
                    self.depth += is_inner;
                    self.walk(&into_tokens(group.stream()));
                    self.depth -= is_inner;
                    1
                }
                TokenTree::Ident(ident) => {
                    let word = ident.to_string();
                    let taken = self.word(&word, rest);
                    self.is_exported = word == "pub";
                    self.is_public = self.is_public && word == "unsafe" || word == "pub" && taken == 1;
                    taken
                }
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
                let is_inline = std::mem::replace(&mut self.is_inline, true);
                self.place.push(name.to_string());
                self.walk(&into_tokens(group.stream()));
                self.place.pop();
                self.is_inline = is_inline;
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
                for (Import { line, path }, name) in paths {
                    let resolved = self.resolve(&path);
                    let relative_to = resolved.is_none().then(|| self.place.clone());
                    self.imports.extend(resolved.clone().map(|path| Import { line, path }));
                    let (path, is_exported) = (resolved.unwrap_or(path), self.is_exported);
                    self.uses.push(Use { line, path, relative_to, name, is_exported });
                }
                taken
            }
            ("crate" | "super" | "self", [_, colon, ..]) if is_punct(colon, ':') => {
                let mut paths = Vec::new();
                let taken = tree(tokens, Vec::new(), &mut paths);
                for (Import { line, path }, _) in paths {
                    let import = self.resolve(&path).map(|path| Import { line, path });
                    self.imports.extend(import.clone());
                    self.inline.extend(import);
                }
                taken
            }
            ("struct" | "enum" | "union" | "trait" | "type", [_, TokenTree::Ident(name), ..])
                if self.depth == 0 =>
            {
                let is_public_trait = word == "trait" && self.is_public && !self.is_inline;
                self.types.push(Type {
                    line: name.span().start().line,
                    name: name.to_string(),
                    is_public_trait,
                });
                2
            }
            _ => {
                self.words.insert(word.to_string());
                1
            }
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

/// Reads a path or a tree of paths, each with the name that it gives to its item. Returns the number of tokens.
fn tree(tokens: &[TokenTree], mut prefix: Vec<String>, found: &mut Vec<(Import, String)>) -> usize {
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
                let inner = into_tokens(group.stream());
                for part in inner.split(|token| is_punct(token, ',')).filter(|part| !part.is_empty()) {
                    tree(part, prefix.clone(), found);
                }
                return at + 1;
            }
            // A star, or generic arguments.
            Some(_) | None => {
                found.push((Import { line: line(at.saturating_sub(1)), path: prefix }, "*".to_string()));
                return at.max(1);
            }
        }
        if !tokens.get(at).is_some_and(|token| is_punct(token, ':'))
            || !tokens.get(at + 1).is_some_and(|token| is_punct(token, ':'))
        {
            let name = match tokens.get(at..) {
                Some([word, name, ..]) if is_word(word, "as") => name.to_string(),
                _ => prefix.last().cloned().unwrap_or_default(),
            };
            found.push((Import { line: line(at - 1), path: prefix }, name));
            return at;
        }
        at += 2;
    }
}

fn into_tokens(stream: TokenStream) -> Vec<TokenTree> {
    stream.into_iter().collect()
}

fn is_punct(token: &TokenTree, c: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == c)
}

fn is_word(token: &TokenTree, word: &str) -> bool {
    matches!(token, TokenTree::Ident(ident) if ident == word)
}

/// Returns whether an attribute is `cfg(test)`, `cfg(doctest)` or `cfg(all(test, …))`; code under `any` or `not` is compiled without tests too.
fn is_for_tests(attribute: TokenStream) -> bool {
    let tokens = into_tokens(attribute);
    tokens.windows(2).any(|two| match &two[1] {
        TokenTree::Group(group) if is_word(&two[0], "cfg") || is_word(&two[0], "all") => {
            let inner = into_tokens(group.stream());
            inner.iter().any(|token| is_word(token, "test") || is_word(token, "doctest"))
                || is_for_tests(group.stream())
        }
        _ => false,
    })
}

fn is_restriction(inside: TokenStream) -> bool {
    let first = inside.into_iter().next();
    first.is_some_and(|token| ["crate", "super", "self", "in"].iter().any(|word| is_word(&token, word)))
}

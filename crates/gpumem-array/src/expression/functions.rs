//! The texts of the functions that kernels call: those of `kernels/functions.cu`, each with what it needs.

use std::collections::HashMap;
use std::sync::OnceLock;

/// The text of these functions and of all that they need, in an order in which nothing is used before its definition.
pub(crate) fn texts(names: &[String]) -> String {
    if names.is_empty() {
        return String::new();
    }
    let library = library();
    let mut wanted: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut found: Vec<&LibraryItem> = Vec::new();
    while let Some(name) = wanted.pop() {
        if let Some(item) = library.get(name)
            && !found.iter().any(|known| known.place == item.place)
        {
            found.push(item);
            for word in words(item.text) {
                if library.contains_key(word) {
                    wanted.push(word);
                }
            }
        }
    }
    // Tables come before functions, and functions of CUDA's own before those that call them.
    found.sort_by_key(|item| item.place);
    found.iter().map(|item| item.text).collect()
}

/// A function or a table.
struct LibraryItem {
    place: (bool, bool, usize),
    text: &'static str,
}

fn library() -> &'static HashMap<&'static str, LibraryItem> {
    static LIBRARY: OnceLock<HashMap<&'static str, LibraryItem>> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let parts = parts(include_str!("../../kernels/functions.ptx"));
        let item = |(index, (name, text)): (usize, (&'static str, &'static str))| {
            let place = (text.starts_with(".func"), name.starts_with("gpumem_"), index);
            (name, LibraryItem { place, text })
        };
        parts.into_iter().enumerate().map(item).collect()
    })
}

/// The definitions of a text, with their names.
fn parts(text: &'static str) -> Vec<(&'static str, &'static str)> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(start) = starts(rest) {
        rest = &rest[start..];
        let end = definition_end(rest);
        let (part, behind) = rest.split_at(end);
        rest = behind;
        let is_declared_only = part.starts_with(".func") && !part.contains('{');
        if let Some(name) = name(part)
            && !is_declared_only
        {
            found.push((name, part));
        }
    }
    found
}

/// The start of the next definition, behind a word such as `.visible`.
fn starts(text: &str) -> Option<usize> {
    [".func", ".global .align", ".const .align"].iter().filter_map(|word| text.find(word)).min()
}

/// The end of the definition that a text begins with, with its line.
fn definition_end(text: &str) -> usize {
    let (brace, semicolon) = (text.find('{'), text.find(';').unwrap_or(text.len()));
    let end = match brace {
        Some(brace) if text.starts_with(".func") && brace < semicolon => {
            let mut depth = 0;
            let closes = |(_, letter): &(usize, char)| {
                depth += i32::from(*letter == '{') - i32::from(*letter == '}');
                depth == 0
            };
            brace + text[brace..].char_indices().find(closes).map_or(text.len() - brace, |(at, _)| at)
        }
        _ => semicolon,
    };
    text[end..].find('\n').map_or(text.len(), |line| end + line + 1)
}

/// The name that a definition gives: of a function after its result, of a table before its size.
fn name(part: &'static str) -> Option<&'static str> {
    let is_name = |word: &&str| word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    match part.strip_prefix(".func") {
        Some(head) => {
            let head = head.trim_start();
            let head =
                head.strip_prefix('(').and_then(|head| head.split_once(')')).map_or(head, |(_, head)| head);
            words(head).find(is_name)
        }
        None => part.split_once('[').and_then(|(head, _)| words(head).last()),
    }
}

fn words(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '.')))
        .filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_come_after_what_they_need() {
        let text = texts(&["gpumem_sin_f64".to_owned(), "gpumem_exp_f32".to_owned()]);
        let place = |name: &str| text.find(name).unwrap_or_else(|| panic!("no {name}"));
        assert!(place("__cudart_i2opi_d[") < place("__internal_trig_reduction_slowpathd("));
        assert!(place("__internal_trig_reduction_slowpathd(") < place("gpumem_trigonometric_f64("));
        assert!(place("gpumem_trigonometric_f64(") < place("gpumem_sin_f64("));
        assert!(!text.contains("gpumem_cos_f64"));
        assert_eq!(text.matches('{').count(), text.matches('}').count());
    }

    /// Functions of the library that call others of it.
    #[test]
    fn each_function_comes_after_those_that_it_calls() {
        let library = library();
        for name in library.keys() {
            let text = texts(&[(*name).to_owned()]);
            let defined = parts(Box::leak(text.into_boxed_str()));
            for (index, (caller, body)) in defined.iter().enumerate() {
                for later in &defined[index + 1..] {
                    assert!(!words(body).any(|word| word == later.0), "{caller} uses {}", later.0);
                }
            }
        }
    }

    #[test]
    fn the_library_has_all_functions_for_both_types() {
        let library = library();
        for of in ["f32", "f64"] {
            for name in ["exp", "sin", "pow", "atan2", "rem", "powi", "erf"] {
                assert!(library.contains_key(format!("gpumem_{name}_{of}").as_str()), "{name} {of}");
            }
        }
    }
}

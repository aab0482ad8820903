//! Parses the PTX of a module: its version, its target, and the parameters of each entry.
//!
//! The vendor's driver compiles the same text. Here a Rust function replaces each body, and the signature gives the layout of the
//! caller's parameters. Pure.

use crate::base::codes::{Answer, INVALID_IMAGE, INVALID_PTX, NO_BINARY_FOR_GPU, UNSUPPORTED_PTX_VERSION};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The parsed part of a module's text.
#[derive(Debug)]
pub(crate) struct Ptx {
    /// The target's compute capability, 70 for `sm_70`.
    pub(crate) target: u32,
    pub(crate) entries: BTreeMap<String, Arc<Signature>>,
}

/// The parameters of an entry, packed in order at their alignments.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Signature {
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) size_bytes: usize,
}

/// The position of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parameter {
    pub(crate) offset_bytes: usize,
    pub(crate) size_bytes: usize,
}

impl Ptx {
    /// Parses a module's image.
    pub(crate) fn parse(image: &[u8]) -> Answer<Self> {
        if image.starts_with(b"\x7fELF") || image.starts_with(&FAT_BINARY_MAGIC) {
            return Err(NO_BINARY_FOR_GPU);
        }
        let text = core::str::from_utf8(image).map_err(|_| INVALID_IMAGE)?;
        let text = without_comments(text);
        let version = after(&text, ".version").and_then(parse_version).ok_or(INVALID_PTX)?;
        if version > PTX_VERSION_MAX {
            return Err(UNSUPPORTED_PTX_VERSION);
        }
        let target = after(&text, ".target").and_then(parse_target).ok_or(INVALID_PTX)?;
        if target > COMPUTE_CAPABILITY {
            return Err(NO_BINARY_FOR_GPU);
        }
        let entries =
            text.split(".entry").skip(1).filter_map(|rest| parse_entry(rest).ok_or(INVALID_PTX).transpose());
        Ok(Self { target, entries: entries.collect::<Answer<_>>()? })
    }
}

impl Signature {
    fn push(&mut self, size_bytes: usize, alignment: usize) {
        let offset_bytes = self.size_bytes.next_multiple_of(alignment);
        self.parameters.push(Parameter { offset_bytes, size_bytes });
        self.size_bytes = offset_bytes + size_bytes;
    }
}

/// The text behind `.entry`, up to the next. The inner `None` is a declaration without a body, which is no kernel.
fn parse_entry(rest: &str) -> Option<Option<(String, Arc<Signature>)>> {
    let rest = rest.trim_start();
    let name_end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '$' || c == '%'))?;
    let (name, mut rest) = rest.split_at(name_end);
    let mut signature = Signature::default();
    if let Some(list) = rest.trim_start().strip_prefix('(') {
        let (parameters, behind) = list.split_once(')')?;
        rest = behind;
        for parameter in parameters.split(',').map(str::trim).filter(|text| !text.is_empty()) {
            let (size_bytes, alignment) = parse_parameter(parameter)?;
            signature.push(size_bytes, alignment);
        }
    }
    let mut end = rest.find(['{', ';'])?;
    // Of `.pragma "text";`, which comes before the body.
    while rest[..end].contains(".pragma") && rest[end..].starts_with(';') {
        rest = &rest[end + 1..];
        end = rest.find(['{', ';'])?;
    }
    let is_defined = rest[end..].starts_with('{');
    if name.is_empty() || is_defined && !rest.contains('}') {
        return None;
    }
    Some(is_defined.then(|| (name.to_string(), Arc::new(signature))))
}

/// Size and alignment of `.param .u64 x`, `.param .u64 .ptr .global .align 4 x` or `.param .align 8 .b8 x[24]`.
fn parse_parameter(text: &str) -> Option<(usize, usize)> {
    let mut words = text.split_whitespace().peekable();
    if words.next()? != ".param" {
        return None;
    }
    let mut alignment = None;
    if words.next_if_eq(&".align").is_some() {
        alignment = Some(words.next()?.parse::<usize>().ok().filter(|n| n.is_power_of_two() && *n <= 128)?);
    }
    let element_bytes = element_bytes(words.next()?)?;
    let count = match words.last()?.split_once('[') {
        Some((_, count)) => count.trim_end_matches(']').parse::<usize>().ok().filter(|n| *n <= 32_764)?,
        None => 1,
    };
    Some((element_bytes * count, alignment.unwrap_or(element_bytes)))
}

fn element_bytes(word: &str) -> Option<usize> {
    match word {
        ".u8" | ".s8" | ".b8" => Some(1),
        ".u16" | ".s16" | ".b16" | ".f16" => Some(2),
        ".u32" | ".s32" | ".b32" | ".f32" => Some(4),
        ".u64" | ".s64" | ".b64" | ".f64" => Some(8),
        _ => None,
    }
}

fn after<'a>(text: &'a str, directive: &str) -> Option<&'a str> {
    text.split_once(directive)?.1.split_whitespace().next()
}

fn parse_version(word: &str) -> Option<(u32, u32)> {
    let (major, minor) = word.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn parse_target(word: &str) -> Option<u32> {
    let digits = word.strip_prefix("sm_")?;
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

fn without_comments(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('/') {
        clean.push_str(&rest[..start]);
        rest = &rest[start..];
        if rest.starts_with("//") {
            rest = rest.find('\n').map_or("", |end| &rest[end..]);
        } else if rest.starts_with("/*") {
            rest = rest.find("*/").map_or("", |end| &rest[end + 2..]);
        } else {
            clean.push('/');
            rest = &rest[1..];
        }
    }
    clean.push_str(rest);
    clean
}

/// The compute capability of the device, as `major * 10 + minor`.
pub(crate) const COMPUTE_CAPABILITY: u32 = 90;
/// The PTX version that a driver of CUDA 13.0 accepts.
const PTX_VERSION_MAX: (u32, u32) = (9, 0);
const FAT_BINARY_MAGIC: [u8; 4] = [0x50, 0xED, 0x55, 0xBA];

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "// made by hand\n.version 8.0\n.target sm_70 /* or later */\n.address_size 64\n
        .visible .entry scale(\n\t.param .u64 .ptr .global .align 4 scale_param_0,\n\t.param .f32 scale_param_1,
        \t.param .align 8 .b8 scale_param_2[24], .param .u8 scale_param_3\n)\n.maxntid 256, 1, 1\n{ ret; }
        .entry nothing() .pragma \"nounroll\"; { ret; }\n.visible .entry bare { ret; }";

    #[test]
    fn entries_and_the_layout_of_their_parameters() {
        let ptx = Ptx::parse(TEXT.as_bytes()).unwrap();
        assert_eq!(ptx.target, 70);
        let layout = |name: &str| {
            let parameters = &ptx.entries[name].parameters;
            parameters.iter().map(|p| (p.offset_bytes, p.size_bytes)).collect::<Vec<_>>()
        };
        assert_eq!(layout("scale"), [(0, 8), (8, 4), (16, 24), (40, 1)]);
        assert_eq!(ptx.entries["scale"].size_bytes, 41);
        assert!(layout("nothing").is_empty() && layout("bare").is_empty());
    }

    #[test]
    fn what_is_no_module_for_this_device_is_refused() {
        let code = |text: &str| Ptx::parse(text.as_bytes()).unwrap_err();
        assert_eq!(code("hello"), INVALID_PTX);
        assert_eq!(code(".version 8.0\n.target sm_70\n.entry x(.param .what y) {}"), INVALID_PTX);
        for cut in ["x(.param .u64 y)", "x(.param .u64 y", "x() { ret;", "x", ""] {
            assert_eq!(code(&format!(".version 8.0\n.target sm_70\n.entry {cut}")), INVALID_PTX, "{cut}");
        }
        let declared = Ptx::parse(b".version 8.0\n.target sm_70\n.entry x(.param .u64 y);").unwrap();
        assert!(declared.entries.is_empty());
        assert_eq!(code(".version 9.9\n.target sm_70"), UNSUPPORTED_PTX_VERSION);
        assert_eq!(code(".version 8.8\n.target sm_120a"), NO_BINARY_FOR_GPU);
        assert_eq!(code("\x7fELF"), NO_BINARY_FOR_GPU);
        assert_eq!(Ptx::parse(&[0xFF, 0xFE]).unwrap_err(), INVALID_IMAGE);
    }
}

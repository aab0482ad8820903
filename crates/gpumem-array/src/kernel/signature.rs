//! [`Signatures`]: the parameters of each kernel of a PTX text, so that a launch can compare its arguments with them.
//!
//! Only the parts that a launch needs are parsed: names and sizes of `.entry` parameters. A kernel with unknown syntax there
//! has no signature, and its launches are not checked: the driver compiles the text and reports real errors.

use std::collections::HashMap;
use std::sync::Arc;

/// The kernels of a text, by name; `None` for a kernel with unknown syntax.
#[derive(Debug, Default)]
pub(crate) struct Signatures(HashMap<String, Option<Signature>>);

/// The parameters of a kernel, in order.
pub(crate) type Signature = Arc<[Parameter]>;

/// One parameter: `.param .u64 x`, `.param .u64 .ptr .global .align 4 x`, or `.param .align 8 .b8 x[24]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parameter {
    pub(crate) name: String,
    pub(crate) size_bytes: usize,
}

impl Signatures {
    pub(crate) fn parse(ptx: &str) -> Self {
        let mut tokens = Tokens(ptx).peekable();
        let mut found = HashMap::new();
        while let Some(token) = tokens.next() {
            if token == ".entry"
                && let Some(name) = tokens.next()
            {
                let mut list = Vec::new();
                if tokens.next_if_eq(&"(").is_some() {
                    list.extend(tokens.by_ref().take_while(|token| *token != ")"));
                }
                // A declaration may follow the definition, and has the same parameters.
                found.insert(name.to_owned(), parameters(&list));
            }
        }
        Self(found)
    }

    /// The parameters of one kernel of a text that the CUDA compiler wrote, if they are known.
    pub(crate) fn of_entry(ptx: &str, name: &str) -> Option<Signature> {
        let (_, entry) = ptx.split_once(&format!(".entry {name}("))?;
        let (list, _) = entry.split_once(')')?;
        parameters(&Tokens(list).collect::<Vec<_>>())
    }

    /// The parameters of a kernel, if they are known.
    pub(crate) fn of(&self, name: &str) -> Option<Signature> {
        self.0.get(name).cloned().flatten()
    }
}

fn parameters(tokens: &[&str]) -> Option<Signature> {
    if tokens.is_empty() {
        return Some([].into());
    }
    tokens.split(|token| *token == ",").map(parameter).collect()
}

fn parameter(tokens: &[&str]) -> Option<Parameter> {
    let mut tokens = tokens.iter().copied().peekable();
    if tokens.next()? != ".param" {
        return None;
    }
    let (mut element_bytes, mut is_pointer, mut name) = (None, false, None);
    // Attributes come before and after the type.
    while let Some(token) = tokens.next() {
        match token {
            ".align" => {
                tokens.next()?;
            }
            ".ptr" => is_pointer = true,
            ".const" | ".global" | ".local" | ".shared" if is_pointer => {}
            _ if token.starts_with('.') => element_bytes = Some(size_bytes(token)?),
            _ => {
                name = Some(token);
                break;
            }
        }
    }
    let (name, element_bytes) = (name?, element_bytes?);
    let mut size_bytes: usize = element_bytes;
    while tokens.next_if_eq(&"[").is_some() {
        size_bytes = size_bytes.checked_mul(tokens.next()?.parse().ok()?)?;
        (tokens.next()? == "]").then_some(())?;
    }
    tokens.next().is_none().then(|| Parameter { name: name.to_owned(), size_bytes })
}

fn size_bytes(kind: &str) -> Option<usize> {
    match kind {
        ".u8" | ".s8" | ".b8" => Some(1),
        ".u16" | ".s16" | ".b16" | ".f16" | ".bf16" => Some(2),
        ".u32" | ".s32" | ".b32" | ".f32" | ".f16x2" | ".bf16x2" => Some(4),
        ".u64" | ".s64" | ".b64" | ".f64" => Some(8),
        ".b128" => Some(16),
        _ => None,
    }
}

/// Words and single characters. A dot begins a word. Comments are skipped, and so are strings.
struct Tokens<'a>(&'a str);

impl<'a> Iterator for Tokens<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        loop {
            let rest = self.0.trim_start();
            let first = rest.chars().next()?;
            let skipped = if rest.starts_with("//") {
                Some(rest.find('\n').unwrap_or(rest.len()))
            } else if let Some(comment) = rest.strip_prefix("/*") {
                Some(comment.find("*/").map_or(rest.len(), |end| end + 4))
            } else {
                rest.strip_prefix('"').map(|string| string.find('"').map_or(rest.len(), |end| end + 2))
            };
            if let Some(end) = skipped {
                self.0 = &rest[end..];
                continue;
            }
            let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%');
            let end = match first {
                '.' => rest[1..].find(|c| !is_word(c)).map_or(rest.len(), |end| end + 1),
                _ if is_word(first) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
                _ => first.len_utf8(),
            };
            let (token, rest) = rest.split_at(end);
            self.0 = rest;
            return Some(token);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn layout(signatures: &Signatures, name: &str) -> Vec<(String, usize)> {
        let parameters = signatures.of(name).unwrap();
        parameters.iter().map(|parameter| (parameter.name.clone(), parameter.size_bytes)).collect()
    }

    #[test]
    fn entries_with_every_form_of_a_parameter() {
        let text = ".version 8.0 .target sm_70 // .entry hidden(.param .u8 x)
            /* .entry hidden() */ .file 1 \".entry hidden()\" .weak .entry plain { ret; }
            .visible .entry all$_1( .param .u64 .ptr .global .align 16 p, .param .f32 f,\n\t.param .align 8 .b8 s[24],
            .param .b16 h , .param .u64 .ptr.shared.align 4 q, .param .align 16 .b128 w[2]) .maxntid 256, 1, 1 { }
            .entry none() .entry strange(.param .texref t) .entry cut(.param .u64";
        let signatures = Signatures::parse(text);
        let expected = [("p", 8), ("f", 4), ("s", 24), ("h", 2), ("q", 8), ("w", 32)];
        assert_eq!(layout(&signatures, "all$_1"), expected.map(|(name, size)| (name.to_owned(), size)));
        assert!(layout(&signatures, "plain").is_empty() && layout(&signatures, "none").is_empty());
        assert_eq!(
            (signatures.of("strange"), signatures.of("cut"), signatures.of("hidden")),
            (None, None, None)
        );
    }

    /// A parameter as text, with its size.
    fn any_parameter() -> impl Strategy<Value = (String, usize)> {
        let kinds = [(".u8", 1), (".s16", 2), (".b32", 4), (".f32", 4), (".f64", 8), (".u64", 8)];
        let kind = prop::sample::select(kinds.to_vec());
        (kind, prop::option::of(0..6_u32), prop::option::of(1..40_usize), any::<bool>()).prop_map(
            |((kind, bytes), alignment, count, is_pointer)| {
                let align = alignment.map_or(String::new(), |bits| format!(".align {} ", 1 << bits));
                let pointer = if is_pointer { ".ptr .global .align 4 " } else { "" };
                let array = count.map_or(String::new(), |count| format!("[{count}]"));
                (format!(".param {align}{kind} {pointer}NAME{array}"), bytes * count.unwrap_or(1))
            },
        )
    }

    proptest! {
        #[test]
        fn a_written_signature_is_read_back(
            kernels in vec(vec(any_parameter(), 0..9), 1..5),
            space in prop::sample::select(vec![" ", "\n\t", " /* , ( */ ", "// )\n"]),
        ) {
            let text: String = kernels.iter().enumerate().map(|(index, parameters)| {
                let list = parameters.iter().enumerate().map(|(at, (text, _))| text.replace("NAME", &format!("p_{at}")));
                let list = list.collect::<Vec<_>>().join(",").replace(' ', space);
                format!(".visible{space}.entry{space}k{index}({list}){space}{{ ld.param.u64 %rd1, [k_param_0]; ret; }}\n")
            }).collect();
            let signatures = Signatures::parse(&text);
            for (index, parameters) in kernels.iter().enumerate() {
                let expected: Vec<_> = parameters.iter().enumerate()
                    .map(|(at, (_, size))| (format!("p_{at}"), *size)).collect();
                prop_assert_eq!(layout(&signatures, &format!("k{index}")), expected);
            }
        }

        #[test]
        fn any_text_is_read_without_a_panic(text in "(\\.entry|\\.param|\\.u64|\\.align|[a-z]{1,3}|[0-9]{1,30}|[\\[\\](),/*\" \n§.]){0,40}") {
            let signatures = Signatures::parse(&text);
            prop_assert!(signatures.0.len() <= 40);
        }
    }
}

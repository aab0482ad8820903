//! [`Signatures`]: the parameters of each kernel of a PTX text, so that a launch can compare its arguments with them.
//!
//! Only the parts that a launch needs are parsed: names, sizes and alignments of `.entry` parameters. A kernel with unknown syntax there
//! has no signature, and its launches are not checked: the driver compiles the text and reports real errors.

use std::collections::HashMap;
use std::sync::Arc;

/// The kernels of a text, by name.
#[derive(Debug, Default)]
pub(crate) struct Signatures(HashMap<String, ParsedKernel>);

#[derive(Debug)]
struct ParsedKernel {
    signature: Option<Signature>,
    /// True if the kernel has an instruction before its end.
    has_code: bool,
}

/// The parameters of a kernel, in order.
pub(crate) type Signature = Arc<[Parameter]>;

/// One parameter: `.param .u64 x`, `.param .u64 .ptr .global .align 4 x`, or `.param .align 8 .b8 x[24]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parameter {
    pub(crate) name: String,
    pub(crate) size_bytes: usize,
    pub(crate) alignment: usize,
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
                // Directives such as `.maxntid` and `.pragma "text";` come between the parameters and the body.
                while let Some(token) = tokens.next_if(|token| !matches!(*token, "{" | ";" | ".entry")) {
                    if token == ".pragma" {
                        tokens.by_ref().take_while(|token| *token != ";").for_each(drop);
                    }
                }
                let is_defined = tokens.next_if_eq(&"{").is_some();
                let has_code = is_defined && has_code(tokens.clone());
                let entry = ParsedKernel { signature: parameters(&list), has_code };
                // A declaration may follow the definition.
                if is_defined || !found.contains_key(name) {
                    found.insert(name.to_owned(), entry);
                }
            }
        }
        Self(found)
    }

    /// True if the text has a kernel with this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// True if the text has instructions for a kernel with this name.
    pub(crate) fn has_code(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|entry| entry.has_code)
    }

    /// True if the text has a kernel with this name that has parameters and an empty body.
    pub(crate) fn is_empty_kernel(&self, name: &str) -> bool {
        let has_parameters =
            |entry: &ParsedKernel| entry.signature.as_ref().is_none_or(|list| !list.is_empty());
        self.0.get(name).is_some_and(|entry| !entry.has_code && has_parameters(entry))
    }

    /// Renames the parameters of a kernel, in order.
    pub(crate) fn rename<'a>(&mut self, kernel: &str, names: impl Iterator<Item = &'a str>) {
        if let Some(signature) = self.0.get_mut(kernel).and_then(|entry| entry.signature.as_mut()) {
            let renamed =
                |(parameter, name): (&Parameter, &str)| Parameter { name: name.to_owned(), ..*parameter };
            *signature = signature.iter().zip(names).map(renamed).collect();
        }
    }

    /// The parameters of a kernel, if they are known.
    pub(crate) fn of(&self, name: &str) -> Option<Signature> {
        self.0.get(name).and_then(|entry| entry.signature.clone())
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
    let (mut alignment, mut element_bytes, mut is_pointer, mut name) = (None, None, false, None);
    // Attributes come before and after the type; the alignment after `.ptr` applies to the memory pointed to.
    while let Some(token) = tokens.next() {
        match token {
            ".align" => {
                let bytes: usize =
                    tokens.next()?.parse().ok().filter(|bytes: &usize| bytes.is_power_of_two())?;
                if !is_pointer {
                    alignment = Some(bytes);
                }
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
    let alignment = alignment.unwrap_or(element_bytes);
    tokens.next().is_none().then(|| Parameter { name: name.to_owned(), size_bytes, alignment })
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

/// True if the body of a kernel, after its brace, has an instruction. Directives and labels are not instructions.
fn has_code<'a>(tokens: impl Iterator<Item = &'a str>) -> bool {
    let mut tokens = tokens.peekable();
    while let Some(token) = tokens.next() {
        match token {
            "}" => return false,
            "{" | ";" | "ret" | "exit" => {}
            // A line number has no semicolon: `.loc 1 27 5`, with `, function_name $name, inlined_at 1 30 2` for inlined functions.
            ".loc" => {
                let is_part = |token: &&str| {
                    matches!(*token, "," | "function_name" | "inlined_at")
                        || token.starts_with(|first: char| first.is_ascii_digit() || first == '$')
                };
                while tokens.next_if(is_part).is_some() {}
            }
            directive if directive.starts_with('.') => {
                tokens.by_ref().take_while(|token| *token != ";").for_each(drop)
            }
            _ => {
                let is_label = tokens.next_if_eq(&":").is_some();
                if !is_label {
                    return true;
                }
            }
        }
    }
    false
}

/// Words and single characters. A dot begins a word. Comments are skipped, and so are strings.
#[derive(Clone)]
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

    fn layout(signatures: &Signatures, name: &str) -> Vec<(String, usize, usize)> {
        let parameters = signatures.of(name).unwrap();
        parameters.iter().map(|p| (p.name.clone(), p.size_bytes, p.alignment)).collect()
    }

    #[test]
    fn entries_with_every_form_of_a_parameter() {
        let text = ".version 8.0 .target sm_70 // .entry hidden(.param .u8 x)
            /* .entry hidden() */ .file 1 \".entry hidden()\" .weak .entry plain { ret; }
            .visible .entry all$_1( .param .u64 .ptr .global .align 16 p, .param .f32 f,\n\t.param .align 8 .b8 s[24],
            .param .b16 h , .param .u64 .ptr.shared.align 4 q, .param .align 16 .b128 w[2]) .maxntid 256, 1, 1 { }
            .entry none() .entry strange(.param .texref t) .entry cut(.param .u64";
        let signatures = Signatures::parse(text);
        let expected = [("p", 8, 8), ("f", 4, 4), ("s", 24, 8), ("h", 2, 2), ("q", 8, 8), ("w", 32, 16)];
        assert_eq!(
            layout(&signatures, "all$_1"),
            expected.map(|(name, size, at)| (name.to_owned(), size, at))
        );
        assert!(layout(&signatures, "plain").is_empty() && layout(&signatures, "none").is_empty());
        assert!(signatures.has("strange") && signatures.of("strange").is_none());
        assert!(signatures.has("cut") && signatures.of("cut").is_none());
        assert!(!signatures.has("hidden"));
    }

    #[test]
    fn bodies_with_and_without_instructions() {
        let loc = ".loc 1 27 5\n.loc 2 3 4, function_name $L__info, inlined_at 1 30 2";
        for (body, is_code) in [
            ("", false),
            ("ret;", false),
            ("exit;", false),
            (".reg .b32 %r<2>; ret;", false),
            (&format!("{loc} ret;"), false),
            ("$L__end: ret;", false),
            (".pragma \"nounroll\"; { .reg .pred %p; } ret;", false),
            ("mov.u32 %r1, %tid.x; ret;", true),
            (".reg .b32 %r<2>; mov.u32 %r1, 0; ret;", true),
            (&format!("{loc} trap;"), true),
            ("$L__loop: bra $L__loop;", true),
            ("@%p1 bra $L__end; $L__end: ret;", true),
        ] {
            let signatures =
                Signatures::parse(&format!(".entry k(.param .u64 x) {{ {body} }} .entry next() {{ trap; }}"));
            assert_eq!(signatures.has_code("k"), is_code, "{body}");
            assert!(signatures.has_code("next") && signatures.is_empty_kernel("k") != is_code, "{body}");
        }
    }

    /// A parameter as text, with its size and alignment.
    fn any_parameter() -> impl Strategy<Value = (String, usize, usize)> {
        let kinds = [(".u8", 1), (".s16", 2), (".b32", 4), (".f32", 4), (".f64", 8), (".u64", 8)];
        let kind = prop::sample::select(kinds.to_vec());
        (kind, prop::option::of(0..6_u32), prop::option::of(1..40_usize), any::<bool>()).prop_map(
            |((kind, bytes), alignment, count, is_pointer)| {
                let align = alignment.map_or(String::new(), |bits| format!(".align {} ", 1 << bits));
                let pointer = if is_pointer { ".ptr .global .align 4 " } else { "" };
                let array = count.map_or(String::new(), |count| format!("[{count}]"));
                let size_bytes = bytes * count.unwrap_or(1);
                (
                    format!(".param {align}{kind} {pointer}NAME{array}"),
                    size_bytes,
                    alignment.map_or(bytes, |bits| 1 << bits),
                )
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
                let list = parameters.iter().enumerate().map(|(at, (text, ..))| text.replace("NAME", &format!("p_{at}")));
                let list = list.collect::<Vec<_>>().join(",").replace(' ', space);
                format!(".visible{space}.entry{space}k{index}({list}){space}{{ ld.param.u64 %rd1, [k_param_0]; ret; }}\n")
            }).collect();
            let signatures = Signatures::parse(&text);
            for (index, parameters) in kernels.iter().enumerate() {
                let expected: Vec<_> = parameters.iter().enumerate()
                    .map(|(at, (_, size, alignment))| (format!("p_{at}"), *size, *alignment)).collect();
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

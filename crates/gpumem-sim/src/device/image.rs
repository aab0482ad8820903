//! Images of modules: a PTX text, several linked texts, or a fat binary that contains PTX.

use crate::base::codes::{INVALID_IMAGE, INVALID_PTX, NO_BINARY_FOR_GPU, UNSUPPORTED_PTX_VERSION};
use crate::device::fat_binary;
use core::ffi::CStr;
use gpumem_ptx::{LinkError, Module, PtxError, PtxProblem};
use gpumem_sys::text::Shown;
use gpumem_sys::types::CUresult;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Why an image cannot be loaded: the code, and the text for the error log.
#[derive(Debug)]
pub(crate) struct ImageError {
    pub(crate) code: CUresult,
    pub(crate) text: String,
}

impl ImageError {
    pub(crate) fn new(code: CUresult, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// Machine code without PTX.
    pub(crate) fn machine_code() -> Self {
        Self::new(
            NO_BINARY_FOR_GPU,
            "the image is machine code, which the simulator does not run; compile with \
             `-gencode arch=compute_XX,code=compute_XX`, so that PTX is in it",
        )
    }

    /// The error of a text as the vendor's compiler writes it.
    fn of_text(LinkError { input, error }: &LinkError, input_count: usize) -> Self {
        let PtxError { line, column, what } = error;
        let (code, kind) = match what {
            PtxProblem::Version { .. } => (UNSUPPORTED_PTX_VERSION, "fatal  "),
            _ => (INVALID_PTX, "error  "),
        };
        let input = if input_count > 1 { format!(" {}", input + 1) } else { String::new() };
        Self::new(
            code,
            format!("ptxas application ptx input{input}, line {line}, column {column}; {kind} : {what}"),
        )
    }
}

/// The PTX of an image. A text may end before its last byte, with NUL.
pub(crate) fn text(image: &[u8]) -> Result<Cow<'_, str>, ImageError> {
    if image.starts_with(&ELF_MAGIC) {
        return Err(ImageError::machine_code());
    }
    if image.starts_with(&fat_binary::MAGIC) {
        return fat_binary::text(image).map(Cow::Owned);
    }
    let image = CStr::from_bytes_until_nul(image).map_or(image, CStr::to_bytes);
    characters(image)
        .ok_or_else(|| ImageError::new(INVALID_IMAGE, "the image is neither PTX nor a fat binary"))
}

/// The characters of a text. A comment may have bytes of any encoding: in place of those that are no UTF-8 there is a character that
/// only comments may have.
pub(crate) fn characters(bytes: &[u8]) -> Option<Cow<'_, str>> {
    if let Ok(text) = core::str::from_utf8(bytes) {
        return Some(text.into());
    }
    let text = String::from_utf8_lossy(bytes);
    text.contains(".version").then_some(text)
}

/// Parses a text. Equal texts are parsed once, for as long as they are among the last few.
pub(crate) fn parse(text: &str) -> Result<Arc<Module>, ImageError> {
    let mut parsed = PARSED.lock().unwrap_or_else(PoisonError::into_inner);
    let known = parsed.iter().find(|(known, _)| known == text);
    let module = match known {
        Some((_, module)) => Arc::clone(module),
        None => {
            let inputs: Vec<&str> = match text.strip_prefix(LINK_MARK) {
                Some(inputs) => inputs.split(LINK_MARK).collect(),
                None => vec![text],
            };
            let module = Module::link(&inputs).map_err(|error| ImageError::of_text(&error, inputs.len()))?;
            let module = Arc::new(module);
            if parsed.len() == PARSED_MAX {
                parsed.pop_front();
            }
            parsed.push_back((text.to_string(), Arc::clone(&module)));
            module
        }
    };
    let target = module.target();
    if target > COMPUTE_CAPABILITY {
        let text = format!("the PTX is for sm_{target}, and the device has sm_{COMPUTE_CAPABILITY}");
        return Err(ImageError::new(NO_BINARY_FOR_GPU, text));
    }
    Ok(module)
}

/// The image of linked texts, which [`parse`] takes.
pub(crate) fn linked<'t>(inputs: impl Iterator<Item = &'t str>) -> String {
    inputs.fold(String::new(), |image, input| image + LINK_MARK + input.trim_start_matches(LINK_MARK))
}

/// Refuses a target of `CU_JIT_TARGET` that the text is too new for, or whose machine code the device does not run.
pub(crate) fn check_target(module: &Module, target: Option<u32>) -> Result<(), ImageError> {
    let Some(target) = target else { return Ok(()) };
    let needed = module.target();
    let text = if needed > target {
        format!("the PTX is for sm_{needed}, and CU_JIT_TARGET asks for sm_{target}")
    } else if target != COMPUTE_CAPABILITY {
        format!("CU_JIT_TARGET asks for sm_{target}, and the device has sm_{COMPUTE_CAPABILITY}")
    } else {
        return Ok(());
    };
    Err(ImageError::new(NO_BINARY_FOR_GPU, text))
}

/// Refuses kernels that need what no text defines, except those that a Rust function replaces.
pub(crate) fn check_defined(module: &Module, is_replaced: impl Fn(&str) -> bool) -> Result<(), ImageError> {
    for entry in module.entries().iter().filter(|entry| !is_replaced(entry.name())) {
        if let Some(PtxProblem::Undefined(name)) = entry.unsupported().map(|error| &error.what) {
            let (name, entry) = (Shown::name(name), Shown::name(entry.name()));
            let text = format!("error   : Undefined reference to '{name}' in kernel '{entry}'");
            return Err(ImageError::new(INVALID_PTX, text));
        }
    }
    Ok(())
}

/// Why kernels of a module cannot run, a line for each, except for those that a Rust function replaces.
pub(crate) fn notes(module: &Module, is_replaced: impl Fn(&str) -> bool) -> Vec<String> {
    let entries = module.entries().iter().filter(|entry| !is_replaced(entry.name()));
    entries.filter_map(|entry| Some(cannot_run(entry.name(), entry.unsupported()?))).collect()
}

/// Why a kernel cannot run.
pub(crate) fn cannot_run(name: &str, error: &PtxError) -> String {
    format!("kernel `{}` cannot run here: {error}", Shown::name(name))
}

static PARSED: Mutex<VecDeque<(String, Arc<Module>)>> = Mutex::new(VecDeque::new());
/// Each type of expression has a text of its own.
const PARSED_MAX: usize = 512;

/// The compute capability of the device, as `major * 10 + minor`.
pub(crate) const COMPUTE_CAPABILITY: u32 = 90;
pub(crate) const ELF_MAGIC: [u8; 4] = *b"\x7fELF";
/// The line before each of several linked texts.
const LINK_MARK: &str = "// An input of a link by gpumem's simulator.\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_module_for_this_device_is_refused() {
        let code = |text: &str| parse(text).unwrap_err().code;
        assert_eq!(code("hello"), INVALID_PTX);
        assert_eq!(code(".version 8.0\n.target sm_70\n.entry x(.param .what y) {}"), INVALID_PTX);
        for cut in ["x(.param .u64 y)", "x(.param .u64 y", "x() { ret;", "x", ""] {
            assert_eq!(code(&format!(".version 8.0\n.target sm_70\n.entry {cut}")), INVALID_PTX, "{cut}");
        }
        let declared =
            |linking: &str| format!(".version 8.0\n.target sm_70\n{linking}.entry x(.param .u64 y);");
        assert_eq!(code(&declared("")), INVALID_PTX);
        assert!(parse(&declared(".extern ")).unwrap().entries().is_empty());
        assert_eq!(code(".version 9.9\n.target sm_70"), UNSUPPORTED_PTX_VERSION);
        assert_eq!(code(".version 8.8\n.target sm_120a"), NO_BINARY_FOR_GPU);
        assert_eq!(text(b"\x7fELF").unwrap_err().code, NO_BINARY_FOR_GPU);
        assert_eq!(text(&[0xFF, 0xFE]).unwrap_err().code, INVALID_IMAGE);
    }
}

//! Functions by name and version, and the texts of result codes as C strings.

use core::ffi::{CStr, c_int, c_void};
use gpumem_sys::types::CUresult;
use gpumem_sys::{CudaVersion, Table};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::OnceLock;

/// The result of a search for a function.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Function(*mut c_void),
    /// The function exists, but not in the requested version of CUDA.
    TooNew,
    Unknown,
}

/// The latest revision of a function that a version of CUDA had: `cuMemAlloc` at 12000 is `cuMemAlloc_v2`.
pub(crate) fn find(table: &Table, name: &CStr, version: c_int) -> Found {
    let Ok(name) = name.to_str() else { return Found::Unknown };
    let pointers = pointers(table);
    let present = Table::SYMBOLS.iter().zip(pointers).filter(|(_, pointer)| !pointer.is_null());
    let revisions = present.filter(|(symbol, _)| is_revision(symbol.name, name));
    let version = CudaVersion(version.max(0) as u32);
    let mut found = Found::Unknown;
    let mut newest = None;
    for (symbol, &pointer) in revisions {
        if symbol.since > version {
            if found == Found::Unknown {
                found = Found::TooNew;
            }
        } else if newest.is_none_or(|since| since <= symbol.since) {
            newest = Some(symbol.since);
            found = Found::Function(pointer);
        }
    }
    found
}

/// True if a symbol is a function of this name or a revision of it.
pub(crate) fn is_revision(symbol: &str, name: &str) -> bool {
    symbol.strip_prefix(name).is_some_and(|rest| rest.is_empty() || is_suffix(rest))
}

/// A function's name without the suffix of its revision: `cuMemAlloc` of `cuMemAlloc_v2`.
pub(crate) fn plain_name(symbol: &str) -> &str {
    match symbol.rfind("_v") {
        Some(at) if is_suffix(&symbol[at..]) => &symbol[..at],
        _ => symbol,
    }
}

fn is_suffix(text: &str) -> bool {
    text.strip_prefix("_v")
        .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

fn pointers(table: &Table) -> &[*mut c_void] {
    let len = Table::SYMBOLS.len();
    // SAFETY: the table is `repr(C)` and consists of one optional function pointer for each symbol, in that order;
    // such an option has the size of a pointer, and is null when absent.
    unsafe { core::slice::from_raw_parts(core::ptr::from_ref(table).cast(), len) }
}

/// A result code's name.
pub(crate) fn error_name(code: CUresult) -> Option<&'static CStr> {
    words(code).map(|(name, _)| name.as_c_str())
}

/// A result code's meaning.
pub(crate) fn error_text(code: CUresult) -> Option<&'static CStr> {
    words(code).map(|(_, text)| text.as_c_str())
}

fn words(code: CUresult) -> Option<&'static (CString, CString)> {
    static WORDS: OnceLock<BTreeMap<u32, (CString, CString)>> = OnceLock::new();
    let words = WORDS.get_or_init(|| {
        let c_string = |text: &str| CString::new(text).unwrap_or_default();
        CUresult::NAMES.iter().map(|(code, name)| (code.0, (c_string(name), c_string(code.text())))).collect()
    });
    words.get(&code.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_revision_of_the_version_asked_for_is_found() {
        let table = crate::entry::table::<0>();
        let address = |name, version| find(&table, name, version);
        let alloc = Found::Function(table.cuMemAlloc_v2.unwrap() as *mut c_void);
        assert_eq!(address(c"cuMemAlloc", 13_000), alloc);
        assert_eq!(address(c"cuMemAllocAsync", 11_010), Found::TooNew);
        assert_eq!(address(c"cuMemA", 13_000), Found::Unknown);
        assert_eq!(address(c"cuGraphicsMapResources", 13_000), Found::Unknown);
    }

    #[test]
    fn codes_have_words() {
        assert_eq!(error_name(CUresult::CUDA_ERROR_OUT_OF_MEMORY), Some(c"CUDA_ERROR_OUT_OF_MEMORY"));
        assert_eq!(error_text(CUresult(4242)), None);
    }
}

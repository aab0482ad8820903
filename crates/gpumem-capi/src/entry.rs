//! The functions that C calls. Each checks its arguments, looks up its handles, and reports errors by code and text.
//!
//! Results are written only on success, except the length of a text, which is always written.

mod arguments;
mod captures;
mod memory;
mod pools;
mod reclaim;
mod scopes;
mod spillable;
mod status;
mod streams;

pub use captures::*;
pub use memory::*;
pub use pools::*;
pub use reclaim::*;
pub use scopes::*;
pub use spillable::*;
pub use status::*;
pub use streams::*;

use crate::error::{self, gpumem_result, guarded};
use ::gpumem_pool::Interface;
use core::ffi::c_char;

/// The version of this header: 10000 × major + 100 × minor + patch. `gpumem_version` returns the library's version.
pub const GPUMEM_VERSION: u32 = 100;

/// Returns the version of the library, as `GPUMEM_VERSION` counts. A library of the same major version, and before 1.0 of the same minor
/// version, serves programs that were compiled with an older header.
#[unsafe(no_mangle)]
pub extern "C" fn gpumem_version() -> u32 {
    GPUMEM_VERSION
}

/// Returns the text of this thread's last error: the problem, the cause and the action. It is empty before the first error and
/// while the thread ends, is not reset by a success, and is valid until this thread's next error. Never null.
#[unsafe(no_mangle)]
pub extern "C" fn gpumem_last_error() -> *const c_char {
    error::last()
}

/// Returns `FORKED` if the process was forked from one that had opened a driver, like every function that needs the driver. Succeeds
/// otherwise. Takes no lock.
#[unsafe(no_mangle)]
pub extern "C" fn gpumem_check_process() -> gpumem_result {
    guarded(|| Ok(()))
}

/// Like `gpumem_last_error`, with the names of functions and options of another interface, such as `GPUMEM_INTERFACE_PYTHON`, for programs
/// that wrap this one. The text is valid until this thread's next error or next call of this function.
#[unsafe(no_mangle)]
pub extern "C" fn gpumem_last_error_as(interface: u32) -> *const c_char {
    error::last_as(interface_of(interface).unwrap_or(Interface::C))
}

/// Texts use the names of this interface.
pub const GPUMEM_INTERFACE_C: u32 = 0;
/// Texts use the names of `gpumem.Pool` in Python.
pub const GPUMEM_INTERFACE_PYTHON: u32 = 1;
/// Texts use the names of `gpumem.torch`.
pub const GPUMEM_INTERFACE_PYTORCH: u32 = 2;
/// Texts use the names of `gpumem.cupy`.
pub const GPUMEM_INTERFACE_CUPY: u32 = 3;
/// Texts use the names of `gpumem.rmm`.
pub const GPUMEM_INTERFACE_RMM: u32 = 4;

fn interface_of(number: u32) -> Option<Interface> {
    Some(match number {
        GPUMEM_INTERFACE_C => Interface::C,
        GPUMEM_INTERFACE_PYTHON => Interface::Python,
        GPUMEM_INTERFACE_PYTORCH => Interface::PyTorch,
        GPUMEM_INTERFACE_CUPY => Interface::CuPy,
        GPUMEM_INTERFACE_RMM => Interface::Rmm,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::{Path, PathBuf};

    /// The files of this crate.
    fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { sources(&path, found) } else { found.push(path) }
        }
    }

    /// The literals of a source, except its tests, with their continuation lines joined.
    fn literals(source: &str) -> Vec<String> {
        let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let lines = code.lines().map(str::trim_start).filter(|line| !line.starts_with("//"));
        let code = lines.collect::<Vec<_>>().join("\n").replace("\\\n", "").replace("\\\"", "'");
        code.split('"').skip(1).step_by(2).map(str::to_owned).collect()
    }

    /// Flags and variables that all interfaces have, or that only a program which wraps this one sets.
    const OF_ALL: [&str; 3] = ["GPUMEM_FROM_ENVIRONMENT", "GPUMEM_INTERFACE_C", "GPUMEM_TRACE"];

    /// Python programs read the texts of this crate too, with the names of the Python package.
    #[test]
    fn texts_name_what_each_interface_has() {
        let mut files = Vec::new();
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
        let texts = files.iter().flat_map(|file| literals(&std::fs::read_to_string(file).unwrap()));
        let texts: Vec<_> = texts.filter(|text| text.contains(' ')).collect();
        assert!(texts.len() > 20, "{} texts found", texts.len());
        for text in texts {
            for number in GPUMEM_INTERFACE_C..=GPUMEM_INTERFACE_RMM {
                let translated = interface_of(number).unwrap().translate(&text);
                let names =
                    translated.split(|letter: char| !(letter.is_alphanumeric() || "_:".contains(letter)));
                let left: Vec<_> = names
                    .filter(|name| name.contains("::") || name.to_lowercase().starts_with("gpumem_"))
                    .filter(|name| {
                        !OF_ALL.contains(name) && (number != GPUMEM_INTERFACE_C || name.contains("::"))
                    })
                    .collect();
                assert!(
                    left.is_empty(),
                    "interface {number}: {left:?} in {translated:?}; write the names in Rust"
                );
            }
        }
    }

    #[test]
    fn the_version_is_that_of_the_package() {
        let parts: Vec<u32> =
            env!("CARGO_PKG_VERSION").split('.').filter_map(|part| part.parse().ok()).collect();
        assert_eq!(parts.len(), 3);
        assert_eq!(GPUMEM_VERSION, 10_000 * parts[0] + 100 * parts[1] + parts[2]);
    }
}

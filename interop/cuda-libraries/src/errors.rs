//! Errors of CUDA's runtime: the last one of a thread, and their names and texts.

use crate::driver::{Code, cuGetErrorString};
use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::ptr::null;

pub const INVALID_CONFIGURATION: Code = 9;
pub const INVALID_DEVICE_FUNCTION: Code = 98;

thread_local! {
    static LAST_ERROR: Cell<Code> = const { Cell::new(0) };
}

/// Keeps an error for `cudaGetLastError`.
pub fn result(code: Code) -> Code {
    if code != 0 {
        LAST_ERROR.set(code);
    }
    code
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetLastError() -> Code {
    LAST_ERROR.replace(0)
}

#[unsafe(no_mangle)]
extern "C" fn cudaPeekAtLastError() -> Code {
    LAST_ERROR.get()
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorName(code: Code) -> *const c_char {
    NAMES.iter().find(|(known, _)| *known == code).map_or(UNKNOWN, |(_, name)| *name).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorString(code: Code) -> *const c_char {
    let mut text = null();
    // SAFETY: the driver writes the address of a literal, or null for a code that it does not have.
    unsafe { cuGetErrorString(code, &raw mut text) };
    match code {
        // The runtime's own.
        INVALID_CONFIGURATION => c"invalid configuration argument".as_ptr(),
        INVALID_DEVICE_FUNCTION => c"invalid device function".as_ptr(),
        _ if text.is_null() => UNKNOWN.as_ptr(),
        _ => text,
    }
}

const UNKNOWN: &CStr = c"unrecognized error code";

/// The names of `cudaError_t`, as the header has them.
const NAMES: &[(Code, &CStr)] = include!(concat!(env!("OUT_DIR"), "/errors.rs"));

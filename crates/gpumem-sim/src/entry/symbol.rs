//! Names of errors, and functions by name.

use crate::base::codes::{INVALID_VALUE, NOT_FOUND};
use crate::base::symbol;
use crate::base::symbol::Found;
use crate::entry::argument::{Target, put, put_if_wanted};
use crate::entry::entries;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null_mut;
use gpumem_sys::Table;
use gpumem_sys::types::{CUdriverProcAddressQueryResult as Status, CUresult, cuuint64_t};

entries! {
    fn cuGetErrorName(_call, error: CUresult, target: Target<*const c_char>) {
        put(target, symbol::error_name(error).ok_or(INVALID_VALUE)?.as_ptr())
    }

    fn cuGetErrorString(_call, error: CUresult, target: Target<*const c_char>) {
        put(target, symbol::error_text(error).ok_or(INVALID_VALUE)?.as_ptr())
    }

    fn cuGetProcAddress_v2(
        call,
        name: *const c_char,
        target: Target<*mut c_void>,
        version: c_int,
        _flags: cuuint64_t,
        status: Target<Status>,
    ) {
        if name.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, so the caller has a string there that ends in NUL.
        let name = unsafe { CStr::from_ptr(name) };
        let (found, status_value) = match symbol::find(call.table(), name, version) {
            Found::Function(function) => (function, Status::CU_GET_PROC_ADDRESS_SUCCESS),
            Found::TooNew => (null_mut(), Status::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT),
            Found::Unknown => (null_mut(), Status::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND),
        };
        put(target, found)?;
        put_if_wanted(status, status_value)?;
        if found.is_null() { Err(NOT_FOUND) } else { Ok(()) }
    }
}

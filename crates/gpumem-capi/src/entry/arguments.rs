//! Reads and writes what the pointers of a call point to.

use crate::error::{Failure, Outcome};
use core::ffi::{CStr, c_char};

/// A structure that begins with its size as the caller knows it, and that may grow at the end.
///
/// # Safety
///
/// All bytes zero are a valid value, the type has no padding, and its first field is a `usize`.
pub(super) unsafe trait Growing {}

/// Reads a structure of an older or newer caller. Fields that the caller does not know are zero.
///
/// # Safety
///
/// `from` is null, or points to a `usize` and to as many bytes as that states.
pub(super) unsafe fn read<T: Growing>(from: *const T, name: &str) -> Outcome<T> {
    check(from, name)?;
    // SAFETY: the caller promises a size at the start.
    let size = unsafe { from.cast::<usize>().read_unaligned() };
    if size < size_of::<usize>() || size > SIZE_MAX {
        return Err(wrong_size(name, size));
    }
    let known = size.min(size_of::<T>());
    // SAFETY: the caller promises `size` bytes.
    let newer = unsafe { core::slice::from_raw_parts(from.cast::<u8>().add(known), size - known) };
    if newer.iter().any(|byte| *byte != 0) {
        return Err(Failure::argument(format!(
            "{name} has fields that this library is too old for; set them to 0, or update the library"
        )));
    }
    let mut value = core::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: the caller promises `size` bytes, of which `known` fit; the two do not overlap.
    unsafe { from.cast::<u8>().copy_to_nonoverlapping(value.as_mut_ptr().cast(), known) };
    // SAFETY: all bytes are zero or the caller's.
    Ok(unsafe { value.assume_init() })
}

/// Writes as much of a structure as the caller knows. Its size becomes the number of bytes written.
///
/// # Safety
///
/// `to` is null, or points to a `usize` and to as many bytes as that states.
pub(super) unsafe fn write<T: Growing>(to: *mut T, value: T, name: &str) -> Outcome {
    check(to, name)?;
    // SAFETY: the caller promises a size at the start.
    let size = unsafe { to.cast::<usize>().read_unaligned() };
    if size < size_of::<usize>() || size > SIZE_MAX {
        return Err(wrong_size(name, size));
    }
    let known = size.min(size_of::<T>());
    // SAFETY: the caller promises `size` bytes, and `known` is not more.
    unsafe { (&raw const value).cast::<u8>().copy_to_nonoverlapping(to.cast(), known) };
    // SAFETY: the size is at the start.
    unsafe { to.cast::<usize>().write_unaligned(known) };
    Ok(())
}

/// No structure of any version is larger: a larger size was not set.
const SIZE_MAX: usize = 4096;

#[cold]
fn wrong_size(name: &str, size: usize) -> Failure {
    Failure::argument(format!("{name} has the struct_size {size}; set it to the sizeof of the structure"))
}

/// A text of the caller; `None` for null.
///
/// # Safety
///
/// `text` is null, or ends with a zero byte and is not changed while the result lives.
pub(super) unsafe fn text<'a>(text: *const c_char, name: &str) -> Outcome<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller promises a text.
    let text = unsafe { CStr::from_ptr(text) }.to_str();
    text.map(Some).map_err(|_| Failure::argument(format!("{name} is not UTF-8")))
}

/// Writes a text and its terminating zero byte, cut to `capacity_bytes`. The length of the whole text is written first.
///
/// # Safety
///
/// `to` is null or points to `capacity_bytes`; `length_bytes` is null or points to a number.
pub(super) unsafe fn put_text(
    text: &str,
    to: *mut c_char,
    capacity_bytes: usize,
    length_bytes: *mut usize,
) -> Outcome {
    if !length_bytes.is_null() {
        // SAFETY: it is not null, so the caller promises a place.
        unsafe { length_bytes.write_unaligned(text.len()) };
    }
    if to.is_null() || capacity_bytes == 0 {
        return Ok(());
    }
    let mut fitting = text.len().min(capacity_bytes - 1);
    while !text.is_char_boundary(fitting) {
        fitting -= 1;
    }
    // SAFETY: fewer than `capacity_bytes` bytes are written; a text of ours does not overlap the caller's place.
    unsafe { text.as_ptr().copy_to_nonoverlapping(to.cast(), fitting) };
    // SAFETY: the zero byte is within the capacity.
    unsafe { to.add(fitting).write(0) };
    Ok(())
}

/// Writes a result.
///
/// # Safety
///
/// `to` is null or points to a place for a `T`.
#[inline]
pub(super) unsafe fn put<T>(to: *mut T, value: T, name: &str) -> Outcome {
    check(to, name)?;
    // SAFETY: it is not null, so the caller promises a place.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// Like [`put`], for a result that the caller may not want.
///
/// # Safety
///
/// `to` is null or points to a place for a `T`.
pub(super) unsafe fn put_if_asked<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: it is not null, so the caller promises a place.
        unsafe { to.write_unaligned(value) };
    }
}

#[inline]
pub(super) fn check<T>(pointer: *const T, name: &str) -> Outcome {
    if pointer.is_null() { Err(null(name)) } else { Ok(()) }
}

#[cold]
fn null(name: &str) -> Failure {
    Failure::argument(format!("{name} is null; pass a place"))
}

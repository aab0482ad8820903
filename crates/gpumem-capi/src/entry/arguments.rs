//! Reads arguments and writes results through the pointers of a call.

use crate::error::{CallResult, Failure};
use core::ffi::{CStr, c_char};

/// A structure that begins with its size as the caller knows it, and that grows at the end from version to version.
///
/// # Safety
///
/// All bytes zero are a valid value, the type has no padding in any version, and its first field is a `usize`.
pub(super) unsafe trait Versioned: Sized {
    /// The structure's size in each released version, the oldest first. A version that adds fields puts `offset_of!` the first of them
    /// before the last entry, which is `size_of::<Self>()`.
    const SIZES: &'static [usize];
}

/// Fails to compile if a version did not extend the list.
const fn check_sizes<T: Versioned>() {
    let (mut index, mut before) = (0, size_of::<usize>());
    while index < T::SIZES.len() {
        let size = T::SIZES[index];
        assert!(
            size > before && size.is_multiple_of(align_of::<T>()),
            "the sizes of versions grow, without padding"
        );
        (index, before) = (index + 1, size);
    }
    assert!(before == size_of::<T>(), "the last size is that of the structure");
}

/// The size that a structure states, if a released version has it. It is at most the size of `T`.
///
/// # Safety
///
/// `place` is null or points to a `usize`.
pub(super) unsafe fn stated_size<T: Versioned>(place: *const T, name: &str) -> CallResult<usize> {
    const { check_sizes::<T>() };
    check(place, name)?;
    // SAFETY: it is not null, so the caller promises a size at the start.
    let size = unsafe { place.cast::<usize>().read_unaligned() };
    if T::SIZES.contains(&size) { Ok(size) } else { Err(wrong_size(name, size, size_of::<T>())) }
}

/// Reads a structure of a caller of this or an older version. Fields that the caller does not know are zero.
///
/// # Safety
///
/// `from` is null, or points to a `usize` and, if a version of `T` has that size, to as many bytes.
pub(super) unsafe fn read<T: Versioned>(from: *const T, name: &str) -> CallResult<T> {
    // SAFETY: the caller promises the size.
    let size = unsafe { stated_size(from, name) }?;
    let mut value = core::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: the caller promises `size` bytes, and `T` has no fewer; the two do not overlap.
    unsafe { from.cast::<u8>().copy_to_nonoverlapping(value.as_mut_ptr().cast(), size) };
    // SAFETY: each field is zero or the caller's: no version ends inside a field.
    Ok(unsafe { value.assume_init() })
}

/// Writes the part of a structure that the caller's version has. The size field does not change.
///
/// # Safety
///
/// `to` is null, or points to a `usize` and, if a version of `T` has that size, to as many bytes.
pub(super) unsafe fn write<T: Versioned>(to: *mut T, value: T, name: &str) -> CallResult {
    // SAFETY: the caller promises the size.
    let size = unsafe { stated_size(to, name) }?;
    // SAFETY: the caller promises `size` bytes, and `value` has no fewer; the two do not overlap.
    unsafe { (&raw const value).cast::<u8>().copy_to_nonoverlapping(to.cast(), size) };
    // SAFETY: the size is at the start.
    unsafe { to.cast::<usize>().write_unaligned(size) };
    Ok(())
}

#[cold]
fn wrong_size(name: &str, size: usize, known: usize) -> Failure {
    Failure::argument(format!(
        "{name} has the struct_size {size}, and no version of this library has such a structure; set it to the sizeof of the structure \
         ({known} in this version), and update the library if the program was compiled with a newer header"
    ))
}

/// A text of the caller; `None` for null.
///
/// # Safety
///
/// `text` is null, or ends with a zero byte and is not changed while the result lives.
pub(super) unsafe fn text<'a>(text: *const c_char, name: &str) -> CallResult<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller promises a text.
    let text = unsafe { CStr::from_ptr(text) }.to_str();
    text.map(Some)
        .map_err(|_| Failure::argument(format!("{name} is not UTF-8; pass a text in that encoding")))
}

/// A text of the caller that must not be null.
///
/// # Safety
///
/// As for [`text`].
pub(super) unsafe fn needed_text<'a>(place: *const c_char, name: &str) -> CallResult<&'a str> {
    // SAFETY: the caller promises a text.
    unsafe { text(place, name) }?
        .ok_or_else(|| Failure::argument(format!("{name} is null; pass a text that ends with a zero byte")))
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
) -> CallResult {
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
pub(super) unsafe fn put<T>(to: *mut T, value: T, name: &str) -> CallResult {
    check(to, name)?;
    // SAFETY: it is not null, so the caller promises a place.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// Like [`put`], for an optional result.
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
pub(super) fn check<T>(pointer: *const T, name: &str) -> CallResult {
    if pointer.is_null() { Err(null(name)) } else { Ok(()) }
}

#[cold]
fn null(name: &str) -> Failure {
    Failure::argument(format!("{name} is null; pass a place"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;

    /// A structure of which three versions were released.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    struct Grown {
        struct_size: usize,
        first: usize,
        second: u64,
        third: u32,
        fourth: u32,
    }

    // SAFETY: numbers without padding in any version; the size is first.
    unsafe impl Versioned for Grown {
        const SIZES: &[usize] = &[offset_of!(Self, second), offset_of!(Self, third), size_of::<Self>()];
    }

    const FULL: Grown = Grown { struct_size: size_of::<Grown>(), first: 1, second: 2, third: 3, fourth: 4 };

    fn of_size(struct_size: usize) -> Grown {
        Grown { struct_size, ..FULL }
    }

    #[test]
    fn fields_of_later_versions_are_zero() {
        let expected = [(16, (1, 0, 0, 0)), (24, (1, 2, 0, 0)), (32, (1, 2, 3, 4))];
        for (size, (first, second, third, fourth)) in expected {
            // SAFETY: the place has the bytes of the latest version.
            let found = unsafe { read(&of_size(size), "grown") }.unwrap();
            assert_eq!(found, Grown { struct_size: size, first, second, third, fourth });
        }
    }

    #[test]
    fn fields_of_later_versions_are_not_written() {
        let expected = [(16, (1, 0, 0, 0)), (24, (1, 2, 0, 0)), (32, (1, 2, 3, 4))];
        for (size, (first, second, third, fourth)) in expected {
            let mut place = Grown { struct_size: size, ..Grown::default() };
            // SAFETY: the place has the bytes of the latest version.
            unsafe { write(&raw mut place, FULL, "grown") }.unwrap();
            assert_eq!(place, Grown { struct_size: size, first, second, third, fourth });
        }
    }

    #[test]
    fn every_other_size_is_refused() {
        for size in (0..=size_of::<Grown>() + 64).chain([4096, usize::MAX]) {
            if Grown::SIZES.contains(&size) {
                continue;
            }
            let mut place = of_size(size);
            // SAFETY: no version has the size, so the place may have any number of bytes.
            let read = unsafe { read(&raw const place, "grown") }.unwrap_err();
            // SAFETY: no version has the size, so nothing but the size is read.
            let written = unsafe { write(&raw mut place, FULL, "grown") }.unwrap_err();
            assert!(
                read.text.starts_with(&format!("grown has the struct_size {size}, and")),
                "{}",
                read.text
            );
            assert!(read.text.contains("(32 in this version)"), "{}", read.text);
            assert_eq!((read.code, read.text), (written.code, written.text));
            assert_eq!(place, of_size(size));
        }
    }
}

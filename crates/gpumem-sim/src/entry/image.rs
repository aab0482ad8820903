//! Images of modules, strings and options of compilations, as callers pass them.

use crate::base::codes::{Answer, FILE_NOT_FOUND, INVALID_VALUE};
use crate::device::compiler_options::{CompilerLog, CompilerOptions};
use crate::device::fat_binary;
use crate::device::image::{self, ELF_MAGIC};
use crate::entry::argument::{put_at, take_at};
use crate::entry::call::Call;
use core::ffi::{CStr, c_char, c_uint, c_void};
use core::slice;
use gpumem_sys::types::CUjit_option;
use std::sync::Arc;

/// A C string of the caller.
///
/// # Safety
///
/// The pointer is null or points to a string that ends in NUL and outlives the call.
pub(crate) unsafe fn text<'a>(source: *const c_char) -> Answer<&'a CStr> {
    if source.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, so the caller guarantees a string.
    Ok(unsafe { CStr::from_ptr(source) })
}

/// The contents of a file.
///
/// # Safety
///
/// The path is null or a string that ends in NUL.
pub(crate) unsafe fn file(path: *const c_char) -> Answer<Vec<u8>> {
    // SAFETY: the caller guarantees a string.
    let path = unsafe { text(path)? }.to_str().map_err(|_| INVALID_VALUE)?;
    std::fs::read(path).map_err(|_| FILE_NOT_FOUND)
}

/// The bytes of an image, which the caller passes without its length: a text ends in NUL, and a fat binary states its size. Of what cannot
/// be loaded, only the first bytes.
///
/// # Safety
///
/// The pointer is null or points to an image, or to the wrapper of a fat binary, that outlives the call.
pub(crate) unsafe fn bytes<'a>(source: *const c_void) -> Answer<&'a [u8]> {
    if source.is_null() {
        return Err(INVALID_VALUE);
    }
    let mut source: *const u8 = source.cast();
    // SAFETY: the image is a wrapper if it begins so, and a wrapper has a pointer at its second 8 bytes. Machine code has at least its
    // magic number; a fat binary has its header, and as many bytes as the header states; anything else is a text that ends in NUL.
    unsafe {
        if begins_with(source, WRAPPER_MAGIC) {
            let inside = take_at(source.add(8).cast::<*const u8>())?;
            if inside.is_null() || !begins_with(inside, fat_binary::MAGIC) {
                return Ok(slice::from_raw_parts(source, WRAPPER_MAGIC.len()));
            }
            source = inside;
        }
        if begins_with(source, ELF_MAGIC) {
            Ok(slice::from_raw_parts(source, ELF_MAGIC.len()))
        } else if begins_with(source, fat_binary::MAGIC) {
            let header: [u8; fat_binary::HEADER_BYTES] = take_at(source.cast())?;
            let size_bytes = fat_binary::size_bytes(&header).unwrap_or(header.len());
            Ok(slice::from_raw_parts(source, size_bytes))
        } else {
            Ok(CStr::from_ptr(source.cast()).to_bytes())
        }
    }
}

/// Compares byte by byte, because a text may be shorter. No magic number has NUL in it.
///
/// # Safety
///
/// There are bytes up to a NUL, or as many as the magic number has.
unsafe fn begins_with(source: *const u8, magic: [u8; 4]) -> bool {
    // SAFETY: all bytes before were equal to ones that are not NUL, so the caller guarantees another.
    magic.iter().enumerate().all(|(index, byte)| unsafe { source.add(index).read() } == *byte)
}

/// The options of a compilation. Those that tell a compiler how to make machine code have no effect: none is made here.
///
/// # Safety
///
/// Null, or as many options and values as the count says.
pub(crate) unsafe fn compiler_options(
    count: c_uint,
    options: *const CUjit_option,
    values: *mut *mut c_void,
) -> Answer<CompilerOptions> {
    let mut found = CompilerOptions::default();
    for index in 0..count as usize {
        let place = values.wrapping_add(index);
        // SAFETY: the caller guarantees `count` options and values; null is refused.
        let (option, value) = unsafe {
            if options.is_null() || values.is_null() {
                return Err(INVALID_VALUE);
            }
            (take_at(options.add(index))?, take_at(place)?)
        };
        match option {
            CUjit_option::CU_JIT_INFO_LOG_BUFFER => found.info.buffer = value.cast(),
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER => found.error.buffer = value.cast(),
            CUjit_option::CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES => set_size(&mut found.info, place, value),
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES => set_size(&mut found.error, place, value),
            // Compilations take no time here.
            // SAFETY: the value of this option is a place for a number.
            CUjit_option::CU_JIT_WALL_TIME => unsafe { put_at(place.cast::<f32>(), 0.0)? },
            // Above the capability, the number has a flag for features of one architecture or family.
            CUjit_option::CU_JIT_TARGET => found.target = Some(value.addr() as u32 & 0xFFFF),
            other if other.0 < CUjit_option::CU_JIT_NUM_OPTIONS.0 => {}
            _ => return Err(INVALID_VALUE),
        }
    }
    Ok(found)
}

/// A size is an `unsigned int` in the place of a pointer.
fn set_size(log: &mut CompilerLog, place: *mut *mut c_void, value: *mut c_void) {
    (log.size_bytes, log.len) = (value.addr() as u32 as usize, place);
}

/// Parses an image. What there is to say about it goes to the logs, and the reason of a refusal, or why some of its kernels cannot run, also
/// to the findings.
pub(crate) fn parse(
    call: &mut Call<'_>,
    options: &mut CompilerOptions,
    image: &[u8],
) -> Answer<Arc<gpumem_ptx::Module>> {
    let parsed = image::text(image).and_then(|text| {
        let module = image::parse(&text)?;
        image::check_target(&module, options.target)?;
        image::check_defined(&module, |name| call.kernels.contains_key(name))?;
        Ok(module)
    });
    match parsed {
        Ok(module) => {
            let notes = image::notes(&module, |name| call.kernels.contains_key(name));
            options.info.add(&notes.join("\n"));
            call.note_kernels(&notes);
            Ok(module)
        }
        Err(error) => {
            options.error.add(&error.text);
            Err(call.note_image(&error))
        }
    }
}

/// Of the structure that `nvcc` puts around a fat binary in a program: two numbers, a pointer to the fat binary, and another pointer.
const WRAPPER_MAGIC: [u8; 4] = 0x4662_43B1_u32.to_le_bytes();

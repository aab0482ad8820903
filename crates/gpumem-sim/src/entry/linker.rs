//! Links of several texts to one module.

use crate::base::codes::{Answer, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED};
use crate::base::handle::Handle;
use crate::device::image::ImageError;
use crate::device::linker::Link;
use crate::entry::argument::{Target, check_place, put, put_if_wanted};
use crate::entry::call::Call;
use crate::entry::entries;
use crate::entry::image::{compiler_options, file, text};
use core::ffi::{c_char, c_uint, c_void};
use core::slice;
use gpumem_sys::Table;
use gpumem_sys::types::{CUjit_option, CUjitInputType, CUlinkState, CUresult};

entries! {
    fn cuLinkCreate_v2(
        call,
        option_count: c_uint,
        options: *mut CUjit_option,
        option_values: *mut *mut c_void,
        target: Target<CUlinkState>,
    ) {
        check_place(target)?;
        call.context(call.thread)?;
        // SAFETY: there are as many options, each with its value.
        let options = unsafe { compiler_options(option_count, options, option_values)? };
        put(target, call.link_create(options)?.to_ptr())
    }

    fn cuLinkAddData_v2(
        call,
        state: CUlinkState,
        kind: CUjitInputType,
        data: *mut c_void,
        size_bytes: usize,
        name: *const c_char,
        option_count: c_uint,
        options: *mut CUjit_option,
        option_values: *mut *mut c_void,
    ) {
        if data.is_null() || size_bytes > isize::MAX as usize {
            return Err(INVALID_VALUE);
        }
        // SAFETY: there are as many bytes and options as the caller says, and the name is null or a string.
        unsafe {
            compiler_options(option_count, options, option_values)?;
            let name = if name.is_null() { c"" } else { text(name)? }.to_string_lossy();
            let image = slice::from_raw_parts(data.cast(), size_bytes);
            add(call, Handle::from_ptr(state), kind, &name, image)
        }
    }

    fn cuLinkAddFile_v2(
        call,
        state: CUlinkState,
        kind: CUjitInputType,
        path: *const c_char,
        option_count: c_uint,
        options: *mut CUjit_option,
        option_values: *mut *mut c_void,
    ) {
        // SAFETY: there are as many options as the caller says, and the path is null or a string.
        unsafe {
            compiler_options(option_count, options, option_values)?;
            let (name, image) = (text(path)?.to_string_lossy(), file(path)?);
            add(call, Handle::from_ptr(state), kind, &name, &image)
        }
    }

    fn cuLinkComplete(call, state: CUlinkState, image: Target<*mut c_void>, size_bytes: Target<usize>) {
        check_place(image)?;
        let (start, len) = run(call, Handle::from_ptr(state), |link| {
            link.complete().map(|image| (image.as_ptr().cast_mut().cast(), image.len()))
        })?;
        put(image, start)?;
        put_if_wanted(size_bytes, len)
    }

    fn cuLinkDestroy(call, state: CUlinkState) {
        call.links.remove(Handle::from_ptr(state)).map(drop).ok_or(INVALID_HANDLE)
    }
}

/// Adds an input to a link.
fn add(call: &mut Call<'_>, link: Handle, kind: CUjitInputType, name: &str, image: &[u8]) -> Answer<()> {
    run(call, link, |link| match kind {
        CUjitInputType::CU_JIT_INPUT_PTX
        | CUjitInputType::CU_JIT_INPUT_FATBINARY
        | CUjitInputType::CU_JIT_INPUT_CUBIN => link.add(name, image),
        known if known.0 < CUjitInputType::CU_JIT_NUM_INPUT_TYPES.0 => {
            let text = "the simulator links PTX, and fat binaries with PTX; it does not read objects, libraries and NVVM";
            Err(ImageError::new(NOT_SUPPORTED, text))
        }
        _ => Err(ImageError::new(INVALID_VALUE, "the kind of input is unknown")),
    })
}

/// Runs a step of a link, and writes its logs.
fn run<T>(
    call: &mut Call<'_>,
    handle: Handle,
    step: impl FnOnce(&mut Link) -> Result<T, ImageError>,
) -> Answer<T> {
    let link = call.link(handle)?;
    let done = step(link);
    if let Err(error) = &done {
        link.options.error.add(&error.text);
    }
    // SAFETY: the program has lent the buffers for as long as the link lives.
    unsafe { link.options.write() };
    done.map_err(|error| call.note_image(&error))
}

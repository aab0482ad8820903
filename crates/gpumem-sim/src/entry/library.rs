//! Libraries and their kernels.

use crate::base::codes::{Answer, INVALID_VALUE, NOT_FOUND};
use crate::base::handle::Handle;
use crate::entry::argument::{Target, check_place, put, put_at, put_if_wanted, take_at};
use crate::entry::call::Call;
use crate::entry::entries;
use crate::entry::image::{bytes, compiler_options, file, parse, text};
use core::ffi::{c_char, c_int, c_uint, c_void};
use gpumem_sys::Table;
use gpumem_sys::types::{
    CUdevice, CUdeviceptr, CUfunc_cache, CUfunction, CUfunction_attribute, CUjit_option, CUkernel, CUlibrary,
    CUlibraryOption, CUmodule, CUresult,
};

entries! {
    fn cuLibraryLoadData(
        call,
        target: Target<CUlibrary>,
        image: *const c_void,
        options: *mut CUjit_option,
        option_values: *mut *mut c_void,
        option_count: c_uint,
        library_options: *mut CUlibraryOption,
        _library_option_values: *mut *mut c_void,
        library_option_count: c_uint,
    ) {
        // SAFETY: the caller has an image there, and as many options as the counts say.
        unsafe {
            check_options(library_options, library_option_count)?;
            let image = bytes(image)?;
            load(call, target, image, (option_count, options, option_values))
        }
    }

    fn cuLibraryLoadFromFile(
        call,
        target: Target<CUlibrary>,
        path: *const c_char,
        options: *mut CUjit_option,
        option_values: *mut *mut c_void,
        option_count: c_uint,
        library_options: *mut CUlibraryOption,
        _library_option_values: *mut *mut c_void,
        library_option_count: c_uint,
    ) {
        // SAFETY: the caller has a string there that ends in NUL, and as many options as the counts say.
        unsafe {
            check_options(library_options, library_option_count)?;
            let image = file(path)?;
            load(call, target, &image, (option_count, options, option_values))
        }
    }

    fn cuLibraryUnload(call, library: CUlibrary) {
        call.library_unload(Handle::from_ptr(library))
    }

    fn cuLibraryGetKernel(call, target: Target<CUkernel>, library: CUlibrary, name: *const c_char) {
        // SAFETY: the caller has a string there that ends in NUL.
        let name = unsafe { text(name)? }.to_str().map_err(|_| NOT_FOUND)?;
        put(target, call.library_kernel(Handle::from_ptr(library), name)?.to_ptr())
    }

    fn cuLibraryGetKernelCount(call, count: Target<c_uint>, library: CUlibrary) {
        put(count, call.library(Handle::from_ptr(library))?.text.entries().len() as c_uint)
    }

    fn cuLibraryEnumerateKernels(call, targets: *mut CUkernel, count: c_uint, library: CUlibrary) {
        let kernels = call.library_entries(Handle::from_ptr(library), count as usize)?;
        for (index, kernel) in kernels.into_iter().enumerate() {
            // SAFETY: there are `count` places, and no more kernels than that.
            unsafe { put_at(targets.wrapping_add(index), kernel.to_ptr())? };
        }
        Ok(())
    }

    fn cuLibraryGetModule(call, target: Target<CUmodule>, library: CUlibrary) {
        let context = call.context(call.thread)?;
        put(target, call.library_module(Handle::from_ptr(library), context)?.to_ptr())
    }

    fn cuLibraryGetGlobal(
        call,
        address: Target<CUdeviceptr>,
        size_bytes: Target<usize>,
        library: CUlibrary,
        name: *const c_char,
    ) {
        let context = call.context(call.thread)?;
        // SAFETY: the caller has a string there that ends in NUL.
        let name = unsafe { text(name)? }.to_str().map_err(|_| NOT_FOUND)?;
        let module = call.library_module(Handle::from_ptr(library), context)?;
        let found = call.module_global(module, name)?;
        put_if_wanted(address, found.0)?;
        put_if_wanted(size_bytes, found.1 as usize)
    }

    fn cuKernelGetFunction(call, target: Target<CUfunction>, kernel: CUkernel) {
        let context = call.context(call.thread)?;
        put(target, call.kernel_function(Handle::from_ptr(kernel), context)?.to_ptr())
    }

    fn cuKernelGetLibrary(call, target: Target<CUlibrary>, kernel: CUkernel) {
        put(target, call.kernel(Handle::from_ptr(kernel))?.library.to_ptr())
    }

    fn cuKernelGetParamInfo(
        call,
        kernel: CUkernel,
        index: usize,
        offset_bytes: Target<usize>,
        size_bytes: Target<usize>,
    ) {
        let entry = call.kernel_entry(Handle::from_ptr(kernel))?;
        let parameter = *entry.parameters().get(index).ok_or(INVALID_VALUE)?;
        put(offset_bytes, parameter.offset_bytes)?;
        put_if_wanted(size_bytes, parameter.size_bytes)
    }

    fn cuKernelGetAttribute(
        call,
        value: Target<c_int>,
        attribute: CUfunction_attribute,
        kernel: CUkernel,
        device: CUdevice,
    ) {
        put(value, call.kernel_attribute(Handle::from_ptr(kernel), attribute, device)?)
    }

    fn cuKernelSetAttribute(
        call,
        attribute: CUfunction_attribute,
        value: c_int,
        kernel: CUkernel,
        device: CUdevice,
    ) {
        call.kernel_set_attribute(Handle::from_ptr(kernel), attribute, value, device)
    }

    fn cuKernelSetCacheConfig(call, kernel: CUkernel, _config: CUfunc_cache, device: CUdevice) {
        call.device_index(device)?;
        call.kernel(Handle::from_ptr(kernel)).map(drop)
    }
}

/// Loads a library.
///
/// # Safety
///
/// There are as many options and values as the count says.
unsafe fn load(
    call: &mut Call<'_>,
    target: Target<CUlibrary>,
    image: &[u8],
    (count, options, values): (c_uint, *const CUjit_option, *mut *mut c_void),
) -> Answer<()> {
    check_place(target)?;
    // SAFETY: the caller guarantees the options and their values.
    let mut options = unsafe { compiler_options(count, options, values)? };
    let parsed = parse(call, &mut options, image);
    // SAFETY: the buffers are the caller's for this call.
    unsafe { options.write() };
    put(target, call.library_load(parsed?)?.to_ptr())
}

/// Refuses unknown options of a library. The known ones have no effect.
///
/// # Safety
///
/// There are as many options as the count says.
unsafe fn check_options(options: *const CUlibraryOption, count: c_uint) -> Answer<()> {
    for index in 0..count as usize {
        // SAFETY: the caller guarantees `count` options; null is refused.
        let option = unsafe { take_at(options.wrapping_add(index))? };
        if option.0 >= CUlibraryOption::CU_LIBRARY_NUM_OPTIONS.0 {
            return Err(INVALID_VALUE);
        }
    }
    Ok(())
}

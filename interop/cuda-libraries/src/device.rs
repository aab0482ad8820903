//! What CUDA's runtime tells of devices and kernels, and waits for streams.

use crate::driver::{
    Code, Kernel, Stream, cuCtxGetDevice, cuCtxSetCurrent, cuDeviceGetAttribute, cuDeviceGetCount,
    cuDevicePrimaryCtxRetain, cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, cuStreamSynchronize,
};
use crate::errors::result;
use crate::runtime::{kernel, of_thread};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

/// `cudaFuncAttributes`.
#[repr(C)]
struct Attributes {
    shared_bytes: usize,
    constant_bytes: usize,
    local_bytes: usize,
    /// Those behind the sizes, in the order of the structure.
    others: [c_int; 13],
    reserved: [c_int; 16],
}

/// `CUfunction_attribute` of each of `others`: threads of a block, registers, versions of PTX and code, cache mode, dynamic shared memory,
/// carve-out, whether a cluster must be set, the required cluster in three directions, its scheduling, and whether its size is portable.
const OTHERS: [c_int; 13] = [0, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 14];

#[unsafe(no_mangle)]
unsafe extern "C" fn cudaGetDevice(device: *mut c_int) -> Code {
    // SAFETY: the caller passes a place for the number.
    result(unsafe { cuCtxGetDevice(device) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudaGetDeviceCount(count: *mut c_int) -> Code {
    // SAFETY: the caller passes a place for the number.
    result(unsafe { cuDeviceGetCount(count) })
}

/// The primary context stays until the process ends.
#[unsafe(no_mangle)]
extern "C" fn cudaSetDevice(device: c_int) -> Code {
    let mut context = null_mut();
    // SAFETY: the place outlives the call, and the context is a live one.
    result(unsafe {
        match cuDevicePrimaryCtxRetain(&raw mut context, device) {
            0 => cuCtxSetCurrent(context),
            code => code,
        }
    })
}

/// The numbers of `cudaDeviceAttr` and `CUdevice_attribute` are the same.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudaDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) -> Code {
    // SAFETY: the caller passes a place for the number.
    result(unsafe { cuDeviceGetAttribute(value, attribute, device) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudaFuncGetAttributes(target: *mut Attributes, function: *const c_void) -> Code {
    match kernel(function).and_then(attributes) {
        Ok(found) => {
            // SAFETY: the caller passes a place for the structure.
            unsafe { target.write(found) };
            0
        }
        Err(code) => result(code),
    }
}

fn attributes(kernel: Kernel) -> Result<Attributes, Code> {
    let size = |attribute| kernel.attribute(attribute).map(|bytes| bytes as usize);
    let mut others = [0; 13];
    for (value, attribute) in others.iter_mut().zip(OTHERS) {
        *value = kernel.attribute(attribute)?;
    }
    Ok(Attributes {
        shared_bytes: size(1)?,
        constant_bytes: size(2)?,
        local_bytes: size(3)?,
        others,
        reserved: [0; 16],
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    blocks: *mut c_int,
    function: *const c_void,
    block_threads: c_int,
    shared_bytes: usize,
    flags: c_uint,
) -> Code {
    result(kernel(function).map_or_else(
        |code| code,
        // SAFETY: the caller passes a place for the number, and the kernel is never unloaded.
        |kernel| unsafe {
            cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
                blocks,
                kernel.handle(),
                block_threads,
                shared_bytes,
                flags,
            )
        },
    ))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudaStreamSynchronize_ptsz(stream: Stream) -> Code {
    // SAFETY: the stream is the caller's.
    result(unsafe { cuStreamSynchronize(of_thread(stream)) })
}

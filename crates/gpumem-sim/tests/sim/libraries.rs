//! Libraries: loaded once, used in every context, with kernels that are launched in place of functions.

use super::images::{LZ4, stored};
use super::*;
use std::ffi::CStr;

const PTX: &CStr = c"
.version 8.0
.target sm_70
.visible .global .align 4 .u32 count = 5;
.visible .entry read(.param .u64 out) {
    .reg .b32 %r; .reg .b64 %rd;
    ld.param.u64 %rd, [out]; ld.global.u32 %r, [count]; st.global.u32 [%rd], %r; ret;
}
.visible .entry foreign() { .reg .b32 %r<3>; vadd.s32.s32.s32 %r0, %r1, %r2; ret; }
";

fn library(gpu: &Machine, image: *const c_void) -> Result<CUlibrary, DriverError> {
    let mut library = null_mut();
    let none = null_mut();
    // SAFETY: the image is whole; the pointer is to a local.
    unsafe { gpu.cuLibraryLoadData(&mut library, image, none, null_mut(), 0, null_mut(), null_mut(), 0)? };
    Ok(library)
}

fn kernel(gpu: &Machine, library: CUlibrary, name: &CStr) -> Result<CUkernel, DriverError> {
    let mut kernel = null_mut();
    // SAFETY: pointers are to locals that outlive the call.
    unsafe { gpu.cuLibraryGetKernel(&mut kernel, library, name.as_ptr())? };
    Ok(kernel)
}

#[test]
fn a_kernel_is_launched_as_a_function_and_by_its_function() {
    let gpu = seeded(1);
    let library = library(&gpu, PTX.as_ptr().cast()).unwrap();
    let read = kernel(&gpu, library, c"read").unwrap();
    assert_eq!(kernel(&gpu, library, c"read").unwrap(), read);
    assert_eq!(stored(&gpu, read.cast()).unwrap(), 5);
    let (mut function, mut module, mut same) = (null_mut(), null_mut(), null_mut());
    // SAFETY: pointers are to locals that outlive the calls.
    unsafe {
        gpu.cuKernelGetFunction(&mut function, read).unwrap();
        gpu.cuLibraryGetModule(&mut module, library).unwrap();
        gpu.cuModuleGetFunction(&mut same, module, c"read".as_ptr()).unwrap();
    }
    assert_eq!(function, same);
    // A variable is one for all of the context.
    let (mut address, mut size_bytes) = (0, 0);
    // SAFETY: pointers are to locals that outlive the calls.
    unsafe {
        gpu.cuLibraryGetGlobal(&mut address, &mut size_bytes, library, c"count".as_ptr()).unwrap();
        gpu.cuMemsetD32_v2(address, 6, 1).unwrap();
    }
    assert_eq!((size_bytes, stored(&gpu, function).unwrap(), stored(&gpu, read.cast()).unwrap()), (4, 6, 6));
    let refused = code(kernel(&gpu, library, c"foreign"));
    assert_eq!(refused, CUresult::CUDA_ERROR_NOT_SUPPORTED);
    assert_eq!(code(kernel(&gpu, library, c"nothing")), CUresult::CUDA_ERROR_NOT_FOUND);
}

#[test]
fn every_context_has_its_own_variables() {
    let gpu = machine(SimConfig::new().seed(1).devices(2));
    let library = library(&gpu, PTX.as_ptr().cast()).unwrap();
    let read = kernel(&gpu, library, c"read").unwrap();
    let set = |value| {
        let mut address = 0;
        // SAFETY: pointers are to locals that outlive the calls; the size may be null.
        unsafe {
            gpu.cuLibraryGetGlobal(&mut address, null_mut(), library, c"count".as_ptr()).unwrap();
            gpu.cuMemsetD32_v2(address, value, 1).unwrap();
        }
    };
    set(10);
    let second = primary(&gpu, 1);
    // SAFETY: the context was just retained.
    unsafe { gpu.cuCtxSetCurrent(second).unwrap() };
    assert_eq!(stored(&gpu, read.cast()).unwrap(), 5);
    set(20);
    assert_eq!(stored(&gpu, read.cast()).unwrap(), 20);
    // SAFETY: both contexts exist.
    unsafe { gpu.cuCtxSetCurrent(gpu.context).unwrap() };
    assert_eq!(stored(&gpu, read.cast()).unwrap(), 10);
    // A context that is destroyed takes its module with it, and another one gets a new one.
    // SAFETY: the context was retained once.
    unsafe {
        gpu.cuDevicePrimaryCtxRelease_v2(1).unwrap();
        let second = primary(&gpu, 1);
        gpu.cuCtxSetCurrent(second).unwrap();
    }
    assert_eq!(stored(&gpu, read.cast()).unwrap(), 5);
}

#[test]
fn kernels_are_counted_listed_and_described() {
    let gpu = seeded(1);
    let library = library(&gpu, PTX.as_ptr().cast()).unwrap();
    let (mut count, mut kernels) = (0, [null_mut(); 3]);
    // SAFETY: pointers are to locals that outlive the calls, as large as the count says.
    unsafe {
        gpu.cuLibraryGetKernelCount(&mut count, library).unwrap();
        gpu.cuLibraryEnumerateKernels(kernels.as_mut_ptr(), 3, library).unwrap();
    }
    assert_eq!((count, kernels[0], kernels[2]), (2, kernel(&gpu, library, c"read").unwrap(), null_mut()));
    // The second one cannot run here.
    assert_eq!(code(stored(&gpu, kernels[1].cast())), CUresult::CUDA_ERROR_NOT_SUPPORTED);
    let (read, shared) = (kernels[0], CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
    let allowed = || {
        let mut value = 0;
        // SAFETY: the pointer is to a local.
        unsafe { gpu.cuKernelGetAttribute(&mut value, shared, read, 0).unwrap() };
        value
    };
    let launch = |shared_bytes| {
        let mut address = gpu.alloc(4);
        let mut parameters = [(&raw mut address).cast()];
        let (stream, start) = (gpu.stream(), parameters.as_mut_ptr());
        // SAFETY: pointers are to locals that outlive the call, as large as the signature says.
        unsafe { gpu.cuLaunchKernel(read.cast(), 1, 1, 1, 1, 1, 1, shared_bytes, stream, start, null_mut()) }
    };
    assert_eq!((allowed(), code(launch(100 << 10))), (48 << 10, CUresult::CUDA_ERROR_INVALID_VALUE));
    // SAFETY: handles are checked by the driver under test.
    unsafe { gpu.cuKernelSetAttribute(shared, 100 << 10, read, 0).unwrap() };
    launch(100 << 10).unwrap();
    assert_eq!(allowed(), 100 << 10);
    let mut blocks = 0;
    // SAFETY: the pointer is to a local.
    unsafe {
        gpu.cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, read.cast(), 64, 100 << 10).unwrap();
    }
    assert_eq!(blocks, 2);
    let (mut offset, mut size_bytes, mut owner) = (9, 0, null_mut());
    // SAFETY: pointers are to locals that outlive the calls.
    unsafe {
        gpu.cuKernelGetParamInfo(read, 0, &mut offset, &mut size_bytes).unwrap();
        gpu.cuKernelGetLibrary(&mut owner, read).unwrap();
        gpu.cuKernelSetCacheConfig(read, CUfunc_cache::CU_FUNC_CACHE_PREFER_L1, 0).unwrap();
    }
    assert_eq!((offset, size_bytes, owner), (0, 8, library));
}

#[test]
fn a_library_comes_from_a_file_and_goes_as_a_whole() {
    let gpu = seeded(1);
    let path = std::env::temp_dir().join(format!("gpumem-library-{}.fatbin", std::process::id()));
    std::fs::write(&path, LZ4).unwrap();
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    let mut library = null_mut();
    let load = |library: &mut CUlibrary, name: &CStr| {
        let (none, values) = (null_mut(), null_mut());
        // SAFETY: the name is a string; the pointer is to a local.
        unsafe {
            gpu.cuLibraryLoadFromFile(library, name.as_ptr(), none, values, 0, null_mut(), null_mut(), 0)
        }
    };
    load(&mut library, &name).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(code(load(&mut library, &name)), CUresult::CUDA_ERROR_FILE_NOT_FOUND);
    let store = kernel(&gpu, library, c"store").unwrap();
    assert_eq!((stored(&gpu, store.cast()).unwrap(), gpu.sim().report().module_count), (80, 1));
    let mut module = null_mut();
    // SAFETY: handles are checked by the driver under test.
    unsafe {
        gpu.cuLibraryGetModule(&mut module, library).unwrap();
        assert_eq!(code(gpu.cuModuleUnload(module)), CUresult::CUDA_ERROR_NOT_PERMITTED);
        gpu.cuLibraryUnload(library).unwrap();
        assert_eq!(code(gpu.cuLibraryUnload(library)), CUresult::CUDA_ERROR_INVALID_HANDLE);
        let mut function = null_mut();
        let gone = gpu.cuModuleGetFunction(&mut function, module, c"store".as_ptr());
        assert_eq!(code(gone), CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    assert_eq!(code(stored(&gpu, store.cast())), CUresult::CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(gpu.sim().report().module_count, 0);
}

#[test]
fn a_graph_launches_a_kernel() {
    let gpu = seeded(1);
    let library = library(&gpu, PTX.as_ptr().cast()).unwrap();
    let read = kernel(&gpu, library, c"read").unwrap();
    let (stream, mut address) = (gpu.stream(), gpu.alloc(4));
    let mut parameters = [(&raw mut address).cast()];
    let node = CUDA_KERNEL_NODE_PARAMS {
        func: null_mut(),
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 1,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        kernelParams: parameters.as_mut_ptr(),
        extra: null_mut(),
        kern: read,
        ctx: null_mut(),
    };
    let (mut graph, mut added, mut exec) = (null_mut(), null_mut(), null_mut());
    // SAFETY: pointers are to locals that outlive the calls.
    unsafe {
        gpu.cuGraphCreate(&mut graph, 0).unwrap();
        gpu.cuGraphAddKernelNode_v2(&mut added, graph, null_mut(), 0, &node).unwrap();
        gpu.cuGraphInstantiateWithFlags(&mut exec, graph, 0).unwrap();
        gpu.cuGraphLaunch(exec, stream).unwrap();
    }
    assert_eq!(gpu.download(stream, address, 4), 5_u32.to_le_bytes());
}

#[test]
fn unknown_options_of_a_library_are_refused() {
    let gpu = seeded(1);
    let with = |option: u32| {
        let (mut library, mut option, mut value) = (null_mut(), CUlibraryOption_enum(option), null_mut());
        let image = PTX.as_ptr().cast();
        // SAFETY: pointers are to locals that outlive the call.
        unsafe {
            gpu.cuLibraryLoadData(&mut library, image, null_mut(), null_mut(), 0, &mut option, &mut value, 1)
        }
    };
    with(CUlibraryOption::CU_LIBRARY_BINARY_IS_PRESERVED.0).unwrap();
    assert_eq!(code(with(2)), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(code(library(&gpu, null_mut())), CUresult::CUDA_ERROR_INVALID_VALUE);
}

//! Return codes and attributes, as measured on the real driver.

use super::*;

const SUCCESS: CUresult = CUresult::CUDA_SUCCESS;
const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const INVALID_HANDLE: CUresult = CUresult::CUDA_ERROR_INVALID_HANDLE;
const INVALID_CONTEXT: CUresult = CUresult::CUDA_ERROR_INVALID_CONTEXT;
const OUT_OF_MEMORY: CUresult = CUresult::CUDA_ERROR_OUT_OF_MEMORY;

#[test]
fn out_of_memory_is_the_same_code_from_every_allocation() {
    let gpu = machine(SimConfig::new().memory_bytes(64 << 20));
    let stream = gpu.stream();
    assert_eq!(code(gpu.try_alloc(65 << 20)), OUT_OF_MEMORY);
    assert_eq!(code(gpu.try_alloc_on(stream, 65 << 20)), OUT_OF_MEMORY);
    assert_eq!(code(gpu.try_alloc(usize::MAX)), OUT_OF_MEMORY);
    assert_eq!(code(gpu.try_alloc_on(stream, usize::MAX)), OUT_OF_MEMORY);
    gpu.alloc(64 << 20);
}

#[test]
fn sizes_of_zero() {
    let gpu = seeded(1);
    let stream = gpu.stream();
    assert_eq!(code(gpu.try_alloc(0)), INVALID_VALUE);
    assert_eq!(gpu.alloc_on(stream, 0), 0);
    // SAFETY: pointers are to locals that outlive the call; bad handles and addresses are refused, not followed.
    unsafe {
        assert_eq!(code(gpu.cuMemFree_v2(0)), SUCCESS);
        assert_eq!(code(gpu.cuMemFreeAsync(0, stream)), SUCCESS);
        let address = gpu.alloc(4);
        assert_eq!(code(gpu.cuMemcpyDtoDAsync_v2(address, address, 0, stream)), SUCCESS);
        assert_eq!(code(gpu.cuMemsetD8_v2(address, 1, 0)), SUCCESS);
    }
}

#[test]
fn unknown_and_freed_pointers_are_refused_by_either_free() {
    let gpu = seeded(2);
    let stream = gpu.stream();
    let (plain, ordered) = (gpu.alloc(100), gpu.alloc_on(stream, 100));
    // SAFETY: pointers are to locals that outlive the call; bad handles and addresses are refused, not followed.
    unsafe {
        for address in [0x1234, plain + 1, ordered + 4, u64::MAX] {
            assert_eq!(code(gpu.cuMemFree_v2(address)), INVALID_VALUE, "{address:#x}");
            assert_eq!(code(gpu.cuMemFreeAsync(address, stream)), INVALID_VALUE, "{address:#x}");
        }
        gpu.cuMemFree_v2(plain).unwrap();
        gpu.cuMemFreeAsync(ordered, stream).unwrap();
        for address in [plain, ordered] {
            assert_eq!(code(gpu.cuMemFree_v2(address)), INVALID_VALUE);
            assert_eq!(code(gpu.cuMemFreeAsync(address, stream)), INVALID_VALUE);
        }
    }
}

#[test]
fn each_free_takes_the_other_kind_of_pointer() {
    let gpu = seeded(3);
    let stream = gpu.stream();
    let (plain, ordered) = (gpu.alloc(100), gpu.alloc_on(stream, 100));
    // SAFETY: pointers are to locals that outlive the call; bad handles and addresses are refused, not followed.
    unsafe {
        gpu.cuMemFreeAsync(plain, stream).unwrap();
        gpu.cuMemFree_v2(ordered).unwrap();
    }
    gpu.sync(stream);
    assert_eq!(gpu.sim().report().allocations, []);
}

#[test]
fn a_thread_without_a_context_is_told_so() {
    let gpu = seeded(4);
    let (stream, event) = (gpu.stream(), gpu.event());
    // SAFETY: pointers are to locals that outlive the call; bad handles and addresses are refused, not followed.
    unsafe {
        gpu.cuCtxSetCurrent(null_mut()).unwrap();
        assert_eq!(code(gpu.try_alloc(4)), INVALID_CONTEXT);
        assert_eq!(code(gpu.try_alloc_on(stream, 4)), INVALID_CONTEXT);
        assert_eq!(code(gpu.cuCtxSynchronize()), INVALID_CONTEXT);
        assert_eq!(code(gpu.cuEventRecord(event, stream)), INVALID_CONTEXT);
        assert_eq!(code(gpu.cuStreamSynchronize(stream)), INVALID_CONTEXT);
        let (mut context, mut device) = (null_mut(), 7);
        gpu.cuCtxGetCurrent(&mut context).unwrap();
        assert!(context.is_null());
        assert_eq!(code(gpu.cuCtxGetDevice(&mut device)), INVALID_CONTEXT);
    }
}

#[test]
fn handles_that_are_gone_or_were_never_made() {
    let gpu = seeded(5);
    let (stream, event) = (gpu.stream(), gpu.event());
    // SAFETY: pointers are to locals that outlive the call; bad handles and addresses are refused, not followed.
    unsafe {
        gpu.cuStreamDestroy_v2(stream).unwrap();
        gpu.cuEventDestroy_v2(event).unwrap();
        assert_eq!(code(gpu.try_sync(stream)), INVALID_HANDLE);
        assert_eq!(code(gpu.cuStreamDestroy_v2(stream)), INVALID_HANDLE);
        assert_eq!(code(gpu.cuEventQuery(event)), INVALID_HANDLE);
        assert_eq!(code(gpu.cuEventDestroy_v2(event)), INVALID_HANDLE);
        // A stream is not an event.
        assert_eq!(code(gpu.cuEventQuery(gpu.stream().cast())), INVALID_HANDLE);
        assert_eq!(code(gpu.cuCtxSetCurrent(std::ptr::without_provenance_mut(64))), INVALID_CONTEXT);
    }
}

#[test]
fn elapsed_time_needs_timing() {
    let gpu = seeded(6);
    let (stream, event) = (gpu.stream(), gpu.event());
    let mut elapsed_ms = 0.0;
    // SAFETY: pointers are to locals that outlive the call; bad handles and addresses are refused, not followed.
    unsafe {
        gpu.cuEventRecord(event, stream).unwrap();
        assert_eq!(code(gpu.cuEventElapsedTime(&mut elapsed_ms, event, event)), INVALID_HANDLE);
    }
}

#[test]
fn two_devices() {
    let gpu = machine(SimConfig::new().devices(2));
    let other = primary(&gpu, 1);
    let (event, home, here) = (gpu.event(), gpu.alloc(64), gpu.stream());
    // SAFETY: pointers are to locals that outlive the call; bad handles and addresses are refused, not followed.
    unsafe {
        let mut can = 0;
        gpu.cuDeviceCanAccessPeer(&mut can, 0, 1).unwrap();
        assert_eq!(can, 1);
        let pooled = gpu.alloc_on(here, 64);
        gpu.cuCtxSetCurrent(other).unwrap();
        let there = gpu.stream();
        // Only streams of its own context can record an event; any stream can wait for it.
        assert_eq!(code(gpu.cuEventRecord(event, there)), INVALID_HANDLE);
        assert_eq!(code(gpu.cuEventRecord(event, here)), SUCCESS);
        assert_eq!(code(gpu.cuStreamWaitEvent(there, event, 0)), SUCCESS);
        // A memset on the other device needs access, and the stream stays usable after the refusal.
        assert_eq!(code(gpu.cuMemsetD8Async(home, 1, 64, there)), INVALID_VALUE);
        assert_eq!(code(gpu.cuCtxEnablePeerAccess(gpu.context, 0)), SUCCESS);
        let again = code(gpu.cuCtxEnablePeerAccess(gpu.context, 0));
        assert_eq!(again, CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
        assert_eq!(code(gpu.cuMemsetD8Async(home, 1, 64, there)), SUCCESS);
        // Memory of a pool needs access granted by the pool, for copies too.
        let target = gpu.alloc(64);
        assert_eq!(code(gpu.cuMemcpyDtoDAsync_v2(target, pooled, 64, there)), INVALID_VALUE);
        let mut pool = null_mut();
        gpu.cuDeviceGetDefaultMemPool(&mut pool, 0).unwrap();
        let access = CUmemAccessDesc {
            location: CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 1 },
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        gpu.cuMemPoolSetAccess(pool, &access, 1).unwrap();
        gpu.sync(here);
        assert_eq!(code(gpu.cuMemcpyDtoDAsync_v2(target, pooled, 64, there)), SUCCESS);
        // Freed on a stream of the other device.
        assert_eq!(code(gpu.cuMemFreeAsync(pooled, there)), SUCCESS);
        gpu.sync(there);
    }
}

#[test]
fn attributes() {
    let gpu = seeded(7);
    // SAFETY: pointers are to locals that outlive the call; bad handles and addresses are refused, not followed.
    let value = |attribute| unsafe {
        let mut value = -1;
        gpu.cuDeviceGetAttribute(&mut value, attribute, 0).unwrap();
        value
    };
    assert_eq!(value(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED), 1);
    assert_eq!(value(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS), 0);
    let can_map = i32::from(cfg!(all(target_os = "linux", not(miri))));
    let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    assert_eq!(value(attribute), can_map);
    assert_eq!(value(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR), 9);
    assert_eq!(value(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT), 132);
    assert_eq!(value(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT), 512);
    // SAFETY: pointers are to locals that outlive the call; bad handles and addresses are refused, not followed.
    unsafe {
        let (mut value, mut version, mut total, mut name) = (0, 0, 0, [1 as std::ffi::c_char; 8]);
        assert_eq!(code(gpu.cuDeviceGetAttribute(&mut value, CUdevice_attribute(9_999), 0)), INVALID_VALUE);
        let no_device = code(gpu.cuDeviceGet(&mut value, 1));
        assert_eq!(no_device, CUresult::CUDA_ERROR_INVALID_DEVICE);
        gpu.cuDriverGetVersion(&mut version).unwrap();
        gpu.cuDeviceTotalMem_v2(&mut total, 0).unwrap();
        assert_eq!((version, total), (13_000, 8 << 30));
        // A name that does not fit is truncated and NUL-terminated.
        gpu.cuDeviceGetName(name.as_mut_ptr(), 8, 0).unwrap();
        assert_eq!(name[7], 0);
    }
}

#[test]
fn a_machine_without_devices() {
    let driver = gpumem_sim::driver(SimConfig::new().devices(0)).unwrap();
    // SAFETY: pointers are to locals that outlive the call; bad handles and addresses are refused, not followed.
    unsafe {
        let (mut count, mut context) = (7, null_mut());
        assert_eq!(code(driver.cuInit(0)), CUresult::CUDA_ERROR_NO_DEVICE);
        driver.cuDeviceGetCount(&mut count).unwrap();
        assert_eq!(count, 0);
        let none = code(driver.cuDevicePrimaryCtxRetain(&mut context, 0));
        assert_eq!(none, CUresult::CUDA_ERROR_INVALID_DEVICE);
    }
}

#[test]
fn host_memory() {
    let gpu = seeded(8);
    let mut own = vec![0u8; 8192];
    let host: *mut c_void = own.as_mut_ptr().cast();
    // SAFETY: pointers are to locals that outlive the call; bad handles and addresses are refused, not followed.
    unsafe {
        let (mut device, mut pinned, mut flags) = (0, null_mut(), 0);
        assert_eq!(code(gpu.cuMemHostGetDevicePointer_v2(&mut device, host, 0)), INVALID_VALUE);
        gpu.cuMemHostRegister_v2(host, 8192, 2).unwrap();
        let twice = code(gpu.cuMemHostRegister_v2(host.add(100), 10, 0));
        assert_eq!(twice, CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        gpu.cuMemHostGetDevicePointer_v2(&mut device, host.add(8), 0).unwrap();
        assert_eq!(device, host as u64 + 8);
        gpu.cuMemHostGetFlags(&mut flags, host).unwrap();
        assert_eq!(flags, 2);
        gpu.cuMemHostUnregister(host).unwrap();
        let gone = code(gpu.cuMemHostUnregister(host));
        assert_eq!(gone, CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
        assert_eq!(code(gpu.cuMemHostAlloc(&mut pinned, 0, 0)), INVALID_VALUE);
        gpu.cuMemAllocHost_v2(&mut pinned, 10).unwrap();
        assert_eq!(code(gpu.cuMemFree_v2(pinned as u64)), INVALID_VALUE);
        gpu.cuMemFreeHost(pinned).unwrap();
        assert_eq!(code(gpu.cuMemFreeHost(pinned)), INVALID_VALUE);
    }
}

#[test]
fn pointer_attributes() {
    let gpu = seeded(9);
    let stream = gpu.stream();
    let (plain, pooled) = (gpu.alloc(1000), gpu.alloc_on(stream, 1000));
    let pinned = gpu.pinned(64).as_ptr() as u64;
    // SAFETY: pointers are to locals that outlive the call; bad handles and addresses are refused, not followed.
    let int = |attribute, address| unsafe {
        let mut value = 0u32;
        gpu.cuPointerGetAttribute((&raw mut value).cast(), attribute, address).map(|()| value)
    };
    // SAFETY: pointers are to locals that outlive the call; bad handles and addresses are refused, not followed.
    let long = |attribute, address| unsafe {
        let mut value = 0u64;
        gpu.cuPointerGetAttribute((&raw mut value).cast(), attribute, address).map(|()| value)
    };
    let kind = CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    let host = CUpointer_attribute::CU_POINTER_ATTRIBUTE_HOST_POINTER;
    let pool = CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE;
    assert_eq!([int(kind, plain), int(kind, pooled), int(kind, pinned)].map(Result::unwrap), [2, 2, 1]);
    assert_eq!(long(CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, plain + 999), Ok(plain));
    assert_eq!(long(CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE, pooled), Ok(1000));
    assert_eq!(long(CUpointer_attribute::CU_POINTER_ATTRIBUTE_CONTEXT, plain), Ok(gpu.context as u64));
    assert_eq!(long(host, pinned + 8), Ok(pinned + 8));
    assert_eq!(code(long(host, plain)), INVALID_VALUE);
    assert!(long(pool, pooled).unwrap() != 0 && long(pool, plain).unwrap() == 0);
    assert_eq!(code(int(kind, plain + 1000)), INVALID_VALUE);
    // SAFETY: pointers are to locals that outlive the call; bad handles and addresses are refused, not followed.
    unsafe {
        let (mut attributes, mut value) = ([kind], 9u32);
        let mut data: [*mut c_void; 1] = [(&raw mut value).cast()];
        gpu.cuPointerGetAttributes(1, attributes.as_mut_ptr(), data.as_mut_ptr(), 0x99).unwrap();
        assert_eq!(value, 0);
        let (mut base, mut size_bytes) = (0, 0);
        gpu.cuMemGetAddressRange_v2(&mut base, &mut size_bytes, pooled + 10).unwrap();
        assert_eq!((base, size_bytes), (pooled, 1000));
    }
}

#[test]
fn what_is_absent_is_missing_and_what_is_null_is_refused() {
    let gpu = seeded(10);
    // SAFETY: pointers are to locals that outlive the call; bad handles and addresses are refused, not followed.
    unsafe {
        let missing = gpu.cuArrayDestroy(null_mut());
        assert!(matches!(missing, Err(DriverError::Missing { .. })));
        assert_eq!(code(gpu.cuMemAlloc_v2(null_mut(), 4)), INVALID_VALUE);
        assert_eq!(code(gpu.cuDeviceGetCount(null_mut())), INVALID_VALUE);
    }
}

#[test]
fn functions_by_name() {
    let gpu = seeded(11);
    // SAFETY: pointers are to locals that outlive the call; bad handles and addresses are refused, not followed.
    unsafe {
        let mut function = null_mut();
        let mut status = CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
        gpu.cuGetProcAddress_v2(c"cuMemAlloc".as_ptr(), &mut function, 12_000, 0, &mut status).unwrap();
        assert_eq!(function as usize, gpu.table().cuMemAlloc_v2.unwrap() as usize);
        assert_eq!(status, CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SUCCESS);
        let unknown = gpu.cuGetProcAddress_v2(c"cuNothing".as_ptr(), &mut function, 12_000, 0, &mut status);
        assert_eq!(code(unknown), CUresult::CUDA_ERROR_NOT_FOUND);
        let mut text = std::ptr::null();
        gpu.cuGetErrorName(OUT_OF_MEMORY, &mut text).unwrap();
        assert_eq!(std::ffi::CStr::from_ptr(text), c"CUDA_ERROR_OUT_OF_MEMORY");
    }
}

#[test]
fn nothing_is_made_where_there_is_no_place_for_its_handle() {
    let gpu = seeded(0);
    let properties = CUmemPoolProps {
        allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        location: CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 },
        ..Default::default()
    };
    let (stream, mut pool) = (gpu.stream(), null_mut());
    // SAFETY: null pointers are the subject of the test; locals outlive the calls.
    let codes = unsafe {
        gpu.cuMemPoolCreate(&mut pool, &properties).unwrap();
        [
            code(gpu.cuDevicePrimaryCtxRetain(null_mut(), 0)),
            code(gpu.cuCtxCreate_v2(null_mut(), 0, 0)),
            code(gpu.cuCtxCreate_v4(null_mut(), null_mut(), 0, 0)),
            code(gpu.cuStreamCreate(null_mut(), 0)),
            code(gpu.cuStreamCreateWithPriority(null_mut(), 0, 0)),
            code(gpu.cuEventCreate(null_mut(), 0)),
            code(gpu.cuMemAlloc_v2(null_mut(), 1)),
            code(gpu.cuMemAllocAsync(null_mut(), 1, stream)),
            code(gpu.cuMemAllocFromPoolAsync(null_mut(), 1, pool, stream)),
            code(gpu.cuMemHostAlloc(null_mut(), 1, 0)),
            code(gpu.cuMemAllocHost_v2(null_mut(), 1)),
            code(gpu.cuMemAllocManaged(null_mut(), 1, 1)),
            code(gpu.cuMemPoolCreate(null_mut(), &properties)),
        ]
    };
    assert_eq!(codes, [CUresult::CUDA_ERROR_INVALID_VALUE; 13]);
    let report = gpu.sim().report();
    assert_eq!((report.allocations.len(), report.stream_count, report.event_count), (0, 1, 0));
    // SAFETY: this releases the only reference to the context.
    unsafe {
        gpu.cuMemPoolDestroy(pool).unwrap();
        gpu.cuDevicePrimaryCtxRelease_v2(0).unwrap();
        assert!(gpu.cuDevicePrimaryCtxRelease_v2(0).is_err());
    }
}

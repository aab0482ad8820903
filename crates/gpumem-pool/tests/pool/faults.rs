//! A driver that fails: the errors of the pool, and its counters afterwards.

use crate::fixture::{Fixture, on_each_backend_with, small, stand_in};
use gpumem_pool::sys::types::CUresult;
use gpumem_pool::sys::{DriverError, Table};
use gpumem_pool::{BackendKind, DeviceError, Event, PoolError, Stream, Unsupported};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

stand_in!(plain_alloc, cuMemAlloc_v2(address: *mut CUdeviceptr, size: usize));
stand_in!(plain_free, cuMemFree_v2(address: CUdeviceptr));
stand_in!(pool_alloc, cuMemAllocFromPoolAsync(address: *mut CUdeviceptr, size: usize, pool: CUmemoryPool, stream: CUstream));
stand_in!(pool_free, cuMemFreeAsync(address: CUdeviceptr, stream: CUstream));
stand_in!(pool_attribute, cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut core::ffi::c_void));
stand_in!(pool_create, cuMemPoolCreate(pool: *mut CUmemoryPool, props: *const CUmemPoolProps));
stand_in!(pool_destroy, cuMemPoolDestroy(pool: CUmemoryPool));
stand_in!(pool_trim, cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize));
stand_in!(wait, cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: core::ffi::c_uint));
stand_in!(finish, cuCtxSynchronize());
stand_in!(memory_create, cuMemCreate(handle: *mut CUmemGenericAllocationHandle, size: usize, props: *const CUmemAllocationProp, flags: core::ffi::c_ulonglong));
stand_in!(context, cuCtxPushCurrent_v2(context: CUcontext));

fn install(table: &mut Table) {
    plain_alloc::install(table);
    plain_free::install(table);
    pool_alloc::install(table);
    pool_free::install(table);
    pool_attribute::install(table);
    pool_create::install(table);
    pool_destroy::install(table);
    pool_trim::install(table);
    wait::install(table);
    finish::install(table);
    memory_create::install(table);
    context::install(table);
}

/// The stand-ins are shared by the tests of this file, so the tests run one after another.
fn on_a_failing_driver(body: impl Fn(&Fixture)) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn: MutexGuard<'_, ()> = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    on_each_backend_with(&small(), install, body);
}

/// The driver function with which the backend allocates or frees.
fn alloc_fault(fixture: &Fixture) -> &'static AtomicU32 {
    match fixture.backend {
        BackendKind::None => &plain_alloc::FAIL_WITH,
        BackendKind::Caching if fixture.plain_segments => &plain_alloc::FAIL_WITH,
        BackendKind::Caching => &memory_create::FAIL_WITH,
        _ => &pool_alloc::FAIL_WITH,
    }
}

fn free_fault(fixture: &Fixture) -> &'static AtomicU32 {
    match fixture.backend {
        BackendKind::None => &plain_free::FAIL_WITH,
        _ => &pool_free::FAIL_WITH,
    }
}

/// True if a free makes a driver call, which can fail. `caching` makes none.
fn frees_by_call(fixture: &Fixture) -> bool {
    fixture.backend != BackendKind::Caching
}

fn set(fault: &AtomicU32, code: CUresult) {
    fault.store(code.0, Ordering::SeqCst);
}

#[test]
fn a_refused_allocation_leaves_no_trace() {
    on_a_failing_driver(|fixture| {
        let (pool, stream) = (fixture.builder().hard_limit(4 << 20).build().unwrap(), fixture.stream());
        for code in [CUresult::CUDA_ERROR_INVALID_VALUE, CUresult::CUDA_ERROR_OUT_OF_MEMORY, CUresult(4242)] {
            set(alloc_fault(fixture), code);
            let error = pool.alloc(3 << 20, &stream).unwrap_err();
            match code {
                CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                    assert!(
                        matches!(&error, PoolError::OutOfMemory(report) if report.in_use_bytes == 0),
                        "{error:?}"
                    );
                }
                _ => assert!(
                    matches!(error, PoolError::Device(DeviceError::Driver(inner)) if inner.code() == code),
                    "{error:?}"
                ),
            }
        }
        set(alloc_fault(fixture), CUresult::CUDA_SUCCESS);
        drop(pool.alloc(4 << 20, &stream).unwrap());
        let status = pool.status().unwrap();
        assert_eq!((status.in_use_bytes, status.in_use_peak_bytes), (0, 4 << 20));
        assert_eq!((status.block_count, status.allocation_count), (0, 1));
    });
}

/// On a full device, the allocation is tried twice with a wait between, and a backend with a cache trims it.
#[test]
fn an_allocation_is_retried_once_a_full_device_is_idle() {
    on_a_failing_driver(|fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        set(alloc_fault(fixture), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        assert!(matches!(pool.alloc(1 << 20, &stream), Err(PoolError::OutOfMemory { .. })));
        let calls = [&plain_alloc::CALLS, &pool_alloc::CALLS, &pool_trim::CALLS, &memory_create::CALLS];
        let [plain, pool, trim, create] = calls.map(|count| count.load(Ordering::SeqCst));
        match fixture.backend {
            BackendKind::None => assert_eq!([plain, pool, trim, create], [2, 0, 0, 0]),
            BackendKind::Caching if fixture.plain_segments => assert!(plain > 1 && create == 0),
            BackendKind::Caching => assert!(create > 1 && plain == 0),
            _ => assert_eq!([plain, pool, trim, create], [0, 2, 1, 0]),
        }
    });
}

#[test]
fn a_failed_free_poisons_the_pool_and_leaks_the_block() {
    on_a_failing_driver(|fixture| {
        if !frees_by_call(fixture) {
            return;
        }
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let scope = pool.scope("bad");
        let bad = pool.alloc(1 << 20, &stream).unwrap();
        drop(scope);
        let good = pool.alloc(1 << 10, &stream).unwrap();
        let bad_address = bad.address();
        set(free_fault(fixture), CUresult::CUDA_ERROR_INVALID_VALUE);
        drop(bad);
        set(free_fault(fixture), CUresult::CUDA_SUCCESS);
        for attempt in [
            pool.alloc(1, &stream).map(drop),
            pool.alloc(0, &stream).map(drop),
            pool.reclaim().map(drop),
            pool.trim_to(0).map(drop),
        ] {
            let error = attempt.unwrap_err();
            let PoolError::Poisoned { pool: ref name, address, size_bytes, cause } = error else {
                panic!("{error:?}")
            };
            assert_eq!((address, size_bytes), (bad_address, 1 << 20));
            assert_eq!(cause.code(), CUresult::CUDA_ERROR_INVALID_VALUE);
            let text = error.to_string();
            assert!(name == pool.name() && text.contains(&format!("the pool {name} is unusable")), "{text}");
            assert!(text.contains("create a new pool"), "{text}");
        }
        drop(good);
        let status = pool.status().unwrap();
        assert_eq!((status.in_use_bytes, status.block_count), (0, 0), "the program has dropped all blocks");
        assert_eq!((status.tags[0].in_use_bytes, status.tags[0].block_count), (0, 0));
        assert!(status.streams.is_empty() && status.reserved_bytes >= 1 << 20, "the memory is still there");
        drop(fixture.pool().alloc(1 << 20, &stream).unwrap());
    });
}

/// Memory that the driver did not free counts against the limits until the end of its pool, which frees it.
#[test]
fn a_failed_free_counts_against_the_limit_until_the_pool_ends() {
    on_a_failing_driver(|fixture| {
        if !frees_by_call(fixture) {
            return;
        }
        let (pool, stream) = (fixture.builder().hard_limit(8 << 20).build().unwrap(), fixture.stream());
        let private = pool.private(8 << 20).unwrap();
        let block = private.alloc(5 << 20, &stream).unwrap();
        set(free_fault(fixture), CUresult::CUDA_ERROR_INVALID_VALUE);
        drop(block);
        set(free_fault(fixture), CUresult::CUDA_SUCCESS);
        let status = private.status().unwrap();
        assert_eq!(status.in_use_bytes, 0);
        // The driver's pool may have reserved more than it allocated.
        let beside_bytes = if fixture.backend == BackendKind::Native { 27 << 20 } else { 0 };
        assert_eq!((status.cached_bytes, status.reserved_bytes), (beside_bytes, (5 << 20) + beside_bytes));
        let error = pool.alloc(4 << 20, &stream).unwrap_err();
        let PoolError::LimitReached(report) = &error else { panic!("{error:?}") };
        let sharers: Vec<_> = report.limit_sharers.iter().map(|sharer| &*sharer.name).collect();
        assert_eq!(sharers, [private.name()], "{error}");
        assert!(error.to_string().contains("5.000 MiB"), "{error}");
        drop(pool.alloc(3 << 20, &stream).unwrap());
        drop(private);
        drop(pool.alloc(8 << 20, &stream).unwrap());
    });
}

/// The driver refused the free in a host function, so it is repeated by later calls. One that fails then is reported to the program by
/// the calls that return memory, and not by a request for another block.
#[test]
fn a_repeated_free_that_fails_is_no_error_of_another_request() {
    on_a_failing_driver(|fixture| {
        if !frees_by_call(fixture) {
            return;
        }
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let blocks: Vec<_> = (0..3).map(|_| pool.alloc(1 << 20, &stream).unwrap()).collect();
        set(free_fault(fixture), CUresult::CUDA_ERROR_NOT_PERMITTED);
        drop(blocks);
        set(free_fault(fixture), CUresult::CUDA_ERROR_INVALID_VALUE);
        let mut kept = vec![pool.alloc(1 << 20, &stream).unwrap(), pool.alloc(5 << 20, &stream).unwrap()];
        let errors =
            [pool.trim_to(0).unwrap_err(), pool.reclaim().unwrap_err(), pool.trim_to(0).unwrap_err()];
        for error in errors {
            let is_of_free = matches!(&error, PoolError::Device(DeviceError::Driver(cause)) if cause.code() == CUresult::CUDA_ERROR_INVALID_VALUE);
            assert!(is_of_free, "{error}");
        }
        // Also a request for which the pool waits and trims.
        set(alloc_fault(fixture), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let error = pool.alloc(1 << 20, &stream).unwrap_err();
        assert!(matches!(error, PoolError::OutOfMemory(_)), "{error}");
        set(alloc_fault(fixture), CUresult::CUDA_SUCCESS);
        set(free_fault(fixture), CUresult::CUDA_SUCCESS);
        kept.push(pool.alloc(1 << 20, &stream).unwrap());
        pool.reclaim().unwrap();
        let live = gpumem_sim::Sim::of(&fixture.driver).unwrap().report().allocations;
        assert_eq!(live.len(), kept.len(), "{live:?}");
    });
}

/// The driver calls of a drop: a wait for each stream that used the block, and no wait of the host if the backend guarantees
/// none. The simulated `cuMemFree` waits itself, which would hide a wait missing in `none`.
#[test]
fn a_drop_orders_the_free_behind_each_use_once() {
    on_a_failing_driver(|fixture| {
        let (pool, home) = (fixture.pool(), fixture.stream());
        let others = [fixture.stream(), fixture.stream()];
        let block = pool.alloc(1 << 20, &home).unwrap();
        for stream in [&others[0], &others[1], &home, &others[0]] {
            block.record_use(stream);
        }
        drop(block);
        let calls = [&wait::CALLS, &finish::CALLS].map(|count| count.load(Ordering::SeqCst));
        let expected = match fixture.backend {
            // One wait for the device covers all streams.
            BackendKind::None => [0, 1],
            // The heap records the wait that the next user needs.
            BackendKind::Caching => [0, 0],
            _ => [2, 0],
        };
        assert_eq!(calls, expected, "waits of streams, waits of the host");
    });
}

/// If the owner stream cannot be made to wait for a use, the block must not be freed.
#[test]
fn a_wait_that_fails_keeps_the_block() {
    on_a_failing_driver(|fixture| {
        if !frees_by_call(fixture) {
            return;
        }
        let (pool, home, other) = (fixture.pool(), fixture.stream(), fixture.stream());
        let block = pool.alloc(1 << 20, &home).unwrap();
        block.record_use(&other);
        set(&wait::FAIL_WITH, CUresult::CUDA_ERROR_INVALID_HANDLE);
        set(&finish::FAIL_WITH, CUresult::CUDA_ERROR_INVALID_HANDLE);
        drop(block);
        set(&wait::FAIL_WITH, CUresult::CUDA_SUCCESS);
        set(&finish::FAIL_WITH, CUresult::CUDA_SUCCESS);
        assert!(matches!(pool.alloc(1, &home), Err(PoolError::Poisoned { .. })));
        let frees = plain_free::CALLS.load(Ordering::SeqCst) + pool_free::CALLS.load(Ordering::SeqCst);
        assert_eq!(frees, 0);
    });
}

#[test]
fn a_driver_that_shuts_down_takes_the_memory_with_it() {
    on_a_failing_driver(|fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let block = pool.alloc(1 << 20, &stream).unwrap();
        set(free_fault(fixture), CUresult::CUDA_ERROR_DEINITIALIZED);
        drop(block);
        set(free_fault(fixture), CUresult::CUDA_SUCCESS);
        assert_eq!(pool.status().unwrap().in_use_bytes, 0);
        drop(pool.alloc(1, &stream).unwrap());
    });
}

#[test]
fn a_dead_context_is_a_lost_device() {
    on_a_failing_driver(|fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let block = pool.alloc(1 << 20, &stream).unwrap();
        for code in [
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
            CUresult::CUDA_ERROR_LAUNCH_FAILED,
            CUresult::CUDA_ERROR_ECC_UNCORRECTABLE,
        ] {
            set(alloc_fault(fixture), code);
            // More than the pool caches.
            let error = pool.alloc(8 << 20, &stream).unwrap_err();
            assert!(
                matches!(error, PoolError::Device(DeviceError::DeviceLost(inner)) if inner.code() == code),
                "{error:?}"
            );
        }
        set(alloc_fault(fixture), CUresult::CUDA_SUCCESS);
        set(free_fault(fixture), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        drop(block);
        assert_eq!(
            matches!(pool.alloc(1, &stream), Err(PoolError::Device(DeviceError::DeviceLost(_)))),
            frees_by_call(fixture)
        );
    });
}

/// A real failure instead of a stand-in: a stray access kills the simulated context.
#[test]
fn faulting_work_is_reported_by_every_entry() {
    on_a_failing_driver(|fixture| {
        let (pool, stream, other) = (fixture.pool(), fixture.stream(), fixture.stream());
        let (block, kept) = (pool.alloc(4096, &stream).unwrap(), pool.alloc(4096, &stream).unwrap());
        queue_a_fault(fixture, &stream);
        let error = stream.synchronize().unwrap_err();
        assert!(matches!(error, DeviceError::DeviceLost(_)), "{error:?}");
        assert!(matches!(pool.alloc(1, &other), Err(PoolError::Device(DeviceError::DeviceLost(_)))));
        assert!(matches!(pool.reclaim(), Err(PoolError::Device(DeviceError::DeviceLost(_)))));
        assert!(matches!(Event::new(&fixture.device), Err(DeviceError::DeviceLost(_))));
        drop((block, kept));
        assert!(matches!(pool.alloc(1, &other), Err(PoolError::Device(DeviceError::DeviceLost(_)))));
    });
}

/// The work fails before a copy, or while the copy is in flight. The host's slice is not used after the call.
#[test]
fn copies_and_fills_report_a_dead_context() {
    on_a_failing_driver(|fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let [mut block, source] = [(); 2].map(|()| pool.alloc_zeroed(4096, &stream).unwrap());
        queue_a_fault(fixture, &stream);
        let queued_before_it_is_known = block.copy_from_host(0, &[1_u8; 4096], &stream);
        let refused = [
            queued_before_it_is_known,
            block.copy_from_host(0, &[1_u8; 4096], &stream),
            block.copy_to_host(0, &mut [1_u8; 4096], &stream),
            block.copy_from(0, &source, 0..4096, &stream),
            block.copy_within(0..8, 8, &stream),
            block.fill(0..8, 1_u32, &stream),
            pool.alloc_zeroed(4096, &stream).map(drop),
        ];
        for result in refused {
            assert!(matches!(result, Err(PoolError::Device(DeviceError::DeviceLost(_)))), "{result:?}");
        }
        drop((block, source));
    });
}

/// Queues a kernel that reads outside of any allocation.
fn queue_a_fault(fixture: &Fixture, stream: &Stream) {
    let ptx = c".version 8.0 .target sm_70 .address_size 64
        .visible .entry astray() { .reg .b16 %byte; .reg .b64 %at; mov.u64 %at, 8; ld.global.u8 %byte, [%at]; ret; }";
    let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
    let none = std::ptr::null_mut::<std::ffi::c_void>();
    let _bound = fixture.device.bind().unwrap();
    // SAFETY: both handles outlive the calls, and the kernel takes no parameters.
    unsafe {
        fixture.driver.cuModuleLoadData(&mut module, ptx.as_ptr().cast()).unwrap();
        fixture.driver.cuModuleGetFunction(&mut function, module, c"astray".as_ptr()).unwrap();
        fixture
            .driver
            .cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream.raw(), none.cast(), none.cast())
            .unwrap();
    }
}

#[test]
fn a_context_that_cannot_be_made_current_breaks_nothing() {
    on_a_failing_driver(|fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let (block, event) = (pool.alloc(4096, &stream).unwrap(), Event::new(&fixture.device).unwrap());
        let spare = fixture.stream();
        set(&context::FAIL_WITH, CUresult::CUDA_ERROR_INVALID_CONTEXT);
        assert!(Stream::new(&fixture.device).is_err() && stream.synchronize().is_err());
        assert!(pool.alloc(8 << 20, &stream).is_err() && pool.status().is_err() && pool.reclaim().is_err());
        drop((block, event, spare));
        set(&context::FAIL_WITH, CUresult::CUDA_SUCCESS);
        assert_eq!(matches!(pool.alloc(1, &stream), Err(PoolError::Poisoned { .. })), frees_by_call(fixture));
    });
}

#[test]
fn a_driver_pool_that_can_not_be_set_up_is_taken_down_again() {
    on_a_failing_driver(|fixture| {
        if fixture.backend != BackendKind::Native {
            return;
        }
        set(&pool_attribute::FAIL_WITH, CUresult::CUDA_ERROR_INVALID_VALUE);
        assert!(matches!(
            fixture.builder().build(),
            Err(PoolError::Device(DeviceError::Driver(DriverError::Failed { .. })))
        ));
        set(&pool_attribute::FAIL_WITH, CUresult::CUDA_SUCCESS);
        let counts = [&pool_create::CALLS, &pool_destroy::CALLS].map(|count| count.load(Ordering::SeqCst));
        assert_eq!(counts, [1, 1]);
    });
}

/// An old driver: `native` by name is an error that names the alternative; the default is the best backend that works.
#[test]
fn a_driver_that_lacks_something_is_served_by_the_next_backend() {
    let without = |table: &mut Table| {
        table.cuMemPoolCreate = None;
        table.cuMemAddressReserve = None;
    };
    on_each_backend_with(&small(), without, |fixture| {
        let pool = gpumem_pool::Pool::new(&fixture.device).unwrap();
        let has_caching = cfg!(feature = "backend-caching");
        assert_eq!(pool.backend(), if has_caching { BackendKind::Caching } else { BackendKind::None });
        assert_eq!(pool.status().unwrap().plain_segments, has_caching);
        if fixture.backend == BackendKind::Native {
            let error = fixture.builder().build().unwrap_err();
            assert!(matches!(error, PoolError::Unsupported(Unsupported::Backend { .. })), "{error:?}");
            assert!(error.to_string().contains("use the backend `none`"), "{error}");
        }
    });
}

//! What a capture takes, and what it refuses in which mode.

use crate::bench::*;
use gpumem_tests::cases;
use gpumem_tests::sys::DriverError;

cases! {
    /// Captured work runs at a launch, once for each, and not before.
    #[serial_test::serial]
    fn captured_work_runs_when_launched(driver: &Driver) {
        let bench = Bench::new(driver);
        let (a, b) = (bench.raw.alloc(1).unwrap(), bench.raw.alloc(1).unwrap());
        bench.fill(bench.stream, a, 1);
        bench.fill(bench.stream, b, 1);
        bench.sync();
        bench.begin(GLOBAL);
        assert_eq!(bench.status(bench.stream), Status::CU_STREAM_CAPTURE_STATUS_ACTIVE);
        assert_eq!(bench.status(bench.other), Status::CU_STREAM_CAPTURE_STATUS_NONE);
        bench.copy(bench.stream, b, a);
        bench.fill(bench.stream, a, 9);
        let graph = bench.end();
        assert_eq!(
            bench.types(graph),
            [CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY, CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET]
        );
        assert_eq!(bench.edge_count(graph), 1);
        assert_eq!((bench.byte(a), bench.byte(b)), (1, 1));
        let exec = bench.instantiate(graph);
        bench.destroy(graph);
        bench.fill(bench.stream, a, 5);
        bench.launch(exec);
        bench.sync();
        assert_eq!((bench.byte(a), bench.byte(b)), (9, 5));
        bench.launch(exec);
        bench.sync();
        assert_eq!((bench.byte(a), bench.byte(b)), (9, 9));
        bench.destroy_exec(exec);
        bench.free([a, b]);
    }

    /// Beginning twice and ending what did not begin.
    #[serial_test::serial]
    fn begin_and_end_out_of_place(driver: &Driver) {
        let bench = Bench::new(driver);
        assert_eq!(bench.end_code(), ILLEGAL_STATE);
        bench.begin(GLOBAL);
        // SAFETY: the stream is alive.
        let again = unsafe { bench.cuStreamBeginCapture_v2(bench.stream, GLOBAL) };
        assert_eq!(code(again), ILLEGAL_STATE);
        bench.destroy(bench.end());
        // SAFETY: the null stream is always there.
        let legacy = unsafe { bench.cuStreamBeginCapture_v2(null_mut(), GLOBAL) };
        assert_eq!(code(legacy), UNSUPPORTED);
    }

    /// A capture that is not relaxed ends on the thread that began it.
    #[serial_test::serial]
    fn ending_on_another_thread(driver: &Driver) {
        for (mode, expected) in [(GLOBAL, WRONG_THREAD), (THREAD_LOCAL, WRONG_THREAD), (RELAXED, SUCCESS)] {
            let bench = Bench::new(driver);
            bench.begin(mode);
            let (stream, driver) = (bench.stream as usize, &bench.raw.driver);
            let context = bench.raw.context as usize;
            let (ended, graph) = std::thread::scope(|scope| {
                let end = scope.spawn(move || {
                    let mut graph = null_mut();
                    // SAFETY: stream and context are alive; the local outlives the call.
                    unsafe {
                        driver.cuCtxSetCurrent(context as CUcontext).unwrap();
                        let ended = driver.cuStreamEndCapture(stream as CUstream, &mut graph);
                        (code(ended), graph as usize)
                    }
                });
                end.join().unwrap()
            });
            assert_eq!(ended, expected, "{mode:?}");
            if ended == SUCCESS {
                bench.destroy(graph as CUgraph);
            } else {
                let mut graph = null_mut();
                // SAFETY: the local outlives the call. Whether the capture survived is not what this case is about.
                if unsafe { bench.cuStreamEndCapture(bench.stream, &mut graph) }.is_ok() {
                    bench.destroy(graph);
                }
            }
        }
    }

    /// Plain allocation is refused where the mode protects against calls that may wait.
    #[serial_test::serial]
    fn plain_allocation(driver: &Driver) {
        for mode in [GLOBAL, THREAD_LOCAL] {
            breaks(driver, mode, UNSUPPORTED, |bench| code(bench.raw.alloc(1).map(drop)));
        }
        let bench = Bench::new(driver);
        bench.begin(RELAXED);
        let memory = bench.raw.alloc(1).unwrap();
        bench.destroy(bench.end());
        bench.free([memory]);
    }

    /// So is allocation in the order of a stream outside of the capture.
    #[serial_test::serial]
    fn allocating_on_another_stream(driver: &Driver) {
        for mode in [GLOBAL, THREAD_LOCAL] {
            breaks(driver, mode, UNSUPPORTED, |bench| code(alloc_on_other(bench).map(drop)));
        }
        passes(driver, RELAXED, |bench| {
            let memory = alloc_on_other(bench).unwrap();
            free_on_other(bench, memory).unwrap();
        });
    }

    /// And a free.
    #[serial_test::serial]
    fn freeing_on_another_stream(driver: &Driver) {
        for mode in [GLOBAL, THREAD_LOCAL] {
            let bench = Bench::new(driver);
            let memory = alloc_on_other(&bench).unwrap();
            bench.begin(mode);
            assert_eq!(code(free_on_other(&bench, memory)), UNSUPPORTED);
            assert_eq!(bench.end_code(), INVALIDATED);
            free_on_other(&bench, memory).unwrap();
        }
    }

    /// And looking at a pool, or trimming it.
    #[serial_test::serial]
    fn asking_a_pool(driver: &Driver) {
        for mode in [GLOBAL, THREAD_LOCAL] {
            breaks(driver, mode, UNSUPPORTED, |bench| code(used_bytes(bench).map(drop)));
            // SAFETY: the pool is the device's own.
            breaks(driver, mode, UNSUPPORTED, |bench| code(unsafe { bench.cuMemPoolTrimTo(pool(bench), 0) }));
        }
        passes(driver, RELAXED, |bench| {
            used_bytes(bench).unwrap();
            // SAFETY: the pool is the device's own.
            unsafe { bench.cuMemPoolTrimTo(pool(bench), 0).unwrap() };
        });
    }

    /// Asking for the state of a stream outside of the capture.
    #[serial_test::serial]
    fn asking_another_stream(driver: &Driver) {
        for mode in [GLOBAL, THREAD_LOCAL] {
            // SAFETY: the stream is alive.
            breaks(driver, mode, UNSUPPORTED, |bench| code(unsafe { bench.cuStreamQuery(bench.other) }));
        }
        passes(driver, RELAXED, |bench| {
            // SAFETY: the stream is alive.
            unsafe { bench.cuStreamQuery(bench.other).unwrap() };
        });
    }

    /// Asking for the state of an event outside of the capture.
    #[serial_test::serial]
    fn asking_an_outside_event(driver: &Driver) {
        for mode in [GLOBAL, THREAD_LOCAL] {
            // SAFETY: the event is alive.
            breaks(driver, mode, UNSUPPORTED, |bench| code(unsafe { bench.cuEventQuery(bench.event) }));
        }
        passes(driver, RELAXED, |bench| {
            // SAFETY: the event is alive.
            unsafe { bench.cuEventQuery(bench.event).unwrap() };
        });
    }

    /// A capturing stream has nothing to ask about or to wait for, in any mode.
    #[serial_test::serial]
    fn asking_the_capturing_stream(driver: &Driver) {
        for mode in [GLOBAL, THREAD_LOCAL, RELAXED] {
            // SAFETY: the stream is alive.
            breaks(driver, mode, UNSUPPORTED, |bench| code(unsafe { bench.cuStreamQuery(bench.stream) }));
            // SAFETY: the stream is alive.
            breaks(driver, mode, UNSUPPORTED, |bench| code(unsafe { bench.cuStreamSynchronize(bench.stream) }));
        }
    }

    /// Attaching managed memory has no place in a graph.
    #[serial_test::serial]
    fn attaching_managed_memory(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        let mut managed = 0;
        // SAFETY: the local outlives the call.
        unsafe { driver.cuMemAllocManaged(&mut managed, 1 << 16, 1).unwrap() };
        breaks(driver, RELAXED, UNSUPPORTED, |bench| {
            // SAFETY: stream and memory are alive.
            code(unsafe { bench.cuStreamAttachMemAsync(bench.stream, managed, 0, 1) })
        });
        // SAFETY: nothing uses it.
        unsafe { driver.cuMemFree_v2(managed).unwrap() };
        drop(raw);
    }

    /// Waiting for a context with a capturing stream in it.
    #[serial_test::serial]
    fn waiting_for_the_context(driver: &Driver) {
        // SAFETY: the context is current.
        breaks(driver, RELAXED, UNSUPPORTED, |bench| code(unsafe { bench.cuCtxSynchronize() }));
    }

    /// An event that was recorded in a capture stands for no work.
    #[serial_test::serial]
    fn asking_a_captured_event(driver: &Driver) {
        breaks(driver, RELAXED, CAPTURED_EVENT, |bench| {
            bench.record(bench.stream);
            // SAFETY: the event is alive.
            code(unsafe { bench.cuEventQuery(bench.event) })
        });
        breaks(driver, RELAXED, CAPTURED_EVENT, |bench| {
            bench.record(bench.stream);
            // SAFETY: the event is alive.
            code(unsafe { bench.cuEventSynchronize(bench.event) })
        });
    }

    /// The thread's own mode counts too, and is exchanged.
    #[serial_test::serial]
    fn exchanging_the_mode(driver: &Driver) {
        passes(driver, GLOBAL, |bench| {
            let mut mode = RELAXED;
            // SAFETY: the local outlives the calls; the event is alive.
            unsafe {
                bench.cuThreadExchangeStreamCaptureMode(&mut mode).unwrap();
                assert_eq!(mode, GLOBAL);
                bench.cuEventQuery(bench.event).unwrap();
                bench.cuThreadExchangeStreamCaptureMode(&mut mode).unwrap();
                assert_eq!(mode, RELAXED);
            }
        });
    }

    /// Another thread is in the way of a global capture only.
    #[serial_test::serial]
    fn allocating_on_another_thread(driver: &Driver) {
        for (mode, expected) in [(GLOBAL, UNSUPPORTED), (THREAD_LOCAL, SUCCESS), (RELAXED, SUCCESS)] {
            let bench = Bench::new(driver);
            bench.begin(mode);
            let (event, context) = (bench.event as usize, bench.raw.context as usize);
            let driver = &bench.raw.driver;
            let asked = std::thread::scope(|scope| {
                let ask = scope.spawn(move || {
                    // SAFETY: event and context are alive.
                    unsafe {
                        driver.cuCtxSetCurrent(context as CUcontext).unwrap();
                        code(driver.cuEventQuery(event as CUevent))
                    }
                });
                ask.join().unwrap()
            });
            assert_eq!(asked, expected, "{mode:?}");
            if expected == SUCCESS {
                bench.destroy(bench.end());
            } else {
                assert_eq!(bench.end_code(), INVALIDATED);
            }
        }
    }

    /// Physical memory may be created in every mode.
    #[serial_test::serial]
    fn creating_physical_memory(driver: &Driver) {
        if driver.table().cuMemCreate.is_none() {
            return;
        }
        for mode in [GLOBAL, THREAD_LOCAL, RELAXED] {
            passes(driver, mode, |bench| {
                let mut wish = CUmemAllocationProp {
                    type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
                    ..CUmemAllocationProp::default()
                };
                wish.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
                let mut handle = 0;
                // SAFETY: the locals outlive the calls.
                unsafe {
                    bench.cuMemCreate(&mut handle, 2 << 20, &wish, 0).unwrap();
                    bench.cuMemRelease(handle).unwrap();
                }
            });
        }
    }

    /// The null stream is out of bounds while a blocking stream captures; a non-blocking one does not mind.
    #[serial_test::serial]
    fn the_null_stream(driver: &Driver) {
        let bench = Bench::new(driver);
        let memory = bench.raw.alloc(1).unwrap();
        passes(driver, GLOBAL, |bench| bench.fill(null_mut(), memory, 3));
        let mut blocking = null_mut();
        // SAFETY: the locals outlive the calls; stream and memory are alive.
        unsafe {
            bench.cuStreamCreate(&mut blocking, 0).unwrap();
            bench.cuStreamBeginCapture_v2(blocking, GLOBAL).unwrap();
            let mut status = Status::CU_STREAM_CAPTURE_STATUS_NONE;
            assert_eq!(code(bench.cuStreamIsCapturing(null_mut(), &mut status)), IMPLICIT);
            bench.cuStreamIsCapturing(blocking, &mut status).unwrap();
            assert_eq!(status, Status::CU_STREAM_CAPTURE_STATUS_ACTIVE);
            assert_eq!(code(bench.cuMemsetD8Async(memory, 0, 1, null_mut())), IMPLICIT);
            let mut graph = null_mut();
            assert_eq!(code(bench.cuStreamEndCapture(blocking, &mut graph)), INVALIDATED);
            bench.cuStreamDestroy_v2(blocking).unwrap();
        }
        bench.free([memory]);
    }

    /// A captured copy from pageable memory reads it at the launch, not when it was captured.
    #[serial_test::serial]
    fn pageable_memory_is_read_at_the_launch(driver: &Driver) {
        let bench = Bench::new(driver);
        let memory = bench.raw.alloc(1).unwrap();
        let mut source = Box::new(1u8);
        bench.begin(GLOBAL);
        // SAFETY: the source lives until the launch is done.
        unsafe {
            bench.cuMemcpyHtoDAsync_v2(memory, (&raw const *source).cast(), 1, bench.stream).unwrap();
        }
        let graph = bench.end();
        let exec = bench.instantiate(graph);
        // SAFETY: nothing reads it now.
        unsafe { (&raw mut *source).write_volatile(2) };
        bench.launch(exec);
        bench.sync();
        assert_eq!(bench.byte(memory), 2);
        bench.destroy_exec(exec);
        bench.destroy(graph);
        bench.free([memory]);
    }
}

fn alloc_on_other(bench: &Bench) -> Result<u64, DriverError> {
    let mut memory = 0;
    // SAFETY: a local outlives the call, and the stream is alive.
    unsafe { bench.cuMemAllocAsync(&mut memory, 1 << 20, bench.other)? };
    Ok(memory)
}

fn free_on_other(bench: &Bench, memory: u64) -> Result<(), DriverError> {
    // SAFETY: nobody uses the memory, and it is freed once.
    unsafe { bench.cuMemFreeAsync(memory, bench.other) }
}

fn pool(bench: &Bench) -> CUmemoryPool {
    let mut pool = null_mut();
    // SAFETY: a local outlives the call.
    unsafe { bench.cuDeviceGetMemPool(&mut pool, bench.raw.device).unwrap() };
    pool
}

fn used_bytes(bench: &Bench) -> Result<u64, DriverError> {
    let (mut value, attribute) = (0_u64, CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    // SAFETY: the value is as wide as the attribute.
    unsafe { bench.cuMemPoolGetAttribute(pool(bench), attribute, (&raw mut value).cast())? };
    Ok(value)
}

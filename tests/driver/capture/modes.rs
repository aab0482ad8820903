//! The calls that a capture accepts and refuses in each mode.

use crate::capture::fixture::*;
use gpumem_tests::cases;
use gpumem_tests::sys::DriverError;

cases! {
    /// Captured work runs once at each launch, and not before.
    #[serial_test::serial]
    fn captured_work_runs_when_launched(driver: &Driver) {
        let fixture = Fixture::new(driver);
        let (a, b) = (fixture.raw.alloc(1).unwrap(), fixture.raw.alloc(1).unwrap());
        fixture.fill(fixture.stream, a, 1);
        fixture.fill(fixture.stream, b, 1);
        fixture.sync();
        fixture.begin(GLOBAL);
        assert_eq!(fixture.status(fixture.stream), Status::CU_STREAM_CAPTURE_STATUS_ACTIVE);
        assert_eq!(fixture.status(fixture.other), Status::CU_STREAM_CAPTURE_STATUS_NONE);
        fixture.copy(fixture.stream, b, a);
        fixture.fill(fixture.stream, a, 9);
        let graph = fixture.end();
        assert_eq!(
            fixture.types(graph),
            [CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY, CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET]
        );
        assert_eq!(fixture.edge_count(graph), 1);
        assert_eq!((fixture.byte(a), fixture.byte(b)), (1, 1));
        let exec = fixture.instantiate(graph);
        fixture.destroy(graph);
        fixture.fill(fixture.stream, a, 5);
        fixture.launch(exec);
        fixture.sync();
        assert_eq!((fixture.byte(a), fixture.byte(b)), (9, 5));
        fixture.launch(exec);
        fixture.sync();
        assert_eq!((fixture.byte(a), fixture.byte(b)), (9, 9));
        fixture.destroy_exec(exec);
        fixture.free([a, b]);
    }

    /// Beginning a capture twice, and ending one that did not begin.
    #[serial_test::serial]
    fn begin_and_end_out_of_place(driver: &Driver) {
        let fixture = Fixture::new(driver);
        assert_eq!(fixture.end_code(), ILLEGAL_STATE);
        fixture.begin(GLOBAL);
        // SAFETY: the stream is alive.
        let again = unsafe { fixture.cuStreamBeginCapture_v2(fixture.stream, GLOBAL) };
        assert_eq!(code(again), ILLEGAL_STATE);
        fixture.destroy(fixture.end());
        // SAFETY: the null stream always exists.
        let legacy = unsafe { fixture.cuStreamBeginCapture_v2(null_mut(), GLOBAL) };
        assert_eq!(code(legacy), UNSUPPORTED);
    }

    /// A capture that is not relaxed ends on the thread that began it.
    #[serial_test::serial]
    fn ending_on_another_thread(driver: &Driver) {
        for (mode, expected) in [(GLOBAL, WRONG_THREAD), (THREAD_LOCAL, WRONG_THREAD), (RELAXED, SUCCESS)] {
            let fixture = Fixture::new(driver);
            fixture.begin(mode);
            let (stream, driver) = (fixture.stream as usize, &fixture.raw.driver);
            let context = fixture.raw.context as usize;
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
                fixture.destroy(graph as CUgraph);
            } else {
                let mut graph = null_mut();
                // SAFETY: the local outlives the call. The case does not test whether the capture survives.
                if unsafe { fixture.cuStreamEndCapture(fixture.stream, &mut graph) }.is_ok() {
                    fixture.destroy(graph);
                }
            }
        }
    }

    /// Plain allocation is refused if the mode protects against calls that may wait.
    #[serial_test::serial]
    fn plain_allocation(driver: &Driver) {
        for mode in [GLOBAL, THREAD_LOCAL] {
            breaks(driver, mode, UNSUPPORTED, |fixture| code(fixture.raw.alloc(1).map(drop)));
        }
        let fixture = Fixture::new(driver);
        fixture.begin(RELAXED);
        let memory = fixture.raw.alloc(1).unwrap();
        fixture.destroy(fixture.end());
        fixture.free([memory]);
    }

    /// Stream-ordered allocation on a stream outside of the capture is refused if the mode protects against calls that may wait.
    #[serial_test::serial]
    fn allocating_on_another_stream(driver: &Driver) {
        for mode in [GLOBAL, THREAD_LOCAL] {
            breaks(driver, mode, UNSUPPORTED, |fixture| code(alloc_on_other(fixture).map(drop)));
        }
        passes(driver, RELAXED, |fixture| {
            let memory = alloc_on_other(fixture).unwrap();
            free_on_other(fixture, memory).unwrap();
        });
    }

    /// A free is refused if the mode protects against calls that may wait.
    #[serial_test::serial]
    fn freeing_on_another_stream(driver: &Driver) {
        for mode in [GLOBAL, THREAD_LOCAL] {
            let fixture = Fixture::new(driver);
            let memory = alloc_on_other(&fixture).unwrap();
            fixture.begin(mode);
            assert_eq!(code(free_on_other(&fixture, memory)), UNSUPPORTED);
            assert_eq!(fixture.end_code(), INVALIDATED);
            free_on_other(&fixture, memory).unwrap();
        }
    }

    /// Queries of a pool's attributes and trims are refused if the mode protects against calls that may wait.
    #[serial_test::serial]
    fn querying_a_pool(driver: &Driver) {
        for mode in [GLOBAL, THREAD_LOCAL] {
            breaks(driver, mode, UNSUPPORTED, |fixture| code(used_bytes(fixture).map(drop)));
            // SAFETY: the pool is the device's own.
            breaks(driver, mode, UNSUPPORTED, |fixture| code(unsafe { fixture.cuMemPoolTrimTo(pool(fixture), 0) }));
        }
        passes(driver, RELAXED, |fixture| {
            used_bytes(fixture).unwrap();
            // SAFETY: the pool is the device's own.
            unsafe { fixture.cuMemPoolTrimTo(pool(fixture), 0).unwrap() };
        });
    }

    /// Queries of a stream outside of the capture are refused if the mode protects against calls that may wait.
    #[serial_test::serial]
    fn querying_another_stream(driver: &Driver) {
        for mode in [GLOBAL, THREAD_LOCAL] {
            // SAFETY: the stream is alive.
            breaks(driver, mode, UNSUPPORTED, |fixture| code(unsafe { fixture.cuStreamQuery(fixture.other) }));
        }
        passes(driver, RELAXED, |fixture| {
            // SAFETY: the stream is alive.
            unsafe { fixture.cuStreamQuery(fixture.other).unwrap() };
        });
    }

    /// Queries of an event outside of the capture are refused if the mode protects against calls that may wait.
    #[serial_test::serial]
    fn querying_an_outside_event(driver: &Driver) {
        for mode in [GLOBAL, THREAD_LOCAL] {
            // SAFETY: the event is alive.
            breaks(driver, mode, UNSUPPORTED, |fixture| code(unsafe { fixture.cuEventQuery(fixture.event) }));
        }
        passes(driver, RELAXED, |fixture| {
            // SAFETY: the event is alive.
            unsafe { fixture.cuEventQuery(fixture.event).unwrap() };
        });
    }

    /// A capturing stream cannot be queried or synchronised, in any mode.
    #[serial_test::serial]
    fn querying_the_capturing_stream(driver: &Driver) {
        for mode in [GLOBAL, THREAD_LOCAL, RELAXED] {
            // SAFETY: the stream is alive.
            breaks(driver, mode, UNSUPPORTED, |fixture| code(unsafe { fixture.cuStreamQuery(fixture.stream) }));
            // SAFETY: the stream is alive.
            breaks(driver, mode, UNSUPPORTED, |fixture| code(unsafe { fixture.cuStreamSynchronize(fixture.stream) }));
        }
    }

    /// Attaching managed memory cannot be captured.
    #[serial_test::serial]
    fn attaching_managed_memory(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        let mut managed = 0;
        // SAFETY: the local outlives the call.
        unsafe { driver.cuMemAllocManaged(&mut managed, 1 << 16, 1).unwrap() };
        breaks(driver, RELAXED, UNSUPPORTED, |fixture| {
            // SAFETY: stream and memory are alive.
            code(unsafe { fixture.cuStreamAttachMemAsync(fixture.stream, managed, 0, 1) })
        });
        // SAFETY: no work uses the memory.
        unsafe { driver.cuMemFree_v2(managed).unwrap() };
        drop(raw);
    }

    /// A context with a capturing stream cannot be synchronised.
    #[serial_test::serial]
    fn waiting_for_the_context(driver: &Driver) {
        // SAFETY: the context is current.
        breaks(driver, RELAXED, UNSUPPORTED, |fixture| code(unsafe { fixture.cuCtxSynchronize() }));
    }

    /// An event recorded in a capture cannot be queried or synchronised.
    #[serial_test::serial]
    fn querying_a_captured_event(driver: &Driver) {
        breaks(driver, RELAXED, CAPTURED_EVENT, |fixture| {
            fixture.record(fixture.stream);
            // SAFETY: the event is alive.
            code(unsafe { fixture.cuEventQuery(fixture.event) })
        });
        breaks(driver, RELAXED, CAPTURED_EVENT, |fixture| {
            fixture.record(fixture.stream);
            // SAFETY: the event is alive.
            code(unsafe { fixture.cuEventSynchronize(fixture.event) })
        });
    }

    /// The thread's own capture mode applies too, and can be exchanged.
    #[serial_test::serial]
    fn exchanging_the_mode(driver: &Driver) {
        passes(driver, GLOBAL, |fixture| {
            let mut mode = RELAXED;
            // SAFETY: the local outlives the calls; the event is alive.
            unsafe {
                fixture.cuThreadExchangeStreamCaptureMode(&mut mode).unwrap();
                assert_eq!(mode, GLOBAL);
                fixture.cuEventQuery(fixture.event).unwrap();
                fixture.cuThreadExchangeStreamCaptureMode(&mut mode).unwrap();
                assert_eq!(mode, RELAXED);
            }
        });
    }

    /// Another thread is restricted by a global capture only.
    #[serial_test::serial]
    fn allocating_on_another_thread(driver: &Driver) {
        for (mode, expected) in [(GLOBAL, UNSUPPORTED), (THREAD_LOCAL, SUCCESS), (RELAXED, SUCCESS)] {
            let fixture = Fixture::new(driver);
            fixture.begin(mode);
            let (event, context) = (fixture.event as usize, fixture.raw.context as usize);
            let driver = &fixture.raw.driver;
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
                fixture.destroy(fixture.end());
            } else {
                assert_eq!(fixture.end_code(), INVALIDATED);
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
            passes(driver, mode, |fixture| {
                let mut wish = CUmemAllocationProp {
                    type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
                    ..CUmemAllocationProp::default()
                };
                wish.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
                let mut handle = 0;
                // SAFETY: the locals outlive the calls.
                unsafe {
                    fixture.cuMemCreate(&mut handle, 2 << 20, &wish, 0).unwrap();
                    fixture.cuMemRelease(handle).unwrap();
                }
            });
        }
    }

    /// While a blocking stream captures, the null stream cannot be used; a capture on a non-blocking stream does not restrict it.
    #[serial_test::serial]
    fn the_null_stream(driver: &Driver) {
        let fixture = Fixture::new(driver);
        let memory = fixture.raw.alloc(1).unwrap();
        passes(driver, GLOBAL, |fixture| fixture.fill(null_mut(), memory, 3));
        let mut blocking = null_mut();
        // SAFETY: the locals outlive the calls; stream and memory are alive.
        unsafe {
            fixture.cuStreamCreate(&mut blocking, 0).unwrap();
            fixture.cuStreamBeginCapture_v2(blocking, GLOBAL).unwrap();
            let mut status = Status::CU_STREAM_CAPTURE_STATUS_NONE;
            assert_eq!(code(fixture.cuStreamIsCapturing(null_mut(), &mut status)), IMPLICIT);
            fixture.cuStreamIsCapturing(blocking, &mut status).unwrap();
            assert_eq!(status, Status::CU_STREAM_CAPTURE_STATUS_ACTIVE);
            assert_eq!(code(fixture.cuMemsetD8Async(memory, 0, 1, null_mut())), IMPLICIT);
            let mut graph = null_mut();
            assert_eq!(code(fixture.cuStreamEndCapture(blocking, &mut graph)), INVALIDATED);
            fixture.cuStreamDestroy_v2(blocking).unwrap();
        }
        fixture.free([memory]);
    }

    /// A captured copy from pageable memory reads that memory at the launch.
    #[serial_test::serial]
    fn pageable_memory_is_read_at_the_launch(driver: &Driver) {
        let fixture = Fixture::new(driver);
        let memory = fixture.raw.alloc(1).unwrap();
        let mut source = Box::new(1u8);
        fixture.begin(GLOBAL);
        // SAFETY: the source lives until the launch is complete.
        unsafe {
            fixture.cuMemcpyHtoDAsync_v2(memory, (&raw const *source).cast(), 1, fixture.stream).unwrap();
        }
        let graph = fixture.end();
        let exec = fixture.instantiate(graph);
        // SAFETY: no work reads the memory now.
        unsafe { (&raw mut *source).write_volatile(2) };
        fixture.launch(exec);
        fixture.sync();
        assert_eq!(fixture.byte(memory), 2);
        fixture.destroy_exec(exec);
        fixture.destroy(graph);
        fixture.free([memory]);
    }
}

fn alloc_on_other(fixture: &Fixture) -> Result<u64, DriverError> {
    let mut memory = 0;
    // SAFETY: a local outlives the call, and the stream is alive.
    unsafe { fixture.cuMemAllocAsync(&mut memory, 1 << 20, fixture.other)? };
    Ok(memory)
}

fn free_on_other(fixture: &Fixture, memory: u64) -> Result<(), DriverError> {
    // SAFETY: no work uses the memory, and it is freed once.
    unsafe { fixture.cuMemFreeAsync(memory, fixture.other) }
}

fn pool(fixture: &Fixture) -> CUmemoryPool {
    let mut pool = null_mut();
    // SAFETY: a local outlives the call.
    unsafe { fixture.cuDeviceGetMemPool(&mut pool, fixture.raw.device).unwrap() };
    pool
}

fn used_bytes(fixture: &Fixture) -> Result<u64, DriverError> {
    let (mut value, attribute) = (0_u64, CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    // SAFETY: the value is as wide as the attribute.
    unsafe { fixture.cuMemPoolGetAttribute(pool(fixture), attribute, (&raw mut value).cast())? };
    Ok(value)
}

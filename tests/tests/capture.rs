//! Stream capture and graphs: what becomes a node, what is refused in which mode, and what a launch runs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use gpumem_adapt::array::pool::sys::types::*;
use gpumem_adapt::array::pool::sys::{CUresult, Driver};
use gpumem_tests::cases;
use gpumem_tests::raw::{Raw, code};
use std::ffi::c_void;
use std::ptr::{null, null_mut};

use CUstreamCaptureMode as Mode;
use CUstreamCaptureStatus as Status;

const GLOBAL: Mode = Mode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const THREAD_LOCAL: Mode = Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const RELAXED: Mode = Mode::CU_STREAM_CAPTURE_MODE_RELAXED;

const SUCCESS: CUresult = CUresult::CUDA_SUCCESS;
const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const ILLEGAL_STATE: CUresult = CUresult::CUDA_ERROR_ILLEGAL_STATE;
const UNSUPPORTED: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
const INVALIDATED: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
const MERGE: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE;
const UNMATCHED: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
const UNJOINED: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
const ISOLATION: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
const IMPLICIT: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
const CAPTURED_EVENT: CUresult = CUresult::CUDA_ERROR_CAPTURED_EVENT;
const WRONG_THREAD: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;

/// Two streams and an event, torn down with what they captured.
struct Bench {
    raw: Raw,
    stream: CUstream,
    other: CUstream,
    event: CUevent,
}

impl std::ops::Deref for Bench {
    type Target = Driver;

    fn deref(&self) -> &Driver {
        &self.raw.driver
    }
}

// The streams and the event live as long as the bench; pointers are to locals that outlive the calls.
impl Bench {
    fn new(driver: &Driver) -> Self {
        let raw = Raw::new(driver).unwrap();
        let (stream, other, event) = (raw.stream().unwrap(), raw.stream().unwrap(), raw.event().unwrap());
        Self { raw, stream, other, event }
    }

    fn begin(&self, mode: Mode) {
        // SAFETY: see above.
        unsafe { self.cuStreamBeginCapture_v2(self.stream, mode).unwrap() };
    }

    fn end(&self) -> CUgraph {
        let mut graph = null_mut();
        // SAFETY: see above.
        unsafe { self.cuStreamEndCapture(self.stream, &mut graph).unwrap() };
        graph
    }

    /// The code of the end of a capture that comes to nothing.
    fn end_code(&self) -> CUresult {
        let mut graph = null_mut();
        // SAFETY: see above.
        let ended = unsafe { self.cuStreamEndCapture(self.stream, &mut graph) };
        assert!(graph.is_null());
        code(ended)
    }

    fn status(&self, stream: CUstream) -> Status {
        let mut status = Status::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: see above.
        unsafe { self.cuStreamIsCapturing(stream, &mut status).unwrap() };
        status
    }

    fn fill(&self, stream: CUstream, address: CUdeviceptr, value: u8) {
        // SAFETY: the tests pass memory of at least a byte.
        unsafe { self.cuMemsetD8Async(address, value, 1, stream).unwrap() };
    }

    fn copy(&self, stream: CUstream, target: CUdeviceptr, source: CUdeviceptr) {
        // SAFETY: the tests pass memory of at least a byte.
        unsafe { self.cuMemcpyDtoDAsync_v2(target, source, 1, stream).unwrap() };
    }

    fn record(&self, stream: CUstream) {
        // SAFETY: see above.
        unsafe { self.cuEventRecord(self.event, stream).unwrap() };
    }

    fn wait(&self, stream: CUstream) {
        // SAFETY: see above.
        unsafe { self.cuStreamWaitEvent(stream, self.event, 0).unwrap() };
    }

    fn instantiate(&self, graph: CUgraph) -> CUgraphExec {
        let mut exec = null_mut();
        // SAFETY: see above.
        unsafe { self.cuGraphInstantiateWithFlags(&mut exec, graph, 0).unwrap() };
        exec
    }

    fn launch(&self, exec: CUgraphExec) {
        // SAFETY: see above.
        unsafe { self.cuGraphLaunch(exec, self.stream).unwrap() };
    }

    fn sync(&self) {
        // SAFETY: see above.
        unsafe { self.cuStreamSynchronize(self.stream).unwrap() };
    }

    fn nodes(&self, graph: CUgraph) -> Vec<CUgraphNode> {
        let mut count = 0;
        // SAFETY: the second call has room for as many as the first found.
        unsafe {
            self.cuGraphGetNodes(graph, null_mut(), &mut count).unwrap();
            let mut nodes = vec![null_mut(); count];
            self.cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count).unwrap();
            nodes
        }
    }

    fn types(&self, graph: CUgraph) -> Vec<CUgraphNodeType> {
        let type_of = |node| {
            let mut found = CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
            // SAFETY: see above.
            unsafe { self.cuGraphNodeGetType(node, &mut found).unwrap() };
            found
        };
        self.nodes(graph).into_iter().map(type_of).collect()
    }

    fn edge_count(&self, graph: CUgraph) -> usize {
        let mut count = 0;
        // SAFETY: see above; without anywhere for the edges, only their number is written.
        unsafe {
            self.cuGraphGetEdges_v2(graph, null_mut(), null_mut(), null_mut(), &mut count).unwrap();
        }
        count
    }

    fn destroy(&self, graph: CUgraph) {
        // SAFETY: see above.
        unsafe { self.cuGraphDestroy(graph).unwrap() };
    }

    fn destroy_exec(&self, exec: CUgraphExec) {
        // SAFETY: see above.
        unsafe { self.cuGraphExecDestroy(exec).unwrap() };
    }

    fn free(&self, addresses: impl IntoIterator<Item = CUdeviceptr>) {
        // SAFETY: the tests pass what they allocated and no longer use.
        addresses.into_iter().for_each(|address| unsafe { self.cuMemFree_v2(address).unwrap() });
    }

    fn byte(&self, address: CUdeviceptr) -> u8 {
        self.raw.read(address, 1).unwrap()[0]
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // SAFETY: nothing is queued any more that a test did not wait for.
        unsafe {
            let _ = self.cuEventDestroy_v2(self.event);
            let _ = self.cuStreamDestroy_v2(self.other);
            let _ = self.cuStreamDestroy_v2(self.stream);
        }
    }
}

/// Makes `body`, in a capture of the mode, break it with a code: the next use and the end say so.
#[track_caller]
fn breaks(driver: &Driver, mode: Mode, expected: CUresult, body: impl FnOnce(&Bench) -> CUresult) {
    let bench = Bench::new(driver);
    let memory = bench.raw.alloc(1).unwrap();
    bench.begin(mode);
    assert_eq!(body(&bench), expected);
    assert_eq!(bench.status(bench.stream), Status::CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    // SAFETY: the memory is alive.
    assert_eq!(code(unsafe { bench.cuMemsetD8Async(memory, 0, 1, bench.stream) }), INVALIDATED);
    assert_eq!(bench.end_code(), INVALIDATED);
    assert_eq!(bench.status(bench.stream), Status::CU_STREAM_CAPTURE_STATUS_NONE);
    // The stream is as good as new.
    bench.fill(bench.stream, memory, 7);
    bench.sync();
    assert_eq!(bench.byte(memory), 7);
    bench.free([memory]);
}

/// As [`breaks`], but the capture is unharmed.
#[track_caller]
fn passes(driver: &Driver, mode: Mode, body: impl FnOnce(&Bench)) {
    let bench = Bench::new(driver);
    bench.begin(mode);
    body(&bench);
    assert_eq!(bench.status(bench.stream), Status::CU_STREAM_CAPTURE_STATUS_ACTIVE);
    bench.destroy(bench.end());
}

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

    /// A stream joins by waiting for an event of the capture, and its work is part of the graph.
    #[serial_test::serial]
    fn fork_and_join(driver: &Driver) {
        let bench = Bench::new(driver);
        let memory: Vec<_> = (0..4).map(|_| bench.raw.alloc(1).unwrap()).collect();
        let (a, b, c, d) = (memory[0], memory[1], memory[2], memory[3]);
        bench.begin(GLOBAL);
        bench.fill(bench.stream, a, 4);
        bench.record(bench.stream);
        bench.wait(bench.other);
        assert_eq!(bench.status(bench.other), Status::CU_STREAM_CAPTURE_STATUS_ACTIVE);
        bench.copy(bench.stream, b, a);
        bench.copy(bench.other, c, a);
        bench.record(bench.other);
        bench.wait(bench.stream);
        bench.copy(bench.stream, d, c);
        let graph = bench.end();
        assert_eq!(bench.status(bench.other), Status::CU_STREAM_CAPTURE_STATUS_NONE);
        assert_eq!((bench.nodes(graph).len(), bench.edge_count(graph)), (4, 4));
        let exec = bench.instantiate(graph);
        bench.launch(exec);
        bench.sync();
        assert_eq!((bench.byte(b), bench.byte(c), bench.byte(d)), (4, 4, 4));
        bench.destroy_exec(exec);
        bench.destroy(graph);
        bench.free(memory);
    }

    /// A fork whose work nobody waits for.
    #[serial_test::serial]
    fn an_unjoined_fork(driver: &Driver) {
        let bench = Bench::new(driver);
        let memory = bench.raw.alloc(1).unwrap();
        bench.begin(GLOBAL);
        bench.record(bench.stream);
        bench.wait(bench.other);
        bench.fill(bench.other, memory, 1);
        assert_eq!(bench.end_code(), UNJOINED);
        assert_eq!(bench.status(bench.stream), Status::CU_STREAM_CAPTURE_STATUS_NONE);
        assert_eq!(bench.status(bench.other), Status::CU_STREAM_CAPTURE_STATUS_NONE);
        bench.free([memory]);
    }

    /// A capture ends where it began.
    #[serial_test::serial]
    fn ending_on_a_joined_stream(driver: &Driver) {
        let bench = Bench::new(driver);
        bench.begin(GLOBAL);
        bench.record(bench.stream);
        bench.wait(bench.other);
        let mut graph = null_mut();
        // SAFETY: the stream is alive and the local outlives the call.
        let ended = unsafe { bench.cuStreamEndCapture(bench.other, &mut graph) };
        assert_eq!(code(ended), UNMATCHED);
        // Whether the capture survives that is not what this case is about.
        // SAFETY: as above.
        if unsafe { bench.cuStreamEndCapture(bench.stream, &mut graph) }.is_ok() {
            bench.destroy(graph);
        }
    }

    /// What runs can't be waited for by what is captured.
    #[serial_test::serial]
    fn waiting_for_an_outside_event(driver: &Driver) {
        breaks(driver, GLOBAL, ISOLATION, |bench| {
            bench.record(bench.other);
            // SAFETY: stream and event are alive.
            code(unsafe { bench.cuStreamWaitEvent(bench.stream, bench.event, 0) })
        });
    }

    /// Two captures stay two.
    #[serial_test::serial]
    fn waiting_for_another_capture(driver: &Driver) {
        let bench = Bench::new(driver);
        bench.begin(GLOBAL);
        bench.record(bench.stream);
        // SAFETY: streams and event are alive.
        unsafe {
            bench.cuStreamBeginCapture_v2(bench.other, GLOBAL).unwrap();
            assert_eq!(code(bench.cuStreamWaitEvent(bench.other, bench.event, 0)), MERGE);
            let mut graph = null_mut();
            assert_eq!(code(bench.cuStreamEndCapture(bench.other, &mut graph)), INVALIDATED);
        }
        assert_eq!(bench.end_code(), INVALIDATED);
    }

    /// What is known about a capture, and moving a stream about in it.
    #[serial_test::serial]
    fn capture_info(driver: &Driver) {
        let bench = Bench::new(driver);
        let memory = bench.raw.alloc(2).unwrap();
        bench.begin(GLOBAL);
        bench.fill(bench.stream, memory, 1);
        let (first, graph) = place(&bench);
        assert_eq!(first.len(), 1);
        assert_eq!(bench.nodes(graph), first);
        // SAFETY: no nodes, so nothing is read.
        unsafe { bench.cuStreamUpdateCaptureDependencies_v2(bench.stream, null_mut(), null(), 0, 1).unwrap() };
        assert_eq!(place(&bench).0, []);
        bench.fill(bench.stream, memory + 1, 2);
        let mut added = first.clone();
        // SAFETY: one node of this graph.
        unsafe {
            bench
                .cuStreamUpdateCaptureDependencies_v2(bench.stream, added.as_mut_ptr(), null(), 1, 0)
                .unwrap();
        }
        assert_eq!(place(&bench).0.len(), 2);
        bench.fill(bench.stream, memory, 3);
        let ended = bench.end();
        assert_eq!(ended, graph);
        assert_eq!((bench.nodes(graph).len(), bench.edge_count(graph)), (3, 2));
        bench.destroy(graph);
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

    /// Stream-ordered memory of a capture is the graph's: one address, alive from its node's turn to its free's.
    #[serial_test::serial]
    fn memory_within_a_graph(driver: &Driver) {
        let bench = Bench::new(driver);
        let result = bench.raw.alloc(1).unwrap();
        bench.begin(GLOBAL);
        // SAFETY: the stream is alive; the memory is used in stream order.
        let inner = unsafe {
            let inner = bench.raw.alloc_async(1 << 20, bench.stream).unwrap();
            bench.fill(bench.stream, inner, 6);
            bench.copy(bench.stream, result, inner);
            bench.cuMemFreeAsync(inner, bench.stream).unwrap();
            inner
        };
        let graph = bench.end();
        assert_eq!(
            bench.types(graph),
            [
                CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC,
                CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET,
                CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY,
                CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_FREE,
            ]
        );
        let exec = bench.instantiate(graph);
        for _ in 0..3 {
            bench.fill(bench.stream, result, 0);
            bench.launch(exec);
            bench.sync();
            assert_eq!(bench.byte(result), 6);
        }
        // SAFETY: refused.
        assert_eq!(code(unsafe { bench.cuMemFreeAsync(inner, bench.stream) }), INVALID_VALUE);
        // Its graph can't be copied, and has one executable at a time.
        let (mut clone, mut second) = (null_mut(), null_mut());
        // SAFETY: the locals outlive the calls.
        unsafe {
            assert_ne!(code(bench.cuGraphClone(&mut clone, graph)), SUCCESS);
            assert_ne!(code(bench.cuGraphInstantiateWithFlags(&mut second, graph, 0)), SUCCESS);
        }
        bench.destroy_exec(exec);
        bench.destroy(graph);
        bench.free([result]);
    }

    /// Memory that the graph does not free is the program's after the launch; before it is freed, the graph can't
    /// run again.
    #[serial_test::serial]
    fn memory_that_leaves_a_graph(driver: &Driver) {
        let bench = Bench::new(driver);
        bench.begin(GLOBAL);
        // SAFETY: the stream is alive.
        let left = unsafe { bench.raw.alloc_async(1 << 20, bench.stream).unwrap() };
        bench.fill(bench.stream, left, 8);
        let graph = bench.end();
        let exec = bench.instantiate(graph);
        for _ in 0..2 {
            bench.launch(exec);
            // SAFETY: refused.
            assert_eq!(code(unsafe { bench.cuGraphLaunch(exec, bench.stream) }), INVALID_VALUE);
            bench.sync();
            assert_eq!(bench.byte(left), 8);
            // SAFETY: nothing uses it any more.
            unsafe { bench.cuMemFreeAsync(left, bench.stream).unwrap() };
        }
        bench.sync();
        bench.destroy_exec(exec);
        bench.destroy(graph);
    }

    /// An executable made to free first may run again.
    #[serial_test::serial]
    fn memory_freed_by_the_next_launch(driver: &Driver) {
        let bench = Bench::new(driver);
        bench.begin(GLOBAL);
        // SAFETY: the stream is alive.
        let left = unsafe { bench.raw.alloc_async(1 << 20, bench.stream).unwrap() };
        bench.fill(bench.stream, left, 8);
        let graph = bench.end();
        let mut exec = null_mut();
        // SAFETY: the local outlives the call; the memory is used in stream order.
        unsafe {
            bench.cuGraphInstantiateWithFlags(&mut exec, graph, 1).unwrap();
            bench.launch(exec);
            bench.launch(exec);
            bench.sync();
            assert_eq!(bench.byte(left), 8);
            bench.cuMemFreeAsync(left, bench.stream).unwrap();
        }
        bench.sync();
        bench.destroy_exec(exec);
        bench.destroy(graph);
    }

    /// Memory from outside can't be freed by a capture.
    #[serial_test::serial]
    fn freeing_outside_memory_in_a_capture(driver: &Driver) {
        let bench = Bench::new(driver);
        // SAFETY: the stream is alive; the free in the capture is refused.
        let outside = unsafe { bench.raw.alloc_async(1 << 20, bench.stream).unwrap() };
        bench.sync();
        bench.begin(RELAXED);
        // SAFETY: as above.
        assert_eq!(code(unsafe { bench.cuMemFreeAsync(outside, bench.stream) }), INVALID_VALUE);
        let mut graph = null_mut();
        // SAFETY: the local outlives the call. Whether the capture survived is not what this case is about.
        unsafe {
            if bench.cuStreamEndCapture(bench.stream, &mut graph).is_ok() {
                bench.destroy(graph);
            }
            bench.cuMemFreeAsync(outside, bench.stream).unwrap();
        }
        bench.sync();
    }

    /// Host functions are nodes.
    #[serial_test::serial]
    fn host_functions(driver: &Driver) {
        unsafe extern "C" fn count(data: *mut c_void) {
            // SAFETY: the test passes a counter that it only looks at when the launch is done.
            unsafe { *data.cast::<u32>() += 1 };
        }
        let bench = Bench::new(driver);
        let counter: *mut u32 = Box::into_raw(Box::new(0));
        bench.begin(GLOBAL);
        // SAFETY: the counter lives to the end.
        unsafe { bench.cuLaunchHostFunc(bench.stream, Some(count), counter.cast()).unwrap() };
        let graph = bench.end();
        assert_eq!(bench.types(graph), [CUgraphNodeType::CU_GRAPH_NODE_TYPE_HOST]);
        let exec = bench.instantiate(graph);
        // SAFETY: the counter is only read between launches, and freed once.
        unsafe {
            assert_eq!(*counter, 0);
            bench.launch(exec);
            bench.launch(exec);
            bench.sync();
            assert_eq!(*counter, 2);
            drop(Box::from_raw(counter));
        }
        bench.destroy_exec(exec);
        bench.destroy(graph);
    }

    /// Graphs by hand: nodes, edges, clones, cycles.
    #[serial_test::serial]
    fn graphs_by_hand(driver: &Driver) {
        let bench = Bench::new(driver);
        let (mut graph, mut clone, mut cyclic) = (null_mut(), null_mut(), null_mut());
        let mut nodes = [null_mut(); 3];
        // SAFETY: the locals outlive the calls.
        unsafe {
            bench.cuGraphCreate(&mut graph, 0).unwrap();
            bench.cuGraphAddEmptyNode(&mut nodes[0], graph, null(), 0).unwrap();
            bench.cuGraphAddEmptyNode(&mut nodes[1], graph, &nodes[0], 1).unwrap();
            let twice = [nodes[0], nodes[0]];
            assert_eq!(
                code(bench.cuGraphAddEmptyNode(&mut nodes[2], graph, twice.as_ptr(), 2)),
                INVALID_VALUE
            );
            bench.cuGraphAddEmptyNode(&mut nodes[2], graph, &nodes[1], 1).unwrap();
            assert_eq!((bench.nodes(graph).len(), bench.edge_count(graph)), (3, 2));
            bench.cuGraphClone(&mut clone, graph).unwrap();
            let mut twin = null_mut();
            bench.cuGraphNodeFindInClone(&mut twin, nodes[1], clone).unwrap();
            assert!(bench.nodes(clone).contains(&twin));
            bench.cuGraphAddDependencies_v2(graph, &nodes[2], &nodes[0], null(), 1).unwrap();
            assert_eq!(code(bench.cuGraphInstantiateWithFlags(&mut cyclic, graph, 0)), INVALID_VALUE);
            bench.cuGraphDestroyNode(nodes[1]).unwrap();
            assert_eq!((bench.nodes(graph).len(), bench.edge_count(graph)), (2, 1));
        }
        let exec = bench.instantiate(clone);
        bench.launch(exec);
        bench.sync();
        bench.destroy_exec(exec);
        bench.destroy(clone);
        bench.destroy(graph);
    }

    /// Memset and copy nodes by hand, changed in the executable.
    #[serial_test::serial]
    fn nodes_by_hand(driver: &Driver) {
        let bench = Bench::new(driver);
        let (a, b) = (bench.raw.alloc(1).unwrap(), bench.raw.alloc(1).unwrap());
        let (mut graph, mut fill, mut copied) = (null_mut(), null_mut(), null_mut());
        let mut wish = CUDA_MEMSET_NODE_PARAMS {
            dst: a, pitch: 1, value: 3, elementSize: 1, width: 1, height: 1,
        };
        let mut copy = CUDA_MEMCPY3D::default();
        (copy.srcMemoryType, copy.srcDevice) = (CUmemorytype::CU_MEMORYTYPE_DEVICE, a);
        (copy.dstMemoryType, copy.dstDevice) = (CUmemorytype::CU_MEMORYTYPE_DEVICE, b);
        (copy.WidthInBytes, copy.Height, copy.Depth) = (1, 1, 1);
        // SAFETY: the locals outlive the calls, the memory the launches.
        unsafe {
            bench.cuGraphCreate(&mut graph, 0).unwrap();
            bench.cuGraphAddMemsetNode(&mut fill, graph, null(), 0, &wish, bench.raw.context).unwrap();
            bench.cuGraphAddMemcpyNode(&mut copied, graph, &fill, 1, &copy, bench.raw.context).unwrap();
        }
        let exec = bench.instantiate(graph);
        bench.launch(exec);
        bench.sync();
        assert_eq!(bench.byte(b), 3);
        wish.value = 5;
        // SAFETY: as above.
        unsafe { bench.cuGraphExecMemsetNodeSetParams(exec, fill, &wish, bench.raw.context).unwrap() };
        bench.launch(exec);
        bench.sync();
        assert_eq!(bench.byte(b), 5);
        bench.destroy_exec(exec);
        bench.destroy(graph);
        bench.free([a, b]);
    }

    /// An executable takes over what a graph of the same form does, and refuses another form.
    #[serial_test::serial]
    fn updating_an_executable(driver: &Driver) {
        let bench = Bench::new(driver);
        let memory = bench.raw.alloc(1).unwrap();
        let capture = |value: u8, count: usize| {
            bench.begin(GLOBAL);
            (0..count).for_each(|_| bench.fill(bench.stream, memory, value));
            bench.end()
        };
        let (first, same, longer) = (capture(1, 2), capture(2, 2), capture(3, 3));
        let exec = bench.instantiate(first);
        let mut info = CUgraphExecUpdateResultInfo {
            result: CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR,
            errorNode: null_mut(),
            errorFromNode: null_mut(),
        };
        // SAFETY: the locals outlive the calls.
        unsafe {
            bench.cuGraphExecUpdate_v2(exec, same, &mut info).unwrap();
            assert_eq!(info.result, CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_SUCCESS);
            let refused = bench.cuGraphExecUpdate_v2(exec, longer, &mut info);
            assert_eq!(code(refused), CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
            assert_eq!(info.result, CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
        }
        bench.launch(exec);
        bench.sync();
        assert_eq!(bench.byte(memory), 2);
        bench.destroy_exec(exec);
        [first, same, longer].into_iter().for_each(|graph| bench.destroy(graph));
        bench.free([memory]);
    }

    /// A graph becomes part of another by hand, with a copy of its nodes.
    #[serial_test::serial]
    fn a_graph_in_a_graph(driver: &Driver) {
        let bench = Bench::new(driver);
        let memory = bench.raw.alloc(1).unwrap();
        bench.begin(GLOBAL);
        bench.fill(bench.stream, memory, 4);
        let inner = bench.end();
        let (mut outer, mut node) = (null_mut(), null_mut());
        // SAFETY: the inner graph is alive, and the out-pointers outlive the calls.
        unsafe {
            bench.cuGraphCreate(&mut outer, 0).unwrap();
            bench.cuGraphAddChildGraphNode(&mut node, outer, null(), 0, inner).unwrap();
        }
        assert_eq!(bench.types(outer), [CUgraphNodeType::CU_GRAPH_NODE_TYPE_GRAPH]);
        bench.destroy(inner);
        let exec = bench.instantiate(outer);
        bench.launch(exec);
        bench.sync();
        assert_eq!(bench.byte(memory), 4);
        bench.destroy_exec(exec);
        bench.destroy(outer);
        bench.free([memory]);
    }

    /// A launch of a graph is refused in a capture of any mode, and breaks it.
    #[serial_test::serial]
    fn launching_a_graph(driver: &Driver) {
        for mode in [GLOBAL, THREAD_LOCAL, RELAXED] {
            let bench = Bench::new(driver);
            let memory = bench.raw.alloc(1).unwrap();
            bench.begin(mode);
            bench.fill(bench.stream, memory, 4);
            let graph = bench.end();
            let exec = bench.instantiate(graph);
            bench.begin(mode);
            // SAFETY: executable and stream are alive.
            assert_eq!(code(unsafe { bench.cuGraphLaunch(exec, bench.stream) }), UNSUPPORTED);
            assert_eq!(bench.end_code(), INVALIDATED);
            bench.destroy_exec(exec);
            bench.destroy(graph);
            bench.free([memory]);
        }
    }

    /// An event recorded or waited for as external is a node, and ties the graph to work outside.
    #[serial_test::serial]
    fn external_events(driver: &Driver) {
        let bench = Bench::new(driver);
        let (a, b) = (bench.raw.alloc(1).unwrap(), bench.raw.alloc(1).unwrap());
        bench.begin(GLOBAL);
        bench.fill(bench.stream, a, 5);
        // SAFETY: stream and event are alive.
        unsafe { bench.cuEventRecordWithFlags(bench.event, bench.stream, 1).unwrap() };
        let graph = bench.end();
        assert_eq!(bench.types(graph)[1], CUgraphNodeType::CU_GRAPH_NODE_TYPE_EVENT_RECORD);
        let exec = bench.instantiate(graph);
        bench.launch(exec);
        bench.wait(bench.other);
        bench.copy(bench.other, b, a);
        assert_eq!(bench.byte(b), 5);
        bench.destroy_exec(exec);
        bench.destroy(graph);
        bench.free([a, b]);
    }
}

/// The nodes that the next one comes after, and the graph.
fn place(bench: &Bench) -> (Vec<CUgraphNode>, CUgraph) {
    let (mut status, mut id, mut graph) = (Status::CU_STREAM_CAPTURE_STATUS_NONE, 0, null_mut());
    let (mut nodes, mut edges, mut count) = (null(), null(), 0);
    // SAFETY: the locals outlive the call; the nodes are copied before the next one.
    unsafe {
        bench
            .cuStreamGetCaptureInfo_v3(
                bench.stream,
                &mut status,
                &mut id,
                &mut graph,
                &mut nodes,
                &mut edges,
                &mut count,
            )
            .unwrap();
        assert_eq!(status, Status::CU_STREAM_CAPTURE_STATUS_ACTIVE);
        (if count == 0 { Vec::new() } else { std::slice::from_raw_parts(nodes, count).to_vec() }, graph)
    }
}

//! Helpers: two streams to capture on, and the states of a capture.

pub(crate) use CUstreamCaptureMode as Mode;
pub(crate) use CUstreamCaptureStatus as Status;
pub(crate) use gpumem_adapt::array::pool::sys::types::*;
pub(crate) use gpumem_adapt::array::pool::sys::{CUresult, Driver};
pub(crate) use gpumem_tests::driver::raw::{Raw, code};
pub(crate) use std::ptr::{null, null_mut};

pub(crate) const GLOBAL: Mode = Mode::CU_STREAM_CAPTURE_MODE_GLOBAL;
pub(crate) const THREAD_LOCAL: Mode = Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
pub(crate) const RELAXED: Mode = Mode::CU_STREAM_CAPTURE_MODE_RELAXED;

pub(crate) const SUCCESS: CUresult = CUresult::CUDA_SUCCESS;
pub(crate) const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
pub(crate) const ILLEGAL_STATE: CUresult = CUresult::CUDA_ERROR_ILLEGAL_STATE;
pub(crate) const UNSUPPORTED: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
pub(crate) const INVALIDATED: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
pub(crate) const MERGE: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE;
pub(crate) const UNMATCHED: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
pub(crate) const UNJOINED: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
pub(crate) const ISOLATION: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
pub(crate) const IMPLICIT: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
pub(crate) const CAPTURED_EVENT: CUresult = CUresult::CUDA_ERROR_CAPTURED_EVENT;
pub(crate) const WRONG_THREAD: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;

/// Two streams and an event. Its drop ends an open capture and destroys them.
pub(crate) struct Fixture {
    pub(crate) raw: Raw,
    pub(crate) stream: CUstream,
    pub(crate) other: CUstream,
    pub(crate) event: CUevent,
}

impl std::ops::Deref for Fixture {
    type Target = Driver;

    fn deref(&self) -> &Driver {
        &self.raw.driver
    }
}

// The streams and the event live as long as the fixture; pointers are to locals that outlive the
// calls.
impl Fixture {
    pub(crate) fn new(driver: &Driver) -> Self {
        let raw = Raw::new(driver).unwrap();
        let (stream, other, event) = (raw.stream().unwrap(), raw.stream().unwrap(), raw.event().unwrap());
        Self { raw, stream, other, event }
    }

    pub(crate) fn begin(&self, mode: Mode) {
        // SAFETY: the stream lives as long as the fixture.
        unsafe { self.cuStreamBeginCapture_v2(self.stream, mode).unwrap() };
    }

    pub(crate) fn end(&self) -> CUgraph {
        let mut graph = null_mut();
        // SAFETY: the stream lives as long as the fixture, and `graph` outlives the call.
        unsafe { self.cuStreamEndCapture(self.stream, &mut graph).unwrap() };
        graph
    }

    /// The error code of the end of an invalidated capture.
    pub(crate) fn end_code(&self) -> CUresult {
        let mut graph = null_mut();
        // SAFETY: the stream lives as long as the fixture, and `graph` outlives the call.
        let ended = unsafe { self.cuStreamEndCapture(self.stream, &mut graph) };
        assert!(graph.is_null());
        code(ended)
    }

    pub(crate) fn status(&self, stream: CUstream) -> Status {
        let mut status = Status::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the cases pass a stream of the fixture, which is alive, and `status` outlives the call.
        unsafe { self.cuStreamIsCapturing(stream, &mut status).unwrap() };
        status
    }

    pub(crate) fn fill(&self, stream: CUstream, address: CUdeviceptr, value: u8) {
        // SAFETY: the tests pass memory of at least a byte.
        unsafe { self.cuMemsetD8Async(address, value, 1, stream).unwrap() };
    }

    pub(crate) fn copy(&self, stream: CUstream, target: CUdeviceptr, source: CUdeviceptr) {
        // SAFETY: the tests pass memory of at least a byte.
        unsafe { self.cuMemcpyDtoDAsync_v2(target, source, 1, stream).unwrap() };
    }

    pub(crate) fn record(&self, stream: CUstream) {
        // SAFETY: the event lives as long as the fixture, as do the streams that the cases pass.
        unsafe { self.cuEventRecord(self.event, stream).unwrap() };
    }

    pub(crate) fn wait(&self, stream: CUstream) {
        // SAFETY: the event lives as long as the fixture, as do the streams that the cases pass.
        unsafe { self.cuStreamWaitEvent(stream, self.event, 0).unwrap() };
    }

    pub(crate) fn instantiate(&self, graph: CUgraph) -> CUgraphExec {
        let mut exec = null_mut();
        // SAFETY: the cases pass a graph that they have not destroyed, and `exec` outlives the call.
        unsafe { self.cuGraphInstantiateWithFlags(&mut exec, graph, 0).unwrap() };
        exec
    }

    pub(crate) fn launch(&self, exec: CUgraphExec) {
        // SAFETY: the cases pass an executable that they have not destroyed, and memory that outlives the launch.
        unsafe { self.cuGraphLaunch(exec, self.stream).unwrap() };
    }

    pub(crate) fn sync(&self) {
        // SAFETY: the stream lives as long as the fixture.
        unsafe { self.cuStreamSynchronize(self.stream).unwrap() };
    }

    pub(crate) fn nodes(&self, graph: CUgraph) -> Vec<CUgraphNode> {
        let mut count = 0;
        // SAFETY: the second call has room for the number of nodes that the first one returned.
        unsafe {
            self.cuGraphGetNodes(graph, null_mut(), &mut count).unwrap();
            let mut nodes = vec![null_mut(); count];
            self.cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count).unwrap();
            nodes
        }
    }

    pub(crate) fn types(&self, graph: CUgraph) -> Vec<CUgraphNodeType> {
        let type_of = |node| {
            let mut found = CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
            // SAFETY: the node was returned by its graph, which is alive; `found` outlives the call.
            unsafe { self.cuGraphNodeGetType(node, &mut found).unwrap() };
            found
        };
        self.nodes(graph).into_iter().map(type_of).collect()
    }

    pub(crate) fn edge_count(&self, graph: CUgraph) -> usize {
        let mut count = 0;
        // SAFETY: the graph is alive; with null pointers for the edges, the call only writes their number, to a local.
        unsafe {
            self.cuGraphGetEdges_v2(graph, null_mut(), null_mut(), null_mut(), &mut count).unwrap();
        }
        count
    }

    pub(crate) fn destroy(&self, graph: CUgraph) {
        // SAFETY: the cases pass a graph that they do not use again.
        unsafe { self.cuGraphDestroy(graph).unwrap() };
    }

    pub(crate) fn destroy_exec(&self, exec: CUgraphExec) {
        // SAFETY: the cases pass an executable that they do not use again; the driver keeps pending launches alive.
        unsafe { self.cuGraphExecDestroy(exec).unwrap() };
    }

    pub(crate) fn free(&self, addresses: impl IntoIterator<Item = CUdeviceptr>) {
        // SAFETY: the tests pass memory that they allocated and no longer use.
        addresses.into_iter().for_each(|address| unsafe { self.cuMemFree_v2(address).unwrap() });
    }

    pub(crate) fn byte(&self, address: CUdeviceptr) -> u8 {
        self.raw.read(address, 1).unwrap()[0]
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // SAFETY: all queued work was synchronised by the tests.
        unsafe {
            let _ = self.cuEventDestroy_v2(self.event);
            let _ = self.cuStreamDestroy_v2(self.other);
            let _ = self.cuStreamDestroy_v2(self.stream);
        }
    }
}

/// Runs `body` in a capture of the mode and checks that it invalidates the capture with a code: the next use and the end return
/// it.
#[track_caller]
pub(crate) fn breaks(
    driver: &Driver,
    mode: Mode,
    expected: CUresult,
    body: impl FnOnce(&Fixture) -> CUresult,
) {
    let fixture = Fixture::new(driver);
    let memory = fixture.raw.alloc(1).unwrap();
    fixture.begin(mode);
    assert_eq!(body(&fixture), expected);
    assert_eq!(fixture.status(fixture.stream), Status::CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    // SAFETY: the memory is alive.
    assert_eq!(code(unsafe { fixture.cuMemsetD8Async(memory, 0, 1, fixture.stream) }), INVALIDATED);
    assert_eq!(fixture.end_code(), INVALIDATED);
    assert_eq!(fixture.status(fixture.stream), Status::CU_STREAM_CAPTURE_STATUS_NONE);
    // The stream can be used again.
    fixture.fill(fixture.stream, memory, 7);
    fixture.sync();
    assert_eq!(fixture.byte(memory), 7);
    fixture.free([memory]);
}

/// Like [`breaks`], but the capture stays valid.
#[track_caller]
pub(crate) fn passes(driver: &Driver, mode: Mode, body: impl FnOnce(&Fixture)) {
    let fixture = Fixture::new(driver);
    fixture.begin(mode);
    body(&fixture);
    assert_eq!(fixture.status(fixture.stream), Status::CU_STREAM_CAPTURE_STATUS_ACTIVE);
    fixture.destroy(fixture.end());
}

/// The nodes on which the next one will depend, and the graph.
pub(crate) fn place(fixture: &Fixture) -> (Vec<CUgraphNode>, CUgraph) {
    let (mut status, mut id, mut graph) = (Status::CU_STREAM_CAPTURE_STATUS_NONE, 0, null_mut());
    let (mut nodes, mut edges, mut count) = (null(), null(), 0);
    // SAFETY: the locals outlive the call; the nodes are copied before the next one.
    unsafe {
        fixture
            .cuStreamGetCaptureInfo_v3(
                fixture.stream,
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

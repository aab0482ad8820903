//! The nodes that captured calls become, the memory of graphs, graphs built by hand, and the work of launches.

use crate::capture::fixture::*;
use gpumem_tests::cases;
use std::ffi::c_void;

cases! {
    /// Stream-ordered memory allocated in a capture belongs to the graph: it has a fixed address and is alive from its allocation
    /// node to its free node.
    #[serial_test::serial]
    fn memory_within_a_graph(driver: &Driver) {
        let fixture = Fixture::new(driver);
        let result = fixture.raw.alloc(1).unwrap();
        fixture.begin(GLOBAL);
        // SAFETY: the stream is alive; the memory is used in stream order.
        let inner = unsafe {
            let inner = fixture.raw.alloc_async(1 << 20, fixture.stream).unwrap();
            fixture.fill(fixture.stream, inner, 6);
            fixture.copy(fixture.stream, result, inner);
            fixture.cuMemFreeAsync(inner, fixture.stream).unwrap();
            inner
        };
        let graph = fixture.end();
        assert_eq!(
            fixture.types(graph),
            [
                CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC,
                CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET,
                CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY,
                CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_FREE,
            ]
        );
        let exec = fixture.instantiate(graph);
        for _ in 0..3 {
            fixture.fill(fixture.stream, result, 0);
            fixture.launch(exec);
            fixture.sync();
            assert_eq!(fixture.byte(result), 6);
        }
        // SAFETY: the driver refuses the call.
        assert_eq!(code(unsafe { fixture.cuMemFreeAsync(inner, fixture.stream) }), INVALID_VALUE);
        // A graph with memory cannot be cloned, and has at most one executable.
        let (mut clone, mut second) = (null_mut(), null_mut());
        // SAFETY: the locals outlive the calls.
        unsafe {
            assert_ne!(code(fixture.cuGraphClone(&mut clone, graph)), SUCCESS);
            assert_ne!(code(fixture.cuGraphInstantiateWithFlags(&mut second, graph, 0)), SUCCESS);
        }
        fixture.destroy_exec(exec);
        fixture.destroy(graph);
        fixture.free([result]);
    }

    /// Memory that the graph does not free belongs to the program after the launch. The graph cannot run again before that memory
    /// is freed.
    #[serial_test::serial]
    fn memory_that_leaves_a_graph(driver: &Driver) {
        let fixture = Fixture::new(driver);
        fixture.begin(GLOBAL);
        // SAFETY: the stream is alive.
        let left = unsafe { fixture.raw.alloc_async(1 << 20, fixture.stream).unwrap() };
        fixture.fill(fixture.stream, left, 8);
        let graph = fixture.end();
        let exec = fixture.instantiate(graph);
        for _ in 0..2 {
            fixture.launch(exec);
            // SAFETY: the driver refuses the call.
            assert_eq!(code(unsafe { fixture.cuGraphLaunch(exec, fixture.stream) }), INVALID_VALUE);
            fixture.sync();
            assert_eq!(fixture.byte(left), 8);
            // SAFETY: no work uses the memory.
            unsafe { fixture.cuMemFreeAsync(left, fixture.stream).unwrap() };
        }
        fixture.sync();
        fixture.destroy_exec(exec);
        fixture.destroy(graph);
    }

    /// An executable with automatic free can run again.
    #[serial_test::serial]
    fn memory_freed_by_the_next_launch(driver: &Driver) {
        let fixture = Fixture::new(driver);
        fixture.begin(GLOBAL);
        // SAFETY: the stream is alive.
        let left = unsafe { fixture.raw.alloc_async(1 << 20, fixture.stream).unwrap() };
        fixture.fill(fixture.stream, left, 8);
        let graph = fixture.end();
        let mut exec = null_mut();
        // SAFETY: the local outlives the call; the memory is used in stream order.
        unsafe {
            fixture.cuGraphInstantiateWithFlags(&mut exec, graph, 1).unwrap();
            fixture.launch(exec);
            fixture.launch(exec);
            fixture.sync();
            assert_eq!(fixture.byte(left), 8);
            fixture.cuMemFreeAsync(left, fixture.stream).unwrap();
        }
        fixture.sync();
        fixture.destroy_exec(exec);
        fixture.destroy(graph);
    }

    /// A capture cannot free memory allocated outside of it.
    #[serial_test::serial]
    fn freeing_outside_memory_in_a_capture(driver: &Driver) {
        let fixture = Fixture::new(driver);
        // SAFETY: the stream is alive; the free in the capture is refused.
        let outside = unsafe { fixture.raw.alloc_async(1 << 20, fixture.stream).unwrap() };
        fixture.sync();
        fixture.begin(RELAXED);
        // SAFETY: the memory is alive, and the driver refuses to have the capture free it.
        assert_eq!(code(unsafe { fixture.cuMemFreeAsync(outside, fixture.stream) }), INVALID_VALUE);
        let mut graph = null_mut();
        // SAFETY: the local outlives the call. The case does not test whether the capture survives.
        unsafe {
            if fixture.cuStreamEndCapture(fixture.stream, &mut graph).is_ok() {
                fixture.destroy(graph);
            }
            fixture.cuMemFreeAsync(outside, fixture.stream).unwrap();
        }
        fixture.sync();
    }

    /// Host functions are nodes.
    #[serial_test::serial]
    fn host_functions(driver: &Driver) {
        unsafe extern "C" fn count(data: *mut c_void) {
            // SAFETY: the test passes a counter that it reads only after the launch is complete.
            unsafe { *data.cast::<u32>() += 1 };
        }
        let fixture = Fixture::new(driver);
        let counter: *mut u32 = Box::into_raw(Box::new(0));
        fixture.begin(GLOBAL);
        // SAFETY: the counter lives until the end.
        unsafe { fixture.cuLaunchHostFunc(fixture.stream, Some(count), counter.cast()).unwrap() };
        let graph = fixture.end();
        assert_eq!(fixture.types(graph), [CUgraphNodeType::CU_GRAPH_NODE_TYPE_HOST]);
        let exec = fixture.instantiate(graph);
        // SAFETY: the counter is read between launches only, and freed once.
        unsafe {
            assert_eq!(*counter, 0);
            fixture.launch(exec);
            fixture.launch(exec);
            fixture.sync();
            assert_eq!(*counter, 2);
            drop(Box::from_raw(counter));
        }
        fixture.destroy_exec(exec);
        fixture.destroy(graph);
    }

    /// Graphs built by hand: nodes, edges, clones, cycles.
    #[serial_test::serial]
    fn graphs_by_hand(driver: &Driver) {
        let fixture = Fixture::new(driver);
        let (mut graph, mut clone, mut cyclic) = (null_mut(), null_mut(), null_mut());
        let mut nodes = [null_mut(); 3];
        // SAFETY: the locals outlive the calls.
        unsafe {
            fixture.cuGraphCreate(&mut graph, 0).unwrap();
            fixture.cuGraphAddEmptyNode(&mut nodes[0], graph, null(), 0).unwrap();
            fixture.cuGraphAddEmptyNode(&mut nodes[1], graph, &nodes[0], 1).unwrap();
            let twice = [nodes[0], nodes[0]];
            assert_eq!(
                code(fixture.cuGraphAddEmptyNode(&mut nodes[2], graph, twice.as_ptr(), 2)),
                INVALID_VALUE
            );
            fixture.cuGraphAddEmptyNode(&mut nodes[2], graph, &nodes[1], 1).unwrap();
            assert_eq!((fixture.nodes(graph).len(), fixture.edge_count(graph)), (3, 2));
            fixture.cuGraphClone(&mut clone, graph).unwrap();
            let mut twin = null_mut();
            fixture.cuGraphNodeFindInClone(&mut twin, nodes[1], clone).unwrap();
            assert!(fixture.nodes(clone).contains(&twin));
            fixture.cuGraphAddDependencies_v2(graph, &nodes[2], &nodes[0], null(), 1).unwrap();
            assert_eq!(code(fixture.cuGraphInstantiateWithFlags(&mut cyclic, graph, 0)), INVALID_VALUE);
            fixture.cuGraphDestroyNode(nodes[1]).unwrap();
            assert_eq!((fixture.nodes(graph).len(), fixture.edge_count(graph)), (2, 1));
        }
        let exec = fixture.instantiate(clone);
        fixture.launch(exec);
        fixture.sync();
        fixture.destroy_exec(exec);
        fixture.destroy(clone);
        fixture.destroy(graph);
    }

    /// Memset and copy nodes built by hand, and changed in the executable.
    #[serial_test::serial]
    fn nodes_by_hand(driver: &Driver) {
        let fixture = Fixture::new(driver);
        let (a, b) = (fixture.raw.alloc(1).unwrap(), fixture.raw.alloc(1).unwrap());
        let (mut graph, mut fill, mut copied) = (null_mut(), null_mut(), null_mut());
        let mut wish = CUDA_MEMSET_NODE_PARAMS {
            dst: a, pitch: 1, value: 3, elementSize: 1, width: 1, height: 1,
        };
        let mut copy = CUDA_MEMCPY3D::default();
        (copy.srcMemoryType, copy.srcDevice) = (CUmemorytype::CU_MEMORYTYPE_DEVICE, a);
        (copy.dstMemoryType, copy.dstDevice) = (CUmemorytype::CU_MEMORYTYPE_DEVICE, b);
        (copy.WidthInBytes, copy.Height, copy.Depth) = (1, 1, 1);
        // SAFETY: the locals outlive the calls, and the memory outlives the launches.
        unsafe {
            fixture.cuGraphCreate(&mut graph, 0).unwrap();
            fixture.cuGraphAddMemsetNode(&mut fill, graph, null(), 0, &wish, fixture.raw.context).unwrap();
            fixture.cuGraphAddMemcpyNode(&mut copied, graph, &fill, 1, &copy, fixture.raw.context).unwrap();
        }
        let exec = fixture.instantiate(graph);
        fixture.launch(exec);
        fixture.sync();
        assert_eq!(fixture.byte(b), 3);
        wish.value = 5;
        // SAFETY: the executable has the node, the parameters outlive the call, and the memory outlives the launch.
        unsafe { fixture.cuGraphExecMemsetNodeSetParams(exec, fill, &wish, fixture.raw.context).unwrap() };
        fixture.launch(exec);
        fixture.sync();
        assert_eq!(fixture.byte(b), 5);
        fixture.destroy_exec(exec);
        fixture.destroy(graph);
        fixture.free([a, b]);
    }

    /// An executable is updated from a graph of the same topology, and refuses another topology.
    #[serial_test::serial]
    fn updating_an_executable(driver: &Driver) {
        let fixture = Fixture::new(driver);
        let memory = fixture.raw.alloc(1).unwrap();
        let capture = |value: u8, count: usize| {
            fixture.begin(GLOBAL);
            (0..count).for_each(|_| fixture.fill(fixture.stream, memory, value));
            fixture.end()
        };
        let (first, same, longer) = (capture(1, 2), capture(2, 2), capture(3, 3));
        let exec = fixture.instantiate(first);
        let mut info = CUgraphExecUpdateResultInfo {
            result: CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR,
            errorNode: null_mut(),
            errorFromNode: null_mut(),
        };
        // SAFETY: the locals outlive the calls.
        unsafe {
            fixture.cuGraphExecUpdate_v2(exec, same, &mut info).unwrap();
            assert_eq!(info.result, CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_SUCCESS);
            let refused = fixture.cuGraphExecUpdate_v2(exec, longer, &mut info);
            assert_eq!(code(refused), CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
            assert_eq!(info.result, CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
        }
        fixture.launch(exec);
        fixture.sync();
        assert_eq!(fixture.byte(memory), 2);
        fixture.destroy_exec(exec);
        [first, same, longer].into_iter().for_each(|graph| fixture.destroy(graph));
        fixture.free([memory]);
    }

    /// A graph is added to another one by hand, as a copy of its nodes.
    #[serial_test::serial]
    fn a_graph_in_a_graph(driver: &Driver) {
        let fixture = Fixture::new(driver);
        let memory = fixture.raw.alloc(1).unwrap();
        fixture.begin(GLOBAL);
        fixture.fill(fixture.stream, memory, 4);
        let inner = fixture.end();
        let (mut outer, mut node) = (null_mut(), null_mut());
        // SAFETY: the inner graph is alive, and the out-pointers outlive the calls.
        unsafe {
            fixture.cuGraphCreate(&mut outer, 0).unwrap();
            fixture.cuGraphAddChildGraphNode(&mut node, outer, null(), 0, inner).unwrap();
        }
        assert_eq!(fixture.types(outer), [CUgraphNodeType::CU_GRAPH_NODE_TYPE_GRAPH]);
        fixture.destroy(inner);
        let exec = fixture.instantiate(outer);
        fixture.launch(exec);
        fixture.sync();
        assert_eq!(fixture.byte(memory), 4);
        fixture.destroy_exec(exec);
        fixture.destroy(outer);
        fixture.free([memory]);
    }

    /// In a capture of any mode, the launch of a graph is refused and invalidates the capture.
    #[serial_test::serial]
    fn launching_a_graph(driver: &Driver) {
        for mode in [GLOBAL, THREAD_LOCAL, RELAXED] {
            let fixture = Fixture::new(driver);
            let memory = fixture.raw.alloc(1).unwrap();
            fixture.begin(mode);
            fixture.fill(fixture.stream, memory, 4);
            let graph = fixture.end();
            let exec = fixture.instantiate(graph);
            fixture.begin(mode);
            // SAFETY: executable and stream are alive.
            assert_eq!(code(unsafe { fixture.cuGraphLaunch(exec, fixture.stream) }), UNSUPPORTED);
            assert_eq!(fixture.end_code(), INVALIDATED);
            fixture.destroy_exec(exec);
            fixture.destroy(graph);
            fixture.free([memory]);
        }
    }

    /// An event recorded or waited for as external becomes a node, and orders the graph against work outside.
    #[serial_test::serial]
    fn external_events(driver: &Driver) {
        let fixture = Fixture::new(driver);
        let (a, b) = (fixture.raw.alloc(1).unwrap(), fixture.raw.alloc(1).unwrap());
        fixture.begin(GLOBAL);
        fixture.fill(fixture.stream, a, 5);
        // SAFETY: stream and event are alive.
        unsafe { fixture.cuEventRecordWithFlags(fixture.event, fixture.stream, 1).unwrap() };
        let graph = fixture.end();
        assert_eq!(fixture.types(graph)[1], CUgraphNodeType::CU_GRAPH_NODE_TYPE_EVENT_RECORD);
        let exec = fixture.instantiate(graph);
        fixture.launch(exec);
        fixture.wait(fixture.other);
        fixture.copy(fixture.other, b, a);
        assert_eq!(fixture.byte(b), 5);
        fixture.destroy_exec(exec);
        fixture.destroy(graph);
        fixture.free([a, b]);
    }
}

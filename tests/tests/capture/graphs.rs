//! What becomes a node, the memory of graphs, graphs by hand, and what a launch runs.

use crate::bench::*;
use gpumem_tests::cases;
use std::ffi::c_void;

cases! {
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
        // SAFETY: the memory is alive, and the driver refuses to have the capture free it.
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
        // SAFETY: the executable has the node, the parameters outlive the call, and the memory outlives the launch.
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

//! How streams fork from a capture and join it, and what is known of their places in it.

use crate::bench::*;
use gpumem_tests::cases;

cases! {
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
        // SAFETY: the stream where the capture began is alive, and the local outlives the call.
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
}

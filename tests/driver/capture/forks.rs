//! Streams that fork from a capture and join it, and their dependencies in it.

use crate::capture::fixture::*;
use gpumem_tests::cases;

cases! {
    /// A stream joins by waiting for an event of the capture. Its work becomes part of the graph.
    #[serial_test::serial]
    fn fork_and_join(driver: &Driver) {
        let fixture = Fixture::new(driver);
        let memory: Vec<_> = (0..4).map(|_| fixture.raw.alloc(1).unwrap()).collect();
        let (a, b, c, d) = (memory[0], memory[1], memory[2], memory[3]);
        fixture.begin(GLOBAL);
        fixture.fill(fixture.stream, a, 4);
        fixture.record(fixture.stream);
        fixture.wait(fixture.other);
        assert_eq!(fixture.status(fixture.other), Status::CU_STREAM_CAPTURE_STATUS_ACTIVE);
        fixture.copy(fixture.stream, b, a);
        fixture.copy(fixture.other, c, a);
        fixture.record(fixture.other);
        fixture.wait(fixture.stream);
        fixture.copy(fixture.stream, d, c);
        let graph = fixture.end();
        assert_eq!(fixture.status(fixture.other), Status::CU_STREAM_CAPTURE_STATUS_NONE);
        assert_eq!((fixture.nodes(graph).len(), fixture.edge_count(graph)), (4, 4));
        let exec = fixture.instantiate(graph);
        fixture.launch(exec);
        fixture.sync();
        assert_eq!((fixture.byte(b), fixture.byte(c), fixture.byte(d)), (4, 4, 4));
        fixture.destroy_exec(exec);
        fixture.destroy(graph);
        fixture.free(memory);
    }

    /// The work of a fork must be joined before the end of the capture.
    #[serial_test::serial]
    fn an_unjoined_fork(driver: &Driver) {
        let fixture = Fixture::new(driver);
        let memory = fixture.raw.alloc(1).unwrap();
        fixture.begin(GLOBAL);
        fixture.record(fixture.stream);
        fixture.wait(fixture.other);
        fixture.fill(fixture.other, memory, 1);
        assert_eq!(fixture.end_code(), UNJOINED);
        assert_eq!(fixture.status(fixture.stream), Status::CU_STREAM_CAPTURE_STATUS_NONE);
        assert_eq!(fixture.status(fixture.other), Status::CU_STREAM_CAPTURE_STATUS_NONE);
        fixture.free([memory]);
    }

    /// A capture ends on the stream where it began.
    #[serial_test::serial]
    fn ending_on_a_joined_stream(driver: &Driver) {
        let fixture = Fixture::new(driver);
        fixture.begin(GLOBAL);
        fixture.record(fixture.stream);
        fixture.wait(fixture.other);
        let mut graph = null_mut();
        // SAFETY: the stream is alive and the local outlives the call.
        let ended = unsafe { fixture.cuStreamEndCapture(fixture.other, &mut graph) };
        assert_eq!(code(ended), UNMATCHED);
        // The case does not test whether the capture survives.
        // SAFETY: the stream where the capture began is alive, and the local outlives the call.
        if unsafe { fixture.cuStreamEndCapture(fixture.stream, &mut graph) }.is_ok() {
            fixture.destroy(graph);
        }
    }

    /// Captured work cannot wait for running work.
    #[serial_test::serial]
    fn waiting_for_an_outside_event(driver: &Driver) {
        breaks(driver, GLOBAL, ISOLATION, |fixture| {
            fixture.record(fixture.other);
            // SAFETY: stream and event are alive.
            code(unsafe { fixture.cuStreamWaitEvent(fixture.stream, fixture.event, 0) })
        });
    }

    /// Two captures cannot be joined.
    #[serial_test::serial]
    fn waiting_for_another_capture(driver: &Driver) {
        let fixture = Fixture::new(driver);
        fixture.begin(GLOBAL);
        fixture.record(fixture.stream);
        // SAFETY: streams and event are alive.
        unsafe {
            fixture.cuStreamBeginCapture_v2(fixture.other, GLOBAL).unwrap();
            assert_eq!(code(fixture.cuStreamWaitEvent(fixture.other, fixture.event, 0)), MERGE);
            let mut graph = null_mut();
            assert_eq!(code(fixture.cuStreamEndCapture(fixture.other, &mut graph)), INVALIDATED);
        }
        assert_eq!(fixture.end_code(), INVALIDATED);
    }

    /// The state of a capture, and the dependencies of a stream in it.
    #[serial_test::serial]
    fn capture_info(driver: &Driver) {
        let fixture = Fixture::new(driver);
        let memory = fixture.raw.alloc(2).unwrap();
        fixture.begin(GLOBAL);
        fixture.fill(fixture.stream, memory, 1);
        let (first, graph) = place(&fixture);
        assert_eq!(first.len(), 1);
        assert_eq!(fixture.nodes(graph), first);
        // SAFETY: the list of nodes is empty, so nothing is read.
        unsafe { fixture.cuStreamUpdateCaptureDependencies_v2(fixture.stream, null_mut(), null(), 0, 1).unwrap() };
        assert_eq!(place(&fixture).0, []);
        fixture.fill(fixture.stream, memory + 1, 2);
        let mut added = first.clone();
        // SAFETY: one node of this graph.
        unsafe {
            fixture
                .cuStreamUpdateCaptureDependencies_v2(fixture.stream, added.as_mut_ptr(), null(), 1, 0)
                .unwrap();
        }
        assert_eq!(place(&fixture).0.len(), 2);
        fixture.fill(fixture.stream, memory, 3);
        let ended = fixture.end();
        assert_eq!(ended, graph);
        assert_eq!((fixture.nodes(graph).len(), fixture.edge_count(graph)), (3, 2));
        fixture.destroy(graph);
        fixture.free([memory]);
    }
}

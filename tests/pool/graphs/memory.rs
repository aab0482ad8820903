//! The memory of graphs, and how long graphs keep blocks.

use crate::graphs::fixture::{Fixture, SIZE_BYTES, each_fixture, executable};
use gpumem_sim::{Effect, Rule, SimConfig};
use gpumem_tests::cases;
use gpumem_tests::pool::{Block, Capture, CaptureMode, Stream};
use gpumem_tests::sys::CUresult;

cases! {
    /// Memory of a graph is reserved while the graph or an executable lives, and returns to the pool after that.
    #[serial_test::serial]
    fn memory_stays_for_the_graph(driver: &Driver) {
        each_fixture(driver, |fixture| {
            let before = fixture.in_use_bytes();
            let capture = fixture.capture();
            let scratch = fixture.alloc();
            let address = scratch.address();
            fixture.fill(&scratch, 7, &fixture.stream);
            drop(scratch);
            let graph = capture.end().unwrap();
            assert_eq!(fixture.in_use_bytes(), before + SIZE_BYTES);
            let exec = graph.instantiate().unwrap();
            drop(graph);
            let others: Vec<_> = (0..8).map(|_| fixture.alloc()).collect();
            assert!(others.iter().all(|other| other.address() != address));
            others.iter().for_each(|other| fixture.fill(other, 1, &fixture.stream));
            fixture.launch(&exec, &fixture.stream);
            assert!(others.iter().all(|other| fixture.read(other, &fixture.stream) == 1));
            drop(others);
            drop(exec);
            assert_eq!(fixture.in_use_bytes(), before);
        });
    }

    /// A capture reuses memory that it drops, split and merged, on the same stream only.
    #[serial_test::serial]
    fn a_capture_reuses_what_it_drops(driver: &Driver) {
        each_fixture(driver, |fixture| {
            let capture = Capture::begin(&fixture.stream, CaptureMode::Relaxed).unwrap();
            let first = fixture.alloc();
            let base = first.address();
            drop(first);
            let halves = [0, 1].map(|_| fixture.pool.alloc(SIZE_BYTES / 2, &fixture.stream).unwrap());
            assert_eq!(halves.each_ref().map(Block::address), [base, base + SIZE_BYTES / 2]);
            drop(halves);
            let whole = fixture.alloc();
            assert_eq!(whole.address(), base);
            drop(whole);
            fixture.other.wait_for(&fixture.stream).unwrap();
            let elsewhere = fixture.pool.alloc(SIZE_BYTES, &fixture.other).unwrap();
            assert_ne!(elsewhere.address(), base);
            fixture.fill(&elsewhere, 1, &fixture.other);
            fixture.stream.wait_for(&fixture.other).unwrap();
            drop(capture.end().unwrap());
        });
    }

    /// A block that outlives its capture may lie in memory that the graph writes again. After the block is dropped, launches wait
    /// for its last use on any stream.
    #[serial_test::serial]
    fn launches_come_after_what_was_dropped(driver: &Driver) {
        each_fixture(driver, |fixture| {
            let capture = fixture.capture();
            let first = fixture.alloc();
            fixture.fill(&first, 1, &fixture.stream);
            let address = first.address();
            drop(first);
            let second = fixture.alloc();
            assert_eq!(second.address(), address);
            let exec = executable(capture);
            let [launched, used] = [0, 1].map(|_| Stream::new(&fixture.device).unwrap());
            used.wait_for(&fixture.stream).unwrap();
            fixture.fill(&second, 2, &used);
            second.record_use(&used);
            drop(second);
            fixture.launch(&exec, &launched);
            fixture.launch(&exec, &fixture.stream);
        });
    }

    /// The owner stream does not reuse a block that another stream of the capture used.
    #[serial_test::serial]
    fn a_forked_use_keeps_a_block(driver: &Driver) {
        each_fixture(driver, |fixture| {
            let capture = fixture.capture();
            let first = fixture.alloc();
            fixture.fill(&first, 1, &fixture.stream);
            fixture.other.wait_for(&fixture.stream).unwrap();
            assert!(fixture.other.is_capturing().unwrap());
            fixture.fill(&first, 2, &fixture.other);
            first.record_use(&fixture.other);
            let address = first.address();
            drop(first);
            let second = fixture.alloc();
            assert_ne!(second.address(), address);
            fixture.fill(&second, 3, &fixture.stream);
            fixture.stream.wait_for(&fixture.other).unwrap();
            let exec = executable(capture);
            assert!(!fixture.other.is_capturing().unwrap());
            fixture.launch(&exec, &fixture.other);
            fixture.stream.wait_for(&fixture.other).unwrap();
            assert_eq!(fixture.read(&second, &fixture.stream), 3);
        });
    }

    /// The graph keeps blocks from outside that are dropped in the capture, or used in it and dropped later.
    #[serial_test::serial]
    fn outside_blocks_stay(driver: &Driver) {
        each_fixture(driver, |fixture| {
            let before = fixture.in_use_bytes();
            let (dropped, used, forked) = (fixture.alloc(), fixture.alloc(), fixture.alloc());
            let capture = fixture.capture();
            fixture.fill(&dropped, 1, &fixture.stream);
            fixture.copy(&dropped, &used, &fixture.stream);
            used.record_use(&fixture.stream);
            fixture.other.wait_for(&fixture.stream).unwrap();
            fixture.copy(&used, &forked, &fixture.other);
            forked.record_use(&fixture.other);
            fixture.stream.wait_for(&fixture.other).unwrap();
            let taken = [&dropped, &used, &forked].map(Block::address);
            drop(dropped);
            let graph = capture.end().unwrap();
            drop((used, forked));
            assert_eq!(fixture.in_use_bytes(), before + 3 * SIZE_BYTES);
            let exec = graph.instantiate().unwrap();
            let third = Stream::new(&fixture.device).unwrap();
            third.wait_for(&fixture.stream).unwrap();
            fixture.launch(&exec, &third);
            drop((exec, graph));
            assert_eq!(fixture.in_use_bytes(), before);
            // The next user of the memory waits for the queued launch.
            for _ in 0..3 {
                let block = fixture.alloc();
                fixture.fill(&block, 9, &fixture.stream);
                assert_eq!(fixture.read(&block, &fixture.stream), 9, "{taken:x?}");
            }
        });
    }

    /// If one graph uses a block, and it is dropped in the capture of another, both graphs keep it.
    #[serial_test::serial]
    fn a_block_of_a_graph_dropped_in_another_capture(driver: &Driver) {
        each_fixture(driver, |fixture| {
            let outside = fixture.alloc();
            let capture = Capture::begin(&fixture.stream, CaptureMode::Global).unwrap();
            let part = fixture.alloc();
            outside.record_use(&fixture.stream);
            let first = capture.end().unwrap();
            let capture = Capture::begin(&fixture.stream, CaptureMode::Global).unwrap();
            fixture.fill(&outside, 7, &fixture.stream);
            fixture.fill(&part, 7, &fixture.stream);
            drop((outside, part));
            let exec = capture.end().unwrap().instantiate().unwrap();
            drop(first);
            let others: Vec<_> = (0..8).map(|_| fixture.alloc()).collect();
            others.iter().for_each(|other| fixture.fill(other, 1, &fixture.stream));
            fixture.launch(&exec, &fixture.stream);
            assert!(others.iter().all(|other| fixture.read(other, &fixture.stream) == 1));
        });
    }

    /// A stream of another library that has joined a capture is part of it, though the pool does not query the driver about that
    /// stream when one of its blocks is dropped.
    #[serial_test::serial]
    fn a_foreign_stream_s_block_dropped_in_a_capture_that_it_joined(driver: &Driver) {
        each_fixture(driver, |fixture| {
            let foreign = fixture.foreign();
            let before = fixture.in_use_bytes();
            let block = fixture.pool.alloc(SIZE_BYTES, &foreign).unwrap();
            fixture.stream.wait_for(&foreign).unwrap();
            let capture = fixture.capture();
            foreign.wait_for(&fixture.stream).unwrap();
            fixture.fill(&block, 1, &foreign);
            fixture.stream.wait_for(&foreign).unwrap();
            drop(block);
            let exec = executable(capture);
            assert_eq!(fixture.in_use_bytes(), before + SIZE_BYTES);
            fixture.launch(&exec, &fixture.stream);
            drop(exec);
            assert_eq!(fixture.in_use_bytes(), before);
            fixture.stream.synchronize().unwrap();
            fixture.end_foreign(foreign);
        });
    }

    /// After a graph is dropped, its outside blocks are reused as before: a pending use on another stream is waited for.
    #[serial_test::serial]
    fn a_block_is_used_elsewhere_after_its_graph(driver: &Driver) {
        each_fixture(driver, |fixture| {
            let block = fixture.alloc();
            let capture = fixture.capture();
            fixture.fill(&block, 1, &fixture.stream);
            block.record_use(&fixture.stream);
            drop(capture.end().unwrap());
            fixture.other.wait_for(&fixture.stream).unwrap();
            fixture.fill(&block, 2, &fixture.other);
            block.record_use(&fixture.other);
            drop(block);
            // The simulator reports a race if the memory is reused too early.
            let next = fixture.alloc();
            fixture.fill(&next, 3, &fixture.stream);
            assert_eq!(fixture.read(&next, &fixture.stream), 3);
        });
    }

    /// A block of the capture may outlive the graph, and belongs to the program until it is dropped.
    #[serial_test::serial]
    fn a_block_outlives_its_graph(driver: &Driver) {
        each_fixture(driver, |fixture| {
            let before = fixture.in_use_bytes();
            let capture = fixture.capture();
            let result = fixture.alloc();
            fixture.fill(&result, 5, &fixture.stream);
            let exec = executable(capture);
            fixture.launch(&exec, &fixture.stream);
            drop(exec);
            let other = fixture.alloc();
            assert_ne!(other.address(), result.address());
            fixture.fill(&other, 6, &fixture.stream);
            assert_eq!(fixture.read(&result, &fixture.stream), 5);
            drop((result, other));
            assert_eq!(fixture.in_use_bytes(), before);
        });
    }

    /// The last block of a graph may be the last owner of its pool.
    #[serial_test::serial]
    fn a_block_outlives_graph_and_pool(driver: &Driver) {
        each_fixture(driver, |fixture| {
            let capture = fixture.capture();
            let block = fixture.alloc();
            drop(capture.end().unwrap());
            let Fixture { pool, stream, .. } = fixture;
            drop(pool);
            drop(block);
            stream.synchronize().unwrap();
        });
    }

    /// A block used by two graphs is kept by both.
    #[serial_test::serial]
    fn a_block_of_two_graphs(driver: &Driver) {
        each_fixture(driver, |fixture| {
            let before = fixture.in_use_bytes();
            let block = fixture.alloc();
            let graphs = [1, 2].map(|value| {
                let capture = fixture.capture();
                fixture.fill(&block, value, &fixture.stream);
                block.record_use(&fixture.stream);
                capture.end().unwrap()
            });
            drop(block);
            let [first, second] = graphs;
            drop(first);
            assert_eq!(fixture.in_use_bytes(), before + SIZE_BYTES);
            let exec = second.instantiate().unwrap();
            fixture.launch(&exec, &fixture.stream);
            drop((exec, second));
            assert_eq!(fixture.in_use_bytes(), before);
        });
    }

    /// The memory of one graph is used in the capture of another.
    #[serial_test::serial]
    fn a_block_of_one_graph_in_another(driver: &Driver) {
        each_fixture(driver, |fixture| {
            let before = fixture.in_use_bytes();
            let capture = fixture.capture();
            let block = fixture.alloc();
            fixture.fill(&block, 1, &fixture.stream);
            let first = capture.end().unwrap();
            let capture = fixture.capture();
            fixture.fill(&block, 2, &fixture.stream);
            block.record_use(&fixture.stream);
            drop(block);
            let fresh = fixture.alloc();
            fixture.fill(&fresh, 3, &fixture.stream);
            drop(fresh);
            let second = capture.end().unwrap();
            drop(first);
            assert_eq!(fixture.in_use_bytes(), before + 2 * SIZE_BYTES);
            drop(second);
            assert_eq!(fixture.in_use_bytes(), before);
        });
    }
}

/// If a call for memory fails in a capture, the capture continues, and no memory is lost.
#[test]
fn allocations_that_fail() {
    let calls = ["cuMemAlloc_v2", "cuMemAllocFromPoolAsync", "cuMemCreate", "cuMemMap", "cuMemSetAccess"];
    for (call, code) in calls.iter().flat_map(|call| {
        [CUresult::CUDA_ERROR_OUT_OF_MEMORY, CUresult::CUDA_ERROR_UNKNOWN].map(|code| (*call, code))
    }) {
        let rule = Rule::new(call, Effect::Fail(code)).nth(1);
        let driver = gpumem_sim::driver(SimConfig::new().rule(rule)).unwrap();
        each_fixture(&driver, |fixture| {
            let capture = fixture.capture();
            let first = fixture.pool.alloc(SIZE_BYTES, &fixture.stream);
            let second = fixture.alloc();
            fixture.fill(&second, 1, &fixture.stream);
            let exec = executable(capture);
            fixture.launch(&exec, &fixture.stream);
            assert_eq!(fixture.read(&second, &fixture.stream), 1);
            drop((first, second, exec));
            assert_eq!(fixture.in_use_bytes(), 0, "{call}");
        });
        let report = gpumem_sim::Sim::of(&driver).unwrap().report();
        assert!(report.allocations.is_empty() && report.stream_count == 0, "{call}: {report}");
    }
}

//! What a graph's memory is, and how long blocks stay for graphs.

use crate::bench::{Bench, SIZE_BYTES, each_bench, executable};
use gpumem_sim::{Effect, Rule, SimConfig};
use gpumem_tests::cases;
use gpumem_tests::pool::{Block, CaptureMode, Stream};
use gpumem_tests::sys::CUresult;

cases! {
    /// A graph's memory goes to nobody else while the graph or an executable lives, and back to the pool after that.
    #[serial_test::serial]
    fn memory_stays_for_the_graph(driver: &Driver) {
        each_bench(driver, |bench| {
            let before = bench.in_use_bytes();
            let capture = bench.capture();
            let scratch = bench.alloc();
            let address = scratch.address();
            bench.fill(&scratch, 7, &bench.stream);
            drop(scratch);
            let graph = capture.end().unwrap();
            assert_eq!(bench.in_use_bytes(), before + SIZE_BYTES);
            let exec = graph.instantiate().unwrap();
            drop(graph);
            let others: Vec<_> = (0..8).map(|_| bench.alloc()).collect();
            assert!(others.iter().all(|other| other.address() != address));
            others.iter().for_each(|other| bench.fill(other, 1, &bench.stream));
            bench.launch(&exec, &bench.stream);
            assert!(others.iter().all(|other| bench.read(other, &bench.stream) == 1));
            drop(others);
            drop(exec);
            assert_eq!(bench.in_use_bytes(), before);
        });
    }

    /// What a capture drops it has again, in pieces and together, and only on the same stream.
    #[serial_test::serial]
    fn a_capture_reuses_what_it_drops(driver: &Driver) {
        each_bench(driver, |bench| {
            let capture = bench.stream.begin_capture(CaptureMode::Relaxed).unwrap();
            let first = bench.alloc();
            let base = first.address();
            drop(first);
            let halves = [0, 1].map(|_| bench.pool.alloc(SIZE_BYTES / 2, &bench.stream).unwrap());
            assert_eq!(halves.each_ref().map(Block::address), [base, base + SIZE_BYTES / 2]);
            drop(halves);
            let whole = bench.alloc();
            assert_eq!(whole.address(), base);
            drop(whole);
            bench.other.wait_for(&bench.stream).unwrap();
            let elsewhere = bench.pool.alloc(SIZE_BYTES, &bench.other).unwrap();
            assert_ne!(elsewhere.address(), base);
            bench.fill(&elsewhere, 1, &bench.other);
            bench.stream.wait_for(&bench.other).unwrap();
            drop(capture.end().unwrap());
        });
    }

    /// A block that outlives its capture lies where one lay that the graph writes. Launches come after its last use, wherever
    /// that was, once it is dropped.
    #[serial_test::serial]
    fn launches_come_after_what_was_dropped(driver: &Driver) {
        each_bench(driver, |bench| {
            let capture = bench.capture();
            let first = bench.alloc();
            bench.fill(&first, 1, &bench.stream);
            let address = first.address();
            drop(first);
            let second = bench.alloc();
            assert_eq!(second.address(), address);
            let exec = executable(capture);
            let [launched, used] = [0, 1].map(|_| Stream::new(&bench.device).unwrap());
            used.wait_for(&bench.stream).unwrap();
            bench.fill(&second, 2, &used);
            second.record_use(&used);
            drop(second);
            bench.launch(&exec, &launched);
            bench.launch(&exec, &bench.stream);
        });
    }

    /// A block that another stream of the capture used is not had again by its own.
    #[serial_test::serial]
    fn a_forked_use_keeps_a_block(driver: &Driver) {
        each_bench(driver, |bench| {
            let capture = bench.capture();
            let first = bench.alloc();
            bench.fill(&first, 1, &bench.stream);
            bench.other.wait_for(&bench.stream).unwrap();
            assert!(bench.other.is_capturing().unwrap());
            bench.fill(&first, 2, &bench.other);
            first.record_use(&bench.other);
            let address = first.address();
            drop(first);
            let second = bench.alloc();
            assert_ne!(second.address(), address);
            bench.fill(&second, 3, &bench.stream);
            bench.stream.wait_for(&bench.other).unwrap();
            let exec = executable(capture);
            assert!(!bench.other.is_capturing().unwrap());
            bench.launch(&exec, &bench.other);
            bench.stream.wait_for(&bench.other).unwrap();
            assert_eq!(bench.read(&second, &bench.stream), 3);
        });
    }

    /// Blocks from outside that are dropped in a capture, or used in it and dropped later, stay for the graph.
    #[serial_test::serial]
    fn outside_blocks_stay(driver: &Driver) {
        each_bench(driver, |bench| {
            let before = bench.in_use_bytes();
            let (dropped, used, forked) = (bench.alloc(), bench.alloc(), bench.alloc());
            let capture = bench.capture();
            bench.fill(&dropped, 1, &bench.stream);
            bench.copy(&dropped, &used, &bench.stream);
            used.record_use(&bench.stream);
            bench.other.wait_for(&bench.stream).unwrap();
            bench.copy(&used, &forked, &bench.other);
            forked.record_use(&bench.other);
            bench.stream.wait_for(&bench.other).unwrap();
            let taken = [&dropped, &used, &forked].map(Block::address);
            drop(dropped);
            let graph = capture.end().unwrap();
            drop((used, forked));
            assert_eq!(bench.in_use_bytes(), before + 3 * SIZE_BYTES);
            let exec = graph.instantiate().unwrap();
            let third = Stream::new(&bench.device).unwrap();
            third.wait_for(&bench.stream).unwrap();
            bench.launch(&exec, &third);
            drop((exec, graph));
            assert_eq!(bench.in_use_bytes(), before);
            // Whoever has the memory now waits for the launch that is queued.
            for _ in 0..3 {
                let block = bench.alloc();
                bench.fill(&block, 9, &bench.stream);
                assert_eq!(bench.read(&block, &bench.stream), 9, "{taken:x?}");
            }
        });
    }

    /// A block that one graph uses, and that is dropped in the capture of another, stays for both.
    #[serial_test::serial]
    fn a_block_of_a_graph_dropped_in_another_capture(driver: &Driver) {
        each_bench(driver, |bench| {
            let outside = bench.alloc();
            let capture = bench.stream.begin_capture(CaptureMode::Global).unwrap();
            let part = bench.alloc();
            outside.record_use(&bench.stream);
            let first = capture.end().unwrap();
            let capture = bench.stream.begin_capture(CaptureMode::Global).unwrap();
            bench.fill(&outside, 7, &bench.stream);
            bench.fill(&part, 7, &bench.stream);
            drop((outside, part));
            let exec = capture.end().unwrap().instantiate().unwrap();
            drop(first);
            let others: Vec<_> = (0..8).map(|_| bench.alloc()).collect();
            others.iter().for_each(|other| bench.fill(other, 1, &bench.stream));
            bench.launch(&exec, &bench.stream);
            assert!(others.iter().all(|other| bench.read(other, &bench.stream) == 1));
        });
    }

    /// A stream of another library's that has joined a capture is part of it, though nothing asks the driver about it when one
    /// of its blocks is dropped.
    #[serial_test::serial]
    fn a_foreign_stream_s_block_dropped_in_a_capture_that_it_joined(driver: &Driver) {
        each_bench(driver, |bench| {
            let foreign = bench.foreign();
            let before = bench.in_use_bytes();
            let block = bench.pool.alloc(SIZE_BYTES, &foreign).unwrap();
            bench.stream.wait_for(&foreign).unwrap();
            let capture = bench.capture();
            foreign.wait_for(&bench.stream).unwrap();
            bench.fill(&block, 1, &foreign);
            bench.stream.wait_for(&foreign).unwrap();
            drop(block);
            let exec = executable(capture);
            assert_eq!(bench.in_use_bytes(), before + SIZE_BYTES);
            bench.launch(&exec, &bench.stream);
            drop(exec);
            assert_eq!(bench.in_use_bytes(), before);
            bench.stream.synchronize().unwrap();
            bench.end_foreign(foreign);
        });
    }

    /// A graph that is gone leaves its outside blocks as they were: a use on another stream is waited for.
    #[serial_test::serial]
    fn a_block_is_used_elsewhere_after_its_graph(driver: &Driver) {
        each_bench(driver, |bench| {
            let block = bench.alloc();
            let capture = bench.capture();
            bench.fill(&block, 1, &bench.stream);
            block.record_use(&bench.stream);
            drop(capture.end().unwrap());
            bench.other.wait_for(&bench.stream).unwrap();
            bench.fill(&block, 2, &bench.other);
            block.record_use(&bench.other);
            drop(block);
            // The driver finds a race if it has the memory too early.
            let next = bench.alloc();
            bench.fill(&next, 3, &bench.stream);
            assert_eq!(bench.read(&next, &bench.stream), 3);
        });
    }

    /// A block of the capture may outlive the graph, and is the program's until it drops it.
    #[serial_test::serial]
    fn a_block_outlives_its_graph(driver: &Driver) {
        each_bench(driver, |bench| {
            let before = bench.in_use_bytes();
            let capture = bench.capture();
            let result = bench.alloc();
            bench.fill(&result, 5, &bench.stream);
            let exec = executable(capture);
            bench.launch(&exec, &bench.stream);
            drop(exec);
            let other = bench.alloc();
            assert_ne!(other.address(), result.address());
            bench.fill(&other, 6, &bench.stream);
            assert_eq!(bench.read(&result, &bench.stream), 5);
            drop((result, other));
            assert_eq!(bench.in_use_bytes(), before);
        });
    }

    /// The last block of a graph may be the last of its pool.
    #[serial_test::serial]
    fn a_block_outlives_graph_and_pool(driver: &Driver) {
        each_bench(driver, |bench| {
            let capture = bench.capture();
            let block = bench.alloc();
            drop(capture.end().unwrap());
            let Bench { pool, stream, .. } = bench;
            drop(pool);
            drop(block);
            stream.synchronize().unwrap();
        });
    }

    /// A block that two graphs use stays for both.
    #[serial_test::serial]
    fn a_block_of_two_graphs(driver: &Driver) {
        each_bench(driver, |bench| {
            let before = bench.in_use_bytes();
            let block = bench.alloc();
            let graphs = [1, 2].map(|value| {
                let capture = bench.capture();
                bench.fill(&block, value, &bench.stream);
                block.record_use(&bench.stream);
                capture.end().unwrap()
            });
            drop(block);
            let [first, second] = graphs;
            drop(first);
            assert_eq!(bench.in_use_bytes(), before + SIZE_BYTES);
            let exec = second.instantiate().unwrap();
            bench.launch(&exec, &bench.stream);
            drop((exec, second));
            assert_eq!(bench.in_use_bytes(), before);
        });
    }

    /// One graph's memory is used in another's capture.
    #[serial_test::serial]
    fn a_block_of_one_graph_in_another(driver: &Driver) {
        each_bench(driver, |bench| {
            let before = bench.in_use_bytes();
            let capture = bench.capture();
            let block = bench.alloc();
            bench.fill(&block, 1, &bench.stream);
            let first = capture.end().unwrap();
            let capture = bench.capture();
            bench.fill(&block, 2, &bench.stream);
            block.record_use(&bench.stream);
            drop(block);
            let fresh = bench.alloc();
            bench.fill(&fresh, 3, &bench.stream);
            drop(fresh);
            let second = capture.end().unwrap();
            drop(first);
            assert_eq!(bench.in_use_bytes(), before + 2 * SIZE_BYTES);
            drop(second);
            assert_eq!(bench.in_use_bytes(), before);
        });
    }
}

/// Whatever call for memory fails in a capture, the capture goes on, and nothing stays behind.
#[test]
fn allocations_that_fail() {
    let calls = ["cuMemAlloc_v2", "cuMemAllocFromPoolAsync", "cuMemCreate", "cuMemMap", "cuMemSetAccess"];
    for (call, code) in calls.iter().flat_map(|call| {
        [CUresult::CUDA_ERROR_OUT_OF_MEMORY, CUresult::CUDA_ERROR_UNKNOWN].map(|code| (*call, code))
    }) {
        let rule = Rule::new(call, Effect::Fail(code)).nth(1);
        let driver = gpumem_sim::driver(SimConfig::new().rule(rule)).unwrap();
        each_bench(&driver, |bench| {
            let capture = bench.capture();
            let first = bench.pool.alloc(SIZE_BYTES, &bench.stream);
            let second = bench.alloc();
            bench.fill(&second, 1, &bench.stream);
            let exec = executable(capture);
            bench.launch(&exec, &bench.stream);
            assert_eq!(bench.read(&second, &bench.stream), 1);
            drop((first, second, exec));
            assert_eq!(bench.in_use_bytes(), 0, "{call}");
        });
        let report = gpumem_sim::Sim::of(&driver).unwrap().report();
        assert!(report.allocations.is_empty() && report.stream_count == 0, "{call}: {report}");
    }
}

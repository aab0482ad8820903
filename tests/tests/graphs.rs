//! The pool while streams capture, and the memory of graphs: on either driver, with every backend. One case at a time: on
//! a GPU they share a process, and what one asks the driver for would break another's capture.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use gpumem_tests::array::{Gpu, GpuArray};
use gpumem_tests::backends::backends;
use gpumem_tests::cases;
use gpumem_tests::pool::{Block, Capture, CaptureMode, Device, Event, GraphExec, Pool, PoolError, Stream};
use gpumem_tests::sys::sim::{Effect, Finding, Rule};
use gpumem_tests::sys::{CUresult, Driver, SimConfig};

const MODES: [CaptureMode; 3] = [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed];
const SIZE_BYTES: u64 = 1 << 20;

cases! {
    /// What was captured runs at each launch, in memory of the graph's own, in every mode.
    #[serial_test::serial]
    fn a_graph_runs_at_every_launch(driver: &Driver) {
        for mode in MODES {
            each_bench(driver, |bench| {
                let (input, output) = (bench.alloc(), bench.alloc());
                let capture = bench.stream.begin_capture(mode).unwrap();
                let scratch = bench.alloc();
                bench.copy(&input, &scratch, &bench.stream);
                bench.copy(&scratch, &output, &bench.stream);
                drop(scratch);
                let exec = executable(capture);
                for round in 1..=3 {
                    bench.fill(&input, round, &bench.stream);
                    // SAFETY: the same stream orders all uses.
                    unsafe { exec.launch(&bench.stream).unwrap() };
                    assert_eq!(bench.read(&output, &bench.stream), round);
                }
            });
        }
    }

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
            // SAFETY: the graph uses its own memory only.
            unsafe { exec.launch(&bench.stream).unwrap() };
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
            // SAFETY: the graph uses its own memory only.
            unsafe { exec.launch(&bench.other).unwrap() };
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
            // SAFETY: what the graph uses is used by nothing else any more, and was filled by nothing.
            unsafe { exec.launch(&third).unwrap() };
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
            // SAFETY: the same stream orders all uses.
            unsafe { exec.launch(&bench.stream).unwrap() };
            assert!(others.iter().all(|other| bench.read(other, &bench.stream) == 1));
        });
    }

    /// Streams come and go beside a capture, which stays whole.
    #[serial_test::serial]
    fn streams_come_and_go_beside_a_capture(driver: &Driver) {
        each_bench(driver, |bench| {
            for mode in MODES {
                let capture = bench.stream.begin_capture(mode).unwrap();
                for _ in 0..3 {
                    let stream = Stream::new(&bench.device).unwrap();
                    drop(bench.pool.alloc(SIZE_BYTES, &stream).unwrap());
                }
                drop(capture.end().unwrap());
            }
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
            // SAFETY: the same stream orders all uses.
            unsafe { exec.launch(&bench.stream).unwrap() };
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
            // SAFETY: nothing else uses the block.
            unsafe { exec.launch(&bench.stream).unwrap() };
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

    /// Dropped unfinished, a capture leaves the stream as it was, and gives back what it had.
    #[serial_test::serial]
    fn an_unfinished_capture(driver: &Driver) {
        each_bench(driver, |bench| {
            let before = bench.in_use_bytes();
            let capture = bench.capture();
            let block = bench.alloc();
            bench.fill(&block, 1, &bench.stream);
            drop(block);
            drop(capture);
            assert!(!bench.stream.is_capturing().unwrap());
            assert_eq!(bench.in_use_bytes(), before);
            let block = bench.alloc();
            bench.fill(&block, 2, &bench.stream);
            assert_eq!(bench.read(&block, &bench.stream), 2);
        });
    }

    /// What can't be captured is refused, and the capture goes on.
    #[serial_test::serial]
    fn refusals_leave_a_capture_whole(driver: &Driver) {
        each_bench(driver, |bench| {
            let event = Event::new(&bench.device).unwrap();
            let warm = bench.capture_of_nothing();
            let capture = bench.capture();
            let block = bench.alloc();
            bench.fill(&block, 4, &bench.stream);
            refused(bench.stream.synchronize());
            refused(bench.stream.is_complete());
            refused(bench.device.synchronize());
            refused(bench.stream.begin_capture(CaptureMode::Global));
            // SAFETY: the graph is empty.
            refused(unsafe { warm.launch(&bench.stream) });
            event.record(&bench.stream).unwrap();
            refused(event.is_complete());
            refused(event.synchronize());
            let elsewhere = bench.other.begin_capture(CaptureMode::Global).unwrap();
            refused(bench.stream.wait_for(&bench.other));
            drop(elsewhere);
            let exec = executable(capture);
            // SAFETY: the same stream orders all uses.
            unsafe { exec.launch(&bench.stream).unwrap() };
            assert_eq!(bench.read(&block, &bench.stream), 4);
        });
    }

    /// Waits for what is outside become waits of the launches.
    #[serial_test::serial]
    fn waits_for_the_outside(driver: &Driver) {
        each_bench(driver, |bench| {
            let (input, output) = (bench.alloc(), bench.alloc());
            let event = Event::new(&bench.device).unwrap();
            bench.other.wait_for(&bench.stream).unwrap();
            for uses_event in [false, true] {
                bench.fill(&input, 40 + u8::from(uses_event), &bench.other);
                event.record(&bench.other).unwrap();
                let capture = bench.capture();
                match uses_event {
                    true => bench.stream.wait(&event).unwrap(),
                    false => bench.stream.wait_for(&bench.other).unwrap(),
                }
                bench.copy(&input, &output, &bench.stream);
                let exec = executable(capture);
                // SAFETY: the graph waits for the fill, and the same stream orders the rest.
                unsafe { exec.launch(&bench.stream).unwrap() };
                assert_eq!(bench.read(&output, &bench.stream), 40 + u8::from(uses_event));
            }
            input.record_use(&bench.other);
        });
    }

    /// Arrays compute in a capture what they compute outside; what needs the host is refused and breaks nothing.
    #[serial_test::serial]
    fn arrays_in_a_capture(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        for backend in backends(&device) {
            let pool = Pool::builder(&device).backend(backend).build().unwrap();
            let gpu = Gpu::new(&pool).unwrap();
            gpu.preload::<f32>().unwrap();
            let mut x = GpuArray::from_slice(&gpu, &[1.0_f32, 2.0, 3.0]).unwrap();
            // Written elsewhere: launches wait for that.
            let other = gpu.fork().unwrap();
            let y = x.on(&other).try_mul_scalar(10.0).unwrap();
            let capture = gpu.stream().begin_capture(CaptureMode::Global).unwrap();
            let sum = x.on(&gpu).try_add(&y).unwrap();
            let result = sum.try_mul_scalar(2.0).unwrap();
            drop((sum, y));
            assert!(result.to_vec().is_err() && x.copy_from_slice(&[0.0; 3]).is_err());
            let exec = executable(capture);
            for round in 1..=3 {
                x.copy_from_slice(&[round as f32; 3]).unwrap();
                // SAFETY: the stream of the arrays orders all uses.
                unsafe { exec.launch(gpu.stream()).unwrap() };
                let round = round as f32;
                assert_eq!(result.to_vec().unwrap(), [10.0, 20.0, 30.0].map(|y| 2.0 * (round + y)), "{backend}");
            }
        }
    }

    /// A capture that somebody else's call has broken says so, and its memory comes back.
    #[serial_test::serial]
    fn a_broken_capture(driver: &Driver) {
        each_bench_with(driver, 2, |bench| {
            let before = bench.in_use_bytes();
            let outside = bench.alloc();
            let capture = bench.capture();
            let inside = bench.alloc();
            let bound = bench.device.bind().unwrap();
            // SAFETY: the stream is alive.
            unsafe { driver.cuStreamSynchronize(bench.stream.raw()).unwrap_err() };
            drop(bound);
            let error = bench.pool.alloc(SIZE_BYTES, &bench.stream).unwrap_err();
            assert!(matches!(error, PoolError::CaptureBroken), "{error}");
            drop((outside, inside));
            let error = capture.end().unwrap_err();
            assert!(matches!(error, PoolError::CaptureBroken), "{error}");
            assert_eq!(bench.in_use_bytes(), before);
            let block = bench.alloc();
            bench.fill(&block, 2, &bench.stream);
            assert_eq!(bench.read(&block, &bench.stream), 2);
        });
    }

    /// A stream that joined must be waited for before the end.
    #[serial_test::serial]
    fn an_unjoined_capture(driver: &Driver) {
        each_bench_with(driver, 1, |bench| {
            let block = bench.alloc();
            let capture = bench.capture();
            bench.fill(&block, 1, &bench.stream);
            bench.other.wait_for(&bench.stream).unwrap();
            bench.fill(&block, 2, &bench.other);
            let error = capture.end().unwrap_err();
            assert!(matches!(error, PoolError::CaptureUnjoined), "{error}");
            bench.fill(&block, 3, &bench.stream);
            assert_eq!(bench.read(&block, &bench.stream), 3);
        });
    }

    /// Other threads allocate, use, free and wait as ever while one captures, in every mode.
    #[serial_test::serial]
    fn other_threads_go_on(driver: &Driver) {
        for mode in MODES {
            each_bench(driver, |bench| {
                let capture = bench.stream.begin_capture(mode).unwrap();
                let inside = bench.alloc();
                std::thread::scope(|scope| {
                    for value in 0..2_u8 {
                        let bench = &bench;
                        scope.spawn(move || {
                            let stream = Stream::new(&bench.device).unwrap();
                            for size_bytes in [1 << 10, 3 << 20, 20 << 20] {
                                let block = bench.pool.alloc(size_bytes, &stream).unwrap();
                                bench.fill(&block, value, &stream);
                                assert_eq!(bench.read(&block, &stream), value);
                                assert!(stream.is_complete().unwrap());
                            }
                        });
                    }
                });
                bench.fill(&inside, 8, &bench.stream);
                let exec = executable(capture);
                // SAFETY: the same stream orders all uses.
                unsafe { exec.launch(&bench.stream).unwrap() };
                assert_eq!(bench.read(&inside, &bench.stream), 8);
            });
        }
    }

    /// An executable is launched on several streams, and its memory comes back behind all of them.
    #[serial_test::serial]
    fn launches_on_several_streams(driver: &Driver) {
        each_bench(driver, |bench| {
            let before = bench.in_use_bytes();
            let capture = bench.capture();
            let block = bench.alloc();
            bench.fill(&block, 1, &bench.stream);
            drop(block);
            let exec = executable(capture);
            let streams: Vec<_> = (0..3).map(|_| Stream::new(&bench.device).unwrap()).collect();
            for (index, stream) in streams.iter().enumerate() {
                if let Some(former) = index.checked_sub(1) {
                    stream.wait_for(&streams[former]).unwrap();
                }
                // SAFETY: the launches are ordered, and the graph uses its own memory only.
                unsafe { exec.launch(stream).unwrap() };
            }
            drop(exec);
            assert_eq!(bench.in_use_bytes(), before);
            let block = bench.alloc();
            bench.fill(&block, 2, &bench.stream);
            assert_eq!(bench.read(&block, &bench.stream), 2);
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
        let driver = Driver::sim(SimConfig::new().rule(rule)).unwrap();
        each_bench(&driver, |bench| {
            let capture = bench.capture();
            let first = bench.pool.alloc(SIZE_BYTES, &bench.stream);
            let second = bench.alloc();
            bench.fill(&second, 1, &bench.stream);
            let exec = executable(capture);
            // SAFETY: the same stream orders all uses.
            unsafe { exec.launch(&bench.stream).unwrap() };
            assert_eq!(bench.read(&second, &bench.stream), 1);
            drop((first, second, exec));
            assert_eq!(bench.in_use_bytes(), 0, "{call}");
        });
        let report = driver.simulator().unwrap().report();
        assert!(report.allocations.is_empty() && report.stream_count == 0, "{call}: {report}");
    }
}

/// A pool with two streams.
struct Bench {
    device: Device,
    pool: Pool,
    stream: Stream,
    other: Stream,
}

fn each_bench(driver: &Driver, body: impl Fn(Bench)) {
    each_bench_with(driver, 0, body);
}

/// With calls that the driver refuses, and finds wrong.
fn each_bench_with(driver: &Driver, refusal_count: usize, body: impl Fn(Bench)) {
    let device = Device::new(driver, 0).unwrap();
    for (round, backend) in backends(&device).into_iter().enumerate() {
        let pool = Pool::builder(&device).backend(backend).build().unwrap();
        let [stream, other] = [0, 1].map(|_| Stream::new(&device).unwrap());
        body(Bench { device: device.clone(), pool, stream, other });
        device.synchronize().unwrap();
        if let Some(sim) = driver.simulator() {
            let report = sim.report();
            let (refused, found): (Vec<_>, Vec<_>) =
                report.findings.iter().partition(|finding| matches!(finding, Finding::Refused { .. }));
            assert!(report.faults.is_empty() && found.is_empty(), "{backend}: {report}");
            assert_eq!(refused.len(), refusal_count * (round + 1), "{backend}: {report}");
            assert_eq!((report.graph_count, report.executable_graph_count), (0, 0), "{backend}");
        }
    }
}

fn refused<T>(result: Result<T, PoolError>) {
    match result {
        Err(PoolError::NotInCapture { .. }) => {}
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("not refused"),
    }
}

impl Bench {
    fn alloc(&self) -> Block {
        self.pool.alloc(SIZE_BYTES, &self.stream).unwrap()
    }

    fn in_use_bytes(&self) -> u64 {
        self.pool.status().unwrap().in_use_bytes
    }

    fn fill(&self, block: &Block, value: u8, stream: &Stream) {
        let _bound = self.device.bind().unwrap();
        let size_bytes = block.size_bytes() as usize;
        // SAFETY: the block is alive and that large; what orders its uses is what is tested.
        let filled =
            unsafe { self.device.driver().cuMemsetD8Async(block.address(), value, size_bytes, stream.raw()) };
        filled.unwrap();
    }

    fn copy(&self, from: &Block, to: &Block, stream: &Stream) {
        let _bound = self.device.bind().unwrap();
        let size_bytes = from.size_bytes() as usize;
        // SAFETY: as for `fill`.
        let copied = unsafe {
            self.device.driver().cuMemcpyDtoDAsync_v2(to.address(), from.address(), size_bytes, stream.raw())
        };
        copied.unwrap();
    }

    /// What every byte of a block is.
    fn read(&self, block: &Block, stream: &Stream) -> u8 {
        let mut bytes = vec![0_u8; block.size_bytes() as usize];
        let bound = self.device.bind().unwrap();
        // SAFETY: `bytes` has room, and lives until the stream is synchronised.
        let copied = unsafe {
            self.device.driver().cuMemcpyDtoHAsync_v2(
                bytes.as_mut_ptr().cast(),
                block.address(),
                bytes.len(),
                stream.raw(),
            )
        };
        copied.unwrap();
        stream.synchronize().unwrap();
        drop(bound);
        assert!(bytes.iter().all(|byte| *byte == bytes[0]));
        bytes[0]
    }

    fn capture_of_nothing(&self) -> GraphExec {
        executable(self.capture())
    }

    fn capture(&self) -> Capture {
        self.stream.begin_capture(CaptureMode::Global).unwrap()
    }
}

fn executable(capture: Capture) -> GraphExec {
    capture.end().unwrap().instantiate().unwrap()
}

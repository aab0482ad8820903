//! How captures and launches go: what runs when, what is waited for, what is refused and what breaks.

use crate::bench::{MODES, SIZE_BYTES, each_bench, each_bench_with, executable, refused};
use gpumem_tests::array::{Gpu, GpuArray};
use gpumem_tests::backends::backends;
use gpumem_tests::cases;
use gpumem_tests::pool::{CaptureMode, Device, Event, Pool, PoolError, Stream};

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
                    bench.launch(&exec, &bench.stream);
                    assert_eq!(bench.read(&output, &bench.stream), round);
                }
            });
        }
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
            bench.launch(&exec, &bench.stream);
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
                bench.launch(&exec, &bench.stream);
                assert_eq!(bench.read(&output, &bench.stream), 40 + u8::from(uses_event));
            }
            input.record_use(&bench.other);
        });
    }

    /// So does a wait for another library's stream, which only calls that name it can mark; and the stream waits, too, once
    /// the capture has ended.
    #[serial_test::serial]
    fn waits_for_anothers_event(driver: &Driver) {
        for launches in [true, false] {
            each_bench(driver, |bench| {
                let (input, output) = (bench.alloc(), bench.alloc());
                let (foreign, event) = (bench.foreign(), Event::new(&bench.device).unwrap());
                foreign.wait_for(&bench.stream).unwrap();
                bench.fill(&input, 7, &foreign);
                event.record(&foreign).unwrap();
                let capture = bench.capture();
                bench.stream.wait(&event).unwrap();
                if launches {
                    bench.copy(&input, &output, &bench.stream);
                }
                let exec = executable(capture);
                match launches {
                    true => bench.launch(&exec, &bench.stream),
                    false => bench.copy(&input, &output, &bench.stream),
                }
                assert_eq!(bench.read(&output, &bench.stream), 7);
                input.record_use(&foreign);
                bench.end_foreign(foreign);
            });
        }
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
            let y = x.on(&other).try_mul(10.0).unwrap();
            let capture = gpu.stream().begin_capture(CaptureMode::Global).unwrap();
            let sum = x.on(&gpu).try_add(&y).unwrap();
            let result = sum.try_mul(2.0).unwrap();
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
                bench.launch(&exec, &bench.stream);
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
                bench.launch(&exec, stream);
            }
            drop(exec);
            assert_eq!(bench.in_use_bytes(), before);
            let block = bench.alloc();
            bench.fill(&block, 2, &bench.stream);
            assert_eq!(bench.read(&block, &bench.stream), 2);
        });
    }
}

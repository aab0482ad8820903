//! Captures and launches: when work runs, and which calls wait, are refused or break a capture.

use crate::graphs::fixture::{MODES, SIZE_BYTES, each_fixture, each_fixture_with, executable, refused};
use gpumem_tests::array::{Gpu, GpuArray};
use gpumem_tests::cases;
use gpumem_tests::fixtures::backends::backends;
use gpumem_tests::pool::{
    Capture, CaptureError, CaptureMode, Device, DeviceError, Event, Pool, PoolError, Stream,
};

cases! {
    /// Captured work runs at each launch, in memory of the graph, in every mode.
    #[serial_test::serial]
    fn a_graph_runs_at_every_launch(driver: &Driver) {
        for mode in MODES {
            each_fixture(driver, |fixture| {
                let (input, output) = (fixture.alloc(), fixture.alloc());
                let capture = Capture::begin(&fixture.stream, mode).unwrap();
                let scratch = fixture.alloc();
                fixture.copy(&input, &scratch, &fixture.stream);
                fixture.copy(&scratch, &output, &fixture.stream);
                drop(scratch);
                let exec = executable(capture);
                for round in 1..=3 {
                    fixture.fill(&input, round, &fixture.stream);
                    fixture.launch(&exec, &fixture.stream);
                    assert_eq!(fixture.read(&output, &fixture.stream), round);
                }
            });
        }
    }

    /// Streams are created and dropped beside a capture, which stays valid.
    #[serial_test::serial]
    fn streams_come_and_go_beside_a_capture(driver: &Driver) {
        each_fixture(driver, |fixture| {
            for mode in MODES {
                let capture = Capture::begin(&fixture.stream, mode).unwrap();
                for _ in 0..3 {
                    let stream = Stream::new(&fixture.device).unwrap();
                    drop(fixture.pool.alloc(SIZE_BYTES, &stream).unwrap());
                }
                drop(capture.end().unwrap());
            }
        });
    }

    /// An unfinished capture that is dropped leaves the stream unchanged, and releases its memory.
    #[serial_test::serial]
    fn an_unfinished_capture(driver: &Driver) {
        each_fixture(driver, |fixture| {
            let before = fixture.in_use_bytes();
            let capture = fixture.capture();
            let block = fixture.alloc();
            fixture.fill(&block, 1, &fixture.stream);
            drop(block);
            drop(capture);
            assert!(!fixture.stream.is_capturing().unwrap());
            assert_eq!(fixture.in_use_bytes(), before);
            let block = fixture.alloc();
            fixture.fill(&block, 2, &fixture.stream);
            assert_eq!(fixture.read(&block, &fixture.stream), 2);
        });
    }

    /// A call that cannot be captured is refused, and the capture continues.
    #[serial_test::serial]
    fn refusals_leave_a_capture_whole(driver: &Driver) {
        each_fixture(driver, |fixture| {
            let event = Event::new(&fixture.device).unwrap();
            let warm = fixture.capture_of_nothing();
            let capture = fixture.capture();
            let block = fixture.alloc();
            fixture.fill(&block, 4, &fixture.stream);
            refused(fixture.stream.synchronize().map_err(Into::into));
            refused(fixture.stream.is_complete().map_err(Into::into));
            refused(fixture.device.synchronize().map_err(Into::into));
            refused(Capture::begin(&fixture.stream, CaptureMode::Global));
            // SAFETY: the graph is empty.
            refused(unsafe { warm.launch(&fixture.stream) });
            event.record(&fixture.stream).unwrap();
            refused(event.is_complete().map_err(Into::into));
            refused(event.synchronize().map_err(Into::into));
            let elsewhere = Capture::begin(&fixture.other, CaptureMode::Global).unwrap();
            refused(fixture.stream.wait_for(&fixture.other).map_err(Into::into));
            drop(elsewhere);
            let exec = executable(capture);
            fixture.launch(&exec, &fixture.stream);
            assert_eq!(fixture.read(&block, &fixture.stream), 4);
        });
    }

    /// Waits for work outside of the capture become waits of the launches.
    #[serial_test::serial]
    fn waits_for_the_outside(driver: &Driver) {
        each_fixture(driver, |fixture| {
            let (input, output) = (fixture.alloc(), fixture.alloc());
            let event = Event::new(&fixture.device).unwrap();
            fixture.other.wait_for(&fixture.stream).unwrap();
            for uses_event in [false, true] {
                fixture.fill(&input, 40 + u8::from(uses_event), &fixture.other);
                event.record(&fixture.other).unwrap();
                let capture = fixture.capture();
                match uses_event {
                    true => fixture.stream.wait(&event).unwrap(),
                    false => fixture.stream.wait_for(&fixture.other).unwrap(),
                }
                fixture.copy(&input, &output, &fixture.stream);
                let exec = executable(capture);
                fixture.launch(&exec, &fixture.stream);
                assert_eq!(fixture.read(&output, &fixture.stream), 40 + u8::from(uses_event));
            }
            input.record_use(&fixture.other);
        });
    }

    /// A wait for another library's stream becomes a wait of the launches. Only calls that name that stream can record markers on
    /// it, and the stream waits for the launches, too, after the end of the capture.
    #[serial_test::serial]
    fn waits_for_anothers_event(driver: &Driver) {
        for launches in [true, false] {
            each_fixture(driver, |fixture| {
                let (input, output) = (fixture.alloc(), fixture.alloc());
                let (foreign, event) = (fixture.foreign(), Event::new(&fixture.device).unwrap());
                foreign.wait_for(&fixture.stream).unwrap();
                fixture.fill(&input, 7, &foreign);
                event.record(&foreign).unwrap();
                let capture = fixture.capture();
                fixture.stream.wait(&event).unwrap();
                if launches {
                    fixture.copy(&input, &output, &fixture.stream);
                }
                let exec = executable(capture);
                match launches {
                    true => fixture.launch(&exec, &fixture.stream),
                    false => fixture.copy(&input, &output, &fixture.stream),
                }
                assert_eq!(fixture.read(&output, &fixture.stream), 7);
                input.record_use(&foreign);
                fixture.end_foreign(foreign);
            });
        }
    }

    /// Arrays compute the same results in a capture as outside; operations that need the host are refused and leave the capture
    /// valid.
    #[serial_test::serial]
    fn arrays_in_a_capture(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        for backend in backends(&device) {
            let pool = Pool::builder(&device).backend(backend).build().unwrap();
            let gpu = Gpu::new(&pool).unwrap();
            gpu.preload::<f32>().unwrap();
            let mut x = GpuArray::from_slice(&gpu, &[1.0_f32, 2.0, 3.0]).unwrap();
            // Written on another stream, so launches wait for that work.
            let other = gpu.fork().unwrap();
            let y = x.on(&other).try_mul(10.0).unwrap();
            let (mut graph, result) = gpu
                .capture(|c| {
                    let sum = x.on(c).try_add(&y)?;
                    let result = sum.try_mul(2.0)?;
                    drop(sum);
                    assert!(result.to_vec().is_err() && x.on_mut(c).copy_from_slice(&[0.0; 3]).is_err());
                    Ok(result)
                })
                .unwrap();
            for round in 1..=3 {
                x.copy_from_slice(&[round as f32; 3]).unwrap();
                let done = graph.launch(&gpu).read(&x).read(&y).run().unwrap();
                let round = round as f32;
                let expected = [10.0, 20.0, 30.0].map(|y| 2.0 * (round + y));
                assert_eq!(done.get(&result).unwrap().to_vec().unwrap(), expected, "{backend}");
            }
        }
    }

    /// A capture that was invalidated by another call returns an error, and its memory is released.
    #[serial_test::serial]
    fn a_broken_capture(driver: &Driver) {
        each_fixture_with(driver, 2, |fixture| {
            let before = fixture.in_use_bytes();
            let outside = fixture.alloc();
            let capture = fixture.capture();
            let inside = fixture.alloc();
            let bound = fixture.device.bind().unwrap();
            // SAFETY: the stream is alive.
            unsafe { driver.cuStreamSynchronize(fixture.stream.raw()).unwrap_err() };
            drop(bound);
            let error = fixture.pool.alloc(SIZE_BYTES, &fixture.stream).unwrap_err();
            assert!(matches!(error, PoolError::Device(DeviceError::Capture(CaptureError::Broken))), "{error}");
            drop((outside, inside));
            let error = capture.end().unwrap_err();
            assert!(matches!(error, PoolError::Device(DeviceError::Capture(CaptureError::Broken))), "{error}");
            assert_eq!(fixture.in_use_bytes(), before);
            let block = fixture.alloc();
            fixture.fill(&block, 2, &fixture.stream);
            assert_eq!(fixture.read(&block, &fixture.stream), 2);
        });
    }

    /// A stream that joined must be joined back before the end of the capture.
    #[serial_test::serial]
    fn an_unjoined_capture(driver: &Driver) {
        each_fixture_with(driver, 1, |fixture| {
            let block = fixture.alloc();
            let capture = fixture.capture();
            fixture.fill(&block, 1, &fixture.stream);
            fixture.other.wait_for(&fixture.stream).unwrap();
            fixture.fill(&block, 2, &fixture.other);
            let error = capture.end().unwrap_err();
            assert!(matches!(error, PoolError::Device(DeviceError::Capture(CaptureError::Unjoined))), "{error}");
            fixture.fill(&block, 3, &fixture.stream);
            assert_eq!(fixture.read(&block, &fixture.stream), 3);
        });
    }

    /// While one thread captures, in any mode, other threads allocate, use, free and wait as usual.
    #[serial_test::serial]
    fn other_threads_go_on(driver: &Driver) {
        for mode in MODES {
            each_fixture(driver, |fixture| {
                let capture = Capture::begin(&fixture.stream, mode).unwrap();
                let inside = fixture.alloc();
                std::thread::scope(|scope| {
                    for value in 0..2_u8 {
                        let fixture = &fixture;
                        scope.spawn(move || {
                            let stream = Stream::new(&fixture.device).unwrap();
                            for size_bytes in [1 << 10, 3 << 20, 20 << 20] {
                                let block = fixture.pool.alloc(size_bytes, &stream).unwrap();
                                fixture.fill(&block, value, &stream);
                                assert_eq!(fixture.read(&block, &stream), value);
                                assert!(stream.is_complete().unwrap());
                            }
                        });
                    }
                });
                fixture.fill(&inside, 8, &fixture.stream);
                let exec = executable(capture);
                fixture.launch(&exec, &fixture.stream);
                assert_eq!(fixture.read(&inside, &fixture.stream), 8);
            });
        }
    }

    /// An executable is launched on several streams, and its memory is reused behind all of them.
    #[serial_test::serial]
    fn launches_on_several_streams(driver: &Driver) {
        each_fixture(driver, |fixture| {
            let before = fixture.in_use_bytes();
            let capture = fixture.capture();
            let block = fixture.alloc();
            fixture.fill(&block, 1, &fixture.stream);
            drop(block);
            let exec = executable(capture);
            let streams: Vec<_> = (0..3).map(|_| Stream::new(&fixture.device).unwrap()).collect();
            for (index, stream) in streams.iter().enumerate() {
                if let Some(former) = index.checked_sub(1) {
                    stream.wait_for(&streams[former]).unwrap();
                }
                fixture.launch(&exec, stream);
            }
            drop(exec);
            assert_eq!(fixture.in_use_bytes(), before);
            let block = fixture.alloc();
            fixture.fill(&block, 2, &fixture.stream);
            assert_eq!(fixture.read(&block, &fixture.stream), 2);
        });
    }
}

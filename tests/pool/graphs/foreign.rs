//! Captures that another library begins, ends and launches, with the driver alone.

use crate::graphs::fixture::{Fixture, SIZE_BYTES, each_fixture};
use gpumem_tests::cases;
use gpumem_tests::pool::{
    Block, Capture, CaptureError, CaptureMode, DeviceError, ForeignCaptures, PoolError, Stream, StreamError,
};
use gpumem_tests::sys::types::{CUevent_flags, CUgraphExec, CUstream, CUstream_flags, CUstreamCaptureMode};

// The calls of the other library.
impl Fixture {
    pub(crate) fn begin_raw(&self, stream: &Stream) {
        let _bound = self.device.bind().unwrap();
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        // SAFETY: the stream is alive and not capturing.
        unsafe { self.device.driver().cuStreamBeginCapture_v2(stream.raw(), mode).unwrap() };
    }

    pub(crate) fn end_raw(&self, stream: &Stream) -> CUgraphExec {
        let _bound = self.device.bind().unwrap();
        let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
        let driver = self.device.driver();
        // SAFETY: the places outlive the calls, and the graph is destroyed once.
        unsafe {
            driver.cuStreamEndCapture(stream.raw(), &mut graph).unwrap();
            driver.cuGraphInstantiateWithFlags(&mut exec, graph, 0).unwrap();
            driver.cuGraphDestroy(graph).unwrap();
        }
        exec
    }

    pub(crate) fn raw_stream(&self) -> CUstream {
        let _bound = self.device.bind().unwrap();
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` outlives the call.
        unsafe {
            self.device.driver().cuStreamCreate(&mut raw, CUstream_flags::CU_STREAM_NON_BLOCKING.0).unwrap()
        };
        raw
    }

    pub(crate) fn end_raw_stream(&self, raw: CUstream) {
        let _bound = self.device.bind().unwrap();
        // SAFETY: the stream is not used after this.
        unsafe { self.device.driver().cuStreamDestroy_v2(raw).unwrap() };
    }

    /// Makes a stream wait for another one.
    pub(crate) fn join_raw(&self, first: &Stream, then: CUstream) {
        let _bound = self.device.bind().unwrap();
        let (driver, mut event) = (self.device.driver(), std::ptr::null_mut());
        // SAFETY: the place outlives the call, both streams are alive, and the event is destroyed once.
        unsafe {
            driver.cuEventCreate(&mut event, CUevent_flags::CU_EVENT_DISABLE_TIMING.0).unwrap();
            driver.cuEventRecord(event, first.raw()).unwrap();
            driver.cuStreamWaitEvent(then, event, 0).unwrap();
            driver.cuEventDestroy_v2(event).unwrap();
        }
    }

    pub(crate) fn launch_raw(&self, exec: CUgraphExec, stream: &Stream) {
        let _bound = self.device.bind().unwrap();
        // SAFETY: both are alive; the order of the uses of memory is the subject of the test.
        unsafe { self.device.driver().cuGraphLaunch(exec, stream.raw()).unwrap() };
    }

    pub(crate) fn destroy_raw(&self, exec: CUgraphExec) {
        let _bound = self.device.bind().unwrap();
        // SAFETY: the executable is not used after this.
        unsafe { self.device.driver().cuGraphExecDestroy(exec).unwrap() };
    }
}

cases! {
    /// Memory that is allocated in the capture stays until the value is dropped, however often the graph is launched, and on streams that
    /// the pool does not know of.
    #[serial_test::serial]
    fn memory_stays_for_the_others_graph(driver: &Driver) {
        each_fixture(driver, |fixture| {
            let before = fixture.in_use_bytes();
            let captured = fixture.foreign();
            let captures = ForeignCaptures::expect(&fixture.device);
            fixture.begin_raw(&captured);
            assert!(captures.add(&captured).unwrap());
            let scratch = fixture.pool.alloc(SIZE_BYTES, &captured).unwrap();
            let result = fixture.pool.alloc(SIZE_BYTES, &captured).unwrap();
            let address = scratch.address();
            fixture.fill(&scratch, 7, &captured);
            fixture.copy(&scratch, &result, &captured);
            drop(scratch);
            // Within the capture the stream gets its own memory back.
            assert!(captures.add(&captured).unwrap());
            let again = fixture.pool.alloc(SIZE_BYTES, &captured).unwrap();
            assert_eq!(again.address(), address);
            drop(again);
            let exec = fixture.end_raw(&captured);
            captures.end().unwrap();
            assert!(!captures.add(&captured).unwrap());
            assert_eq!(fixture.in_use_bytes(), before + 2 * SIZE_BYTES);
            let others: Vec<_> = (0..8).map(|_| fixture.alloc()).collect();
            assert!(others.iter().all(|other| other.address() != address));
            others.iter().for_each(|other| fixture.fill(other, 1, &fixture.stream));
            for _ in 0..2 {
                fixture.launch_raw(exec, &captured);
                assert_eq!(fixture.read(&result, &captured), 7);
            }
            assert!(others.iter().all(|other| fixture.read(other, &fixture.stream) == 1));
            drop(others);
            drop(result);
            fixture.launch_raw(exec, &captured);
            fixture.destroy_raw(exec);
            drop(captures);
            assert_eq!(fixture.in_use_bytes(), before);
            fixture.end_foreign(captured);
        });
    }

    /// Memory that another stream has freed is ready for the first launch, although the launch waits for nothing of the pool's.
    #[serial_test::serial]
    fn the_others_launches_need_no_waits(driver: &Driver) {
        each_fixture(driver, |fixture| {
            let (captured, launched) = (fixture.foreign(), fixture.foreign());
            // There is room for one block.
            fixture.pool.set_hard_limit(2 * SIZE_BYTES).unwrap();
            let before = fixture.pool.alloc(2 * SIZE_BYTES, &fixture.stream).unwrap();
            fixture.fill(&before, 1, &fixture.stream);
            drop(before);
            let captures = ForeignCaptures::expect(&fixture.device);
            fixture.begin_raw(&captured);
            captures.add(&captured).unwrap();
            let scratch = fixture.pool.alloc(2 * SIZE_BYTES, &captured).unwrap();
            fixture.fill(&scratch, 2, &captured);
            let exec = fixture.end_raw(&captured);
            captures.end().unwrap();
            fixture.launch_raw(exec, &launched);
            assert_eq!(fixture.read(&scratch, &launched), 2);
            drop(scratch);
            fixture.destroy_raw(exec);
            drop(captures);
            fixture.end_foreign(launched);
            fixture.end_foreign(captured);
        });
    }

    /// A stream that does not capture is served as always between the announcement and the end.
    #[serial_test::serial]
    fn streams_that_run_are_not_concerned(driver: &Driver) {
        each_fixture(driver, |fixture| {
            let before = fixture.in_use_bytes();
            let captures = ForeignCaptures::expect(&fixture.device);
            assert!(!captures.add(&fixture.stream).unwrap());
            let block = fixture.alloc();
            fixture.fill(&block, 1, &fixture.stream);
            drop(block);
            assert_eq!(fixture.in_use_bytes(), before);
            captures.end().unwrap();
            captures.end().unwrap();
            drop(captures);
            fixture.device.synchronize().unwrap();
            let retired = fixture.foreign();
            let gone = retired.clone();
            fixture.end_foreign(retired);
            let captures = ForeignCaptures::expect(&fixture.device);
            assert!(matches!(captures.add(&gone), Err(PoolError::Device(DeviceError::Stream(StreamError::Retired)))));
        });
    }

    /// Captures of one value share what they have dropped: the second one, and those after it, need no more memory. What the program
    /// holds stays as it is.
    #[serial_test::serial]
    fn later_captures_use_the_memory_of_earlier_ones(driver: &Driver) {
        each_fixture(driver, |fixture| {
            let before = fixture.in_use_bytes();
            let captured = fixture.foreign();
            let captures = ForeignCaptures::expect(&fixture.device);
            let capture = |value| {
                fixture.begin_raw(&captured);
                assert!(captures.add(&captured).unwrap());
                let scratch = fixture.pool.alloc(SIZE_BYTES, &captured).unwrap();
                let result = fixture.pool.alloc(SIZE_BYTES, &captured).unwrap();
                let address = scratch.address();
                fixture.fill(&scratch, value, &captured);
                fixture.copy(&scratch, &result, &captured);
                drop(scratch);
                let exec = fixture.end_raw(&captured);
                captures.end().unwrap();
                (exec, result, address)
            };
            let (first, first_result, first_scratch) = capture(1);
            captures.expect_more();
            captures.expect_more();
            let (second, second_result, second_scratch) = capture(2);
            assert_eq!(first_scratch, second_scratch);
            assert_eq!(fixture.in_use_bytes(), before + 3 * SIZE_BYTES);
            let first_address = first_result.address();
            for _ in 0..2 {
                fixture.launch_raw(first, &captured);
                fixture.launch_raw(second, &captured);
                assert_eq!(fixture.read(&first_result, &captured), 1);
                assert_eq!(fixture.read(&second_result, &captured), 2);
            }
            // A result that was dropped after its capture serves the next one too.
            drop(first_result);
            captures.expect_more();
            let (third, third_result, third_scratch) = capture(3);
            assert!([third_scratch, third_result.address()].contains(&first_address));
            assert_eq!(fixture.in_use_bytes(), before + 3 * SIZE_BYTES);
            for exec in [first, second, third] {
                fixture.launch_raw(exec, &captured);
            }
            assert_eq!(fixture.read(&second_result, &captured), 2);
            assert_eq!(fixture.read(&third_result, &captured), 3);
            drop((second_result, third_result));
            [first, second, third].into_iter().for_each(|exec| fixture.destroy_raw(exec));
            drop(captures);
            assert_eq!(fixture.in_use_bytes(), before);
            fixture.end_foreign(captured);
        });
    }

    /// Captures of two values share nothing, and neither do captures whose graphs use each other's memory.
    #[serial_test::serial]
    fn captures_of_two_values_share_nothing(driver: &Driver) {
        each_fixture(driver, |fixture| {
            let before = fixture.in_use_bytes();
            let captured = fixture.foreign();
            let capture = |captures: &ForeignCaptures, used: Option<&Block>| {
                fixture.begin_raw(&captured);
                captures.add(&captured).unwrap();
                let result = fixture.pool.alloc(SIZE_BYTES, &captured).unwrap();
                fixture.fill(&result, 1, &captured);
                if let Some(used) = used {
                    used.record_use(&captured);
                    fixture.copy(used, &result, &captured);
                }
                let exec = fixture.end_raw(&captured);
                captures.end().unwrap();
                (exec, result)
            };
            let (ours, others) =
                (ForeignCaptures::expect(&fixture.device), ForeignCaptures::expect(&fixture.device));
            let (first, first_result) = capture(&ours, None);
            let (second, second_result) = capture(&others, Some(&first_result));
            let address = first_result.address();
            drop(first_result);
            ours.expect_more();
            let (third, third_result) = capture(&ours, None);
            assert_ne!(third_result.address(), address, "the second graph reads it");
            fixture.launch_raw(first, &captured);
            fixture.launch_raw(third, &captured);
            fixture.launch_raw(second, &captured);
            assert_eq!(fixture.read(&second_result, &captured), 1);
            drop((second_result, third_result));
            [first, second, third].into_iter().for_each(|exec| fixture.destroy_raw(exec));
            drop((ours, others));
            assert_eq!(fixture.in_use_bytes(), before);
            fixture.end_foreign(captured);
        });
    }

    /// Two values add one capture, as PyTorch does for a pool within a pool: each keeps its memory. The inner one ends while the capture
    /// goes on, and is dropped first.
    #[serial_test::serial]
    fn a_capture_of_two_values_belongs_to_both(driver: &Driver) {
        each_fixture(driver, |fixture| {
            let before = fixture.in_use_bytes();
            let (captured, outside) = (fixture.foreign(), fixture.alloc());
            fixture.fill(&outside, 3, &fixture.stream);
            let outer = ForeignCaptures::expect(&fixture.device);
            fixture.begin_raw(&captured);
            let inner = ForeignCaptures::expect(&fixture.device);
            assert!(inner.add(&captured).unwrap());
            // Deferred, because the capture cannot wait for it.
            captured.wait_for(&fixture.stream).unwrap();
            outside.record_use(&captured);
            let scratch = fixture.pool.alloc(SIZE_BYTES, &captured).unwrap();
            fixture.fill(&scratch, 7, &captured);
            drop(scratch);
            inner.end().unwrap();
            assert!(outer.add(&captured).unwrap());
            let result = fixture.pool.alloc(SIZE_BYTES, &captured).unwrap();
            fixture.copy(&outside, &result, &captured);
            drop(outside);
            let exec = fixture.end_raw(&captured);
            outer.end().unwrap();
            drop(inner);
            let others: Vec<_> = (0..3).map(|_| fixture.alloc()).collect();
            others.iter().for_each(|other| fixture.fill(other, 1, &fixture.stream));
            fixture.stream.synchronize().unwrap();
            fixture.launch_raw(exec, &captured);
            assert_eq!(fixture.read(&result, &captured), 3);
            assert!(others.iter().all(|other| fixture.read(other, &fixture.stream) == 1));
            drop((others, result));
            fixture.destroy_raw(exec);
            drop(outer);
            assert_eq!(fixture.in_use_bytes(), before);
            fixture.end_foreign(captured);
        });
    }

    /// Of a capture that two values have added, the memory serves later captures of the first of them only.
    #[serial_test::serial]
    fn a_shared_capture_joins_no_groups(driver: &Driver) {
        each_fixture(driver, |fixture| {
            let before = fixture.in_use_bytes();
            let captured = fixture.foreign();
            let capture = |values: &[&ForeignCaptures]| {
                values.iter().for_each(|value| value.expect_more());
                fixture.begin_raw(&captured);
                assert!(values.iter().all(|value| value.add(&captured).unwrap()));
                let scratch = fixture.pool.alloc(SIZE_BYTES, &captured).unwrap();
                fixture.fill(&scratch, 1, &captured);
                let address = scratch.address();
                drop(scratch);
                fixture.destroy_raw(fixture.end_raw(&captured));
                values.iter().for_each(|value| value.end().unwrap());
                address
            };
            let (first, second) =
                (ForeignCaptures::expect(&fixture.device), ForeignCaptures::expect(&fixture.device));
            let shared = capture(&[&first, &second]);
            assert_ne!(capture(&[&second]), shared);
            assert_eq!(capture(&[&first]), shared);
            drop((first, second));
            assert_eq!(fixture.in_use_bytes(), before);
            fixture.end_foreign(captured);
        });
    }

    /// An end that comes too early changes nothing: the capture can be added again, and a later call ends it.
    #[serial_test::serial]
    fn a_capture_that_goes_on_has_not_ended(driver: &Driver) {
        each_fixture(driver, |fixture| {
            let before = fixture.in_use_bytes();
            let (captured, outside) = (fixture.foreign(), fixture.alloc());
            fixture.fill(&outside, 3, &fixture.stream);
            fixture.stream.synchronize().unwrap();
            let captures = ForeignCaptures::expect(&fixture.device);
            fixture.begin_raw(&captured);
            assert!(captures.add(&captured).unwrap());
            outside.record_use(&captured);
            let result = fixture.pool.alloc(SIZE_BYTES, &captured).unwrap();
            fixture.copy(&outside, &result, &captured);
            drop(outside);
            captures.end().unwrap();
            captures.expect_more();
            assert!(captures.add(&captured).unwrap());
            drop(fixture.pool.alloc(SIZE_BYTES, &captured).unwrap());
            captures.end().unwrap();
            let exec = fixture.end_raw(&captured);
            captures.end().unwrap();
            let other = fixture.alloc();
            fixture.fill(&other, 1, &fixture.stream);
            fixture.stream.synchronize().unwrap();
            fixture.launch_raw(exec, &captured);
            assert_eq!(fixture.read(&result, &captured), 3);
            drop((result, other));
            fixture.destroy_raw(exec);
            drop(captures);
            assert_eq!(fixture.in_use_bytes(), before);
            // Captures are not looked for any more.
            let alone = Capture::begin(&fixture.stream, CaptureMode::Global).unwrap();
            drop(alone);
            fixture.end_foreign(captured);
        });
    }

    /// The program reads a result on the captured stream and drops it. A later capture gets its memory, and its graph runs on another
    /// stream, behind the first graph and not behind that read.
    #[serial_test::serial]
    fn a_later_graph_does_not_overtake_the_uses_of_its_memory(driver: &Driver) {
        each_fixture(driver, |fixture| {
            let before = fixture.in_use_bytes();
            let (captured, launched) = (fixture.foreign(), fixture.foreign());
            let captures = ForeignCaptures::expect(&fixture.device);
            let capture = |value| {
                captures.expect_more();
                fixture.begin_raw(&captured);
                assert!(captures.add(&captured).unwrap());
                let result = fixture.pool.alloc(SIZE_BYTES, &captured).unwrap();
                fixture.fill(&result, value, &captured);
                let exec = fixture.end_raw(&captured);
                captures.end().unwrap();
                (exec, result)
            };
            let (first, result) = capture(1);
            let copy = fixture.pool.alloc(SIZE_BYTES, &captured).unwrap();
            fixture.launch_raw(first, &captured);
            fixture.join_raw(&captured, launched.raw());
            fixture.copy(&result, &copy, &captured);
            let address = result.address();
            drop(result);
            let (second, result) = capture(2);
            assert_eq!(result.address(), address);
            fixture.launch_raw(second, &launched);
            assert_eq!(fixture.read(&copy, &captured), 1);
            assert_eq!(fixture.read(&result, &launched), 2);
            drop((copy, result));
            [first, second].into_iter().for_each(|exec| fixture.destroy_raw(exec));
            drop(captures);
            assert_eq!(fixture.in_use_bytes(), before);
            fixture.end_foreign(captured);
            fixture.end_foreign(launched);
        });
    }

    /// The driver does not state the id of a stream that captures. A long-lived stream is recognised all the same: one that the pool knows,
    /// and one that it sees for the first time in the capture.
    #[serial_test::serial]
    fn long_lived_streams_are_recognised_while_they_capture(driver: &Driver) {
        each_fixture(driver, |fixture| {
            let wrap = |stream: &Stream| {
                // SAFETY: the stream lives until `end_raw_stream`, after it was retired.
                unsafe { Stream::from_raw_long_lived(&fixture.device, stream.raw()).unwrap() }
            };
            let (known, unknown) = (fixture.foreign(), fixture.raw_stream());
            let before = wrap(&known);
            let captures = ForeignCaptures::expect(&fixture.device);
            fixture.begin_raw(&known);
            assert!(captures.add(&known).unwrap());
            assert_eq!(wrap(&known).id(), before.id());
            fixture.join_raw(&known, unknown);
            // SAFETY: as in `wrap`.
            let joined = unsafe { Stream::from_raw_long_lived(&fixture.device, unknown).unwrap() };
            assert!(captures.add(&joined).unwrap());
            let scratch = fixture.pool.alloc(SIZE_BYTES, &joined).unwrap();
            fixture.fill(&scratch, 5, &joined);
            assert_eq!(wrap(&joined).id(), joined.id());
            fixture.join_raw(&joined, known.raw());
            let exec = fixture.end_raw(&known);
            captures.end().unwrap();
            assert_eq!(wrap(&joined).id(), joined.id(), "recognised by its id from now on");
            fixture.launch_raw(exec, &known);
            assert_eq!(fixture.read(&scratch, &known), 5);
            drop(scratch);
            fixture.destroy_raw(exec);
            drop(captures);
            joined.retire().unwrap();
            let again = wrap(&joined);
            assert_ne!(again.id(), joined.id(), "a retired stream is not recognised");
            again.retire().unwrap();
            fixture.end_raw_stream(unknown);
            fixture.end_foreign(known);
        });
    }

    /// A stream whose capture was not announced is refused before the driver is asked what breaks the capture.
    #[serial_test::serial]
    fn a_capture_that_was_not_announced_goes_on(driver: &Driver) {
        each_fixture(driver, |fixture| {
            let known = fixture.foreign();
            let raw = known.raw();
            let default = Stream::per_thread(&fixture.device).unwrap();
            fixture.begin_raw(&known);
            // SAFETY: the stream lives until `end_foreign`, after it was retired.
            let (borrowed, long_lived) = unsafe {
                (Stream::from_raw(&fixture.device, raw), Stream::from_raw_long_lived(&fixture.device, raw))
            };
            for refused in [borrowed, long_lived] {
                let error = refused.unwrap_err();
                assert!(matches!(error, DeviceError::Capture(CaptureError::Unannounced)), "{error}");
            }
            fixture.destroy_raw(fixture.end_raw(&known));
            fixture.begin_raw(&default);
            let refused = Stream::per_thread(&fixture.device);
            assert!(matches!(refused, Err(DeviceError::Capture(CaptureError::Unannounced))), "{refused:?}");
            fixture.destroy_raw(fixture.end_raw(&default));
            // SAFETY: the stream is alive until `end_foreign`, and the wrap is dropped before.
            let wrapped = unsafe { Stream::from_raw(&fixture.device, raw).unwrap() };
            fixture.fill(&fixture.pool.alloc(SIZE_BYTES, &wrapped).unwrap(), 5, &wrapped);
            drop(wrapped);
            fixture.end_foreign(known);
        });
    }
}

//! The clocks on the simulator: what each ordering or observing call makes visible.

use super::*;
use crate::device::{Device, Event, Stream};
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use gpumem_sim::{Schedule, SimConfig};
use gpumem_sys::DriverError;
use gpumem_sys::types::{CUstream, CUstreamCaptureMode, CUstreamCaptureStatus};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// A machine on which queued work runs only in waits, unless a test sets a pace.
struct Bench {
    device: Device,
    a: Stream,
    b: Stream,
    /// Scratch memory for work.
    address: u64,
}

impl Bench {
    fn new() -> Self {
        Self::with(SimConfig::new())
    }

    fn with(config: SimConfig) -> Self {
        let device = Device::new(&gpumem_sim::driver(config).unwrap(), 0).unwrap();
        let (a, b) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
        let mut address = 0;
        let bound = device.bind().unwrap();
        // SAFETY: `address` outlives the call.
        unsafe { device.driver().cuMemAlloc_v2(&mut address, 4096).unwrap() };
        drop(bound);
        Self { device, a, b, address }
    }

    fn clocks(&self) -> &Clocks {
        self.device.clocks()
    }

    /// Queues work, so that the stream is not idle, and stamps it.
    fn work(&self, stream: &Stream) -> Stamp {
        let _bound = self.device.bind().unwrap();
        // SAFETY: the memory is alive. Each test uses it on one stream at a time, or ignores its contents.
        unsafe { self.device.driver().cuMemsetD8Async(self.address, 0, 64, stream.raw()).unwrap() };
        self.clocks().stamp(stream.stream_index())
    }

    /// Blocks work queued on the stream from now on until [`Bench::let_go`].
    fn hold_up(&self, stream: &Stream) {
        let (driver, _bound) = (self.device.driver(), self.device.bind().unwrap());
        // SAFETY: the memory is alive, and nothing else works on this part of it.
        unsafe {
            driver.cuMemsetD32_v2(self.address + 1024, 0, 1).unwrap();
            driver.cuStreamWaitValue32_v2(stream.raw(), self.address + 1024, 1, 0).unwrap();
        }
    }

    fn let_go(&self) {
        let (driver, _bound) = (self.device.driver(), self.device.bind().unwrap());
        // SAFETY: the memory is alive, and only streams that `hold_up` has stopped wait for this part of it.
        unsafe { driver.cuStreamWriteValue32_v2(self.b.raw(), self.address + 1024, 1, 0).unwrap() };
        self.b.synchronize().unwrap();
    }

    fn begin_capture(&self, stream: &Stream) {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        self.clocks().begin_capture(stream.stream_index(), mode).unwrap();
    }

    /// Ends an intact capture.
    fn end_capture(&self, stream: &Stream) {
        let _bound = self.device.bind().unwrap();
        let (mut graph, mut status) = (core::ptr::null_mut(), CUstreamCaptureStatus(0));
        // SAFETY: the targets outlive the calls; the graph is destroyed once.
        unsafe {
            self.device.driver().cuStreamIsCapturing(stream.raw(), &mut status).unwrap();
            assert_eq!(status, CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE);
            self.device.driver().cuStreamEndCapture(stream.raw(), &mut graph).unwrap();
            self.device.driver().cuGraphDestroy(graph).unwrap();
        }
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

#[test]
fn a_stamp_is_ordered_on_its_own_stream_alone() {
    let fixture = Bench::new();
    let stamp = fixture.work(&fixture.a);
    assert!(fixture.clocks().is_ordered(stamp, fixture.a.stream_index()));
    assert!(
        !fixture.clocks().is_ordered(stamp, fixture.b.stream_index()) && !fixture.clocks().is_complete(stamp)
    );
}

#[test]
fn waiting_for_a_stream_orders_what_was_stamped_before() {
    let fixture = Bench::new();
    let before = fixture.work(&fixture.a);
    fixture.b.wait_for(&fixture.a).unwrap();
    let after = fixture.work(&fixture.a);
    assert!(fixture.clocks().is_ordered(before, fixture.b.stream_index()));
    assert!(
        !fixture.clocks().is_ordered(after, fixture.b.stream_index())
            && !fixture.clocks().is_complete(before)
    );
}

#[test]
fn an_event_orders_what_was_stamped_before_its_record_and_goes_on_through_others() {
    let fixture = Bench::new();
    let third = Stream::new(&fixture.device).unwrap();
    let (event, next) = (Event::new(&fixture.device).unwrap(), Event::new(&fixture.device).unwrap());
    let stamp = fixture.work(&fixture.a);
    event.record(&fixture.a).unwrap();
    let late = fixture.work(&fixture.a);
    next.record(&fixture.b).unwrap();
    fixture.b.wait(&event).unwrap();
    third.wait(&next).unwrap();
    assert!(!fixture.clocks().is_ordered(stamp, third.stream_index()), "recorded before the wait");
    next.record(&fixture.b).unwrap();
    third.wait(&next).unwrap();
    assert!(
        fixture.clocks().is_ordered(stamp, third.stream_index())
            && !fixture.clocks().is_ordered(late, third.stream_index())
    );
    next.synchronize().unwrap();
    assert!(fixture.clocks().is_complete(stamp) && !fixture.clocks().is_complete(late));
}

#[test]
fn every_wait_of_the_host_completes_what_was_stamped_before() {
    let waits: [fn(&Bench); 3] = [
        |fixture| fixture.a.synchronize().unwrap(),
        |fixture| fixture.device.synchronize().unwrap(),
        |fixture| while !fixture.a.is_complete().unwrap() {},
    ];
    for wait in waits {
        let fixture = Bench::new();
        let other = fixture.work(&fixture.b);
        fixture.a.wait_for(&fixture.b).unwrap();
        let stamp = fixture.work(&fixture.a);
        wait(&fixture);
        assert!(fixture.clocks().is_complete(stamp) && fixture.clocks().is_complete(other));
        assert!(!fixture.clocks().is_complete(fixture.work(&fixture.a)));
    }
}

#[test]
fn a_tick_lets_a_poll_see() {
    let fixture = Bench::new();
    let stamp = fixture.work(&fixture.a);
    while fixture.clocks().poll(Duration::from_millis(1)).unwrap() {}
    assert!(!fixture.clocks().is_complete(stamp), "nothing marks it");
    assert!(fixture.clocks().record_marker(fixture.a.stream_index()).unwrap());
    let late = fixture.work(&fixture.a);
    assert!(!fixture.clocks().poll(Duration::ZERO).unwrap(), "no time, no question");
    while !fixture.clocks().is_complete(stamp) {
        fixture.clocks().poll(Duration::from_millis(1)).unwrap();
    }
    assert!(!fixture.clocks().is_complete(late));
}

/// Repeated polls of a few streams together reach all streams.
#[test]
fn polls_of_one_stream_reach_each() {
    let fixture = Bench::new();
    let stamps = [&fixture.a, &fixture.b].map(|stream| {
        let stamp = fixture.work(stream);
        assert!(fixture.clocks().record_marker(stream.stream_index()).unwrap());
        stamp
    });
    // Without the clocks.
    let _bound = fixture.device.bind().unwrap();
    // SAFETY: the context is current.
    unsafe { fixture.device.driver().cuCtxSynchronize().unwrap() };
    let index_count = fixture.clocks().index_count.load(Ordering::Acquire);
    for _ in 0..index_count {
        fixture.clocks().poll_next(1).unwrap();
    }
    assert!(stamps.iter().all(|stamp| fixture.clocks().is_complete(*stamp)));
}

/// A single poll that finds several complete markers reports progress.
#[test]
fn a_poll_says_that_it_has_seen_something() {
    let fixture = Bench::new();
    let stamps = [(); 2].map(|()| {
        let stamp = fixture.work(&fixture.a);
        assert!(fixture.clocks().record_marker(fixture.a.stream_index()).unwrap());
        stamp
    });
    // Without the clocks.
    let _bound = fixture.device.bind().unwrap();
    // SAFETY: the stream is alive.
    unsafe { fixture.device.driver().cuStreamSynchronize(fixture.a.raw()).unwrap() };
    assert!(stamps.iter().all(|stamp| !fixture.clocks().is_complete(*stamp)));
    assert!(fixture.clocks().poll(Duration::MAX).unwrap());
    assert!(stamps.iter().all(|stamp| fixture.clocks().is_complete(*stamp)));
    assert!(!fixture.clocks().poll(Duration::MAX).unwrap());
}

/// The events of complete markers are reused: a stream needs few, however often it is marked.
#[test]
fn marks_that_have_been_passed_leave_their_events() {
    type Create = unsafe extern "C" fn(*mut gpumem_sys::types::CUevent, u32) -> gpumem_sys::types::CUresult;
    static CREATE: Mutex<(Option<Create>, u32)> = Mutex::new((None, 0));
    extern "C" fn create(event: *mut gpumem_sys::types::CUevent, flags: u32) -> gpumem_sys::types::CUresult {
        let mut create = CREATE.lock().unwrap();
        create.1 += 1;
        let real = create.0.unwrap();
        // SAFETY: the arguments are the caller's.
        unsafe { real(event, flags) }
    }
    let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
    // SAFETY: it calls the function that it replaces.
    let driver =
        unsafe { driver.with_table(|table| CREATE.lock().unwrap().0 = table.cuEventCreate.replace(create)) };
    let device = Device::new(&driver, 0).unwrap();
    let stream = Stream::new(&device).unwrap();
    for _ in 0..20 {
        assert!(device.clocks().record_marker(stream.stream_index()).unwrap());
        let _bound = device.bind().unwrap();
        // SAFETY: the stream is alive.
        unsafe { device.driver().cuStreamSynchronize(stream.raw()).unwrap() };
        assert!(device.clocks().poll(Duration::MAX).unwrap());
    }
    let created = CREATE.lock().unwrap().1;
    assert!((1..=3).contains(&created), "{created}");
}

/// Markers are thinned out; each stamp is still covered by a remaining one.
#[test]
fn more_marks_than_are_kept_lose_nothing() {
    let fixture = Bench::new();
    let mut stamps = Vec::new();
    for _ in 0..100 {
        stamps.push(fixture.work(&fixture.a));
        assert!(fixture.clocks().record_marker(fixture.a.stream_index()).unwrap());
    }
    let epoch = fixture.clocks().stamp(fixture.a.stream_index());
    assert!(fixture.clocks().insert_wait(stamps[50], fixture.b.stream_index()).unwrap());
    assert_eq!(epoch, fixture.clocks().stamp(fixture.a.stream_index()), "a mark that is there is enough");
    assert!(fixture.clocks().is_ordered(stamps[50], fixture.b.stream_index()));
    assert!(!fixture.clocks().is_ordered(stamps[90], fixture.b.stream_index()), "and no more than needed");
    assert!(fixture.clocks().wait_on_host(&stamps, soon()).unwrap());
    assert!(stamps.iter().all(|stamp| fixture.clocks().is_complete(*stamp)));
}

#[test]
fn a_wait_of_the_host_makes_the_marks_that_it_needs_and_ends_in_time() {
    let fixture = Bench::new();
    let stamps = [fixture.work(&fixture.a), fixture.work(&fixture.b), Stamp::COMPLETE];
    assert!(fixture.clocks().wait_on_host(&stamps, soon()).unwrap());
    fixture.hold_up(&fixture.a);
    let stamp = fixture.work(&fixture.a);
    let deadline = Instant::now() + Duration::from_millis(5);
    assert!(!fixture.clocks().wait_on_host(&[stamp], deadline).unwrap());
    assert!(!fixture.clocks().is_complete(stamp));
    fixture.let_go();
    assert!(fixture.clocks().wait_on_host(&[stamp], soon()).unwrap());
}

#[test]
fn a_stream_that_is_gone_leaves_a_mark_and_then_its_slot() {
    let fixture = Bench::new();
    let other = fixture.work(&fixture.b);
    fixture.a.wait_for(&fixture.b).unwrap();
    let Bench { device, a, b, .. } = fixture;
    let (gone, clocks) = (a.id(), device.clocks());
    let stamp = clocks.stamp(a.stream_index());
    drop(a);
    assert_eq!(clocks.stamp_of(gone), stamp, "frees that come later are covered too");
    assert!(!clocks.record_marker(gone.stream_index()).unwrap());
    assert!(
        clocks.insert_wait(stamp, b.stream_index()).unwrap() && clocks.is_ordered(stamp, b.stream_index())
    );
    assert!(clocks.wait_on_host(&[stamp], soon()).unwrap());
    assert!(clocks.is_complete(other), "the mark covers what the stream had waited for");
    let next = Stream::new(&device).unwrap();
    assert_eq!(next.stream_index(), gone.stream_index());
    assert_ne!(next.id(), gone);
    assert_eq!(clocks.stamp_of(gone), Stamp::COMPLETE);
    assert!(!clocks.is_complete(clocks.stamp(next.stream_index())) && clocks.is_complete(stamp));
}

#[test]
fn a_slot_with_work_left_is_not_given_away() {
    let fixture = Bench::new();
    let mut used = vec![fixture.a.stream_index(), fixture.b.stream_index()];
    for _ in 0..50 {
        let stream = Stream::new(&fixture.device).unwrap();
        assert!(
            !used.contains(&stream.stream_index())
                || fixture.clocks().is_complete(Stamp::new(stream.stream_index(), 1))
        );
        let stamp = fixture.work(&stream);
        used.push(stream.stream_index());
        drop(stream);
        let next = Stream::new(&fixture.device).unwrap();
        assert!(next.stream_index() != stamp.stream_index() || fixture.clocks().is_complete(stamp));
    }
    assert!(fixture.clocks().used_indices().count() < 20, "indices are used again");
}

/// The index of a complete stream is reused, however many other streams are incomplete.
#[test]
fn streams_that_come_and_go_beside_unfinished_ones_take_no_more_slots() {
    let fixture = Bench::with(SimConfig::new().schedule(Schedule::Early));
    fixture.hold_up(&fixture.a);
    for _ in 0..6 {
        Stream::new(&fixture.device).unwrap().wait_for(&fixture.a).unwrap();
    }
    for _ in 0..50 {
        drop(Stream::new(&fixture.device).unwrap());
    }
    let index_count = fixture.clocks().used_indices().count();
    fixture.let_go();
    assert!(index_count <= 9, "{index_count} for two streams that live, six unfinished and one at a time");
}

#[test]
fn a_wait_for_a_stream_that_has_been_retired_is_no_wait() {
    let fixture = Bench::new();
    let other = Stream::legacy(&fixture.device).unwrap();
    fixture.a.queue_wait_for(&other).unwrap();
    other.retire().unwrap();
    // As if another thread had just retired it.
    assert!(matches!(
        fixture.a.queue_wait_for(&other),
        Err(crate::error::DeviceError::Stream(crate::error::StreamError::Retired))
    ));
}

#[test]
fn a_failed_wait_raises_nothing() {
    extern "C" fn refuse(
        _: CUstream,
        _: gpumem_sys::types::CUevent,
        _: core::ffi::c_uint,
    ) -> gpumem_sys::types::CUresult {
        gpumem_sys::types::CUresult::CUDA_ERROR_INVALID_HANDLE
    }
    let driver = gpumem_sim::driver(SimConfig::new()).unwrap();
    // SAFETY: refusing without doing anything is what the driver may do.
    let driver = unsafe { driver.with_table(|table| table.cuStreamWaitEvent = Some(refuse)) };
    let device = Device::new(&driver, 0).unwrap();
    let (a, b) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
    let stamp = device.clocks().stamp(a.stream_index());
    assert!(b.wait_for(&a).is_err());
    assert!(matches!(device.clocks().insert_wait(stamp, b.stream_index()), Err(DriverError::Failed { .. })));
    assert!(!device.clocks().is_ordered(stamp, b.stream_index()));
}

/// A capturing stream is not marked, and polling other streams does not break the capture.
#[test]
fn a_capture_is_neither_broken_nor_believed() {
    let fixture = Bench::new();
    let outside = fixture.work(&fixture.b);
    assert!(fixture.clocks().record_marker(fixture.b.stream_index()).unwrap());
    let event = Event::new(&fixture.device).unwrap();
    let before = fixture.work(&fixture.a);
    fixture.begin_capture(&fixture.a);
    let captured = fixture.work(&fixture.a);
    assert!(!fixture.clocks().order_request(captured, fixture.b.id()).unwrap());
    assert!(fixture.clocks().order_request(before, fixture.b.id()).unwrap());
    assert!(fixture.clocks().wait_on_host(&[before], soon()).unwrap());
    assert!(!fixture.clocks().record_marker(fixture.a.stream_index()).unwrap());
    assert!(!fixture.clocks().insert_wait(captured, fixture.b.stream_index()).unwrap());
    assert!(!fixture.clocks().insert_wait(outside, fixture.a.stream_index()).unwrap());
    assert!(!fixture.clocks().wait_on_host(&[captured], soon()).unwrap());
    while !fixture.clocks().is_complete(outside) {
        fixture.clocks().poll(Duration::from_millis(1)).unwrap();
    }
    event.record(&fixture.a).unwrap();
    let [fork, other_fork] = [(); 2].map(|()| Stream::new(&fixture.device).unwrap());
    let before = [&fork, &other_fork].map(|stream| fixture.work(stream));
    fork.wait(&event).unwrap();
    other_fork.wait_for(&fork).unwrap();
    assert!(fixture.clocks().order_request(before[0], fixture.b.id()).unwrap());
    assert!(fixture.clocks().wait_on_host(&before, soon()).unwrap());
    fork.wait_for(&other_fork).unwrap();
    fixture.a.wait_for(&fork).unwrap();
    assert!(
        !fixture.clocks().is_ordered(captured, fork.stream_index())
            && !fixture.clocks().is_complete(captured)
    );
    fixture.end_capture(&fixture.a);
    assert!(fixture.clocks().record_marker(fixture.a.stream_index()).unwrap());
}

#[test]
fn what_a_device_leaves_pending_goes_on_or_is_waited_for() {
    let driver = gpumem_sim::driver(SimConfig::new().devices(2)).unwrap();
    let (first, second) = (Device::new(&driver, 0).unwrap(), Device::new(&driver, 1).unwrap());
    for ending in [Device::new(&driver, 0).unwrap(), second] {
        let stream = Stream::new(&ending).unwrap();
        let stamp = first.clocks().stamp(stream.stream_index());
        drop(stream);
        drop(ending);
        assert!(first.clocks().wait_on_host(&[stamp], soon()).unwrap());
    }
}

/// Pending work on a dropped device counts as complete only if the wait for it has succeeded.
#[test]
fn a_device_that_could_not_be_waited_for_leaves_nothing_complete() {
    use gpumem_sim::{Effect, Rule};
    let refuse = Effect::Fail(gpumem_sys::types::CUresult::CUDA_ERROR_UNKNOWN);
    let config = SimConfig::new().devices(2).rule(Rule::new("cuCtxSynchronize", refuse));
    let driver = gpumem_sim::driver(config).unwrap();
    let (first, ending) = (Device::new(&driver, 0).unwrap(), Device::new(&driver, 1).unwrap());
    let stream = Stream::new(&ending).unwrap();
    let stamp = first.clocks().stamp(stream.stream_index());
    drop((stream, ending));
    assert!(!first.clocks().is_complete(stamp));
}

/// Markers from other threads, in short-lived streams.
#[test]
fn streams_end_while_others_tick_and_poll_and_wait() {
    let fixture = Bench::new();
    std::thread::scope(|scope| {
        // Dropped with this scope, even by a panic: the threads run as long.
        let running = Arc::new(());
        for _ in 0..3 {
            let (fixture, running) = (&fixture, Arc::downgrade(&running));
            scope.spawn(move || {
                let own = Stream::new(&fixture.device).unwrap();
                while running.strong_count() > 0 {
                    for index in fixture.clocks().used_indices().filter(|index| *index != own.stream_index())
                    {
                        fixture.clocks().record_marker(index).unwrap();
                        let stamp = fixture.clocks().stamp(index);
                        fixture.clocks().insert_wait(stamp, own.stream_index()).unwrap();
                        fixture.clocks().poll(Duration::from_micros(10)).unwrap();
                    }
                }
            });
        }
        for _ in 0..200 {
            let stream = Stream::new(&fixture.device).unwrap();
            let stamp = fixture.clocks().stamp(stream.stream_index());
            assert!(
                !fixture.clocks().is_complete(stamp) || fixture.clocks().stamp(stream.stream_index()) > stamp
            );
        }
    });
    assert_eq!(fixture.clocks().active_streams(), 2);
}

/// Only calls naming another library's stream mark it; without a last marker its index waits for the device.
#[test]
fn a_stream_of_somebody_elses_is_left_alone() {
    let fixture = Bench::new();
    let (device, clocks, mut raw) = (&fixture.device, fixture.clocks(), core::ptr::null_mut());
    let _bound = device.bind().unwrap();
    // SAFETY: `raw` outlives the call.
    unsafe { device.driver().cuStreamCreate(&mut raw, 1).unwrap() };
    // SAFETY: the stream is alive until the end of this test.
    let wrap = || unsafe { Stream::from_raw(device, raw).unwrap() };
    let foreign = wrap();
    let stamp = fixture.work(&foreign);
    assert!(!clocks.record_marker(foreign.stream_index()).unwrap());
    assert!(!clocks.insert_wait(stamp, fixture.b.stream_index()).unwrap());
    assert!(!clocks.wait_on_host(&[stamp], soon()).unwrap());
    assert!(clocks.record_marker_by_user(foreign.stream_index()).unwrap());
    assert!(clocks.wait_on_host(&[stamp], soon()).unwrap() && clocks.is_complete(stamp));

    let (id, stamp) = (foreign.id(), fixture.work(&foreign));
    drop(foreign);
    assert!(!clocks.wait_on_host(&[stamp], soon()).unwrap(), "nobody may mark it");
    let foreign = wrap();
    assert_eq!((foreign.id(), clocks.is_complete(stamp)), (id, false));
    drop(foreign);
    device.synchronize().unwrap();
    assert!(clocks.is_complete(stamp));
    let foreign = wrap();
    assert!(foreign.id() == id && !clocks.is_complete(fixture.work(&foreign)), "what comes now was not seen");

    let stamp = fixture.work(&foreign);
    foreign.retire().unwrap();
    assert!(clocks.wait_on_host(&[stamp], soon()).unwrap(), "the last mark");
    let again = wrap();
    assert_ne!(again.id(), id, "the handle is the same, the stream may not be");
    assert_eq!(clocks.active_streams(), 3);
    // SAFETY: no later call names it.
    unsafe { device.driver().cuStreamDestroy_v2(raw).unwrap() };
}

/// A stream of another library, destroyed at the end of each test.
struct Foreign<'a>(&'a Bench, CUstream);

impl<'a> Foreign<'a> {
    fn new(fixture: &'a Bench) -> Self {
        let (_bound, mut raw) = (fixture.device.bind().unwrap(), core::ptr::null_mut());
        // SAFETY: `raw` outlives the call.
        unsafe { fixture.device.driver().cuStreamCreate(&mut raw, 1).unwrap() };
        Self(fixture, raw)
    }

    fn wrap(&self) -> Stream {
        // SAFETY: the stream is alive for as long as this.
        unsafe { Stream::from_raw(&self.0.device, self.1).unwrap() }
    }

    fn wrap_long_lived(&self) -> Stream {
        // SAFETY: each test retires it before it is dropped, or drops the device first.
        unsafe { Stream::from_raw_long_lived(&self.0.device, self.1).unwrap() }
    }

    /// Begins a capture as the stream's owner does, without this crate.
    fn begin_capture(&self) {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        let _bound = self.0.device.bind().unwrap();
        // SAFETY: the stream is alive.
        unsafe { self.0.device.driver().cuStreamBeginCapture_v2(self.1, mode).unwrap() };
    }

    fn end_capture(&self) {
        let (_bound, mut graph) = (self.0.device.bind().unwrap(), core::ptr::null_mut());
        // SAFETY: the targets outlive the calls; the graph is destroyed once.
        unsafe {
            self.0.device.driver().cuStreamEndCapture(self.1, &mut graph).unwrap();
            self.0.device.driver().cuGraphDestroy(graph).unwrap();
        }
    }
}

impl Drop for Foreign<'_> {
    fn drop(&mut self) {
        let _bound = self.0.device.bind().unwrap();
        // SAFETY: nothing names it any more.
        unsafe { self.0.device.driver().cuStreamDestroy_v2(self.1).unwrap() };
    }
}

/// A long-lived stream is marked, waited for and made to wait like an owned one, with and without a clone.
#[test]
fn a_long_lived_stream_of_somebody_elses_is_like_ours() {
    let fixture = Bench::new();
    let (clocks, foreign) = (fixture.clocks(), Foreign::new(&fixture));
    let long = foreign.wrap_long_lived();
    let (id, ours, stamp) = (long.id(), fixture.work(&fixture.a), fixture.work(&long));
    assert!(
        clocks.insert_wait(stamp, fixture.b.stream_index()).unwrap()
            && clocks.is_ordered(stamp, fixture.b.stream_index())
    );
    assert!(
        clocks.insert_wait(ours, long.stream_index()).unwrap()
            && clocks.is_ordered(ours, long.stream_index())
    );
    let stamp = fixture.work(&long);
    assert!(clocks.order_request(fixture.work(&fixture.a), long.id()).unwrap(), "a free of its user's");
    drop(long);
    assert!(
        clocks.record_marker(id.stream_index()).unwrap() && clocks.wait_on_host(&[stamp], soon()).unwrap()
    );
    let [long, plain] = [foreign.wrap_long_lived(), foreign.wrap()];
    assert_eq!((long.id(), plain.id(), clocks.active_streams()), (id, id, 3));
    let stamp = fixture.work(&long);
    drop((long, plain));
    foreign.wrap().retire().unwrap();
    assert!(clocks.wait_on_host(&[stamp], soon()).unwrap(), "the last mark");
    assert_ne!(foreign.wrap().id(), id);
    assert_eq!(clocks.active_streams(), 2);
}

#[test]
fn a_promise_counts_from_when_it_is_made_and_waits_stay_off() {
    let fixture = Bench::new();
    let (clocks, foreign) = (fixture.clocks(), Foreign::new(&fixture));
    let plain = foreign.wrap();
    assert!(!clocks.record_marker(plain.stream_index()).unwrap());
    let long = foreign.wrap_long_lived();
    assert!(long == plain && clocks.record_marker(plain.stream_index()).unwrap());
    let waits = |stamp| clocks.insert_wait(stamp, fixture.b.stream_index()).unwrap();
    assert!(waits(fixture.work(&plain)));
    // SAFETY: the stream is alive for as long as `foreign`, which outlives its wraps' last use.
    let quiet = unsafe { Stream::builder(&fixture.device).no_waits().wrap(foreign.1).unwrap() };
    assert!(quiet == long && !waits(fixture.work(&plain)));
    assert!(!clocks.insert_wait(fixture.work(&fixture.a), long.stream_index()).unwrap());
    drop(foreign.wrap_long_lived());
    assert!(!waits(fixture.work(&plain)), "once asked for, it stays");
    plain.retire().unwrap();
    let other = Foreign::new(&fixture);
    // SAFETY: the stream is alive for as long as `other`, and retired below before that goes.
    let quiet = unsafe { Stream::builder(&fixture.device).no_waits().wrap_long_lived(other.1).unwrap() };
    let stamp = fixture.work(&quiet);
    assert!(!waits(stamp) && clocks.record_marker(quiet.stream_index()).unwrap() && !waits(stamp));
    quiet.retire().unwrap();
}

/// A long-lived stream leaves nothing behind when its device is dropped.
#[test]
fn a_long_lived_stream_goes_with_its_device() {
    let driver = gpumem_sim::driver(SimConfig::new().devices(2)).unwrap();
    let other = Device::new(&driver, 1).unwrap();
    let clocks = Arc::clone(other.clocks());
    let mut indices = std::collections::BTreeSet::new();
    for _ in 0..3 {
        let device = Device::new(&driver, 0).unwrap();
        // SAFETY: the default stream lives as long as the context.
        let long = unsafe { Stream::from_raw_long_lived(&device, core::ptr::null_mut()).unwrap() };
        let (id, stamp) = (long.id(), clocks.stamp(long.stream_index()));
        // SAFETY: the handle is still the default stream's, and its device is open.
        let again = unsafe { Stream::from_raw_long_lived(&device, core::ptr::null_mut()).unwrap() };
        assert_eq!((again.id(), clocks.active_streams()), (id, 1));
        indices.insert(id.stream_index());
        drop((long, again));
        assert_eq!(clocks.active_streams(), 1, "it lives on without a clone");
        drop(device);
        assert_eq!((clocks.active_streams(), clocks.is_complete(stamp)), (0, true));
    }
    assert_eq!(indices.len(), 1, "its index goes to the next");
}

/// A marker that other streams request, and that only calls naming the stream can record, is recorded by the next such
/// call.
#[test]
fn a_mark_that_is_wanted_is_made_by_the_next_call_that_names_the_stream() {
    let fixture = Bench::new();
    let (clocks, foreign) = (fixture.clocks(), Foreign::new(&fixture));
    let stream = foreign.wrap();
    let stamp = fixture.work(&stream);
    stream.note_named();
    assert!(!clocks.wait_on_host(&[stamp], soon()).unwrap(), "nobody has wanted one");
    assert_eq!(stream.fast_path_id(), 0);
    stream.note_named();
    assert_ne!(stream.fast_path_id(), 0);
    assert!(clocks.allows_wait_for(stamp) && clocks.insert_wait(stamp, fixture.b.stream_index()).unwrap());
    let late = fixture.work(&stream);
    assert!(!clocks.allows_wait_for(late) && !clocks.insert_wait(late, fixture.b.stream_index()).unwrap());
    // Such calls also insert the stream's own waits.
    let ours = fixture.work(&fixture.a);
    assert!(
        clocks.insert_wait(ours, stream.stream_index()).unwrap()
            && clocks.is_ordered(ours, stream.stream_index())
    );
    foreign.begin_capture();
    stream.note_named();
    assert_eq!((stream.fast_path_id(), clocks.allows_wait_for(late)), (0, false), "not while it is captured");
    foreign.end_capture();
    stream.retire().unwrap();
    assert_eq!(stream.fast_path_id(), 0);
}

/// The owner of a stream begins a capture without this crate.
#[test]
fn a_capture_of_the_owners_is_neither_broken_nor_believed() {
    let fixture = Bench::new();
    let (clocks, foreign) = (fixture.clocks(), Foreign::new(&fixture));
    let long = foreign.wrap_long_lived();
    let ours = fixture.work(&fixture.a);
    foreign.begin_capture();
    let captured = clocks.stamp(long.stream_index());
    assert!(
        !clocks.record_marker(long.stream_index()).unwrap()
            && !clocks.record_marker_by_user(long.stream_index()).unwrap()
    );
    assert!(!clocks.insert_wait(captured, fixture.b.stream_index()).unwrap());
    assert!(!clocks.insert_wait(ours, long.stream_index()).unwrap());
    assert!(!clocks.wait_on_host(&[captured], soon()).unwrap());
    foreign.end_capture();
    assert!(clocks.record_marker(long.stream_index()).unwrap());
    long.retire().unwrap();
}

/// The driver reports no capture, and a moment later a capture: the event recorded in between marks nothing.
#[test]
fn a_capture_that_begins_while_a_mark_is_made_is_not_believed() {
    static QUERIES: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn late(
        _: CUstream,
        status: *mut CUstreamCaptureStatus,
    ) -> gpumem_sys::types::CUresult {
        let is_first = QUERIES.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
        // SAFETY: the caller's target.
        unsafe { *status = CUstreamCaptureStatus(if is_first { 0 } else { 1 }) };
        gpumem_sys::types::CUresult::CUDA_SUCCESS
    }
    let fixture = Bench::new();
    let foreign = Foreign::new(&fixture);
    // SAFETY: the driver may report this sequence while the stream's owner begins a capture on another thread.
    let driver =
        unsafe { fixture.device.driver().with_table(|table| table.cuStreamIsCapturing = Some(late)) };
    let device = Device::new(&driver, 0).unwrap();
    // SAFETY: the stream is alive until the end of this test.
    let long = unsafe { Stream::from_raw_long_lived(&device, foreign.1).unwrap() };
    let stamp = device.clocks().stamp(long.stream_index());
    assert!(!device.clocks().record_marker(long.stream_index()).unwrap());
    assert!(!device.clocks().insert_wait(stamp, fixture.b.stream_index()).unwrap());
    long.retire().unwrap();
    assert!(!device.clocks().wait_on_host(&[stamp], soon()).unwrap());
}

/// Another thread retires a stream while this one waits for it: the observation does not count for the next stream with
/// its index.
#[test]
fn a_wait_for_a_stream_whose_slot_has_gone_to_another_sees_nothing_of_that() {
    let fixture = Bench::new();
    let gone = Stream::legacy(&fixture.device).unwrap();
    gone.retire().unwrap();
    fixture.device.synchronize().unwrap();
    let next = Stream::new(&fixture.device).unwrap();
    assert_eq!(next.stream_index(), gone.stream_index());
    fixture.hold_up(&next);
    let stamp = fixture.work(&next);
    // As if it had been retired after the check.
    gone.finish().unwrap();
    let is_complete = fixture.clocks().is_complete(stamp);
    fixture.let_go();
    assert!(!is_complete);
}

//! Streams and events.

#![forbid(unsafe_code)]

use crate::call_counter::{calls, count_calls};
use crate::fixture::{on_each_backend, small};
use gpumem_pool::sys::CUresult;
use gpumem_pool::{
    Block, Capture, CaptureMode, ContextGuard, Device, DeviceError, Event, Pool, PoolError, Stream,
};
use gpumem_sim::{Effect, Rule, SimConfig};

#[test]
fn all_of_it_may_be_shared_by_threads() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<Device>();
    shared::<Stream>();
    shared::<Event>();
    shared::<Pool>();
    shared::<Block>();
    shared::<PoolError>();
}

/// The driver's stack of contexts belongs to a thread, so the guard must not change threads.
#[test]
fn a_bound_context_stays_on_its_thread() {
    trait Otherwise {
        const SENDS: bool = false;
    }
    impl<T> Otherwise for T {}
    struct Asked<T>(core::marker::PhantomData<T>);
    impl<T: Send> Asked<T> {
        const SENDS: bool = true;
    }
    const { assert!(Asked::<Device>::SENDS && !Asked::<ContextGuard<'static>>::SENDS) };
}

#[test]
fn streams_have_names_of_their_own() {
    on_each_backend(&small(), |fixture| {
        let first = fixture.stream();
        let name = first.id();
        assert_eq!(first, first.clone());
        drop(first);
        let second = fixture.stream();
        assert_ne!(second.id(), name, "a name is never used again");
    });
}

#[test]
fn an_event_marks_a_point() {
    on_each_backend(&small(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let block = pool.alloc(1 << 20, &stream).unwrap();
        let event = Event::new(&fixture.device).unwrap();
        assert!(event.is_complete().unwrap(), "nothing to wait for yet");
        event.synchronize().unwrap();
        stream.wait(&event).unwrap();
        fixture.fill(&block, 1, &stream);
        event.record(&stream).unwrap();
        event.synchronize().unwrap();
        assert!(event.is_complete().unwrap());
        stream.synchronize().unwrap();
        assert!(stream.is_complete().unwrap());
    });
}

#[test]
fn work_waits_for_the_other_stream() {
    on_each_backend(&small(), |fixture| {
        let (pool, home, other) = (fixture.pool(), fixture.stream(), fixture.stream());
        let block = pool.alloc(4096, &home).unwrap();
        other.wait_for(&home).unwrap();
        for value in 0..10 {
            // One direction uses an event that is dropped while a stream waits for it; the other one uses the stream's own fence.
            fixture.fill(&block, 2 * value, &other);
            let event = Event::new(&fixture.device).unwrap();
            event.record(&other).unwrap();
            home.wait(&event).unwrap();
            drop(event);
            fixture.fill(&block, 2 * value + 1, &home);
            other.wait_for(&home).unwrap();
        }
        home.wait_for(&home).unwrap();
        assert!(fixture.holds(&block, 19, &other));
        block.record_use(&other);
    });
}

#[test]
fn only_timed_events_tell_time() {
    on_each_backend(&small(), |fixture| {
        let stream = fixture.stream();
        let timed = [(); 2].map(|()| Event::with_timing(&fixture.device).unwrap());
        let untimed = Event::new(&fixture.device).unwrap();
        for event in [&timed[0], &timed[1], &untimed] {
            event.record(&stream).unwrap();
        }
        stream.synchronize().unwrap();
        assert!(timed[1].elapsed_ms_since(&timed[0]).unwrap() >= 0.0);
        for (end, start) in [(&timed[0], &untimed), (&untimed, &timed[0])] {
            assert!(matches!(end.elapsed_ms_since(start), Err(DeviceError::Untimed)));
        }
    });
}

#[test]
fn debug_output_makes_no_driver_call() {
    on_each_backend(&small(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let block = pool.alloc(4096, &stream).unwrap();
        let event = Event::new(&fixture.device).unwrap();
        let text = format!("{:?} {pool:?} {stream:?} {block:?} {event:?}", fixture.device);
        for part in ["Device", "Pool", "Stream", "Block", "Event", "4096", "in_use_bytes: 4096"] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
    });
}

/// The driver accepts no call that ends the capture, and a stream that captures must not be destroyed: the context takes it along.
#[test]
fn a_stream_that_captures_on_a_lost_device_is_left_to_its_context() {
    for lose_at in ["cuMemGetInfo", "cuStreamEndCapture"] {
        for ends in [true, false] {
            let effect = Effect::LoseDevice { device: 0, code: CUresult::CUDA_ERROR_ECC_UNCORRECTABLE };
            let driver = gpumem_sim::driver(SimConfig::new().rule(Rule::new(lose_at, effect))).unwrap();
            let driver = count_calls(&driver, None);
            let device = Device::new(&driver, 0).unwrap();
            let pool = Pool::new(&device).unwrap();
            let streams = [(); 2].map(|()| Stream::new(&device).unwrap());
            let capture = Capture::begin(&streams[0], CaptureMode::Relaxed).unwrap();
            streams[1].wait_for(&streams[0]).unwrap();
            let block = pool.alloc(4096, &streams[1]).unwrap();
            let before = calls().count("cuStreamDestroy_v2");
            let _ = device.memory_info();
            if ends {
                assert!(matches!(capture.end(), Err(PoolError::Device(DeviceError::DeviceLost(_)))));
            } else {
                drop(capture);
            }
            drop((block, streams, pool));
            drop(device);
            // One is the stream that the capture's memory was allocated on, which does not capture.
            assert_eq!(calls().count("cuStreamDestroy_v2"), before + 1, "{lose_at} {ends}");
        }
    }
}

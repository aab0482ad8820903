//! Execution order: every order that streams and events allow happens under some seed, and no other order under any.

use super::*;
use std::sync::mpsc::{Receiver, channel};

const SEEDS: u64 = 1_000;

/// The outcomes of a program over the seeds.
fn outcomes<T: Ord>(program: impl Fn(Machine) -> T) -> std::collections::BTreeSet<T> {
    (0..SEEDS).map(|seed| program(seeded(seed))).collect()
}

/// Fills on one stream and copies on another, with a wait in between or without.
fn fill_then_copy(gpu: &Machine, waits: bool) -> Vec<u8> {
    let (writer, reader) = (gpu.stream(), gpu.stream());
    let (source, target) = (gpu.alloc(4), gpu.alloc(4));
    gpu.fill(writer, source, 7, 4);
    if waits {
        gpu.order(writer, reader);
    }
    gpu.copy(reader, target, source, 4);
    gpu.download(reader, target, 4)
}

#[test]
fn a_forgotten_wait_reads_stale_bytes_for_some_seed() {
    let seen = outcomes(|gpu| fill_then_copy(&gpu, false));
    assert_eq!(Vec::from_iter(seen), [vec![0; 4], vec![7; 4]]);
}

#[test]
fn a_wait_orders_for_every_seed() {
    let seen = outcomes(|gpu| fill_then_copy(&gpu, true));
    assert_eq!(Vec::from_iter(seen), [vec![7; 4]]);
}

#[test]
fn a_seed_repeats_its_outcome() {
    for seed in 0..100 {
        let run = || fill_then_copy(&seeded(seed), false);
        assert_eq!(run(), run(), "seed {seed}");
    }
}

#[test]
fn both_orders_of_two_writers_happen() {
    let seen = outcomes(|gpu| {
        let (a, b, byte) = (gpu.stream(), gpu.stream(), gpu.alloc(1));
        gpu.fill(a, byte, 1, 1);
        gpu.fill(b, byte, 2, 1);
        gpu.sync(a);
        gpu.sync(b);
        gpu.download(a, byte, 1)[0]
    });
    assert_eq!(Vec::from_iter(seen), [1, 2]);
}

#[test]
fn one_stream_keeps_its_order() {
    let seen = outcomes(|gpu| {
        let (stream, byte) = (gpu.stream(), gpu.alloc(1));
        (1..=50).for_each(|value| gpu.fill(stream, byte, value, 1));
        gpu.download(stream, byte, 1)[0]
    });
    assert_eq!(Vec::from_iter(seen), [50]);
}

#[test]
fn pinned_memory_is_read_when_the_copy_runs() {
    let seen = outcomes(|gpu| {
        let (stream, byte, host) = (gpu.stream(), gpu.alloc(1), gpu.pinned(1));
        host[0].set(1);
        gpu.upload_from(stream, byte, host.as_ptr().cast(), 1);
        host[0].set(2);
        gpu.download(stream, byte, 1)[0]
    });
    assert_eq!(Vec::from_iter(seen), [1, 2]);
}

#[test]
fn pageable_memory_is_read_at_the_call() {
    let seen = outcomes(|gpu| {
        let (stream, byte) = (gpu.stream(), gpu.alloc(1));
        let mut host = vec![1];
        gpu.upload(stream, byte, &host);
        host[0] = 2;
        gpu.download(stream, byte, 1)[0]
    });
    assert_eq!(Vec::from_iter(seen), [1]);
}

#[test]
fn pinned_memory_is_written_when_the_copy_runs() {
    let seen = outcomes(|gpu| {
        let (stream, byte, host) = (gpu.stream(), gpu.alloc(1), gpu.pinned(1));
        gpu.fill(stream, byte, 5, 1);
        gpu.download_to(stream, host, byte);
        let early = host[0].get();
        gpu.sync(stream);
        (early, host[0].get())
    });
    assert_eq!(Vec::from_iter(seen), [(0, 5), (5, 5)]);
}

#[test]
fn the_null_stream_waits_for_blocking_streams_and_they_for_it() {
    let seen = outcomes(|gpu| {
        let (before, after, free) = (gpu.blocking_stream(), gpu.blocking_stream(), gpu.stream());
        let (byte, copies) = (gpu.alloc(1), gpu.alloc(3));
        gpu.fill(before, byte, 1, 1);
        gpu.copy(null_mut(), copies, byte, 1);
        gpu.fill(null_mut(), byte, 2, 1);
        gpu.copy(after, copies + 1, byte, 1);
        gpu.copy(free, copies + 2, byte, 1);
        // SAFETY: handles and addresses are checked by the driver; host memory outlives the work on it.
        unsafe { gpu.cuCtxSynchronize().unwrap() };
        gpu.download(null_mut(), copies, 3)
    });
    assert!(seen.iter().all(|copies| copies[..2] == [1, 2]), "{seen:?}");
    let unordered: Vec<u8> = seen.iter().map(|copies| copies[2]).collect();
    assert_eq!(unordered, [0, 1, 2]);
}

#[test]
fn calls_without_a_stream_do_not_wait_within_the_device() {
    let seen = outcomes(|gpu| {
        let (other, source, target) = (gpu.stream(), gpu.alloc(1), gpu.alloc(1));
        // SAFETY: handles and addresses are checked by the driver; host memory outlives the work on it.
        unsafe { gpu.cuMemsetD8_v2(source, 3, 1).unwrap() };
        gpu.copy(other, target, source, 1);
        gpu.download(other, target, 1)[0]
    });
    assert_eq!(Vec::from_iter(seen), [0, 3]);
}

#[test]
fn each_thread_has_its_own_default_stream() {
    let gpu = seeded(1);
    let per_thread: CUstream = std::ptr::without_provenance_mut(2);
    // SAFETY: handles and addresses are checked by the driver; host memory outlives the work on it.
    let id = || unsafe {
        let mut id = 0;
        gpu.cuStreamGetId(per_thread, &mut id).unwrap();
        id
    };
    let context = gpu.context as usize;
    let here = id();
    let driver = gpu.driver.clone();
    // SAFETY: handles and addresses are checked by the driver; host memory outlives the work on it.
    let there = std::thread::spawn(move || unsafe {
        let mut id = 0;
        driver.cuCtxSetCurrent(std::ptr::without_provenance_mut(context)).unwrap();
        driver.cuStreamGetId(std::ptr::without_provenance_mut(2), &mut id).unwrap();
        id
    });
    assert_eq!(here, id());
    assert_ne!(here, there.join().unwrap());
}

/// A program that starts a thread for each request keeps no stream of those that ended.
#[test]
fn the_default_streams_of_ended_threads_go() {
    let gpu = seeded(1);
    let byte = gpu.alloc(1);
    for count in 1..=100 {
        on_thread(&gpu, move |gpu, stream| {
            gpu.fill(stream, byte, 1, 1);
            // Half of the threads end before their work.
            if count % 2 == 0 {
                gpu.sync(stream);
            }
        });
        assert!(gpu.sim().report().thread_stream_count <= 1 + count / 2, "{count}: {}", gpu.sim().report());
    }
    // SAFETY: the context is current.
    unsafe { gpu.cuCtxSynchronize().unwrap() };
    on_thread(&gpu, |_, _| ());
    assert_eq!(gpu.sim().report().thread_stream_count, 1);
}

#[test]
fn the_default_stream_of_an_ended_thread_that_captures_stays() {
    let gpu = seeded(1);
    on_thread(&gpu, |gpu, stream| {
        // SAFETY: the stream is the thread's own.
        unsafe {
            gpu.cuStreamBeginCapture_v2(stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        }
    });
    for _ in 0..3 {
        on_thread(&gpu, |_, _| ());
        assert_eq!(gpu.sim().report().thread_stream_count, 2);
    }
}

/// Runs `body` with the machine and the default stream of a new thread, which has ended at the return.
fn on_thread(gpu: &Machine, body: impl FnOnce(&Machine, CUstream) + Send + 'static) {
    let (driver, context) = (gpu.driver.clone(), gpu.context.expose_provenance());
    let thread = std::thread::spawn(move || {
        let gpu = Machine { driver, context: std::ptr::with_exposed_provenance_mut(context) };
        let (stream, mut id): (CUstream, _) = (std::ptr::without_provenance_mut(2), 0);
        // SAFETY: the context is alive, and a local outlives the call.
        unsafe {
            gpu.cuCtxSetCurrent(gpu.context).unwrap();
            gpu.cuStreamGetId(stream, &mut id).unwrap();
        }
        body(&gpu, stream);
    });
    thread.join().unwrap();
}

#[test]
fn an_event_stands_for_its_last_recording_before_the_wait() {
    let seen = outcomes(|gpu| {
        let (a, b, byte, copy) = (gpu.stream(), gpu.stream(), gpu.alloc(1), gpu.alloc(1));
        let event = gpu.event();
        // SAFETY: handles and addresses are checked by the driver; host memory outlives the work on it.
        unsafe {
            gpu.fill(a, byte, 1, 1);
            gpu.cuEventRecord(event, a).unwrap();
            gpu.cuStreamWaitEvent(b, event, 0).unwrap();
            gpu.fill(a, byte, 2, 1);
            gpu.cuEventRecord(event, a).unwrap();
            gpu.cuEventDestroy_v2(event).unwrap();
        }
        gpu.copy(b, copy, byte, 1);
        gpu.download(b, copy, 1)[0]
    });
    assert_eq!(Vec::from_iter(seen), [1, 2]);
}

#[test]
fn events_that_were_never_recorded_are_done() {
    let gpu = seeded(1);
    let (event, stream) = (gpu.event(), gpu.stream());
    // SAFETY: handles and addresses are checked by the driver; host memory outlives the work on it.
    unsafe {
        gpu.cuEventQuery(event).unwrap();
        gpu.cuEventSynchronize(event).unwrap();
        gpu.cuStreamWaitEvent(stream, event, 0).unwrap();
    }
    gpu.sync(stream);
}

#[test]
fn polling_ends_for_every_seed() {
    outcomes(|gpu| {
        let (stream, byte, event) = (gpu.stream(), gpu.alloc(1), gpu.event());
        (0..20).for_each(|value| gpu.fill(stream, byte, value, 1));
        let mut polls = 0;
        // SAFETY: handles and addresses are checked by the driver; host memory outlives the work on it.
        unsafe {
            gpu.cuEventRecord(event, stream).unwrap();
            while code(gpu.cuEventQuery(event)) == CUresult::CUDA_ERROR_NOT_READY {
                polls += 1;
                assert!(polls < 10_000);
            }
            gpu.cuStreamQuery(stream).unwrap();
        }
    });
}

#[test]
fn a_destroyed_stream_finishes_its_work() {
    let seen = outcomes(|gpu| {
        let (gone, stream, byte) = (gpu.stream(), gpu.stream(), gpu.alloc(1));
        gpu.fill(gone, byte, 9, 1);
        gpu.order(gone, stream);
        // SAFETY: handles and addresses are checked by the driver; host memory outlives the work on it.
        unsafe { gpu.cuStreamDestroy_v2(gone).unwrap() };
        gpu.download(stream, byte, 1)[0]
    });
    assert_eq!(Vec::from_iter(seen), [9]);
}

#[test]
fn host_functions_run_in_order_and_may_not_call_the_driver() {
    struct Note {
        driver: Driver,
        code: CUresult,
        seen: u8,
        pinned: *mut u8,
    }
    unsafe extern "C" fn look(data: *mut c_void) {
        // SAFETY: the test passes a note that outlives the work.
        let note = unsafe { &mut *data.cast::<Note>() };
        // SAFETY: the pinned memory belongs to the test's machine, and the copy before this has run.
        note.seen = unsafe { *note.pinned };
        // SAFETY: a local outlives the call.
        note.code = unsafe { note.driver.cuDeviceGetCount(&mut 0) }.unwrap_err().code();
    }
    for seed in 0..100 {
        let gpu = seeded(seed);
        let (stream, byte, host) = (gpu.stream(), gpu.alloc(1), gpu.pinned(1));
        let pinned = host.as_ptr().cast_mut().cast();
        let mut note = Note { driver: gpu.driver.clone(), code: CUresult::CUDA_SUCCESS, seen: 0, pinned };
        gpu.fill(stream, byte, 4, 1);
        gpu.download_to(stream, host, byte);
        // SAFETY: handles and addresses are checked by the driver; host memory outlives the work on it.
        unsafe {
            gpu.cuLaunchHostFunc(stream, Some(look), (&raw mut note).cast()).unwrap();
        }
        gpu.sync(stream);
        assert_eq!((note.seen, note.code), (4, CUresult::CUDA_ERROR_NOT_PERMITTED), "seed {seed}");
    }
}

#[test]
fn a_host_function_may_wait_for_a_thread_that_calls_the_driver() {
    unsafe extern "C" fn wait(data: *mut c_void) {
        // SAFETY: the test passes a receiver that outlives the work, and does not use it elsewhere.
        let _told = unsafe { &*data.cast::<Receiver<()>>() }.recv();
    }
    for seed in 0..8 {
        let gpu = seeded(seed);
        let (stream, byte, (notify, notified)) = (gpu.stream(), gpu.alloc(1), channel());
        std::thread::scope(|scope| {
            let (driver, context) = (gpu.driver.clone(), gpu.context as usize);
            scope.spawn(move || {
                let context = std::ptr::without_provenance_mut(context);
                // SAFETY: handles and addresses are checked by the driver; host memory outlives the work on it.
                unsafe { driver.cuCtxSetCurrent(context).unwrap() };
                let other = Machine { driver, context };
                let stream = other.stream();
                other.sync(stream);
                notify.send(()).unwrap();
            });
            // SAFETY: handles and addresses are checked by the driver; host memory outlives the work on it.
            unsafe { gpu.cuLaunchHostFunc(stream, Some(wait), (&raw const notified).cast_mut().cast()) }
                .unwrap();
            gpu.fill(stream, byte, 8, 1);
            assert_eq!(gpu.download(stream, byte, 1), [8]);
        });
    }
}

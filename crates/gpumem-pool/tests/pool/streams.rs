//! Kinds of streams: with priority, without inserted waits, of other libraries, default streams; and pools whose streams are
//! destroyed.

use crate::fixture::{Fixture, on_device_memory, on_each_backend, on_each_backend_with, small, stand_in};
use gpumem_pool::sys::types::{CUstream, CUstreamCaptureMode};
use gpumem_pool::{
    BackendKind, Capture, CaptureError, CaptureMode, Device, DeviceError, Event, MemoryRange, PoolError,
    RecentStreams, Stream, StreamError,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Creates a stream that the library does not know.
fn make(fixture: &Fixture) -> CUstream {
    let (_bound, mut raw) = (fixture.device.bind().unwrap(), std::ptr::null_mut());
    // SAFETY: `raw` outlives the call.
    unsafe { fixture.driver.cuStreamCreate(&mut raw, 1).unwrap() };
    raw
}

fn destroy(fixture: &Fixture, raw: CUstream) {
    let _bound = fixture.device.bind().unwrap();
    // SAFETY: each test destroys its streams once, and does not use them again.
    unsafe { fixture.driver.cuStreamDestroy_v2(raw).unwrap() };
}

fn wrap(fixture: &Fixture, raw: CUstream) -> Stream {
    // SAFETY: each test keeps the stream alive until its last handle is dropped.
    unsafe { Stream::from_raw(&fixture.device, raw).unwrap() }
}

#[test]
fn a_priority_is_the_nearest_that_there_is() {
    on_each_backend(&small(), |fixture| {
        for (asked, given) in [(0, 0), (-1, -1), (7, 0), (-100, -5)] {
            let stream = Stream::builder(&fixture.device).priority(asked).build().unwrap();
            let (_bound, mut found) = (fixture.device.bind().unwrap(), 1);
            // SAFETY: the stream is alive, and `found` outlives the call.
            unsafe { fixture.driver.cuStreamGetPriority(stream.raw(), &mut found).unwrap() };
            assert_eq!(found, given);
        }
    });
}

#[test]
fn a_wrapped_handle_is_its_stream() {
    on_each_backend(&small().devices(2), |fixture| {
        let (own, raw) = (fixture.stream(), make(fixture));
        let foreign = wrap(fixture, raw);
        assert_eq!((wrap(fixture, raw), foreign.raw()), (foreign.clone(), raw));
        assert_eq!(wrap(fixture, own.raw()), own, "a handle of this crate's is its stream");
        assert_eq!(wrap(fixture, std::ptr::null_mut()), Stream::legacy(&fixture.device).unwrap());
        assert_eq!(wrap(fixture, 1 as CUstream), Stream::legacy(&fixture.device).unwrap());
        assert_eq!(wrap(fixture, 2 as CUstream), Stream::per_thread(&fixture.device).unwrap());
        let second = Device::new(&fixture.driver, 1).unwrap();
        // SAFETY: the stream is alive; the test checks that a stream of another device is refused.
        let elsewhere = unsafe { Stream::from_raw(&second, raw) };
        assert!(matches!(elsewhere, Err(DeviceError::WrongDevice { .. })));
        drop(elsewhere);
        foreign.retire().unwrap();
        destroy(fixture, raw);
    });
}

/// The owner may destroy the handle as soon as one of the threads has returned.
#[test]
fn two_threads_that_retire_a_stream_both_wait_for_its_calls() {
    on_each_backend(&small(), |fixture| {
        let raw = make(fixture);
        let (foreign, is_over) = (wrap(fixture, raw), AtomicBool::new(false));
        let retire = || {
            let retired = foreign.retire();
            assert!(is_over.load(Ordering::SeqCst), "retired during a call");
            assert!(
                matches!(retired, Ok(()) | Err(DeviceError::Stream(StreamError::Retired))),
                "{retired:?}"
            );
        };
        std::thread::scope(|scope| {
            let begun = foreign.queue_work(MemoryRange::NONE, |_| {
                let threads = [scope.spawn(retire), scope.spawn(retire)];
                std::thread::sleep(Duration::from_millis(20));
                is_over.store(true, Ordering::SeqCst);
                threads
            });
            begun.unwrap().into_iter().for_each(|thread| thread.join().unwrap());
        });
        destroy(fixture, raw);
    });
}

#[test]
fn nothing_names_a_stream_after_it_was_retired() {
    on_each_backend(&small(), |fixture| {
        let (pool, raw, event) = (fixture.pool(), make(fixture), Event::new(&fixture.device).unwrap());
        let (foreign, own) = (wrap(fixture, raw), fixture.stream());
        foreign.retire().unwrap();
        own.retire().unwrap();
        own.synchronize().unwrap();
        destroy(fixture, raw);
        for refused in [
            foreign.retire().map_err(Into::into),
            foreign.synchronize().map_err(Into::into),
            foreign.is_complete().map(drop).map_err(Into::into),
            foreign.wait(&event).map_err(Into::into),
            foreign.wait_for(&own).map_err(Into::into),
            own.wait_for(&foreign).map_err(Into::into),
            event.record(&foreign).map_err(Into::into),
            pool.alloc(1, &foreign).map(drop),
            pool.alloc(0, &foreign).map(drop),
            Capture::begin(&foreign, CaptureMode::Global).map(drop),
            foreign.is_capturing().map(drop).map_err(Into::into),
        ] {
            assert!(
                matches!(refused, Err(PoolError::Device(DeviceError::Stream(StreamError::Retired)))),
                "{refused:?}"
            );
        }
    });
}

#[test]
fn a_threads_own_stream_stays_on_its_thread() {
    on_each_backend(&small(), |fixture| {
        let (pool, own) = (fixture.pool(), Stream::per_thread(&fixture.device).unwrap());
        let block = pool.alloc(4096, &own).unwrap();
        fixture.fill(&block, 5, &own);
        assert!(fixture.holds(&block, 5, &own));
        let sizes = [4096, 2 << 20, 4 << 20];
        let blocks = sizes.map(|size_bytes| pool.alloc(size_bytes, &own).unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_ne!(Stream::per_thread(&fixture.device).unwrap().id(), own.id());
                assert!(matches!(own.synchronize(), Err(DeviceError::Stream(StreamError::WrongThread))));
                assert!(matches!(
                    pool.alloc(1, &own),
                    Err(PoolError::Device(DeviceError::Stream(StreamError::WrongThread)))
                ));
                // The thread gets none of the memory that it frees there.
                drop((block, blocks));
                for size_bytes in sizes {
                    assert!(matches!(
                        pool.alloc(size_bytes, &own),
                        Err(PoolError::Device(DeviceError::Stream(StreamError::WrongThread)))
                    ));
                }
            });
        });
        let again = sizes.map(|size_bytes| pool.alloc(size_bytes, &own).unwrap());
        drop(again);
        assert_eq!(pool.status().unwrap().in_use_bytes, 0);
        drop(own);
        pool.reclaim().unwrap();
        assert_eq!(pool.status().unwrap().reserved_bytes, 0);
    });
}

/// A stream of another library, which destroys it when the last owner is dropped, and leaves another context current as cudarc does.
struct Theirs {
    device: Device,
    raw: usize,
    destroyed: Arc<AtomicUsize>,
}

impl Theirs {
    fn new(fixture: &Fixture, destroyed: &Arc<AtomicUsize>) -> Arc<Self> {
        let (device, destroyed) = (fixture.device.clone(), destroyed.clone());
        Arc::new(Self { device, raw: make(fixture) as usize, destroyed })
    }

    fn wrap(self: &Arc<Self>) -> Stream {
        // SAFETY: the drop destroys the stream.
        unsafe { Stream::from_raw_with_owner(&self.device, self.raw as CUstream, self.clone()).unwrap() }
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        // SAFETY: the context is alive, and the stream, whose handle is not used after this.
        unsafe {
            self.device.driver().cuCtxSetCurrent(self.device.context()).unwrap();
            self.device.driver().cuStreamDestroy_v2(self.raw as CUstream).unwrap();
        }
        self.destroyed.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_stream_lives_as_long_as_a_clone_that_keeps_its_owner() {
    on_each_backend(&small(), |fixture| {
        let (pool, destroyed) = (fixture.pool(), Arc::new(AtomicUsize::new(0)));
        let theirs = Theirs::new(fixture, &destroyed);
        // Wrapped without its owner before: the owner is kept from now on.
        let early = wrap(fixture, theirs.raw as CUstream);
        let (stream, again) = (theirs.wrap(), theirs.wrap());
        assert!(early == stream && again == stream);
        drop((theirs, early, again));
        let block = pool.alloc(8 << 20, &stream).unwrap();
        fixture.fill(&block, 3, &stream);
        assert!(fixture.holds(&block, 3, &stream));
        drop(block);
        assert_eq!(destroyed.load(Ordering::SeqCst), 0);
        drop(stream);
        assert_eq!(destroyed.load(Ordering::SeqCst), 1);
        let mut current = std::ptr::null_mut();
        // SAFETY: `current` outlives the call.
        unsafe { fixture.driver.cuCtxGetCurrent(&mut current).unwrap() };
        assert!(current.is_null(), "the drop of the owner changed the current context");
        // The stream was retired before its end, so its memory comes back.
        pool.reclaim().unwrap();
        assert_eq!(pool.status().unwrap().reserved_bytes, 0);
        assert_eq!(gpumem_sim::Sim::of(&fixture.driver).unwrap().report().silent_findings(), []);
    });
}

#[test]
fn an_owner_is_dropped_where_it_is_not_needed() {
    on_each_backend(&small(), |fixture| {
        let (own, owner) = (fixture.stream(), Arc::new(()));
        for raw in [own.raw(), std::ptr::null_mut(), 2 as CUstream] {
            // SAFETY: all three live without an owner.
            let stream = unsafe { Stream::from_raw_with_owner(&fixture.device, raw, owner.clone()).unwrap() };
            assert_eq!(Arc::strong_count(&owner), 1);
            stream.synchronize().unwrap();
        }
    });
}

/// Threads wrap a stream while others drop their last clones of it. No call uses a destroyed stream, and no work is lost.
#[test]
fn a_stream_may_be_wrapped_while_its_last_clone_is_dropped() {
    on_device_memory(&small(), |fixture| {
        let destroyed = Arc::new(AtomicUsize::new(0));
        for round in 1..4 {
            let theirs = Theirs::new(fixture, &destroyed);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    let (theirs, pool) = (theirs.clone(), fixture.pool());
                    scope.spawn(move || {
                        for value in 0..20 {
                            let stream = theirs.wrap();
                            let block = pool.alloc(4096, &stream).unwrap();
                            fixture.fill(&block, value, &stream);
                            assert!(fixture.holds(&block, value, &stream));
                        }
                    });
                }
            });
            drop(theirs);
            assert_eq!(destroyed.load(Ordering::SeqCst), round);
        }
        fixture.device.synchronize().unwrap();
        assert_eq!(gpumem_sim::Sim::of(&fixture.driver).unwrap().report().silent_findings(), []);
    });
}

/// A block freed on a stream that may have been destroyed: `none` waits for the device, the other backends keep the memory until
/// it is safe.
#[test]
fn memory_freed_on_another_s_stream_comes_back_when_that_is_safe() {
    on_each_backend(&small(), |fixture| {
        for how in ["retired", "waited for", "destroyed"] {
            let (pool, raw) = (fixture.pool(), make(fixture));
            let foreign = wrap(fixture, raw);
            let block = pool.alloc(8 << 20, &foreign).unwrap();
            fixture.fill(&block, 1, &foreign);
            drop(block);
            assert_eq!(pool.status().unwrap().in_use_bytes, 0);
            pool.trim_to(0).unwrap();
            let kept_bytes = match fixture.backend {
                BackendKind::None => 0,
                BackendKind::Native => 32 << 20,
                _ => 8 << 20,
            };
            assert_eq!(pool.status().unwrap().reserved_bytes, kept_bytes, "nobody may mark the stream");
            match how {
                "retired" => foreign.retire().unwrap(),
                "waited for" => foreign.synchronize().unwrap(),
                _ => drop(foreign),
            }
            destroy(fixture, raw);
            pool.reclaim().unwrap();
            assert_eq!(pool.status().unwrap().reserved_bytes, 0, "{how}");
        }
        assert_eq!(gpumem_sim::Sim::of(&fixture.driver).unwrap().report().silent_findings(), []);
    });
}

fn wrap_again(fixture: &Fixture, recent: &RecentStreams, raw: CUstream) -> Result<Stream, PoolError> {
    // SAFETY: each test keeps the stream alive during the call.
    unsafe { recent.wrap(&fixture.device, raw).map_err(Into::into) }
}

/// A call that has only the handle asks the driver whether it still means the stream, and nothing more.
#[test]
fn a_stream_that_each_call_names_by_its_handle_is_opened_once() {
    let change = |table: &mut _| {
        contexts::install(table);
        asked::install(table);
    };
    on_each_backend_with(&small(), change, |fixture| {
        let (recent, raw, pool) = (RecentStreams::default(), make(fixture), fixture.pool());
        let first = wrap_again(fixture, &recent, raw).unwrap().id();
        drop(pool.alloc(4096, &wrap_again(fixture, &recent, raw).unwrap()).unwrap());
        let before = (contexts::CALLS.load(Ordering::SeqCst), asked::CALLS.load(Ordering::SeqCst));
        for _ in 0..10 {
            let stream = wrap_again(fixture, &recent, raw).unwrap();
            assert_eq!(stream.id(), first);
            drop(pool.alloc(4096, &stream).unwrap());
        }
        let after = (contexts::CALLS.load(Ordering::SeqCst), asked::CALLS.load(Ordering::SeqCst));
        assert_eq!((after.0 - before.0, after.1 - before.1), (0, 10));
        assert_eq!(
            wrap_again(fixture, &recent, std::ptr::null_mut()).unwrap(),
            Stream::legacy(&fixture.device).unwrap()
        );
        destroy(fixture, raw);
    });
}

/// The driver gives the handle of a destroyed stream to a new one, and captures may begin at any time.
#[test]
fn a_kept_stream_is_not_taken_for_another_with_its_handle() {
    on_each_backend_with(&small(), ids::install, |fixture| {
        let (recent, raw) = (RecentStreams::default(), make(fixture));
        let first = wrap_again(fixture, &recent, raw).unwrap().id();
        ids::OFFSET.store(1 << 40, Ordering::SeqCst);
        let second = wrap_again(fixture, &recent, raw).unwrap().id();
        assert_ne!(first, second, "the driver states another stream");
        assert_eq!(wrap_again(fixture, &recent, raw).unwrap().id(), second);

        wrap(fixture, raw).retire().unwrap();
        let third = wrap_again(fixture, &recent, raw).unwrap();
        assert_ne!(third.id(), second, "the stream was retired");

        let _bound = fixture.device.bind().unwrap();
        // SAFETY: the stream is alive, and `graph` outlives the calls.
        unsafe {
            let mut graph = std::ptr::null_mut();
            fixture
                .driver
                .cuStreamBeginCapture_v2(raw, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)
                .unwrap();
            let refused = wrap_again(fixture, &recent, raw);
            assert!(
                matches!(refused, Err(PoolError::Device(DeviceError::Capture(CaptureError::Unannounced)))),
                "{refused:?}"
            );
            fixture.driver.cuStreamEndCapture(raw, &mut graph).unwrap();
            fixture.driver.cuGraphDestroy(graph).unwrap();
        }
        assert_eq!(wrap_again(fixture, &recent, raw).unwrap(), third);
        destroy(fixture, raw);
    });
}

stand_in!(contexts, cuStreamGetCtx(stream: CUstream, context: *mut CUcontext));
stand_in!(asked, cuStreamGetId(stream: CUstream, id: *mut core::ffi::c_ulonglong));
stand_in!(destroys, cuStreamDestroy_v2(stream: CUstream));

/// The driver's ids of streams, all of them others than before once [`ids::OFFSET`] is changed.
mod ids {
    use core::ffi::c_ulonglong;
    use gpumem_pool::sys::Table;
    use gpumem_pool::sys::types::{CUresult, CUstream};
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU64, Ordering};

    pub(super) static OFFSET: AtomicU64 = AtomicU64::new(0);
    type Function = unsafe extern "C" fn(CUstream, *mut c_ulonglong) -> CUresult;
    static REAL: Mutex<Option<Function>> = Mutex::new(None);

    pub(super) fn install(table: &mut Table) {
        *REAL.lock().unwrap() = table.cuStreamGetId;
        table.cuStreamGetId = Some(call);
        OFFSET.store(0, Ordering::SeqCst);
    }

    unsafe extern "C" fn call(stream: CUstream, id: *mut c_ulonglong) -> CUresult {
        let Some(real) = *REAL.lock().unwrap() else { return CUresult::CUDA_ERROR_UNKNOWN };
        // SAFETY: the caller guarantees what the replaced function requires.
        let result = unsafe { real(stream, id) };
        if result == CUresult::CUDA_SUCCESS {
            // SAFETY: the driver has written to the place.
            unsafe { *id += OFFSET.load(Ordering::SeqCst) };
        }
        result
    }
}

/// More streams than are kept come and go, and their memory goes to others.
#[test]
fn kept_streams_are_not_touched_once_they_are_destroyed() {
    on_device_memory(&small(), |fixture| {
        let pool = fixture.builder().hard_limit(8 << 20).build().unwrap();
        let (recent, own) = (RecentStreams::default(), fixture.stream());
        for round in 0..140 {
            let raw = make(fixture);
            let stream = wrap_again(fixture, &recent, raw).unwrap();
            let block = pool.alloc(3 << 20, &stream).unwrap();
            fixture.fill(&block, round, &stream);
            drop((block, stream));
            destroy(fixture, raw);
            if round % 5 == 0 {
                let block = pool.alloc(6 << 20, &own).unwrap();
                fixture.fill(&block, round, &own);
                assert!(fixture.holds(&block, round, &own));
            }
        }
        pool.reclaim().unwrap();
        assert_eq!(pool.status().unwrap().reserved_bytes, 0);
        assert_eq!(gpumem_sim::Sim::of(&fixture.driver).unwrap().report().silent_findings(), []);
    });
}

/// Streams of this crate end with their last clone, and those of an owner with the owner.
#[test]
fn only_streams_of_others_are_kept() {
    on_each_backend_with(&small(), destroys::install, |fixture| {
        let (recent, own, destroyed) =
            (RecentStreams::default(), fixture.stream(), Arc::new(AtomicUsize::new(0)));
        assert_eq!(wrap_again(fixture, &recent, own.raw()).unwrap(), own);
        let before = destroys::CALLS.load(Ordering::SeqCst);
        drop(own);
        assert_eq!(destroys::CALLS.load(Ordering::SeqCst), before + 1);
        let theirs = Theirs::new(fixture, &destroyed);
        let stream = theirs.wrap();
        assert_eq!(wrap_again(fixture, &recent, stream.raw()).unwrap(), stream);
        drop((theirs, stream));
        assert_eq!(destroyed.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn a_stream_without_waits_is_never_made_to_wait_by_a_free() {
    on_each_backend(&small(), |fixture| {
        let pool = fixture.pool();
        let home = Stream::builder(&fixture.device).no_waits().build().unwrap();
        let other = fixture.stream();
        for _ in 0..4 {
            let block = pool.alloc(1 << 20, &home).unwrap();
            fixture.fill(&block, 1, &home);
            other.wait_for(&home).unwrap();
            fixture.fill(&block, 2, &other);
            block.record_use(&other);
            drop(block);
            let next = pool.alloc(1 << 20, &home).unwrap();
            fixture.fill(&next, 3, &home);
            assert!(fixture.holds(&next, 3, &home));
        }
        fixture.device.synchronize().unwrap();
        assert_eq!(pool.status().unwrap().in_use_bytes, 0);
        assert_eq!(gpumem_sim::Sim::of(&fixture.driver).unwrap().report().findings, []);
    });
}

/// More streams than a block has bits for.
#[test]
fn a_block_may_be_used_by_a_hundred_streams() {
    on_each_backend(&small(), |fixture| {
        let (pool, home) = (fixture.pool(), fixture.stream());
        let others: Vec<Stream> = (0..100).map(|_| fixture.stream()).collect();
        for _ in 0..2 {
            let block = pool.alloc(1 << 16, &home).unwrap();
            for (value, other) in others.iter().enumerate() {
                other.wait_for(if value == 0 { &home } else { &others[value - 1] }).unwrap();
                fixture.fill(&block, value as u8, other);
                block.record_use(other);
            }
            drop(block);
            let next = pool.alloc(1 << 16, &home).unwrap();
            fixture.fill(&next, 200, &home);
            assert!(fixture.holds(&next, 200, &home));
        }
        drop(others);
        fixture.device.synchronize().unwrap();
        assert_eq!(gpumem_sim::Sim::of(&fixture.driver).unwrap().report().findings, []);
    });
}

/// With a hundred live streams, a block waits only for those that used it: the other streams are blocked here.
#[test]
fn however_many_streams_there_are_a_free_waits_for_its_users_alone() {
    on_each_backend(&small(), |fixture| {
        // A free of `none` waits for the whole device.
        if fixture.backend == BackendKind::None {
            return;
        }
        let pool = fixture.builder().hard_limit(4 << 20).build().unwrap();
        let streams: Vec<Stream> = (0..130).map(|_| fixture.stream()).collect();
        let gate = pool.alloc(4, &streams[0]).unwrap();
        fixture.fill(&gate, 0, &streams[0]);
        streams[0].synchronize().unwrap();
        let (driver, address) = (&fixture.driver, gate.address());
        for still in &streams[60..100] {
            let _bound = fixture.device.bind().unwrap();
            // SAFETY: the memory is alive until all streams have passed.
            unsafe { driver.cuStreamWaitValue32_v2(still.raw(), address, 1, 0).unwrap() };
        }
        let users = [&streams[0], &streams[110], &streams[120], &streams[0]];
        for (value, pair) in users.windows(2).enumerate() {
            let block = pool.alloc(2 << 20, pair[0]).unwrap();
            pair[1].wait_for(pair[0]).unwrap();
            fixture.fill(&block, value as u8, pair[1]);
            block.record_use(pair[1]);
            drop(block);
            pair[1].synchronize().unwrap();
            pair[0].synchronize().unwrap();
        }
        let _bound = fixture.device.bind().unwrap();
        // SAFETY: the memory is alive until the device was synchronised.
        unsafe { driver.cuStreamWriteValue32_v2(streams[0].raw(), address, 1, 0).unwrap() };
        fixture.device.synchronize().unwrap();
    });
}

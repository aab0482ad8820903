//! Calls in functions of the program that this library calls: each returns, whatever the library holds or waits for at that moment.
//! The table is places × calls, and a pair that takes long has a deadlock.

use crate::fixture::{built_backends, small};
use gpumem_pool::adaptor::{Adaptor, Failures, Grant, Next, Opening, Release, Request, Tracking};
use gpumem_pool::sys::types::CUstream;
use gpumem_pool::{
    BackendKind, Capture, CaptureMode, Device, DeviceError, Event, HostMemory, Keep, MemoryRange, Pool,
    PoolError, PoolId, Reclaimable, Registration, Stream, StreamError,
};
use std::error::Error;
use std::pin::Pin;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// A pair takes milliseconds, and a bounded wait a quarter of a second.
const DEADLOCK_AFTER: Duration = Duration::from_secs(30);
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The objects that the calls name.
struct Scene {
    device: Device,
    backend: BackendKind,
    pool: Pool,
    own: Stream,
    foreign: Stream,
}

impl Scene {
    fn new(backend: BackendKind) -> Self {
        let device = Device::new(&gpumem_sim::driver(small()).unwrap(), 0).unwrap();
        let pool = Pool::builder(&device).backend(backend).hard_limit(256 * MIB).build().unwrap();
        let (own, foreign) = (Stream::new(&device).unwrap(), Self::wrap(&device, Self::make(&device)));
        Self { device, backend, pool, own, foreign }
    }

    /// A stream that lives as long as the simulator.
    fn make(device: &Device) -> CUstream {
        let (_bound, mut raw) = (device.bind().unwrap(), std::ptr::null_mut());
        // SAFETY: `raw` outlives the call.
        unsafe { device.driver().cuStreamCreate(&mut raw, 1).unwrap() };
        raw
    }

    fn wrap(device: &Device, raw: CUstream) -> Stream {
        // SAFETY: the stream is alive, and never destroyed.
        unsafe { Stream::from_raw(device, raw).unwrap() }
    }

    fn with_adaptor(&self, adaptor: impl Adaptor + 'static) -> Result<Pool, PoolError> {
        Pool::builder(&self.device).backend(self.backend).adaptor(Arc::new(adaptor)).build()
    }
}

type Outcome = Result<(), PoolError>;
/// A call. Errors are fine: that nothing waits for its own caller is what counts.
type Call = (&'static str, fn(&Scene) -> Outcome);

const CALLS: &[Call] = &[
    ("retire", |scene| scene.foreign.retire().map_err(Into::into)),
    ("retire an owned stream", |scene| scene.own.retire().map_err(Into::into)),
    ("wait for a stream", |scene| scene.own.synchronize().map_err(Into::into)),
    ("wait for a foreign stream", |scene| scene.foreign.synchronize().map_err(Into::into)),
    ("wait for the device", |scene| scene.device.synchronize().map_err(Into::into)),
    ("await a stream", |scene| scene.foreign.completion().wait().map_err(Into::into)),
    ("query a stream", |scene| scene.foreign.is_complete().map(drop).map_err(Into::into)),
    ("capture", |scene| Capture::begin(&scene.own, CaptureMode::Relaxed).map(drop)),
    ("capture a foreign stream", |scene| Capture::begin(&scene.foreign, CaptureMode::Relaxed).map(drop)),
    ("launch a graph", |scene| {
        let graph = Capture::begin(&Stream::new(&scene.device)?, CaptureMode::Relaxed)?.end()?;
        // SAFETY: the graph is empty.
        unsafe { graph.instantiate()?.launch(&scene.foreign) }
    }),
    ("make a stream wait", |scene| scene.own.wait_for(&scene.foreign).map_err(Into::into)),
    ("make a foreign stream wait", |scene| scene.foreign.wait_for(&scene.own).map_err(Into::into)),
    ("wait for an event", |scene| {
        let event = Event::new(&scene.device)?;
        event.record(&scene.foreign)?;
        scene.own.wait(&event)?;
        event.synchronize().map_err(Into::into)
    }),
    ("allocate", |scene| scene.pool.alloc(MIB, &scene.own).map(drop)),
    ("allocate on a foreign stream", |scene| {
        scene.pool.alloc(MIB, &scene.foreign)?.record_use(&scene.own);
        Ok(())
    }),
    ("allocate too much", |scene| scene.pool.alloc(2048 * MIB, &scene.own).map(drop)),
    ("allocate what is there", |scene| scene.pool.alloc_up_to(KIB..=2048 * MIB, &scene.own).map(drop)),
    ("reserve", |scene| scene.pool.reserve(32 * MIB)),
    ("copy", |scene| {
        let mut block = scene.pool.alloc(4, &scene.foreign)?;
        block.copy_from_host(0, &[1_u8; 4], &scene.foreign)?;
        block.copy_to_host(0, &mut [0_u8; 4], &scene.own)
    }),
    ("grow", |scene| {
        let mut block = scene.pool.growable(64 * MIB, &scene.own)?;
        block.grow_to(8 * MIB)?;
        block.shrink_to(MIB)
    }),
    ("reclaim", |scene| scene.pool.reclaim().map(drop)),
    ("trim", |scene| scene.pool.trim_to(0).map(drop)),
    ("status", |scene| scene.pool.status().map(drop)),
    ("reset the peaks", |scene| scene.pool.reset_peaks()),
    ("list the pools", |scene| {
        drop(Pool::list(&scene.device));
        scene.device.memory_info().map(drop).map_err(Into::into)
    }),
    ("change a limit", |scene| scene.pool.set_hard_limit(128 * MIB)),
    ("sleep", |scene| {
        let block = scene.pool.alloc(MIB, &scene.own)?;
        scene.pool.sleep(Keep::OnHost)?;
        scene.pool.wake()?;
        block.record_use(&scene.foreign);
        Ok(())
    }),
    ("borrow", |scene| scene.own.run_borrowed("a test", MemoryRange::NONE, |_| ()).map_err(Into::into)),
    ("borrow on a foreign stream", |scene| {
        scene.foreign.run_borrowed("a test", MemoryRange::NONE, |_| ()).map_err(Into::into)
    }),
    ("lend host memory", |scene| scene.device.with_host_memory(&mut [0_u8; 64], |_| ()).map_err(Into::into)),
    ("register host memory", |scene| {
        drop(HostMemory::register(&scene.device, vec![0_u8; 64]));
        Ok(())
    }),
    ("build a pool", |scene| Pool::builder(&scene.device).backend(scene.backend).build().map(drop)),
    ("divide a pool", |scene| scene.pool.private_named("a part", MIB).map(drop)),
    ("make a pool current", |scene| scene.pool.make_current().map(drop)),
    ("make a stream", |scene| Stream::new(&scene.device).map(drop).map_err(Into::into)),
    ("wrap a stream", |scene| {
        let raw = Scene::make(&scene.device);
        let wrapped = Scene::wrap(&scene.device, raw);
        wrapped.retire().map_err(Into::into)
    }),
    ("use default streams", |scene| {
        Stream::per_thread(&scene.device)?.synchronize()?;
        Stream::legacy(&scene.device)?.synchronize().map_err(Into::into)
    }),
    ("register a callback", |scene| {
        drop(Registration::new(&scene.device, &Arc::new(Callback(Box::new(|| ())))));
        Ok(())
    }),
];

/// The call under test. It runs once, however often the place is reached.
type Inside = Arc<dyn Fn() + Send + Sync>;

/// A function of the program that this library calls, or a guard of this library that the program holds.
type Place = (&'static str, fn(&Scene, Inside) -> Outcome);

const PLACES: &[Place] = &[
    ("a closure with a stream", |scene, inside| {
        scene.own.run_borrowed("a test", MemoryRange::NONE, |_| inside()).map_err(Into::into)
    }),
    ("a closure with a foreign stream", |scene, inside| {
        scene.foreign.run_borrowed("a test", MemoryRange::NONE, |_| inside()).map_err(Into::into)
    }),
    ("a closure with host memory", |scene, inside| {
        scene.device.with_host_memory(&mut [0_u8; 256], |_| inside()).map_err(Into::into)
    }),
    ("a reclaim callback", |scene, inside| {
        let callback = Arc::new(Callback(Box::new(move || inside())));
        let _registration = Registration::new(&scene.device, &callback);
        let pool = Pool::builder(&scene.device).backend(scene.backend).build()?;
        let _most = pool.alloc(800 * MIB, &scene.own)?;
        pool.alloc(400 * MIB, &scene.foreign).map(drop)
    }),
    ("an observer of refusals", |scene, inside| {
        let builder = Pool::builder(&scene.device).backend(scene.backend).on_out_of_memory(move |_| inside());
        let pool = builder.build()?;
        let _most = pool.alloc(800 * MIB, &scene.own)?;
        pool.alloc(400 * MIB, &scene.own).map(drop)
    }),
    ("an injected failure", |scene, inside| {
        let fails = Failures::when(move |_| {
            inside();
            true
        });
        scene.with_adaptor(fails)?.alloc(1, &scene.own).map(drop)
    }),
    ("the end of tracking", |scene, inside| {
        let pool = scene.with_adaptor(Tracking::new().on_end(move |_| inside()))?;
        let block = pool.alloc(1, &scene.own)?;
        drop((pool, block));
        Ok(())
    }),
    ("the opening of an adaptor", |scene, inside| scene.with_adaptor(Hook::new("open", inside)).map(drop)),
    ("an allocation of an adaptor", |scene, inside| hooked(scene, "alloc", inside)),
    ("an answer of an adaptor", |scene, inside| hooked(scene, "answer", inside)),
    ("a free of an adaptor", |scene, inside| hooked(scene, "free", inside)),
    ("the close of an adaptor", |scene, inside| hooked(scene, "close", inside)),
    ("a waker", |scene, inside| {
        let wakes = Arc::new(Wakes(Mutex::default(), inside));
        let (waker, (told, heard)) = (Waker::from(wakes.clone()), channel());
        *wakes.0.lock().unwrap() = Some(told);
        let _bound = scene.device.bind()?;
        let block = scene.pool.alloc(4, &scene.own)?;
        // SAFETY: the block has four bytes, and is freed behind the fill.
        unsafe { scene.device.driver().cuMemsetD8Async(block.address(), 1, 4, scene.own.raw())? };
        let mut done = scene.own.completion();
        match Pin::new(&mut done).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(done) => {
                waker.wake();
                done.map_err(Into::into)
            }
            Poll::Pending => {
                scene.own.synchronize()?;
                let _ = heard.recv();
                Ok(())
            }
        }
    }),
    ("the drop of a stream's owner", |scene, inside| {
        let raw = Scene::make(&scene.device);
        // SAFETY: the stream is never destroyed.
        let stream = unsafe { Stream::from_raw_with_owner(&scene.device, raw, OnDrop(inside))? };
        drop(stream);
        Ok(())
    }),
    ("a capture", |scene, inside| {
        let capture = Capture::begin(&scene.own, CaptureMode::Relaxed)?;
        inside();
        capture.end().map(drop)
    }),
    ("a capture of a foreign stream", |scene, inside| {
        let capture = Capture::begin(&scene.foreign, CaptureMode::Global)?;
        inside();
        capture.end().map(drop)
    }),
    ("a scope", |scene, inside| {
        let _scope = scene.pool.scope("a test");
        inside();
        Ok(())
    }),
    ("a current pool", |scene, inside| {
        let current = scene.pool.make_current();
        inside();
        current.map(drop)
    }),
    ("a bound context", |scene, inside| {
        let _bound = scene.device.bind()?;
        inside();
        Ok(())
    }),
    ("registered host memory", |scene, inside| {
        let _memory = HostMemory::register(&scene.device, vec![0_u8; 256]);
        inside();
        Ok(())
    }),
    ("a pool that sleeps", |scene, inside| {
        let _block = scene.pool.alloc(MIB, &scene.own)?;
        let slept = scene.pool.sleep(Keep::OnHost);
        inside();
        slept.map(drop)
    }),
];

struct Callback(Box<dyn Fn() + Send + Sync>);

impl Reclaimable for Callback {
    fn purge(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        (self.0)();
        Ok(())
    }
}

struct OnDrop(Inside);

impl Drop for OnDrop {
    fn drop(&mut self) {
        (self.0)();
    }
}

struct Wakes(Mutex<Option<std::sync::mpsc::Sender<()>>>, Inside);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        (self.1)();
        self.0.lock().unwrap().take();
    }
}

/// An adaptor with one function that makes the call.
struct Hook {
    at: &'static str,
    inside: Inside,
}

impl Hook {
    fn new(at: &'static str, inside: Inside) -> Self {
        Self { at, inside }
    }

    fn reach(&self, at: &str) {
        if self.at == at {
            (self.inside)();
        }
    }
}

impl Adaptor for Hook {
    fn open(&self, _: &Opening<'_>) {
        self.reach("open");
    }

    fn alloc(&self, request: &Request<'_>, next: Next<'_>) -> Result<Grant, PoolError> {
        self.reach("alloc");
        let grant = next.alloc(request)?;
        self.reach("answer");
        Ok(grant)
    }

    fn free(&self, _: &Release<'_>) {
        self.reach("free");
    }

    fn close(&self, _: PoolId) {
        self.reach("close");
    }
}

/// Uses a pool with the adaptor, so that all of its functions are called.
fn hooked(scene: &Scene, at: &'static str, inside: Inside) -> Outcome {
    let pool = scene.with_adaptor(Hook::new(at, inside))?;
    drop(pool.alloc(MIB, &scene.foreign)?);
    Ok(())
}

/// Makes one call in one place, on a thread of its own. Returns what went wrong.
fn run(backend: BackendKind, place: Place, call: Call) -> Option<String> {
    let (done, ended) = channel();
    let thread = std::thread::spawn(move || {
        let scene = Arc::new(Scene::new(backend));
        let (inside, once) = (scene.clone(), Mutex::new(true));
        let reached = Arc::new(Mutex::new(false));
        let seen = reached.clone();
        let inside: Inside = Arc::new(move || {
            if std::mem::take(&mut *once.lock().unwrap()) {
                let _ = (call.1)(&inside);
                *seen.lock().unwrap() = true;
            }
        });
        let _ = (place.1)(&scene, inside);
        let _ = scene.pool.alloc(1, &scene.own);
        done.send(*reached.lock().unwrap()).unwrap();
    });
    let what = match ended.recv_timeout(DEADLOCK_AFTER) {
        Ok(true) => {
            thread.join().err()?;
            "panics in the end"
        }
        Ok(false) => "is not called",
        Err(RecvTimeoutError::Timeout) => "hangs",
        Err(RecvTimeoutError::Disconnected) => "panics",
    };
    Some(format!("{backend:?}: {} in {}: {what}", call.0, place.0))
}

#[test]
fn no_call_waits_for_its_own_caller() {
    let mut wrong = Vec::new();
    for backend in built_backends() {
        for place in PLACES {
            // A process can have 64 simulators, and other tests run beside this one.
            for calls in CALLS.chunks(6) {
                let threads: Vec<_> = calls
                    .iter()
                    .map(|call| std::thread::spawn(move || run(backend, *place, *call)))
                    .collect();
                wrong.extend(threads.into_iter().filter_map(|thread| thread.join().unwrap()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// As `begin_capture` is refused there. Another thread that retires the stream waits for the call.
#[test]
fn a_stream_is_not_retired_in_its_own_closure() {
    let (done, ended) = channel();
    let thread = std::thread::spawn(move || {
        retire_in_closures();
        done.send(()).unwrap();
    });
    assert!(!matches!(ended.recv_timeout(DEADLOCK_AFTER), Err(RecvTimeoutError::Timeout)), "it hangs");
    thread.join().unwrap();
}

fn retire_in_closures() {
    let scene = Scene::new(BackendKind::None);
    let refused =
        scene.foreign.run_borrowed("a test", MemoryRange::NONE, |_| scene.foreign.retire()).unwrap();
    assert!(matches!(refused, Err(DeviceError::Stream(StreamError::Borrowed))), "{refused:?}");
    scene.foreign.synchronize().unwrap();
    let nested = || {
        scene.foreign.run_borrowed("a test", MemoryRange::NONE, |_| ()).and_then(|()| scene.foreign.retire())
    };
    let refused = scene.foreign.run_borrowed("a test", MemoryRange::NONE, |_| nested()).unwrap();
    assert!(matches!(refused, Err(DeviceError::Stream(StreamError::Borrowed))), "{refused:?}");
    // A stream of this crate is refused too, though its retirement would change nothing.
    let refused = scene.own.run_borrowed("a test", MemoryRange::NONE, |_| scene.own.retire()).unwrap();
    assert!(matches!(refused, Err(DeviceError::Stream(StreamError::Borrowed))), "{refused:?}");
    scene.own.retire().unwrap();
    scene.own.synchronize().unwrap();
    std::thread::scope(|scope| {
        let elsewhere = scene.foreign.run_borrowed("a test", MemoryRange::NONE, |_| {
            let elsewhere = scope.spawn(|| scene.foreign.retire());
            while !matches!(scene.foreign.check_usable(), Err(DeviceError::Stream(StreamError::Retired))) {
                std::thread::yield_now();
            }
            // The other thread waits for this closure.
            let refused = scene.foreign.retire();
            assert!(matches!(refused, Err(DeviceError::Stream(StreamError::Borrowed))), "{refused:?}");
            elsewhere
        });
        elsewhere.unwrap().join().unwrap().unwrap();
    });
}

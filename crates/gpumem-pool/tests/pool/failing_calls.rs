//! Each driver call fails once, in a program that uses every part of a pool: the pool undoes the operation, a second attempt
//! succeeds, and no memory is lost. And when another process takes memory, the pool releases its own and retries.

use crate::call_counter::{asked_count, calls, count_calls, fail_question};
use crate::fixture::{built_backends, stride};
use gpumem_pool::sys::{CUresult, Driver};
use gpumem_pool::{
    BackendKind, Block, Capture, CaptureMode, Device, Event, Graph, GraphExec, GrowableBlock, MemoryKind,
    Pool, PoolBuilder, PoolError, Profile, Stream, Unsupported,
};
use gpumem_sim::SimConfig;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const DEVICE_BYTES: u64 = 128 * MIB;

/// A backend with one of its profiles, and the kind of memory.
#[derive(Clone, Copy)]
struct Setting {
    backend: BackendKind,
    profile: Option<Profile>,
    plain_segments: bool,
    kind: MemoryKind,
}

/// Every backend that is built in, with each of its profiles, plain segments if it can use them, and each kind of memory.
fn settings() -> Vec<Setting> {
    let mut all = Vec::new();
    for backend in built_backends() {
        let is_caching = backend == BackendKind::Caching;
        let profile = is_caching.then_some(Profile::Balanced);
        let of_device = Setting { backend, profile, plain_segments: false, kind: MemoryKind::Device };
        all.push(of_device);
        if is_caching {
            all.extend(
                Profile::ALL
                    .iter()
                    .filter(|profile| **profile != Profile::Balanced)
                    .map(|profile| Setting { profile: Some(*profile), ..of_device }),
            );
            all.push(Setting { plain_segments: true, ..of_device });
        }
        if backend != BackendKind::Native {
            all.extend([MemoryKind::Unified, MemoryKind::Host].map(|kind| Setting { kind, ..of_device }));
        }
    }
    all
}

impl Setting {
    fn builder(self, device: &Device) -> PoolBuilder {
        let builder = Pool::builder(device).backend(self.backend).kind(self.kind);
        let builder =
            if self.plain_segments { builder.conf("expandable_segments:false").unwrap() } else { builder };
        self.profile.into_iter().fold(builder, PoolBuilder::profile)
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { backend, profile, plain_segments, kind } = self;
        write!(f, "{backend} {profile:?}, plain segments {plain_segments}, {kind} memory")
    }
}

/// The state of the program.
struct State {
    setting: Setting,
    device: Device,
    pool: Option<Pool>,
    private: Option<Pool>,
    idle: Option<Pool>,
    /// True if a pool may have left memory.
    has_left: bool,
    streams: Vec<Stream>,
    event: Option<Event>,
    blocks: Vec<Block>,
    growable: Option<GrowableBlock>,
    graph: Option<Graph>,
    exec: Option<GraphExec>,
}

type Step = (&'static str, fn(&mut State) -> Result<(), PoolError>);

/// Each step can be repeated after a failure.
const PROGRAM: &[Step] = &[
    ("a pool", |state| {
        state.pool = Some(state.setting.builder(&state.device).hard_limit(48 * MIB).build()?);
        Ok(())
    }),
    ("a stream", State::add_stream),
    ("another", State::add_stream),
    ("a small block", |state| state.alloc(1000, 0)),
    ("a large one", |state| state.alloc(6 * MIB, 0)),
    ("one on the other stream", |state| state.alloc(9 * MIB, 1)),
    ("a small one there", |state| state.alloc(1000, 1)),
    ("an event", |state| {
        state.event = Some(Event::new(&state.device)?);
        Ok(())
    }),
    ("a record", |state| state.event().record(&state.streams[0]).map_err(Into::into)),
    ("a wait for it", |state| state.streams[1].wait(state.event()).map_err(Into::into)),
    ("a stream waits", |state| state.streams[0].wait_for(&state.streams[1]).map_err(Into::into)),
    ("frees", |state| {
        state.blocks.iter().for_each(|block| block.record_use(&state.streams[0]));
        state.blocks.clear();
        Ok(())
    }),
    ("what others have freed", |state| state.alloc(16 * MIB, 1)),
    ("growth to the limit", |state| state.alloc(24 * MIB, 0)),
    ("small blocks beside it", |state| state.alloc(100_000, 0)),
    ("a free", |state| {
        drop(state.blocks.pop());
        Ok(())
    }),
    ("an aligned block", |state| {
        let block = state.pool().alloc_aligned(1000, 64 << 10, &state.streams[1])?;
        state.blocks.push(block);
        Ok(())
    }),
    ("a trim", |state| state.pool().trim_to(4 * MIB).map(drop)),
    ("more frees", |state| {
        state.blocks.clear();
        Ok(())
    }),
    ("a question", |state| state.streams[0].is_complete().map(drop).map_err(Into::into)),
    ("a question of an event", |state| state.event().is_complete().map(drop).map_err(Into::into)),
    ("a wait of the host", |state| state.streams[0].synchronize().map_err(Into::into)),
    ("a wait for an event", |state| state.event().synchronize().map_err(Into::into)),
    ("a wait for the device", State::finish),
    ("a growable block", |state| match state.pool().growable(32 * MIB, &state.streams[0]) {
        Err(PoolError::Unsupported(
            Unsupported::OnBackend { .. } | Unsupported::OnSegments { .. } | Unsupported::OnKind { .. },
        )) => Ok(()),
        made => {
            state.growable = Some(made?);
            Ok(())
        }
    }),
    ("growth in place", |state| state.growable.as_mut().map_or(Ok(()), |block| block.grow_to(9 * MIB))),
    ("more of it", |state| state.growable.as_mut().map_or(Ok(()), |block| block.grow_to(30 * MIB))),
    ("less of it", |state| state.growable.as_mut().map_or(Ok(()), |block| block.shrink_to(MIB))),
    ("a private pool", |state| {
        state.private = Some(state.pool().private(16 * MIB)?);
        Ok(())
    }),
    ("a block of it", |state| {
        let private = state.private.as_ref().unwrap();
        let block = private.alloc(8 * MIB, &state.streams[1])?;
        state.blocks.push(block);
        Ok(())
    }),
    ("a reserve", |state| state.pool().reserve(24 * MIB)),
    ("a graph", |state| {
        let capture = Capture::begin(&state.streams[0], CaptureMode::Global)?;
        let scratch = state.pool().alloc(MIB, &state.streams[0])?;
        drop(scratch);
        state.graph = Some(capture.end()?);
        Ok(())
    }),
    ("an executable", |state| {
        state.exec = Some(state.graph.as_ref().unwrap().instantiate()?);
        Ok(())
    }),
    ("a launch", |state| {
        // SAFETY: the graph accesses no memory.
        unsafe { state.exec.as_ref().unwrap().launch(&state.streams[1]) }
    }),
    ("no graph any more", |state| {
        (state.graph, state.exec) = (None, None);
        Ok(())
    }),
    ("a reclaim", |state| state.pool().reclaim().map(drop)),
    ("a block after it", |state| state.alloc(3 * MIB, 0)),
    ("a soft limit", |state| state.pool().set_soft_limit(8 * MIB)),
    ("more than that", |state| {
        let held = [0, 1].map(|stream| state.pool().alloc(9 * MIB, &state.streams[stream]));
        held.into_iter().try_for_each(|block| block.map(drop))
    }),
    ("queries that serve it", State::query),
    ("allocations that serve it", |state| {
        std::thread::sleep(SERVED_EVERY);
        state.alloc(3 * MIB, 1)?;
        state.alloc(200_000, 0)
    }),
    ("an idle pool", |state| {
        let idle = state.setting.builder(&state.device).conf("trim_when_idle_ms:0")?.build()?;
        drop(idle.alloc(5 * MIB, &state.streams[0])?);
        state.idle = Some(idle);
        Ok(())
    }),
    ("queries that trim it", State::query),
    ("what a pool leaves that ends", |state| {
        let ended = state.setting.builder(&state.device).build()?;
        let block = ended.alloc(5 * MIB, &state.streams[1])?;
        block.record_use(&state.streams[0]);
        state.has_left = true;
        Ok(())
    }),
    ("queries that give it back", State::query),
    ("a last reclaim", |state| {
        state.pool().reclaim()?;
        state.idle.as_ref().unwrap().reclaim()?;
        state.finish()
    }),
];

impl State {
    fn new(setting: Setting, driver: &Driver) -> Result<Self, PoolError> {
        Ok(Self {
            setting,
            device: Device::new(driver, 0)?,
            pool: None,
            private: None,
            idle: None,
            has_left: false,
            streams: Vec::new(),
            event: None,
            blocks: Vec::new(),
            growable: None,
            graph: None,
            exec: None,
        })
    }

    fn pool(&self) -> &Pool {
        self.pool.as_ref().unwrap()
    }

    fn event(&self) -> &Event {
        self.event.as_ref().unwrap()
    }

    fn add_stream(&mut self) -> Result<(), PoolError> {
        self.streams.push(Stream::new(&self.device)?);
        Ok(())
    }

    /// Waits for the device, which releases the memory of ended pools.
    fn finish(&mut self) -> Result<(), PoolError> {
        self.device.synchronize()?;
        self.has_left = false;
        Ok(())
    }

    /// Queries often enough for maintenance to complete, which does a little in each query.
    fn query(&mut self) -> Result<(), PoolError> {
        for _ in 0..2 {
            std::thread::sleep(SERVED_EVERY);
            for stream in &self.streams {
                stream.is_complete()?;
            }
            self.event().is_complete()?;
        }
        Ok(())
    }

    fn alloc(&mut self, size_bytes: u64, stream: usize) -> Result<(), PoolError> {
        let block = self.pool().alloc(size_bytes, &self.streams[stream])?;
        self.blocks.push(block);
        Ok(())
    }

    /// Compares the status of the pools with the device.
    fn check(&self) {
        let pools: Vec<&Pool> = self.pool.iter().chain(&self.private).chain(&self.idle).collect();
        let mut reserved_bytes = 0;
        for pool in &pools {
            pool.check().unwrap();
            // The failing call may be one of these.
            let status = pool.status().or_else(|_| pool.status()).unwrap();
            assert!(
                status.in_use_bytes <= status.reserved_bytes && status.reserved_bytes <= 48 * MIB + SLACK
            );
            reserved_bytes += status.reserved_bytes;
        }
        let info = self.device.memory_info().or_else(|_| self.device.memory_info()).unwrap();
        let used_bytes = info.total_bytes - info.free_bytes;
        match self.setting.backend {
            _ if self.setting.kind != MemoryKind::Device => {}
            // Memory of an ended pool is released where the host waits or queries.
            BackendKind::Caching if !self.has_left => assert_eq!(used_bytes, reserved_bytes),
            _ => assert!(used_bytes >= reserved_bytes),
        }
    }
}

/// The interval of maintenance in queries and allocations.
const SERVED_EVERY: Duration = Duration::from_micros(1100);

/// The driver's own pools grow in segments.
const SLACK: u64 = 64 * MIB;

/// The outcome of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Whole,
    /// A free failed: the pool reports it from then on, and releases its memory at its end.
    Poisoned,
    /// The call that ends a capture failed: the stream still captures, and keeps its memory.
    Capturing,
}

/// Runs the program.
fn run(state: &mut State) -> End {
    for (name, step) in PROGRAM {
        match step(state) {
            Ok(()) => {}
            Err(PoolError::Poisoned { .. }) => return End::Poisoned,
            Err(_) if *name == "a graph" && calls().failed.is_some_and(ends_capture) => {
                return End::Capturing;
            }
            Err(error) => {
                assert!(calls().failed.is_some(), "{name}: {error}");
                // A pool whose creation failed may have left memory, like an ended pool.
                state.has_left |= name.contains("pool");
                state.check();
                match step(state) {
                    Err(PoolError::Poisoned { .. }) => return End::Poisoned,
                    again => again.unwrap_or_else(|again| panic!("{name}: {error}, and again: {again}")),
                }
            }
        }
        if state.pool.is_some() {
            state.check();
        }
    }
    End::Whole
}

fn ends_capture(call: &str) -> bool {
    call == "cuStreamEndCapture" || call.starts_with("cuCtx")
}

fn new_driver() -> Driver {
    gpumem_sim::driver(SimConfig::new().memory_bytes(DEVICE_BYTES)).unwrap()
}

#[test]
fn each_call_fails_once_and_its_operation_is_undone() {
    for (index, setting) in settings().into_iter().enumerate() {
        let plain = new_driver();
        let driver = count_calls(&plain, None);
        assert!(run(&mut State::new(setting, &driver).unwrap()) == End::Whole);
        let total = calls().total();
        drop(driver);
        let stride = match setting {
            Setting { kind: MemoryKind::Device, profile: None | Some(Profile::Balanced), .. } => stride(4),
            // Profiles and kinds of memory make mostly the same calls.
            _ => 5 * stride(4),
        };
        // Each run sleeps most of the time. The counts belong to a thread.
        let next = AtomicU64::new(1);
        std::thread::scope(|scope| {
            for _ in 0..THREAD_COUNT {
                scope.spawn(|| {
                    let nths = std::iter::repeat_with(|| next.fetch_add(stride, Ordering::Relaxed));
                    for nth in nths.take_while(|nth| *nth <= total) {
                        fail_once(setting, nth, CODES[(nth as usize + index) % 2]);
                    }
                });
            }
        });
    }
}

const THREAD_COUNT: usize = 6;

const CODES: [CUresult; 2] = [CUresult::CUDA_ERROR_OUT_OF_MEMORY, CUresult::CUDA_ERROR_OPERATING_SYSTEM];

/// The question whether a device was reset comes before most calls: one in ten fails.
#[test]
fn questions_for_a_reset_may_fail() {
    for setting in settings().into_iter().filter(|setting| setting.kind == MemoryKind::Device) {
        let plain = new_driver();
        let driver = count_calls(&plain, None);
        assert!(run(&mut State::new(setting, &driver).unwrap()) == End::Whole);
        let total = asked_count();
        assert!(total > 20, "{setting}: {total}");
        for nth in (1..=total).step_by(10) {
            let code = CODES[(nth as usize / 10) % 2];
            fail_one(setting, (nth, code), |plain| {
                let driver = count_calls(plain, None);
                fail_question(nth, code);
                driver
            });
        }
    }
}

fn fail_once(setting: Setting, nth: u64, code: CUresult) {
    fail_one(setting, (nth, code), |plain| count_calls(plain, Some((nth, code))));
}

fn fail_one(setting: Setting, (nth, code): (u64, CUresult), counted: impl FnOnce(&Driver) -> Driver) {
    let printed = PrintOnPanic(setting, nth, code);
    let plain = new_driver();
    let driver = counted(&plain);
    let Ok(mut state) = State::new(setting, &driver) else { return };
    let end = run(&mut state);
    let device = state.device.clone();
    drop(state);
    // Memory of ended pools is released where the host waits; one of these calls may be the one that fails.
    let finished = [device.synchronize(), device.synchronize()];
    if end != End::Capturing {
        assert!(finished.iter().any(Result::is_ok), "{finished:?}");
        let report = gpumem_sim::Sim::of(&plain).unwrap().report();
        assert!(report.allocations.is_empty(), "{report}");
        assert_eq!((report.handle_count, report.reservation_count), (0, 0), "{report}");
        let info = device.memory_info().or_else(|_| device.memory_info()).unwrap();
        assert_eq!(info.free_bytes, info.total_bytes, "{report}");
        assert_eq!(report.findings.iter().filter(|finding| finding.is_silent()).count(), 0, "{report}");
        let left = (report.stream_count, report.event_count);
        assert_eq!(left, (0, 0), "{report}");
        assert_eq!(report.graph_count + report.executable_graph_count, 0, "{report}");
    }
    drop(printed);
}

fn of_device_memory() -> impl Iterator<Item = Setting> {
    settings().into_iter().filter(|setting| setting.kind == MemoryKind::Device)
}

/// Prints the failing call if a test panics.
struct PrintOnPanic(Setting, u64, CUresult);

impl Drop for PrintOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let call = calls().failed.unwrap_or("none yet");
            eprintln!("{}, call {} ({call}) failed with {:?}", self.0, self.1, self.2);
        }
    }
}

/// A request with several handles: if one of its mappings fails, the handles and mappings before it are released.
#[test]
#[cfg(feature = "backend-caching")]
fn any_mapping_of_several_fails_and_all_are_undone() {
    let pool_of = |driver: &Driver| {
        let device = Device::new(driver, 0).unwrap();
        let builder = Pool::builder(&device).conf("backend:caching,handle_bytes_max:2MiB").unwrap();
        let pool = builder.build().unwrap();
        let stream = Stream::new(&device).unwrap();
        (pool, stream)
    };
    let plain = new_driver();
    let driver = count_calls(&plain, None);
    let (pool, stream) = pool_of(&driver);
    let before = calls();
    drop(pool.alloc(10 * MIB, &stream).unwrap());
    let after = calls();
    let of_request = ["cuMemCreate", "cuMemMap"].map(|name| after.count(name) - before.count(name));
    assert_eq!(of_request, [5, 5]);
    let first = before.total();
    let total = after.total() - first;
    drop((pool, stream, driver));
    let mut refused = Vec::new();
    for nth in 1..=total {
        let plain = new_driver();
        let driver = count_calls(&plain, Some((first + nth, CUresult::CUDA_ERROR_OPERATING_SYSTEM)));
        let (pool, stream) = pool_of(&driver);
        assert_eq!(calls().failed, None, "the request's own calls");
        let outcome = pool.alloc(10 * MIB, &stream);
        refused.extend(calls().failed);
        if outcome.is_err() && matches!(calls().failed, Some("cuMemCreate" | "cuMemMap" | "cuMemSetAccess")) {
            let report = gpumem_sim::Sim::of(&plain).unwrap().report();
            assert_eq!((report.handle_count, pool.status().unwrap().reserved_bytes), (0, 0));
            pool.check().unwrap();
        }
        drop(outcome);
        drop(pool.alloc(10 * MIB, &stream).unwrap());
    }
    assert_eq!(refused.iter().filter(|call| **call == "cuMemMap").count(), 5, "{refused:?}");
}

/// If another process takes memory, the pool releases cached memory and retries before it reports an error.
#[test]
fn memory_taken_by_another_process_is_no_error_while_cached_memory_can_be_released() {
    for setting in of_device_memory().filter(|setting| setting.backend != BackendKind::None) {
        let driver = new_driver();
        let sim = gpumem_sim::Sim::of(&driver).unwrap();
        let device = Device::new(&driver, 0).unwrap();
        let pool = setting.builder(&device).build().unwrap();
        let (home, other) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
        // Cached blocks that are too small for the requests below, on another stream, with pending work.
        let blocks: Vec<Block> = (0..12).map(|_| pool.alloc(3 * MIB, &other).unwrap()).collect();
        for block in &blocks {
            let _bound = device.bind().unwrap();
            // SAFETY: the block is alive until the work is complete.
            unsafe { driver.cuMemsetD8Async(block.address(), 1, 3 << 20, other.raw()).unwrap() };
        }
        drop(blocks);
        assert!(sim.take_memory(0, DEVICE_BYTES) > 0);
        assert_eq!(device.memory_info().unwrap().free_bytes, 0);
        for size_bytes in [3 * MIB, 20 * MIB, 1000, 5 * MIB + 1, 30 * MIB] {
            let block = pool.alloc(size_bytes, &home);
            let block = block.unwrap_or_else(|error| panic!("{setting}, {size_bytes} bytes: {error}"));
            pool.check().unwrap();
            drop(block);
            // The other process also takes the memory that was released for the request.
            sim.take_memory(0, DEVICE_BYTES / 256);
        }
        let error = pool.alloc(100 * MIB, &home).unwrap_err();
        assert!(matches!(error, PoolError::OutOfMemory(_)), "{setting}: {error:?}");
        sim.return_memory(0, u64::MAX);
        drop(pool.alloc(100 * MIB, &home).unwrap());
    }
}

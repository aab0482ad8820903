//! Every entry point with a stream argument refuses a stream that it cannot use, before the driver gets the handle: a retired
//! stream, a per-thread stream of another thread, a stream of another device; and a capturing stream if the graph cannot contain
//! the work.

#![forbid(unsafe_code)]

use gpumem_sim::SimConfig;
use gpumem_tests::array::{Gpu, GpuArray};
use gpumem_tests::driver::count_calls;
use gpumem_tests::pool::adaptor::{Adaptor, Release};
use gpumem_tests::pool::{
    BackendKind, Block, Capture, CaptureError, CaptureMode, Device, DeviceError, Event, GrowableBlock,
    Location, MemoryKind, Pool, PoolError, Stream, StreamError, StreamId,
};
use gpumem_tests::sys::Driver;
use gpumem_trace::calls::reading;
use std::sync::{Arc, Mutex};

const MIB: u64 = 1 << 20;

struct Stage {
    device: Device,
    pool: Pool,
    own: Stream,
    event: Event,
    block: Block,
    unified: Block,
    growable: GrowableBlock,
    array: GpuArray<f32, gpumem_tests::array::ndarray::Ix1>,
}

impl Stage {
    fn new(driver: &Driver) -> Self {
        let device = Device::new(driver, 0).unwrap();
        let pool = Pool::builder(&device).backend(BackendKind::Caching).build().unwrap();
        let own = Stream::new(&device).unwrap();
        let event = Event::new(&device).unwrap();
        let block = pool.alloc(MIB, &own).unwrap();
        let unified = Pool::builder(&device).kind(MemoryKind::Unified).build().unwrap();
        let unified = unified.alloc(MIB, &own).unwrap();
        let growable = pool.growable(8 * MIB, &own).unwrap();
        let array = GpuArray::zeros(&Gpu::with_stream(&pool, &own).unwrap(), 4).unwrap();
        // Loads the kernels that the entries use.
        array.try_mul(2.0).unwrap();
        Self { device, pool, own, event, block, unified, growable, array }
    }
}

/// The result of an entry on a capturing stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InCapture {
    Refused,
    Fine,
}
use InCapture::{Fine, Refused};

type Entry = (&'static str, InCapture, fn(&Stage, &Stream) -> Result<(), PoolError>);

const ENTRIES: &[Entry] = &[
    ("Pool::alloc", Fine, |stage, stream| stage.pool.alloc(1000, stream).map(drop)),
    ("Pool::alloc, large", Fine, |stage, stream| stage.pool.alloc(9 * MIB, stream).map(drop)),
    ("Pool::alloc, empty", Fine, |stage, stream| stage.pool.alloc(0, stream).map(drop)),
    ("Pool::alloc_aligned", Fine, |stage, stream| stage.pool.alloc_aligned(1000, 4096, stream).map(drop)),
    ("Pool::growable", Fine, |stage, stream| stage.pool.growable(MIB, stream).map(drop)),
    ("Block::prefetch", Refused, |stage, stream| stage.unified.prefetch(0..MIB, Location::Host, stream)),
    ("Pool::alloc_zeroed", Refused, |stage, stream| stage.pool.alloc_zeroed(1000, stream).map(drop)),
    ("Block::fill", Refused, |stage, stream| scratch(stage).fill(0..8, 1_u32, stream)),
    ("Block::copy_from_host", Refused, |stage, stream| scratch(stage).copy_from_host(0, &[1_u8; 8], stream)),
    ("Block::copy_to_host", Refused, |stage, stream| stage.block.copy_to_host(0, &mut [1_u8; 8], stream)),
    ("Block::copy_from", Refused, |stage, stream| scratch(stage).copy_from(0, &stage.block, 0..8, stream)),
    ("Block::copy_within", Refused, |stage, stream| scratch(stage).copy_within(0..8, 8, stream)),
    ("Block::fill, no bytes", Fine, |stage, stream| scratch(stage).fill(0..0, 1_u32, stream)),
    ("Stream::synchronize", Refused, |_, stream| stream.synchronize().map_err(Into::into)),
    ("Stream::is_complete", Refused, |_, stream| stream.is_complete().map(drop).map_err(Into::into)),
    ("Stream::is_capturing", Fine, |_, stream| stream.is_capturing().map(drop).map_err(Into::into)),
    ("Stream::wait", Fine, |stage, stream| stream.wait(&stage.event).map_err(Into::into)),
    ("Stream::wait_for", Fine, |stage, stream| stream.wait_for(&stage.own).map_err(Into::into)),
    ("Stream::wait_for, the other", Fine, |stage, stream| stage.own.wait_for(stream).map_err(Into::into)),
    ("Capture::begin", Refused, |_, stream| Capture::begin(stream, CaptureMode::Relaxed).map(drop)),
    ("Event::record", Fine, |stage, stream| stage.event.record(stream).map_err(Into::into)),
    ("GpuArray, an operation", Refused, |stage, stream| {
        of_array(on(stage, stream).and_then(|gpu| stage.array.on(&gpu).try_mul(2.0).map(drop)))
    }),
    ("GpuArray, an upload", Refused, |stage, stream| {
        of_array(on(stage, stream).and_then(|gpu| GpuArray::from_slice(&gpu, &[1.0_f32]).map(drop)))
    }),
    ("GpuArray, a download", Refused, |stage, stream| {
        of_array(on(stage, stream).and_then(|gpu| stage.array.on(&gpu).to_vec().map(drop)))
    }),
    ("GpuArray, zeros", Refused, |stage, stream| {
        of_array(on(stage, stream).and_then(|gpu| GpuArray::<f32, _>::zeros(&gpu, 4).map(drop)))
    }),
];

/// A block that may be written.
fn scratch(stage: &Stage) -> Block {
    stage.pool.alloc(1000, &stage.own).unwrap()
}

type Outcome<T> = Result<T, gpumem_tests::array::ArrayError>;

fn on(stage: &Stage, stream: &Stream) -> Outcome<Gpu> {
    Gpu::with_stream(&stage.pool, stream)
}

fn of_array(outcome: Outcome<()>) -> Result<(), PoolError> {
    use gpumem_tests::array::{ArrayError, GraphError};
    outcome.map_err(|error| match error {
        ArrayError::Pool(error) => error,
        ArrayError::Graph(GraphError::StreamCaptures) => {
            PoolError::Device(DeviceError::Capture(CaptureError::NotCapturable { operation: "an operation" }))
        }
        ArrayError::WrongDevice { expected, found } => {
            PoolError::Device(DeviceError::WrongDevice { expected, found })
        }
        other => panic!("{other}"),
    })
}

/// These functions return no error; the recorded stream must not reach the driver either.
fn record(stage: &Stage, stream: &Stream) {
    stage.block.record_use(stream);
    stage.growable.record_use(stream);
    stage.pool.alloc(MIB, &stage.own).unwrap().free_on(stream);
}

fn driver(device_count: u32) -> Driver {
    gpumem_sim::driver(SimConfig::new().devices(device_count as _)).unwrap()
}

/// Calls every entry point, and returns the names of those without the expected error.
fn refused(stage: &Stage, stream: &Stream, is_right: fn(&PoolError) -> bool) -> Vec<String> {
    let wrong = ENTRIES.iter().filter_map(|(name, _, entry)| match entry(stage, stream) {
        Err(error) if is_right(&error) => None,
        other => Some(format!("{name}: {other:?}")),
    });
    wrong.collect()
}

/// The driver calls with a stream argument.
fn stream_calls() -> u64 {
    let calls = reading().calls;
    calls.cuMemPrefetchAsync
        + calls.cuStreamIsCapturing
        + calls.cuStreamGetCaptureInfo
        + calls.cuStreamSynchronize
        + calls.cuStreamQuery
        + calls.cuStreamWaitEvent
        + calls.cuEventRecord
        + calls.cuMemcpyAsync
        + calls.cuLaunchKernel
        + calls.cuMemsetD8Async
        + calls.cuMemsetD32Async
        + calls.cuStreamBeginCapture_v2
}

#[test]
fn a_stream_that_has_been_retired() {
    let driver = count_calls(&driver(1));
    let stage = Stage::new(&driver);
    for stream in [Stream::legacy(&stage.device).unwrap(), Stream::per_thread(&stage.device).unwrap()] {
        stream.retire().unwrap();
        let before = stream_calls();
        assert_eq!(
            refused(&stage, &stream, |error| matches!(
                error,
                PoolError::Device(DeviceError::Stream(StreamError::Retired))
            )),
            [""; 0]
        );
        assert_eq!(stream_calls(), before, "calls with its handle");
        // Another stream may have its index by now.
        record(&stage, &stream);
    }
    stage.device.synchronize().unwrap();
}

#[test]
fn another_threads_own_stream() {
    let driver = driver(1);
    let stage = Stage::new(&driver);
    let device = stage.device.clone();
    let ((sender, streams), (over, is_over)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
    // Its end would retire the stream.
    let thread = std::thread::spawn(move || {
        sender.send(Stream::per_thread(&device).unwrap()).unwrap();
        let _ended = is_over.recv();
    });
    let theirs = streams.recv().unwrap();
    assert_eq!(
        refused(&stage, &theirs, |error| matches!(
            error,
            PoolError::Device(DeviceError::Stream(StreamError::WrongThread))
        )),
        [""; 0]
    );
    record(&stage, &theirs);
    drop(over);
    thread.join().unwrap();
}

/// During a capture the pool queries the state of streams; this thread's per-thread stream is not the recorded one.
#[test]
fn a_use_by_another_threads_own_stream_is_not_asked_about() {
    let driver = driver(1);
    let stage = Stage::new(&driver);
    let (mine, theirs) = std::thread::scope(|scope| {
        let theirs = scope.spawn(|| Stream::per_thread(&stage.device).unwrap()).join().unwrap();
        (Stream::per_thread(&stage.device).unwrap(), theirs)
    });
    let capture = Capture::begin(&mine, CaptureMode::Relaxed).unwrap();
    let block = stage.pool.alloc(9 * MIB, &stage.own).unwrap();
    block.record_use(&theirs);
    let graph = capture.end().unwrap();
    drop(block);
    stage.device.synchronize().unwrap();
    stage.pool.trim_to(0).unwrap();
    let reserved_bytes = stage.pool.status().unwrap().reserved_bytes;
    assert!(reserved_bytes < 9 * MIB, "the graph keeps what its capture never used: {reserved_bytes}");
    drop(graph);
}

#[test]
fn another_devices_stream() {
    let driver = driver(2);
    let stage = Stage::new(&driver);
    let theirs = Stream::new(&Device::new(&driver, 1).unwrap()).unwrap();
    // Streams of one machine wait for each other, and a stream of one device may use memory of another device.
    let across = ["Stream::", "Block::", "Capture::begin"];
    let wrong =
        refused(&stage, &theirs, |error| matches!(error, PoolError::Device(DeviceError::WrongDevice { .. })));
    let wrong: Vec<String> =
        wrong.into_iter().filter(|line| !across.iter().any(|name| line.starts_with(name))).collect();
    assert_eq!(wrong, [""; 0]);
    record(&stage, &theirs);
    let elsewhere = Stream::new(&Device::new(&self::driver(1), 0).unwrap()).unwrap();
    let moved = stage.unified.prefetch(0..MIB, Location::Host, &elsewhere);
    assert!(matches!(moved, Err(PoolError::Device(DeviceError::WrongDevice { .. }))), "{moved:?}");
}

/// An entry point never breaks a capture, whether it is refused or joins the capture.
#[test]
fn a_stream_that_captures() {
    for (name, expected, entry) in ENTRIES {
        let stage = Stage::new(&driver(1));
        stage.event.record(&stage.own).unwrap();
        let stream = Stream::new(&stage.device).unwrap();
        let capture = Capture::begin(&stream, CaptureMode::Relaxed).unwrap();
        let outcome = entry(&stage, &stream);
        match expected {
            Refused => assert!(
                matches!(
                    outcome,
                    Err(PoolError::Device(DeviceError::Capture(CaptureError::NotCapturable { .. })))
                ),
                "{name}: {outcome:?}"
            ),
            Fine => assert!(outcome.is_ok(), "{name}: {outcome:?}"),
        }
        // A stream that was waited for is part of the capture, and joins it again.
        if name.ends_with("the other") {
            stream.wait_for(&stage.own).unwrap();
        }
        assert!(capture.end().is_ok(), "{name}");
    }
}

/// A prefetch counts as a use of the block on its stream: the free waits for it.
#[test]
fn the_free_waits_for_a_prefetch() {
    let stage = Stage::new(&driver(1));
    let (other, users) = (Stream::new(&stage.device).unwrap(), Arc::new(Users::default()));
    let pool = Pool::builder(&stage.device).kind(MemoryKind::Unified).adaptor(users.clone()).build().unwrap();
    let block = pool.alloc(MIB, &stage.own).unwrap();
    block.prefetch(0..MIB, Location::Host, &stage.own).unwrap();
    block.prefetch(0..MIB, Location::Host, &other).unwrap();
    drop(block);
    assert_eq!(*users.0.lock().unwrap(), [other.id()]);
}

/// The streams that used a block before its free, without its owner stream.
#[derive(Default)]
struct Users(Mutex<Vec<StreamId>>);

impl Adaptor for Users {
    fn free(&self, release: &Release<'_>) {
        self.0.lock().unwrap().extend(release.users());
    }
}

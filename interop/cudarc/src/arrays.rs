//! Arrays of gpumem together with cudarc: as arguments of its functions, made of its slices, and lent as slices. Both sides queue work
//! on several streams, in the order that the simulator's seed chooses; the simulator reports races and leaks at the end.

use cudarc::driver::sys::{self, CUresult, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DeviceSlice, DriverError};
use gpumem_array::cudarc::{self as shared, SharedStream};
use gpumem_array::ndarray::{Axis, Ix1, Slice};
use gpumem_array::pool::sys::Driver;
use gpumem_array::pool::{Device, KeptBy, Pool, Stream};
use gpumem_array::{ArrayError, Gpu, GpuArray, GraphError};
use std::error::Error;
use std::sync::Arc;

type Checked = Result<(), Box<dyn Error>>;
type Array = GpuArray<u32, Ix1>;

pub const CHECKS: &[(&str, fn() -> Checked)] = &[
    ("contexts are shared", contexts),
    ("streams are shared, and live as long as they are used", streams),
    ("what cannot be shared is refused", refused),
    ("arrays are arguments", arguments),
    ("arrays are arguments on another stream than announced", other_streams),
    ("guards may be forgotten", forgotten),
    ("guards are refused in captures", captured_guards),
    ("streams may be retired while arrays are lent", retired),
    ("slices become arrays", slices_in),
    ("slices with an error pending become arrays", pending_error),
    ("slices of the default stream become arrays", default_stream),
    ("arrays are lent as slices", lent),
    ("lent arrays end in use", lent_and_dropped),
    ("arrays are lent where cudarc tracks nothing", lent_untracked),
    ("lent arrays stay in a pool that spills", lent_and_kept),
];

const LEN: usize = 1000;
const BYTES: u64 = 4 * LEN as u64;

/// The driver that cudarc has loaded: NVIDIA's, or the simulator under its name.
fn driver() -> Result<Driver, Box<dyn Error>> {
    Ok(Driver::cuda().or_else(|_| Driver::drop_in())?)
}

/// A context of both libraries, with a stream of each.
struct Sides {
    context: Arc<CudaContext>,
    gpu: Gpu,
    /// A stream of cudarc.
    stream: Arc<CudaStream>,
    shared: SharedStream,
}

impl Sides {
    fn new() -> Result<Self, Box<dyn Error>> {
        Self::with("backend:caching")
    }

    fn with(conf: &str) -> Result<Self, Box<dyn Error>> {
        let context = CudaContext::new(0)?;
        let device = shared::device(&driver()?, &context)?;
        let pool = Pool::builder(&device).conf(conf)?.build()?;
        let (gpu, stream) = (Gpu::new(&pool)?, context.new_stream()?);
        let shared = SharedStream::new(&device, &stream)?;
        Ok(Self { context, gpu, stream, shared })
    }

    fn array(&self, value: u32) -> Result<Array, ArrayError> {
        Array::from_slice(&self.gpu, &[value; LEN])
    }

    /// Waits for all work: nothing is in use, and cudarc has kept no error.
    fn end(self) -> Checked {
        self.gpu.synchronize()?;
        self.context.synchronize()?;
        assert_eq!(self.gpu.pool().status()?.in_use_bytes, 0);
        self.context.check_err()?;
        Ok(())
    }
}

fn current(driver: &Driver) -> Result<usize, Box<dyn Error>> {
    let mut context = std::ptr::null_mut();
    // SAFETY: `context` outlives the call.
    unsafe { driver.cuCtxGetCurrent(&mut context)? };
    Ok(context.addr())
}

fn contexts() -> Checked {
    let driver = driver()?;
    let device = Device::new(&driver, 1)?;
    std::thread::scope(|scope| {
        let on_a_new_thread = || -> Result<(), String> {
            let text = |error: Box<dyn Error>| error.to_string();
            let context = shared::context(&device).map_err(|error| error.to_string())?;
            assert_eq!(context.cu_ctx().addr(), device.context().addr());
            assert_eq!(current(&driver).map_err(text)?, 0, "the current context has changed");
            let again = shared::device(&driver, &context).map_err(|error| error.to_string())?;
            assert_eq!(again, device);
            // The drop of the context by cudarc leaves it current, as always.
            Ok(())
        };
        scope.spawn(on_a_new_thread).join().expect("no panic")
    })?;
    // On a thread where another context is current.
    let other = CudaContext::new(0)?;
    let context = shared::context(&device)?;
    assert_eq!(current(&driver)?, other.cu_ctx().addr());
    let stream = context.new_stream()?;
    other.bind_to_thread()?;
    let shared = SharedStream::new(&device, &stream)?;
    drop((stream, context));
    assert_eq!(current(&driver)?, other.cu_ctx().addr());
    drop(shared);
    assert_eq!(current(&driver)?, other.cu_ctx().addr(), "the end of a stream has changed the context");
    Ok(())
}

fn streams() -> Checked {
    let Sides { context, gpu, stream, shared } = Sides::new()?;
    let again = SharedStream::new(gpu.device(), &stream)?;
    assert_eq!(shared.stream(), again.stream());
    assert_eq!(Arc::as_ptr(shared.cudarc()), Arc::as_ptr(&stream));
    // A stream of gpumem that cudarc borrows is the same stream again.
    // SAFETY: the stream of `gpu` outlives its wrapper.
    let borrowed = unsafe { context.wrap_borrowed_stream(gpu.stream().raw().cast()) };
    assert_eq!(SharedStream::new(gpu.device(), &borrowed)?.stream(), gpu.stream());
    drop(borrowed);

    // All of cudarc's handles are gone; the stream is not, because an array uses it.
    let alive = shared.stream().clone();
    let their_stream = Arc::downgrade(&stream);
    drop((stream, shared, again));
    let elsewhere = Gpu::with_stream(gpu.pool(), &alive)?;
    drop(alive);
    let array = Array::from_slice(&elsewhere, &[7; LEN])?;
    assert!(their_stream.upgrade().is_some());
    drop(elsewhere);
    assert_eq!(array.on(&gpu).to_vec()?, [7; LEN]);
    drop(array);
    assert!(their_stream.upgrade().is_none());
    assert_eq!(gpu.pool().status()?.in_use_bytes, 0);
    context.check_err()?;
    Ok(())
}

fn refused() -> Checked {
    let sides = Sides::new()?;
    let driver = driver()?;
    let second = Device::new(&driver, 1)?;
    let wrong = SharedStream::new(&second, &sides.stream);
    assert!(matches!(wrong, Err(ArrayError::WrongDevice { .. })), "{wrong:?}");
    let per_thread = SharedStream::new(sides.gpu.device(), &sides.context.per_thread_stream());
    assert!(matches!(per_thread, Err(ArrayError::Cudarc { object: "stream", .. })), "{per_thread:?}");

    // A context that is not the primary one: its memory and streams are others.
    let apart = own_context(&sides.context)?;
    let stream = apart.new_stream()?;
    let context = SharedStream::new(sides.gpu.device(), &stream);
    assert!(matches!(context, Err(ArrayError::Cudarc { object: "context", .. })), "{context:?}");
    let opened = shared::device(&driver, &apart);
    assert!(matches!(opened, Err(ArrayError::Cudarc { object: "context", .. })), "{opened:?}");
    drop((stream, apart));

    // The error contains the slice or the array.
    let slice = sides.stream.clone_htod(&[3_u32; LEN])?;
    let there = Gpu::new(&Pool::new(&second)?)?;
    let rejected = GpuArray::from_cuda_slice(&there, slice).unwrap_err();
    assert!(matches!(rejected.error(), ArrayError::WrongDevice { .. }));
    assert_eq!(sides.stream.clone_dtoh(&rejected.into_value())?, [3; LEN]);
    let rejected = sides.array(4)?.into_cuda_slice().unwrap_err();
    assert!(matches!(rejected.error(), ArrayError::NoCudaSlice { memory: "a block" }));
    let mut array = rejected.into_value();
    let steps = array.slice_axis(Axis(0), Slice::from(..).step_by(2))?;
    assert!(matches!(sides.shared.read(&steps), Err(ArrayError::NotContiguous { .. })));

    // Work in a capture of cudarc would not run.
    sides.stream.synchronize()?;
    sides.stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    let guard = sides.shared.read(&array);
    assert!(matches!(guard, Err(ArrayError::Graph(GraphError::StreamCaptures))), "{guard:?}");
    drop(guard);
    let guard = sides.shared.write(&mut array);
    assert!(matches!(guard, Err(ArrayError::Graph(GraphError::StreamCaptures))), "{guard:?}");
    drop(guard);
    let rejected = array.lend_to_cudarc(&sides.shared).unwrap_err();
    assert!(matches!(rejected.error(), ArrayError::Graph(_)), "{rejected}");
    drop(sides.stream.end_capture(sys::CUgraphInstantiate_flags(0))?);
    assert_eq!(rejected.into_value().to_vec()?, [4; LEN]);
    sides.end()
}

/// A context beside the primary one.
fn own_context(primary: &CudaContext) -> Result<Arc<CudaContext>, DriverError> {
    let mut context = std::ptr::null_mut();
    // SAFETY: `context` outlives the first call, and belongs to the result of the second alone.
    unsafe {
        sys::cuCtxCreate_v4(&mut context, std::ptr::null_mut(), 0, primary.cu_device()).result()?;
        CudaContext::from_raw_context(primary.ordinal(), primary.cu_device(), context)
    }
}

fn arguments() -> Checked {
    let sides = Sides::new()?;
    let (stream, shared) = (&sides.stream, &sides.shared);
    let other = sides.gpu.fork()?;
    let (mut x, mut y) = (sides.array(0)?, sides.array(0)?);
    for value in 1..50 {
        // Written on one stream of ours, copied on theirs, overwritten and read on another of ours.
        x.fill(value)?;
        {
            let (source, mut target) = (shared.read(&x)?, shared.write(&mut y)?);
            assert_eq!((source.len(), source.num_bytes() as u64), (LEN, BYTES));
            assert_eq!(DeviceSlice::stream(&target), stream);
            stream.memcpy_dtod(&source, &mut target)?;
        }
        x.on_mut(&other).fill(value + 1000)?;
        assert_eq!(y.on(&other).to_vec()?, [value; LEN]);

        // Half of an array, from the host and to it.
        let (mut left, mut right) = y.split_at_mut(Axis(0), 400)?;
        stream.memcpy_htod(&[value + 5; 400], &mut shared.write(&mut left)?)?;
        stream.memset_zeros(&mut shared.write(&mut right)?)?;
        assert_eq!(stream.clone_dtoh(&shared.read(&left)?)?, [value + 5; 400]);
        assert_eq!(stream.clone_dtoh(&shared.write(&mut right)?)?, [0; 600]);

        // Memory of an array is reused behind cudarc's work.
        let short = Array::from_elem(&other, LEN, value)?;
        let copy = stream.clone_dtod(&shared.read(&short)?)?;
        drop(short);
        let next = Array::from_elem(&sides.gpu, LEN, 77)?;
        assert_eq!(stream.clone_dtoh(&copy)?, [value; LEN]);
        assert_eq!(next.to_vec()?, [77; LEN]);
    }
    let empty = Array::zeros(&sides.gpu, 0)?;
    assert!(stream.clone_dtoh(&shared.read(&empty)?)?.is_empty());
    drop((x, y, empty));
    sides.end()
}

/// A guard's stream is ordered. A function that works on another one makes that wait, and the host waits for it.
fn other_streams() -> Checked {
    let sides = Sides::new()?;
    let elsewhere = sides.context.new_stream()?;
    let other = sides.gpu.fork()?;
    let (mut x, mut y) = (sides.array(0)?, sides.array(0)?);
    for value in 1..20 {
        x.on_mut(&other).fill(value)?;
        let (source, mut target) = (sides.shared.read(&x)?, sides.shared.write(&mut y)?);
        elsewhere.memcpy_dtod(&source, &mut target)?;
        drop((source, target));
        x.fill(0)?;
        assert_eq!(y.to_vec()?, [value; LEN]);
    }
    // A stream of another device: the call fails, and nothing is accessed.
    let there = CudaContext::new(1)?.new_stream()?;
    let mut target = sides.shared.write(&mut y)?;
    let failed = there.memset_zeros(&mut target);
    assert!(failed.is_err_and(|error| error.0 == CUresult::CUDA_ERROR_INVALID_VALUE));
    let kept = there.context().check_err();
    assert!(kept.is_err_and(|error| error.0 == CUresult::CUDA_ERROR_INVALID_CONTEXT));
    drop(target);
    drop((x, y));
    sides.end()
}

/// The use is recorded from the start, so a guard that is never dropped leaves no race.
fn forgotten() -> Checked {
    let sides = Sides::new()?;
    let other = sides.gpu.fork()?;
    for value in 1..30 {
        let (mut x, mut y) = (sides.array(value)?, sides.array(0)?);
        let (source, mut target) = (sides.shared.read(&x)?, sides.shared.write(&mut y)?);
        sides.stream.memcpy_dtod(&source, &mut target)?;
        std::mem::forget((source, target));
        x.on_mut(&other).fill(0)?;
        assert_eq!(y.on(&other).to_vec()?, [value; LEN]);
    }
    sides.end()
}

/// cudarc begins a capture while guards are open. Its graph would use the arrays after their end.
fn captured_guards() -> Checked {
    let sides = Sides::new()?;
    let (x, mut y) = (sides.array(5)?, sides.array(0)?);
    let (source, mut target) = (sides.shared.read(&x)?, sides.shared.write(&mut y)?);
    sides.stream.synchronize()?;
    sides.stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)?;
    let copied = sides.stream.memcpy_dtod(&source, &mut target);
    assert!(copied.is_err_and(|error| error.0 == CUresult::CUDA_ERROR_INVALID_VALUE));
    drop(sides.stream.end_capture(sys::CUgraphInstantiate_flags(0)));
    sides.stream.memcpy_dtod(&source, &mut target)?;
    drop((source, target));
    assert_eq!(y.to_vec()?, [5; LEN]);
    drop((x, y));
    sides.end()
}

/// The other uses of an array do not wait for work that follows the retirement of its stream: guards are refused, and the end of a loan
/// waits on the host.
fn retired() -> Checked {
    let sides = Sides::new()?;
    let (mut x, other) = (sides.array(1)?, sides.gpu.fork()?);
    for value in 1..20 {
        let shared = SharedStream::new(sides.gpu.device(), &sides.stream)?;
        let mut guard = shared.write(&mut x)?;
        let mut lent = sides.array(value)?.lend_to_cudarc(&shared)?;
        shared.stream().retire()?;
        assert!(sides.stream.memset_zeros(&mut guard).is_err());
        drop(guard);
        x.on_mut(&other).fill(value)?;
        sides.stream.memset_zeros(&mut lent)?;
        if value % 2 == 0 {
            let mut array = lent.into_array()?;
            array.on_mut(&other).fill(value)?;
            assert_eq!(array.to_vec()?, [value; LEN]);
        } else {
            drop(lent);
            assert_eq!(Array::from_elem(&other, LEN, value)?.to_vec()?, [value; LEN]);
        }
    }
    drop(x);
    sides.end()
}

fn slices_in() -> Checked {
    let sides = Sides::new()?;
    sides.context.synchronize()?;
    let free_bytes = sides.context.mem_get_info()?.0;
    let (second, other) = (sides.context.new_stream()?, sides.gpu.fork()?);
    for value in 1..50_u32 {
        // The last write is on another stream than the slice's, and is not waited for on the host.
        let mut slice: CudaSlice<u32> = sides.stream.alloc_zeros(LEN)?;
        second.memcpy_htod(&[value; LEN], &mut slice)?;
        let address = slice.device_ptr(&sides.stream).0;
        let mut array = GpuArray::from_cuda_slice(&sides.gpu, slice)?;
        assert_eq!(array.address(), address);
        let copy = array.on(&other).to_owned()?;
        array.fill(value + 1)?;
        assert_eq!(copy.to_vec()?, [value; LEN]);
        if value % 2 == 0 {
            // Freed behind the use on the other stream; the next slice may have the memory.
            array.on_mut(&other).fill(9)?;
            drop(array);
            continue;
        }
        let array = array.into_shape((10, 100))?;
        let slice = array.into_cuda_slice()?;
        assert_eq!(second.clone_dtoh(&slice)?, [value + 1; LEN]);
    }
    // Arrays outlive all handles of cudarc, on any thread.
    let slice = second.clone_htod(&[1_u8, 2, 3])?;
    let array = GpuArray::from_cuda_slice(&sides.gpu, slice)?;
    drop(second);
    std::thread::spawn(move || {
        assert_eq!(array.to_vec().ok().as_deref(), Some(&[1_u8, 2, 3][..]));
        let driver = array.gpu().device().driver().clone();
        drop(array);
        assert_eq!(current(&driver).ok(), Some(0));
    })
    .join()
    .expect("no panic");
    sides.gpu.synchronize()?;
    sides.context.synchronize()?;
    sides.gpu.pool().reclaim()?;
    assert_eq!(sides.context.mem_get_info()?.0, free_bytes, "cudarc has freed its slices");
    sides.end()
}

/// While an error is pending in its context, cudarc waits for nothing. Here it is set aside, and kept.
fn pending_error() -> Checked {
    let sides = Sides::new()?;
    let second = sides.context.new_stream()?;
    for value in 1..20_u32 {
        let mut slice: CudaSlice<u32> = sides.stream.alloc_zeros(LEN)?;
        second.memcpy_htod(&[value; LEN], &mut slice)?;
        let error = DriverError(CUresult::CUDA_ERROR_INVALID_VALUE);
        sides.context.record_err(Err::<(), _>(error));
        let array = GpuArray::from_cuda_slice(&sides.gpu, slice)?;
        assert_eq!(array.to_vec()?, [value; LEN]);
        assert_eq!(sides.context.check_err(), Err(error));

        let lent = sides.array(value)?.lend_to_cudarc(&sides.shared)?;
        let copy = second.clone_dtod(&lent)?;
        sides.context.record_err(Err::<(), _>(error));
        let mut back = lent.into_array()?;
        back.fill(0)?;
        assert_eq!(sides.context.check_err(), Err(error));
        assert_eq!(second.clone_dtoh(&copy)?, [value; LEN]);
    }
    sides.end()
}

fn default_stream() -> Checked {
    let context = CudaContext::new(0)?;
    let stream = context.default_stream();
    let gpu = Gpu::new(&Pool::new(&shared::device(&driver()?, &context)?)?)?;
    let shared = SharedStream::new(gpu.device(), &stream)?;
    assert_eq!(*shared.stream(), Stream::legacy(gpu.device())?);
    for value in 1..20 {
        let array = GpuArray::from_cuda_slice(&gpu, stream.clone_htod(&[value; LEN])?)?;
        let copy = stream.clone_dtod(&shared.read(&array)?)?;
        assert_eq!((array.to_vec()?, stream.clone_dtoh(&copy)?), (vec![value; LEN], vec![value; LEN]));
        // On a thread without a context, where cudarc's own drop would fail.
        std::thread::spawn(move || drop(array)).join().expect("no panic");
    }
    context.check_err()?;
    Ok(())
}

fn lent() -> Checked {
    for conf in ["backend:caching", "backend:native"] {
        let sides = Sides::with(conf)?;
        let (second, other) = (sides.context.new_stream()?, sides.gpu.fork()?);
        let mut array = sides.array(0)?;
        for value in 1..40 {
            array.on_mut(&other).fill(value)?;
            let mut lent = array.lend_to_cudarc(&sides.shared)?;
            assert_eq!(lent.as_slice().len(), LEN);
            let copy = second.clone_dtod(lent.as_slice())?;
            second.memset_zeros(&mut lent.as_view_mut().slice_mut(500..))?;
            sides.stream.memcpy_htod(&[8; 10], &mut lent)?;
            array = lent.into_array()?;
            let found = array.on(&other).to_vec()?;
            let expected: Vec<u32> = [8; 10].into_iter().chain([value; 490]).chain([0; 500]).collect();
            assert_eq!(found, expected);
            assert_eq!(sides.stream.clone_dtoh(&copy)?, [value; LEN]);
        }
        // Memory of cudarc itself, too.
        let own = GpuArray::from_cuda_slice(&sides.gpu, second.clone_htod(&[5_u32; LEN])?)?;
        let lent = own.lend_to_cudarc(&sides.shared)?;
        assert_eq!(sides.stream.clone_dtoh(&lent.as_view())?, [5; LEN]);
        drop((lent, array));
        sides.end()?;
    }
    Ok(())
}

/// The pool reuses the memory behind cudarc's uses on all streams.
fn lent_and_dropped() -> Checked {
    let sides = Sides::new()?;
    let (second, other) = (sides.context.new_stream()?, sides.gpu.fork()?);
    for value in 1..60 {
        let lent = sides.array(value)?.lend_to_cudarc(&sides.shared)?;
        let copy = second.clone_dtod(&lent)?;
        drop(lent);
        let next = Array::from_elem(&other, LEN, 0)?;
        assert_eq!(second.clone_dtoh(&copy)?, [value; LEN]);
        drop(next);
    }
    // Forgotten: the memory stays in use.
    std::mem::forget(sides.array(1)?.lend_to_cudarc(&sides.shared)?);
    assert!(sides.gpu.pool().status()?.in_use_bytes >= BYTES);
    sides.gpu.synchronize()?;
    Ok(())
}

/// A refusal says that cudarc has the array.
fn lent_and_kept() -> Checked {
    let sides = Sides::with("backend:caching,hard_limit:8MiB,spill:host:64MiB")?;
    let lent = Array::zeros(&sides.gpu, 1 << 18)?.lend_to_cudarc(&sides.shared)?;
    let refused = Array::zeros(&sides.gpu, 8 << 18).err();
    let Some(ArrayError::Pool(refused)) = refused else { panic!("{refused:?}") };
    let spilling = refused.out_of_memory().and_then(|report| report.spilling.as_ref());
    let kept =
        spilling.map(|spilling| spilling.kept.iter().map(|kept| (kept.by, kept.bytes)).collect::<Vec<_>>());
    assert_eq!(kept, Some(vec![(KeptBy::Cudarc, 1 << 20)]), "{refused}");
    drop(lent);
    drop(Array::zeros(&sides.gpu, 8 << 18)?);
    sides.end()
}

/// A context without streams of its own records no uses, so the end of a loan waits on the host.
fn lent_untracked() -> Checked {
    let context = CudaContext::new(0)?;
    let stream = context.default_stream();
    let gpu = Gpu::new(&Pool::new(&shared::device(&driver()?, &context)?)?)?;
    let (shared, other) = (SharedStream::new(gpu.device(), &stream)?, gpu.fork()?);
    for value in 1..20 {
        let mut lent = Array::from_elem(&gpu, LEN, 0)?.lend_to_cudarc(&shared)?;
        context.per_thread_stream().memcpy_htod(&[value; LEN], &mut lent)?;
        assert_eq!(lent.into_array()?.on(&other).to_vec()?, [value; LEN]);
    }
    context.check_err()?;
    // By hand: the program promises that all uses are on the slice's stream, or ordered before its end.
    let context = CudaContext::new(0)?;
    // SAFETY: each slice is used on its own stream only.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream()?;
    let shared = SharedStream::new(gpu.device(), &stream)?;
    for value in 1..20 {
        let mut lent = Array::from_elem(&gpu, LEN, 0)?.lend_to_cudarc(&shared)?;
        stream.memcpy_htod(&[value; LEN], &mut lent)?;
        assert_eq!(lent.into_array()?.on(&other).to_vec()?, [value; LEN]);
    }
    context.check_err()?;
    Ok(())
}

//! Copies of borrowed memory return once the device has finished them, whatever other threads do to the stream meanwhile. Another
//! thread retires the stream or begins a capture right after the driver has queued the copy.

use core::ffi::c_void;
use gpumem_array::pool::sys::Driver;
use gpumem_array::pool::sys::types::{CUcontext, CUdeviceptr, CUmodule, CUresult, CUstream};
use gpumem_array::pool::{
    Capture, CaptureError, CaptureMode, Device, DeviceError, Pool, PoolError, Stream, StreamError,
};
use gpumem_array::{ArrayError, Gpu, GpuArray, KernelSource, UnifiedArray};
use gpumem_sim::{Schedule, SimConfig};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

type Other = (Sender<()>, Receiver<()>);
type Copy = unsafe extern "C" fn(CUdeviceptr, CUdeviceptr, usize, CUstream) -> CUresult;
type Upload = unsafe extern "C" fn(CUdeviceptr, *const c_void, usize, CUstream) -> CUresult;

/// The driver's own copies.
static COPIES: Mutex<(Option<Copy>, Option<Upload>)> = Mutex::new((None, None));
/// The channel that informs the other thread of the next copy, and the one for its answer, which may come only after the copy.
static HOOK: Mutex<Option<Other>> = Mutex::new(None);
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Informs the other thread that a copy is queued, and waits a moment for it.
fn tell_of_a_copy() {
    let other = HOOK.lock().unwrap().take();
    if let Some((notify, notified)) = other {
        notify.send(()).unwrap();
        let _ = notified.recv_timeout(Duration::from_millis(50));
    }
}

unsafe extern "C" fn copy_and_tell(
    target: CUdeviceptr,
    source: CUdeviceptr,
    size_bytes: usize,
    stream: CUstream,
) -> CUresult {
    let copy = COPIES.lock().unwrap().0.unwrap();
    // SAFETY: the caller guarantees what the driver's function requires.
    let code = unsafe { copy(target, source, size_bytes, stream) };
    tell_of_a_copy();
    code
}

unsafe extern "C" fn upload_and_tell(
    target: CUdeviceptr,
    source: *const c_void,
    size_bytes: usize,
    stream: CUstream,
) -> CUresult {
    let upload = COPIES.lock().unwrap().1.unwrap();
    // SAFETY: the caller guarantees what the driver's function requires.
    let code = unsafe { upload(target, source, size_bytes, stream) };
    tell_of_a_copy();
    code
}

/// A driver that runs work only in waits, and whose copies inform the other thread.
fn driver() -> Driver {
    let driver = gpumem_sim::driver(SimConfig::new().schedule(Schedule::Late)).unwrap();
    *COPIES.lock().unwrap() = (driver.table().cuMemcpyAsync, driver.table().cuMemcpyHtoDAsync_v2);
    *HOOK.lock().unwrap() = None;
    // SAFETY: the wrappers call the functions that they replace.
    unsafe {
        driver.with_table(|table| {
            table.cuMemcpyAsync = Some(copy_and_tell);
            table.cuMemcpyHtoDAsync_v2 = Some(upload_and_tell);
        })
    }
}

/// Runs a body on the legacy stream of a machine that runs work only in waits.
fn on_legacy(body: impl Fn(&Gpu)) {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let device = Device::new(&driver(), 0).unwrap();
    let pool = Pool::from_env(&device).unwrap();
    body(&Gpu::with_stream(&pool, &Stream::legacy(&device).unwrap()).unwrap());
}

/// Runs `other` on another thread as soon as the driver has queued the copy. Returns both results.
fn copy_while<R: Send, S>(copy: impl FnOnce() -> R, other: impl FnOnce() -> S + Send) -> (R, S)
where
    S: Send,
{
    let ((notify, notified), (answer, answered)) = (channel(), channel());
    *HOOK.lock().unwrap() = Some((notify, answered));
    std::thread::scope(|scope| {
        let other = scope.spawn(move || {
            notified.recv().unwrap();
            let done = other();
            let _the_copy_waits_for_nobody = answer.send(());
            done
        });
        (copy(), other.join().unwrap())
    })
}

/// True if all work that the stream has queued is complete.
fn is_done(device: &Device) -> bool {
    Stream::legacy(device).unwrap().is_complete().unwrap()
}

#[test]
fn the_stream_is_retired_during_an_upload_from_registered_memory() {
    on_legacy(|gpu| {
        let device = gpu.device();
        // An upload to device memory copies the slice first; the driver reads the slice of an upload to unified memory.
        let mut array = UnifiedArray::<u8, _>::zeros(&gpu.unified(), 64).unwrap();
        let mut source = vec![1_u8; 64];
        let registered = |source: &mut Vec<u8>, copy: &mut dyn FnMut(&[u8])| {
            let _bound = device.bind().unwrap();
            let start = source.as_mut_ptr().cast();
            // SAFETY: the memory belongs to the vector, which is neither moved nor dropped before it is unregistered.
            unsafe { device.driver().cuMemHostRegister_v2(start, source.len(), 0).unwrap() };
            copy(source);
            // SAFETY: registered above; the copy has returned and is complete.
            unsafe { device.driver().cuMemHostUnregister(start).unwrap() };
        };
        registered(&mut source, &mut |source| {
            let retire = || Stream::legacy(device).unwrap().retire();
            let (copied, retired) = copy_while(|| array.copy_from_slice(source), retire);
            assert!(is_done(device), "the copy still reads the slice: {copied:?}");
            copied.unwrap();
            retired.unwrap();
        });
    });
}

#[test]
fn the_stream_is_retired_during_a_download() {
    on_legacy(|gpu| {
        let array = GpuArray::from_slice(gpu, &[7_u8; 64]).unwrap();
        let device = gpu.device();
        let retire = || Stream::legacy(device).unwrap().retire();
        let (copied, retired) = copy_while(|| array.to_vec(), retire);
        assert!(is_done(device), "the copy still writes memory that is freed: {copied:?}");
        assert_eq!(copied.unwrap(), [7; 64]);
        retired.unwrap();
        let again = array.to_vec();
        assert!(
            matches!(
                again,
                Err(ArrayError::Pool(PoolError::Device(DeviceError::Stream(StreamError::Retired))))
            ),
            "{again:?}"
        );
    });
}

/// The elements have been read when an upload to device memory returns, whether the copy has run or not.
#[test]
fn the_source_of_an_upload_changes_right_after_it() {
    on_legacy(|gpu| {
        let mut array = GpuArray::<u8, _>::zeros(gpu, 64).unwrap();
        let mut source = vec![1_u8; 64];
        array.copy_from_slice(&source).unwrap();
        source.fill(9);
        assert_eq!(array.to_vec().unwrap(), [1; 64]);
    });
}

/// The copy does not become part of a graph: either the capture does not begin, or it begins after the copy.
#[test]
fn a_capture_begins_during_an_upload() {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let gpu = Gpu::new(&Pool::from_env(&Device::new(&driver(), 0).unwrap()).unwrap()).unwrap();
    let begin = || Capture::begin(gpu.stream(), CaptureMode::Relaxed).map(drop);

    let mut array = GpuArray::<u8, _>::zeros(&gpu, 64).unwrap();
    let (copied, begun) = copy_while(|| array.copy_from_slice(&[5; 64]), begin);
    assert!(
        matches!(
            begun,
            Ok(()) | Err(PoolError::Device(DeviceError::Capture(CaptureError::NotCapturable { .. })))
        ),
        "{begun:?}"
    );
    copied.unwrap();
    assert_eq!(array.to_vec().unwrap(), [5; 64]);

    let mut array = UnifiedArray::<u8, _>::zeros(&gpu.unified(), 64).unwrap();
    let (copied, begun) = copy_while(|| array.copy_from_slice(&[6; 64]), begin);
    assert!(
        matches!(begun, Err(PoolError::Device(DeviceError::Capture(CaptureError::NotCapturable { .. })))),
        "{begun:?}"
    );
    copied.unwrap();
    assert_eq!(array.to_vec().unwrap(), [6; 64]);
    Capture::begin(gpu.stream(), CaptureMode::Relaxed).unwrap().end().unwrap();
}

type GetCurrent = unsafe extern "C" fn(*mut CUcontext) -> CUresult;
type Unload = unsafe extern "C" fn(CUmodule) -> CUresult;

/// The driver's own functions; the calls left until the other thread is informed, on the thread that counts them; modules
/// unloaded.
static REAL: Mutex<(Option<GetCurrent>, Option<Unload>)> = Mutex::new((None, None));
static UNLOADED: Mutex<usize> = Mutex::new(0);

thread_local!(static COUNTDOWN: std::cell::Cell<usize> = const { std::cell::Cell::new(0) });

unsafe extern "C" fn tell_and_get_current(context: *mut CUcontext) -> CUresult {
    let left = COUNTDOWN.get();
    COUNTDOWN.set(left.saturating_sub(1));
    if left == 1
        && let Some((notify, notified)) = HOOK.lock().unwrap().take()
    {
        notify.send(()).unwrap();
        notified.recv().unwrap();
    }
    let real = REAL.lock().unwrap().0.unwrap();
    // SAFETY: the caller guarantees what the driver's function requires.
    unsafe { real(context) }
}

unsafe extern "C" fn count_and_unload(module: CUmodule) -> CUresult {
    *UNLOADED.lock().unwrap() += 1;
    let real = REAL.lock().unwrap().1.unwrap();
    // SAFETY: the caller guarantees what the driver's function requires.
    unsafe { real(module) }
}

/// The last handle of a module is dropped. A capture begins after the drop has looked for captures and before it waits for the
/// device. Work of the legacy stream, which may use the module, is still pending then, so the module stays loaded.
#[test]
fn a_capture_begins_while_a_module_is_unloaded() {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let driver = gpumem_sim::driver(SimConfig::new().schedule(Schedule::Late)).unwrap();
    let table = driver.table();
    *REAL.lock().unwrap() = (table.cuCtxGetCurrent, table.cuModuleUnload);
    // SAFETY: the wrappers call the functions that they replace.
    let driver = unsafe {
        driver.with_table(|table| {
            table.cuCtxGetCurrent = Some(tell_and_get_current);
            table.cuModuleUnload = Some(count_and_unload);
        })
    };
    let device = Device::new(&driver, 0).unwrap();
    let pool = Pool::from_env(&device).unwrap();
    let gpu = Gpu::with_stream(&pool, &Stream::legacy(&device).unwrap()).unwrap();
    let captured = Stream::new(&device).unwrap();
    let work = GpuArray::<f32, _>::from_elem(&gpu, 64, 1.0).unwrap();
    let module = gpu.compile(&KernelSource::ptx("pack", include_str!("../../kernels/pack.ptx"))).unwrap();
    let before = *UNLOADED.lock().unwrap();
    let ((notify, notified), (answer, answered)) = (channel(), channel());
    *HOOK.lock().unwrap() = Some((notify, answered));
    std::thread::scope(|scope| {
        let (end, may_end) = channel::<()>();
        let captured = &captured;
        let other = scope.spawn(move || {
            notified.recv().unwrap();
            let capture = Capture::begin(captured, CaptureMode::Global).unwrap();
            answer.send(()).unwrap();
            may_end.recv().unwrap();
            capture.end().map(drop)
        });
        // The first call makes the context current for the drop, the second one for the wait.
        COUNTDOWN.set(2);
        drop(module);
        assert_eq!(*UNLOADED.lock().unwrap(), before, "the module went before the work of the device");
        end.send(()).unwrap();
        other.join().unwrap().unwrap();
    });
    assert_eq!(work.to_vec().unwrap(), [1.0; 64]);
}

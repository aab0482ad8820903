//! Another thread changes a stream after an operation has checked it and before the operation queues its work. A capture that the
//! thread begins, joins or ends contains all of the work or none of it, and a graph keeps all memory that it uses. If the thread
//! retires the stream, the stream's last marker comes after the work, and other streams reuse the memory only after that marker.

use core::ffi::{c_uint, c_void};
use gpumem_array::ndarray::{Axis, Ix1};
use gpumem_array::pool::adaptor::Fill;
use gpumem_array::pool::sys::types::{
    CUcontext, CUdevice, CUdeviceptr, CUfunction, CUgraph, CUresult, CUstream,
};
use gpumem_array::pool::sys::{Driver, Table};
use gpumem_array::pool::{
    Capture, CaptureError, CaptureMode, Device, DeviceError, Location, MemoryKind, MemoryRange, Pool,
    PoolError, Stream,
};
use gpumem_array::{ArrayError, Gpu, GpuArray, GraphError};
use gpumem_sim::{Schedule, SimConfig};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

type Other = (ThreadId, Sender<()>, Receiver<()>);

/// The driver's own functions; the thread whose next work informs the other thread and waits a while for its answer; and the same
/// for the end of a capture.
static DRIVER: Mutex<Option<Table>> = Mutex::new(None);
static OTHER: Mutex<Option<Other>> = Mutex::new(None);
static AFTER_END: Mutex<Option<Other>> = Mutex::new(None);
/// Likewise, for the driver's call between the waits of an operation and its work.
static BEFORE_WORK: Mutex<Option<Other>> = Mutex::new(None);
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn meet(other: &Mutex<Option<Other>>) {
    let found = {
        let mut other = other.lock().unwrap();
        let is_here = other.as_ref().is_some_and(|(thread, ..)| *thread == std::thread::current().id());
        if is_here { other.take() } else { None }
    };
    if let Some((_, notify, notified)) = found {
        let _it_may_be_gone = notify.send(());
        let _it_may_have_to_wait = notified.recv_timeout(Duration::from_millis(50));
    }
}

fn own() -> Table {
    meet(&OTHER);
    DRIVER.lock().unwrap().unwrap()
}

#[allow(clippy::too_many_arguments, reason = "the driver's")]
unsafe extern "C" fn launch(
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: CUstream,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    let own = own().cuLaunchKernel.unwrap();
    let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    // SAFETY: the arguments are passed unchanged to the driver's function that this one replaces.
    unsafe {
        own(
            function, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared, stream, parameters,
            extra,
        )
    }
}

unsafe extern "C" fn set_bytes(at: CUdeviceptr, value: u8, count: usize, stream: CUstream) -> CUresult {
    let own = own().cuMemsetD8Async.unwrap();
    // SAFETY: the arguments are passed unchanged to the driver's function that this one replaces.
    unsafe { own(at, value, count, stream) }
}

unsafe extern "C" fn set_words(at: CUdeviceptr, value: c_uint, count: usize, stream: CUstream) -> CUresult {
    let own = own().cuMemsetD32Async.unwrap();
    // SAFETY: the arguments are passed unchanged to the driver's function that this one replaces.
    unsafe { own(at, value, count, stream) }
}

unsafe extern "C" fn copy(to: CUdeviceptr, from: CUdeviceptr, size: usize, stream: CUstream) -> CUresult {
    let own = own().cuMemcpyAsync.unwrap();
    // SAFETY: the arguments are passed unchanged to the driver's function that this one replaces.
    unsafe { own(to, from, size, stream) }
}

unsafe extern "C" fn prefetch(at: CUdeviceptr, size: usize, to: CUdevice, stream: CUstream) -> CUresult {
    let own = own().cuMemPrefetchAsync.unwrap();
    // SAFETY: the arguments are passed unchanged to the driver's function that this one replaces.
    unsafe { own(at, size, to, stream) }
}

unsafe extern "C" fn end_capture(stream: CUstream, graph: *mut CUgraph) -> CUresult {
    let own = DRIVER.lock().unwrap().unwrap().cuStreamEndCapture.unwrap();
    // SAFETY: the arguments are passed unchanged to the driver's function that this one replaces.
    let code = unsafe { own(stream, graph) };
    meet(&AFTER_END);
    code
}

unsafe extern "C" fn get_current(context: *mut CUcontext) -> CUresult {
    let own = DRIVER.lock().unwrap().unwrap().cuCtxGetCurrent.unwrap();
    meet(&BEFORE_WORK);
    // SAFETY: the arguments are those of the same function of the driver's, unchanged.
    unsafe { own(context) }
}

/// Creates a machine with these functions that runs work as late as possible; one test uses it at a time.
fn machine() -> (MutexGuard<'static, ()>, Driver) {
    let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let driver = gpumem_sim::driver(SimConfig::new().schedule(Schedule::Late)).unwrap();
    *DRIVER.lock().unwrap() = Some(*driver.table());
    // SAFETY: each wrapper calls the function that it replaces.
    let driver = unsafe {
        driver.with_table(|table| {
            table.cuLaunchKernel = Some(launch);
            table.cuMemsetD8Async = Some(set_bytes);
            table.cuMemsetD32Async = Some(set_words);
            table.cuMemcpyAsync = Some(copy);
            table.cuMemPrefetchAsync = Some(prefetch);
            table.cuStreamEndCapture = Some(end_capture);
            table.cuCtxGetCurrent = Some(get_current);
        })
    };
    (turn, driver)
}

/// Runs `work` here while another thread runs `other`, inside of the driver call for the next work that this thread queues.
fn while_queueing<R>(work: impl FnOnce() -> R, other: impl FnOnce(&dyn Fn()) + Send) -> R {
    let ((notify, notified), (answer, answered)) = (channel(), channel());
    let ((finish, finished), thread) = (channel(), std::thread::current().id());
    *OTHER.lock().unwrap() = Some((thread, notify, answered));
    std::thread::scope(|scope| {
        let other = scope.spawn(move || {
            notified.recv().unwrap();
            other(&|| {
                let _nobody_may_wait = answer.send(());
                let _it_may_have_failed = finished.recv_timeout(Duration::from_secs(1));
            });
        });
        let done = work();
        let _it_may_be_over = finish.send(());
        other.join().unwrap();
        assert!(OTHER.lock().unwrap().is_none(), "no work was queued");
        done
    })
}

/// Another thread captures the stream meanwhile, in any order with this thread's work, and drops the graph.
fn captured<R>(stream: &Stream, work: impl FnOnce() -> R) -> R {
    while_queueing(work, |until_done| {
        let capture = Capture::begin(stream, CaptureMode::Relaxed).unwrap();
        until_done();
        drop(capture);
    })
}

type Array = GpuArray<f32, Ix1>;
const LEN: usize = 64 << 10;

#[test]
fn a_capture_that_begins_during_an_operation_begins_after_it() {
    let (_turn, driver) = machine();
    let gpu = Gpu::new(&Pool::from_env(&Device::new(&driver, 0).unwrap()).unwrap()).unwrap();
    gpu.preload::<f32>().unwrap();
    let ones = Array::from_elem(&gpu, LEN, 1.0).unwrap();
    let matrix = GpuArray::<f32, _>::from_elem(&gpu, (4, 8192), 1.0).unwrap();
    let vector = Array::from_elem(&gpu, 8192, 1.0).unwrap();
    let all = |array: &Array| array.to_vec().unwrap().iter().fold(0.0, |sum: f32, value| sum + value);
    let operations: [(&str, f32, &dyn Fn() -> Array); 8] = [
        ("bytes", 0.0, &|| Array::zeros(&gpu, LEN).unwrap()),
        ("words", LEN as f32, &|| Array::from_elem(&gpu, LEN, 1.0).unwrap()),
        ("a copy", LEN as f32, &|| ones.try_clone().unwrap()),
        ("a kernel", 2.0 * LEN as f32, &|| ones.try_add(&ones).unwrap()),
        ("a kernel with a scalar", 3.0 * LEN as f32, &|| ones.try_add(2.0).unwrap()),
        ("two kernels", LEN as f32, &|| {
            let sum = captured(gpu.stream(), || ones.sum().unwrap());
            Array::from_slice(&gpu, &[sum.into_scalar().unwrap()]).unwrap()
        }),
        ("rows", 4.0 * 8192.0, &|| matrix.dot(&vector).unwrap()),
        ("in place", 3.0 * LEN as f32, &|| {
            let mut array = Array::from_elem(&gpu, LEN, 2.0).unwrap();
            captured(gpu.stream(), || array.try_add_assign(&ones).unwrap());
            array
        }),
    ];
    for (name, sum, operation) in operations {
        // Overwrites the memory of the result.
        drop(Array::from_elem(&gpu, LEN, 42.0).unwrap());
        let result = match name {
            "two kernels" | "in place" => operation(),
            _ => captured(gpu.stream(), operation),
        };
        assert_eq!(all(&result), sum, "{name}");
        // The next user of the memory of the dropped arrays.
        drop(result);
        let next = Array::from_elem(&gpu, LEN, 7.0).unwrap();
        assert_eq!(all(&next), 7.0 * LEN as f32, "{name}");
    }
    assert_eq!(gpumem_sim::Sim::of(&driver).unwrap().report().findings, []);
}

/// An operation that a capture refuses after its waits leaves nothing that makes a later reader join the capture.
#[test]
fn a_capture_that_begins_before_the_work_spreads_to_no_reader() {
    type Operation = fn(&mut Array) -> Result<(), ArrayError>;
    let operations: [(&str, Operation); 3] = [
        ("all", |array| array.fill(2.0)),
        ("a kernel", |array| array.try_add_assign(1.0)),
        ("a half", |array| array.split_at_mut(Axis(0), LEN / 2)?.1.fill(2.0)),
    ];
    for (name, operation) in operations {
        for is_of_other in [false, true] {
            let (_turn, driver) = machine();
            let gpu = Gpu::new(&Pool::from_env(&Device::new(&driver, 0).unwrap()).unwrap()).unwrap();
            gpu.preload::<f32>().unwrap();
            let (other, reader) = (gpu.fork().unwrap(), gpu.fork().unwrap());
            let mut array = Array::zeros(&gpu, LEN).unwrap();
            array.on_mut(if is_of_other { &other } else { &gpu }).fill(1.0).unwrap();
            gpu.device().synchronize().unwrap();
            let ((notify, notified), (answer, answered)) = (channel(), channel());
            *BEFORE_WORK.lock().unwrap() = Some((std::thread::current().id(), notify, answered));
            std::thread::scope(|scope| {
                let (read, has_read) = channel();
                let stream = gpu.stream();
                let capturing = scope.spawn(move || {
                    notified.recv().unwrap();
                    let capture = Capture::begin(stream, CaptureMode::Relaxed).unwrap();
                    answer.send(()).unwrap();
                    let _it_may_have_failed = has_read.recv_timeout(Duration::from_secs(5));
                    capture.end().map(drop)
                });
                let refused = operation(&mut array).unwrap_err();
                assert!(
                    matches!(refused, ArrayError::Graph(GraphError::StreamCaptures)),
                    "{name}: {refused}"
                );
                let found = array.on(&reader).to_vec();
                assert!(!reader.stream().is_capturing().unwrap(), "{name}");
                assert!(found.unwrap().iter().all(|value| *value == 1.0), "{name}");
                array.on_mut(&reader).fill(3.0).unwrap();
                read.send(()).unwrap();
                capturing.join().unwrap().unwrap();
            });
            assert!(array.to_vec().unwrap().iter().all(|value| *value == 3.0), "{name}");
            assert_eq!(gpumem_sim::Sim::of(&driver).unwrap().report().findings, [], "{name}");
        }
    }
}

#[test]
fn a_stream_that_joins_a_capture_during_an_operation_joins_after_it() {
    let (_turn, driver) = machine();
    let gpu = Gpu::new(&Pool::from_env(&Device::new(&driver, 0).unwrap()).unwrap()).unwrap();
    let captures = Stream::new(gpu.device()).unwrap();
    drop(Array::from_elem(&gpu, LEN, 42.0).unwrap());
    let zeros = while_queueing(
        || Array::zeros(&gpu, LEN).unwrap(),
        |until_done| {
            let capture = Capture::begin(&captures, CaptureMode::Relaxed).unwrap();
            gpu.stream().wait_for(&captures).unwrap();
            until_done();
            captures.wait_for(gpu.stream()).unwrap();
            capture.end().unwrap();
        },
    );
    assert!(zeros.to_vec().unwrap().iter().all(|value| *value == 0.0));
    assert_eq!(gpumem_sim::Sim::of(&driver).unwrap().report().findings, []);
}

/// The end of a capture makes the stream wait for the work whose waits were left to launches: an operation requested during the
/// capture must not run before it.
#[test]
fn a_capture_that_ends_during_an_operation_ends_after_it() {
    let (_turn, driver) = machine();
    let gpu = Gpu::new(&Pool::from_env(&Device::new(&driver, 0).unwrap()).unwrap()).unwrap();
    let other = gpu.fork().unwrap();
    let target = Array::zeros(&gpu, LEN).unwrap();
    let source = Array::from_elem(&other, LEN, 5.0).unwrap();
    let ((began, has_begun), (copied, is_copied)) = (channel(), channel());
    let ((notify, notified), (answer, answered)) = (channel(), channel());
    let ((tell_ended, told_ended), (_never, nothing)) = (channel(), channel());
    *OTHER.lock().unwrap() = Some((std::thread::current().id(), notify, answered));
    std::thread::scope(|scope| {
        let stream = gpu.stream();
        let ending = scope.spawn(move || {
            let capture = Capture::begin(stream, CaptureMode::Relaxed).unwrap();
            began.send(()).unwrap();
            notified.recv().unwrap();
            // Between the end of the driver's capture and the waits.
            *AFTER_END.lock().unwrap() = Some((std::thread::current().id(), tell_ended, nothing));
            scope.spawn(move || {
                let _it_may_not_end = told_ended.recv();
                let _nobody_may_wait = answer.send(());
            });
            capture.end().map(drop).unwrap();
            let _it_may_have_failed = is_copied.recv_timeout(Duration::from_secs(1));
        });
        has_begun.recv().unwrap();
        // Without arrays, which cannot be used on a capturing stream.
        stream.wait_for(other.stream()).unwrap();
        let _bound = gpu.device().bind().unwrap();
        let copy = stream.queue_work(MemoryRange::NONE, |raw| {
            // SAFETY: both arrays have that many bytes on this device, and live until the device was synchronised.
            unsafe { driver.cuMemcpyAsync(target.address(), source.address(), 4 * LEN, raw) }
        });
        copy.unwrap().unwrap();
        copied.send(()).unwrap();
        ending.join().unwrap();
    });
    gpu.device().synchronize().unwrap();
    assert_eq!(gpumem_sim::Sim::of(&driver).unwrap().report().findings, []);
}

#[test]
fn a_prefetch_is_no_part_of_a_capture_that_begins_meanwhile() {
    let (_turn, driver) = machine();
    let device = Device::new(&driver, 0).unwrap();
    let pool = Pool::builder(&device).kind(MemoryKind::Unified).build().unwrap();
    let stream = Stream::new(&device).unwrap();
    let block = pool.alloc(4 << 20, &stream).unwrap();
    let to = Location::Device(&device);
    let mut count = usize::MAX;
    while_queueing(
        || block.prefetch(0..4 << 20, to, &stream).unwrap(),
        |until_done| {
            let capture = Capture::begin(&stream, CaptureMode::Relaxed).unwrap();
            until_done();
            let graph = capture.end().unwrap();
            // SAFETY: the graph is alive; with a null pointer for the nodes, the call only writes their number.
            unsafe { driver.cuGraphGetNodes(graph.raw(), std::ptr::null_mut(), &mut count).unwrap() };
        },
    );
    assert_eq!(count, 0, "the graph moves pages");
}

#[test]
fn memory_is_filled_before_a_capture_that_begins_meanwhile() {
    let (_turn, driver) = machine();
    let device = Device::new(&driver, 0).unwrap();
    let pool = Pool::builder(&device).adaptor(Arc::new(Fill::zero_on_alloc())).build().unwrap();
    let stream = Stream::new(&device).unwrap();
    // A capture that begins between the fill and the end of the request refuses it: the request is repeated.
    let block = loop {
        match captured(&stream, || pool.alloc(64, &stream)) {
            Err(PoolError::Device(DeviceError::Capture(CaptureError::NotCapturable { .. }))) => {}
            block => break block.unwrap(),
        }
    };
    let mut bytes = [1_u8; 64];
    let _bound = device.bind().unwrap();
    stream
        .run_borrowed("a download", [&block], |raw| {
            // SAFETY: both have 64 bytes, and the call returns after the copy is complete.
            unsafe { driver.cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), block.address(), 64, raw) }
        })
        .unwrap()
        .unwrap();
    assert_eq!(bytes, [0; 64]);
}

#[test]
fn memory_goes_on_behind_the_last_operation_of_a_retired_stream() {
    type Operation = fn(&mut Array, &Array);
    let operations: [(&str, Operation); 3] = [
        ("a kernel", |array, _| array.try_add_assign(1.0).unwrap()),
        ("a fill", |array, _| array.fill(1.0).unwrap()),
        ("a copy", |array, source| array.assign(source).unwrap()),
    ];
    for (name, operation) in operations {
        let (_turn, driver) = machine();
        let device = Device::new(&driver, 0).unwrap();
        let pool = Pool::from_env(&device).unwrap();
        let legacy = Stream::legacy(&device).unwrap();
        let (gpu, other) = (Gpu::with_stream(&pool, &legacy).unwrap(), Gpu::new(&pool).unwrap());
        let source = Array::zeros(&gpu, 1 << 20).unwrap();
        let mut array = Array::zeros(&gpu, 1 << 20).unwrap();
        let address = array.address();
        while_queueing(
            || operation(&mut array, &source),
            |until_done| {
                legacy.retire().unwrap();
                until_done();
            },
        );
        drop(array);
        let theirs = Array::from_slice(&other, &[2.0; 1 << 20]).unwrap();
        assert_eq!(theirs.address(), address, "{name}: the test is about memory that comes again");
        device.synchronize().unwrap();
        assert!(theirs.to_vec().unwrap().iter().all(|value| *value == 2.0), "{name} came later");
        assert_eq!(gpumem_sim::Sim::of(&driver).unwrap().report().findings, [], "{name}");
    }
}

/// A capture that its own thread begins inside of such a call cannot end meanwhile, so the call is refused instead of waiting.
#[test]
fn a_capture_within_a_call_of_the_same_thread_is_refused() {
    let (_turn, driver) = machine();
    let device = Device::new(&driver, 0).unwrap();
    let stream = Stream::new(&device).unwrap();
    let begun = stream
        .queue_work(MemoryRange::NONE, |_| Capture::begin(&stream, CaptureMode::Relaxed).map(drop))
        .unwrap();
    assert!(
        matches!(begun, Err(PoolError::Device(DeviceError::Capture(CaptureError::NotCapturable { .. })))),
        "{begun:?}"
    );
    Capture::begin(&stream, CaptureMode::Relaxed).unwrap().end().unwrap();
}

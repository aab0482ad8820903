//! Futures on the simulator: lost devices, drivers without host functions, the number of streams and of waits.

use gpumem_pool::sys::types::{CUresult, CUstream};
use gpumem_pool::sys::{Driver, Table};
use gpumem_pool::{Block, Completion, Device, DeviceError, Event, Stream};
use gpumem_sim::{Effect, Rule, Schedule, SimConfig};
use pollster::block_on;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

fn poll(future: &mut Completion) -> Poll<Result<(), DeviceError>> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Work on every stream, and a future for each. The blocks are returned too: with backend none a free waits for the device.
fn busy(device: &Device, count: usize) -> (Vec<Stream>, Vec<Block>, Vec<Completion>) {
    let streams: Vec<_> = (0..count).map(|_| Stream::new(device).unwrap()).collect();
    let pool = gpumem_pool::Pool::new(device).unwrap();
    let blocks: Vec<_> = streams.iter().map(|stream| pool.alloc(4096, stream).unwrap()).collect();
    let _bound = device.bind().unwrap();
    for (stream, block) in streams.iter().zip(&blocks) {
        // SAFETY: the block has these bytes, and is freed in the order of the stream.
        unsafe { device.driver().cuMemsetD8Async(block.address(), 1, 4096, stream.raw()).unwrap() };
    }
    let futures = streams.iter().map(Stream::completion).collect();
    (streams, blocks, futures)
}

/// Nothing runs before a call asks for it.
fn late() -> SimConfig {
    SimConfig::new().schedule(Schedule::Late)
}

#[test]
fn a_lost_context_resolves_everything_that_is_pending() {
    let effect = Effect::LoseDevice { device: 0, code: CUresult::CUDA_ERROR_ECC_UNCORRECTABLE };
    let config = late().rule(Rule::new("cuMemGetInfo", effect));
    let device = Device::new(&gpumem_sim::driver(config).unwrap(), 0).unwrap();
    let (streams, _blocks, mut futures) = busy(&device, 30);
    let event = Event::new(&device).unwrap();
    event.record(&streams[3]).unwrap();
    let unpolled = streams[4].completion();
    futures.push(event.completion());
    let waiting: Vec<_> = futures.into_iter().map(|future| std::thread::spawn(|| block_on(future))).collect();
    assert!(matches!(device.memory_info(), Err(DeviceError::Driver(_) | DeviceError::DeviceLost(_))));
    let outcomes: Vec<_> = waiting.into_iter().map(|thread| thread.join().unwrap()).collect();
    // The simulator may have run some before.
    let lost = outcomes.iter().filter(|outcome| outcome.is_err()).count();
    let is_known =
        |outcome: &Result<(), DeviceError>| matches!(outcome, Ok(()) | Err(DeviceError::DeviceLost(_)));
    assert!(lost > 0 && outcomes.iter().all(is_known), "{outcomes:?}");
    assert!(matches!(block_on(unpolled), Err(DeviceError::DeviceLost(_))));
    assert!(matches!(block_on(&streams[0]), Err(DeviceError::DeviceLost(_))));
}

#[test]
fn the_notifier_queries_where_there_is_no_host_function() {
    let driver = gpumem_sim::driver(late()).unwrap();
    // SAFETY: a function is only removed.
    let driver = unsafe { driver.with_table(|table| table.cuLaunchHostFunc = None) };
    let device = Device::new(&driver, 0).unwrap();
    let (_streams, _blocks, futures) = busy(&device, 5);
    futures.into_iter().for_each(|future| block_on(future).unwrap());
}

#[test]
fn a_driver_that_refuses_host_functions_delays_nothing() {
    let refused = Effect::Fail(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    let driver = gpumem_sim::driver(late().rule(Rule::new("cuLaunchHostFunc", refused))).unwrap();
    let (_streams, _blocks, futures) = busy(&Device::new(&driver, 0).unwrap(), 5);
    futures.into_iter().for_each(|future| block_on(future).unwrap());
}

static STREAMS: AtomicU64 = AtomicU64::new(0);
static WAITS: AtomicU64 = AtomicU64::new(0);

/// Counts streams that are created as lanes are, and the host's waits.
fn counted() -> Driver {
    static REAL: std::sync::OnceLock<Table> = std::sync::OnceLock::new();
    unsafe extern "C" fn create(stream: *mut CUstream, flags: core::ffi::c_uint) -> CUresult {
        STREAMS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller guarantees what the wrapped function requires.
        unsafe { REAL.get().unwrap().cuStreamCreate.unwrap()(stream, flags) }
    }
    unsafe extern "C" fn wait(_: gpumem_pool::sys::types::CUevent) -> CUresult {
        WAITS.fetch_add(1, Ordering::SeqCst);
        CUresult::CUDA_ERROR_NOT_SUPPORTED
    }
    unsafe extern "C" fn finish(_: CUstream) -> CUresult {
        WAITS.fetch_add(1, Ordering::SeqCst);
        CUresult::CUDA_ERROR_NOT_SUPPORTED
    }
    let driver = gpumem_sim::driver(late()).unwrap();
    assert!(REAL.set(*driver.table()).is_ok());
    // SAFETY: the functions call those that they replace, or fail without doing anything.
    unsafe {
        driver.with_table(|table| {
            table.cuStreamCreate = Some(create);
            table.cuEventSynchronize = Some(wait);
            table.cuStreamSynchronize = Some(finish);
        })
    }
}

#[test]
fn few_streams_notify_of_many_and_the_host_does_not_wait() {
    let device = Device::new(&counted(), 0).unwrap();
    let (streams, _blocks, mut futures) = busy(&device, 100);
    // The pool tries virtual memory on one.
    assert_eq!(STREAMS.swap(0, Ordering::SeqCst), u64::from(cfg!(feature = "backend-caching")));
    let pending = futures.iter_mut().filter_map(|future| poll(future).is_pending().then_some(())).count();
    assert!(pending > 16, "{pending}");
    futures.into_iter().for_each(|future| block_on(future).unwrap());
    for stream in &streams {
        block_on(stream).unwrap();
    }
    let count = STREAMS.load(Ordering::SeqCst);
    assert!((1..=16).contains(&count), "{count} lanes");
    assert_eq!(WAITS.load(Ordering::SeqCst), 0);
}

#[test]
fn a_process_ends_with_pending_futures() {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let output = command.args(["futures::child", "--exact", "--ignored"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "run by the test above, as a process of its own"]
fn child() {
    static KEPT: std::sync::Mutex<Vec<Completion>> = std::sync::Mutex::new(Vec::new());
    let (_streams, _blocks, mut futures) =
        busy(&Device::new(&gpumem_sim::driver(late()).unwrap(), 0).unwrap(), 5);
    futures.iter_mut().for_each(|future| drop(poll(future)));
    KEPT.lock().unwrap().append(&mut futures);
}

//! Captures beside calls that wait for the whole device: the captures stay valid.

use crate::call_counter::{calls, count_calls};
use crate::fixture::{on_device_memory, on_each_backend_with, small};
use core::ops::Range;
use gpumem_pool::sys::{CUresult, Driver, Table};
use gpumem_pool::{
    BackendKind, Capture, CaptureError, CaptureMode, Device, DeviceError, Event, Pool, PoolError, Stream,
};
use gpumem_sim::{Effect, Rule, Sim, SimConfig};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

const MIB: u64 = 1 << 20;

type Finish = unsafe extern "C" fn() -> CUresult;
type Others = (Sender<()>, Receiver<()>);

/// The driver's wait for the device; the channel that announces such a wait, and the one that confirms an open capture.
static FINISH: Mutex<(Option<Finish>, Option<Others>)> = Mutex::new((None, None));

extern "C" fn tell_and_finish() -> CUresult {
    let (real, others) = {
        let mut finish = FINISH.lock().unwrap();
        (finish.0, finish.1.take())
    };
    if let Some((notify, notified)) = others {
        notify.send(()).unwrap();
        let _ = notified.recv_timeout(Duration::from_millis(20));
    }
    // SAFETY: the function has no parameters.
    real.map_or(CUresult::CUDA_ERROR_NOT_FOUND, |real| unsafe { real() })
}

/// A thread finds its pool full and waits for the device just as a capture begins.
#[test]
fn a_capture_begins_while_another_thread_finds_no_room() {
    let install = |table: &mut Table| {
        *FINISH.lock().unwrap() = (table.cuCtxSynchronize.replace(tell_and_finish), None);
    };
    on_each_backend_with(&small(), install, |fixture| {
        let pool = fixture.builder().hard_limit(16 * MIB).build().unwrap();
        let (captured, other) = (fixture.stream(), fixture.stream());
        let held = pool.alloc(12 * MIB, &other).unwrap();
        let ((notify, notified), (begun, has_begun)) = (channel(), channel());
        FINISH.lock().unwrap().1 = Some((notify, has_begun));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let refused = pool.alloc(8 * MIB, &other);
                FINISH.lock().unwrap().1 = None;
                assert!(matches!(refused, Err(PoolError::LimitReached(_))), "{refused:?}");
            });
            // A backend without a cache refuses right away.
            let _is_waiting = notified.recv_timeout(Duration::from_secs(5));
            let capture = Capture::begin(&captured, CaptureMode::Global).unwrap();
            let _nobody_waits_any_more = begun.send(());
            fixture.fill(&pool.alloc(MIB, &captured).unwrap(), 1, &captured);
            capture.end().unwrap();
        });
        drop(held);
    });
}

/// One of two `Device`s for a GPU is dropped, with memory of an ended pool. A capture on the other one stays valid.
#[test]
fn a_device_that_is_opened_twice_ends_beside_a_capture() {
    on_device_memory(&small(), |fixture| {
        let opened = Device::new(&fixture.driver, 0).unwrap();
        let pool = Pool::builder(&opened).backend(fixture.backend).build().unwrap();
        let stream = Stream::new(&opened).unwrap();
        let block = pool.alloc(8 * MIB, &stream).unwrap();
        fixture.fill(&block, 1, &stream);
        if fixture.backend == BackendKind::None {
            // A plain free waits for the device.
            drop(block);
            return;
        }
        let captured = fixture.stream();
        let capture = Capture::begin(&captured, CaptureMode::Global).unwrap();
        drop((block, pool, stream, opened));
        fixture.fill(&fixture.pool().alloc(MIB, &captured).unwrap(), 1, &captured);
        capture.end().unwrap();
        fixture.device.synchronize().unwrap();
        let info = fixture.device.memory_info().unwrap();
        assert_eq!(info.free_bytes, info.total_bytes);
    });
}

/// Streams of another device join: that device cannot be synchronised either.
#[test]
fn another_device_is_part_of_a_capture() {
    let config = SimConfig::new().devices(2).memory_bytes(1 << 30);
    on_device_memory(&config, |fixture| {
        let there = Device::new(&fixture.driver, 1).unwrap();
        let (here, joined) = (fixture.stream(), Stream::new(&there).unwrap());
        let pool = Pool::builder(&there).backend(fixture.backend).hard_limit(16 * MIB).build().unwrap();
        let other = Stream::new(&there).unwrap();
        let held = pool.alloc(12 * MIB, &other).unwrap();
        for is_by_event in [false, true] {
            let capture = Capture::begin(&here, CaptureMode::Global).unwrap();
            there.synchronize().unwrap();
            if is_by_event {
                let event = Event::new(&fixture.device).unwrap();
                event.record(&here).unwrap();
                joined.wait(&event).unwrap();
            } else {
                joined.wait_for(&here).unwrap();
            }
            let refused = pool.alloc(8 * MIB, &other);
            assert!(matches!(refused, Err(PoolError::LimitReached(_))), "{refused:?}");
            assert!(matches!(
                there.synchronize(),
                Err(DeviceError::Capture(CaptureError::NotCapturable { .. }))
            ));
            here.wait_for(&joined).unwrap();
            capture.end().unwrap();
            there.synchronize().unwrap();
        }
        drop(held);
    });
}

/// Each driver call of a wait that is deferred to the launches fails once. The wait returns the error, or the launch follows it.
#[test]
fn a_deferred_wait_is_not_lost() {
    for is_by_event in [false, true] {
        let calls = wait_in_a_capture(is_by_event, None);
        assert!(!calls.is_empty());
        for nth in calls {
            wait_in_a_capture(is_by_event, Some((nth, CUresult::CUDA_ERROR_INVALID_VALUE)));
        }
    }
}

/// Returns the numbers of the calls of the wait.
fn wait_in_a_capture(is_by_event: bool, failure: Option<(u64, CUresult)>) -> Range<u64> {
    let plain = gpumem_sim::driver(small()).unwrap();
    let device = Device::new(&count_calls(&plain, failure), 0).unwrap();
    let (pool, captured, other) =
        (Pool::new(&device).unwrap(), Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
    let [mut from, to] = [(), ()].map(|()| pool.alloc_zeroed(MIB, &other).unwrap());
    device.synchronize().unwrap();
    let event = Event::new(&device).unwrap();
    let capture = Capture::begin(&captured, CaptureMode::Global).unwrap();
    from.fill(0..MIB, 7_u8, &other).unwrap();
    event.record(&other).unwrap();
    let first = calls().total() + 1;
    let waited = if is_by_event { captured.wait(&event) } else { captured.wait_for(&other) };
    let waits = first..calls().total() + 1;
    if waited.is_ok() {
        let _bound = device.bind().unwrap();
        let size = MIB as usize;
        // SAFETY: both blocks are alive and of this size, and the stream has waited.
        unsafe { plain.cuMemcpyDtoDAsync_v2(to.address(), from.address(), size, captured.raw()).unwrap() };
    }
    let exec = capture.end().unwrap().instantiate().unwrap();
    // SAFETY: the memory is alive, and the stream has waited for its uses.
    unsafe { exec.launch(&captured).unwrap() };
    device.synchronize().unwrap();
    let found = Sim::of(&plain).unwrap().report().findings;
    assert_eq!(found, [], "call {:?} of {waits:?}, {:?}, failed", failure, calls().failed);
    waits
}

/// Whichever call the device is lost at, the error says so: not that a stream captures which does not.
#[test]
fn a_device_lost_beside_a_capture_is_no_capture() {
    for is_by_event in [false, true] {
        let driver = count_calls(&gpumem_sim::driver(SimConfig::new()).unwrap(), None);
        deferred_waits(&driver, is_by_event).unwrap();
        for nth in 1..=calls().total() {
            let effect = Effect::LoseDevice { device: 0, code: CUresult::CUDA_ERROR_ECC_UNCORRECTABLE };
            let config = SimConfig::new().rule(Rule::new("*", effect).nth(nth));
            // Before the context exists, there is nothing to lose.
            let result = deferred_waits(&gpumem_sim::driver(config).unwrap(), is_by_event);
            let is_told = matches!(result, Ok(()) | Err(PoolError::Device(DeviceError::DeviceLost(_))));
            assert!(is_told, "call {nth}, by event {is_by_event}: {result:?}");
        }
    }
}

/// A captured stream waits for one outside, twice, and its graph is launched behind more work there.
fn deferred_waits(driver: &Driver, is_by_event: bool) -> Result<(), PoolError> {
    let device = Device::new(driver, 0)?;
    let pool = Pool::new(&device)?;
    let [captured, other] = [Stream::new(&device)?, Stream::new(&device)?];
    let mut block = pool.alloc(MIB, &other)?;
    block.fill(0..MIB, 1_u8, &other)?;
    let event = Event::new(&device)?;
    let capture = Capture::begin(&captured, CaptureMode::Relaxed)?;
    for _ in 0..2 {
        event.record(&other)?;
        if is_by_event {
            captured.wait(&event)?
        } else {
            captured.wait_for(&other)?
        }
        block.fill(0..MIB, 2_u8, &other)?;
    }
    let exec = capture.end()?.instantiate()?;
    // SAFETY: the graph has no work of its own.
    unsafe { exec.launch(&captured)? };
    device.synchronize().map_err(Into::into)
}

//! Each driver call that gets memory fails with each code of the driver: a shortage climbs the ladder and ends in a report, a lack makes
//! the pool use something else, and every other code is the error of the request.

use crate::fixture::{Fixture, on_each_backend, small};
use gpumem_pool::sys::CUresult;
use gpumem_pool::{BackendKind, Block, Device, Event, MemoryKind, Pool, PoolBuilder, PoolError, Stream};
use gpumem_sim::{Effect, Rule};

const MIB: u64 = 1 << 20;

/// Every code of the driver that has a name, except success.
fn codes() -> impl Iterator<Item = CUresult> {
    (1..1000).map(CUresult).filter(|code| code.name().is_some())
}

fn device(call: &str, code: CUresult, limit: impl FnOnce(Rule) -> Rule) -> Device {
    let rule = limit(Rule::new(call, Effect::Fail(code)));
    Device::new(&gpumem_sim::driver(small().rule(rule)).unwrap(), 0).unwrap()
}

/// The calls that get memory for a block, and the first of them that belongs to a block: the ones before try virtual memory.
fn calls_of(fixture: &Fixture) -> (&'static [&'static str], u64) {
    match (fixture.backend, fixture.kind) {
        _ if fixture.maps() => (&["cuMemCreate", "cuMemMap", "cuMemSetAccess"], 2),
        (BackendKind::Native, _) => (&["cuMemAllocFromPoolAsync"], 1),
        (_, MemoryKind::Unified) => (&["cuMemAllocManaged"], 1),
        (_, MemoryKind::Host) => (&["cuMemHostAlloc"], 1),
        _ => (&["cuMemAlloc_v2"], 1),
    }
}

fn builder(fixture: &Fixture, device: &Device) -> PoolBuilder {
    let builder = Pool::builder(device).backend(fixture.backend).kind(fixture.kind);
    if fixture.plain_segments { builder.conf("expandable_segments:false").unwrap() } else { builder }
}

fn alloc(fixture: &Fixture, device: &Device) -> Result<Block, PoolError> {
    builder(fixture, device).build().unwrap().alloc(5 * MIB, &Stream::new(device).unwrap())
}

/// WSL returns the last two.
const SHORT: [CUresult; 3] =
    [CUresult::CUDA_ERROR_OUT_OF_MEMORY, CUresult::CUDA_ERROR_NOT_READY, CUresult::CUDA_ERROR_UNKNOWN];

#[test]
fn a_code_of_a_shortage_climbs_the_ladder_and_others_end_the_request() {
    on_each_backend(&small(), |fixture| {
        let (calls, nth) = calls_of(fixture);
        if fixture.seed > 0 {
            return;
        }
        for (call, code) in calls.iter().flat_map(|call| codes().map(move |code| (*call, code))) {
            let once = alloc(fixture, &device(call, code, |rule| rule.nth(nth)));
            let always = alloc(fixture, &device(call, code, |rule| rule.from_nth(nth)));
            let text = format!("{call}, {code}: {once:?}, {always:?}");
            if SHORT.contains(&code) {
                let error = always.unwrap_err();
                let PoolError::OutOfMemory(report) = &error else { panic!("{text}") };
                assert!(once.is_ok() && error.is_out_of_memory() && !report.attempts.is_empty(), "{text}");
                let is_other = code != CUresult::CUDA_ERROR_OUT_OF_MEMORY;
                assert_eq!(report.driver_error.is_some(), is_other, "{text}");
                assert_eq!(error.to_string().contains(code.name().unwrap()), is_other, "{text}");
                continue;
            }
            for result in [once, always] {
                match result {
                    Err(
                        error @ (PoolError::Driver(cause)
                        | PoolError::DeviceLost(cause)
                        | PoolError::HostFunction(cause)),
                    ) => {
                        assert!(cause.code() == code && !error.is_out_of_memory(), "{text}");
                    }
                    _ => panic!("{text}"),
                }
            }
        }
    });
}

/// The codes after which the driver runs no more work, as far as a first call can return them.
#[cfg(feature = "backend-caching")]
const LOST: [CUresult; 4] = [
    CUresult::CUDA_ERROR_DEINITIALIZED,
    CUresult::CUDA_ERROR_INVALID_CONTEXT,
    CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
    CUresult::CUDA_ERROR_LAUNCH_FAILED,
];

/// A device that reports virtual memory and refuses a call for it gets plain segments, which work, and the status states why.
#[cfg(feature = "backend-caching")]
#[test]
fn a_device_that_cannot_map_and_write_gets_plain_segments() {
    let calls =
        ["cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemsetD8Async", "cuMemUnmap"];
    for (call, code) in calls.into_iter().flat_map(|call| codes().map(move |code| (call, code))) {
        let device = device(call, code, |rule| rule);
        let built = Pool::new(&device);
        let Ok(pool) = built else {
            let (Err(PoolError::DeviceLost(cause)) | Err(PoolError::Driver(cause))) = built else { panic!() };
            let code = cause.code();
            let is_sticky = matches!(built, Err(PoolError::DeviceLost(_)));
            assert!(LOST.contains(&code) || is_sticky, "{call}, {code}");
            continue;
        };
        assert!(!LOST.contains(&code), "{call}, {code}");
        let (status, stream) = (pool.status().unwrap(), Stream::new(&device).unwrap());
        if code == CUresult::CUDA_ERROR_OUT_OF_MEMORY && call != "cuMemAddressReserve" {
            assert!(!status.plain_segments, "{call}, {code}: the device is merely full");
            continue;
        }
        assert!(status.plain_segments, "{call}, {code}");
        let reason = status.plain_segments_reason.as_deref().unwrap();
        assert!(reason.contains(code.name().unwrap()), "{call}, {code}: {reason}");
        assert!(status.to_string().contains(&format!("Plain segments: {reason}")), "{status}");
        drop(pool.alloc(5 * MIB, &stream).unwrap());
        pool.check().unwrap();
    }
}

/// After a success the trial is not repeated, and after a failure it is.
#[cfg(feature = "backend-caching")]
#[test]
fn virtual_memory_is_tried_until_it_works() {
    let device = device("cuMemSetAccess", CUresult::CUDA_ERROR_UNKNOWN, |rule| rule.nth(1));
    let is_plain = || Pool::new(&device).unwrap().status().unwrap().plain_segments;
    assert_eq!([is_plain(), is_plain(), is_plain()], [true, false, false]);
    let report = gpumem_sim::Sim::of(device.driver()).unwrap().report();
    assert_eq!((report.handle_count, report.reservation_count, report.stream_count), (0, 0, 0), "{report}");
}

/// Objects that no pool frees memory for: the error says whether memory ran out.
#[test]
fn streams_and_events_say_whether_memory_ran_out() {
    for code in codes() {
        let of_stream = Stream::new(&device("cuStreamCreateWithPriority", code, |rule| rule)).unwrap_err();
        let of_event = Event::new(&device("cuEventCreate", code, |rule| rule)).unwrap_err();
        for error in [of_stream, of_event] {
            assert_eq!(error.is_out_of_memory(), code == CUresult::CUDA_ERROR_OUT_OF_MEMORY, "{error}");
        }
    }
}

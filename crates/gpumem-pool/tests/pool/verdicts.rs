//! Each driver call that gets memory fails with each code of the driver: a shortage climbs the ladder and ends in a report, a lack makes
//! the pool use something else, and every other code is the error of the request.

#![forbid(unsafe_code)]

use crate::call_counter::{calls, count_calls};
use crate::fixture::{Fixture, on_each_backend, small};
use gpumem_pool::adaptor::{Budget, Fallback, Fill, Guard, Tracking};
use gpumem_pool::sys::{CUresult, Driver};
use gpumem_pool::{
    BackendKind, Block, Capture, CaptureMode, Device, DeviceError, Event, HostMemory, Keep, MemoryKind, Pool,
    PoolBuilder, PoolError, Stream,
};
use gpumem_sim::{Effect, Rule, SimConfig};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

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

/// The codes that every later call returns again.
const LOST: [CUresult; 16] = [
    CUresult::CUDA_ERROR_ECC_UNCORRECTABLE,
    CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE,
    CUresult::CUDA_ERROR_CONTAINED,
    CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
    CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
    CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED,
    CUresult::CUDA_ERROR_ASSERT,
    CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR,
    CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION,
    CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
    CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE,
    CUresult::CUDA_ERROR_INVALID_PC,
    CUresult::CUDA_ERROR_LAUNCH_FAILED,
    CUresult::CUDA_ERROR_TENSOR_MEMORY_LEAK,
    CUresult::CUDA_ERROR_MPS_CLIENT_TERMINATED,
    CUresult::CUDA_ERROR_EXTERNAL_DEVICE,
];

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
                let error = result.expect_err(&text);
                let cause = match &error {
                    PoolError::Device(DeviceError::DeviceLost(cause)) if LOST.contains(&code) => cause,
                    PoolError::Device(DeviceError::HostFunction(cause))
                        if code == CUresult::CUDA_ERROR_NOT_PERMITTED =>
                    {
                        cause
                    }
                    PoolError::Device(DeviceError::Driver(cause)) => {
                        let has_own = LOST.contains(&code) || code == CUresult::CUDA_ERROR_NOT_PERMITTED;
                        assert!(!has_own, "{text}");
                        cause
                    }
                    _ => panic!("{text}"),
                };
                assert!(cause.code() == code && !error.is_out_of_memory(), "{text}");
            }
        }
    });
}

/// A request, ready to be made. It may be made again.
type Request = Box<dyn FnMut() -> Result<(), PoolError>>;

/// The outcome of a way to memory that the driver refuses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Meets {
    /// The ladder releases memory and asks again, and its end is a report.
    Ladder,
    /// The error of the call.
    Error,
    /// The error of the call for pinned memory, and the ladder for other memory.
    Guard,
}

/// A way to memory: what comes before, and the request. `None` where a backend or a kind of memory lacks it.
type Way = (&'static str, Meets, fn(&Fixture, &Device) -> Option<Request>);

/// Every way in which a program makes the pool call the driver for memory.
const WAYS: &[Way] = &[
    ("alloc", Meets::Ladder, |fixture, device| {
        of_pool(builder(fixture, device), |pool, stream| pool.alloc(5 * MIB, stream))
    }),
    ("a small block", Meets::Ladder, |fixture, device| {
        of_pool(builder(fixture, device), |pool, stream| pool.alloc(100, stream))
    }),
    ("alloc_aligned", Meets::Ladder, |fixture, device| {
        of_pool(builder(fixture, device), |pool, stream| pool.alloc_aligned(5 * MIB, 1 << 16, stream))
    }),
    ("alloc_zeroed", Meets::Ladder, |fixture, device| {
        of_pool(builder(fixture, device), |pool, stream| pool.alloc_zeroed(5 * MIB, stream))
    }),
    ("alloc_ready", Meets::Ladder, |fixture, device| {
        of_pool(builder(fixture, device), |pool, stream| pool.alloc_ready(5 * MIB, 4, stream))
    }),
    ("alloc_tagged", Meets::Ladder, |fixture, device| {
        of_pool(builder(fixture, device), |pool, stream| {
            pool.alloc_tagged(5 * MIB, stream, &pool.tag("a test"))
        })
    }),
    ("alloc_up_to", Meets::Ladder, |fixture, device| {
        of_pool(builder(fixture, device), |pool, stream| pool.alloc_up_to(MIB..=5 * MIB, stream))
    }),
    ("a private pool", Meets::Ladder, |fixture, device| {
        let pool = builder(fixture, device).build().unwrap().private(64 * MIB).unwrap();
        let stream = Stream::new(device).unwrap();
        Some(Box::new(move || pool.alloc(5 * MIB, &stream).map(drop)))
    }),
    ("a part", Meets::Ladder, |fixture, device| {
        let pool = builder(fixture, device).build().unwrap().part("weights").ok()?;
        let stream = Stream::new(device).unwrap();
        Some(Box::new(move || pool.alloc(5 * MIB, &stream).map(drop)))
    }),
    ("grants of adaptors", Meets::Ladder, |fixture, device| {
        let builder = builder(fixture, device).adaptor(Arc::new(Tracking::new()));
        let builder =
            builder.adaptor(Arc::new(Budget::new(64 * MIB))).adaptor(Arc::new(Fill::zero_on_alloc()));
        of_pool(builder, |pool, stream| pool.alloc(5 * MIB, stream))
    }),
    ("a fallback that refuses too", Meets::Ladder, |fixture, device| {
        let other = builder(fixture, device).build().unwrap();
        of_pool(builder(fixture, device).adaptor(Arc::new(Fallback::new(&other))), |pool, stream| {
            pool.alloc(5 * MIB, stream)
        })
    }),
    // A guard reads the bytes around blocks through pinned memory of its own, which it allocates first.
    ("the first block of a guard", Meets::Guard, |fixture, device| {
        of_pool(builder(fixture, device).adaptor(Arc::new(Guard::new())), |pool, stream| {
            pool.alloc(5 * MIB, stream)
        })
    }),
    ("reserve", Meets::Ladder, |fixture, device| {
        let pool = builder(fixture, device).build().unwrap();
        // `native` and `none` hold nothing in reserve.
        (fixture.backend == BackendKind::Caching).then(|| Box::new(move || pool.reserve(32 * MIB)) as Request)
    }),
    ("grow_to", Meets::Ladder, |fixture, device| {
        let pool = builder(fixture, device).build().unwrap();
        let mut block =
            fixture.maps().then(|| pool.growable(64 * MIB, &Stream::new(device).unwrap()).unwrap())?;
        Some(Box::new(move || block.grow_to(9 * MIB)))
    }),
    ("grow_to beyond what is there", Meets::Ladder, |fixture, device| {
        let pool = builder(fixture, device).build().unwrap();
        let mut block =
            fixture.maps().then(|| pool.growable(64 * MIB, &Stream::new(device).unwrap()).unwrap())?;
        block.grow_to(3 * MIB).unwrap();
        Some(Box::new(move || block.grow_to(30 * MIB)))
    }),
    // The contents go to pinned memory.
    ("sleep", Meets::Error, |fixture, device| {
        let pool = builder(fixture, device).build().unwrap();
        let block = fixture.maps().then(|| pool.alloc(5 * MIB, &Stream::new(device).unwrap()).unwrap())?;
        Some(Box::new(move || {
            let _kept = &block;
            pool.sleep(Keep::OnHost).map(drop)
        }))
    }),
    ("wake", Meets::Ladder, |fixture, device| {
        let (pool, stream) = (builder(fixture, device).build().unwrap(), Stream::new(device).unwrap());
        let block = fixture.maps().then(|| pool.alloc(5 * MIB, &stream).unwrap())?;
        let mut growable = pool.growable(64 * MIB, &stream).unwrap();
        growable.grow_to(9 * MIB).unwrap();
        pool.sleep(Keep::OnHost).unwrap();
        Some(Box::new(move || {
            let _kept = (&block, &growable);
            pool.wake().map(drop)
        }))
    }),
    ("wake_parts", Meets::Ladder, |fixture, device| {
        let pool = builder(fixture, device).build().unwrap();
        let block = fixture
            .maps()
            .then(|| pool.part("weights").unwrap().alloc(5 * MIB, &Stream::new(device).unwrap()).unwrap())?;
        pool.sleep_parts(["weights"], Keep::OnHost).unwrap();
        Some(Box::new(move || {
            let _kept = &block;
            pool.wake_parts(["weights"]).map(drop)
        }))
    }),
    ("memory of a graph", Meets::Ladder, |fixture, device| {
        let (pool, stream) = (builder(fixture, device).build().unwrap(), Stream::new(device).unwrap());
        (fixture.kind != MemoryKind::Host).then(|| {
            Box::new(move || {
                let capture = Capture::begin(&stream, CaptureMode::Relaxed)?;
                let made = pool.alloc(5 * MIB, &stream).map(drop);
                capture.end()?;
                made
            }) as Request
        })
    }),
    ("enable_peer_access", Meets::Error, |fixture, device| {
        let (pool, stream) = (builder(fixture, device).build().unwrap(), Stream::new(device).unwrap());
        let peer = Device::new(device.driver(), 1).unwrap();
        let block = fixture.maps().then(|| pool.alloc(5 * MIB, &stream).unwrap())?;
        Some(Box::new(move || {
            let _kept = &block;
            pool.enable_peer_access(&peer)
        }))
    }),
    #[cfg(target_os = "linux")]
    ("an import", Meets::Error, |fixture, device| {
        let pool = fixture
            .maps()
            .then(|| builder(fixture, device).conf("exportable:true").unwrap().build().unwrap())?;
        let block = pool.alloc(4 * MIB, &Stream::new(device).unwrap()).unwrap();
        let device = device.clone();
        Some(Box::new(move || gpumem_pool::ImportedBlock::new(&device, block.export()?).map(drop)))
    }),
    ("HostMemory::register", Meets::Error, |fixture, device| {
        let device = (fixture.kind == MemoryKind::Host).then(|| device.clone())?;
        Some(Box::new(move || {
            HostMemory::register(&device, vec![0_u8; 4096]).map(drop).map_err(PoolError::from)
        }))
    }),
    ("HostMemory::register_read_only", Meets::Error, |fixture, device| {
        let device = (fixture.kind == MemoryKind::Host).then(|| device.clone())?;
        Some(Box::new(move || {
            HostMemory::register_read_only(&device, vec![0_u8; 4096]).map(drop).map_err(PoolError::from)
        }))
    }),
    ("with_host_memory", Meets::Error, |fixture, device| {
        let device = (fixture.kind == MemoryKind::Host).then(|| device.clone())?;
        Some(Box::new(move || device.with_host_memory(&mut [0_u8; 4096], |_| ()).map_err(Into::into)))
    }),
];

fn of_pool<T: 'static>(
    builder: PoolBuilder,
    request: impl Fn(&Pool, &Stream) -> Result<T, PoolError> + 'static,
) -> Option<Request> {
    let pool = builder.build().unwrap();
    let stream = Stream::new(pool.device()).unwrap();
    Some(Box::new(move || request(&pool, &stream).map(drop)))
}

/// The functions of the row of shortages in the table of verdicts.
fn calls_for_memory() -> Vec<&'static str> {
    let (_, rows) =
        include_str!("../../../gpumem-device/src/error/verdict.rs").split_once("const ROWS").unwrap();
    let row = rows.split("codes:").next().unwrap();
    let calls: Vec<_> = row.split('"').skip(1).step_by(2).collect();
    assert!(calls.len() > 5 && calls.iter().all(|call| call.starts_with("cu")), "{calls:?}");
    calls
}

/// Two devices, so that there is a peer.
fn machine(rule: Option<Rule>) -> Driver {
    let config = SimConfig::new().memory_bytes(1 << 30).devices(2);
    gpumem_sim::driver(rule.into_iter().fold(config, SimConfig::rule)).unwrap()
}

/// Each call for memory on each way, with each code of a shortage and one that is none: the first call of the request fails, or all of
/// them.
#[test]
fn each_way_to_memory_meets_each_code() {
    let forced = Mutex::new(BTreeSet::new());
    on_each_backend(&small(), |fixture| {
        if fixture.seed > 0 {
            return;
        }
        for (name, meets, way) in WAYS {
            // The calls of the request, and how many of each came before.
            let counted = Device::new(&count_calls(&machine(None), None), 0).unwrap();
            let Some(mut request) = way(fixture, &counted) else { continue };
            let before = calls();
            request().unwrap_or_else(|error| panic!("{name}: {error}"));
            let after = calls();
            drop((request, counted));
            let made = calls_for_memory().into_iter().filter(|call| after.count(call) > before.count(call));
            for call in made {
                forced.lock().unwrap().insert(call);
                for code in SHORT.into_iter().chain([CUresult::CUDA_ERROR_OPERATING_SYSTEM]) {
                    let nth = before.count(call) + 1;
                    let outcome = |rule: Rule| {
                        let device = Device::new(&machine(Some(rule)), 0).unwrap();
                        way(fixture, &device).unwrap()()
                    };
                    let rule = Rule::new(call, Effect::Fail(code));
                    let once = outcome(rule.clone().nth(nth));
                    let always = outcome(rule.from_nth(nth));
                    let climbs = match meets {
                        Meets::Ladder => true,
                        Meets::Error => false,
                        Meets::Guard => call != "cuMemHostAlloc",
                    };
                    check(climbs, code, [once, always], &format!("{name}, {call}, {code}"));
                }
            }
        }
    });
    let forced = forced.into_inner().unwrap();
    let missing: Vec<_> = calls_for_memory().into_iter().filter(|call| !forced.contains(call)).collect();
    let is_whole = cfg!(all(feature = "backend-caching", feature = "backend-native", target_os = "linux"));
    assert!(!is_whole || missing.is_empty(), "no way of this test makes {missing:?}");
}

fn check(climbs: bool, code: CUresult, outcomes: [Result<(), PoolError>; 2], way: &str) {
    let text = format!("{way}: {outcomes:?}");
    let [once, always] = outcomes;
    let is_short = SHORT.contains(&code);
    let error = always.expect_err(&text);
    assert_eq!(error.is_out_of_memory(), is_short, "{text}");
    if is_short && climbs {
        assert!(once.is_ok(), "{text}");
        let report = error.out_of_memory().expect(&text);
        let is_other = code != CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        assert_eq!(report.driver_error.is_some(), is_other, "{text}");
        return assert_eq!(error.to_string().contains(code.name().unwrap()), is_other, "{text}");
    }
    for error in [once.expect_err(&text), error] {
        let PoolError::Device(DeviceError::Driver(cause)) = error else { panic!("{text}") };
        assert_eq!(cause.code(), code, "{text}");
    }
}

/// Codes after which the driver runs no more work either. Each may have another cause than a lost device.
#[cfg(feature = "backend-caching")]
const OVER: [CUresult; 2] = [CUresult::CUDA_ERROR_DEINITIALIZED, CUresult::CUDA_ERROR_INVALID_CONTEXT];

/// A device that reports virtual memory and refuses a call for it gets plain segments, which work, and the status states why.
#[cfg(feature = "backend-caching")]
#[test]
fn a_device_that_cannot_map_and_write_gets_plain_segments() {
    let calls =
        ["cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemsetD8Async", "cuMemUnmap"];
    for (call, code) in calls.into_iter().flat_map(|call| codes().map(move |code| (call, code))) {
        let device = device(call, code, |rule| rule);
        let built = Pool::new(&device);
        let pool = match built {
            Err(PoolError::Device(DeviceError::DeviceLost(cause)))
                if LOST.contains(&code) && cause.code() == code =>
            {
                continue;
            }
            Err(PoolError::Device(DeviceError::Driver(cause)))
                if OVER.contains(&code) && cause.code() == code =>
            {
                continue;
            }
            built => built.unwrap_or_else(|error| panic!("{call}, {code}: {error}")),
        };
        assert!(![&LOST[..], &OVER].concat().contains(&code), "{call}, {code}");
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

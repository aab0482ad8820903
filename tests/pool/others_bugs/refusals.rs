//! Bugs of refusals: errors without information, errors that came too early, and errors that broke later calls.

use gpumem_sim::{Effect, Rule, SimConfig};
use gpumem_tests::cases;
use gpumem_tests::fixtures::backends::{Setting, settings};
use gpumem_tests::fixtures::pool_fixture::{MIB, PoolFixture};
use gpumem_tests::pool::{Device, DeviceError, MemoryKind, Pool, PoolError, Stream};
use gpumem_tests::sys::{CUresult, DriverError};

cases! {
    /// rapidsai/rmm#1134, #813, NVIDIA/cudf-spark#1054: "out of memory" without the size of the request. JuliaGPU/CUDA.jl#2898:
    /// the next call failed because of it.
    #[serial_test::file_serial(gpumem_whole_device)]
    fn an_out_of_memory_error_states_the_requested_bytes(driver: &Driver) {
        PoolFixture::each(driver, |options| options, |fixture| {
            if fixture.pool.kind() == MemoryKind::Host {
                // The host may have as much memory.
                return;
            }
            let stream = fixture.stream();
            let held = fixture.filled(32 * MIB, 1, &stream);
            let total_bytes = fixture.device.total_bytes();
            let report = match (fixture.pool.alloc(total_bytes, &stream), fixture.pool.kind()) {
                (Err(PoolError::OutOfMemory(report)), MemoryKind::Device) => report,
                // The margin of unified memory is a limit.
                (Err(PoolError::LimitReached(report)), MemoryKind::Unified) => report,
                (outcome, _) => panic!("{outcome:?}"),
            };
            assert_eq!((report.requested_bytes, report.in_use_bytes), (total_bytes, 32 * MIB));
            let is_limit = fixture.pool.kind() == MemoryKind::Unified;
            assert_eq!((report.device_total_bytes, report.limit_bytes.is_some()), (total_bytes, is_limit));
            fixture.check(&held, 1, &stream);
            drop(fixture.filled(MIB, 2, &stream));
        });
    }

    /// pytorch/pytorch's own case: more than an exbibyte; RMM's: a pebibyte.
    fn absurd_sizes_are_refused(driver: &Driver) {
        PoolFixture::each(driver, |options| options, |fixture| {
            let stream = fixture.stream();
            for size_bytes in [1 << 50, 1 << 60, i64::MAX as u64, 1 << 63, u64::MAX - 255, u64::MAX - 1, u64::MAX] {
                let error = fixture.pool.alloc(size_bytes, &stream).unwrap_err();
                let is_for_host = fixture.pool.kind() == MemoryKind::Host;
                match error {
                    PoolError::TooLarge { .. } if !is_for_host => {}
                    PoolError::OutOfMemory { .. } if is_for_host => {}
                    other => panic!("{size_bytes}: {other}"),
                }
            }
            drop(fixture.filled(MIB, 1, &stream));
            assert_eq!(fixture.pool.status().unwrap().in_use_bytes, 0);
        });
    }

    /// JuliaGPU/CUDA.jl's D16: requests that would have fitted below the limit were refused because of merely reserved memory. A
    /// request that does not fit must leave no trace.
    fn a_refused_request_leaves_no_trace(driver: &Driver) {
        PoolFixture::each(driver, |options| options.hard_limit(64 * MIB), |fixture| {
            let stream = fixture.stream();
            let held = fixture.filled(40 * MIB, 1, &stream);
            for _ in 0..50 {
                let error = fixture.pool.alloc(32 * MIB, &stream).unwrap_err();
                assert!(matches!(error, PoolError::LimitReached { .. } | PoolError::OutOfMemory { .. }), "{error}");
            }
            let more = fixture.filled(20 * MIB, 2, &stream);
            fixture.check(&held, 1, &stream);
            drop((held, more));
            drop(fixture.filled(60 * MIB, 3, &stream));
        });
    }
}

/// pytorch/pytorch#188008, #187955: the third of five maps failed, and the process ended. Here each call of an allocation fails
/// once; the result is memory or an error, and afterwards the pool is in its former state.
#[test]
fn a_partial_failure_is_undone() {
    let calls = [
        "cuMemAddressReserve",
        "cuMemCreate",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemAllocFromPoolAsync",
        "cuMemAlloc_v2",
        "cuMemAllocManaged",
        "cuMemHostAlloc",
        "cuMemPoolTrimTo",
        "cuMemGetInfo_v2",
    ];
    for setting in built() {
        for call in calls {
            for nth in 1..=6 {
                let rule = Rule::new(call, Effect::Fail(CUresult::CUDA_ERROR_OUT_OF_MEMORY)).nth(nth);
                meet_a_failure(setting, rule);
            }
        }
    }
}

fn meet_a_failure(setting: Setting, rule: Rule) {
    let text = format!("{setting}, {rule}");
    let driver = gpumem_sim::driver(SimConfig::small().rule(rule)).unwrap();
    let device = Device::new(&driver, 0).unwrap();
    let stream = Stream::new(&device).unwrap();
    let Ok(pool) = setting.builder(&device).build() else { return };
    let mut held = Vec::new();
    for size_bytes in [300, 5 * MIB, 12 * MIB, 700, 20 * MIB, 3 * MIB, 16 * MIB, 9 * MIB] {
        match pool.alloc(size_bytes, &stream) {
            Ok(block) => held.push(block),
            Err(PoolError::OutOfMemory { .. } | PoolError::Device(DeviceError::Driver(_))) => {
                drop(held.pop())
            }
            Err(PoolError::LimitReached { .. }) if setting.kind == MemoryKind::Unified => drop(held.pop()),
            Err(other) => panic!("{text}: {other}"),
        }
        if is_poisoned(&pool, &stream) {
            return;
        }
        let live_bytes: u64 = held.iter().map(|block| block.size_bytes()).sum();
        match pool.status() {
            Ok(status) => assert_eq!(status.in_use_bytes, live_bytes, "{text}"),
            Err(error) => {
                assert!(matches!(error, PoolError::Device(DeviceError::Driver(_))), "{text}: {error}")
            }
        }
    }
    drop(held);
    if is_poisoned(&pool, &stream) {
        return;
    }
    // The injected rule has fired by now, or never will.
    let again = pool.alloc(24 * MIB, &stream).or_else(|_| pool.alloc(24 * MIB, &stream));
    assert!(again.is_ok(), "{text}: {again:?}");
    drop((again, pool, stream, device));
    let findings = gpumem_sim::Sim::of(&driver).unwrap().report().silent_findings();
    assert!(findings.is_empty(), "{text}: {}", findings[0]);
}

/// True if the failed call was a free: its block is leaked deliberately.
fn is_poisoned(pool: &Pool, stream: &Stream) -> bool {
    matches!(pool.alloc(0, stream), Err(PoolError::Poisoned { .. }))
}

/// pytorch/pytorch#122068, #112569, #130486: a query for the figures in an error message failed, and its error replaced the
/// message.
#[test]
fn out_of_memory_is_reported_even_without_the_numbers() {
    // Unified memory has its margin, and host memory is not the device's.
    for setting in built().into_iter().filter(|setting| setting.kind == MemoryKind::Device) {
        let rule = Rule::new("cuMemGetInfo*", Effect::Fail(CUresult::CUDA_ERROR_UNKNOWN));
        let driver = gpumem_sim::driver(SimConfig::small().rule(rule)).unwrap();
        let device = Device::new(&driver, 0).unwrap();
        let (stream, pool) = (Stream::new(&device).unwrap(), setting.builder(&device).build().unwrap());
        let held = pool.alloc(40 * MIB, &stream).unwrap();
        let error = pool.alloc(40 * MIB, &stream).unwrap_err();
        let is_told = match &error {
            PoolError::OutOfMemory { .. } => true,
            PoolError::Device(DeviceError::Driver(error)) => is_full(error),
            _ => false,
        };
        assert!(is_told, "{setting}: {error}");
        drop(held);
        drop(pool.alloc(40 * MIB, &stream).unwrap());
    }
}

/// JuliaGPU/CUDA.jl#763, #851, #1175: a stream or memory of another GPU reached the driver and ended the session.
#[test]
fn another_devices_stream_is_refused_before_the_driver_sees_it() {
    let driver = gpumem_sim::driver(SimConfig::new().devices(2)).unwrap();
    let [near, far] = [0, 1].map(|ordinal| Device::new(&driver, ordinal).unwrap());
    for setting in built() {
        let pool = setting.builder(&near).build().unwrap();
        let [home, away] = [&near, &far].map(|device| Stream::new(device).unwrap());
        for size_bytes in [0, 100, MIB, 40 * MIB] {
            let error = pool.alloc(size_bytes, &away).unwrap_err();
            assert!(
                matches!(error, PoolError::Device(DeviceError::WrongDevice { .. })),
                "{setting}: {error}"
            );
        }
        drop(pool.alloc(MIB, &home).unwrap());
    }
    assert_eq!(gpumem_sim::Sim::of(&driver).unwrap().report().faults, Vec::<String>::new());
}

fn built() -> Vec<Setting> {
    settings(&Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap())
}

fn is_full(error: &DriverError) -> bool {
    error.code() == CUresult::CUDA_ERROR_OUT_OF_MEMORY
}

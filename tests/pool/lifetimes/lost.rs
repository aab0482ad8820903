//! A lost context: whatever call is in progress, nothing panics or waits forever, and every later call returns the error.

use gpumem_sim::{Effect, Rule, SimConfig};
use gpumem_tests::fixtures::backends::{Setting, settings};
use gpumem_tests::fixtures::pool_fixture::MIB;
use gpumem_tests::pool::{Device, DeviceError, Event, Pool, PoolError, Stream};
use gpumem_tests::sys::CUresult;

#[test]
fn a_lost_context_is_met_by_every_entry() {
    let calls = [
        "cuMemAlloc*",
        "cuMemFree*",
        "cuMemCreate",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemUnmap",
        "cuMemsetD8Async",
        "cuEventRecord",
        "cuEventQuery",
        "cuStreamWaitEvent",
        "cuStreamSynchronize",
        "cuCtxSynchronize",
    ];
    for setting in settings(&Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap()) {
        for call in calls {
            for nth in [1, 2, 5] {
                lose(setting, call, nth);
            }
        }
    }
}

fn lose(setting: Setting, call: &str, nth: u64) {
    let effect = Effect::LoseDevice { device: 0, code: CUresult::CUDA_ERROR_ILLEGAL_ADDRESS };
    let rules = [Rule::new(call, effect).nth(nth), Rule::new("cuCtxGetStreamPriorityRange", effect)];
    let driver = gpumem_sim::driver(rules.into_iter().fold(SimConfig::small(), SimConfig::rule)).unwrap();
    let device = Device::new(&driver, 0).unwrap();
    let (home, other) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
    let Ok(pool) = setting.builder(&device).build() else { return };
    let mut kept = Vec::new();
    for round in 0..6 {
        match work(&pool, &home, &other, &mut kept, round) {
            Ok(()) => (),
            Err(PoolError::Device(DeviceError::DeviceLost(_))) => break,
            Err(error) => panic!("{setting}, {call} {nth}: {error}"),
        }
    }
    // From here on the context is lost.
    {
        let (_bound, mut least, mut greatest) = (device.bind(), 0, 0);
        // SAFETY: the locals outlive the call.
        let _ = unsafe { driver.cuCtxGetStreamPriorityRange(&mut least, &mut greatest) };
    }
    for lost in [
        home.synchronize().map_err(Into::into),
        device.synchronize().map_err(Into::into),
        pool.reclaim().map(drop),
    ] {
        assert!(
            matches!(lost, Err(PoolError::Device(DeviceError::DeviceLost(_)))),
            "{setting}, {call} {nth}: {lost:?}"
        );
    }
    for size_bytes in [400, 70_000, 9 * MIB] {
        match pool.alloc(size_bytes, &home) {
            // Cached memory may still be allocated.
            Err(PoolError::Device(DeviceError::DeviceLost(_))) | Ok(_) => (),
            Err(error) => panic!("{setting}, {call} {nth}, afterwards: {error}"),
        }
    }
    drop(kept);
    drop((pool, other, home));
}

fn work(
    pool: &Pool,
    home: &Stream,
    other: &Stream,
    kept: &mut Vec<gpumem_tests::pool::Block>,
    round: u64,
) -> Result<(), PoolError> {
    for size_bytes in [500 + round, 70_000, 3 * MIB, 20 * MIB] {
        let block = pool.alloc(size_bytes, home)?;
        let event = Event::new(pool.device())?;
        event.record(home)?;
        other.wait(&event)?;
        {
            let _bound = pool.device().bind()?;
            let driver = pool.device().driver();
            // SAFETY: the block is alive, and the use is recorded.
            unsafe { driver.cuMemsetD8Async(block.address(), 1, 400, other.raw())? };
        }
        block.record_use(other);
        event.is_complete()?;
        if size_bytes < MIB {
            kept.push(block);
        }
    }
    pool.trim_to(0)?;
    pool.reclaim()?;
    other.synchronize().map_err(Into::into)
}

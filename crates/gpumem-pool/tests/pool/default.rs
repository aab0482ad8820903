//! The default pool of a device. One test, because a process has one default pool for each ordinal.

use gpumem_pool::sys::{CUresult, Driver, LoadError};
use gpumem_pool::{Device, DeviceError, Pool, PoolError, Stream};
use gpumem_sim::{Effect, Rule, SimConfig};

#[test]
fn a_device_has_one_default_pool() {
    // A program without a driver gets no pool, and may set one later.
    if std::env::var_os("GPUMEM_DRIVER").is_none()
        && let Err(error) = Pool::for_device(7)
    {
        let is_named =
            matches!(error, PoolError::Load(_) | PoolError::Device(DeviceError::NotFound { ordinal: 7, .. }));
        assert!(is_named, "{error:?}");
        assert!(!matches!(error, PoolError::Load(LoadError::SimulatorRequested)));
    }
    let many = Effect::Fail(CUresult::CUDA_ERROR_TOO_MANY_PEERS);
    let config = SimConfig::new().devices(4).rule(Rule::new("cuCtxEnablePeerAccess", many));
    let driver = gpumem_sim::driver(config).unwrap();
    let device = Device::new(&driver, 3).unwrap();
    assert!(Pool::default_of(3).is_none());
    let pool = Pool::builder(&device).hard_limit(64 << 20).build().unwrap();

    // Of many threads that set it, one succeeds, and all get its pool.
    let set = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| pool.set_default())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(set.iter().filter(|result| result.is_ok()).count(), 1);
    let refused = Pool::new(&device).unwrap().set_default().unwrap_err();
    assert!(matches!(refused, PoolError::DefaultAlreadySet { ordinal: 3 }), "{refused:?}");
    assert!(refused.to_string().contains("device 3 already has a default pool"), "{refused}");

    let stream = Stream::new(&device).unwrap();
    let block = Pool::for_device(3).unwrap().alloc(1 << 20, &stream).unwrap();
    assert_eq!(pool.status().unwrap().in_use_bytes, 1 << 20);
    drop((pool, block));
    // It outlives the handle that was set.
    assert_eq!(Pool::default_of(3).unwrap().status().unwrap().hard_limit_bytes, Some(64 << 20));

    // A context that has all the links that it can have: copies to the further device go through the host.
    let plain = Pool::builder(&Device::new(&driver, 1).unwrap()).conf("expandable_segments:false").unwrap();
    plain.build().unwrap().set_default().unwrap();

    // The option `peers` counts alone, and only for its own pool.
    for (ordinal, peers) in [(0, "none"), (2, "[1]")] {
        let device = Device::new(&driver, ordinal).unwrap();
        let chosen = Pool::builder(&device).peers(peers).unwrap().build().unwrap();
        chosen.set_default().unwrap();
        let other = Stream::new(&Device::new(&driver, 3).unwrap()).unwrap();
        assert!(!may_write(&driver, &chosen, &other), "peers:{peers}");
        let open = Pool::for_device(3).unwrap();
        assert!(may_write(&driver, &open, &Stream::new(&device).unwrap()), "peers:{peers}");
    }
}

/// True if work on a stream of another device may write the memory of a pool.
fn may_write(driver: &Driver, pool: &Pool, other: &Stream) -> bool {
    let home = Stream::new(pool.device()).unwrap();
    let block = pool.alloc(4096, &home).unwrap();
    other.wait_for(&home).unwrap();
    let _bound = other.device().bind().unwrap();
    // SAFETY: the block is alive, and its free waits for the stream.
    let queued = unsafe { driver.cuMemsetD8Async(block.address(), 9, 4096, other.raw()) };
    block.record_use(other);
    other.synchronize().unwrap();
    queued.is_ok()
}

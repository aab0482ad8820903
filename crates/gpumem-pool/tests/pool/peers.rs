//! Memory of one device that another device can access.

use crate::fixture::{Fixture, on_device_memory, on_each_backend, on_each_backend_with, small, stand_in};
use gpumem_pool::adaptor::Fallback;
use gpumem_pool::sys::Driver;
use gpumem_pool::sys::types::CUresult;
use gpumem_pool::{BackendKind, Block, Device, DeviceError, PoolError, Stream, Unsupported};
#[cfg(feature = "backend-caching")]
use gpumem_pool::{Interface, Pool};
use gpumem_sim::SimConfig;
use std::sync::Arc;

fn pair() -> SimConfig {
    small().devices(3).without_link(0, 2)
}

/// True if another device may write the block.
fn may_write(fixture: &Fixture, block: &Block, home: &Stream, stream: &Stream) -> bool {
    stream.wait_for(home).unwrap();
    let _bound = stream.device().bind().unwrap();
    // SAFETY: the block is alive, and its free waits for the stream.
    let queued = unsafe {
        fixture.driver.cuMemsetD8Async(block.address(), 9, block.size_bytes() as usize, stream.raw())
    };
    block.record_use(stream);
    stream.synchronize().unwrap();
    queued.is_ok()
}

#[test]
fn a_peer_may_use_present_and_future_memory() {
    on_device_memory(&pair(), |fixture| {
        let (pool, home) = (fixture.pool(), fixture.stream());
        let peer = Device::new(&fixture.driver, 1).unwrap();
        let other = Stream::new(&peer).unwrap();
        let sizes = [4096, 1 << 20, 5 << 20];
        let before: Vec<Block> = sizes.iter().map(|size| pool.alloc(*size, &home).unwrap()).collect();
        assert!(!may_write(fixture, &before[0], &home, &other), "nobody has allowed it");

        pool.enable_peer_access(&peer).unwrap();
        pool.enable_peer_access(&peer).unwrap();
        pool.enable_peer_access(&fixture.device).unwrap();
        let after: Vec<Block> =
            sizes.iter().map(|size| pool.alloc(16 * *size + 256, &home).unwrap()).collect();
        for block in before.iter().chain(&after) {
            assert!(may_write(fixture, block, &home, &other), "{block:?}");
            assert!(fixture.holds(block, 9, &home));
        }
        drop((before, after));
        // Memory that was released and created again is accessible too.
        pool.reclaim().unwrap();
        let again = pool.alloc(7 << 20, &home).unwrap();
        assert!(may_write(fixture, &again, &home, &other));
        drop(again);
        pool.check().unwrap();
    });
}

#[test]
fn a_pool_can_be_open_from_the_start() {
    on_each_backend(&pair(), |fixture| {
        let peer = Device::new(&fixture.driver, 1).unwrap();
        let pool = fixture.builder().peer_access(std::slice::from_ref(&peer)).build().unwrap();
        let (home, other) = (fixture.stream(), Stream::new(&peer).unwrap());
        let block = pool.alloc(4096, &home).unwrap();
        assert!(may_write(fixture, &block, &home, &other));
    });
}

#[test]
fn a_device_without_a_link_is_refused() {
    on_device_memory(&pair(), |fixture| {
        let far = Device::new(&fixture.driver, 2).unwrap();
        let pool = fixture.pool();
        assert!(matches!(
            pool.enable_peer_access(&far),
            Err(PoolError::Unsupported(Unsupported::PeerAccess { .. }))
        ));
        let built = fixture.builder().peer_access(std::slice::from_ref(&far)).build();
        assert!(matches!(built, Err(PoolError::Unsupported(Unsupported::PeerAccess { .. }))));
        let elsewhere = gpumem_sim::driver(pair()).unwrap();
        let elsewhere = Device::new(&elsewhere, 1).unwrap();
        let refused = pool.enable_peer_access(&elsewhere).unwrap_err();
        let PoolError::Unsupported(Unsupported::PeerAccess { device, peer }) = refused else {
            panic!("{refused}")
        };
        assert!(device != peer && peer.ends_with("of another simulator (no GPU)"), "{device}, {peer}");
        let home = fixture.stream();
        let block = pool.alloc(4096, &home).unwrap();
        assert!(!may_write(fixture, &block, &home, &Stream::new(&far).unwrap()));
    });
}

/// Everything that takes part in a pool has its access: parts, private pools and the pools that adaptors fall back to, whether they
/// are made before or after.
#[test]
fn what_belongs_to_a_pool_is_open_too() {
    on_device_memory(&pair(), |fixture| {
        let peer = Device::new(&fixture.driver, 1).unwrap();
        let (home, other) = (fixture.stream(), Stream::new(&peer).unwrap());
        let spare = fixture.builder().build().unwrap();
        let pool =
            fixture.builder().hard_limit(64 << 20).adaptor(Arc::new(Fallback::new(&spare))).build().unwrap();
        let before = [pool.part("early").unwrap(), pool.private(16 << 20).unwrap()];
        let nested = before[1].private(8 << 20).unwrap();
        pool.enable_peer_access(&peer).unwrap();
        let after =
            [pool.part("late").unwrap(), pool.private(16 << 20).unwrap(), nested.part("deep").unwrap()];
        let spared = pool.alloc(80 << 20, &home).unwrap();
        assert_eq!(spare.status().unwrap().in_use_bytes, 80 << 20);
        assert!(may_write(fixture, &spared, &home, &other));
        for pool in before.iter().chain(&after).chain([&nested]) {
            let block = pool.alloc(3 << 20, &home).unwrap();
            assert!(may_write(fixture, &block, &home, &other), "{}", pool.name());
        }
        // The access of a part is its own.
        let apart = fixture.pool();
        apart.part("open").unwrap().enable_peer_access(&peer).unwrap();
        let block = apart.alloc(4096, &home).unwrap();
        // Access to plain memory is the context's.
        let is_plain = !fixture.maps() && apart.backend() != BackendKind::Native;
        assert_eq!(may_write(fixture, &block, &home, &other), is_plain);
    });
}

/// The option names devices by their ordinals. Devices without a link are left out, or refused if they are named, and devices get no
/// context unless access to plain memory needs one.
#[test]
fn the_option_opens_a_pool() {
    on_device_memory(&pair(), |fixture| {
        let built = |text: &str| fixture.builder().conf(text).unwrap().build();
        for text in ["peers:all", "peers:1", "peers:[0,1]"] {
            let pool = built(text).unwrap();
            let needs_context = pool.backend() == BackendKind::None
                || !fixture.maps() && pool.backend() == BackendKind::Caching;
            assert_eq!(is_active(&fixture.driver, 1), needs_context, "{text}");
            assert!(!is_active(&fixture.driver, 2), "{text}");
            let home = fixture.stream();
            let blocks =
                [pool.alloc(4096, &home).unwrap(), pool.part("part").unwrap().alloc(5 << 20, &home).unwrap()];
            let other = Stream::new(&Device::new(&fixture.driver, 1).unwrap()).unwrap();
            assert!(blocks.iter().all(|block| may_write(fixture, block, &home, &other)), "{text}");
        }
        assert!(matches!(built("peers:2"), Err(PoolError::Unsupported(Unsupported::PeerAccess { .. }))));
        assert!(matches!(built("peers:[1,3]"), Err(PoolError::Device(DeviceError::NotFound { .. }))));
        assert!(built("peers:none").is_ok() && built("peers:0").is_ok());
        assert!(fixture.builder().conf("peers:[1,2").is_err());
    });
}

/// Other libraries copy between devices by `cudaMemcpyAsync`, which names no device: with a link that needs access, without one plain memory.
#[cfg(feature = "backend-caching")]
#[test]
fn other_libraries_copy_between_devices_with_a_link_and_without() {
    let driver = gpumem_sim::driver(pair()).unwrap();
    let devices = [0, 1, 2].map(|ordinal| Device::new(&driver, ordinal).unwrap());
    let build = |device: &Device, interface, conf| {
        let pool = Pool::builder(device).backend(BackendKind::Caching).interface(interface).conf(conf);
        pool.unwrap().build().unwrap()
    };
    let is_plain = |pool: &Pool| pool.status().unwrap().plain_segments_reason;
    for interface in [Interface::PyTorch, Interface::CuPy, Interface::Rmm] {
        let pools = [0, 1, 2].map(|index: usize| build(&devices[index], interface, "peers:all"));
        let reason = is_plain(&pools[0]).unwrap();
        assert!(reason.starts_with("there is no link to device 2, and"), "{reason}");
        assert!(is_plain(&pools[1]).is_none() && is_plain(&pools[2]).is_some());
        for (from, to) in [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)] {
            assert_eq!(
                copy_by_address(&driver, &pools[from], &pools[to]),
                CUresult::CUDA_SUCCESS,
                "{from} to {to}"
            );
        }
        let mapped = build(&devices[0], interface, "expandable_segments:true");
        assert!(is_plain(&mapped).is_none());
        assert_ne!(copy_by_address(&driver, &pools[2], &mapped), CUresult::CUDA_SUCCESS);
    }
    assert!(is_plain(&build(&devices[0], Interface::Rust, "")).is_none());
}

/// Copies as the runtime does for other libraries, by the addresses alone. Returns the driver's code.
#[cfg(feature = "backend-caching")]
fn copy_by_address(driver: &Driver, from: &Pool, to: &Pool) -> CUresult {
    let [home, away] = [from, to].map(|pool| Stream::new(pool.device()).unwrap());
    let [source, target] =
        [(from, &home), (to, &away)].map(|(pool, stream)| pool.alloc(1 << 20, stream).unwrap());
    away.synchronize().unwrap();
    let _bound = from.device().bind().unwrap();
    // SAFETY: both blocks live until the stream is done.
    let queued = unsafe {
        driver.cuMemsetD8Async(source.address(), 7, 1 << 20, home.raw()).unwrap();
        driver.cuMemcpyAsync(target.address(), source.address(), 1 << 20, home.raw())
    };
    home.synchronize().unwrap();
    queued.map_or_else(|error| error.code(), |()| CUresult::CUDA_SUCCESS)
}

fn is_active(driver: &Driver, device: i32) -> bool {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: locals outlive the call.
    unsafe { driver.cuDevicePrimaryCtxGetState(device, &mut flags, &mut active).unwrap() };
    active != 0
}

stand_in!(set_access, cuMemSetAccess(address: CUdeviceptr, size: usize, access: *const CUmemAccessDesc, count: usize));

#[test]
fn a_refusal_leaves_the_pool_as_it_was() {
    use std::sync::atomic::Ordering;
    on_each_backend_with(&pair(), set_access::install, |fixture| {
        if !fixture.maps() {
            return;
        }
        let (pool, home) = (fixture.pool(), fixture.stream());
        let peer = Device::new(&fixture.driver, 1).unwrap();
        let other = Stream::new(&peer).unwrap();
        let block = pool.alloc(4096, &home).unwrap();
        set_access::FAIL_WITH.store(CUresult::CUDA_ERROR_INVALID_VALUE.0, Ordering::SeqCst);
        assert!(matches!(pool.enable_peer_access(&peer), Err(PoolError::Device(DeviceError::Driver(_)))));
        set_access::FAIL_WITH.store(0, Ordering::SeqCst);
        assert!(!may_write(fixture, &block, &home, &other));
        let next = pool.alloc(9 << 20, &home).unwrap();
        assert!(!may_write(fixture, &next, &home, &other));
        pool.enable_peer_access(&peer).unwrap();
        assert!(may_write(fixture, &block, &home, &other) && may_write(fixture, &next, &home, &other));
        pool.check().unwrap();
    });
}

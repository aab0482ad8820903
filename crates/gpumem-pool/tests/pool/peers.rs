//! Memory of one device that another device can access.

use crate::fixture::{Fixture, on_device_memory, on_each_backend, on_each_backend_with, small, stand_in};
use gpumem_pool::sys::types::CUresult;
use gpumem_pool::{Block, Device, PoolError, Stream};
use gpumem_sim::SimConfig;

fn pair() -> SimConfig {
    small().devices(3).without_link(0, 2)
}

/// Returns whether another device may write the block.
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
        assert!(matches!(pool.enable_peer_access(&far), Err(PoolError::NoPeerAccess { .. })));
        let built = fixture.builder().peer_access(std::slice::from_ref(&far)).build();
        assert!(matches!(built, Err(PoolError::NoPeerAccess { .. })));
        let elsewhere = gpumem_sim::driver(pair()).unwrap();
        let elsewhere = Device::new(&elsewhere, 1).unwrap();
        let refused = pool.enable_peer_access(&elsewhere).unwrap_err();
        let PoolError::NoPeerAccess { device, peer } = refused else { panic!("{refused}") };
        assert!(device != peer && peer.ends_with("of another simulator (no GPU)"), "{device}, {peer}");
        let home = fixture.stream();
        let block = pool.alloc(4096, &home).unwrap();
        assert!(!may_write(fixture, &block, &home, &Stream::new(&far).unwrap()));
    });
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
        assert!(matches!(pool.enable_peer_access(&peer), Err(PoolError::Driver(_))));
        set_access::FAIL_WITH.store(0, Ordering::SeqCst);
        assert!(!may_write(fixture, &block, &home, &other));
        let next = pool.alloc(9 << 20, &home).unwrap();
        assert!(!may_write(fixture, &next, &home, &other));
        pool.enable_peer_access(&peer).unwrap();
        assert!(may_write(fixture, &block, &home, &other) && may_write(fixture, &next, &home, &other));
        pool.check().unwrap();
    });
}

//! Growable blocks.

use crate::fixture::{Fixture, on_each_backend, on_each_backend_with, small, stand_in};
use gpumem_pool::sys::types::CUresult;
use gpumem_pool::{DeviceError, GrowableBlock, MemoryKind, Pool, PoolError, Stream, Unsupported};
use gpumem_sim::SimConfig;
use std::sync::atomic::Ordering;

const MIB: u64 = 1 << 20;

pub(crate) fn on_caching(body: impl Fn(&Fixture)) {
    on_caching_with(&small(), body);
}

pub(crate) fn on_caching_with(config: &SimConfig, body: impl Fn(&Fixture)) {
    on_each_backend(config, |fixture| {
        if fixture.maps() {
            body(fixture);
        }
    });
}

pub(crate) fn fill(
    fixture: &Fixture,
    block: &GrowableBlock,
    range: std::ops::Range<u64>,
    value: u8,
    stream: &Stream,
) {
    let _bound = stream.device().bind().unwrap();
    let (address, count) = (block.address() + range.start, (range.end - range.start) as usize);
    // SAFETY: the block has these bytes until the stream is complete.
    unsafe { fixture.driver.cuMemsetD8Async(address, value, count, stream.raw()).unwrap() };
}

pub(crate) fn byte(fixture: &Fixture, block: &GrowableBlock, at: u64, stream: &Stream) -> u8 {
    stream.synchronize().unwrap();
    let _bound = stream.device().bind().unwrap();
    let mut value = 0_u8;
    // SAFETY: `value` has room for the byte.
    unsafe { fixture.driver.cuMemcpyDtoH_v2((&raw mut value).cast(), block.address() + at, 1).unwrap() };
    value
}

fn reserved(pool: &Pool) -> u64 {
    pool.check().unwrap();
    pool.status().unwrap().reserved_bytes
}

#[test]
fn only_one_backend_has_them() {
    on_each_backend(&small(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        match pool.growable(MIB, &stream) {
            Ok(block) => assert_eq!((pool.backend().to_string(), block.size_bytes()), ("caching".into(), 0)),
            Err(PoolError::Unsupported(Unsupported::OnSegments { .. })) => assert!(fixture.plain_segments),
            Err(PoolError::Unsupported(Unsupported::OnKind { kind, .. })) => assert_eq!(kind, fixture.kind),
            Err(error) => {
                assert!(matches!(error, PoolError::Unsupported(Unsupported::OnBackend { .. })), "{error}")
            }
        }
        for size_bytes in [(1 << 30) + 1, 1 << 63, u64::MAX] {
            let refused = pool.growable(size_bytes, &stream);
            match refused {
                Err(PoolError::TooLarge { .. } | PoolError::Unsupported(Unsupported::OnKind { .. })) => {}
                // The size is an error of arithmetic, which is said first.
                Err(PoolError::OutOfMemory(_)) => assert!(fixture.kind == MemoryKind::Host),
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn it_grows_in_place_and_keeps_its_contents() {
    on_caching(|fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let mut block = pool.growable(512 * MIB, &stream).unwrap();
        assert_eq!(reserved(&pool), 0);
        let (address, mut end) = (block.address(), 0);
        for (index, size_bytes) in [1, 5000, 3 * MIB, 3 * MIB + 1, 100 * MIB].into_iter().enumerate() {
            block.grow_to(size_bytes).unwrap();
            assert_eq!((block.address(), block.size_bytes()), (address, size_bytes));
            fill(fixture, &block, end..size_bytes, index as u8 + 1, &stream);
            end = size_bytes;
            let status = pool.status().unwrap();
            assert_eq!(status.in_use_bytes, size_bytes);
            pool.check().unwrap();
            assert_eq!(status.reserved_bytes, size_bytes.next_multiple_of(2 * MIB));
        }
        let held = [0, 4999, 5000, 3 * MIB, 100 * MIB - 1].map(|at| byte(fixture, &block, at, &stream));
        assert_eq!(held, [1, 2, 3, 4, 5]);
        block.grow_to(10).unwrap();
        assert_eq!(block.size_bytes(), 100 * MIB, "growing never shrinks");
        assert!(matches!(block.grow_to(513 * MIB), Err(PoolError::BeyondMaximum { .. })));
        let error = block.grow_to(u64::MAX).unwrap_err();
        assert!(matches!(error, PoolError::BeyondMaximum { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("18446744073709551615 bytes") && text.contains("they are -1"), "{text}");
        drop(block);
        stream.synchronize().unwrap();
        pool.reclaim().unwrap();
        let status = pool.status().unwrap();
        assert_eq!((status.in_use_bytes, status.reserved_bytes), (0, 0));
        assert_eq!((status.in_use_peak_bytes, status.reserved_peak_bytes), (100 * MIB, 100 * MIB));
    });
}

#[test]
fn memory_reserved_ahead_serves_other_blocks() {
    on_caching(|fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let mut block = pool.growable(64 * MIB, &stream).unwrap();
        block.grow_to(64 * MIB).unwrap();
        pool.reserve(64 * MIB).unwrap();
        assert_eq!(reserved(&pool), 128 * MIB);
        let other = pool.alloc(64 * MIB, &stream).unwrap();
        assert_eq!(reserved(&pool), 128 * MIB);
        drop((other, block));
    });
}

#[test]
fn its_memory_is_released_after_all_uses() {
    on_caching(|fixture| {
        let (pool, home, other) = (fixture.pool(), fixture.stream(), fixture.stream());
        let mut block = pool.growable(64 * MIB, &home).unwrap();
        block.grow_to(64 * MIB).unwrap();
        other.wait_for(&home).unwrap();
        fill(fixture, &block, 0..64 * MIB, 1, &other);
        block.record_use(&other);
        block.shrink_to(10 * MIB).unwrap();
        block.shrink_to(20 * MIB).unwrap();
        assert_eq!((block.size_bytes(), pool.status().unwrap().in_use_bytes), (10 * MIB, 10 * MIB));
        fixture.device.synchronize().unwrap();
        pool.trim_to(0).unwrap();
        assert!((10 * MIB..=14 * MIB).contains(&reserved(&pool)), "{}", reserved(&pool));
        assert_eq!(byte(fixture, &block, 10 * MIB - 1, &other), 1);
        block.grow_to(40 * MIB).unwrap();
        fill(fixture, &block, 10 * MIB..40 * MIB, 2, &home);
        assert_eq!(byte(fixture, &block, 40 * MIB - 1, &home), 2);
        assert_eq!(byte(fixture, &block, 0, &home), 1);
        fill(fixture, &block, 0..40 * MIB, 3, &home);
        // The block is the last owner of the pool; queued work continues.
        drop(pool);
        drop(block);
        home.synchronize().unwrap();
    });
}

#[test]
fn it_counts_against_the_limit_with_the_pools_blocks() {
    on_caching(|fixture| {
        let pool = fixture.builder().hard_limit(64 * MIB).build().unwrap();
        let stream = fixture.stream();
        let mut block = pool.growable(256 * MIB, &stream).unwrap();
        let plain = pool.alloc(30 * MIB, &stream).unwrap();
        block.grow_to(20 * MIB).unwrap();
        assert!(matches!(block.grow_to(60 * MIB), Err(PoolError::LimitReached { .. })));
        assert_eq!(block.size_bytes(), 20 * MIB);
        assert!(matches!(pool.alloc(20 * MIB, &stream), Err(PoolError::LimitReached { .. })));
        drop(plain);
        block.grow_to(60 * MIB).unwrap();
        assert!(reserved(&pool) <= 64 * MIB);
        block.shrink_to(0).unwrap();
        stream.synchronize().unwrap();
        let plain = pool.alloc(60 * MIB, &stream).unwrap();
        assert_eq!(plain.size_bytes(), 60 * MIB);
        pool.check().unwrap();
    });
}

#[test]
fn a_refused_growth_reports_every_step() {
    on_caching(|fixture| {
        let (pool, stream) = (fixture.builder().hard_limit(64 * MIB).build().unwrap(), fixture.stream());
        drop(pool.alloc(20 * MIB, &stream).unwrap());
        let error = pool.growable(128 * MIB, &stream).unwrap().grow_to(70 * MIB).unwrap_err();
        let attempts = &error.out_of_memory().unwrap().attempts;
        assert_eq!(attempts.len(), 1, "{error}");
        assert!(attempts[0].gained_bytes >= 20 * MIB, "{error}");
    });
}

stand_in!(map, cuMemMap(address: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: u64));

#[test]
fn a_refused_growth_is_undone() {
    on_each_backend_with(&small(), map::install, |fixture| {
        if !fixture.maps() {
            return;
        }
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let mut block = pool.growable(128 * MIB, &stream).unwrap();
        block.grow_to(4 * MIB).unwrap();
        let before = reserved(&pool);
        for code in [CUresult::CUDA_ERROR_INVALID_VALUE, CUresult::CUDA_ERROR_OUT_OF_MEMORY] {
            map::FAIL_WITH.store(code.0, Ordering::SeqCst);
            let error = block.grow_to(100 * MIB).unwrap_err();
            assert!(
                matches!(error, PoolError::Device(DeviceError::Driver(_)) | PoolError::OutOfMemory { .. }),
                "{error}"
            );
            map::FAIL_WITH.store(0, Ordering::SeqCst);
            assert_eq!((block.size_bytes(), reserved(&pool)), (4 * MIB, before));
        }
        block.grow_to(100 * MIB).unwrap();
        fill(fixture, &block, 0..100 * MIB, 9, &stream);
        assert_eq!(byte(fixture, &block, 100 * MIB - 1, &stream), 9);
    });
}

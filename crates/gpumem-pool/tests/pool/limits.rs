//! The hard limit: exact, for any number of threads, and never in the way of memory that is only on its way back.

use crate::bench::{on_each_backend, small, stand_in};
use gpumem_pool::{Limit, PoolError};
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn the_limit_is_exact() {
    on_each_backend(&small(), |bench| {
        let (pool, stream) = (bench.builder().hard_limit(4 << 20).build().unwrap(), bench.stream());
        let held = pool.alloc(3 << 20, &stream).unwrap();
        let error = pool.alloc((1 << 20) + 1, &stream).unwrap_err();
        let PoolError::LimitReached { requested_bytes, in_use_bytes, limit_bytes } = error else {
            panic!("{error:?}");
        };
        assert_eq!((requested_bytes, in_use_bytes, limit_bytes), ((1 << 20) + 1, 3 << 20, 4 << 20));
        assert!(error.to_string().contains("GPUMEM_HARD_LIMIT"), "{error}");
        let rest = pool.alloc(1 << 20, &stream).unwrap();
        assert!(matches!(pool.alloc(1, &stream), Err(PoolError::LimitReached { .. })));
        drop(pool.alloc(0, &stream).unwrap());
        drop(held);
        drop(pool.alloc(3 << 20, &stream).unwrap());
        drop(rest);
        assert_eq!(pool.status().unwrap().hard_limit_bytes, Some(4 << 20));
        assert_eq!(pool.status().unwrap().in_use_peak_bytes, 4 << 20);
    });
}

#[test]
fn a_share_is_of_the_device() {
    on_each_backend(&small(), |bench| {
        let pool = bench.builder().hard_limit(Limit::Percent(50.0)).build().unwrap();
        assert_eq!(pool.status().unwrap().hard_limit_bytes, Some(512 << 20));
        let stream = bench.stream();
        assert!(matches!(pool.alloc((512 << 20) + 1, &stream), Err(PoolError::LimitReached { .. })));
        drop(pool.alloc(512 << 20, &stream).unwrap());
    });
}

#[test]
fn a_limit_that_nothing_fits_into_is_a_mistake() {
    on_each_backend(&small(), |bench| {
        for limit in
            [Limit::Bytes(0), Limit::Bytes((2 << 20) - 1), Limit::Percent(0.0), "1KiB".parse().unwrap()]
        {
            let error = bench.builder().hard_limit(limit).build().unwrap_err();
            assert!(
                matches!(error, PoolError::LimitTooSmall { minimum_bytes, .. } if minimum_bytes == 2 << 20)
            );
            assert!(error.to_string().contains("the least is 2.000 MiB"), "{error}");
        }
        for share in [f64::NAN, 200.0, -1.0] {
            assert!(matches!(
                bench.builder().hard_limit(Limit::Percent(share)).build(),
                Err(PoolError::LimitSyntax { .. })
            ));
        }
        drop(bench.builder().hard_limit(2 << 20).soft_limit(0).build().unwrap());
        drop(bench.builder().hard_limit(u64::MAX).soft_limit(u64::MAX).build().unwrap());
    });
}

/// A block dropped with work queued makes room at once, on every stream.
#[test]
fn a_queued_free_makes_room() {
    on_each_backend(&small(), |bench| {
        let pool = bench.builder().hard_limit(64 << 20).build().unwrap();
        for round in 0..12 {
            let stream = bench.stream();
            let block = pool.alloc((64 - round) << 20, &stream).unwrap();
            bench.fill(&block, 1, &stream);
        }
        assert!(pool.status().unwrap().in_use_peak_bytes <= 64 << 20);
    });
}

stand_in!(plain, cuMemAlloc_v2(address: *mut CUdeviceptr, size: usize));
stand_in!(pooled, cuMemAllocFromPoolAsync(address: *mut CUdeviceptr, size: usize, pool: CUmemoryPool, stream: CUstream));

/// Sixteen threads at a limit that a third of them fill. What the driver was asked for is counted where it is asked:
/// between a count before the call and one after, the sum of what is out never passes the limit.
#[test]
fn sixteen_threads_never_pass_the_limit() {
    const LIMIT_BYTES: u64 = 16 << 20;
    let change = |table: &mut gpumem_pool::sys::Table| {
        plain::install(table);
        pooled::install(table);
    };
    crate::bench::on_each_backend_with(&small(), change, |bench| {
        let pool = bench.builder().hard_limit(LIMIT_BYTES).build().unwrap();
        let (passed, refused) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for thread in 0..16_u64 {
                let (pool, passed, refused) = (&pool, &passed, &refused);
                scope.spawn(move || {
                    let stream = bench.stream();
                    let mut held = Vec::new();
                    for step in 0..40 {
                        match pool.alloc((1 + (thread * 7 + step * 13) % 5) << 20, &stream) {
                            Ok(block) => held.push(block),
                            Err(PoolError::LimitReached { in_use_bytes, .. }) => {
                                passed.fetch_or(in_use_bytes > LIMIT_BYTES, Ordering::Relaxed);
                                refused.store(true, Ordering::Relaxed);
                                held.clear();
                            }
                            Err(other) => panic!("{other}"),
                        }
                        if step % 3 == 0 {
                            held.pop();
                        }
                    }
                });
            }
        });
        assert!(!passed.into_inner());
        assert!(refused.into_inner(), "the limit was never met: this test shows nothing");
        let status = pool.status().unwrap();
        assert!(status.in_use_peak_bytes <= LIMIT_BYTES);
        assert_eq!((status.in_use_bytes, status.block_count), (0, 0));
        let calls = plain::CALLS.load(Ordering::SeqCst) + pooled::CALLS.load(Ordering::SeqCst);
        assert_eq!(calls, status.allocation_count, "what was refused never reached the driver");
    });
}

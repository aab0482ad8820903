//! Adaptors that refuse requests, and the one that forwards them to another pool.

use super::MIB;
use crate::fixture::{on_device_memory, on_each_backend, small};
use gpumem_pool::adaptor::{Budget, Failures, Fallback};
use gpumem_pool::{
    BackendKind, Block, Capture, CaptureMode, Location, MemoryKind, Pool, PoolError, RefusedBy,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
fn failures_come_when_they_are_due() {
    on_each_backend(&small(), |fixture| {
        let stream = fixture.stream();
        let fails = |failures: Failures| -> (Vec<usize>, Pool) {
            let pool = fixture.builder().adaptor(Arc::new(failures)).build().unwrap();
            let asked = (1..=12).filter(|size_bytes| pool.alloc(*size_bytes as u64, &stream).is_err());
            (asked.collect(), pool)
        };
        assert_eq!(fails(Failures::nth(3)).0, [3]);
        assert_eq!(fails(Failures::every(5)).0, [5, 10]);
        assert_eq!(fails(Failures::every(0)).0, [0; 0]);
        assert_eq!(fails(Failures::above(9)).0, [10, 11, 12]);
        assert_eq!(fails(Failures::when(|request| request.size_bytes() % 4 == 1)).0, [1, 5, 9]);
        assert_eq!(fails(Failures::share(0.0, 1)).0, [0; 0]);
        assert_eq!(fails(Failures::share(1.0, 1)).0.len(), 12);
        let half = fails(Failures::share(0.5, 7)).0;
        assert_eq!(fails(Failures::share(0.5, 7)).0, half);
        assert!((2..=10).contains(&half.len()), "{half:?}");

        let builder = fixture.builder().adaptor(Arc::new(Failures::nth(1)));
        let error = builder.build().unwrap().alloc(5, &stream).unwrap_err().to_string();
        assert!(error.contains("the adaptor `failures` refused 5 bytes"), "{error}");
        assert!(error.contains("injected") && !error.contains("nvidia"), "{error}");

        let chosen = Failures::nth(1).with_error(|requested_bytes| PoolError::TooLarge {
            requested_bytes,
            device_bytes: 0,
            origin: None,
            fallbacks: Vec::new(),
        });
        let pool = fixture.builder().adaptor(Arc::new(chosen)).build().unwrap();
        assert!(matches!(pool.alloc(5, &stream), Err(PoolError::TooLarge { requested_bytes: 5, .. })));
        assert_eq!(pool.status().unwrap().allocation_count, 0);
    });
}

#[test]
fn a_budget_is_exact_for_any_number_of_threads() {
    on_each_backend(&small(), |fixture| {
        let budget = Arc::new(Budget::new(8 * MIB));
        let pool = fixture.builder().adaptor(budget.clone()).build().unwrap();
        let held_bytes = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let (pool, held_bytes, stream) = (&pool, &held_bytes, fixture.stream());
                scope.spawn(move || {
                    let mut held: Vec<Block> = Vec::new();
                    for step in 0..60 {
                        match pool.alloc((1 + (thread * 7 + step * 13) % 5) << 19, &stream) {
                            Ok(block) => {
                                let before_bytes = held_bytes.fetch_add(block.size_bytes(), Ordering::SeqCst);
                                assert!(before_bytes + block.size_bytes() <= 8 * MIB);
                                held.push(block);
                            }
                            Err(PoolError::LimitReached(report))
                                if report.refused_by == RefusedBy::Budget =>
                            {
                                let sum = held.iter().map(Block::size_bytes).sum();
                                held_bytes.fetch_sub(sum, Ordering::SeqCst);
                                held.clear();
                            }
                            Err(other) => panic!("{other}"),
                        }
                    }
                    held_bytes.fetch_sub(held.iter().map(Block::size_bytes).sum(), Ordering::SeqCst);
                });
            }
        });
        assert_eq!(budget.in_use_bytes(), 0);
        assert!(budget.in_use_peak_bytes() > 4 * MIB && budget.in_use_peak_bytes() <= 8 * MIB);
        let stream = fixture.stream();
        let block = pool.alloc(100, &stream).unwrap();
        assert_eq!(budget.in_use_bytes(), 256);
        budget.set_limit(255);
        let error = pool.alloc(1, &stream).unwrap_err();
        assert!(
            error.to_string().contains("the budget of 255 bytes refused 1 byte (256 bytes with"),
            "{error}"
        );
        drop(block);
    });
}

#[test]
fn a_fallback_serves_requests_when_memory_is_short() {
    on_each_backend(&small(), |fixture| {
        let spare = fixture.builder().hard_limit(16 * MIB).build().unwrap();
        let fallback = Arc::new(Fallback::new(&spare));
        let pool = fixture.builder().hard_limit(8 * MIB).adaptor(fallback.clone()).build().unwrap();
        let (home, other) = (fixture.stream(), fixture.stream());
        let own = pool.alloc(6 * MIB, &home).unwrap();
        let lent = pool.alloc_aligned(6 * MIB, MIB, &home).unwrap();
        assert_eq!(lent.address() % MIB, 0);
        assert_eq!((fallback.taken_count(), pool.status().unwrap().block_count), (1, 1));
        let error = pool.alloc(20 * MIB, &home).unwrap_err();
        assert!(error.out_of_memory().unwrap().limit_bytes == Some(8 * MIB), "the first refusal: {error}");
        let error = pool.alloc(2 << 30, &home).unwrap_err();
        assert!(fixture.kind == MemoryKind::Host || matches!(error, PoolError::TooLarge { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("\n  the fallback refused too: "), "{text}");
        fixture.fill(&own, 1, &home);
        other.wait_for(&home).unwrap();
        fixture.fill(&lent, 2, &other);
        lent.record_use(&other);
        assert!(fixture.holds(&own, 1, &home) && fixture.holds(&lent, 2, &other));
        drop(pool);
        drop((own, lent));
        assert_eq!(spare.status().unwrap().in_use_bytes, 0);
        spare.check().unwrap();
    });
}

/// The fallback pool may have another backend and another kind, and its block passes through raw form, captures and threads.
#[test]
fn a_lent_block_is_like_any_other() {
    on_each_backend(&small(), |fixture| {
        let spare =
            Pool::builder(&fixture.device).backend(BackendKind::None).kind(MemoryKind::Host).build().unwrap();
        let budget = Arc::new(Budget::new(MIB));
        let fallback = Arc::new(Fallback::new(&spare));
        let pool = fixture.builder().adaptor(budget.clone()).adaptor(fallback).build().unwrap();
        let stream = fixture.stream();
        let raw = pool.alloc(2 * MIB, &stream).unwrap().into_raw();
        // SAFETY: the raw block comes from `into_raw`, and is converted once.
        let block = unsafe { Block::from_raw(raw) };
        block.pin_backing().unwrap();
        let capture = Capture::begin(&stream, CaptureMode::Relaxed).unwrap();
        let part = pool.alloc(2 * MIB, &stream).unwrap();
        fixture.fill(&part, 1, &stream);
        fixture.fill(&block, 1, &stream);
        block.record_use(&stream);
        drop((part, block));
        let exec = capture.end().unwrap().instantiate().unwrap();
        assert_eq!((budget.in_use_bytes(), spare.status().unwrap().block_count), (0, 2));
        // SAFETY: the graph keeps all memory that it uses.
        unsafe { exec.launch(&stream).unwrap() };
        stream.synchronize().unwrap();
        drop(exec);
        assert_eq!(spare.status().unwrap().block_count, 0);
    });
}

#[test]
fn lent_memory_names_its_pool() {
    on_each_backend(&small(), |fixture| {
        let stream = fixture.stream();
        for kind in [MemoryKind::Device, MemoryKind::Unified, MemoryKind::Host] {
            if fixture.kind != MemoryKind::Device && kind == MemoryKind::Device {
                continue;
            }
            let spare = Pool::builder(&fixture.device).kind(kind).build().unwrap();
            let lender = Pool::builder(&fixture.device).kind(kind).hard_limit(2 * MIB);
            let lender = lender.adaptor(Arc::new(Fallback::new(&spare))).build().unwrap();
            // The second lender lends memory that was lent to it.
            for lender in [&spare, &lender] {
                let builder = fixture.builder().hard_limit(4 * MIB);
                let pool = builder.adaptor(Arc::new(Fallback::new(lender))).build().unwrap();
                let (own, lent) = (pool.alloc(MIB, &stream).unwrap(), pool.alloc(8 * MIB, &stream).unwrap());
                assert_eq!((own.kind(), lent.kind()), (fixture.kind, kind));
                assert_eq!(own.host_ptr().is_some(), fixture.kind.is_host_accessible());
                assert_eq!(lent.host_ptr().is_some(), kind.is_host_accessible());
                let moved = lent.prefetch(0..MIB, Location::Host, &stream);
                assert_eq!(moved.is_ok(), kind == MemoryKind::Unified);
            }
        }
    });
}

/// A request that is larger than the device goes to the other pool too, and the error says what that pool had.
#[test]
fn a_request_larger_than_the_device_names_the_fallback_that_refused_it() {
    on_device_memory(&small(), |fixture| {
        let spare = Pool::builder(&fixture.device).kind(MemoryKind::Host).name("spill").hard_limit(2 << 30);
        let spare = spare.build().unwrap();
        let fallback = Arc::new(Fallback::new(&spare));
        let (pool, stream) = (fixture.builder().adaptor(fallback).build().unwrap(), fixture.stream());
        let error = pool.alloc(3 << 30, &stream).unwrap_err();
        let text = error.to_string();
        let also = "\n  the fallback refused too: out of pinned host memory: the limit of 2.000 GiB refused 3.000 GiB (device 0, pool spill, ";
        assert!(text.starts_with("3.000 GiB requested, but the device has only 1.000 GiB ("), "{text}");
        assert!(text.contains(also), "{text}");
        let PoolError::TooLarge { fallbacks, .. } = error else { panic!("{text}") };
        assert_eq!(fallbacks.len(), 1);
    });
}

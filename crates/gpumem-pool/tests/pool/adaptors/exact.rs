//! The counters of each adaptor, to the byte and to the block, and the exact point at which it refuses.

#![forbid(unsafe_code)]

use super::{MIB, Wrong};
use crate::fixture::{on_device_memory, on_each_backend, small};
use gpumem_pool::adaptor::{Adaptor, Budget, Failures, Fallback, Grant, Next, Release, Request, Tracking};
use gpumem_pool::{BadArgument, CaptureError, DeviceError, Pool, PoolError, RefusedBy, StreamError};
use std::cell::Cell;
use std::sync::{Arc, Mutex};

/// Another pool serves a request only if memory is short.
#[test]
fn a_fallback_lends_for_want_of_memory_alone() {
    type Make = fn(u64) -> PoolError;
    let others: [Make; 6] = [
        |_| PoolError::Device(DeviceError::Stream(StreamError::Retired)),
        |_| PoolError::Device(DeviceError::Stream(StreamError::WrongThread)),
        |_| PoolError::Device(DeviceError::Capture(CaptureError::Broken)),
        |_| PoolError::Device(DeviceError::Capture(CaptureError::NotCapturable { operation: "anything" })),
        |_| PoolError::BadArgument(BadArgument::Alignment { alignment: 3, largest: 1 }),
        |requested_bytes| PoolError::Refused {
            adaptor: "tired".into(),
            requested_bytes,
            reason: "would rather not".into(),
            origin: None,
        },
    ];
    let wants: [Make; 2] = [
        |requested_bytes| PoolError::TooLarge {
            requested_bytes,
            device_bytes: 1,
            origin: None,
            fallbacks: Vec::new(),
        },
        |requested_bytes| PoolError::over_budget(None, requested_bytes, 0, 1),
    ];
    on_each_backend(&small(), |fixture| {
        let (spare, stream) = (fixture.pool(), fixture.stream());
        let asked = |failures: Failures| {
            let fallback = Arc::new(Fallback::new(&spare));
            let builder = fixture.builder().adaptor(Arc::new(failures)).adaptor(fallback.clone());
            let result = builder.build().unwrap().alloc(4096, &stream);
            assert_eq!(spare.status().unwrap().block_count, fallback.taken_count());
            result.map(|_| fallback.taken_count())
        };
        for make in others {
            let mut error = asked(Failures::every(1).with_error(make)).unwrap_err();
            if let PoolError::Refused { origin, .. } = &mut error {
                assert!(origin.take().is_some(), "the pool adds where the request came from");
            }
            assert_eq!(error.to_string(), make(4096).to_string());
        }
        for make in wants {
            assert_eq!(asked(Failures::every(1).with_error(make)).unwrap(), 1);
        }
        assert_eq!(asked(Failures::every(1)).unwrap(), 1, "the device is full");
        assert_eq!(asked(Failures::every(0)).unwrap(), 0, "nothing is refused");
    });
}

#[test]
fn a_budget_refuses_from_the_first_byte_too_many() {
    on_each_backend(&small(), |fixture| {
        let (budget, stream) = (Arc::new(Budget::new(1024)), fixture.stream());
        let pool = fixture.builder().adaptor(budget.clone()).build().unwrap();
        assert_eq!(budget.limit_bytes(), 1024);
        let error = pool.alloc(1025, &stream).unwrap_err();
        let PoolError::LimitReached(report) = &error else { panic!("{error}") };
        assert_eq!((report.requested_bytes, report.added_bytes), (1025, 255), "rounded up to 256");
        assert_eq!((report.limit_others_bytes, report.limit_bytes), (0, Some(1024)));
        assert!(error.to_string().contains("raise it to 1.250 KiB or more (Budget::set_limit)"), "{error}");
        let first = pool.alloc(257, &stream).unwrap();
        assert_eq!((budget.in_use_bytes(), budget.in_use_peak_bytes()), (512, 512));
        let second = pool.alloc(512, &stream).unwrap();
        assert!(pool.alloc(1, &stream).is_err());
        assert_eq!((budget.in_use_bytes(), budget.in_use_peak_bytes()), (1024, 1024));
        drop(first);
        assert_eq!((budget.in_use_bytes(), budget.in_use_peak_bytes()), (512, 1024));
        drop(pool.alloc(512, &stream).unwrap());
        drop(second);
        assert_eq!((budget.in_use_bytes(), budget.in_use_peak_bytes()), (0, 1024));
        budget.set_limit(2048);
        drop(pool.alloc(2048, &stream).unwrap());
        assert_eq!((budget.limit_bytes(), budget.in_use_peak_bytes()), (2048, 2048));

        // A grant larger than the request counts with its own size, and may exceed the budget.
        let generous = Wrong(|request: &Request<'_>, next: Next<'_>| next.alloc(&request.with_size(1500)));
        let builder = fixture.builder().adaptor(Arc::new(generous)).adaptor(budget.clone());
        let pool = builder.build().unwrap();
        let block = pool.alloc(100, &stream).unwrap();
        assert_eq!((block.size_bytes(), budget.in_use_bytes()), (100, 1536));
        assert!(
            matches!(pool.alloc(100, &stream), Err(PoolError::LimitReached(report)) if report.refused_by == RefusedBy::Budget)
        );
        assert_eq!(budget.in_use_bytes(), 1536, "what was refused late does not count");
        drop(block);
        assert_eq!((budget.in_use_bytes(), pool.status().unwrap().in_use_bytes), (0, 0));
    });
}

#[test]
fn a_budget_counts_growth() {
    on_device_memory(&small(), |fixture| {
        let budget = Arc::new(Budget::new(6 * MIB));
        let fails = Arc::new(Failures::above(5 * MIB));
        let builder = fixture.builder().adaptor(fails.clone()).adaptor(budget.clone());
        let (pool, stream) = (builder.build().unwrap(), fixture.stream());
        let Ok(mut block) = pool.growable(16 * MIB, &stream) else { return };
        block.grow_to(1000).unwrap();
        assert_eq!(budget.in_use_bytes(), 1024);
        block.grow_to(4 * MIB).unwrap();
        assert_eq!(budget.in_use_bytes(), 4 * MIB);
        assert!(
            matches!(block.grow_to(7 * MIB), Err(PoolError::LimitReached(report)) if report.refused_by == RefusedBy::Budget)
        );
        assert_eq!(fails.failed_count(), 0, "the budget comes first");
        assert!(matches!(block.grow_to(6 * MIB), Err(PoolError::OutOfMemory(_))));
        assert_eq!((budget.in_use_bytes(), fails.failed_count()), (4 * MIB, 1));
        block.shrink_to(3 * MIB + 1).unwrap();
        assert_eq!(budget.in_use_bytes(), 3 * MIB + 256);
        block.grow_to(5 * MIB).unwrap();
        assert_eq!((budget.in_use_bytes(), budget.in_use_peak_bytes()), (5 * MIB, 6 * MIB));
        drop(block);
        assert_eq!(budget.in_use_bytes(), 0);
    });
}

#[test]
fn failures_count_the_requests_that_they_examine() {
    on_device_memory(&small(), |fixture| {
        let failures = Arc::new(Failures::above(4096));
        let (pool, stream) = (fixture.builder().adaptor(failures.clone()).build().unwrap(), fixture.stream());
        drop(pool.alloc(4096, &stream).unwrap());
        assert!(pool.alloc(4097, &stream).is_err());
        assert_eq!((failures.seen_count(), failures.failed_count()), (2, 1));
        // The number of the request decides alone: about the configured share fails, and other requests with another seed.
        let which = |share: f64, seed: u64| -> Vec<u64> {
            let pool = fixture.builder().adaptor(Arc::new(Failures::share(share, seed))).build().unwrap();
            (0..400).filter(|_| pool.alloc(256, &stream).is_err()).collect()
        };
        let (rare, often) = (which(0.1, 1).len(), which(0.8, 1).len());
        assert!((15..75).contains(&rare) && (280..360).contains(&often), "{rare}, {often}");
        assert_ne!(which(0.5, 1), which(0.5, 2));
        let when = Arc::new(Failures::when(|_| true));
        let pool = fixture.builder().adaptor(when.clone()).build().unwrap();
        assert!(pool.alloc(1, &stream).is_err());
        if let Ok(mut block) = pool.growable(MIB, &stream) {
            block.grow_to(MIB).unwrap();
            assert_eq!((when.seen_count(), when.failed_count()), (2, 1));
        }
    });
}

/// The requests, grants and frees that one adaptor gets.
#[derive(Default)]
struct Seen(Mutex<Vec<(u64, u64, u64)>>);

impl Adaptor for Seen {
    fn alloc(&self, request: &Request<'_>, next: Next<'_>) -> Result<Grant, PoolError> {
        let (size_bytes, alignment) = (request.size_bytes(), request.alignment());
        assert_eq!((request.with_size(0).size_bytes(), request.with_size(7).size_bytes()), (1, 7));
        assert_eq!(request.with_alignment(1).alignment(), 256);
        assert_eq!(request.with_alignment(512).alignment(), 512);
        let mut grant = next.alloc(&request.with_size(size_bytes + 1024))?;
        let start = grant.address();
        for (front_bytes, rest_bytes) in
            [(0, 0), (0, size_bytes + 1025), (1025, size_bytes), (u64::MAX, 2), (2, u64::MAX)]
        {
            assert!(!grant.narrow(front_bytes, rest_bytes));
            assert_eq!((grant.address(), grant.size_bytes()), (start, size_bytes + 1024));
        }
        assert!(grant.narrow(256, size_bytes + 768));
        assert!(grant.narrow(512, size_bytes), "one after the other, they count as one");
        assert_eq!((grant.address(), grant.size_bytes()), (start + 768, size_bytes));
        self.0.lock().unwrap().push((start, size_bytes, alignment));
        Ok(grant)
    }

    fn free(&self, release: &Release<'_>) {
        let (start, size_bytes, _) = self.0.lock().unwrap().pop().unwrap();
        assert_eq!((release.address(), release.size_bytes()), (start + 768, size_bytes));
        assert_eq!(release.whole(), start..start + size_bytes + 1024);
    }
}

/// Each adaptor gets the grants back that it returned, without the bytes that other adaptors added.
#[test]
fn grants_are_returned_to_their_adaptor() {
    on_each_backend(&small(), |fixture| {
        let seen = [(); 2].map(|()| Arc::new(Seen::default()));
        let plain = Wrong(|request: &Request<'_>, next: Next<'_>| next.alloc(request));
        let builder = fixture.builder().adaptor(seen[0].clone()).adaptor(Arc::new(plain));
        let (pool, stream) = (builder.adaptor(seen[1].clone()).build().unwrap(), fixture.stream());
        for size_bytes in [1, 4096, 3 * MIB] {
            let block = pool.alloc_aligned(size_bytes, 256, &stream).unwrap();
            assert_eq!(pool.status().unwrap().in_use_bytes, size_bytes + 2048);
            assert_eq!(seen[0].0.lock().unwrap()[0].1, size_bytes + 1024);
            drop(block);
            assert!(seen.iter().all(|seen| seen.0.lock().unwrap().is_empty()), "both have been notified");
        }
    });
}

/// Nested blocks start at one address, and each of them is tracked.
#[test]
fn tracking_distinguishes_blocks_at_one_address() {
    thread_local!(static IS_INNER: Cell<bool> = const { Cell::new(false) });
    on_each_backend(&small(), |fixture| {
        let (tracking, own) = (Arc::new(Tracking::new()), Arc::new(Mutex::new(None::<Pool>)));
        let known = Arc::clone(&own);
        let nest = Wrong(move |request: &Request<'_>, next: Next<'_>| {
            if IS_INNER.replace(true) {
                IS_INNER.set(false);
                return next.alloc(request);
            }
            let pool = known.lock().unwrap().clone().unwrap();
            Grant::from_pool(&pool, request)
        });
        let pool = fixture.builder().adaptor(Arc::new(nest)).adaptor(tracking.clone()).build().unwrap();
        *own.lock().unwrap() = Some(pool.clone());
        let stream = fixture.stream();
        let blocks = [(); 2].map(|()| pool.alloc(4096, &stream).unwrap());
        let numbers = || {
            let mut numbers: Vec<_> = tracking.live().blocks.iter().map(|block| block.number).collect();
            numbers.sort_unstable();
            numbers
        };
        assert_eq!(numbers(), [1, 2, 3, 4]);
        let [first, second] = blocks;
        drop(first);
        assert_eq!(numbers(), [3, 4]);
        drop(second);
        assert_eq!(numbers(), [0; 0]);
        *own.lock().unwrap() = None;
    });
}

/// Growable blocks bypass adaptors, so a pool with adaptors has none.
#[test]
fn growable_blocks_are_refused() {
    on_device_memory(&small(), |fixture| {
        let builder = fixture.builder().adaptor(Arc::new(Budget::new(MIB)));
        let (pool, stream) = (builder.build().unwrap(), fixture.stream());
        let error = pool.growable(4 * MIB, &stream).unwrap_err();
        assert!(matches!(&error, PoolError::Refused { adaptor, .. } if adaptor == "budget"), "{error:?}");
        assert!(error.to_string().contains("does not support growable blocks"), "{error}");
    });
}

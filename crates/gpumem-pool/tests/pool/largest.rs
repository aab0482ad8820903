//! The largest block of a range of sizes.

use crate::fixture::{on_device_memory, on_each_backend, small};
use gpumem_pool::adaptor::{Adaptor, Budget, Failures, Grant, Guard, Next, Request};
use gpumem_pool::{
    BackendKind, BadArgument, Block, Capture, CaptureError, CaptureMode, DeviceError, Pool, PoolError,
    Unsupported,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const MIB: u64 = 1 << 20;

/// Counts requests.
#[derive(Default)]
struct Requests(AtomicU64);

impl Adaptor for Requests {
    fn alloc(&self, request: &Request<'_>, next: Next<'_>) -> Result<Grant, PoolError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        next.alloc(request)
    }
}

#[test]
fn a_size_that_fits_is_the_end_of_the_range() {
    on_each_backend(&small(), |fixture| {
        let requests = Arc::new(Requests::default());
        let (pool, stream) = (fixture.builder().adaptor(requests.clone()).build().unwrap(), fixture.stream());
        for sizes in [1..=1, 0..=1000, 5..=3 * MIB, 3 * MIB..=3 * MIB] {
            assert_eq!(pool.alloc_up_to(sizes.clone(), &stream).unwrap().size_bytes(), *sizes.end());
        }
        assert_eq!(requests.0.load(Ordering::Relaxed), 4);
    });
}

#[test]
fn a_limit_is_used_to_its_end() {
    on_each_backend(&small(), |fixture| {
        let requests = Arc::new(Requests::default());
        let builder = fixture.builder().hard_limit(64 * MIB).adaptor(requests.clone());
        let (pool, stream) = (builder.build().unwrap(), fixture.stream());
        let held = pool.alloc(10 * MIB, &stream).unwrap();
        requests.0.store(0, Ordering::Relaxed);
        let largest = pool.alloc_up_to(1..=1 << 40, &stream).unwrap();
        assert!(requests.0.load(Ordering::Relaxed) <= 4, "{:?} requests", requests.0);
        assert_eq!(largest.size_bytes(), 54 * MIB);
        // Nothing is left for another.
        assert_eq!(pool.alloc_up_to(0..=MIB, &stream).unwrap().size_bytes(), 0);
        let refused = pool.alloc_up_to(MIB..=2 * MIB, &stream);
        let Err(PoolError::LimitReached(report)) = refused else { panic!("{refused:?}") };
        assert_eq!(report.requested_bytes, MIB, "the smallest size is reported");
        drop((held, largest));
        assert_eq!(pool.alloc_up_to(MIB..=u64::MAX, &stream).unwrap().size_bytes(), 64 * MIB);
        pool.check().unwrap();
    });
}

#[test]
fn the_memory_of_the_device_is_used_to_its_end() {
    on_device_memory(&small(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        gpumem_sim::Sim::of(&fixture.driver).unwrap().take_memory(0, 300 * MIB);
        let largest = pool.alloc_up_to(MIB..=u64::MAX, &stream).unwrap();
        let free_bytes = fixture.device.memory_info().unwrap().free_bytes;
        // The driver's pool grows by units, and others leave less than a page.
        let unit_bytes = if fixture.backend == BackendKind::Native { 32 * MIB } else { 2 * MIB };
        assert!(free_bytes < unit_bytes, "{free_bytes} of {largest:?}");
    });
}

/// Free memory between blocks that stay, which a segment cannot join.
#[test]
fn fragmented_memory_is_searched() {
    on_device_memory(&small(), |fixture| {
        if !fixture.plain_segments {
            return;
        }
        let requests = Arc::new(Requests::default());
        let builder = fixture.builder().hard_limit(64 * MIB).adaptor(requests.clone());
        let (pool, stream) = (builder.build().unwrap(), fixture.stream());
        pool.reserve(64 * MIB).unwrap();
        let mut blocks: Vec<Option<Block>> = (0..8).map(|_| pool.alloc(8 * MIB, &stream).ok()).collect();
        for freed in [1, 2, 5] {
            blocks[freed] = None;
        }
        requests.0.store(0, Ordering::Relaxed);
        let largest = pool.alloc_up_to(MIB..=1 << 30, &stream).unwrap().size_bytes();
        assert!((15 * MIB..=16 * MIB).contains(&largest), "{largest}");
        let tried = requests.0.load(Ordering::Relaxed);
        assert!((4..=12).contains(&tried), "{tried} requests");
        assert!(pool.alloc(16 * MIB + 1, &stream).is_err(), "larger free memory");
    });
}

#[test]
fn budgets_guards_and_adaptors_that_refuse() {
    on_each_backend(&small(), |fixture| {
        let stream = fixture.stream();
        let budget = fixture.builder().adaptor(Arc::new(Budget::new(20 * MIB))).build().unwrap();
        let held = budget.alloc(5 * MIB, &stream).unwrap();
        assert_eq!(budget.alloc_up_to(1..=64 * MIB, &stream).unwrap().size_bytes(), 15 * MIB);
        drop(held);

        // Guard bytes are part of what the limit counts.
        let guarded = fixture.builder().hard_limit(64 * MIB).adaptor(Arc::new(Guard::new())).build().unwrap();
        let largest = guarded.alloc_up_to(1..=128 * MIB, &stream).unwrap().size_bytes();
        assert!((60 * MIB..64 * MIB).contains(&largest), "{largest}");

        // A refusal without figures.
        let refuses = fixture.builder().adaptor(Arc::new(Failures::above(10 * MIB))).build().unwrap();
        let largest = refuses.alloc_up_to(MIB..=65 * MIB, &stream).unwrap().size_bytes();
        assert!((9 * MIB..=10 * MIB).contains(&largest), "{largest}");
    });
}

#[test]
fn private_pools_and_other_pools() {
    on_each_backend(&small(), |fixture| {
        let stream = fixture.stream();
        let parent = fixture.builder().hard_limit(64 * MIB).build().unwrap();
        let private = match parent.private(32 * MIB) {
            Err(PoolError::Unsupported(Unsupported::OnBackend { .. } | Unsupported::OnKind { .. })) => return,
            made => made.unwrap(),
        };
        assert_eq!(private.alloc_up_to(1..=1 << 30, &stream).unwrap().size_bytes(), 32 * MIB);
        private.reclaim().unwrap();
        let held = parent.alloc(44 * MIB, &stream).unwrap();
        assert_eq!(private.alloc_up_to(1..=1 << 30, &stream).unwrap().size_bytes(), 20 * MIB);
        drop(held);
    });
}

#[test]
fn wrong_ranges_and_captures_are_refused() {
    on_each_backend(&small(), |fixture| {
        let observed = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&observed);
        let builder = fixture.builder().hard_limit(4 * MIB);
        let pool =
            builder.on_out_of_memory(move |_| _ = count.fetch_add(1, Ordering::Relaxed)).build().unwrap();
        let stream = fixture.stream();
        #[expect(clippy::reversed_empty_ranges, reason = "is refused")]
        let reversed = pool.alloc_up_to(2..=1, &stream);
        assert!(matches!(
            reversed,
            Err(PoolError::BadArgument(BadArgument::EmptyRange { min_bytes: 2, max_bytes: 1 }))
        ));
        drop(pool.alloc_up_to(MIB..=64 * MIB, &stream).unwrap());
        assert_eq!(observed.load(Ordering::Relaxed), 0, "the request has succeeded");
        assert!(pool.alloc_up_to(8 * MIB..=64 * MIB, &stream).is_err());
        assert_eq!(observed.load(Ordering::Relaxed), 1, "one request is one refusal");
        assert!(pool.alloc(8 * MIB, &stream).is_err());
        assert_eq!(observed.load(Ordering::Relaxed), 2, "and the next one is observed again");
        assert_eq!(pool.status().unwrap().counters.refusal_count, 2);
        let capture = Capture::begin(&stream, CaptureMode::Relaxed).unwrap();
        let refused = pool.alloc_up_to(1..=2, &stream);
        assert!(
            matches!(
                refused,
                Err(PoolError::Device(DeviceError::Capture(CaptureError::NotCapturable { .. })))
            ),
            "{refused:?}"
        );
        capture.end().unwrap();
    });
}

/// Threads that take as much as they get stay within the limit, and each gets its smallest size or a refusal.
#[test]
fn threads_share_a_limit() {
    on_device_memory(&small(), |fixture| {
        let pool: Pool = fixture.builder().hard_limit(32 * MIB).build().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let stream = fixture.stream();
                    for _ in 0..20 {
                        match pool.alloc_up_to(MIB..=20 * MIB, &stream) {
                            Ok(block) => assert!((MIB..=20 * MIB).contains(&block.size_bytes())),
                            Err(error) => assert!(matches!(error, PoolError::LimitReached(_)), "{error:?}"),
                        }
                    }
                });
            }
        });
        assert_eq!(pool.status().unwrap().in_use_bytes, 0);
        pool.check().unwrap();
    });
}

//! Adaptors around a pool, and the limits of incorrect adaptors.

mod bytes;
mod exact;
mod orders;
mod panics;
mod refusals;
mod tracking;
mod wrong;

use crate::fixture::{Fixture, on_each_backend, small};
use gpumem_pool::adaptor::{Adaptor, Budget, Grant, Next, PoolId, Release, Request};
use gpumem_pool::{BadArgument, Block, Capture, CaptureMode, MemoryKind, Pool, PoolError, RefusedBy, Stream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

const MIB: u64 = 1 << 20;

/// Records the calls that it receives.
struct Ear(&'static str, Arc<Mutex<Vec<String>>>);

impl Ear {
    fn pair() -> (Vec<Arc<Self>>, Arc<Mutex<Vec<String>>>) {
        let heard = Arc::new(Mutex::new(Vec::new()));
        (["inner", "outer"].map(|name| Arc::new(Self(name, heard.clone()))).into(), heard)
    }

    fn note(&self, what: &str, size_bytes: u64) {
        self.1.lock().unwrap().push(format!("{} {what} {size_bytes}", self.0));
    }
}

impl Adaptor for Ear {
    fn name(&self) -> &str {
        self.0
    }

    fn alloc(&self, request: &Request<'_>, next: Next<'_>) -> Result<Grant, PoolError> {
        self.note("asked", request.size_bytes());
        let grant = next.alloc(&request.with_size(request.size_bytes() + 512));
        self.note("has", grant.as_ref().map_or(0, Grant::size_bytes));
        let mut grant = grant?;
        assert!(!grant.narrow(500, request.size_bytes() + 13) && !grant.narrow(1, 0));
        assert!(grant.narrow(128, request.size_bytes() + 300) && grant.narrow(128, request.size_bytes()));
        Ok(grant)
    }

    fn free(&self, release: &Release<'_>) {
        self.note("gives", release.size_bytes());
        assert_eq!(release.whole(), release.address() - 256..release.address() + release.size_bytes() + 256);
    }

    fn close(&self, _: PoolId) {
        self.note("closes", 0);
    }
}

#[test]
fn the_last_added_adaptor_is_called_first() {
    on_each_backend(&small(), |fixture| {
        let (ears, heard) = Ear::pair();
        let builder = ears.iter().fold(fixture.builder(), |builder, ear| builder.adaptor(ear.clone()));
        let (pool, stream) = (builder.build().unwrap(), fixture.stream());
        let block = pool.alloc(1000, &stream).unwrap();
        assert_eq!((block.size_bytes(), block.address() % 256), (1000, 0));
        assert_eq!(pool.status().unwrap().in_use_bytes, 2024, "what the backend was asked for");
        fixture.fill(&block, 7, &stream);
        assert!(fixture.holds(&block, 7, &stream));
        drop(pool.alloc(0, &stream).unwrap());
        drop(pool);
        drop(block);
        let expected = [
            "outer asked 1000",
            "inner asked 1512",
            "inner has 2024",
            "outer has 1512",
            "outer closes 0",
            "inner closes 0",
            "outer gives 1000",
            "inner gives 1512",
        ];
        assert_eq!(*heard.lock().unwrap(), expected);
    });
}

/// Allocates and frees blocks in every way.
#[test]
fn every_kind_of_request_passes_the_adaptors() {
    on_each_backend(&small(), |fixture| {
        let budget = Arc::new(Budget::new(100 * MIB));
        let (ears, _) = Ear::pair();
        let builder = fixture.builder().adaptor(ears[0].clone()).adaptor(budget.clone());
        let pool = builder.adaptor(ears[1].clone()).build().unwrap();
        let (home, other) = (fixture.stream(), fixture.stream());
        for size_bytes in [1, 5000, 3 * MIB] {
            let aligned = pool.alloc_aligned(size_bytes, 256, &home).unwrap();
            assert_eq!(aligned.address() % 256, 0);
            aligned.record_use(&other);
            let raw = pool.alloc(size_bytes, &home).unwrap().into_raw();
            assert!(budget.in_use_bytes() >= 2 * (size_bytes + 512));
            // SAFETY: the raw block comes from `into_raw`, and is converted once.
            drop(unsafe { Block::from_raw(raw) });
            let pinned = pool.alloc(size_bytes, &other).unwrap();
            assert_eq!(pinned.pin_backing().is_ok(), fixture.backend.to_string() != "native");
            home.synchronize().unwrap();
            other.synchronize().unwrap();
            // SAFETY: no work was ever queued that uses the block, and both streams are complete.
            unsafe { pinned.free_completed() };
            std::thread::scope(|scope| scope.spawn(move || drop(aligned)).join().unwrap());
            assert_eq!(budget.in_use_bytes(), 0);
            pool.check().unwrap();
        }
        assert_eq!((pool.status().unwrap().block_count, pool.status().unwrap().in_use_bytes), (0, 0));
    });
}

/// An adaptor that passes size and alignment unchanged needs no entry for a block.
#[test]
fn alignment_passes() {
    on_each_backend(&small(), |fixture| {
        let pool = fixture.builder().adaptor(Arc::new(Budget::new(1 << 30))).build().unwrap();
        let stream = fixture.stream();
        let block = pool.alloc_aligned(3000, MIB, &stream).unwrap();
        assert_eq!((block.address() % MIB, block.size_bytes()), (0, 3000));
        assert!(matches!(
            pool.alloc_aligned(3000, 3, &stream),
            Err(PoolError::BadArgument(BadArgument::Alignment { .. }))
        ));
        for size_bytes in [(1 << 30) + 1, 1 << 63, u64::MAX] {
            let error = pool.alloc(size_bytes, &stream).unwrap_err();
            assert!(
                matches!(&error, PoolError::LimitReached(report) if report.refused_by == RefusedBy::Budget),
                "{error}"
            );
        }
    });
}

/// Adaptors see the memory of a graph as one chunk, from before the capture's end until the graph is dropped.
#[test]
fn graphs_count_until_they_are_gone() {
    on_each_backend(&small(), |fixture| {
        let budget = Arc::new(Budget::new(64 * MIB));
        let (pool, stream) = (fixture.builder().adaptor(budget.clone()).build().unwrap(), fixture.stream());
        let outside = pool.alloc(MIB, &stream).unwrap();
        let capture = Capture::begin(&stream, CaptureMode::ThreadLocal).unwrap();
        let part = pool.alloc(8 * MIB, &stream).unwrap();
        assert_eq!(budget.in_use_bytes(), 9 * MIB);
        assert!(
            matches!(pool.alloc(56 * MIB, &stream), Err(PoolError::LimitReached(report)) if report.refused_by == RefusedBy::Budget)
        );
        fixture.fill(&part, 3, &stream);
        outside.record_use(&stream);
        drop((part, outside));
        let graph = capture.end().unwrap();
        let exec = graph.instantiate().unwrap();
        drop(graph);
        assert_eq!(budget.in_use_bytes(), 9 * MIB, "the graph has it");
        // SAFETY: the graph uses only its own memory.
        unsafe { exec.launch(&stream).unwrap() };
        drop(exec);
        assert_eq!(budget.in_use_bytes(), 0);
        stream.synchronize().unwrap();
    });
}

/// A private pool has the same adaptors: one budget for both.
#[test]
fn private_pools_share_them() {
    on_each_backend(&small(), |fixture| {
        let budget = Arc::new(Budget::new(8 * MIB));
        let pool = fixture.builder().adaptor(budget.clone()).build().unwrap();
        let (inner, stream) = (pool.private(64 * MIB).unwrap(), fixture.stream());
        let block = inner.alloc(6 * MIB, &stream).unwrap();
        assert!(
            matches!(pool.alloc(3 * MIB, &stream), Err(PoolError::LimitReached(report)) if report.refused_by == RefusedBy::Budget)
        );
        drop(inner);
        drop(block);
        drop(pool.alloc(8 * MIB, &stream).unwrap());
        assert_eq!((budget.in_use_bytes(), budget.in_use_peak_bytes()), (0, 8 * MIB));
    });
}

/// An adaptor that returns the grants of a function.
struct Wrong<F>(F);

impl<F> Adaptor for Wrong<F>
where
    F: Fn(&Request<'_>, Next<'_>) -> Result<Grant, PoolError> + Send + Sync,
{
    fn name(&self) -> &str {
        "wrong"
    }

    fn alloc(&self, request: &Request<'_>, next: Next<'_>) -> Result<Grant, PoolError> {
        (self.0)(request, next)
    }
}

/// The text of the refusal, below an adaptor whose counters must balance.
fn refusal<F>(fixture: &Fixture, stream: &Stream, wrong: F) -> String
where
    F: Fn(&Request<'_>, Next<'_>) -> Result<Grant, PoolError> + Send + Sync + 'static,
{
    let (below, above) = (Arc::new(Budget::new(1 << 30)), Arc::new(Budget::new(1 << 30)));
    let builder = fixture.builder().adaptor(below.clone()).adaptor(Arc::new(Wrong(wrong)));
    let pool = builder.adaptor(above.clone()).build().unwrap();
    let error = pool.alloc_aligned(4096, 4096, stream).unwrap_err();
    assert_eq!((below.in_use_bytes(), above.in_use_bytes()), (0, 0));
    assert_eq!(pool.status().unwrap().in_use_bytes, 0);
    error.to_string()
}

#[test]
fn a_grant_that_does_not_fit_is_refused_and_freed() {
    on_each_backend(&small(), |fixture| {
        let (home, other) = (fixture.stream(), fixture.stream());
        let says = |text: String, what: &str| {
            assert!(text.starts_with("the adaptor `wrong` refused 4.000 KiB (device 0, pool "), "{text}");
            assert!(text.ends_with(&format!("{}): it {what}", home.id())), "{text}");
        };
        says(
            refusal(fixture, &home, |request, next| next.alloc(&request.with_size(4095))),
            "returned less than was asked for",
        );
        let shifted = |request: &Request<'_>, next: Next<'_>| {
            let mut grant = next.alloc(&request.with_size(8192))?;
            assert!(grant.narrow(256, 4096));
            Ok(grant)
        };
        says(refusal(fixture, &home, shifted), "returned memory that is not aligned");
        let text = refusal(fixture, &home, |request, next| next.alloc(&request.with_alignment(257)));
        assert!(text.starts_with("invalid alignment 257"), "{text}");

        let pool = fixture.pool();
        let theirs = other.clone();
        let elsewhere = pool.clone();
        says(
            refusal(fixture, &home, move |_, _| {
                Ok(Grant::from_block(elsewhere.alloc_aligned(4096, 4096, &theirs)?))
            }),
            "returned memory of another stream",
        );
        let elsewhere = pool.clone();
        says(
            refusal(fixture, &home, move |request, _| {
                let block = elsewhere.alloc_aligned(4096, 4096, request.stream())?;
                block.record_use(&other);
                Ok(Grant::from_block(block))
            }),
            "returned a block that other streams use",
        );
        if fixture.kind != MemoryKind::Device {
            let device_pool = Pool::new(&fixture.device).unwrap();
            says(
                refusal(fixture, &home, move |request, _| {
                    Ok(Grant::from_block(device_pool.alloc_aligned(4096, 4096, request.stream())?))
                }),
                "returned memory that the host cannot use",
            );
        }
        let text = refusal(fixture, &home, |request, next| {
            drop(next.alloc(request)?);
            let reason = "would rather not".into();
            Err(PoolError::Refused { adaptor: "wrong".into(), requested_bytes: 1, reason, origin: None })
        });
        assert!(text.ends_with("would rather not"), "{text}");
        assert_eq!(pool.status().unwrap().block_count, 0);
    });
}

/// Kept memory may be handed out once, by the adaptor to which it was granted; the remainder is freed with the adaptor.
#[test]
fn a_block_that_an_adaptor_keeps_is_safe() {
    on_each_backend(&small(), |fixture| {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let hoard = Arc::clone(&kept);
        let miser = Wrong(move |request: &Request<'_>, next: Next<'_>| {
            let mut hoard = hoard.lock().unwrap();
            if hoard.is_empty() {
                hoard.push(next.alloc(request)?);
                return next.alloc(request);
            }
            Ok(hoard.remove(0))
        });
        let miser = Arc::new(miser);
        let budget = Arc::new(Budget::new(1 << 30));
        let pool = fixture.builder().adaptor(budget.clone()).adaptor(miser.clone()).build().unwrap();
        let (home, other) = (fixture.stream(), fixture.stream());
        let first = pool.alloc(4096, &home).unwrap();
        let second = pool.alloc(4096, &home).unwrap();
        assert_ne!(first.address(), second.address());
        let third = pool.alloc(4096, &home).unwrap();
        let error = pool.alloc(4096, &other).unwrap_err().to_string();
        assert!(error.contains("memory of another stream"), "{error}");
        let fourth = pool.alloc(4096, &home).unwrap();
        let private = pool.private(64 * MIB).unwrap();
        let error = private.alloc(4096, &home).unwrap_err().to_string();
        assert!(error.contains("another pool's adaptors"), "{error}");
        drop((first, second, third, fourth));
        assert_eq!(budget.in_use_bytes(), 0);
        drop(pool.alloc(4096, &home).unwrap());
        drop((pool, private, miser));
        assert_eq!(budget.in_use_bytes(), 4096);
        kept.lock().unwrap().clear();
        assert_eq!(budget.in_use_bytes(), 0);
    });
}

/// Memory of another pool behaves like the pool's own: it counts there, and is freed behind all uses.
#[test]
fn blocks_of_another_pool_are_accepted_as_grants() {
    on_each_backend(&small(), |fixture| {
        let other_pool = fixture.pool();
        let lender = other_pool.clone();
        let borrow = Wrong(move |request: &Request<'_>, _: Next<'_>| {
            let larger_bytes = request.size_bytes() + 512;
            let block = lender.alloc_aligned(larger_bytes, request.alignment(), request.stream())?;
            let mut grant = Grant::from_block(block);
            assert!(grant.narrow(256, request.size_bytes()));
            Ok(grant)
        });
        let (inner, outer) = (Arc::new(Budget::new(1 << 30)), Arc::new(Budget::new(1 << 30)));
        let builder = fixture.builder().adaptor(inner.clone()).adaptor(Arc::new(borrow));
        let builder = builder.adaptor(outer.clone()).adaptor(Arc::new(Budget::new(1 << 30)));
        let pool = builder.build().unwrap();
        let (home, user) = (fixture.stream(), fixture.stream());
        let block = pool.alloc(MIB, &home).unwrap();
        assert_eq!(pool.status().unwrap().in_use_bytes, 0);
        assert_eq!(other_pool.status().unwrap().in_use_bytes, MIB + 512);
        assert_eq!((inner.in_use_bytes(), outer.in_use_bytes()), (0, MIB));
        assert_eq!(block.pin_backing().is_ok(), fixture.backend.to_string() != "native");
        user.wait_for(&home).unwrap();
        fixture.fill(&block, 1, &user);
        block.record_use(&user);
        drop(pool);
        drop(block);
        assert_eq!((outer.in_use_bytes(), other_pool.status().unwrap().in_use_bytes), (0, 0));
        // The simulator would report a race between this block and the fill.
        let again = other_pool.alloc(MIB, &home).unwrap();
        fixture.fill(&again, 2, &home);
        assert!(fixture.holds(&again, 2, &home));
    });
}

/// A panic in an allocation reaches the caller, and one in a drop is caught; the counters stay balanced.
#[test]
fn a_panic_breaks_nothing() {
    struct Bomb;
    impl Adaptor for Bomb {
        fn alloc(&self, request: &Request<'_>, next: Next<'_>) -> Result<Grant, PoolError> {
            let grant = next.alloc(request)?;
            assert!(request.size_bytes() != 666, "on purpose");
            Ok(grant)
        }

        fn free(&self, release: &Release<'_>) {
            assert!(release.size_bytes() != 777, "on purpose");
        }
    }
    on_each_backend(&small(), |fixture| {
        let budget = Arc::new(Budget::new(1 << 30));
        let builder = fixture.builder().adaptor(budget.clone()).adaptor(Arc::new(Bomb));
        let (pool, stream) = (builder.build().unwrap(), fixture.stream());
        assert!(catch_unwind(AssertUnwindSafe(|| pool.alloc(666, &stream))).is_err());
        drop(pool.alloc(777, &stream).unwrap());
        assert_eq!((budget.in_use_bytes(), pool.status().unwrap().in_use_bytes), (0, 0));
        drop(pool.alloc(888, &stream).unwrap());
    });
}

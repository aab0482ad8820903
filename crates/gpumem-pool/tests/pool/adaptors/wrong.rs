//! Incorrect adaptors within safe code: whatever they return, no two live blocks share memory, and unused memory is freed.

#![forbid(unsafe_code)]

use super::{MIB, Wrong};
use crate::fixture::{Fixture, on_each_backend, small};
use gpumem_pool::adaptor::{Adaptor, Budget, Fallback, Fill, Grant, Guard, Next, Release, Request, Tracking};
use gpumem_pool::{
    Block, Capture, CaptureError, CaptureMode, DeviceError, MemoryKind, Pool, PoolBuilder, PoolError, Stream,
    StreamError,
};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

thread_local! {
    /// The nesting depth of an adaptor's own requests on this thread.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Makes a request from within an adaptor.
fn deeper<R>(request: impl FnOnce() -> R) -> R {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            DEPTH.set(DEPTH.get() - 1);
        }
    }
    DEPTH.set(DEPTH.get() + 1);
    let _leave = Leave;
    request()
}

/// A pool owned by its own adaptor, until this is dropped.
struct Knotted {
    pool: Pool,
    own: Arc<Mutex<Option<Pool>>>,
}

impl Knotted {
    /// Builds a pool in which every block is nested in blocks of this pool, `depth` times.
    fn new(builder: PoolBuilder, depth: u32) -> Self {
        let own = Arc::new(Mutex::new(None::<Pool>));
        let known = Arc::clone(&own);
        let nest = move |request: &Request<'_>, next: Next<'_>| {
            if DEPTH.get() == depth {
                return next.alloc(request);
            }
            let pool = known.lock().unwrap().clone().unwrap();
            let (size_bytes, alignment) = (request.size_bytes(), request.alignment());
            let block = deeper(|| pool.alloc_aligned(size_bytes, alignment, request.stream()))?;
            Ok(Grant::from_block(block))
        };
        let pool = builder.adaptor(Arc::new(Wrong(nest))).build().unwrap();
        *own.lock().unwrap() = Some(pool.clone());
        Self { pool, own }
    }
}

impl Drop for Knotted {
    fn drop(&mut self) {
        *self.own.lock().unwrap() = None;
    }
}

/// Live blocks, each filled with its own value.
#[derive(Default)]
struct Held(Vec<(Block, u8, Stream)>);

impl Held {
    fn add(&mut self, fixture: &Fixture, block: Block, value: u8, stream: &Stream) {
        let (start, end) = (block.address(), block.address() + block.size_bytes());
        for (other, ..) in &self.0 {
            let is_apart = end <= other.address() || other.address() + other.size_bytes() <= start;
            assert!(is_apart, "{block:?} shares memory with {other:?}");
        }
        fixture.fill(&block, value, stream);
        self.0.push((block, value, stream.clone()));
    }

    fn check(&self, fixture: &Fixture) {
        for (block, value, stream) in &self.0 {
            assert!(fixture.holds(block, *value, stream), "{block:?} has been overwritten");
        }
    }
}

/// Lent by a fallback and nested in another block of the pool: both have one address.
#[test]
fn a_lent_block_within_a_block_of_its_pool_stays_lent() {
    on_each_backend(&small(), |fixture| {
        for depth in 1..4 {
            let spare = fixture.pool();
            let builder = fixture.builder().hard_limit(4 * MIB).adaptor(Arc::new(Fallback::new(&spare)));
            let knotted = Knotted::new(builder, depth);
            let (stream, mut held) = (fixture.stream(), Held::default());
            held.add(fixture, knotted.pool.alloc(6 * MIB, &stream).unwrap(), 1, &stream);
            assert_eq!(spare.status().unwrap().in_use_bytes, 6 * MIB, "depth {depth}");
            held.add(fixture, spare.alloc(6 * MIB, &stream).unwrap(), 2, &stream);
            held.add(fixture, knotted.pool.alloc(6 * MIB, &stream).unwrap(), 3, &stream);
            held.check(fixture);
            drop(held.0.remove(0));
            assert_eq!(spare.status().unwrap().in_use_bytes, 12 * MIB);
            held.check(fixture);
            held.0.clear();
            assert_eq!(spare.status().unwrap().block_count, 0);
            spare.check().unwrap();
        }
    });
}

/// Shrunk by a guard and nested in another block of the pool.
#[test]
fn a_guarded_block_within_a_block_of_its_pool_is_freed_once() {
    on_each_backend(&small(), |fixture| {
        for depth in 1..4 {
            let (guard, budget) = (Arc::new(Guard::new()), Arc::new(Budget::new(1 << 30)));
            let builder = fixture.builder().adaptor(budget.clone()).adaptor(guard.clone());
            let knotted = Knotted::new(builder, depth);
            let (pool, stream, mut held) = (&knotted.pool, fixture.stream(), Held::default());
            for value in 0..12 {
                held.add(fixture, pool.alloc(5000 * u64::from(value + 1), &stream).unwrap(), value, &stream);
                if value % 3 == 2 {
                    drop(held.0.remove(usize::from(value) / 3));
                }
            }
            let raw_bytes: u64 = held.0.iter().map(|(block, ..)| block.size_bytes() + 512).sum();
            let in_use_bytes = pool.status().unwrap().in_use_bytes;
            assert!((raw_bytes..raw_bytes + 512 * 12).contains(&in_use_bytes), "depth {depth}");
            assert_eq!(pool.status().unwrap().block_count, held.0.len() as u64);
            held.check(fixture);
            pool.check().unwrap();
            held.0.clear();
            assert_eq!((pool.status().unwrap().in_use_bytes, budget.in_use_bytes()), (0, 0));
            fixture.device.synchronize().unwrap();
            assert_eq!(guard.settle(), [], "depth {depth}");
            pool.check().unwrap();
        }
    });
}

/// Nested blocks also belong to the graph that uses them, and have the kind of the memory.
#[test]
fn a_block_within_a_block_is_like_any_other() {
    on_each_backend(&small(), |fixture| {
        let builder = fixture.builder().adaptor(Arc::new(Guard::new()));
        let knotted = Knotted::new(builder, 2);
        let (pool, stream, other) = (&knotted.pool, fixture.stream(), fixture.stream());
        let block = pool.alloc(MIB, &stream).unwrap();
        assert_eq!(block.kind(), fixture.kind);
        assert_eq!(block.host_ptr().is_some(), fixture.kind != MemoryKind::Device);
        let capture = Capture::begin(&stream, CaptureMode::Relaxed).unwrap();
        let part = pool.alloc(MIB, &stream).unwrap();
        fixture.fill(&part, 1, &stream);
        fixture.fill(&block, 1, &stream);
        block.record_use(&stream);
        drop((part, block));
        let exec = capture.end().unwrap().instantiate().unwrap();
        assert_eq!(pool.status().unwrap().block_count, 2, "the graph has both");
        drop(exec);
        assert_eq!(pool.status().unwrap().block_count, 0);
        let block = pool.alloc(MIB, &stream).unwrap();
        other.wait_for(&stream).unwrap();
        fixture.fill(&block, 2, &other);
        block.record_use(&other);
        drop(block);
        let block = pool.alloc(MIB, &stream).unwrap();
        fixture.fill(&block, 3, &stream);
        assert!(fixture.holds(&block, 3, &stream));
    });
}

/// Memory of a pool in a block of a second pool, in a block of the first.
#[test]
fn pools_that_lend_to_each_other_free_in_order() {
    on_each_backend(&small(), |fixture| {
        let (guards, own) = ([(); 2].map(|()| Arc::new(Guard::new())), Arc::new(Mutex::new(None::<Pool>)));
        let known = Arc::clone(&own);
        let lend = Wrong(move |request: &Request<'_>, next: Next<'_>| {
            if DEPTH.get() > 0 {
                return next.alloc(request);
            }
            let pool = known.lock().unwrap().clone().unwrap();
            let block = deeper(|| pool.alloc_aligned(request.size_bytes(), 256, request.stream()))?;
            Ok(Grant::from_block(block))
        });
        let first = fixture.builder().adaptor(guards[0].clone()).adaptor(Arc::new(lend)).build().unwrap();
        let lender = first.clone();
        let borrow = Wrong(move |request: &Request<'_>, _: Next<'_>| {
            let block = deeper(|| lender.alloc_aligned(request.size_bytes(), 256, request.stream()))?;
            Ok(Grant::from_block(block))
        });
        let second = fixture.builder().adaptor(Arc::new(borrow)).adaptor(guards[1].clone()).build().unwrap();
        *own.lock().unwrap() = Some(second.clone());
        let (stream, mut held) = (fixture.stream(), Held::default());
        for value in 0..8 {
            let pool = [&first, &second][usize::from(value % 2)];
            held.add(fixture, pool.alloc(3000, &stream).unwrap(), value, &stream);
            if value % 3 == 2 {
                drop(held.0.remove(0));
            }
        }
        held.check(fixture);
        assert_eq!(first.status().unwrap().block_count, held.0.len() as u64);
        assert_eq!(second.status().unwrap().block_count, 0, "all of it is the first one's");
        *own.lock().unwrap() = None;
        drop((first, second));
        held.check(fixture);
        held.0.clear();
        fixture.device.synchronize().unwrap();
        assert!(guards.iter().all(|guard| guard.settle().is_empty()));
    });
}

/// Blocks nested to the maximum depth are all freed by one drop.
#[test]
fn blocks_lie_in_each_other_only_so_deep() {
    on_each_backend(&small(), |fixture| {
        let last = Arc::new(Mutex::new(None::<Block>));
        let kept = Arc::clone(&last);
        let wrap = Wrong(move |request: &Request<'_>, next: Next<'_>| match kept.lock().unwrap().take() {
            Some(block) => Ok(Grant::from_block(block)),
            None => next.alloc(request),
        });
        let budget = Arc::new(Budget::new(1 << 30));
        let builder = fixture.builder().adaptor(Arc::new(wrap)).adaptor(budget.clone());
        let (pool, stream) = (builder.build().unwrap(), fixture.stream());
        let wrapped = |_| {
            let block = pool.alloc(4096, &stream);
            block.map(|block| *last.lock().unwrap() = Some(block))
        };
        let error = (0..1000).map(wrapped).find_map(Result::err).unwrap();
        assert!(error.to_string().contains("nested more than 64 pools deep"), "{error}");
        assert_eq!((pool.status().unwrap().block_count, budget.in_use_bytes()), (0, 0), "all are freed");
        for count in 1..=65_u64 {
            wrapped(0).unwrap();
            assert_eq!(budget.in_use_bytes(), 4096 * count);
        }
        drop(last.lock().unwrap().take());
        assert_eq!((pool.status().unwrap().block_count, budget.in_use_bytes()), (0, 0));
    });
}

/// Changes the stream of a request, before or after the next adaptor is called.
fn disturbed(
    fixture: &Fixture,
    stream: &Stream,
    is_before: bool,
    disturb: impl Fn(&Stream) + Send + Sync + 'static,
) -> PoolError {
    let budget = Arc::new(Budget::new(1 << 30));
    let wrong = Wrong(move |request: &Request<'_>, next: Next<'_>| {
        if is_before {
            disturb(request.stream());
            return next.alloc(request);
        }
        let grant = next.alloc(request)?;
        disturb(request.stream());
        Ok(grant)
    });
    let builder = fixture.builder().adaptor(budget.clone()).adaptor(Arc::new(Fill::zero_on_alloc()));
    let pool = builder.adaptor(Arc::new(wrong)).adaptor(Arc::new(Fill::debug())).build().unwrap();
    let error = pool.alloc(4096, stream).unwrap_err();
    CAPTURE.take();
    assert_eq!((budget.in_use_bytes(), pool.status().unwrap().block_count), (0, 0), "{error}");
    error
}

thread_local! {
    static CAPTURE: Cell<Option<Capture>> = const { Cell::new(None) };
}

/// No memory is allocated on a stream whose state differs from the one that the pool checked.
#[test]
fn a_stream_that_an_adaptor_changes_is_refused() {
    on_each_backend(&small(), |fixture| {
        for is_before in [true, false] {
            let stream = Stream::per_thread(&fixture.device).unwrap();
            let error = disturbed(fixture, &stream, is_before, |stream| stream.retire().unwrap());
            assert!(matches!(error, PoolError::Device(DeviceError::Stream(StreamError::Retired))), "{error}");
            let capture = |stream: &Stream| {
                CAPTURE.set(Some(Capture::begin(stream, CaptureMode::Relaxed).unwrap()));
            };
            let error = disturbed(fixture, &fixture.stream(), is_before, capture);
            assert!(
                matches!(error, PoolError::Device(DeviceError::Capture(CaptureError::NotCapturable { .. }))),
                "{error}"
            );
        }
    });
}

/// A per-thread default stream is a different stream on every thread.
#[test]
fn another_thread_cannot_request_on_a_per_thread_stream() {
    on_each_backend(&small(), |fixture| {
        let elsewhere = Wrong(|request: &Request<'_>, next: Next<'_>| {
            std::thread::scope(|scope| scope.spawn(|| next.alloc(request)).join().unwrap())
        });
        let pool = fixture.builder().adaptor(Arc::new(elsewhere)).build().unwrap();
        let error = pool.alloc(4096, &Stream::per_thread(&fixture.device).unwrap()).unwrap_err();
        assert!(matches!(error, PoolError::Device(DeviceError::Stream(StreamError::WrongThread))), "{error}");
        drop(pool.alloc(4096, &fixture.stream()).unwrap());
        assert_eq!(pool.status().unwrap().block_count, 0);
    });
}

/// A kept grant behaves like a block that is dropped in the capture.
#[test]
fn a_grant_that_is_dropped_while_its_stream_captures_stays_for_the_graph() {
    on_each_backend(&small(), |fixture| {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let hoard = Arc::clone(&kept);
        let miser = Wrong(move |request: &Request<'_>, next: Next<'_>| {
            let mut grant = next.alloc(&request.with_size(8192))?;
            let _ = grant.narrow(256, 4096);
            hoard.lock().unwrap().push(grant);
            next.alloc(request)
        });
        let budgets = [(); 2].map(|()| Arc::new(Budget::new(1 << 30)));
        let builder = fixture.builder().adaptor(budgets[0].clone()).adaptor(Arc::new(miser));
        let (pool, stream) = (builder.adaptor(budgets[1].clone()).build().unwrap(), fixture.stream());
        drop(pool.alloc(4096, &stream).unwrap());
        assert_eq!(budgets.each_ref().map(|budget| budget.in_use_bytes()), [8192, 0]);
        let capture = Capture::begin(&stream, CaptureMode::Relaxed).unwrap();
        kept.lock().unwrap().clear();
        assert_eq!((pool.status().unwrap().block_count, budgets[0].in_use_bytes()), (1, 8192));
        drop(capture.end().unwrap());
        assert_eq!((pool.status().unwrap().block_count, budgets[0].in_use_bytes()), (0, 0));
        drop(pool.alloc(4096, &stream).unwrap());
        pool.check().unwrap();
        // The grants hold the pool, and the pool its adaptors.
        kept.lock().unwrap().clear();
    });
}

/// The drop of the pool's last handle drops its adaptors, and must not panic.
#[test]
fn an_adaptor_that_panics_at_its_end_ends_there() {
    struct Last(Arc<AtomicU64>);
    impl Adaptor for Last {}
    impl Drop for Last {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
            resume_unwind(Box::new("at its end"));
        }
    }
    on_each_backend(&small(), |fixture| {
        let (ended_count, before) = (Arc::new(AtomicU64::new(0)), fixture.device.memory_info().unwrap());
        let last = || Arc::new(Last(Arc::clone(&ended_count)));
        let pool = fixture.builder().adaptor(last()).adaptor(last()).build().unwrap();
        let block = pool.alloc(MIB, &fixture.stream()).unwrap();
        drop(pool);
        drop(block);
        assert_eq!(ended_count.load(Ordering::Relaxed), 2);
        fixture.device.synchronize().unwrap();
        assert_eq!(fixture.device.memory_info().unwrap(), before, "the pool has ended");
    });
}

/// The host may use pinned and unified memory as soon as it gets the block, even if the stream has pending work on it.
#[test]
fn a_block_with_work_pending_is_complete_before_the_host_has_it() {
    on_each_backend(&small(), |fixture| {
        for kind in [MemoryKind::Unified, MemoryKind::Host] {
            // Also with a pool of device memory that lends the block.
            let full = Pool::builder(&fixture.device).backend(fixture.backend).hard_limit(2 * MIB);
            let spare = Pool::builder(&fixture.device).kind(kind).build().unwrap();
            let lending = full.adaptor(Arc::new(Fallback::new(&spare))).build().unwrap();
            for lender in [&spare, &lending] {
                let stream = fixture.stream();
                let old = lender.alloc(4 * MIB, &stream).unwrap();
                let host = old.host_ptr();
                fixture.fill(&old, 7, &stream);
                let old = Mutex::new(Some(old));
                let wrong = Wrong(move |request: &Request<'_>, next: Next<'_>| {
                    let block = old.lock().unwrap().take();
                    block.map_or_else(|| next.alloc(request), |block| Ok(Grant::from_block(block)))
                });
                let builder = fixture.builder().adaptor(Arc::new(wrong));
                let pool = builder.adaptor(Arc::new(Fill::zero_on_alloc())).build().unwrap();
                let block = pool.alloc(4 * MIB, &stream).unwrap();
                assert_eq!((block.host_ptr(), host.is_some()), (host, true), "it is the old one");
                assert!(fixture.holds(&block, 0, &stream), "the old work has come after the new");
            }
        }
    });
}

/// Memory of a graph has the kind of the lent memory, and host-accessible blocks share no bytes with other blocks.
#[test]
fn a_graphs_parts_are_of_the_kind_that_is_lent() {
    on_each_backend(&small(), |fixture| {
        let spare = Pool::builder(&fixture.device).kind(MemoryKind::Host).build().unwrap();
        let lend = Wrong(move |request: &Request<'_>, _: Next<'_>| Grant::from_pool(&spare, request));
        let pool = fixture.builder().adaptor(Arc::new(lend)).build().unwrap();
        let stream = fixture.stream();
        let capture = Capture::begin(&stream, CaptureMode::Relaxed).unwrap();
        drop(pool.alloc(MIB, &stream).unwrap());
        let parts = [(); 4].map(|()| pool.alloc(MIB / 4, &stream).unwrap());
        for (at, part) in parts.iter().enumerate() {
            assert_eq!((part.kind(), part.host_ptr().is_some()), (MemoryKind::Host, true));
            // Bytes written by the host stay until the graph runs: no other part has the address.
            let is_apart = |other: &Block| part.address().abs_diff(other.address()) >= MIB / 4;
            assert!(parts[..at].iter().all(is_apart));
        }
        drop((parts, capture));
        drop(pool.alloc(MIB, &stream).unwrap());
    });
}

/// An adaptor that keeps, returns, leaks, shrinks and panics at random.
struct Chaos {
    own: Arc<Mutex<Option<Pool>>>,
    others: Vec<Pool>,
    streams: Vec<Stream>,
    grants: Mutex<Vec<Grant>>,
    blocks: Mutex<Vec<Block>>,
    die: AtomicU64,
    is_calm: AtomicBool,
}

impl Chaos {
    fn roll(&self, count: u64) -> u64 {
        let mut bits = self.die.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ bits >> 31) % count
    }

    fn own(&self) -> Option<Pool> {
        self.own.lock().unwrap().clone()
    }

    fn kept_block(&self) -> Option<Block> {
        let mut blocks = self.blocks.lock().unwrap();
        (!blocks.is_empty()).then(|| blocks.remove(0))
    }

    /// Allocates from any pool, on any stream.
    fn some_block(&self, size_bytes: u64) -> Option<Block> {
        let pools: Vec<Pool> = self.own().into_iter().chain(self.others.iter().cloned()).collect();
        let pool = pools.get(self.roll(pools.len() as u64) as usize)?;
        let stream = &self.streams[self.roll(self.streams.len() as u64) as usize];
        deeper(|| pool.alloc(size_bytes, stream)).ok()
    }

    fn clear(&self) {
        let grants = core::mem::take(&mut *self.grants.lock().unwrap());
        drop((grants, core::mem::take(&mut *self.blocks.lock().unwrap())));
    }
}

impl Adaptor for Chaos {
    fn alloc(&self, request: &Request<'_>, next: Next<'_>) -> Result<Grant, PoolError> {
        if self.is_calm.load(Ordering::Relaxed) || DEPTH.get() > 2 {
            return next.alloc(request);
        }
        let size_bytes = request.size_bytes();
        let more_bytes = 256 * (1 + self.roll(8));
        let whole = request.with_size(size_bytes + more_bytes);
        let refused = || PoolError::Refused {
            adaptor: "chaos".into(),
            requested_bytes: size_bytes,
            reason: "at random".into(),
            origin: None,
        };
        match self.roll(28) {
            0 => next.alloc(&whole),
            1 | 2 => {
                let mut grant = next.alloc(&whole)?;
                assert!(grant.narrow(256 * self.roll(more_bytes / 256 + 1), size_bytes));
                Ok(grant)
            }
            3 => {
                let grant = next.alloc(request)?;
                self.grants.lock().unwrap().push(grant);
                next.alloc(request)
            }
            4 | 5 => {
                let kept = self.grants.lock().unwrap().pop();
                kept.map_or_else(|| next.alloc(request), Ok)
            }
            6..=8 => {
                let pool = self.own().ok_or_else(refused)?;
                let block = deeper(|| pool.alloc_aligned(size_bytes, request.alignment(), request.stream()))?;
                Ok(Grant::from_block(block))
            }
            9 => {
                let pool = self.own().ok_or_else(refused)?;
                let mut grant = Grant::from_block(deeper(|| pool.alloc(size_bytes + 512, request.stream()))?);
                let _ = grant.narrow(256, size_bytes);
                let _ = grant.narrow(0, size_bytes);
                Ok(grant)
            }
            10 => Ok(Grant::from_block(self.some_block(size_bytes).ok_or_else(refused)?)),
            11 | 12 => match self.kept_block() {
                Some(block) => Ok(Grant::from_block(block)),
                None => {
                    let block = self.some_block(size_bytes);
                    self.blocks.lock().unwrap().extend(block);
                    next.alloc(request)
                }
            },
            13 => {
                let block = self.some_block(size_bytes).ok_or_else(refused)?;
                block.record_use(&self.streams[0]);
                Ok(Grant::from_block(block))
            }
            14 => next.alloc(&request.with_size(size_bytes / 2)),
            15 => {
                let _grant = next.alloc(request)?;
                Err(refused())
            }
            16 => {
                let _grant = next.alloc(request)?;
                // `resume_unwind` prints no message to the test's output.
                resume_unwind(Box::new("at random"))
            }
            17 => Ok(Grant::from_block(deeper(|| self.others[0].alloc(0, request.stream()))?)),
            _ => next.alloc(request),
        }
    }

    fn free(&self, _: &Release<'_>) {
        if self.is_calm.load(Ordering::Relaxed) || DEPTH.get() > 2 {
            return;
        }
        match self.roll(8) {
            0 => resume_unwind(Box::new("at random")),
            1 => {
                let block = self.some_block(300);
                self.blocks.lock().unwrap().extend(block);
            }
            2 => drop(deeper(|| self.kept_block())),
            3 => {
                let grant = self.grants.lock().unwrap().pop();
                deeper(|| drop(grant));
            }
            _ => {}
        }
    }
}

#[test]
fn whatever_an_adaptor_returns_no_two_blocks_share_memory() {
    on_each_backend(&small(), |fixture| {
        (0..6).for_each(|seed| at_random(fixture, seed));
    });
}

fn at_random(fixture: &Fixture, seed: u64) {
    let streams = vec![fixture.stream(), fixture.stream()];
    let guard = Arc::new(Guard::new());
    let others = vec![fixture.pool(), fixture.builder().adaptor(guard.clone()).build().unwrap()];
    let own = Arc::new(Mutex::new(None));
    let chaos = |salt: u64| {
        Arc::new(Chaos {
            own: Arc::clone(&own),
            others: others.clone(),
            streams: streams.clone(),
            grants: Mutex::default(),
            blocks: Mutex::default(),
            die: AtomicU64::new(seed.wrapping_mul(0x1234_5678_9abc_def1) ^ salt),
            is_calm: AtomicBool::new(false),
        })
    };
    let (inner, outer) = (chaos(1), chaos(2));
    let (budget, tracking) = (Arc::new(Budget::new(1 << 40)), Arc::new(Tracking::new()));
    let builder = fixture.builder().adaptor(budget.clone()).adaptor(inner.clone()).adaptor(guard.clone());
    let builder = builder.adaptor(Arc::new(Fill::debug())).adaptor(outer.clone()).adaptor(tracking.clone());
    let pool = builder.build().unwrap();
    *own.lock().unwrap() = Some(pool.clone());
    let (mut held, mut granted_count) = (Held::default(), 0);
    for step in 0..150_u64 {
        let stream = &streams[(outer.roll(5) / 4) as usize];
        if outer.roll(3) < 2 {
            let size_bytes = if outer.roll(20) == 0 { 3 * MIB } else { 1 + outer.roll(20_000) };
            let alignment = 256 << outer.roll(4);
            let asked = || pool.alloc_aligned(size_bytes, alignment, stream);
            if let Ok(Ok(block)) = catch_unwind(AssertUnwindSafe(asked)) {
                assert_eq!((block.size_bytes(), block.address() % alignment), (size_bytes, 0));
                held.add(fixture, block, step as u8, stream);
                granted_count += 1;
            }
        } else if !held.0.is_empty() {
            let (block, value, stream) = held.0.swap_remove(outer.roll(held.0.len() as u64) as usize);
            assert!(fixture.holds(&block, value, &stream), "{block:?} has been overwritten");
        }
    }
    assert!(granted_count > 20, "seed {seed}: {granted_count}");
    held.check(fixture);
    pool.check().unwrap();
    [&inner, &outer].into_iter().for_each(|chaos| chaos.is_calm.store(true, Ordering::Relaxed));
    held.0.clear();
    [&inner, &outer].into_iter().for_each(|chaos| chaos.clear());
    *own.lock().unwrap() = None;
    for pool in others.iter().chain([&pool]) {
        let status = pool.status().unwrap();
        assert_eq!((status.block_count, status.in_use_bytes), (0, 0), "seed {seed}");
        pool.check().unwrap();
    }
    assert_eq!((budget.in_use_bytes(), tracking.live().blocks.len()), (0, 0), "seed {seed}");
    fixture.device.synchronize().unwrap();
    assert_eq!(guard.settle(), [], "seed {seed}");
}

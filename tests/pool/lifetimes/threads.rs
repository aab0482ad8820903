//! Blocks and threads: blocks are freed by any thread, at any point of its life, and no thread strands memory.

use gpumem_tests::cases;
use gpumem_tests::fixtures::pool_fixture::{MIB, PoolFixture};
use gpumem_tests::pool::{Block, Pool, Stream};
use gpumem_tests::sys::DriverKind;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::channel;

cases! {
    /// Threads that never allocated, and have no current context, free blocks of other threads.
    fn freed_by_threads_that_never_allocated(driver: &Driver) {
        PoolFixture::each(driver, |options| options.hard_limit(64 * MIB), |fixture| {
            let streams = [fixture.stream(), fixture.stream()];
            for round in 0..10 {
                let blocks = (0..40_u64).map(|key| fixture.filled(700 << (key % 12), key, &streams[key as usize % 2]));
                let mut blocks: Vec<_> = blocks.collect();
                std::thread::scope(|scope| {
                    while let Some(some) = blocks.len().checked_sub(10) {
                        let some = blocks.split_off(some);
                        scope.spawn(move || drop(some));
                    }
                });
                let whole = fixture.filled(60 * MIB, round, &streams[round as usize % 2]);
                fixture.check(&whole, round, &streams[round as usize % 2]);
            }
            assert_eq!(fixture.pool.status().unwrap().in_use_bytes, 0);
        });
    }

    /// Blocks in thread-local storage are freed when the thread ends: before the pool's own thread-local data is dropped, and
    /// after. Both destructors may allocate.
    fn freed_while_a_thread_ends(driver: &Driver) {
        PoolFixture::each(driver, |options| options, |fixture| {
            let count = Arc::new(AtomicU64::new(0));
            for round in 0..20 {
                let (pool, stream, count) = (fixture.pool.clone(), fixture.stream(), count.clone());
                let watched = fixture.filled(3000, round, &stream);
                let ending = move || {
                    // Thread-local variables that are accessed first are dropped last.
                    EARLY.with_borrow_mut(|early| assert!(early.is_none()));
                    let blocks = || [300, 3000, 70_000, 2 * MIB].map(|size| pool.alloc(size, &stream).unwrap()).into();
                    drop::<Vec<Block>>(blocks());
                    let hoard = || {
                        let (pool, stream, blocks, count) = (pool.clone(), stream.clone(), blocks(), count.clone());
                        Some(Hoard { pool, stream, blocks, count })
                    };
                    LATE.with_borrow_mut(|late| *late = hoard());
                    EARLY.with_borrow_mut(|early| *early = hoard());
                    stream
                };
                let stream = std::thread::spawn(ending).join().unwrap();
                fixture.check(&watched, round, &stream);
            }
            assert_eq!(count.load(SeqCst), 40, "each hoard could allocate once more");
            assert_eq!(fixture.pool.status().unwrap().in_use_bytes, 0);
        });
    }

    /// A thread that waits forever after its frees keeps none of that memory from other threads.
    fn a_parked_thread_strands_nothing(driver: &Driver) {
        PoolFixture::each(driver, |options| options.hard_limit(32 * MIB), |fixture| {
            let (wake, parked) = channel::<()>();
            let (notify, notified) = channel();
            let stream = &fixture.stream();
            let others = (0..60).map(|key| fixture.filled(100_000, key, stream)).collect::<Vec<_>>();
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    let own = (0..200).map(|key| fixture.filled(100_000, key, stream)).collect::<Vec<_>>();
                    drop((own, others));
                    notify.send(()).unwrap();
                    let _never = parked.recv();
                });
                notified.recv().unwrap();
                for round in 0..3 {
                    let whole = fixture.filled(30 * MIB, round, stream);
                    fixture.check(&whole, round, stream);
                    drop(whole);
                    let small: Vec<_> = (0..250).map(|key| fixture.filled(100_000, key, stream)).collect();
                    drop(small);
                }
                drop(wake);
            });
        });
    }

    /// Ended threads keep no memory: many threads start, allocate, free and end.
    fn ended_threads_strand_nothing(driver: &Driver) {
        PoolFixture::each(driver, |options| options.hard_limit(16 * MIB), |fixture| {
            let stream = &fixture.stream();
            for round in 0..60 {
                std::thread::scope(|scope| {
                    scope.spawn(|| drop((0..16_u64).map(|key| fixture.filled(2000 << (key % 6), key, stream)).collect::<Vec<_>>()));
                });
                if round % 20 == 19 {
                    drop(fixture.filled(14 * MIB, round, stream));
                }
            }
            assert_eq!(fixture.pool.status().unwrap().in_use_bytes, 0);
        });
    }

    /// The per-thread default stream ends with its thread, and keeps no memory freed on it: no caller has to wait for the whole
    /// device, where another stream may never complete.
    fn default_streams_of_ended_threads_hold_nothing(driver: &Driver) {
        PoolFixture::each(driver, |options| options.hard_limit(48 * MIB), |fixture| {
            if fixture.is("none") {
                // A plain free waits for the device; the driver requires it.
                return;
            }
            let (next, bystander) = (fixture.stream(), fixture.stream());
            let gate = crate::lifetimes::close(fixture, &bystander);
            for round in 0..5 {
                let block = std::thread::scope(|scope| {
                    let work = || fixture.filled(40 * MIB, round, &Stream::per_thread(&fixture.device).unwrap());
                    scope.spawn(work).join().unwrap()
                });
                drop(block);
                let taken = fixture.filled(40 * MIB, round + 100, &next);
                fixture.check(&taken, round + 100, &next);
            }
            next.synchronize().unwrap();
            // With the driver's pool, the driver orders the reuse. A GPU's driver sometimes adds the other stream's work, whatever the pool does.
            let is_ordered_by_gpu = fixture.is("native") && driver.kind() == DriverKind::Cuda;
            assert!(gate.open() || is_ordered_by_gpu, "it waited for the whole device");
        });
    }

    /// More threads than any thread table has entries, all with blocks.
    fn hundreds_of_threads(driver: &Driver) {
        PoolFixture::each(driver, |options| options, |fixture| {
            let stream = &fixture.stream();
            std::thread::scope(|scope| {
                for key in 0..300 {
                    scope.spawn(move || {
                        let block = fixture.filled(1000 + key, key, stream);
                        fixture.check(&block, key, stream);
                        let kept = fixture.alloc(500, stream);
                        drop((block, fixture.alloc(2000, stream), kept));
                    });
                }
            });
            let status = fixture.pool.status().unwrap();
            assert_eq!((status.in_use_bytes, status.allocation_count), (0, 900));
        });
    }
}

thread_local! {
    static EARLY: RefCell<Option<Hoard>> = const { RefCell::new(None) };
    static LATE: RefCell<Option<Hoard>> = const { RefCell::new(None) };
}

/// Frees, allocates and frees again in its drop.
struct Hoard {
    pool: Pool,
    stream: Stream,
    blocks: Vec<Block>,
    count: Arc<AtomicU64>,
}

impl Drop for Hoard {
    fn drop(&mut self) {
        self.blocks.clear();
        let again = [3000, 2 << 20].map(|size_bytes| self.pool.alloc(size_bytes, &self.stream));
        self.count.fetch_add(u64::from(again.iter().all(Result::is_ok)), SeqCst);
    }
}

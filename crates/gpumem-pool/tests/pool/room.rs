//! Memory that one pool caches serves requests of others: no request fails while cached memory could be released.

use crate::fixture::{Fixture, built_backends, on_device_memory, on_each_backend, small};
use gpumem_pool::adaptor::Budget;
use gpumem_pool::{
    BackendKind, Block, Device, MemoryKind, Pool, PoolError, Reclaimable, RefusedBy, Registration, Stream,
};
use gpumem_sim::SimConfig;
use std::error::Error;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

const MIB: u64 = 1 << 20;

fn cramped() -> SimConfig {
    SimConfig::new().memory_bytes(64 * MIB)
}

/// Memory that a program can release.
#[derive(Default)]
struct Shelf(Mutex<Vec<Block>>, AtomicU32);

impl Reclaimable for Shelf {
    fn helps(&self, _kind: MemoryKind) -> bool {
        true
    }

    fn purge(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.lock().unwrap().clear();
        Ok(())
    }
}

#[test]
fn reclaim_callbacks_run_before_a_budget_refuses() {
    on_each_backend(&small(), |fixture| {
        let (stream, shelf) = (fixture.stream(), Arc::new(Shelf::default()));
        let budget = Arc::new(Budget::new(64 * MIB));
        let pool = fixture.builder().adaptor(budget).build().unwrap();
        let _registration = Registration::new(&fixture.device, &shelf);
        shelf.0.lock().unwrap().push(pool.alloc(40 * MIB, &stream).unwrap());
        let block = pool.alloc(40 * MIB, &stream).unwrap();
        assert_eq!(shelf.1.swap(0, Ordering::Relaxed), 1);
        assert!(
            matches!(pool.alloc(40 * MIB, &stream), Err(PoolError::LimitReached(report)) if report.refused_by == RefusedBy::Budget)
        );
        assert_eq!(shelf.1.swap(0, Ordering::Relaxed), 2, "to purge, then to release");
        assert!(
            matches!(pool.alloc(65 * MIB, &stream), Err(PoolError::LimitReached(report)) if report.refused_by == RefusedBy::Budget)
        );
        assert_eq!(shelf.1.load(Ordering::Relaxed), 0, "nobody can help");
        drop(block);
        if let Ok(mut growable) = pool.growable(64 * MIB, &stream) {
            shelf.0.lock().unwrap().push(pool.alloc(40 * MIB, &stream).unwrap());
            growable.grow_to(40 * MIB).unwrap();
        }
    });
}

/// Memory of a pool that ended with pending work serves a pool of any backend.
#[test]
fn memory_of_an_ended_pool_is_reused() {
    on_device_memory(&cramped().schedule("late".parse().unwrap()), |fixture| {
        for backend in built_backends() {
            let (pool, stream) = (fixture.pool(), fixture.stream());
            let block = pool.alloc(40 * MIB, &stream).unwrap();
            fixture.fill(&block, 1, &stream);
            drop((block, pool));
            let next = Pool::builder(&fixture.device).backend(backend).build().unwrap();
            drop(next.alloc(40 * MIB, &stream).unwrap());
        }
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let block = pool.alloc(40 * MIB, &stream).unwrap();
        fixture.fill(&block, 1, &stream);
        drop((block, pool));
        Pool::new(&fixture.device).unwrap().reserve(40 * MIB).unwrap();
    });
}

/// Two libraries of one program use the same GPU.
#[test]
fn devices_that_were_opened_apart_make_room_for_each_other() {
    on_each_backend(&cramped(), |fixture| {
        if fixture.kind == MemoryKind::Host {
            return;
        }
        let other = Device::new(&fixture.driver, 0).unwrap();
        let (pool, stream, shelf) = (fixture.pool(), fixture.stream(), Arc::new(Shelf::default()));
        let _registration = Registration::new(&other, &shelf);
        drop(pool.alloc(40 * MIB, &stream).unwrap());
        let others = Fixture { driver: fixture.driver.clone(), device: other, ..*fixture };
        let (others_pool, others_stream) = (others.pool(), others.stream());
        let block = others_pool.alloc(40 * MIB, &others_stream).unwrap();
        shelf.0.lock().unwrap().push(block);
        drop(pool.alloc(40 * MIB, &stream).unwrap());
        assert!(shelf.0.lock().unwrap().is_empty());
    });
}

/// The margin of unified memory refuses, and is equal to the pool's own limit.
#[test]
fn a_limit_like_the_one_that_refuses_is_not_taken_for_it() {
    let device = Device::new(&gpumem_sim::driver(cramped()).unwrap(), 0).unwrap();
    let (pool, stream) = (Pool::new(&device).unwrap(), Stream::new(&device).unwrap());
    drop(pool.alloc(40 * MIB, &stream).unwrap());
    let unified = Pool::builder(&device).kind(MemoryKind::Unified).hard_limit(60 * MIB).build().unwrap();
    drop(unified.alloc(40 * MIB, &stream).unwrap());
}

/// The request is refused by the margin of unified memory, before a driver call.
#[test]
fn memory_of_an_ended_pool_does_not_count_as_margin() {
    let config = cramped().schedule("late".parse().unwrap());
    for backend in built_backends() {
        let device = Device::new(&gpumem_sim::driver(config.clone()).unwrap(), 0).unwrap();
        let (pool, stream) = (Pool::new(&device).unwrap(), Stream::new(&device).unwrap());
        let unified =
            Pool::builder(&device).kind(MemoryKind::Unified).backend(BackendKind::None).build().unwrap();
        let held = unified.alloc(MIB, &stream).unwrap();
        let block = pool.alloc(40 * MIB, &stream).unwrap();
        let bound = device.bind().unwrap();
        // SAFETY: the block is alive, and freed in the order of the stream.
        unsafe { device.driver().cuMemsetD8Async(block.address(), 1, 40 << 20, stream.raw()).unwrap() };
        drop((bound, block, pool));
        let next = Pool::builder(&device).backend(backend).build().unwrap();
        drop((next.alloc(40 * MIB, &stream).unwrap(), held));
    }
}

/// A growth within its limit reclaims the missing memory from other pools.
#[test]
fn a_growth_reclaims_the_missing_memory() {
    on_device_memory(&cramped(), |fixture| {
        let (pool, stream) = (fixture.builder().hard_limit(40 * MIB).build().unwrap(), fixture.stream());
        let Ok(mut growable) = pool.growable(60 * MIB, &stream) else { return };
        growable.grow_to(20 * MIB).unwrap();
        let other = Pool::new(&fixture.device).unwrap();
        drop(other.alloc(30 * MIB, &stream).unwrap());
        growable.grow_to(38 * MIB).unwrap();
        let refused = growable.grow_to(50 * MIB).unwrap_err();
        assert_eq!(refused.out_of_memory().unwrap().requested_bytes, 12 * MIB);
    });
}

/// A reclaimable that takes long to release its block.
struct Slow(Mutex<Option<Block>>);

impl Reclaimable for Slow {
    fn helps(&self, _kind: MemoryKind) -> bool {
        true
    }

    fn purge(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        // Later calls find nothing.
        let taken = self.0.lock().unwrap().take();
        std::thread::sleep(Duration::from_millis(if taken.is_some() { 10 } else { 0 }));
        Ok(())
    }
}

/// Memory that is being reclaimed for one thread also counts for the others.
#[test]
fn no_thread_fails_while_another_is_making_room() {
    on_each_backend(&small(), |fixture| {
        let pool = fixture.builder().hard_limit(160 * MIB).build().unwrap();
        let slow = Arc::new(Slow(Mutex::new(Some(pool.alloc(60 * MIB, &fixture.stream()).unwrap()))));
        let _registration = Registration::new(&fixture.device, &slow);
        let start = Barrier::new(6);
        std::thread::scope(|scope| {
            let allocate = |stream: Stream| {
                let mut held: Vec<_> = (0..8).map(|_| pool.alloc(2 * MIB, &stream)).collect();
                // All threads reach the limit together.
                start.wait();
                held.extend((0..2).map(|_| pool.alloc(2 * MIB, &stream)));
                held
            };
            let streams = [(); 6].map(|()| fixture.stream());
            let threads = streams.map(|stream| scope.spawn(move || allocate(stream)));
            // Each keeps its block until all are done.
            let held: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            held.iter().flatten().for_each(|held| assert!(held.is_ok(), "{held:?}"));
        });
    });
}

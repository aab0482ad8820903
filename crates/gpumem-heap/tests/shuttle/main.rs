//! Magazines, depot and drain under many random schedules: no block is lost or has two owners, and the caches stay within their
//! capacity. Compiled with `--cfg gpumem_shuttle` only. The test `climbs` of the pool covers the whole pool.

#![cfg(gpumem_shuttle)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use gpumem_heap::cache::{Drained, OwnerGuard, ThreadCache, ThreadCaches};
use gpumem_heap::{HeapBlock, SizeClass};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

const SCHEDULES: usize = 100;
const PAUSES: usize = 4;
const CAP_BYTES: u64 = 128 << 10;

/// Runs a body under many random schedules, and under others with long pauses of threads. A failure prints the schedule's seed.
fn check(body: fn()) {
    run(RandomScheduler::new(SCHEDULES), body);
    run(PctScheduler::new(PAUSES, SCHEDULES), body);
}

fn run(scheduler: impl Scheduler + 'static, body: impl Fn() + Send + Sync + 'static) {
    let mut config = shuttle::Config::new();
    // The caches are built on the stack before they are moved to the heap.
    config.stack_size = 1 << 20;
    shuttle::Runner::new(scheduler, config).run(body);
}

/// The heap behind the caches: it never runs out of memory, and tracks the blocks that it handed out.
struct World {
    pool: ThreadCaches<u64>,
    next_record: AtomicU32,
    in_hand: Vec<AtomicBool>,
    back: Mutex<Drained<u64>>,
}

impl World {
    fn new() -> Arc<Self> {
        let in_hand = (0..500).map(|_| AtomicBool::new(false)).collect();
        let (next_record, back) = (AtomicU32::new(0), Mutex::new(Vec::new()));
        Arc::new(Self { pool: ThreadCaches::new(CAP_BYTES), next_record, in_hand, back })
    }

    fn take(&self, cache: OwnerGuard<'_>, class: SizeClass) -> HeapBlock {
        let may_have = |stamp: &u64| *stamp == cache.stream();
        let near = cache.take(class, class.size_bytes());
        let again = || self.pool.refill(cache, class, class.size_bytes(), may_have);
        let block = near.or_else(again).unwrap_or_else(|| {
            let record = self.next_record.fetch_add(1, Ordering::SeqCst);
            HeapBlock { address: class.size_bytes(), record }
        });
        assert!(
            !self.in_hand[block.record as usize].swap(true, Ordering::SeqCst),
            "two hands hold {block:?}"
        );
        block
    }

    fn put(&self, cache: OwnerGuard<'_>, class: SizeClass, block: HeapBlock) {
        assert!(self.in_hand[block.record as usize].swap(false, Ordering::SeqCst));
        let mut drained = Vec::new();
        let size_bytes = class.size_bytes();
        let is_in = cache.put(class, size_bytes, block)
            || (self.pool.make_way(cache, class, |stream| stream, &mut drained)
                && cache.put(class, size_bytes, block));
        if !is_in {
            drained.push((block, cache.stream()));
            let counted = cache.count_in(size_bytes) || self.pool.count_in(cache.stream(), size_bytes);
            assert!(counted, "nobody closes the pool here");
        }
        self.back.lock().unwrap().extend(drained);
    }

    fn drain(&self) {
        let mut drained = Vec::new();
        self.pool.drain(|stream| stream, &mut drained);
        self.back.lock().unwrap().extend(drained);
    }

    /// Checks that every block has been returned once.
    fn check_all_back(&self) {
        self.drain();
        assert_eq!(self.pool.granted_bytes(), 0);
        assert_eq!(self.pool.counters().block_count(), self.heap_count().wrapping_neg());
        let mut records: Vec<u32> = self.back.lock().unwrap().iter().map(|(block, _)| block.record).collect();
        records.sort_unstable();
        assert_eq!(records, (0..self.next_record.load(Ordering::SeqCst)).collect::<Vec<_>>());
    }

    /// The number of blocks from the heap; a real heap would have counted them.
    fn heap_count(&self) -> u64 {
        u64::from(self.next_record.load(Ordering::SeqCst))
    }
}

/// The calling thread's access to a cache that it has adopted.
#[allow(unsafe_code)]
fn own(cache: &ThreadCache) -> OwnerGuard<'_> {
    // SAFETY: each thread here uses only the caches that it has adopted, until it hands them over.
    unsafe { cache.own() }
}

fn class(size_bytes: u64) -> SizeClass {
    SizeClass::of(size_bytes).unwrap()
}

#[test]
fn threads_that_cycle_while_another_drains() {
    check(|| {
        let world = World::new();
        let workers = [256, 256, 16 << 10].map(|size_bytes| {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let cache = world.pool.adopt(7).unwrap();
                for _ in 0..6 {
                    let blocks = [(); 2].map(|()| world.take(own(&cache), class(size_bytes)));
                    blocks.into_iter().for_each(|block| world.put(own(&cache), class(size_bytes), block));
                }
                cache.hand_over();
            })
        });
        (0..3).for_each(|_| world.drain());
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        world.check_all_back();
    });
}

#[test]
fn a_producer_and_a_consumer() {
    check(|| {
        let world = World::new();
        let (sender, receiver) = shuttle::sync::mpsc::channel();
        let size = class(32 << 10);
        let producer = thread::spawn({
            let world = Arc::clone(&world);
            move || {
                let cache = world.pool.adopt(7).unwrap();
                (0..24).for_each(|_| sender.send(world.take(own(&cache), size)).unwrap());
            }
        });
        let cache = world.pool.adopt(7).unwrap();
        for block in receiver.iter() {
            world.put(own(&cache), size, block);
            assert!(world.pool.granted_bytes() <= CAP_BYTES);
        }
        producer.join().unwrap();
        world.check_all_back();
    });
}

/// A free during the close is either counted by the close or refused, and never both.
#[test]
fn frees_while_the_front_closes() {
    check(|| {
        let world = World::new();
        let (cache, size) = (world.pool.adopt(7).unwrap(), class(256));
        let blocks: Vec<HeapBlock> = (0..4).map(|_| world.take(own(&cache), size)).collect();
        let worker = thread::spawn({
            let world = Arc::clone(&world);
            move || {
                let cache = own(&cache);
                let counted = |block: &HeapBlock| {
                    let is_in = cache.put(size, 256, *block)
                        || (world.pool.make_way(cache, size, |stream| stream, &mut Vec::new())
                            && cache.put(size, 256, *block));
                    is_in || cache.count_in(256) || world.pool.count_in(7, 256)
                };
                blocks.iter().filter(|block| counted(block)).count() as u64
            }
        });
        let counters = world.pool.close(|stream| stream, &mut Vec::new());
        let counted = worker.join().unwrap();
        assert_eq!(counters.block_count(), counted.wrapping_neg());
        assert!(world.pool.adopt(7).is_none());
    });
}

/// A thread's caches pass to the next thread, with their blocks.
#[test]
fn threads_that_come_and_go() {
    check(|| {
        let world = World::new();
        let workers = [(); 3].map(|()| {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                for stream in [7, 8] {
                    let cache = world.pool.adopt(stream).unwrap();
                    let block = world.take(own(&cache), class(256));
                    world.put(own(&cache), class(256), block);
                    cache.hand_over();
                }
            })
        });
        let mut drained = Vec::new();
        world.pool.purge(|stream| stream == 8, |stream| stream, &mut drained);
        world.back.lock().unwrap().extend(drained);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        world.check_all_back();
    });
}

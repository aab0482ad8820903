//! Threads that allocate and free concurrently on a pool whose limit fits all their blocks, under many random schedules of
//! shuttle: no request is refused, no memory has two owners, and nothing is lost at the end. The whole library runs on the
//! simulator; threads switch where they access the thread caches, the heap's lock or a drain.

#![cfg(gpumem_shuttle)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use gpumem_pool::{BackendKind, Block, Device, MemoryKind, Pool, PoolError, Profile, Stream};
use gpumem_sim::SimConfig;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::sync::atomic::{AtomicU64, Ordering::SeqCst};
use shuttle::thread;
use std::sync::Arc;
use std::sync::atomic::AtomicU64 as Count;

const SCHEDULES: usize = 20;
const PAUSES: usize = 4;
const THREADS: usize = 3;
const ROUNDS: usize = 4;
const FRAME_BYTES: u64 = 2 << 20;

#[derive(Clone, Copy)]
struct Plan {
    /// Options by name.
    conf: &'static str,
    /// The memory reserved before the first request.
    reserved_bytes: u64,
    kind: MemoryKind,
    /// Sizes that threads alternate between.
    sizes_bytes: [u64; 2],
    limit_bytes: u64,
    /// The maximum memory of all threads together.
    claim_bytes: u64,
}

/// No request is refused. If one is, shuttle prints the schedule and ends the process.
fn check(plan: Plan) {
    run(plan, |error| panic!("refused though there is room: {error}"));
}

fn run(plan: Plan, refused: impl Fn(PoolError) + Send + Sync + Clone + 'static) {
    run_with(RandomScheduler::new(SCHEDULES), plan, refused.clone());
    // Also with schedules in which threads pause for long.
    run_with(PctScheduler::new(PAUSES, SCHEDULES), plan, refused);
}

fn run_with(
    scheduler: impl Scheduler + 'static,
    plan: Plan,
    refused: impl Fn(PoolError) + Send + Sync + Clone + 'static,
) {
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 20;
    shuttle::Runner::new(scheduler, config).run(move || run_threads(plan, &refused));
}

fn run_threads(plan: Plan, refused: &(impl Fn(PoolError) + Send + Clone + 'static)) {
    let device = Device::new(&gpumem_sim::driver(SimConfig::new()).unwrap(), 0).unwrap();
    // The driver sees all of shuttle's threads as one, so its context stays current.
    let _bound = device.bind().unwrap();
    let builder =
        Pool::builder(&device).backend(BackendKind::Caching).kind(plan.kind).conf(plan.conf).unwrap();
    let pool = builder.hard_limit(plan.limit_bytes).build().unwrap();
    pool.reserve(plan.reserved_bytes).unwrap();
    let claimed = Arc::new(AtomicU64::new(0));
    let workers = (0..THREADS).map(|number| {
        let (pool, device, claimed, refused) =
            (pool.clone(), device.clone(), Arc::clone(&claimed), refused.clone());
        thread::spawn(move || {
            let stream = Stream::new(&device).unwrap();
            for round in 0..ROUNDS {
                work(&pool, &stream, plan, &claimed, round + number).into_iter().for_each(&refused);
            }
        })
    });
    let workers: Vec<_> = workers.collect();
    pool.trim_to(u64::MAX).unwrap();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    pool.check().unwrap();
    pool.reclaim().unwrap();
    let status = pool.status().unwrap();
    assert!(status.reserved_peak_bytes <= plan.limit_bytes, "{status:?}");
    assert_eq!((status.block_count, status.in_use_bytes, status.reserved_bytes), (0, 0, 0), "{status:?}");
}

/// Reserves the size of its requests, one block or two, in the shared budget. Reports a refused request.
fn work(pool: &Pool, stream: &Stream, plan: Plan, claimed: &AtomicU64, turn: usize) -> Vec<PoolError> {
    let count = 1 + turn % 2;
    let size_bytes = plan.sizes_bytes[turn / 2 % 2];
    let bytes = size_bytes * count as u64;
    let sum = |held: u64| Some(held + bytes).filter(|sum| *sum <= plan.claim_bytes);
    while claimed.fetch_update(SeqCst, SeqCst, sum).is_err() {
        thread::yield_now();
    }
    let asked: Vec<Result<Block, PoolError>> = (0..count).map(|_| pool.alloc(size_bytes, stream)).collect();
    let refused = asked.into_iter().filter_map(Result::err).collect();
    claimed.fetch_sub(bytes, SeqCst);
    refused
}

fn profiles() -> impl Iterator<Item = &'static str> {
    Profile::ALL.iter().map(|profile| &*format!("profile:{profile}").leak())
}

fn large(conf: &'static str, kind: MemoryKind) -> Plan {
    let limit_bytes = 2 * FRAME_BYTES;
    Plan {
        conf,
        reserved_bytes: 0,
        kind,
        sizes_bytes: [FRAME_BYTES; 2],
        limit_bytes,
        claim_bytes: limit_bytes,
    }
}

#[test]
fn no_large_block_is_refused() {
    for conf in profiles() {
        check(large(conf, MemoryKind::Device));
    }
}

#[test]
fn no_host_accessible_block_is_refused() {
    check(large("", MemoryKind::Host));
}

/// Two small blocks may occupy two pages, and a large block needs a third.
#[test]
fn no_block_is_refused_beside_small_blocks_cached_by_others() {
    for conf in profiles() {
        check(mixed(conf));
    }
}

fn mixed(conf: &'static str) -> Plan {
    let sizes_bytes = [FRAME_BYTES / 2, FRAME_BYTES];
    Plan { sizes_bytes, limit_bytes: 3 * FRAME_BYTES, ..large(conf, MemoryKind::Device) }
}

/// Threads cache more of the reserved memory than the heap may grow by: sometimes much is free, sometimes nothing.
#[test]
fn no_block_is_refused_where_threads_cache_reserved_memory() {
    let keeping = "growth_slack:0,growth_slack_max:0,magazine_share:1000";
    check(Plan { reserved_bytes: 3 * FRAME_BYTES, ..mixed(keeping) });
}

/// The model detects a refused request.
#[test]
fn a_limit_that_is_too_low_is_detected() {
    let plan = Plan { limit_bytes: FRAME_BYTES, ..large("", MemoryKind::Device) };
    let count = Arc::new(Count::new(0));
    let counted = Arc::clone(&count);
    run(plan, move |_| {
        counted.fetch_add(1, SeqCst);
    });
    assert!(count.load(SeqCst) > 0);
}

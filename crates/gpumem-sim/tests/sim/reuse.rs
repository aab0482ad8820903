//! The three reuse policies of a pool, in every combination, with a free that has run or is pending.

use super::pools::{RESERVED, THRESHOLD};
use super::*;
use gpumem_sim::Schedule;

const SIZE_BYTES: usize = 20 << 20;
const FOLLOW_EVENTS: CUmemPool_attribute =
    CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES;
const OPPORTUNISTIC: CUmemPool_attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC;
const WAIT: CUmemPool_attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;

/// The enabled policies.
#[derive(Clone, Copy, Debug)]
struct On {
    follow: bool,
    opportunistic: bool,
    wait: bool,
}

impl On {
    fn all() -> impl Iterator<Item = Self> {
        (0..8).map(|bits| Self { follow: bits & 1 != 0, opportunistic: bits & 2 != 0, wait: bits & 4 != 0 })
    }
}

/// A machine with a pool, in which stream `a` has used and freed a block in order.
struct Freed {
    gpu: Machine,
    pool: CUmemoryPool,
    a: CUstream,
    block: u64,
    on: On,
}

impl Freed {
    fn new(schedule: Schedule, on: On, pool_bytes_max: usize, is_blocking: bool) -> Self {
        let gpu = machine(SimConfig::new().schedule(schedule));
        let (pool, a) =
            (gpu.pool_with(pool_bytes_max), if is_blocking { gpu.blocking_stream() } else { gpu.stream() });
        gpu.set(pool, THRESHOLD, u64::MAX);
        gpu.set(pool, FOLLOW_EVENTS, on.follow.into());
        gpu.set(pool, OPPORTUNISTIC, on.opportunistic.into());
        gpu.set(pool, WAIT, on.wait.into());
        let block = gpu.try_alloc_from(pool, a, SIZE_BYTES).unwrap();
        gpu.fill(a, block, 1, SIZE_BYTES);
        gpu.free_on(a, block);
        Self { gpu, pool, a, block, on }
    }

    /// True if a stream's next allocation is the freed block, which the stream then uses. This must be free of findings.
    fn is_reused_on(&self, stream: CUstream) -> bool {
        let address = self.gpu.try_alloc_from(self.pool, stream, SIZE_BYTES).unwrap();
        let reserved = self.gpu.attribute(self.pool, RESERVED);
        assert_eq!(reserved == 32 << 20, address == self.block, "{:?}", self.on);
        self.gpu.fill(stream, address, 2, SIZE_BYTES);
        self.gpu.free_on(stream, address);
        self.gpu.sync(stream);
        assert_eq!(self.gpu.sim().report().findings, [], "{:?}", self.on);
        address == self.block
    }
}

/// Work runs in waits only, or right away.
const SCHEDULES: [(Schedule, bool); 2] = [(Schedule::Late, false), (Schedule::Early, true)];

/// Each schedule, with whether an unsynchronised free has run under it, and each combination of policies.
fn everything() -> impl Iterator<Item = (Schedule, bool, On)> {
    let with_all =
        |(schedule, has_run): (Schedule, bool)| On::all().map(move |on| (schedule.clone(), has_run, on));
    SCHEDULES.into_iter().flat_map(with_all)
}

#[test]
fn a_stream_that_waited_for_the_free_gets_the_block_by_following_events_or_when_it_has_run() {
    for (schedule, has_run, on) in everything() {
        let freed = Freed::new(schedule, on, 0, false);
        let (b, c) = (freed.gpu.stream(), freed.gpu.stream());
        // Ordered through a third stream.
        freed.gpu.order(freed.a, c);
        freed.gpu.order(c, b);
        assert_eq!(freed.is_reused_on(b), on.follow || on.opportunistic && has_run, "{on:?}");
    }
}

#[test]
fn a_stream_that_waited_for_something_earlier_gets_nothing_before_the_free_has_run() {
    for (schedule, has_run, on) in everything() {
        let freed = Freed::new(schedule, on, 0, false);
        let (b, other) = (freed.gpu.stream(), freed.gpu.stream());
        freed.gpu.order(other, b);
        assert_eq!(freed.is_reused_on(b), on.opportunistic && has_run, "{on:?}");
    }
}

#[test]
fn an_event_recorded_before_the_free_orders_nothing_behind_it() {
    let on = On { follow: true, opportunistic: false, wait: false };
    for (schedule, _) in SCHEDULES {
        let freed = Freed::new(schedule, on, 0, false);
        let (gpu, b, event) = (&freed.gpu, freed.gpu.stream(), freed.gpu.event());
        let own = gpu.try_alloc_from(freed.pool, freed.a, SIZE_BYTES).unwrap();
        assert_eq!(own, freed.block);
        // SAFETY: handles are checked by the driver under test.
        unsafe {
            gpu.cuEventRecord(event, freed.a).unwrap();
            gpu.free_on(freed.a, own);
            gpu.cuStreamWaitEvent(b, event, 0).unwrap();
        }
        assert!(!freed.is_reused_on(b));
    }
}

#[test]
fn the_legacy_streams_order_is_followed_too() {
    for (schedule, _) in SCHEDULES {
        for follow in [false, true] {
            let on = On { follow, opportunistic: false, wait: false };
            let freed = Freed::new(schedule.clone(), on, 0, true);
            let scratch = freed.gpu.alloc(1);
            let b = freed.gpu.blocking_stream();
            freed.gpu.fill(null_mut(), scratch, 1, 1);
            // Work that ran right away left no wait in the legacy stream, so the order is unknown.
            let is_known = matches!(schedule, Schedule::Late);
            assert_eq!(freed.is_reused_on(b), follow && is_known, "{schedule}");
            let freed = Freed::new(schedule.clone(), on, 0, true);
            assert_eq!(freed.is_reused_on(null_mut()), follow, "{schedule}");
        }
    }
}

#[test]
fn memory_that_the_host_has_synchronised_with_is_free_for_all() {
    for on in On::all() {
        let freed = Freed::new(Schedule::Late, on, 0, false);
        freed.gpu.sync(freed.a);
        assert!(freed.is_reused_on(freed.gpu.stream()), "{on:?}");
        // The end of another stream's work proves nothing.
        let freed = Freed::new(Schedule::Early, on, 0, false);
        let (b, other) = (freed.gpu.stream(), freed.gpu.stream());
        freed.gpu.sync(other);
        assert_eq!(freed.is_reused_on(b), on.opportunistic, "{on:?}");
    }
}

#[test]
fn a_pool_that_cannot_grow_inserts_a_wait_or_is_out_of_memory() {
    for (schedule, has_run, on) in everything() {
        let freed = Freed::new(schedule, on, 32 << 20, false);
        let b = freed.gpu.stream();
        if on.wait || on.opportunistic && has_run {
            assert!(freed.is_reused_on(b), "{on:?}");
        } else {
            let refused = freed.gpu.try_alloc_from(freed.pool, b, SIZE_BYTES);
            assert_eq!(code(refused), CUresult::CUDA_ERROR_OUT_OF_MEMORY, "{on:?}");
        }
    }
}

#[test]
fn a_switch_turned_on_again_frees_what_has_run() {
    let on = On { follow: false, opportunistic: false, wait: false };
    let freed = Freed::new(Schedule::Early, on, 0, false);
    freed.gpu.set(freed.pool, OPPORTUNISTIC, 1);
    assert!(freed.is_reused_on(freed.gpu.stream()));
}

#[test]
fn unused_memory_is_released_under_all_policies() {
    for on in On::all() {
        let freed = Freed::new(Schedule::Early, on, 0, false);
        // SAFETY: handles are checked by the driver under test.
        unsafe { freed.gpu.cuMemPoolTrimTo(freed.pool, 0).unwrap() };
        assert_eq!(freed.gpu.attribute(freed.pool, RESERVED), 0, "{on:?}");
        // A pool ends with its last block, even without a synchronisation.
        let freed = Freed::new(Schedule::Late, on, 0, false);
        // SAFETY: handles are checked by the driver under test.
        unsafe { freed.gpu.cuMemPoolDestroy(freed.pool).unwrap() };
        freed.gpu.sync(freed.a);
        assert_eq!(freed.gpu.try_alloc(8 << 30).map(|_| ()), Ok(()), "{on:?}");
    }
}

/// Under every seed, early reuse of a block is free of races, and the block has the contents written by its new owner.
#[test]
fn a_block_that_changes_hands_before_its_free_has_run_is_in_order() {
    for seed in 0..200 {
        let gpu = seeded(seed);
        let (a, b, out) = (gpu.stream(), gpu.stream(), gpu.alloc(2));
        for _ in 0..4 {
            let first = gpu.alloc_on(a, SIZE_BYTES);
            gpu.fill(a, first, 1, SIZE_BYTES);
            gpu.copy(a, out, first, 1);
            gpu.free_on(a, first);
            gpu.order(a, b);
            let second = gpu.alloc_on(b, SIZE_BYTES);
            assert_eq!(second, first, "seed {seed}");
            gpu.fill(b, second, 2, SIZE_BYTES);
            gpu.copy(b, out + 1, second, 1);
            gpu.free_on(b, second);
            gpu.order(b, a);
        }
        assert_eq!(gpu.download(a, out, 2), [1, 2], "seed {seed}");
        assert_eq!(gpu.sim().report().findings, [], "seed {seed}");
    }
}

//! The hard limit: exact, and never an obstacle because of memory that is being freed. For many threads, with a driver that
//! counts, see the suites `limits` and `limit_stress` of the workspace.

use crate::fixture::{Fixture, on_device_memory, on_each_backend, small};
use gpumem_pool::{
    BackendKind, BadArgument, ConfigError, Device, Limit, Pool, PoolError, Stream, Unsupported,
};

#[test]
fn the_limit_is_exact() {
    on_each_backend(&small(), |fixture| {
        let (pool, stream) = (fixture.builder().hard_limit(4 << 20).build().unwrap(), fixture.stream());
        let held = pool.alloc(3 << 20, &stream).unwrap();
        let error = pool.alloc((1 << 20) + 1, &stream).unwrap_err();
        let PoolError::LimitReached(report) = &error else { panic!("{error:?}") };
        assert_eq!((report.requested_bytes, report.in_use_bytes), ((1 << 20) + 1, 3 << 20));
        assert_eq!((report.limit_bytes, report.block_count), (Some(4 << 20), 1));
        // On native the limit of a pool that is built cannot be raised.
        let is_fixed = fixture.backend == BackendKind::Native;
        let second = if is_fixed { "" } else { ", or Pool::set_hard_limit" };
        assert!(error.to_string().contains(&format!("(PoolBuilder::hard_limit{second})")), "{error}");
        let rest = pool.alloc(1 << 20, &stream).unwrap();
        assert!(matches!(pool.alloc(1, &stream), Err(PoolError::LimitReached { .. })));
        drop(pool.alloc(0, &stream).unwrap());
        drop(held);
        drop(pool.alloc(3 << 20, &stream).unwrap());
        drop(rest);
        assert_eq!(pool.status().unwrap().hard_limit_bytes, Some(4 << 20));
        assert_eq!(pool.status().unwrap().in_use_peak_bytes, 4 << 20);
    });
}

#[test]
fn a_share_is_of_the_device() {
    on_device_memory(&small(), |fixture| {
        let pool = fixture.builder().hard_limit(Limit::Percent(50.0)).build().unwrap();
        assert_eq!(pool.status().unwrap().hard_limit_bytes, Some(512 << 20));
        let stream = fixture.stream();
        assert!(matches!(pool.alloc((512 << 20) + 1, &stream), Err(PoolError::LimitReached { .. })));
        drop(pool.alloc(512 << 20, &stream).unwrap());
    });
}

/// Memory that the pool itself has reserved counts as free for a share of free memory.
#[test]
fn a_share_of_free_memory_is_of_what_others_leave() {
    on_device_memory(&small(), |fixture| {
        let (other, stream) = (fixture.pool(), fixture.stream());
        let _held = other.alloc(512 << 20, &stream).unwrap();
        let free_bytes = fixture.device.memory_info().unwrap().free_bytes;
        let pool = fixture.builder().hard_limit("50%free").soft_limit("25%free").build().unwrap();
        let limits = || {
            let status = pool.status().unwrap();
            (status.hard_limit_bytes.unwrap(), status.soft_limit_bytes.unwrap())
        };
        assert_eq!(limits(), (free_bytes / 2, free_bytes / 4));
        assert_eq!(pool.private("50%free").unwrap().status().unwrap().hard_limit_bytes, Some(free_bytes / 2));
        let _own = pool.alloc(128 << 20, &stream).unwrap();
        let reserved_bytes = pool.status().unwrap().reserved_bytes;
        let free_bytes = fixture.device.memory_info().unwrap().free_bytes + reserved_bytes;
        pool.set_hard_limit(Limit::PercentFree(37.5)).unwrap();
        pool.set_soft_limit("25 % free").unwrap();
        assert_eq!(limits(), (free_bytes / 8 * 3, free_bytes / 4));
    });
}

#[test]
fn a_limit_that_no_block_fits_into_is_an_error() {
    on_device_memory(&small(), |fixture| {
        for limit in
            [Limit::Bytes(0), Limit::Bytes((2 << 20) - 1), Limit::Percent(0.0), "1KiB".parse().unwrap()]
        {
            let error = fixture.builder().hard_limit(limit).build().unwrap_err();
            assert!(
                matches!(error, PoolError::BadArgument(BadArgument::LimitTooSmall { minimum_bytes, .. }) if minimum_bytes == 2 << 20)
            );
            let text = error.to_string();
            assert!(text.contains("for pool ") && text.contains("the minimum is 2.000 MiB"), "{text}");
        }
        for share in [f64::NAN, 200.0, -1.0] {
            assert!(matches!(
                fixture.builder().hard_limit(Limit::Percent(share)).build(),
                Err(PoolError::Config(ConfigError::LimitSyntax { .. }))
            ));
        }
        drop(fixture.builder().hard_limit(2 << 20).soft_limit(0).build().unwrap());
        drop(fixture.builder().hard_limit(u64::MAX).soft_limit(u64::MAX).build().unwrap());
    });
}

/// A block dropped with pending work makes room right away, on every stream.
#[test]
fn a_queued_free_makes_room() {
    on_each_backend(&small(), |fixture| {
        let pool = fixture.builder().hard_limit(64 << 20).build().unwrap();
        for round in 0..12 {
            let stream = fixture.stream();
            let (block, busy) =
                (pool.alloc((63 - round) << 20, &stream).unwrap(), pool.alloc(64, &stream).unwrap());
            fixture.fill(&busy, 1, &stream);
            drop(block);
        }
        assert!(pool.status().unwrap().in_use_peak_bytes <= 64 << 20);
    });
}

#[test]
fn the_limit_may_change() {
    on_each_backend(&small(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let held = pool.alloc(8 << 20, &stream).unwrap();
        pool.set_hard_limit(6 << 20).unwrap();
        assert_eq!(pool.status().unwrap().hard_limit_bytes, Some(6 << 20));
        let error = pool.alloc(1, &stream).unwrap_err();
        let PoolError::LimitReached(report) = &error else { panic!("{error:?}") };
        assert_eq!((report.limit_bytes, report.in_use_bytes), (Some(6 << 20), 8 << 20));
        pool.check().unwrap();
        drop(held);
        stream.synchronize().unwrap();
        let held = pool.alloc(6 << 20, &stream).unwrap();
        assert!(matches!(pool.alloc(1, &stream), Err(PoolError::LimitReached { .. })));
        assert!(pool.status().unwrap().reserved_bytes <= 6 << 20 || fixture.backend == BackendKind::Native);
        pool.set_hard_limit(512 << 20).unwrap();
        let more = pool.alloc(300 << 20, &stream).unwrap();
        assert!(matches!(pool.alloc(300 << 20, &stream), Err(PoolError::LimitReached { .. })));
        pool.set_hard_limit(u64::MAX).unwrap();
        assert_eq!(pool.status().unwrap().hard_limit_bytes, None);
        let most = pool.alloc(300 << 20, &stream).unwrap();
        let error = pool.set_hard_limit((2 << 20) - 1).unwrap_err();
        assert!(matches!(error, PoolError::BadArgument(BadArgument::LimitTooSmall { .. })), "{error:?}");
        assert_eq!(pool.status().unwrap().hard_limit_bytes, None);
        drop((held, more, most));
        pool.check().unwrap();
    });
}

/// A limit one byte below the reserved idle memory releases memory right away.
#[test]
fn a_limit_just_below_the_reserved_memory_takes_effect() {
    on_each_backend(&small(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        drop(pool.alloc(8 << 20, &stream).unwrap());
        stream.synchronize().unwrap();
        let reserved_bytes = pool.status().unwrap().reserved_bytes;
        if fixture.backend == BackendKind::Caching {
            pool.set_hard_limit(reserved_bytes - 1).unwrap();
            assert!(pool.status().unwrap().reserved_bytes < reserved_bytes);
        }
    });
}

/// True if the backend is `native`. Checks that it refuses a limit above the one that the pool was built with.
fn keeps_its_limit(fixture: &Fixture, pool: &Pool) -> bool {
    let is_native = fixture.backend == BackendKind::Native;
    if is_native {
        let error = pool.set_hard_limit(128 << 20).unwrap_err();
        assert!(matches!(error, PoolError::Unsupported(Unsupported::OnBackend { .. })), "{error:?}");
        assert!(error.to_string().contains("use the backend `caching` or `none`"), "{error}");
        assert_eq!(pool.status().unwrap().hard_limit_bytes, Some(64 << 20));
    }
    is_native
}

#[test]
fn a_limit_that_a_pool_was_built_with_may_change() {
    on_each_backend(&small(), |fixture| {
        let (pool, stream) = (fixture.builder().hard_limit(64 << 20).build().unwrap(), fixture.stream());
        pool.set_hard_limit(32 << 20).unwrap();
        assert!(matches!(pool.alloc(48 << 20, &stream), Err(PoolError::LimitReached { .. })));
        pool.set_hard_limit(64 << 20).unwrap();
        drop(pool.alloc(48 << 20, &stream).unwrap());
        if keeps_its_limit(fixture, &pool) {
            return;
        }
        pool.set_hard_limit(128 << 20).unwrap();
        let held = pool.alloc(100 << 20, &stream).unwrap();
        assert!(matches!(pool.alloc(29 << 20, &stream), Err(PoolError::LimitReached { .. })));
        pool.set_hard_limit(u64::MAX).unwrap();
        drop((held, pool.alloc(500 << 20, &stream).unwrap()));
    });
}

/// Memory above a raised limit is accessible to peers, subject to the soft limit, and counted in the peak.
#[test]
fn memory_above_a_raised_limit_is_like_the_rest() {
    on_each_backend(&small().devices(2), |fixture| {
        let peer = Device::new(&fixture.driver, 1).unwrap();
        let pool = fixture
            .builder()
            .hard_limit(64 << 20)
            .soft_limit(48 << 20)
            .peer_access(std::slice::from_ref(&peer));
        let (pool, stream, away) = (pool.build().unwrap(), fixture.stream(), Stream::new(&peer).unwrap());
        let first = pool.alloc(60 << 20, &stream).unwrap();
        if keeps_its_limit(fixture, &pool) {
            return;
        }
        pool.set_hard_limit(128 << 20).unwrap();
        let (second, small) = (pool.alloc(50 << 20, &stream).unwrap(), pool.alloc(5000, &stream).unwrap());
        assert!(pool.status().unwrap().reserved_peak_bytes >= 110 << 20);
        away.wait_for(&stream).unwrap();
        fixture.fill(&small, 7, &away);
        small.record_use(&away);
        stream.wait_for(&away).unwrap();
        assert!(fixture.holds(&small, 7, &stream));
        drop((first, second, small));
        away.synchronize().unwrap();
        fixture.device.synchronize().unwrap();
        assert!(pool.status().unwrap().reserved_bytes <= 48 << 20, "{}", pool.status().unwrap());
        pool.reset_peaks().unwrap();
        assert!(pool.status().unwrap().reserved_peak_bytes <= 48 << 20);
    });
}

#[test]
fn a_share_that_is_set_later_is_of_the_device() {
    on_device_memory(&small(), |fixture| {
        let pool = fixture.pool();
        pool.set_hard_limit(Limit::Percent(50.0)).unwrap();
        assert_eq!(pool.status().unwrap().hard_limit_bytes, Some(512 << 20));
        assert!(matches!(
            pool.set_hard_limit(Limit::Percent(0.0)),
            Err(PoolError::BadArgument(BadArgument::LimitTooSmall { .. }))
        ));
        assert!(matches!(
            pool.set_soft_limit(Limit::Percent(-1.0)),
            Err(PoolError::Config(ConfigError::LimitSyntax { .. }))
        ));
        assert_eq!(pool.status().unwrap().hard_limit_bytes, Some(512 << 20));
    });
}

/// Memory of private pools counts, whether or not a limit was set when they were created.
#[test]
fn a_limit_that_is_set_later_holds_for_private_pools_too() {
    on_each_backend(&small(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let private = pool.private(64 << 20).unwrap();
        let held = private.alloc(40 << 20, &stream).unwrap();
        pool.set_hard_limit(48 << 20).unwrap();
        assert!(matches!(pool.alloc(16 << 20, &stream), Err(PoolError::LimitReached { .. })));
        assert!(matches!(private.alloc(16 << 20, &stream), Err(PoolError::LimitReached { .. })));
        drop(held);
        drop(pool.alloc(40 << 20, &stream).unwrap());
        private.set_hard_limit(8 << 20).unwrap();
        assert!(matches!(private.alloc(9 << 20, &stream), Err(PoolError::LimitReached { .. })));
    });
}

/// Eight threads allocate while the limit goes up and down. Once the pool is below the lower limit, it stays there.
#[test]
fn a_limit_that_changes_is_exact_for_all_threads() {
    const LOW_BYTES: u64 = 8 << 20;
    on_each_backend(&small(), |fixture| {
        let pool = fixture.pool();
        // By the pool's own counters.
        let held_bytes = || {
            let status = pool.status().unwrap();
            if fixture.backend == BackendKind::Caching { status.reserved_bytes } else { status.in_use_bytes }
        };
        let allocate = |thread: u64| {
            let (stream, mut held) = (fixture.stream(), Vec::new());
            for step in thread..thread + 40 {
                match pool.alloc((1 + step % 5) << 20, &stream) {
                    Ok(block) => held.push(block),
                    Err(PoolError::LimitReached(_)) => held.clear(),
                    Err(other) => panic!("{other}"),
                }
                if step % 3 == 0 {
                    held.pop();
                }
            }
        };
        let while_threads_allocate = |look: &dyn Fn()| {
            std::thread::scope(|scope| {
                let threads = [0, 1, 2, 3, 4, 5, 6, 7].map(|thread| scope.spawn(move || allocate(thread)));
                while threads.iter().any(|thread| !thread.is_finished()) {
                    look();
                }
            });
        };
        for _ in 0..5 {
            pool.set_hard_limit(64 << 20).unwrap();
            while_threads_allocate(&|| {
                std::thread::sleep(std::time::Duration::from_millis(1));
                pool.set_hard_limit(LOW_BYTES).unwrap();
            });
            // The threads may have been faster than this one.
            pool.set_hard_limit(LOW_BYTES).unwrap();
            // Memory from before the change stays usable as long as the threads' calls prevent its release, and requests admitted
            // under the higher limit may still complete. So the check comes only now, with no call in progress.
            fixture.device.synchronize().unwrap();
            pool.trim_to(LOW_BYTES).unwrap();
            while_threads_allocate(&|| assert!(held_bytes() <= LOW_BYTES));
        }
    });
}

#[test]
fn a_soft_limit_may_change() {
    on_each_backend(&small(), |fixture| {
        let (pool, stream) = (fixture.pool(), fixture.stream());
        let fill = || drop([(); 4].map(|()| pool.alloc(16 << 20, &stream).unwrap()));
        fill();
        stream.synchronize().unwrap();
        let kept_bytes = pool.status().unwrap().reserved_bytes;
        assert!(kept_bytes >= 64 << 20 || fixture.backend == BackendKind::None);
        pool.set_soft_limit(16 << 20).unwrap();
        assert_eq!(pool.status().unwrap().soft_limit_bytes, Some(16 << 20));
        assert!(pool.status().unwrap().reserved_bytes <= 32 << 20);
        fill();
        stream.synchronize().unwrap();
        assert!(pool.status().unwrap().reserved_bytes <= 32 << 20);
        pool.set_soft_limit(u64::MAX).unwrap();
        fill();
        stream.synchronize().unwrap();
        assert_eq!(pool.status().unwrap().reserved_bytes, kept_bytes);
        assert_eq!(pool.status().unwrap().soft_limit_bytes, None);
    });
}

/// A request that found the driver's pool full is tried again if another call has freed a block meanwhile: its place may suffice.
#[cfg(feature = "backend-native")]
#[test]
fn a_request_is_tried_again_while_blocks_are_freed() {
    let driver = gpumem_sim::driver(small()).unwrap();
    // SAFETY: the function calls the one that it replaces, or fails without doing anything.
    let driver = unsafe { driver.with_table(refusing::install) };
    let device = Device::new(&driver, 0).unwrap();
    let builder = Pool::builder(&device).backend(BackendKind::Native);
    let pool = builder.hard_limit(256 << 20).build().unwrap();
    let stream = Stream::new(&device).unwrap();
    let other = pool.alloc(8 << 20, &stream).unwrap();
    refusing::refuse_twice(Some(other));
    drop(pool.alloc(refusing::SIZE_BYTES, &stream).unwrap());
    refusing::refuse_twice(None);
    let refused = pool.alloc(refusing::SIZE_BYTES, &stream);
    assert!(matches!(refused, Err(PoolError::LimitReached(_) | PoolError::OutOfMemory(_))), "{refused:?}");
}

/// A driver whose pool refuses the next two requests of one size. With the second refusal a block is freed, as by another thread.
#[cfg(feature = "backend-native")]
mod refusing {
    use gpumem_pool::Block;
    use gpumem_pool::sys::types::{CUdeviceptr, CUmemoryPool, CUstream};
    use gpumem_pool::sys::{CUresult, Table};
    use std::cell::{Cell, RefCell};

    pub(super) const SIZE_BYTES: u64 = 24 << 20;

    type Alloc = unsafe extern "C" fn(*mut CUdeviceptr, usize, CUmemoryPool, CUstream) -> CUresult;

    thread_local! {
        static REAL: Cell<Option<Alloc>> = const { Cell::new(None) };
        static REFUSED: Cell<u32> = const { Cell::new(2) };
        static FREED: RefCell<Option<Block>> = const { RefCell::new(None) };
    }

    pub(super) fn refuse_twice(freed: Option<Block>) {
        REFUSED.set(0);
        FREED.set(freed);
    }

    pub(super) fn install(table: &mut Table) {
        REAL.set(table.cuMemAllocFromPoolAsync);
        table.cuMemAllocFromPoolAsync = Some(alloc);
    }

    unsafe extern "C" fn alloc(
        address: *mut CUdeviceptr,
        size: usize,
        pool: CUmemoryPool,
        stream: CUstream,
    ) -> CUresult {
        if size as u64 == SIZE_BYTES && REFUSED.get() < 2 {
            REFUSED.set(REFUSED.get() + 1);
            if REFUSED.get() == 2 {
                drop(FREED.take());
            }
            return CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        }
        let Some(real) = REAL.get() else { return CUresult::CUDA_ERROR_NOT_INITIALIZED };
        // SAFETY: the caller guarantees what this function requires.
        unsafe { real(address, size, pool, stream) }
    }
}

//! Private pools, within the limit of another pool.

use crate::fixture::{on_device_memory, on_each_backend, small};
use gpumem_pool::{BackendKind, BadArgument, Block, ConfigError, Limit, Pool, PoolError};

const MIB: u64 = 1 << 20;

fn is_refused_by(result: Result<Block, PoolError>, limit_bytes: u64) -> bool {
    matches!(result, Err(PoolError::LimitReached(report)) if report.limit_bytes == Some(limit_bytes))
}

fn held(pool: &Pool) -> u64 {
    pool.check().unwrap();
    let status = pool.status().unwrap();
    assert!(status.in_use_bytes <= status.reserved_bytes);
    match pool.backend().to_string().as_str() {
        "caching" => status.reserved_bytes,
        _ => status.in_use_bytes,
    }
}

#[test]
fn a_quota_also_counts_against_the_parent() {
    on_device_memory(&small(), |fixture| {
        let pool = fixture.builder().hard_limit(64 * MIB).build().unwrap();
        let (left, right) = (pool.private(40 * MIB).unwrap(), pool.private(Limit::Percent(90.0)).unwrap());
        let stream = fixture.stream();
        assert_eq!(
            (left.backend(), left.status().unwrap().hard_limit_bytes),
            (pool.backend(), Some(40 * MIB))
        );
        assert_eq!(right.status().unwrap().hard_limit_bytes, Some(64 * MIB), "cut down to the whole");

        let a = left.alloc(30 * MIB, &stream).unwrap();
        assert!(is_refused_by(left.alloc(20 * MIB, &stream), 40 * MIB));
        assert!(is_refused_by(pool.alloc(40 * MIB, &stream), 64 * MIB));
        let b = pool.alloc(20 * MIB, &stream).unwrap();
        assert!(is_refused_by(right.alloc(20 * MIB, &stream), 64 * MIB));
        let c = right.alloc(10 * MIB, &stream).unwrap();
        let statuses = [&pool, &left, &right].map(|pool| pool.status().unwrap().in_use_bytes);
        assert_eq!(statuses, [20 * MIB, 30 * MIB, 10 * MIB], "each counts its own");
        assert!(held(&pool) + held(&left) + held(&right) <= 64 * MIB);
        for (value, block) in [&a, &b, &c].into_iter().enumerate() {
            fixture.fill(block, value as u8, &stream);
        }
        for (value, block) in [&a, &b, &c].into_iter().enumerate() {
            assert!(fixture.holds(block, value as u8, &stream));
        }
        // Memory cached by one pool does not prevent a request of another.
        drop((a, b));
        let d = right.alloc(50 * MIB, &stream).unwrap();
        assert!(held(&pool) + held(&left) + held(&right) <= 64 * MIB);
        drop((c, d));
    });
}

/// A request that would fit below the limit of the whole, but whose page does not, names that limit and not the quota.
#[test]
fn the_limit_that_refuses_a_page_is_named() {
    on_device_memory(&small(), |fixture| {
        let pool = fixture.builder().hard_limit(21 * MIB).build().unwrap();
        if pool.backend() != BackendKind::Caching {
            return;
        }
        let (part, stream) = (pool.private(16 * MIB).unwrap(), fixture.stream());
        let block = pool.alloc(20 * MIB, &stream).unwrap();
        assert!(is_refused_by(part.alloc(512 << 10, &stream), 21 * MIB));
        drop(block);
    });
}

/// Memory of one pool in a thread cache is released for another pool too.
#[test]
fn small_blocks_of_one_make_room_for_another() {
    on_each_backend(&small(), |fixture| {
        let pool = fixture.builder().hard_limit(2 * MIB).build().unwrap();
        let (inner, stream) = (pool.private(2 * MIB).unwrap(), fixture.stream());
        for _ in 0..3 {
            drop(inner.alloc(1000, &stream).unwrap());
            drop(pool.alloc(1000, &stream).unwrap());
        }
    });
}

/// Unused memory of other pools under the limit does not prevent a reservation.
#[test]
fn a_reservation_reclaims_memory_cached_by_other_pools() {
    on_each_backend(&small(), |fixture| {
        let (pool, stream) = (fixture.builder().hard_limit(48 * MIB).build().unwrap(), fixture.stream());
        let private = pool.private(32 * MIB).unwrap();
        drop(private.alloc(30 * MIB, &stream).unwrap());
        pool.reserve(40 * MIB).unwrap();
        drop(pool.alloc(40 * MIB, &stream).unwrap());
        let _held = private.alloc(20 * MIB, &stream).unwrap();
        assert!(fixture.backend != BackendKind::Caching || pool.reserve(40 * MIB).is_err());
    });
}

#[test]
fn an_ended_pool_leaves_its_memory_to_others() {
    on_each_backend(&small(), |fixture| {
        let pool = fixture.builder().hard_limit(32 * MIB).build().unwrap();
        let stream = fixture.stream();
        for round in 0..5 {
            let inner = pool.private(32 * MIB).unwrap().private(24 * MIB).unwrap();
            let block = inner.alloc(24 * MIB, &stream).unwrap();
            fixture.fill(&block, round, &stream);
            assert!(is_refused_by(inner.alloc(MIB, &stream), 24 * MIB));
            assert!(is_refused_by(pool.alloc(16 * MIB, &stream), 32 * MIB));
            drop(inner);
            drop(block);
            fixture.device.synchronize().unwrap();
            drop(pool.alloc(30 * MIB, &stream).unwrap());
        }
        let inner = pool.private(16 * MIB).unwrap();
        drop(pool);
        drop(inner.alloc(16 * MIB, &stream).unwrap());
    });
}

#[test]
fn a_pool_without_a_limit_has_private_pools_too() {
    on_device_memory(&small(), |fixture| {
        let pool = fixture.pool();
        let inner = pool.private(8 * MIB).unwrap();
        let stream = fixture.stream();
        assert!(is_refused_by(inner.alloc(9 * MIB, &stream), 8 * MIB));
        drop(pool.alloc(512 * MIB, &stream).unwrap());
        drop(inner.alloc(8 * MIB, &stream).unwrap());
        assert!(matches!(pool.private(1), Err(PoolError::BadArgument(BadArgument::LimitTooSmall { .. }))));
        assert!(matches!(
            pool.private(Limit::Percent(101.0)),
            Err(PoolError::Config(ConfigError::LimitSyntax { .. }))
        ));
    });
}

#[test]
fn threads_can_not_pass_the_shared_limit() {
    on_each_backend(&small(), |fixture| {
        let pool = fixture.builder().hard_limit(48 * MIB).build().unwrap();
        let members = [pool.clone(), pool.private(32 * MIB).unwrap(), pool.private(32 * MIB).unwrap()];
        std::thread::scope(|scope| {
            for (number, member) in members.iter().enumerate() {
                let stream = fixture.stream();
                scope.spawn(move || {
                    for round in 0..30 {
                        let size_bytes = (3 + (number as u64 * 7 + round * 5) % 20) * MIB;
                        let block = member.alloc(size_bytes, &stream);
                        assert!(
                            block.is_ok()
                                || matches!(
                                    block,
                                    Err(PoolError::LimitReached { .. } | PoolError::OutOfMemory { .. })
                                )
                        );
                    }
                });
            }
        });
        assert!(members.iter().map(held).sum::<u64>() <= 48 * MIB);
        members.iter().for_each(|member| member.reclaim().map(drop).unwrap());
        let all = [(); 3].map(|()| fixture.stream());
        let blocks: Vec<Block> = members
            .iter()
            .zip(&all)
            .map(|(member, stream)| member.alloc(16 * MIB, stream).unwrap())
            .collect();
        drop(blocks);
    });
}

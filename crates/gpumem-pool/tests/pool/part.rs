//! Parts of a pool, which sleep apart from the rest.

#![forbid(unsafe_code)]

use crate::fixture::{on_each_backend, small};
use gpumem_pool::{BackendKind, Device, DeviceError, Keep, Pool, PoolError, Stream};

const MIB: u64 = 1 << 20;

fn caching() -> (Pool, Stream) {
    let device = Device::new(&gpumem_sim::driver(small()).unwrap(), 0).unwrap();
    let builder = Pool::builder(&device).backend(BackendKind::Caching).name("server");
    (builder.build().unwrap(), Stream::new(&device).unwrap())
}

#[test]
fn a_part_is_a_pool_of_its_own_beneath_the_limit() {
    on_each_backend(&small(), |fixture| {
        let pool = fixture.builder().name("server").hard_limit(64 * MIB).build().unwrap();
        let stream = fixture.stream();
        let part = pool.part("weights").unwrap();
        assert_eq!(pool.part("weights").unwrap().id(), part.id());
        assert_ne!(pool.part("cache").unwrap().id(), part.id());
        assert_eq!((part.name(), part.backend()), ("server/weights", pool.backend()));
        let block = part.alloc(40 * MIB, &stream).unwrap();
        assert_eq!([&pool, &part].map(|pool| pool.status().unwrap().in_use_bytes), [0, 40 * MIB]);
        for refused in [&pool, &part] {
            let error = refused.alloc(40 * MIB, &stream).unwrap_err();
            assert!(
                matches!(&error, PoolError::LimitReached(report) if report.limit_bytes == Some(64 * MIB)),
                "{error}"
            );
        }
        drop(block);
        // What a part has cached does not prevent a request of the rest.
        drop(pool.alloc(40 * MIB, &stream).unwrap());
    });
}

#[test]
fn parts_sleep_apart_and_keep_their_contents() {
    let (pool, stream) = caching();
    let mut blocks =
        ["weights", "cache", "scratch"].map(|name| pool.part(name).unwrap().alloc(6 * MIB, &stream).unwrap());
    let mut of_pool = pool.alloc(6 * MIB, &stream).unwrap();
    for block in blocks.iter_mut().chain([&mut of_pool]) {
        block.fill(0..6 * MIB, 7_u8, &stream).unwrap();
    }
    // A name that occurs twice is one part.
    let slept = pool.sleep_parts(["weights", "cache", "weights"], Keep::OnHost).unwrap();
    assert_eq!((slept.copied_bytes, slept.kept_bytes), (12 * MIB, 0));
    assert!(slept.released_bytes >= 12 * MIB);
    for block in &mut blocks[..2] {
        assert!(matches!(
            block.fill(0..4, 0_u8, &stream),
            Err(PoolError::Device(DeviceError::Asleep { .. }))
        ));
    }
    assert!(matches!(
        pool.part("cache").unwrap().alloc(1, &stream),
        Err(PoolError::Device(DeviceError::Asleep { .. }))
    ));
    assert!(!pool.is_asleep() && !pool.part("scratch").unwrap().is_asleep());
    drop(pool.alloc(9 * MIB, &stream).unwrap());
    pool.sleep_parts(["scratch"], Keep::Nothing).unwrap();

    let woken = pool.wake_parts(["scratch", "weights", "cache", "cache"]).unwrap();
    assert_eq!(woken.copied_bytes, 12 * MIB);
    assert_eq!(pool.wake_parts(["weights"]).unwrap().created_bytes, 0, "it is awake");
    let bytes = blocks.iter().chain([&of_pool]).map(|block| {
        let mut bytes = vec![1_u8; 6 << 20];
        block.copy_to_host(0, &mut bytes, &stream).unwrap();
        bytes.dedup();
        bytes
    });
    assert_eq!(bytes.collect::<Vec<_>>(), [[7], [7], [0], [7]]);
}

#[test]
fn an_unknown_name_changes_nothing() {
    let (pool, _) = caching();
    let text = |error: PoolError| error.to_string();
    assert_eq!(
        text(pool.sleep_parts(["wieghts"], Keep::OnHost).unwrap_err()),
        "the pool server has no part \"wieghts\"; it has none: call Pool::part first"
    );
    let parts = ["weights", "cache"].map(|name| pool.part(name).unwrap());
    for refused in [
        pool.sleep_parts(["weights", "cahce"], Keep::Nothing).map(drop),
        pool.wake_parts(["weights", "cahce"]).map(drop),
    ] {
        assert_eq!(
            text(refused.unwrap_err()),
            "the pool server has no part \"cahce\"; its parts are cache, weights"
        );
    }
    assert!(parts.iter().all(|part| !part.is_asleep()));
    assert_eq!(pool.sleep_parts([], Keep::OnHost).unwrap().released_bytes, 0);
}

/// The parts before one that cannot sleep wake again.
#[test]
fn all_parts_of_a_call_sleep_or_none() {
    let (pool, stream) = caching();
    let parts = ["a", "b", "c"].map(|name| pool.part(name).unwrap());
    let mut block = parts[0].alloc(4 * MIB, &stream).unwrap();
    block.fill(0..4 * MIB, 9_u8, &stream).unwrap();
    parts[1].sleep(Keep::Nothing).unwrap();
    let error = pool.sleep_parts(["a", "b", "c"], Keep::OnHost).unwrap_err();
    assert!(error.to_string().starts_with("the pool server/b cannot sleep: it sleeps already"), "{error}");
    assert_eq!(parts.each_ref().map(Pool::is_asleep), [false, true, false]);
    let mut byte = [0_u8];
    block.copy_to_host(4 * MIB - 1, &mut byte, &stream).unwrap();
    assert_eq!(byte, [9]);
}

#[test]
fn a_part_lives_as_long_as_the_pool_or_a_block_of_it() {
    let (pool, stream) = caching();
    let device = pool.device().clone();
    let part = pool.part("weights").unwrap();
    let (of_pool, of_part) = (pool.alloc(MIB, &stream).unwrap(), part.alloc(MIB, &stream).unwrap());
    let names = || Pool::list(&device).into_iter().map(|pool| pool.name).collect::<Vec<_>>();
    drop((pool, part));
    assert_eq!(names(), ["server", "server/weights"]);
    drop(of_pool);
    assert_eq!(names(), ["server/weights"], "its block lives");
    drop(of_part);
    assert!(names().is_empty());
}

/// One part per request: those that nothing uses are forgotten, and the others stay.
#[test]
fn parts_that_come_and_go_are_forgotten() {
    let (pool, stream) = caching();
    let held = pool.part("held").unwrap();
    let asleep = pool.part("asleep").unwrap();
    let ids = [&held, &asleep].map(Pool::id);
    asleep.sleep(Keep::Nothing).unwrap();
    drop(asleep);
    let mut growing = pool.part("growing").unwrap().growable(4 * MIB, &stream).unwrap();
    let block = pool.part("block").unwrap().alloc(MIB, &stream).unwrap();
    for request in 0..20_000 {
        let part = pool.part(&format!("request {request}")).unwrap();
        if request % 100 == 0 {
            drop(part.alloc(MIB, &stream).unwrap());
            drop(part);
            let (listed, private) =
                (Pool::list(pool.device()).len(), pool.status().unwrap().private_pools.len());
            assert!(listed < 200 && private < 200, "{listed} pools, {private} in the status");
        }
    }
    assert_eq!(["held", "asleep"].map(|name| pool.part(name).unwrap().id()), ids);
    assert!(pool.part("asleep").unwrap().is_asleep());
    growing.grow_to(3 * MIB).unwrap();
    let in_use = ["block", "growing"].map(|name| pool.part(name).unwrap().status().unwrap().in_use_bytes);
    assert!(in_use[0] == MIB && in_use[1] >= 3 * MIB, "{in_use:?}");
    drop((block, growing));
    pool.sleep_parts(["held", "block"], Keep::Nothing).unwrap();
    pool.check().unwrap();
}

//! The adaptor that lists live blocks.

use super::MIB;
use crate::fixture::{on_each_backend, small};
use gpumem_pool::adaptor::Tracking;
use std::sync::{Arc, Mutex};

#[test]
fn live_blocks_are_listed() {
    on_each_backend(&small(), |fixture| {
        let reports = Arc::new(Mutex::new(Vec::new()));
        let report_to = reports.clone();
        let tracking = Tracking::new().on_end(move |live| report_to.lock().unwrap().push(live.clone()));
        let tracking = Arc::new(tracking);
        let pool = fixture.builder().name("training").adaptor(tracking.clone()).build().unwrap();
        let (private, stream) = (pool.private_named("cache", 64 * MIB).unwrap(), fixture.stream());
        let small = pool.alloc(4096, &stream).unwrap();
        let large = std::thread::scope(|scope| {
            let ask = std::thread::Builder::new().name("asker".into());
            ask.spawn_scoped(scope, || pool.alloc(3 * MIB, &stream).unwrap()).unwrap().join().unwrap()
        });
        let of_private = private.alloc(100, &stream).unwrap();
        drop(pool.alloc(0, &stream).unwrap());
        drop(pool.alloc(5, &stream).unwrap());
        let live = tracking.live();
        let sizes: Vec<_> = live.blocks.iter().map(|block| block.size_bytes).collect();
        assert_eq!((sizes, live.size_bytes()), (vec![3 * MIB, 4096, 100], 3 * MIB + 4196));
        assert_eq!(live.blocks[0].address, large.address());
        assert_eq!(live.blocks[0].stream, stream.id());
        let text = live.to_string();
        assert!(text.starts_with("3.004 MiB in 3 blocks\n  3.000 MiB at 0x"), "{text}");
        assert!(text.contains("number 2, pool training,") && text.contains("thread \"asker\""), "{text}");
        assert!(text.lines().last().unwrap().contains("pool training/cache,"), "{text}");

        drop(pool);
        let of_pool = reports.lock().unwrap().pop().unwrap();
        assert_eq!(of_pool.blocks.len(), 2, "the private pool has its own end");
        assert!(of_pool.blocks.iter().all(|block| block.pool == live.blocks[0].pool));
        drop(of_private);
        drop(private);
        assert!(reports.lock().unwrap().is_empty(), "nothing was left");
        drop((small, large));
        assert!(tracking.live().blocks.is_empty());
    });
}

#[inline(never)]
fn a_name_to_find(pool: &gpumem_pool::Pool, stream: &gpumem_pool::Stream) -> gpumem_pool::Block {
    pool.alloc(4096, stream).unwrap()
}

#[test]
fn backtraces_name_the_caller() {
    on_each_backend(&small(), |fixture| {
        if fixture.seed > 0 {
            return;
        }
        let tracking = Arc::new(Tracking::new().with_backtraces());
        let pool = fixture.builder().adaptor(tracking.clone()).build().unwrap();
        let block = a_name_to_find(&pool, &fixture.stream());
        let text = tracking.live().to_string();
        assert!(text.contains("a_name_to_find"), "{text}");
        drop(block);
    });
}

#[test]
fn growable_blocks_are_tracked() {
    on_each_backend(&small(), |fixture| {
        let tracking = Arc::new(Tracking::new());
        let pool = fixture.builder().adaptor(tracking.clone()).hard_limit(32 * MIB).build().unwrap();
        let (home, scope) = (fixture.stream(), pool.scope("log"));
        let Ok(mut block) = pool.growable(64 * MIB, &home) else { return };
        drop(scope);
        let size = || tracking.live().blocks.first().map(|block| block.size_bytes);
        assert!(block.grow_to(40 * MIB).is_err());
        assert_eq!(size(), None);
        block.grow_to(4 * MIB).unwrap();
        block.grow_to(8 * MIB).unwrap();
        let live = &tracking.live().blocks[0];
        assert_eq!((live.stream, live.tag.as_deref()), (home.id(), Some("log")));
        assert!(live.to_string().contains(", tag \"log\", thread"), "{live}");
        assert!(block.grow_to(40 * MIB).is_err());
        assert_eq!(size(), Some(8 * MIB));
        block.shrink_to(MIB).unwrap();
        assert_eq!(size(), Some(MIB));
        drop(block);
        assert_eq!(size(), None);
    });
}

#[test]
fn long_lists_are_cut() {
    on_each_backend(&small(), |fixture| {
        let tracking = Arc::new(Tracking::new());
        let (pool, stream) = (fixture.builder().adaptor(tracking.clone()).build().unwrap(), fixture.stream());
        let blocks: Vec<_> = (0..23).map(|_| pool.alloc(256, &stream).unwrap()).collect();
        assert!(tracking.live().to_string().ends_with("\n  and 3 more"));
        drop(blocks);
        assert_eq!(format!("{tracking:?}"), "Tracking { live_count: 0, has_backtraces: false, .. }");
    });
}

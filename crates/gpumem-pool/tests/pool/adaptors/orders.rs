//! All adaptors together, in many orders, under random use.

use super::MIB;
use crate::fixture::{Fixture, on_each_backend, small};
use gpumem_pool::adaptor::{Adaptor, Budget, Failures, Fallback, Fill, Guard, Tracking};
use gpumem_pool::{Block, PoolError, RefusedBy, Stream};
use std::sync::Arc;

/// A pseudo-random number below `end`.
fn next(state: &mut u64, end: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % end
}

fn use_at_random(fixture: &Fixture, order: &mut u64) {
    let spare = fixture.builder().hard_limit(64 * MIB).build().unwrap();
    let (guard, tracking) = (Arc::new(Guard::new()), Arc::new(Tracking::new()));
    let (budget, fallback) = (Arc::new(Budget::new(24 * MIB)), Arc::new(Fallback::new(&spare)));
    let failures = Arc::new(Failures::share(0.1, fixture.seed));
    let mut all: Vec<Arc<dyn Adaptor>> = vec![
        guard.clone(),
        tracking.clone(),
        budget.clone(),
        fallback.clone(),
        failures.clone(),
        Arc::new(Fill::zero_on_free()),
        Arc::new(Fill::zero_on_alloc()),
        Arc::new(Guard::new()),
    ];
    let mut builder = fixture.builder().hard_limit(32 * MIB);
    let mut names = Vec::new();
    while !all.is_empty() {
        let adaptor = all.swap_remove(next(order, all.len() as u64) as usize);
        names.push(adaptor.name().to_string());
        builder = builder.adaptor(adaptor);
    }
    let pool = builder.build().unwrap();
    let streams: [Stream; 3] = [(); 3].map(|()| fixture.stream());
    let mut live: Vec<(Block, u8)> = Vec::new();
    let mut done_count = 0;
    for step in 0..100_u64 {
        let (home, other) = (&streams[next(order, 3) as usize], &streams[next(order, 3) as usize]);
        if next(order, 3) > 0 || live.is_empty() {
            let size_bytes = 1 + (1 << next(order, 21)) + next(order, 1000);
            let asked = pool.alloc_aligned(size_bytes, 256 << next(order, 4), home);
            let block = match asked {
                Ok(block) => block,
                Err(PoolError::LimitReached(report)) if report.refused_by == RefusedBy::Budget => continue,
                Err(error) => {
                    assert!(error.out_of_memory().is_some(), "{names:?}: {error}");
                    continue;
                }
            };
            // If the innermost adaptors ask another pool, the adaptors outside of them still fill.
            let is_zero = fixture.holds(&block, 0, home);
            assert!(is_zero || fallback.taken_count() > 0, "{names:?}");
            let value = step as u8;
            fixture.fill(&block, value, home);
            if other != home {
                other.wait_for(home).unwrap();
                fixture.fill(&block, value, other);
                block.record_use(other);
                home.wait_for(other).unwrap();
            }
            live.push((block, value));
            done_count += 1;
        } else {
            let (block, value) = live.swap_remove(next(order, live.len() as u64) as usize);
            let stream = streams.iter().find(|stream| stream.id() == block.stream_id()).unwrap();
            assert!(fixture.holds(&block, value, stream), "{names:?}");
            drop(block);
            done_count += 1;
        }
        assert!(tracking.live().blocks.len() <= live.len(), "{names:?}");
        pool.check().unwrap();
    }
    assert!(done_count > 50, "{names:?}: {done_count}");
    drop((live, pool));
    fixture.device.synchronize().unwrap();
    assert_eq!(guard.settle(), [], "{names:?}");
    assert!(tracking.live().blocks.is_empty() && budget.in_use_bytes() == 0, "{names:?}");
    assert_eq!(spare.status().unwrap().block_count, 0, "{names:?}");
    assert_eq!(gpumem_sim::Sim::of(&fixture.driver).unwrap().report().findings, [], "{names:?}");
}

#[test]
fn any_order_works() {
    on_each_backend(&small(), |fixture| {
        let mut order = fixture.seed + 1;
        (0..2).for_each(|_| use_at_random(fixture, &mut order));
    });
}

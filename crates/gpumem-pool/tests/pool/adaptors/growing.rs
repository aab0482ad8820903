//! Adaptors and growable blocks.

use super::{Ear, MIB};
use crate::growable::{byte, fill, on_caching};
use gpumem_pool::adaptor::{Adaptor, Budget, Change, Failures, Fill, Guard, Tracking};
use gpumem_pool::{PoolError, RefusedBy};
use std::sync::{Arc, Mutex};

#[test]
fn adaptors_run_before_and_after_a_growth() {
    on_caching(|fixture| {
        let budget = Arc::new(Budget::new(10 * MIB));
        let (ears, heard) = Ear::pair();
        let builder = fixture.builder().adaptor(budget.clone()).adaptor(ears[1].clone());
        let (pool, stream) = (builder.build().unwrap(), fixture.stream());
        let mut block = pool.growable(64 * MIB, &stream).unwrap();
        block.grow_to(6 * MIB).unwrap();
        assert!(
            matches!(block.grow_to(11 * MIB), Err(PoolError::LimitReached(report)) if report.refused_by == RefusedBy::Budget)
        );
        assert_eq!((block.size_bytes(), budget.in_use_bytes()), (6 * MIB, 6 * MIB));
        block.shrink_to(2 * MIB).unwrap();
        assert_eq!(budget.in_use_bytes(), 2 * MIB);
        drop(block);
        assert_eq!(budget.in_use_bytes(), 0);
        let all = ["grows 6", "grows 5", "shrinks 5", "shrinks 4", "shrinks 2"];
        let expected = all.map(|what| {
            let (verb, mib) = what.split_once(' ').unwrap();
            format!("outer {verb} {}", mib.parse::<u64>().unwrap() * MIB)
        });
        assert_eq!(*heard.lock().unwrap(), expected);
    });
}

/// Accepts a growth and then refuses it, or panics.
struct Fickle(Mutex<&'static str>);

impl Adaptor for Fickle {
    fn grown(&self, change: &Change<'_>) -> Result<(), PoolError> {
        match *self.0.lock().unwrap() {
            "" => Ok(()),
            reason => Err(PoolError::Refused {
                adaptor: "fickle".into(),
                requested_bytes: change.to_bytes(),
                reason: reason.into(),
                origin: None,
            }),
        }
    }

    fn shrink(&self, change: &Change<'_>) {
        if !change.is_undone() {
            panic!("on purpose");
        }
    }
}

/// A growth that an adaptor refuses in the end is undone by all adaptors and the pool, and no panic escapes a drop.
#[test]
fn a_growth_that_an_adaptor_rejects_is_undone() {
    on_caching(|fixture| {
        let fickle = Arc::new(Fickle(Mutex::new("")));
        let (inner, outer) = (Arc::new(Budget::new(64 * MIB)), Arc::new(Budget::new(64 * MIB)));
        let tracking = Arc::new(Tracking::new());
        let builder = fixture.builder().adaptor(inner.clone()).adaptor(tracking.clone());
        let (pool, stream) =
            (builder.adaptor(fickle.clone()).adaptor(outer.clone()).build().unwrap(), fixture.stream());
        let mut block = pool.growable(64 * MIB, &stream).unwrap();
        for before_bytes in [0, 3 * MIB + 100] {
            block.grow_to(before_bytes).unwrap();
            fill(fixture, &block, 0..before_bytes, 1, &stream);
            *fickle.0.lock().unwrap() = "does not like it";
            let error = block.grow_to(9 * MIB + 7).unwrap_err();
            assert!(error.to_string().ends_with("it does not like it"), "{error}");
            *fickle.0.lock().unwrap() = "";
            assert_eq!(
                (block.size_bytes(), pool.status().unwrap().in_use_bytes),
                (before_bytes, before_bytes)
            );
            assert_eq!(tracking.live().size_bytes(), before_bytes);
            for budget in [&inner, &outer] {
                assert_eq!(budget.in_use_bytes(), before_bytes.next_multiple_of(256));
            }
        }
        block.grow_to(5 * MIB).unwrap();
        assert_eq!(byte(fixture, &block, 3 * MIB + 99, &stream), 1);
        drop(block);
        assert_eq!(outer.in_use_bytes(), 0);
        pool.check().unwrap();
    });
}

/// Guard bytes and fills would need waits in every growth: both adaptors refuse instead, and the block keeps its size.
#[test]
fn adaptors_of_bytes_refuse_to_grow() {
    on_caching(|fixture| {
        let (guard, fill): (Arc<dyn Adaptor>, Arc<dyn Adaptor>) =
            (Arc::new(Guard::new()), Arc::new(Fill::zero_on_alloc()));
        for (adaptor, name) in [(guard, "guard"), (fill, "fill")] {
            let budget = Arc::new(Budget::new(64 * MIB));
            let pool = fixture.builder().adaptor(adaptor).adaptor(budget.clone()).build().unwrap();
            let mut block = pool.growable(64 * MIB, &fixture.stream()).unwrap();
            let error = block.grow_to(MIB).unwrap_err();
            let PoolError::Refused { adaptor, requested_bytes, origin, .. } = &error else {
                panic!("{error}")
            };
            assert_eq!((&**adaptor, *requested_bytes), (name, MIB));
            assert_eq!(origin.as_ref().map(|origin| &*origin.pool), Some(pool.name()));
            assert!(error.to_string().contains("growable blocks"), "{error}");
            assert_eq!((block.size_bytes(), budget.in_use_bytes()), (0, 0));
            block.grow_to(0).unwrap();
        }
    });
}

/// All adaptors together, with growth that any of them sometimes refuses.
#[test]
fn any_of_them_may_refuse() {
    on_caching(|fixture| {
        let failures = Arc::new(Failures::share(0.2, fixture.seed));
        let (budget, tracking) = (Arc::new(Budget::new(20 * MIB)), Arc::new(Tracking::new()));
        let builder = fixture.builder().hard_limit(24 * MIB).adaptor(budget.clone()).adaptor(failures);
        let pool = builder.adaptor(tracking.clone()).build().unwrap();
        let streams = [fixture.stream(), fixture.stream()];
        let mut block = pool.growable(32 * MIB, &streams[0]).unwrap();
        let mut random = crate::shortage::Random(fixture.seed);
        let mut refusal_count = 0;
        for _ in 0..30 {
            let (size_bytes, before_bytes) = (random.below(26 * MIB), block.size_bytes());
            if size_bytes < before_bytes {
                block.shrink_to(size_bytes).unwrap();
            } else if let Err(error) = block.grow_to(size_bytes) {
                assert!(error.out_of_memory().is_some() && block.size_bytes() == before_bytes, "{error}");
                refusal_count += 1;
            } else if size_bytes > before_bytes {
                fill(fixture, &block, before_bytes..size_bytes, 7, &streams[1]);
                block.record_use(&streams[1]);
            }
            assert_eq!(budget.in_use_bytes(), block.size_bytes().next_multiple_of(256));
            assert_eq!(tracking.live().size_bytes(), block.size_bytes());
            assert_eq!(pool.status().unwrap().in_use_bytes, block.size_bytes());
            pool.check().unwrap();
        }
        assert!(refusal_count > 2, "{refusal_count}");
    });
}

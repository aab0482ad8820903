//! Adaptors that panic: a drop continues, the other adaptors are called, and no counter is wrong.

use super::MIB;
use crate::fixture::{Fixture, on_each_backend, small};
use gpumem_pool::PoolError;
use gpumem_pool::adaptor::{Adaptor, Budget, Grant, Next, PoolId, Release, Request};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::Arc;

/// Panics in one of its hooks, with a payload that panics again when it is dropped.
struct Breaks(&'static str);

struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

impl Breaks {
    fn may_break(&self, hook: &str) {
        if self.0 == hook {
            panic_any(Bomb);
        }
    }
}

impl Adaptor for Breaks {
    fn alloc(&self, request: &Request<'_>, next: Next<'_>) -> Result<Grant, PoolError> {
        self.may_break("alloc");
        next.alloc(request)
    }

    fn free(&self, _: &Release<'_>) {
        self.may_break("free");
    }

    fn close(&self, _: PoolId) {
        self.may_break("close");
    }
}

/// A pool with the panicking adaptor between two budgets.
fn broken(fixture: &Fixture, hook: &'static str) -> (gpumem_pool::Pool, [Arc<Budget>; 2]) {
    let budgets = [(); 2].map(|()| Arc::new(Budget::new(100 * MIB)));
    let builder = fixture.builder().adaptor(budgets[0].clone()).adaptor(Arc::new(Breaks(hook)));
    (builder.adaptor(budgets[1].clone()).build().unwrap(), budgets)
}

#[test]
fn panics_end_in_drops() {
    on_each_backend(&small(), |fixture| {
        for hook in ["free", "close"] {
            let (pool, budgets) = broken(fixture, hook);
            let (stream, before) = (fixture.stream(), fixture.device.memory_info().unwrap());
            let block = pool.alloc(3 * MIB, &stream).unwrap();
            drop(block);
            assert_eq!(budgets.each_ref().map(|budget| budget.in_use_bytes()), [0; 2], "{hook}");
            drop(pool);
            fixture.device.synchronize().unwrap();
            assert_eq!(fixture.device.memory_info().unwrap(), before, "{hook}: the pool has ended");
        }
    });
}

#[test]
fn panics_in_an_allocation_are_the_callers_and_count_nowhere() {
    on_each_backend(&small(), |fixture| {
        let stream = fixture.stream();
        let (pool, budgets) = broken(fixture, "alloc");
        let caught = catch_unwind(AssertUnwindSafe(|| pool.alloc(3 * MIB, &stream))).unwrap_err();
        std::mem::forget(caught);
        assert_eq!(budgets.each_ref().map(|budget| budget.in_use_bytes()), [0; 2]);
    });
}

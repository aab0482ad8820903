//! Adaptors around every backend, on either driver.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use gpumem_tests::backends::backends;
use gpumem_tests::cases;
use gpumem_tests::pool::adaptor::{Adaptor, Budget, Failures};
use gpumem_tests::pool::{Device, Pool, PoolError, Stream};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// A pool for every backend, with these around it.
fn pools(device: &Device, adaptors: &[Arc<dyn Adaptor>]) -> impl Iterator<Item = Pool> {
    backends(device).into_iter().map(move |backend| {
        let builder = Pool::builder(device).backend(backend);
        adaptors.iter().cloned().fold(builder, |builder, adaptor| builder.adaptor(adaptor)).build().unwrap()
    })
}

fn write(address: u64, value: u8, size_bytes: u64, stream: &Stream) {
    let _bound = stream.device().bind().unwrap();
    // SAFETY: who owns the bytes is freed behind this stream.
    unsafe {
        let driver = stream.device().driver();
        driver.cuMemsetD8Async(address, value, size_bytes as usize, stream.raw()).unwrap();
    }
}

cases! {
    /// One budget for blocks, whatever becomes of them, and for private pools.
    fn a_budget_holds(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let budget = Arc::new(Budget::new(48 * MIB));
        for pool in pools(&device, &[budget.clone()]) {
            let (home, other) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
            let private = pool.private(64 * MIB).unwrap();
            let block = pool.alloc(30 * MIB, &home).unwrap();
            assert!(matches!(private.alloc(20 * MIB, &home), Err(PoolError::OverBudget { .. })));
            other.wait_for(&home).unwrap();
            write(block.address(), 1, block.size_bytes(), &other);
            block.record_use(&other);
            drop(block);
            let block = private.alloc(48 * MIB, &home).unwrap();
            write(block.address(), 2, block.size_bytes(), &home);
            drop((private, pool));
            assert_eq!(budget.in_use_bytes(), 48 * MIB);
            drop(block);
            assert_eq!(budget.in_use_bytes(), 0);
        }
    }

    /// What fails on purpose costs nothing.
    fn failures_leave_nothing(driver: &Driver) {
        let device = Device::new(driver, 0).unwrap();
        let (budget, failures) = (Arc::new(Budget::new(1 << 30)), Arc::new(Failures::share(0.5, 3)));
        let stream = Stream::new(&device).unwrap();
        for pool in pools(&device, &[failures.clone(), budget.clone()]) {
            let blocks: Vec<_> = (1..50).filter_map(|step| pool.alloc(step * 10_000, &stream).ok()).collect();
            let live_bytes: u64 = blocks.iter().map(|block| block.size_bytes()).sum();
            assert_eq!(pool.status().unwrap().block_count, blocks.len() as u64);
            assert!(budget.in_use_bytes() >= live_bytes && budget.in_use_bytes() < live_bytes + 50 * 256);
            drop(blocks);
            assert_eq!(budget.in_use_bytes(), 0);
        }
        assert!(failures.failed_count() > 10 && failures.failed_count() < failures.seen_count() - 10);
    }
}

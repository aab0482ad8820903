//! The driver's own pools: the attributes of a new pool, its maximum size, and when it releases memory.

use crate::conformance::{Fixture, MIB};
use gpumem_adapt::array::pool::sys::types::*;
use gpumem_adapt::array::pool::sys::{CUresult, Driver};
use gpumem_tests::cases;
use gpumem_tests::driver::raw::{Raw, code};
use std::ptr::null_mut;

cases! {
    /// A new pool keeps no free memory, grows by 32 MiB and enables all three reuse policies, like a device's default pool.
    fn new_pool_attributes(driver: &Driver) {
        let &Fixture { ref raw, stream } = &Fixture::new(driver);
        let pool = fresh_pool(raw);
        use CUmemPool_attribute as Attribute;
        assert_eq!(pool_attribute(driver, pool, Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 0);
        assert_eq!(pool_flag(driver, pool, Attribute::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES), 1);
        assert_eq!(pool_flag(driver, pool, Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC), 1);
        assert_eq!(pool_flag(driver, pool, Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES), 1);
        assert_eq!(pool_attribute(driver, pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0);

        let mut address = 0;
        // SAFETY: pool, stream and out-pointer are live.
        unsafe { driver.cuMemAllocFromPoolAsync(&mut address, 257, pool, stream).unwrap() };
        assert_eq!(pool_attribute(driver, pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 32 << 20);
        assert_eq!(pool_attribute(driver, pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 257);
        // SAFETY: the address is live; the pool is empty when it is destroyed.
        unsafe {
            driver.cuMemFreeAsync(address, stream).unwrap();
            driver.cuStreamSynchronize(stream).unwrap();
        }
        // With the threshold at zero, a synchronisation releases all free memory.
        assert_eq!(pool_attribute(driver, pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
        assert_eq!(pool_attribute(driver, pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0);
        assert_eq!(pool_attribute(driver, pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH), 257);
        // SAFETY: the pool and the stream have no memory and no work.
        unsafe {
            driver.cuMemPoolDestroy(pool).unwrap();
        }
    }

    /// A pool's `maxSize` counts in units of 32 MiB, rounded up.
    fn pool_max_size(driver: &Driver) {
        let &Fixture { ref raw, stream } = &Fixture::new(driver);
        for (max_size, fits) in [(1 << 10, 32), (32 << 20, 32), (33 << 20, 64), (100 << 20, 128)] {
            let pool = pool_of_at_most(raw, max_size);
            let mut addresses = Vec::new();
            let refused = loop {
                let mut address = 0;
                // SAFETY: pool, stream and out-pointer are live.
                match unsafe { driver.cuMemAllocFromPoolAsync(&mut address, MIB, pool, stream) } {
                    Ok(()) => addresses.push(address),
                    error => break error,
                }
                assert!(addresses.len() <= fits, "{max_size}");
            };
            assert_eq!(code(refused), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
            assert_eq!(addresses.len(), fits, "{max_size}");
            // SAFETY: the addresses are live; the pool is empty when it is destroyed.
            unsafe {
                addresses.into_iter().for_each(|address| driver.cuMemFreeAsync(address, stream).unwrap());
                driver.cuStreamSynchronize(stream).unwrap();
                driver.cuMemPoolDestroy(pool).unwrap();
            }
        }
    }

    /// With a raised release threshold, a pool keeps freed memory until it is trimmed.
    fn release_threshold_and_trim(driver: &Driver) {
        let &Fixture { ref raw, stream } = &Fixture::new(driver);
        let pool = fresh_pool(raw);
        use CUmemPool_attribute as Attribute;
        let mut keep = u64::MAX;
        let mut address = 0;
        // SAFETY: all handles are live; the attribute is a 64-bit value.
        unsafe {
            let threshold = Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            driver.cuMemPoolSetAttribute(pool, threshold, (&raw mut keep).cast()).unwrap();
            driver.cuMemAllocFromPoolAsync(&mut address, 64 * MIB, pool, stream).unwrap();
            driver.cuMemFreeAsync(address, stream).unwrap();
            driver.cuStreamSynchronize(stream).unwrap();
        }
        let reserved = pool_attribute(driver, pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
        assert!(reserved >= 64 << 20, "{reserved}");
        // SAFETY: the pool is alive, and its only block was freed before the stream was synchronised.
        unsafe { driver.cuMemPoolTrimTo(pool, 0).unwrap() };
        assert_eq!(pool_attribute(driver, pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0);
        // SAFETY: the pool and the stream have no memory and no work.
        unsafe {
            driver.cuMemPoolDestroy(pool).unwrap();
        }
    }
}

/// A new pool, because other tests of this process use the device's default one.
fn fresh_pool(raw: &Raw) -> CUmemoryPool {
    pool_of_at_most(raw, 0)
}

fn pool_of_at_most(raw: &Raw, max_size: usize) -> CUmemoryPool {
    let mut pool = null_mut();
    let location = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: raw.device };
    let properties = CUmemPoolProps {
        allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        location,
        maxSize: max_size,
        ..CUmemPoolProps::default()
    };
    // SAFETY: the properties live through the call.
    unsafe { raw.driver.cuMemPoolCreate(&mut pool, &properties).unwrap() };
    pool
}

fn pool_attribute(driver: &Driver, pool: CUmemoryPool, attribute: CUmemPool_attribute) -> u64 {
    let mut value = 0u64;
    // SAFETY: the attribute is a 64-bit value.
    unsafe { driver.cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast()).unwrap() };
    value
}

fn pool_flag(driver: &Driver, pool: CUmemoryPool, attribute: CUmemPool_attribute) -> i32 {
    let mut value = 0i32;
    // SAFETY: the attribute is a 32-bit value.
    unsafe { driver.cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast()).unwrap() };
    value
}

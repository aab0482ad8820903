//! Memory pools: growth, thresholds, limits, reuse.

use super::*;

pub(super) const RESERVED: CUmemPool_attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
const RESERVED_HIGH: CUmemPool_attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
const USED: CUmemPool_attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
const USED_HIGH: CUmemPool_attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH;
pub(super) const THRESHOLD: CUmemPool_attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;

impl Machine {
    pub(super) fn default_pool(&self) -> CUmemoryPool {
        let mut pool = null_mut();
        // SAFETY: pointers are to locals that outlive the call, as wide as the attribute.
        unsafe { self.cuDeviceGetDefaultMemPool(&mut pool, 0).unwrap() };
        pool
    }

    pub(super) fn pool_with(&self, bytes_max: usize) -> CUmemoryPool {
        let mut pool = null_mut();
        let props = CUmemPoolProps {
            allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            location: CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 },
            maxSize: bytes_max,
            ..Default::default()
        };
        // SAFETY: pointers are to locals that outlive the call, as wide as the attribute.
        unsafe { self.cuMemPoolCreate(&mut pool, &props).unwrap() };
        pool
    }

    pub(super) fn attribute(&self, pool: CUmemoryPool, attribute: CUmemPool_attribute) -> u64 {
        let mut value = 0u64;
        // SAFETY: pointers are to locals that outlive the call, as wide as the attribute.
        unsafe { self.cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast()).unwrap() };
        value
    }

    pub(super) fn set(&self, pool: CUmemoryPool, attribute: CUmemPool_attribute, mut value: u64) {
        // SAFETY: pointers are to locals that outlive the call, as wide as the attribute.
        unsafe { self.cuMemPoolSetAttribute(pool, attribute, (&raw mut value).cast()).unwrap() };
    }

    pub(super) fn try_alloc_from(
        &self,
        pool: CUmemoryPool,
        stream: CUstream,
        size_bytes: usize,
    ) -> Result<u64, DriverError> {
        let mut address = 0;
        // SAFETY: pointers are to locals that outlive the call, as wide as the attribute.
        unsafe { self.cuMemAllocFromPoolAsync(&mut address, size_bytes, pool, stream)? };
        Ok(address)
    }
}

#[test]
fn the_default_pool_starts_as_measured() {
    let gpu = seeded(0);
    let (pool, stream) = (gpu.default_pool(), gpu.stream());
    assert_eq!(gpu.attribute(pool, THRESHOLD), 0);
    for policy in 1..=3 {
        let mut value = 7u32;
        let policy = CUmemPool_attribute(policy);
        // SAFETY: pointers are to locals that outlive the call, as wide as the attribute.
        unsafe { gpu.cuMemPoolGetAttribute(pool, policy, (&raw mut value).cast()).unwrap() };
        assert_eq!(value, 1);
    }
    gpu.alloc_on(stream, 256);
    assert_eq!(gpu.attribute(pool, RESERVED), 33_554_432);
    assert_eq!(gpu.attribute(pool, USED), 256);
    // SAFETY: pointers are to locals that outlive the call, as wide as the attribute.
    unsafe { assert_eq!(code(gpu.cuMemPoolDestroy(pool)), CUresult::CUDA_ERROR_INVALID_VALUE) };
}

#[test]
fn memory_above_the_threshold_goes_back_at_synchronisation() {
    for (threshold, kept) in [(0, 0), (32 << 20, 32 << 20), (u64::MAX, 96 << 20)] {
        let gpu = seeded(1);
        let (pool, stream) = (gpu.default_pool(), gpu.stream());
        gpu.set(pool, THRESHOLD, threshold);
        let blocks: Vec<u64> = (0..3).map(|_| gpu.alloc_on(stream, 20 << 20)).collect();
        blocks.into_iter().for_each(|block| gpu.free_on(stream, block));
        assert_eq!(gpu.attribute(pool, USED), 0);
        assert_eq!(gpu.attribute(pool, RESERVED), 96 << 20);
        gpu.sync(stream);
        assert_eq!(gpu.attribute(pool, RESERVED), kept, "threshold {threshold}");
        assert_eq!(gpu.attribute(pool, RESERVED_HIGH), 96 << 20);
        assert_eq!(gpu.attribute(pool, USED_HIGH), 60 << 20);
        gpu.set(pool, USED_HIGH, 0);
        assert_eq!(gpu.attribute(pool, USED_HIGH), 0);
    }
}

#[test]
fn trimming_gives_back_what_is_free() {
    let gpu = seeded(2);
    let (pool, stream) = (gpu.default_pool(), gpu.stream());
    gpu.set(pool, THRESHOLD, u64::MAX);
    let (kept, freed) = (gpu.alloc_on(stream, 20 << 20), gpu.alloc_on(stream, 20 << 20));
    gpu.free_on(stream, freed);
    gpu.sync(stream);
    // SAFETY: pointers are to locals that outlive the call, as wide as the attribute.
    unsafe { gpu.cuMemPoolTrimTo(pool, 64 << 20).unwrap() };
    assert_eq!(gpu.attribute(pool, RESERVED), 64 << 20);
    // SAFETY: pointers are to locals that outlive the call, as wide as the attribute.
    unsafe { gpu.cuMemPoolTrimTo(pool, 0).unwrap() };
    assert_eq!(gpu.attribute(pool, RESERVED), 32 << 20);
    gpu.fill(stream, kept, 1, 20 << 20);
    gpu.sync(stream);
}

#[test]
fn a_pool_stays_within_its_size() {
    let gpu = seeded(3);
    // The maximum size is rounded up to 64 MiB.
    let (pool, stream) = (gpu.pool_with(40 << 20), gpu.stream());
    let first = gpu.try_alloc_from(pool, stream, 30 << 20).unwrap();
    let second = gpu.try_alloc_from(pool, stream, 30 << 20).unwrap();
    assert_eq!(code(gpu.try_alloc_from(pool, stream, 4 << 20)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(gpu.attribute(pool, RESERVED), 64 << 20);
    gpu.free_on(stream, first);
    gpu.try_alloc_from(pool, stream, 4 << 20).unwrap();
    // The handle is invalid right away, the pool lives until its last block is freed.
    // SAFETY: pointers are to locals that outlive the call, as wide as the attribute.
    unsafe { gpu.cuMemPoolDestroy(pool).unwrap() };
    assert_eq!(code(gpu.try_alloc_from(pool, stream, 1)), CUresult::CUDA_ERROR_INVALID_VALUE);
    gpu.fill(stream, second, 1, 30 << 20);
    gpu.free_on(stream, second);
    gpu.sync(stream);
}

#[test]
fn the_pool_of_a_device_can_be_replaced() {
    let gpu = seeded(4);
    let (pool, stream) = (gpu.pool_with(0), gpu.stream());
    // SAFETY: pointers are to locals that outlive the call, as wide as the attribute.
    unsafe { gpu.cuDeviceSetMemPool(0, pool).unwrap() };
    gpu.alloc_on(stream, 100);
    assert_eq!(gpu.attribute(pool, RESERVED), 32 << 20);
    assert_eq!(gpu.attribute(gpu.default_pool(), RESERVED), 0);
    // SAFETY: pointers are to locals that outlive the call, as wide as the attribute.
    unsafe { gpu.cuMemPoolDestroy(pool).unwrap() };
    gpu.alloc_on(stream, 100);
    assert_eq!(gpu.attribute(gpu.default_pool(), RESERVED), 32 << 20);
}

#[test]
fn a_stream_takes_its_own_frees_at_once_and_others_only_when_they_have_run() {
    let (mut shared, mut kept_apart) = (0, 0);
    for seed in 0..200 {
        let gpu = seeded(seed);
        let (a, b) = (gpu.stream(), gpu.stream());
        gpu.set(gpu.default_pool(), THRESHOLD, u64::MAX);
        let first = gpu.alloc_on(a, 20 << 20);
        gpu.free_on(a, first);
        let own = gpu.alloc_on(a, 20 << 20);
        assert_eq!(own, first, "seed {seed}");
        gpu.free_on(a, own);
        if gpu.alloc_on(b, 20 << 20) == first { shared += 1 } else { kept_apart += 1 }
    }
    assert!(shared > 0 && kept_apart > 0);
}

#[test]
fn when_nothing_else_is_left_another_streams_free_is_waited_for() {
    for seed in 0..200 {
        let gpu = machine(SimConfig::new().seed(seed).memory_bytes(32 << 20));
        let (a, b, out) = (gpu.stream(), gpu.stream(), gpu.pinned(1));
        let first = gpu.alloc_on(a, 32 << 20);
        gpu.fill(a, first, 1, 32);
        gpu.download_to(a, out, first);
        gpu.free_on(a, first);
        let second = gpu.alloc_on(b, 32 << 20);
        gpu.fill(b, second, 2, 32);
        gpu.sync(b);
        assert_eq!(out[0].get(), 1, "seed {seed}");
    }
}

#[test]
fn a_pools_idle_memory_is_there_for_other_allocations() {
    let gpu = machine(SimConfig::new().memory_bytes(64 << 20));
    let (pool, stream) = (gpu.default_pool(), gpu.stream());
    gpu.set(pool, THRESHOLD, u64::MAX);
    let block = gpu.alloc_on(stream, 60 << 20);
    assert_eq!(code(gpu.try_alloc(32 << 20)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    gpu.free_on(stream, block);
    gpu.sync(stream);
    gpu.alloc(32 << 20);
    assert_eq!(gpu.attribute(pool, RESERVED), 0);
}

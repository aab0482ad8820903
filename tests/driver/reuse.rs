//! The reuse policies of a stream-ordered pool: the freed blocks that another stream may reuse. Each case turns off the policies
//! that depend on the progress of the device, so that the result is the same on every machine.

use gpumem_tests::cases;
use gpumem_tests::driver::raw::Raw;
use gpumem_tests::sys::Driver;
use gpumem_tests::sys::types::*;
use std::ptr::null_mut;

/// The size of a block that fills a segment of the pool.
const SIZE_BYTES: usize = 64 << 20;

cases! {
    /// Behind an event recorded after the free, another stream reuses the block; the pool does not grow.
    fn following_events(driver: &Driver) {
        let fixture = Fixture::new(driver, true);
        let block = fixture.used_and_freed();
        fixture.wait();
        assert_eq!(fixture.alloc(fixture.b), block);
        assert_eq!(fixture.reserved_bytes(), SIZE_BYTES as u64);
        fixture.end(block);
    }

    /// Without the wait the pool grows instead.
    fn following_no_event(driver: &Driver) {
        let fixture = Fixture::new(driver, true);
        let block = fixture.used_and_freed();
        let other = fixture.alloc(fixture.b);
        assert_ne!(other, block);
        assert_eq!(fixture.reserved_bytes(), 2 * SIZE_BYTES as u64);
        fixture.end(other);
    }

    /// With all policies off, the wait changes nothing.
    fn events_not_followed(driver: &Driver) {
        let fixture = Fixture::new(driver, false);
        let block = fixture.used_and_freed();
        fixture.wait();
        let other = fixture.alloc(fixture.b);
        assert_ne!(other, block);
        fixture.end(other);
    }

    /// A stream reuses its own blocks with any policy.
    fn own_blocks(driver: &Driver) {
        let fixture = Fixture::new(driver, false);
        let block = fixture.used_and_freed();
        assert_eq!(fixture.alloc(fixture.a), block);
        fixture.end(block);
    }

    /// Every stream reuses blocks after the host has synchronised with their stream.
    fn after_synchronising(driver: &Driver) {
        let fixture = Fixture::new(driver, false);
        fixture.used_and_freed();
        // SAFETY: the stream is alive.
        unsafe { fixture.raw.driver.cuStreamSynchronize(fixture.a).unwrap() };
        let second = fixture.alloc(fixture.b);
        assert_eq!(fixture.reserved_bytes(), SIZE_BYTES as u64);
        fixture.end(second);
    }
}

/// A pool, and two streams without an order between them.
struct Fixture {
    raw: Raw,
    pool: CUmemoryPool,
    a: CUstream,
    b: CUstream,
}

impl Fixture {
    /// A pool whose only enabled policy, if any, is to follow events.
    fn new(driver: &Driver, follows_events: bool) -> Self {
        let raw = Raw::new(driver).unwrap();
        let (mut pool, a, b) = (null_mut(), raw.stream().unwrap(), raw.stream().unwrap());
        let props = CUmemPoolProps {
            allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            location: CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: raw.device },
            ..Default::default()
        };
        let mut keeps = u64::MAX;
        let threshold = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        let policies = [
            (CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, follows_events),
            (CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, false),
            (CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, false),
        ];
        // SAFETY: the locals outlive the calls and are as wide as the attributes.
        unsafe {
            driver.cuMemPoolCreate(&mut pool, &props).unwrap();
            driver.cuMemPoolSetAttribute(pool, threshold, (&raw mut keeps).cast()).unwrap();
            for (policy, is_on) in policies {
                let mut value = i32::from(is_on);
                driver.cuMemPoolSetAttribute(pool, policy, (&raw mut value).cast()).unwrap();
            }
        }
        Self { raw, pool, a, b }
    }

    fn alloc(&self, stream: CUstream) -> CUdeviceptr {
        let mut address = 0;
        // SAFETY: the local outlives the call; pool and stream are alive.
        unsafe {
            self.raw.driver.cuMemAllocFromPoolAsync(&mut address, SIZE_BYTES, self.pool, stream).unwrap();
        }
        address
    }

    /// A block of stream `a`, used and freed on it.
    fn used_and_freed(&self) -> CUdeviceptr {
        let block = self.alloc(self.a);
        // SAFETY: the block is alive until its free, which is ordered behind its use.
        unsafe {
            self.raw.driver.cuMemsetD8Async(block, 1, SIZE_BYTES, self.a).unwrap();
            self.raw.driver.cuMemFreeAsync(block, self.a).unwrap();
        }
        block
    }

    /// Stream `b` waits for the work queued on stream `a`.
    fn wait(&self) {
        let event = self.raw.event().unwrap();
        // SAFETY: event and streams are alive.
        unsafe {
            self.raw.driver.cuEventRecord(event, self.a).unwrap();
            self.raw.driver.cuStreamWaitEvent(self.b, event, 0).unwrap();
            self.raw.driver.cuEventDestroy_v2(event).unwrap();
        }
    }

    fn reserved_bytes(&self) -> u64 {
        let mut value = 0u64;
        let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
        // SAFETY: the local outlives the call and is as wide as the attribute.
        unsafe {
            self.raw.driver.cuMemPoolGetAttribute(self.pool, attribute, (&raw mut value).cast()).unwrap();
        }
        value
    }

    /// Checks that the block is usable, and destroys everything.
    fn end(self, block: CUdeviceptr) {
        let Self { raw, pool, a, b } = self;
        // SAFETY: the block is alive, and each synchronisation of the context completes all work before the calls that follow.
        unsafe {
            raw.driver.cuCtxSynchronize().unwrap();
            raw.driver.cuMemsetD8Async(block, 2, SIZE_BYTES, b).unwrap();
            assert_eq!(raw.read(block + SIZE_BYTES as u64 - 1, 1).unwrap(), [2]);
            raw.driver.cuMemFreeAsync(block, b).unwrap();
            raw.driver.cuCtxSynchronize().unwrap();
            raw.driver.cuMemPoolDestroy(pool).unwrap();
            raw.driver.cuStreamDestroy_v2(a).unwrap();
            raw.driver.cuStreamDestroy_v2(b).unwrap();
        }
    }
}

//! The driver's pools of pinned host memory and of managed memory, through raw calls. Each case holds on the simulator and on an
//! H200 with CUDA 13.0, where the behaviour was observed first.

use gpumem_tests::cases;
use gpumem_tests::driver::raw::{Raw, code};
use gpumem_tests::driver::stream_gate::StreamGate;
use gpumem_tests::sys::CUresult;
use gpumem_tests::sys::types::*;
use std::ptr::null_mut;

const MIB: usize = 1 << 20;
const SUCCESS: CUresult = CUresult::CUDA_SUCCESS;
const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const NOT_SUPPORTED: CUresult = CUresult::CUDA_ERROR_NOT_SUPPORTED;
const PINNED: CUmemAllocationType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
const MANAGED: CUmemAllocationType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_MANAGED;
const NOWHERE: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_NONE;
const DEVICE: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
const HOST: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST;
const NODE: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA;
const FILES: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
const RESERVED: CUmemPool_attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;

/// Both kinds of host-accessible memory.
const KINDS: [(CUmemAllocationType, CUmemLocationType); 2] = [(PINNED, HOST), (MANAGED, NOWHERE)];

/// A machine, a stream, and one pool.
struct Fixture {
    raw: Raw,
    stream: CUstream,
    pool: CUmemoryPool,
}

/// Creates a pool with these properties.
fn create(raw: &Raw, props: CUmemPoolProps) -> Result<CUmemoryPool, CUresult> {
    let mut pool = null_mut();
    // SAFETY: locals outlive the call.
    match code(unsafe { raw.driver.cuMemPoolCreate(&mut pool, &props) }) {
        SUCCESS => Ok(pool),
        refused => Err(refused),
    }
}

fn props(kind: CUmemAllocationType, place: CUmemLocationType, id: i32) -> CUmemPoolProps {
    let location = CUmemLocation { type_: place, id };
    CUmemPoolProps { allocType: kind, location, ..Default::default() }
}

impl Fixture {
    /// Creates a pool accessible to device 0.
    fn new(
        driver: &gpumem_tests::sys::Driver,
        (kind, place): (CUmemAllocationType, CUmemLocationType),
    ) -> Self {
        let raw = Raw::new(driver).unwrap();
        let (stream, pool) = (raw.stream().unwrap(), create(&raw, props(kind, place, 0)).unwrap());
        let fixture = Self { raw, stream, pool };
        assert_eq!(fixture.grant(DEVICE), SUCCESS);
        fixture
    }

    fn grant(&self, place: CUmemLocationType) -> CUresult {
        let access = CUmemAccessDesc {
            location: CUmemLocation { type_: place, id: 0 },
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the pool is alive, and the local outlives the call.
        code(unsafe { self.raw.driver.cuMemPoolSetAccess(self.pool, &access, 1) })
    }

    fn access(&self, place: CUmemLocationType) -> CUmemAccess_flags {
        let (mut flags, mut location) = (CUmemAccess_flags(9), CUmemLocation { type_: place, id: 0 });
        // SAFETY: the pool is alive, and both locals outlive the call.
        unsafe { self.raw.driver.cuMemPoolGetAccess(&mut flags, self.pool, &mut location).unwrap() };
        flags
    }

    fn alloc(&self, size_bytes: usize) -> u64 {
        let mut address = 0;
        // SAFETY: pool and stream are alive as long as the fixture, and `address` outlives the call.
        unsafe {
            self.raw
                .driver
                .cuMemAllocFromPoolAsync(&mut address, size_bytes, self.pool, self.stream)
                .unwrap();
        }
        address
    }

    fn free(&self, address: u64) {
        // SAFETY: the address was allocated here, and is freed once.
        unsafe { self.raw.driver.cuMemFreeAsync(address, self.stream).unwrap() };
    }

    fn fill(&self, address: u64, value: u8, size_bytes: usize) -> CUresult {
        // SAFETY: the caller owns that many bytes at the address, or the call is refused.
        code(unsafe { self.raw.driver.cuMemsetD8Async(address, value, size_bytes, self.stream) })
    }

    fn sync(&self) {
        // SAFETY: the stream is alive.
        unsafe { self.raw.driver.cuStreamSynchronize(self.stream).unwrap() };
    }

    fn reserved_bytes(&self) -> u64 {
        let mut value = 0_u64;
        // SAFETY: the pool is alive, and the attribute has 64 bits.
        unsafe {
            self.raw.driver.cuMemPoolGetAttribute(self.pool, RESERVED, (&raw mut value).cast()).unwrap()
        };
        value
    }

    fn end(self) {
        self.sync();
        // SAFETY: neither handle is used again.
        unsafe {
            self.raw.driver.cuMemPoolDestroy(self.pool).unwrap();
            self.raw.driver.cuStreamDestroy_v2(self.stream).unwrap();
        }
    }
}

fn host_write(address: u64, value: u8, size_bytes: usize) {
    let host = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
    // SAFETY: the block is alive and host-accessible, and no work uses it now.
    unsafe { host.write_bytes(value, size_bytes) };
}

fn host_sees(address: u64, value: u8, size_bytes: usize) -> bool {
    let host = std::ptr::with_exposed_provenance::<u8>(address as usize);
    // SAFETY: callers pass a live block of this size, which is host-accessible at this address, and no work writes it now.
    unsafe { std::slice::from_raw_parts(host, size_bytes) }.iter().all(|byte| *byte == value)
}

cases! {
    /// The kinds of pools that exist.
    fn kinds_of_pools(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        for (kind, place, id) in [
            (PINNED, DEVICE, 0),
            (PINNED, HOST, 0),
            (PINNED, HOST, 5),
            (PINNED, NODE, 0),
            (MANAGED, NOWHERE, 0),
            (MANAGED, DEVICE, 0),
            (MANAGED, HOST, 0),
            (MANAGED, NODE, 0),
        ] {
            let pool = create(&raw, props(kind, place, id)).unwrap();
            // SAFETY: the pool is not used again.
            unsafe { driver.cuMemPoolDestroy(pool).unwrap() };
        }
        for (kind, place, id) in [
            (PINNED, NOWHERE, 0),
            (PINNED, DEVICE, 77),
            (PINNED, NODE, 99),
            (PINNED, NODE, -1),
            (PINNED, CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0),
            (MANAGED, DEVICE, 77),
            (CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_INVALID, DEVICE, 0),
            (CUmemAllocationType(3), DEVICE, 0),
        ] {
            assert_eq!(create(&raw, props(kind, place, id)), Err(INVALID_VALUE), "{kind:?} {place:?} {id}");
        }
    }

    /// A pool of pinned memory can have a maximum size, a managed one cannot, and neither can be shared.
    fn unsupported_properties(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        for (kind, place) in KINDS {
            let shared = CUmemPoolProps { handleTypes: FILES, ..props(kind, place, 0) };
            assert_eq!(create(&raw, shared), Err(INVALID_VALUE));
        }
        let bounded = |(kind, place)| CUmemPoolProps { maxSize: 40 * MIB, ..props(kind, place, 0) };
        assert_eq!(create(&raw, bounded(KINDS[1])), Err(INVALID_VALUE));
        let pool = create(&raw, bounded(KINDS[0])).unwrap();
        let fixture = Fixture { stream: raw.stream().unwrap(), raw, pool };
        let blocks: Vec<_> = (0..64).map(|_| fixture.alloc(MIB)).collect();
        let mut address = 0;
        // SAFETY: a local outlives the call.
        let more = unsafe { driver.cuMemAllocFromPoolAsync(&mut address, MIB, pool, fixture.stream) };
        assert_eq!(code(more), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        assert_eq!(fixture.reserved_bytes(), 64 * MIB as u64);
        blocks.into_iter().for_each(|address| fixture.free(address));
        fixture.end();
    }

    /// The host can use a block right away. Devices use pinned memory after access was granted, and managed memory always.
    fn access_of_devices_and_host(driver: &Driver) {
        for kind in KINDS {
            let raw = Raw::new(driver).unwrap();
            let pool = create(&raw, props(kind.0, kind.1, 0)).unwrap();
            let fixture = Fixture { stream: raw.stream().unwrap(), raw, pool };
            let address = fixture.alloc(MIB);
            host_write(address, 3, MIB);
            assert!(host_sees(address, 3, MIB));
            let none = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE;
            let all = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
            let is_pinned = kind.0 == PINNED;
            assert_eq!(fixture.access(DEVICE), none);
            assert_eq!(fixture.access(HOST), if is_pinned { all } else { none });
            assert_eq!(fixture.fill(address, 4, MIB), if is_pinned { INVALID_VALUE } else { SUCCESS });
            assert_eq!(fixture.grant(DEVICE), SUCCESS);
            assert_eq!(fixture.grant(HOST), SUCCESS);
            assert_eq!((fixture.access(DEVICE), fixture.access(HOST)), (all, all));
            assert_eq!(fixture.fill(address, 5, MIB), SUCCESS);
            fixture.sync();
            assert!(host_sees(address, 5, MIB));
            fixture.free(address);
            fixture.end();
        }
        let fixture = Fixture::new(driver, (PINNED, DEVICE));
        assert_eq!(fixture.grant(HOST), NOT_SUPPORTED);
        fixture.end();
    }

    /// The attributes of the blocks' addresses. The driver treats pinned memory of a pool as host memory: a copy that declares it
    /// as device memory is refused, a copy that detects the kind succeeds.
    fn pointers_and_copies(driver: &Driver) {
        for kind in KINDS {
            let fixture = Fixture::new(driver, kind);
            let address = fixture.alloc(MIB);
            fixture.sync();
            host_write(address, 7, MIB);
            let is_pinned = kind.0 == PINNED;
            let attribute = |attribute| {
                let mut value = 0_u64;
                // SAFETY: no attribute queried here has more than 64 bits.
                let code = code(unsafe { driver.cuPointerGetAttribute((&raw mut value).cast(), attribute, address) });
                (code, value)
            };
            let memory_type = if is_pinned { CUmemorytype::CU_MEMORYTYPE_HOST } else { CUmemorytype::CU_MEMORYTYPE_DEVICE };
            assert_eq!(attribute(CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE), (SUCCESS, memory_type.0.into()));
            assert_eq!(attribute(CUpointer_attribute::CU_POINTER_ATTRIBUTE_CONTEXT), (SUCCESS, 0));
            assert_eq!(attribute(CUpointer_attribute::CU_POINTER_ATTRIBUTE_HOST_POINTER), (SUCCESS, address));
            assert_eq!(
                attribute(CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED),
                (SUCCESS, u64::from(!is_pinned))
            );
            assert_eq!(attribute(CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE).0, SUCCESS);
            assert_ne!(attribute(CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE).1, 0);
            let (plain, mut byte) = (fixture.raw.alloc(MIB).unwrap(), 0_u8);
            // SAFETY: all memory is alive until the stream was synchronised.
            unsafe {
                let down = code(driver.cuMemcpyDtoH_v2((&raw mut byte).cast(), address, 1));
                assert_eq!(down, if is_pinned { INVALID_VALUE } else { SUCCESS });
                driver.cuMemcpyAsync(plain, address, MIB, fixture.stream).unwrap();
                fixture.sync();
                assert_eq!(fixture.raw.read(plain, MIB).unwrap(), vec![7; MIB]);
                driver.cuMemFree_v2(plain).unwrap();
                driver.cuMemFree_v2(address).unwrap();
            }
            fixture.end();
        }
    }

    /// Managed memory of a pool can be prefetched, but does not accept advice.
    fn pages(driver: &Driver) {
        let fixture = Fixture::new(driver, KINDS[1]);
        let address = fixture.alloc(MIB);
        host_write(address, 9, MIB);
        // SAFETY: the block is alive.
        unsafe {
            driver.cuMemPrefetchAsync(address, MIB, 0, fixture.stream).unwrap();
            driver.cuMemPrefetchAsync(address, MIB, -1, fixture.stream).unwrap();
            let advice = CUmem_advise::CU_MEM_ADVISE_SET_READ_MOSTLY;
            assert_eq!(code(driver.cuMemAdvise(address, MIB, advice, 0)), NOT_SUPPORTED);
            assert_eq!(code(driver.cuStreamAttachMemAsync(fixture.stream, address, 0, 1)), INVALID_VALUE);
        }
        fixture.sync();
        assert!(host_sees(address, 9, MIB));
        fixture.free(address);
        fixture.end();
        let fixture = Fixture::new(driver, KINDS[0]);
        let address = fixture.alloc(MIB);
        // SAFETY: the block has that many bytes, the stream is alive, and the driver refuses unsupported calls.
        unsafe {
            assert_eq!(code(driver.cuMemPrefetchAsync(address, MIB, 0, fixture.stream)), INVALID_VALUE);
            let advice = CUmem_advise::CU_MEM_ADVISE_SET_READ_MOSTLY;
            assert_eq!(code(driver.cuMemAdvise(address, MIB, advice, 0)), INVALID_VALUE);
        }
        fixture.free(address);
        fixture.end();
    }

    /// A stream reuses memory that it freed while the device still uses it, so a write of the host to the new block is a race.
    fn a_free_on_a_stream_is_not_for_the_host(driver: &Driver) {
        for kind in KINDS {
            let fixture = Fixture::new(driver, kind);
            fixture.free(fixture.alloc(MIB));
            fixture.sync();
            // SAFETY: the stream is alive, and its context current.
            let gate = unsafe { StreamGate::close(driver, fixture.stream).unwrap() };
            let used = fixture.alloc(MIB);
            assert_eq!(fixture.fill(used, 1, MIB), SUCCESS);
            fixture.free(used);
            let again = fixture.alloc(MIB);
            assert_eq!(again, used);
            assert!(gate.open());
            fixture.sync();
            assert!(host_sees(again, 1, MIB));
            fixture.free(again);
            fixture.end();
        }
    }

    /// A trim releases free memory, and a synchronisation releases free memory beyond the threshold.
    fn memory_is_released(driver: &Driver) {
        for kind in KINDS {
            let fixture = Fixture::new(driver, kind);
            fixture.free(fixture.alloc(70 * MIB));
            fixture.sync();
            assert_eq!(fixture.reserved_bytes(), 0);
            let mut keep_bytes = u64::MAX;
            let threshold = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            // SAFETY: the pool is alive, and the attribute has 64 bits.
            unsafe { driver.cuMemPoolSetAttribute(fixture.pool, threshold, (&raw mut keep_bytes).cast()).unwrap() };
            fixture.free(fixture.alloc(70 * MIB));
            fixture.sync();
            assert!(fixture.reserved_bytes() >= 70 * MIB as u64);
            // SAFETY: the pool is alive.
            unsafe { driver.cuMemPoolTrimTo(fixture.pool, 0).unwrap() };
            assert_eq!(fixture.reserved_bytes(), 0);
            fixture.end();
        }
    }
}

//! Virtual memory management: reserved addresses, handles, mappings, access, and refused calls. Each case holds on the simulator
//! and on a GPU.

use gpumem_tests::cases;
use gpumem_tests::driver::raw::code;
use gpumem_tests::driver::vmm::{PIECE, Vmm};
use gpumem_tests::sys::CUresult;
use gpumem_tests::sys::types::*;

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

cases! {
    /// 2 MiB for both kinds, and the device reports support.
    fn granularity(driver: &Driver) {
        let Some(gpu) = Vmm::new(driver) else { return };
        for option in [
            CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM,
            CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
        ] {
            let mut bytes = 0;
            // SAFETY: locals outlive the call.
            unsafe { driver.cuMemGetAllocationGranularity(&mut bytes, &gpu.properties(), option).unwrap() };
            assert_eq!(bytes, PIECE);
        }
    }

    /// Memory is created in multiples of the granularity, and not beyond the size of the device.
    fn creation(driver: &Driver) {
        let Some(gpu) = Vmm::new(driver) else { return };
        assert_eq!(code(gpu.create(3 << 20).map(drop)), INVALID_VALUE);
        assert_eq!(code(gpu.create(1 << 50).map(drop)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let handle = gpu.create(4 * PIECE).unwrap();
        let mut properties = CUmemAllocationProp::default();
        // SAFETY: the handle is live; a local outlives the call.
        unsafe {
            driver.cuMemGetAllocationPropertiesFromHandle(&mut properties, handle).unwrap();
            assert_eq!(properties.type_, CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED);
            assert_eq!(properties.location.type_, CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE);
            assert_eq!(properties.location.id, gpu.device);
            driver.cuMemRelease(handle).unwrap();
        }
    }

    /// Four TiB of addresses, and addresses at a larger alignment.
    fn reservations(driver: &Driver) {
        let Some(gpu) = Vmm::new(driver) else { return };
        let large = gpu.reserve(4 << 40).unwrap();
        let mut aligned = 0;
        // SAFETY: a local outlives the call; both ranges hold nothing when they are freed.
        unsafe {
            driver.cuMemAddressReserve(&mut aligned, PIECE, 64 << 20, 0, 0).unwrap();
            assert!(aligned.is_multiple_of(64 << 20), "{aligned:#x}");
            driver.cuMemAddressFree(aligned, PIECE).unwrap();
            driver.cuMemAddressFree(large, 4 << 40).unwrap();
        }
    }

    /// A handle is mapped as a whole: an offset inside it is not supported.
    fn offsets_inside_a_handle_are_not_supported(driver: &Driver) {
        let Some(gpu) = Vmm::new(driver) else { return };
        let (base, handle) = (gpu.reserve(2 * PIECE).unwrap(), gpu.create(2 * PIECE).unwrap());
        // SAFETY: the driver checks addresses and handles, which is the subject of this test.
        unsafe {
            let refused = driver.cuMemMap(base, PIECE, PIECE, handle, 0);
            assert_eq!(code(refused), CUresult::CUDA_ERROR_NOT_SUPPORTED);
            driver.cuMemRelease(handle).unwrap();
            driver.cuMemAddressFree(base, 2 * PIECE).unwrap();
        }
    }

    /// One of several adjacent handles can be unmapped; a part of a handle cannot.
    fn unmapping(driver: &Driver) {
        let Some(gpu) = Vmm::new(driver) else { return };
        let base = gpu.reserve(4 * PIECE).unwrap();
        let handles = [PIECE, 2 * PIECE, PIECE].map(|size| gpu.create(size).unwrap());
        let [first, middle, last] = [base, base + PIECE as u64, base + 3 * PIECE as u64];
        gpu.map(first, PIECE, handles[0]).unwrap();
        gpu.map(middle, 2 * PIECE, handles[1]).unwrap();
        gpu.map(last, PIECE, handles[2]).unwrap();
        gpu.grant(base, 4 * PIECE).unwrap();
        // SAFETY: the driver checks addresses; no work is queued for the unmapped range.
        unsafe {
            driver.cuMemsetD8_v2(base, 7, 4 * PIECE).unwrap();
            driver.cuCtxSynchronize().unwrap();
            assert_eq!(code(driver.cuMemUnmap(middle, PIECE)), INVALID_VALUE);
            driver.cuMemUnmap(middle, 2 * PIECE).unwrap();
            assert_eq!(gpu.read(first + PIECE as u64 - 1, 1).unwrap(), [7]);
            assert_eq!(gpu.read(last, 1).unwrap(), [7]);
            driver.cuMemUnmap(first, PIECE).unwrap();
            driver.cuMemUnmap(last, PIECE).unwrap();
            handles.into_iter().for_each(|handle| driver.cuMemRelease(handle).unwrap());
            driver.cuMemAddressFree(base, 4 * PIECE).unwrap();
        }
    }

    /// Copies and memsets cross the boundaries of adjacent handles.
    fn handles_side_by_side(driver: &Driver) {
        let Some(gpu) = Vmm::new(driver) else { return };
        let base = gpu.reserve(2 * PIECE).unwrap();
        let handles = [0, 1].map(|index| {
            let handle = gpu.create(PIECE).unwrap();
            gpu.map(base + index * PIECE as u64, PIECE, handle).unwrap();
            handle
        });
        gpu.grant(base, 2 * PIECE).unwrap();
        let across = base + PIECE as u64 - 6;
        // SAFETY: the addresses are mapped, and the copy from pageable memory is staged.
        unsafe { driver.cuMemcpyHtoD_v2(across, b"side by side".as_ptr().cast(), 12).unwrap() };
        assert_eq!(gpu.read(across, 12).unwrap(), b"side by side");
        // SAFETY: no work is queued.
        unsafe {
            driver.cuMemUnmap(base, 2 * PIECE).unwrap();
            handles.into_iter().for_each(|handle| driver.cuMemRelease(handle).unwrap());
            driver.cuMemAddressFree(base, 2 * PIECE).unwrap();
        }
    }

    /// One handle mapped at two addresses is coherent, in both directions.
    fn aliases_are_coherent(driver: &Driver) {
        let Some(gpu) = Vmm::new(driver) else { return };
        let handle = gpu.create(PIECE).unwrap();
        let (here, there) = (gpu.reserve(PIECE).unwrap(), gpu.reserve(PIECE).unwrap());
        for base in [here, there] {
            gpu.map(base, PIECE, handle).unwrap();
            gpu.grant(base, PIECE).unwrap();
        }
        for (write, read, value) in [(here, there, 3), (there, here, 4)] {
            // SAFETY: the addresses are mapped.
            unsafe { driver.cuMemsetD8_v2(write, value, PIECE).unwrap() };
            assert_eq!(gpu.read(read + 1000, 2).unwrap(), [value; 2]);
        }
        // SAFETY: no work is queued.
        unsafe {
            driver.cuMemUnmap(here, PIECE).unwrap();
            assert_eq!(gpu.read(there, 1).unwrap(), [4]);
            driver.cuMemUnmap(there, PIECE).unwrap();
            driver.cuMemRelease(handle).unwrap();
            driver.cuMemAddressFree(here, PIECE).unwrap();
            driver.cuMemAddressFree(there, PIECE).unwrap();
        }
    }

    /// The handle of an address can be retrieved after the program has released it, because the mapping keeps it alive.
    fn a_mapping_keeps_its_handle(driver: &Driver) {
        let Some(gpu) = Vmm::new(driver) else { return };
        let (base, handle) = (gpu.reserve(PIECE).unwrap(), gpu.create(PIECE).unwrap());
        gpu.map(base, PIECE, handle).unwrap();
        gpu.grant(base, PIECE).unwrap();
        // SAFETY: addresses are mapped and handles live when they are used.
        unsafe {
            driver.cuMemRelease(handle).unwrap();
            driver.cuMemsetD8_v2(base, 6, PIECE).unwrap();
            assert_eq!(gpu.read(base, 1).unwrap(), [6]);
            let mut again = 0;
            let address = std::ptr::without_provenance_mut(base as usize + 100);
            driver.cuMemRetainAllocationHandle(&mut again, address).unwrap();
            driver.cuMemUnmap(base, PIECE).unwrap();
            gpu.map(base, PIECE, again).unwrap();
            gpu.grant(base, PIECE).unwrap();
            assert_eq!(gpu.read(base, 1).unwrap(), [6]);
            driver.cuMemUnmap(base, PIECE).unwrap();
            driver.cuMemRelease(again).unwrap();
            driver.cuMemAddressFree(base, PIECE).unwrap();
        }
    }

    /// Without access, a mapped address cannot be used; the refusal leaves the context usable.
    fn access(driver: &Driver) {
        let Some(gpu) = Vmm::new(driver) else { return };
        let (base, handle) = (gpu.reserve(PIECE).unwrap(), gpu.create(PIECE).unwrap());
        gpu.map(base, PIECE, handle).unwrap();
        assert_eq!(gpu.access(base), Ok(CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE));
        // SAFETY: the driver checks addresses, which is the subject of this test.
        unsafe {
            assert_eq!(code(driver.cuMemsetD8_v2(base, 1, PIECE)), INVALID_VALUE);
            gpu.grant(base, PIECE).unwrap();
            assert_eq!(gpu.access(base), Ok(CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
            driver.cuMemsetD8_v2(base, 1, PIECE).unwrap();
            assert_eq!(gpu.read(base, 1).unwrap(), [1]);
            driver.cuMemUnmap(base, PIECE).unwrap();
            driver.cuMemRelease(handle).unwrap();
            driver.cuMemAddressFree(base, PIECE).unwrap();
        }
    }

    /// A reserved address without a mapping is not memory. Neither reserved nor mapped addresses can be freed as plain memory.
    fn addresses_that_are_not_mapped(driver: &Driver) {
        let Some(gpu) = Vmm::new(driver) else { return };
        let base = gpu.reserve(PIECE).unwrap();
        assert_eq!(code(gpu.grant(base, PIECE)), INVALID_VALUE);
        // SAFETY: the driver checks addresses, which is the subject of this test.
        unsafe {
            assert_eq!(code(driver.cuMemsetD8_v2(base, 1, PIECE)), INVALID_VALUE);
            let handle = gpu.create(PIECE).unwrap();
            gpu.map(base, PIECE, handle).unwrap();
            assert_eq!(code(driver.cuMemFree_v2(base)), INVALID_VALUE);
            driver.cuMemUnmap(base, PIECE).unwrap();
            driver.cuMemRelease(handle).unwrap();
            driver.cuMemAddressFree(base, PIECE).unwrap();
        }
    }
}

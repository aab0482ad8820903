//! Managed memory: one address for the host and the device, prefetch, advice. Each case holds on the simulator
//! and on a GPU with concurrent access.

use gpumem_tests::cases;
use gpumem_tests::driver::raw::{Raw, code};
use gpumem_tests::sys::CUresult;
use gpumem_tests::sys::types::*;
use std::cell::Cell;

const MIB: usize = 1 << 20;
const HOST: i32 = -1;
const NOWHERE: i32 = -2;
const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

cases! {
    /// The device reports concurrent access by host and device.
    fn attributes(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        for attribute in [
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY,
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
        ] {
            let mut value = 0;
            // SAFETY: a local outlives the call.
            unsafe { driver.cuDeviceGetAttribute(&mut value, attribute, raw.device).unwrap() };
            assert_eq!(value, 1);
        }
    }

    /// Zero bytes and invalid flags are refused.
    fn refusals(driver: &Driver) {
        let _raw = Raw::new(driver).unwrap();
        let mut address = 0;
        // SAFETY: a local outlives the calls, which are refused.
        unsafe {
            assert_eq!(code(driver.cuMemAllocManaged(&mut address, 0, 1)), INVALID_VALUE);
            assert_eq!(code(driver.cuMemAllocManaged(&mut address, MIB, 64)), INVALID_VALUE);
        }
    }

    /// Host and device read each other's writes through one address.
    fn host_and_device_share_an_address(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        let (address, host) = managed(&raw, MIB);
        host[3].set(9);
        // SAFETY: the address is live; the host reads after the work is complete.
        unsafe {
            driver.cuMemsetD8_v2(address + 4, 5, MIB - 4).unwrap();
            driver.cuCtxSynchronize().unwrap();
            assert_eq!([host[3].get(), host[4].get(), host[MIB - 1].get()], [9, 5, 5]);
            assert_eq!(raw.read(address + 3, 2).unwrap(), [9, 5]);
            driver.cuMemFree_v2(address).unwrap();
            assert_eq!(code(driver.cuMemFree_v2(address)), INVALID_VALUE);
        }
    }

    /// A pointer is reported as managed, with the same address for host and device.
    fn pointers(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        let (address, _) = managed(&raw, MIB);
        let (mut is_managed, mut kind, mut host) = (0_u32, 0_u32, 0_u64);
        // SAFETY: locals are as wide as the attributes.
        unsafe {
            let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED;
            driver.cuPointerGetAttribute((&raw mut is_managed).cast(), attribute, address).unwrap();
            let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
            driver.cuPointerGetAttribute((&raw mut kind).cast(), attribute, address).unwrap();
            let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_HOST_POINTER;
            driver.cuPointerGetAttribute((&raw mut host).cast(), attribute, address + 100).unwrap();
            driver.cuMemFree_v2(address).unwrap();
        }
        assert_eq!((is_managed & 1, host), (1, address + 100));
        assert_eq!(kind, CUmemorytype::CU_MEMORYTYPE_DEVICE.0);
    }

    /// A prefetch moves pages and keeps their contents. A range reports the last prefetch that covered all of it.
    fn prefetch(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        let stream = raw.stream().unwrap();
        let (address, host) = managed(&raw, 4 * MIB);
        let last = |from: u64, size| {
            let attribute = CUmem_range_attribute::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION;
            range_attribute(&raw, attribute, from, size)
        };
        host[0].set(4);
        assert_eq!(last(address, 4 * MIB), NOWHERE);
        let location = |type_, id| CUmemLocation { type_, id };
        // SAFETY: the address and the stream are live.
        unsafe {
            let device = location(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, raw.device);
            driver.cuMemPrefetchAsync_v2(address, 4 * MIB, device, 0, stream).unwrap();
            driver.cuStreamSynchronize(stream).unwrap();
            assert_eq!(last(address, 4 * MIB), raw.device);
            let back = location(CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST, 0);
            driver.cuMemPrefetchAsync_v2(address, 2 * MIB, back, 0, stream).unwrap();
            driver.cuStreamSynchronize(stream).unwrap();
            assert_eq!(last(address, 2 * MIB), HOST);
            assert_eq!(last(address, 4 * MIB), NOWHERE);
            assert_eq!(host[0].get(), 4);
            driver.cuMemFree_v2(address).unwrap();
            driver.cuStreamDestroy_v2(stream).unwrap();
        }
    }

    /// Only managed memory can be prefetched or advised on.
    fn other_memory_has_no_pages(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        let (plain, stream) = (raw.alloc(MIB).unwrap(), raw.stream().unwrap());
        let device = CUmemLocation {
            type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: raw.device,
        };
        // SAFETY: the address and the stream are live.
        unsafe {
            let refused = driver.cuMemPrefetchAsync_v2(plain, MIB, device, 0, stream);
            assert_eq!(code(refused), INVALID_VALUE);
            let advice = CUmem_advise::CU_MEM_ADVISE_SET_READ_MOSTLY;
            assert_eq!(code(driver.cuMemAdvise_v2(plain, MIB, advice, device)), INVALID_VALUE);
            driver.cuMemFree_v2(plain).unwrap();
            driver.cuStreamDestroy_v2(stream).unwrap();
        }
    }

    /// Advice is stored by range and can be revoked.
    fn advice(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        let (address, _) = managed(&raw, 4 * MIB);
        let (device, host) = (
            CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: raw.device },
            CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST, id: 0 },
        );
        use CUmem_range_attribute as Attribute;
        let about = |attribute, size| range_attribute(&raw, attribute, address, size);
        // SAFETY: the address is live; the list has the stated length.
        unsafe {
            let advise = |size, advice, location| driver.cuMemAdvise_v2(address, size, advice, location).unwrap();
            advise(2 * MIB, CUmem_advise::CU_MEM_ADVISE_SET_READ_MOSTLY, device);
            assert_eq!(about(Attribute::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 2 * MIB), 1);
            assert_eq!(about(Attribute::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 4 * MIB), 0);
            advise(2 * MIB, CUmem_advise::CU_MEM_ADVISE_UNSET_READ_MOSTLY, device);
            assert_eq!(about(Attribute::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 2 * MIB), 0);

            advise(4 * MIB, CUmem_advise::CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host);
            assert_eq!(about(Attribute::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, 4 * MIB), HOST);
            advise(4 * MIB, CUmem_advise::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, host);
            assert_eq!(about(Attribute::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, 4 * MIB), NOWHERE);

            advise(4 * MIB, CUmem_advise::CU_MEM_ADVISE_SET_ACCESSED_BY, device);
            let mut list = [77; 3];
            let attribute = Attribute::CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY;
            driver.cuMemRangeGetAttribute(list.as_mut_ptr().cast(), 12, attribute, address, 4 * MIB).unwrap();
            assert_eq!(list, [raw.device, NOWHERE, NOWHERE]);
            driver.cuMemFree_v2(address).unwrap();
        }
    }
}

/// Managed memory until it is freed, as cells, because the device may write it at any time.
fn managed(raw: &Raw, size_bytes: usize) -> (u64, &[Cell<u8>]) {
    let mut address = 0;
    // SAFETY: a local outlives the call; the host may access the memory, and the tests read it before they free it.
    unsafe {
        raw.driver.cuMemAllocManaged(&mut address, size_bytes, 1).unwrap();
        let host = std::ptr::with_exposed_provenance(address as usize);
        (address, std::slice::from_raw_parts(host, size_bytes))
    }
}

fn range_attribute(raw: &Raw, attribute: CUmem_range_attribute, address: u64, size_bytes: usize) -> i32 {
    let mut value = 99;
    // SAFETY: a local outlives the call.
    unsafe {
        let data = (&raw mut value).cast();
        raw.driver.cuMemRangeGetAttribute(data, 4, attribute, address, size_bytes).unwrap();
    }
    value
}

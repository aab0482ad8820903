//! Handles of virtual memory, exported by descriptor.

use crate::sharing::child::{inherited, is_child, run_child};
use crate::sharing::fixture::{NONE, PIECE, POSIX, SUCCESS, Sharing};
use gpumem_tests::cases;
use gpumem_tests::driver::raw::code;
use gpumem_tests::sys::CUresult;
use gpumem_tests::sys::types::*;
use std::os::fd::AsRawFd;

cases! {
    /// Descriptors are supported for handles and for pools.
    fn attributes(driver: &Driver) {
        let gpu = Sharing::new(driver);
        let handles = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
        assert_eq!(gpu.attribute(handles), 1);
        let of_pools = gpu.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES);
        // A known difference: an H200 has fabric handles as well, the simulator has none.
        let fabric = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC.0 as i32;
        assert_eq!(of_pools & !fabric, POSIX.0 as i32);
        assert_eq!(gpu.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED), 1);
    }

    /// A handle imported in its own process maps the same memory, and is released separately.
    fn a_handle_imported_at_home(driver: &Driver) {
        let gpu = Sharing::new(driver);
        let handle = gpu.create(POSIX).unwrap();
        let import = gpu.import(gpu.export(handle).unwrap().as_raw_fd()).unwrap();
        let (here, there) = (gpu.place(handle), gpu.place(import));
        // SAFETY: the addresses are mapped.
        unsafe { driver.cuMemsetD8_v2(here, 7, PIECE).unwrap() };
        assert_eq!(gpu.read(there + 1000, 2).unwrap(), [7; 2]);
        gpu.take_away(here, handle);
        assert_eq!(gpu.read(there, 1).unwrap(), [7]);
        gpu.take_away(there, import);
    }

    /// A descriptor keeps the memory alive.
    fn a_descriptor_keeps_memory(driver: &Driver) {
        let gpu = Sharing::new(driver);
        let handle = gpu.create(POSIX).unwrap();
        let base = gpu.place(handle);
        // SAFETY: the address is mapped.
        unsafe { driver.cuMemsetD8_v2(base, 9, PIECE).unwrap() };
        assert_eq!(gpu.read(base, 1).unwrap(), [9]);
        let descriptor = gpu.export(handle).unwrap();
        gpu.take_away(base, handle);
        let again = gpu.import(descriptor.as_raw_fd()).unwrap();
        let base = gpu.place(again);
        assert_eq!(gpu.read(base + 77, 1).unwrap(), [9]);
        gpu.take_away(base, again);
    }

    /// The properties of a handle are returned, and the handle of an address is the one mapped there.
    fn properties(driver: &Driver) {
        let gpu = Sharing::new(driver);
        for types in [NONE, POSIX] {
            let handle = gpu.create(types).unwrap();
            let base = gpu.place(handle);
            let (mut properties, mut again) = (CUmemAllocationProp::default(), 0);
            let address = std::ptr::without_provenance_mut(base as usize);
            // SAFETY: locals outlive the calls; the address is mapped.
            unsafe {
                driver.cuMemGetAllocationPropertiesFromHandle(&mut properties, handle).unwrap();
                assert_eq!(properties.requestedHandleTypes, types);
                driver.cuMemRetainAllocationHandle(&mut again, address).unwrap();
                assert_eq!(again, handle);
                driver.cuMemRelease(again).unwrap();
            }
            gpu.take_away(base, handle);
        }
    }

    /// Handles created without export cannot be exported, and an invalid descriptor cannot be imported.
    fn refusals_of_handles(driver: &Driver) {
        let gpu = Sharing::new(driver);
        let private = gpu.create(NONE).unwrap();
        assert_ne!(code(gpu.export(private).map(drop)), SUCCESS);
        let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        assert_ne!(code(gpu.import(file.as_raw_fd()).map(drop)), SUCCESS);
        assert_eq!(code(gpu.import(0).map(drop)), CUresult::CUDA_ERROR_INVALID_VALUE);
        // SAFETY: the handle is live.
        unsafe { driver.cuMemRelease(private).unwrap() };
    }

    /// Another process writes into a handle through a descriptor.
    fn a_handle_in_another_process(driver: &Driver) {
        let gpu = Sharing::new(driver);
        if is_child() {
            let handle = gpu.import(inherited().as_raw_fd()).unwrap();
            let base = gpu.place(handle);
            assert_eq!(gpu.read(base + 5, 1).unwrap(), [1]);
            // SAFETY: the address is mapped.
            unsafe { driver.cuMemsetD8_v2(base, 2, PIECE / 2).unwrap() };
            assert_eq!(gpu.read(base, 1).unwrap(), [2]);
            return gpu.take_away(base, handle);
        }
        let handle = gpu.create(POSIX).unwrap();
        let base = gpu.place(handle);
        // SAFETY: the address is mapped.
        unsafe { driver.cuMemsetD8_v2(base, 1, PIECE).unwrap() };
        assert_eq!(gpu.read(base, 1).unwrap(), [1]);
        run_child(driver, module_path!(), "a_handle_in_another_process", gpu.export(handle).unwrap(), &[]);
        assert_eq!(gpu.read(base + PIECE as u64 / 2 - 1, 2).unwrap(), [2, 1]);
        gpu.take_away(base, handle);
    }
}

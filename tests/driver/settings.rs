//! Settings of contexts, and modules from files: calls made by other libraries.

use gpumem_adapt::array::pool::sys::types::*;
use gpumem_tests::cases;
use gpumem_tests::driver::raw::{Raw, code};
use std::ffi::CString;
use std::ptr::null_mut;

cases! {
    /// A limit has the value that was set, possibly rounded up; an unknown limit is an invalid value.
    fn limits(driver: &Driver) {
        let _raw = Raw::new(driver).unwrap();
        let mut before = 0;
        let mut after = 0;
        let limit = CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE;
        // SAFETY: the out-pointers live through the calls.
        unsafe {
            driver.cuCtxGetLimit(&mut before, limit).unwrap();
            driver.cuCtxSetLimit(limit, before + (1 << 20)).unwrap();
            driver.cuCtxGetLimit(&mut after, limit).unwrap();
            assert!(after >= before + (1 << 20), "{before} {after}");
            driver.cuCtxSetLimit(limit, before).unwrap();
            let unknown = driver.cuCtxGetLimit(&mut after, CUlimit(99));
            assert_eq!(code(unknown), CUresult::CUDA_ERROR_INVALID_VALUE);
        }
    }

    /// The flags of a context can be changed while it is alive.
    fn flags(driver: &Driver) {
        let _raw = Raw::new(driver).unwrap();
        let (mut before, mut after) = (0, 0);
        let blocking = CUctx_flags::CU_CTX_SCHED_BLOCKING_SYNC.0;
        // SAFETY: the out-pointers live through the calls.
        unsafe {
            driver.cuCtxGetFlags(&mut before).unwrap();
            driver.cuCtxSetFlags(blocking).unwrap();
            driver.cuCtxGetFlags(&mut after).unwrap();
            assert_ne!(after & blocking, 0, "{before:#x} {after:#x}");
            driver.cuCtxSetFlags(before).unwrap();
        }
    }

    /// Preferences for caches and banks are accepted; current devices have banks of four bytes.
    fn preferences(driver: &Driver) {
        let _raw = Raw::new(driver).unwrap();
        let (mut cache, mut banks) = (CUfunc_cache(99), CUsharedconfig(99));
        // SAFETY: the out-pointers live through the calls.
        unsafe {
            driver.cuCtxGetCacheConfig(&mut cache).unwrap();
            driver.cuCtxSetCacheConfig(CUfunc_cache::CU_FUNC_CACHE_PREFER_L1).unwrap();
            driver.cuCtxSetCacheConfig(cache).unwrap();
            driver.cuCtxGetSharedMemConfig(&mut banks).unwrap();
        }
        assert_eq!(cache, CUfunc_cache::CU_FUNC_CACHE_PREFER_NONE);
        assert_eq!(banks, CUsharedconfig::CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE);
    }

    /// A module is loaded from a PTX file; a missing file is refused with its own code.
    fn module_from_a_file(driver: &Driver) {
        let _raw = Raw::new(driver).unwrap();
        let file = std::env::temp_dir().join(format!("gpumem-settings-{}.ptx", std::process::id()));
        std::fs::write(&file, ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing()\n{\nret;\n}\n")
            .unwrap();
        let path = CString::new(file.to_str().unwrap()).unwrap();
        let mut module = null_mut();
        // SAFETY: the path and the out-pointer live through the calls.
        unsafe {
            driver.cuModuleLoad(&mut module, path.as_ptr()).unwrap();
            driver.cuModuleUnload(module).unwrap();
            std::fs::remove_file(&file).unwrap();
            let gone = driver.cuModuleLoad(&mut module, path.as_ptr());
            assert_eq!(code(gone), CUresult::CUDA_ERROR_FILE_NOT_FOUND);
        }
    }
}

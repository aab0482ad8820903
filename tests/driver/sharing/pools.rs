//! Pools of the driver, exported by descriptor, and their blocks.

use crate::sharing::child::{child_bytes, inherited, is_child, run_child};
use crate::sharing::fixture::{NONE, PIECE, POSIX, SUCCESS, Sharing};
use gpumem_tests::cases;
use gpumem_tests::driver::raw::code;
use gpumem_tests::sys::CUresult;
use gpumem_tests::sys::types::CUmemPoolPtrExportData;
use std::os::fd::AsRawFd;

cases! {
    /// Pools created without export and their blocks cannot be exported, and an invalid descriptor cannot be imported.
    fn refusals_of_pools(driver: &Driver) {
        let gpu = Sharing::new(driver);
        let private = gpu.pool(NONE);
        let stream = gpu.stream();
        assert_ne!(code(gpu.export_pool(private).map(drop)), SUCCESS);
        let block = gpu.alloc_from(private, stream).unwrap();
        assert_ne!(code(gpu.export_pointer(block).map(drop)), SUCCESS);
        let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        assert_ne!(code(gpu.import_pool(file.as_raw_fd()).map(drop)), SUCCESS);
        // SAFETY: the block and the handles are live, and nothing uses them any more.
        unsafe {
            driver.cuMemFreeAsync(block, stream).unwrap();
            driver.cuStreamSynchronize(stream).unwrap();
        }
    }

    /// An imported pool cannot allocate, and cannot be set as a device's pool.
    fn an_imported_pool_allocates_nothing(driver: &Driver) {
        let gpu = Sharing::new(driver);
        let exporter = gpu.pool(POSIX);
        let importer = gpu.import_pool(gpu.export_pool(exporter).unwrap().as_raw_fd()).unwrap();
        let stream = gpu.stream();
        assert_ne!(code(gpu.alloc_from(importer, stream).map(drop)), SUCCESS);
        // SAFETY: the handles are live.
        unsafe {
            assert_ne!(code(driver.cuDeviceSetMemPool(gpu.device, importer)), SUCCESS);
        }
    }

    /// A block imported in its own process is a second address of the same memory; the import must be freed first.
    fn a_block_imported_at_home(driver: &Driver) {
        let gpu = Sharing::new(driver);
        let exporter = gpu.pool(POSIX);
        let importer = gpu.import_pool(gpu.export_pool(exporter).unwrap().as_raw_fd()).unwrap();
        let stream = gpu.stream();
        let block = gpu.alloc_from(exporter, stream).unwrap();
        // SAFETY: the block is live, the import is freed before it, and both frees are on one stream.
        unsafe {
            driver.cuMemsetD8Async(block, 3, PIECE, stream).unwrap();
            driver.cuStreamSynchronize(stream).unwrap();
            let alias = gpu.import_pointer(importer, gpu.export_pointer(block).unwrap()).unwrap();
            driver.cuMemsetD8Async(alias, 4, PIECE / 2, stream).unwrap();
            assert_eq!(gpu.read(block + PIECE as u64 / 2 - 1, 2).unwrap(), [4, 3]);
            driver.cuMemFreeAsync(alias, stream).unwrap();
            driver.cuMemFreeAsync(block, stream).unwrap();
            driver.cuStreamSynchronize(stream).unwrap();
        }
    }

    /// Another process imports a block through the pool, writes into it, and frees its import.
    fn a_block_in_another_process(driver: &Driver) {
        let (gpu, stream) = Sharing::with_stream(driver);
        if is_child() {
            let pool = gpu.import_pool(inherited().as_raw_fd()).unwrap();
            let block = gpu.import_pointer(pool, CUmemPoolPtrExportData { reserved: child_bytes() }).unwrap();
            assert_eq!(gpu.read(block + 5, 1).unwrap(), [1]);
            // SAFETY: the import is live and freed once, after all work.
            unsafe {
                driver.cuMemsetD8Async(block, 2, PIECE / 2, stream).unwrap();
                driver.cuMemFreeAsync(block, stream).unwrap();
                driver.cuStreamSynchronize(stream).unwrap();
            }
            return;
        }
        let pool = gpu.pool(POSIX);
        let block = gpu.alloc_from(pool, stream).unwrap();
        // SAFETY: the block is live, and the other process has ended before it is freed.
        unsafe {
            driver.cuMemsetD8Async(block, 1, PIECE, stream).unwrap();
            driver.cuStreamSynchronize(stream).unwrap();
            // A block can be exported only after its pool was.
            assert_eq!(code(gpu.export_pointer(block).map(drop)), CUresult::CUDA_ERROR_INVALID_VALUE);
            let descriptor = gpu.export_pool(pool).unwrap();
            let data = gpu.export_pointer(block).unwrap().reserved;
            run_child(driver, module_path!(), "a_block_in_another_process", descriptor, &data);
            assert_eq!(gpu.read(block + PIECE as u64 / 2 - 1, 2).unwrap(), [2, 1]);
            driver.cuMemFreeAsync(block, stream).unwrap();
            driver.cuStreamSynchronize(stream).unwrap();
        }
    }
}

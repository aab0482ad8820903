//! Less frequent calls that programs make: memory with a pitch, callbacks, occupancy, bus identifiers. Each case holds on the
//! simulator and on a GPU.

use gpumem_tests::cases;
use gpumem_tests::driver::raw::{Raw, code};
use gpumem_tests::sys::types::*;
use gpumem_tests::sys::{CUresult, Driver};
use std::ffi::{c_char, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

const SUCCESS: CUresult = CUresult::CUDA_SUCCESS;
const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

cases! {
    /// Rows start at multiples of a pitch that is at least their width; memsets of rows leave the gaps unchanged.
    fn rows_with_a_pitch(driver: &Driver) {
        let gpu = Raw::new(driver).unwrap();
        for element_bytes in [4, 8, 16] {
            let (mut address, mut pitch) = (0, 0);
            // SAFETY: locals outlive the calls; the rows lie in the allocation, which is freed once.
            unsafe {
                driver.cuMemAllocPitch_v2(&mut address, &mut pitch, 1000, 3, element_bytes).unwrap();
                assert!(pitch >= 1000 && pitch.is_multiple_of(element_bytes as usize), "{pitch}");
                driver.cuMemsetD8_v2(address, 1, 3 * pitch).unwrap();
                driver.cuMemsetD2D8_v2(address, pitch, 2, 1000, 3).unwrap();
                driver.cuMemsetD2D16_v2(address, pitch, 0x0303, 1, 2).unwrap();
                driver.cuMemsetD2D32_v2(address + 4, pitch, 0x0404_0404, 1, 1).unwrap();
                let bytes = gpu.read(address, 3 * pitch).unwrap();
                assert_eq!(bytes[..9], [3, 3, 2, 2, 4, 4, 4, 4, 2]);
                assert_eq!(bytes[pitch..pitch + 5], [3, 3, 2, 2, 2]);
                assert_eq!((bytes[2 * pitch], bytes[2 * pitch + 999]), (2, 2));
                assert!(bytes[1000..pitch].iter().all(|&byte| byte == 1));
                driver.cuMemFree_v2(address).unwrap();
            }
        }
        // SAFETY: locals outlive the call.
        let empty = unsafe { driver.cuMemAllocPitch_v2(&mut 0, &mut 0, 0, 0, 4) };
        assert_eq!(code(empty), INVALID_VALUE);
    }

    /// A callback runs in the order of its stream and receives the status of success.
    fn callbacks(driver: &Driver) {
        let gpu = Raw::new(driver).unwrap();
        let (stream, seen) = (gpu.stream().unwrap(), AtomicU32::new(0));
        let data: *mut c_void = (&raw const seen).cast_mut().cast();
        // SAFETY: `seen` lives until the stream was synchronised.
        unsafe {
            driver.cuStreamAddCallback(stream, Some(count), data, 0).unwrap();
            driver.cuStreamAddCallback(stream, Some(count), data, 0).unwrap();
            driver.cuStreamSynchronize(stream).unwrap();
            assert_eq!(seen.load(Ordering::Relaxed), 2);
            driver.cuStreamDestroy_v2(stream).unwrap();
        }
    }

    /// The occupancy of an empty kernel, and its best block size.
    fn occupancy(driver: &Driver) {
        let _gpu = Raw::new(driver).unwrap();
        let (module, function) = nothing(driver);
        let (mut blocks, mut grid, mut block, mut bytes) = (0, 0, 0, 0);
        // SAFETY: locals outlive the calls; the function is loaded.
        unsafe {
            driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, function, 1024, 0).unwrap();
            assert!((1..=2).contains(&blocks), "{blocks}");
            driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, function, 32, 0).unwrap();
            assert!((16..=32).contains(&blocks), "{blocks}");
            let none = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, function, 0, 0);
            assert_eq!(code(none), INVALID_VALUE);
            driver.cuOccupancyMaxPotentialBlockSize(&mut grid, &mut block, function, None, 0, 0).unwrap();
            assert!(grid > 0 && block > 0 && block <= 1024 && block % 32 == 0, "{grid} {block}");
            driver.cuOccupancyMaxPotentialBlockSize(&mut grid, &mut block, function, None, 0, 128).unwrap();
            assert!(block <= 128, "{block}");
            driver.cuOccupancyAvailableDynamicSMemPerBlock(&mut bytes, function, 1, 128).unwrap();
            assert!(bytes >= 48 << 10, "{bytes}");
            driver.cuModuleUnload(module).unwrap();
        }
    }

    /// A kernel is launched with `cuLaunchKernelEx`.
    fn launch_by_structure(driver: &Driver) {
        let gpu = Raw::new(driver).unwrap();
        let (module, function) = nothing(driver);
        let stream = gpu.stream().unwrap();
        let config = CUlaunchConfig {
            gridDimX: 1,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 32,
            blockDimY: 1,
            blockDimZ: 1,
            hStream: stream,
            ..Default::default()
        };
        // SAFETY: locals outlive the calls; the function is loaded and has no parameters.
        unsafe {
            driver.cuLaunchKernelEx(&config, function, null_mut(), null_mut()).unwrap();
            let no_threads = CUlaunchConfig { blockDimX: 0, ..config };
            assert_eq!(code(driver.cuLaunchKernelEx(&no_threads, function, null_mut(), null_mut())), INVALID_VALUE);
            driver.cuStreamSynchronize(stream).unwrap();
            driver.cuStreamDestroy_v2(stream).unwrap();
            driver.cuModuleUnload(module).unwrap();
        }
    }

    /// A device is found by its bus identifier.
    fn names_on_the_bus(driver: &Driver) {
        let gpu = Raw::new(driver).unwrap();
        let (mut name, mut device) = ([1 as c_char; 32], -1);
        // SAFETY: locals outlive the calls.
        unsafe {
            driver.cuDeviceGetPCIBusId(name.as_mut_ptr(), 32, gpu.device).unwrap();
            driver.cuDeviceGetByPCIBusId(&mut device, name.as_ptr()).unwrap();
            assert_eq!(device, gpu.device);
            assert_ne!(code(driver.cuDeviceGetByPCIBusId(&mut device, c"nowhere".as_ptr())), SUCCESS);
        }
    }
}

unsafe extern "C" fn count(_stream: CUstream, status: CUresult, seen: *mut c_void) {
    // SAFETY: the case passes a counter that lives until the stream was synchronised.
    let seen = unsafe { &*seen.cast::<AtomicU32>() };
    seen.fetch_add(u32::from(status == SUCCESS), Ordering::Relaxed);
}

/// A kernel that does nothing, loaded.
fn nothing(driver: &Driver) -> (CUmodule, CUfunction) {
    const PTX: &[u8] =
        b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing()\n{\nret;\n}\n\0";
    let (mut module, mut function) = (null_mut(), null_mut());
    // SAFETY: the image ends in NUL; locals outlive the calls.
    unsafe {
        driver.cuModuleLoadData(&mut module, PTX.as_ptr().cast()).unwrap();
        driver.cuModuleGetFunction(&mut function, module, c"nothing".as_ptr()).unwrap();
    }
    (module, function)
}

//! Less frequent calls that most programs make.

use super::*;
use gpumem_sim::{Kernel, KernelFault, Launch};
use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

const PTX: &[u8] =
    b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry add_one(.param .u64 p)\n{\nret;\n}\n\0";

static KERNELS: [Kernel; 1] = [Kernel::new("add_one", add_one)];

fn add_one(launch: &mut Launch<'_>) -> Result<(), KernelFault> {
    let address = launch.arg::<u64>()?;
    launch.write::<u32>(address, 1)?.iter().for_each(|value| value.set(value.get() + 1));
    Ok(())
}

fn function(gpu: &Machine) -> (CUmodule, CUfunction) {
    gpu.sim().register(&KERNELS);
    let (mut module, mut function) = (null_mut(), null_mut());
    // SAFETY: the image ends in NUL; locals outlive the calls.
    unsafe {
        gpu.cuModuleLoadData(&mut module, PTX.as_ptr().cast()).unwrap();
        gpu.cuModuleGetFunction(&mut function, module, c"add_one".as_ptr()).unwrap();
    }
    (module, function)
}

#[test]
fn rows_with_a_pitch() {
    let gpu = seeded(1);
    let (mut address, mut pitch) = (0, 0);
    // SAFETY: locals outlive the calls; addresses are checked by the driver under test.
    unsafe {
        gpu.cuMemAllocPitch_v2(&mut address, &mut pitch, 1000, 3, 4).unwrap();
        assert_eq!(pitch, 1024);
        gpu.cuMemsetD2D8_v2(address, pitch, 7, 1000, 3).unwrap();
        gpu.cuMemsetD2D16_v2(address, pitch, 0x0808, 1, 3).unwrap();
        gpu.cuMemsetD2D32_v2(address + 4, pitch, 0x0909_0909, 1, 2).unwrap();
        let row = |index: u64, len| gpu.download(null_mut(), address + index * 1024, len);
        assert_eq!(row(0, 9), [8, 8, 7, 7, 9, 9, 9, 9, 7]);
        assert_eq!(row(2, 5), [8, 8, 7, 7, 7]);
        assert_eq!(row(2, 1000)[999], 7);
        for (width, height, element) in [(1000, 3, 3), (0, 3, 4), (1000, 0, 4)] {
            let refused = gpu.cuMemAllocPitch_v2(&mut address, &mut pitch, width, height, element);
            assert_eq!(code(refused), INVALID_VALUE, "{width} {height} {element}");
        }
        let huge = gpu.cuMemAllocPitch_v2(&mut address, &mut pitch, usize::MAX, usize::MAX, 4);
        assert_eq!(code(huge), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        assert_eq!(code(gpu.cuMemAllocPitch_v2(null_mut(), &mut pitch, 1000, 3, 4)), INVALID_VALUE);
    }
}

/// The arguments that a callback received.
#[derive(Default)]
struct Notified {
    count: AtomicU32,
    status: AtomicU32,
    stream: AtomicU64,
}

unsafe extern "C" fn notify(stream: CUstream, status: CUresult, notified: *mut c_void) {
    // SAFETY: every test passes a `Notified` that outlives the work.
    let notified = unsafe { &*notified.cast::<Notified>() };
    notified.status.store(status.0, Ordering::Relaxed);
    notified.stream.store(stream as u64, Ordering::Relaxed);
    notified.count.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn callbacks_run_in_order_and_are_told_of_a_lost_context() {
    for seed in 0..20 {
        let notified = Notified::default();
        let data: *mut c_void = (&raw const notified).cast_mut().cast();
        let gpu = seeded(seed);
        let (stream, memory) = (gpu.stream(), gpu.alloc(100));
        gpu.fill(stream, memory, 1, 100);
        // SAFETY: `notified` outlives the machine; addresses are checked by the driver under test.
        unsafe {
            gpu.cuStreamAddCallback(stream, Some(notify), data, 0).unwrap();
            gpu.sync(stream);
            assert_eq!(
                (notified.count.load(Ordering::Relaxed), notified.status.load(Ordering::Relaxed)),
                (1, 0)
            );
            assert_eq!(notified.stream.load(Ordering::Relaxed), stream as u64);
            assert_eq!(code(gpu.cuStreamAddCallback(stream, None, data, 0)), INVALID_VALUE);
            assert_eq!(code(gpu.cuStreamAddCallback(stream, Some(notify), data, 1)), INVALID_VALUE);

            // The fill is not ordered before the free, so it may fault.
            let other = gpu.stream();
            gpu.fill(stream, memory, 2, 100);
            gpu.cuStreamAddCallback(stream, Some(notify), data, 0).unwrap();
            gpu.cuMemFreeAsync(memory, other).unwrap();
            let _ = gpu.cuCtxSynchronize();
        }
        let lost = gpu.sim().report().faults.len() == 1;
        let status = if lost { CUresult::CUDA_ERROR_ILLEGAL_ADDRESS.0 } else { 0 };
        assert_eq!(
            (notified.count.load(Ordering::Relaxed), notified.status.load(Ordering::Relaxed)),
            (2, status),
            "seed {seed}"
        );
    }
}

#[test]
fn a_callback_is_no_node_of_a_graph() {
    let gpu = seeded(1);
    let (stream, notified) = (gpu.stream(), Notified::default());
    let data: *mut c_void = (&raw const notified).cast_mut().cast();
    // SAFETY: `notified` outlives the machine.
    unsafe {
        gpu.cuStreamBeginCapture_v2(stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
        let refused = gpu.cuStreamAddCallback(stream, Some(notify), data, 0);
        assert_eq!(code(refused), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
}

#[test]
fn occupancy() {
    let gpu = seeded(1);
    let (_, function) = function(&gpu);
    let blocks = |threads: c_int, shared_bytes| {
        let mut count = -1;
        // SAFETY: a local outlives the call; the handle is live.
        let answer = unsafe {
            gpu.cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut count, function, threads, shared_bytes)
        };
        answer.map(|()| count)
    };
    assert_eq!([1024, 512, 96, 32, 1].map(|threads| blocks(threads, 0).unwrap()), [2, 4, 21, 32, 32]);
    assert_eq!([4 << 10, 48 << 10].map(|bytes| blocks(64, bytes).unwrap()), [32, 4]);
    assert_eq!((blocks(1025, 0).unwrap(), blocks(64, 49 << 10).unwrap()), (0, 0));
    assert_eq!([0, -1].map(|threads| code(blocks(threads, 0))), [INVALID_VALUE; 2]);

    /// Half a KiB for each thread.
    unsafe extern "C" fn shared_of(threads: c_int) -> usize {
        threads as usize * 512
    }
    let (mut grid, mut block, mut bytes) = (0, 0, 0);
    // SAFETY: locals outlive the calls; the handle is live.
    unsafe {
        gpu.cuOccupancyMaxPotentialBlockSize(&mut grid, &mut block, function, None, 0, 0).unwrap();
        assert_eq!((grid, block), (2 * 132, 1024));
        gpu.cuOccupancyMaxPotentialBlockSize(&mut grid, &mut block, function, None, 0, 100).unwrap();
        assert_eq!((grid, block), (32 * 132, 64));
        gpu.cuOccupancyMaxPotentialBlockSize(&mut grid, &mut block, function, Some(shared_of), 0, 0).unwrap();
        assert_eq!((grid, block), (13 * 132, 32));
        gpu.cuOccupancyMaxPotentialBlockSizeWithFlags(&mut grid, &mut block, function, None, 0, 0, 1)
            .unwrap();
        let flags = gpu.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&mut grid, function, 32, 0, 2);
        assert_eq!(code(flags), INVALID_VALUE);
        gpu.cuOccupancyAvailableDynamicSMemPerBlock(&mut bytes, function, 2, 1024).unwrap();
        assert_eq!(bytes, 113 << 10);
        let many = gpu.cuOccupancyAvailableDynamicSMemPerBlock(&mut bytes, function, 3, 1024);
        assert_eq!(code(many), INVALID_VALUE);
        let none = gpu.cuOccupancyAvailableDynamicSMemPerBlock(&mut bytes, function, 0, 1024);
        assert_eq!(code(none), INVALID_VALUE);
        let unknown = gpu.cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut grid, null_mut(), 32, 0);
        assert_eq!(code(unknown), CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
}

#[test]
fn launches_in_their_other_forms() {
    let gpu = seeded(1);
    let (module, function) = function(&gpu);
    let (stream, mut memory) = (gpu.stream(), gpu.alloc(4));
    gpu.fill(stream, memory, 0, 4);
    let mut parameters = [(&raw mut memory).cast::<c_void>()];
    let cooperative = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    let mut attribute = CUlaunchAttribute { id: cooperative, ..Default::default() };
    let mut config = CUlaunchConfig {
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 1,
        blockDimY: 1,
        blockDimZ: 1,
        hStream: stream,
        attrs: &raw mut attribute,
        numAttrs: 1,
        ..Default::default()
    };
    // SAFETY: locals outlive the calls; the parameters are as the signature says.
    unsafe {
        let parameters = parameters.as_mut_ptr();
        gpu.cuLaunchCooperativeKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters).unwrap();
        gpu.cuLaunchKernelEx(&config, function, parameters, null_mut()).unwrap();
        assert_eq!(gpu.download(stream, memory, 4), [2, 0, 0, 0]);
        // A cooperative launch of more blocks than the device holds is refused in both forms, and one of another kind is not.
        let blocks = |threads| {
            let mut count = 0;
            gpu.cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut count, function, threads, 0).unwrap();
            132 * count as u32
        };
        let too_large = CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
        for (threads, more, expected) in [
            (1, 0, CUresult::CUDA_SUCCESS),
            (1, 1, too_large),
            (1024, 0, CUresult::CUDA_SUCCESS),
            (1024, 1, too_large),
        ] {
            let grid = blocks(threads) + more;
            let threads = threads as u32;
            let launched =
                gpu.cuLaunchCooperativeKernel(function, grid, 1, 1, threads, 1, 1, 0, stream, parameters);
            assert_eq!(code(launched), expected, "{grid} blocks of {threads}");
            (config.gridDimX, config.blockDimX) = (grid, threads);
            for (is_cooperative, expected) in [(1, expected), (0, CUresult::CUDA_SUCCESS)] {
                (*config.attrs).value.cooperative = is_cooperative;
                assert_eq!(code(gpu.cuLaunchKernelEx(&config, function, parameters, null_mut())), expected);
            }
        }
        let none = gpu.cuLaunchCooperativeKernel(function, 1, 1, 1, 1025, 1, 1, 0, stream, parameters);
        assert_eq!(code(none), INVALID_VALUE);
        (config.gridDimX, config.blockDimX) = (1, 1);
        // A cluster of one block is a block. Others are refused by name, and the finding says what to do.
        (*config.attrs).id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        for (x, expected) in [(1, CUresult::CUDA_SUCCESS), (2, CUresult::CUDA_ERROR_NOT_SUPPORTED)] {
            (*config.attrs).value.clusterDim.x = x;
            (*config.attrs).value.clusterDim.y = 1;
            (*config.attrs).value.clusterDim.z = 1;
            let cluster = gpu.cuLaunchKernelEx(&config, function, parameters, null_mut());
            assert_eq!(code(cluster), expected);
        }
        let found: Vec<String> = gpu.sim().take_findings().iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), 1, "{found:?}");
        for part in [
            "cuLaunchKernelEx",
            "no clusters of blocks (`CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`); launch a kernel",
        ] {
            assert!(found[0].contains(part), "{found:?}");
        }
        config.attrs = null_mut();
        assert_eq!(code(gpu.cuLaunchKernelEx(&config, function, parameters, null_mut())), INVALID_VALUE);
        assert_eq!(
            code(gpu.cuLaunchKernelEx(std::ptr::null(), function, parameters, null_mut())),
            INVALID_VALUE
        );

        let mut name = std::ptr::null();
        gpu.cuFuncGetName(&mut name, function).unwrap();
        assert_eq!(std::ffi::CStr::from_ptr(name), c"add_one");
        assert_eq!(code(gpu.cuFuncGetName(&mut name, null_mut())), CUresult::CUDA_ERROR_INVALID_HANDLE);
        let mut count = 0;
        gpu.cuModuleGetFunctionCount(&mut count, module).unwrap();
        assert_eq!(count, 1);
        let mut state = CUfunctionLoadingState::CU_FUNCTION_LOADING_STATE_UNLOADED;
        gpu.cuFuncLoad(function).unwrap();
        gpu.cuFuncIsLoaded(&mut state, function).unwrap();
        assert_eq!(state, CUfunctionLoadingState::CU_FUNCTION_LOADING_STATE_LOADED);
    }
}

#[test]
fn names_on_the_bus() {
    let gpu = machine(SimConfig::new().devices(20));
    let (mut name, mut device) = ([1 as c_char; 13], -1);
    // SAFETY: locals outlive the calls.
    unsafe {
        gpu.cuDeviceGetPCIBusId(name.as_mut_ptr(), 13, 16).unwrap();
        let text = std::ffi::CStr::from_ptr(name.as_ptr()).to_str().unwrap();
        assert_eq!(text, "0000:11:00.0");
        gpu.cuDeviceGetByPCIBusId(&mut device, name.as_ptr()).unwrap();
        assert_eq!(device, 16);
        gpu.cuDeviceGetByPCIBusId(&mut device, c"0000:0a:00.0".as_ptr()).unwrap();
        assert_eq!(device, 9);
        let short = gpu.cuDeviceGetPCIBusId(name.as_mut_ptr(), 12, 0);
        assert_eq!(code(short), INVALID_VALUE);
        let nobody = gpu.cuDeviceGetByPCIBusId(&mut device, c"0000:77:00.0".as_ptr());
        assert_eq!(code(nobody), CUresult::CUDA_ERROR_INVALID_DEVICE);
    }
}

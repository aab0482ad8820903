//! Several devices on the simulator: links that do not exist, and other processes.

use super::*;

fn out_of_reach() -> Machine {
    machine(SimConfig::new().devices(3).without_link(2, 0))
}

#[test]
fn without_a_link_there_is_no_access_and_copies_go_through_the_host() {
    let gpu = out_of_reach();
    let far = primary(&gpu, 2);
    let (here, source) = (gpu.stream(), gpu.alloc(64));
    gpu.fill(here, source, 5, 64);
    gpu.sync(here);
    // SAFETY: locals outlive the calls; the rest is checked by the driver under test.
    unsafe {
        let mut value = 9;
        gpu.cuDeviceCanAccessPeer(&mut value, 2, 0).unwrap();
        assert_eq!(value, 0);
        let access = CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED;
        gpu.cuDeviceGetP2PAttribute(&mut value, access, 0, 2).unwrap();
        assert_eq!(value, 0);
        gpu.cuDeviceGetP2PAttribute(&mut value, access, 1, 2).unwrap();
        assert_eq!(value, 1);
        assert_eq!(
            code(gpu.cuDeviceGetP2PAttribute(&mut value, access, 1, 1)),
            CUresult::CUDA_ERROR_INVALID_DEVICE
        );
        gpu.cuCtxSetCurrent(far).unwrap();
        let refused = code(gpu.cuCtxEnablePeerAccess(gpu.context, 0));
        assert_eq!(refused, CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
        let (stream, target) = (gpu.stream(), gpu.alloc(64));
        assert_eq!(code(gpu.cuMemsetD8Async(source, 1, 64, stream)), CUresult::CUDA_ERROR_INVALID_VALUE);
        gpu.cuMemcpyPeerAsync(target, far, source, gpu.context, 64, stream).unwrap();
        assert_eq!(gpu.download(stream, target, 64), [5; 64]);
    }
}

#[test]
fn without_a_link_neither_a_pool_nor_a_mapping_can_be_shared() {
    let gpu = out_of_reach();
    let mut pool = null_mut();
    let location = |id| CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id };
    let wish = |id| CUmemAccessDesc {
        location: location(id),
        flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    // SAFETY: locals outlive the calls; the rest is checked by the driver under test.
    unsafe {
        gpu.cuDeviceGetDefaultMemPool(&mut pool, 0).unwrap();
        let refused = code(gpu.cuMemPoolSetAccess(pool, &wish(2), 1));
        assert_eq!(refused, CUresult::CUDA_ERROR_INVALID_DEVICE);
        gpu.cuMemPoolSetAccess(pool, &wish(1), 1).unwrap();
    }
    #[cfg(target_os = "linux")]
    {
        use super::virtual_memory::{PIECE, grant, mapped};
        let (base, _) = mapped(&gpu, 1);
        assert_eq!(code(grant(&gpu, base, PIECE, 2)), CUresult::CUDA_ERROR_INVALID_DEVICE);
        grant(&gpu, base, PIECE, 1).unwrap();
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_mapping_is_for_the_devices_that_were_given_access() {
    use super::virtual_memory::{PIECE, grant, mapped};
    let gpu = machine(SimConfig::new().devices(2));
    let other = primary(&gpu, 1);
    let (base, _) = mapped(&gpu, 2);
    let here = gpu.stream();
    // SAFETY: contexts and streams are live.
    unsafe { gpu.cuCtxSetCurrent(other).unwrap() };
    let there = gpu.stream();
    // SAFETY: addresses are checked by the driver under test.
    let fill = || unsafe { gpu.cuMemsetD8Async(base, 3, 2 * PIECE, there) };
    assert_eq!(code(fill()), CUresult::CUDA_ERROR_INVALID_VALUE);
    grant(&gpu, base, PIECE, 1).unwrap();
    assert_eq!(code(fill()), CUresult::CUDA_ERROR_INVALID_VALUE, "half of it");
    grant(&gpu, base + PIECE as u64, PIECE, 1).unwrap();
    fill().unwrap();
    gpu.sync(there);
    // SAFETY: the context is live.
    unsafe { gpu.cuCtxSetCurrent(gpu.context).unwrap() };
    assert_eq!(gpu.download(here, base + 2 * PIECE as u64 - 1, 1), [3]);
}

#[test]
fn another_process_takes_memory_and_gives_it_back() {
    let gpu = machine(SimConfig::new().memory_bytes(64 << 20));
    gpu.alloc(16 << 20);
    assert_eq!(gpu.sim().take_memory(0, 40 << 20), 40 << 20);
    assert_eq!(code(gpu.try_alloc(10 << 20)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(gpu.sim().take_memory(0, 40 << 20), 8 << 20);
    assert_eq!((gpu.sim().take_memory(0, 1), gpu.sim().take_memory(7, 1)), (0, 0));
    assert_eq!(gpu.sim().return_memory(0, 10 << 20), 10 << 20);
    gpu.alloc(10 << 20);
    assert_eq!(gpu.sim().return_memory(0, u64::MAX), 38 << 20);
}

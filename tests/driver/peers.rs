//! Two devices of one host: access to each other's memory, and the errors without access. Each case holds on the simulator and on
//! GPUs. On a machine with one GPU the cases are skipped; the simulator always has two devices.

mod copies;

use gpumem_sim::SimConfig;
use gpumem_tests::cases;
use gpumem_tests::driver::raw::code;
use gpumem_tests::harness::cases::skip_without_second_device;
use gpumem_tests::sys::types::*;
use gpumem_tests::sys::{CUresult, Driver};
use std::ptr::null_mut;

const MIB: usize = 1 << 20;
const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

cases! {
    /// Both devices report access to each other.
    fn links(driver: &Driver) {
        let Some(pair) = Pair::new(driver) else { return };
        for (device, peer) in [(0, 1), (1, 0)] {
            let (mut can, mut supported) = (0, 0);
            let attribute = CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED;
            // SAFETY: locals outlive the calls.
            unsafe {
                pair.driver.cuDeviceCanAccessPeer(&mut can, device, peer).unwrap();
                pair.driver.cuDeviceGetP2PAttribute(&mut supported, attribute, device, peer).unwrap();
            }
            assert_eq!((can, supported), (1, 1));
        }
    }

    /// Access is enabled once and disabled once.
    fn enabling_twice(driver: &Driver) {
        let Some(pair) = Pair::new(driver) else { return };
        pair.enter(1);
        // SAFETY: the context is live.
        unsafe {
            pair.driver.cuCtxEnablePeerAccess(pair.contexts[0], 0).unwrap();
            let again = code(pair.driver.cuCtxEnablePeerAccess(pair.contexts[0], 0));
            assert_eq!(again, CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
            pair.driver.cuCtxDisablePeerAccess(pair.contexts[0]).unwrap();
            let again = code(pair.driver.cuCtxDisablePeerAccess(pair.contexts[0]));
            assert_eq!(again, CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
        }
    }

    /// Plain memory of the other device may be written with peer access only. After a refusal the stream is usable.
    fn plain_memory(driver: &Driver) {
        let Some(pair) = Pair::new(driver) else { return };
        let address = pair.alloc(0);
        pair.enter(1);
        let stream = pair.stream();
        // SAFETY: the address is live until all work is done.
        unsafe {
            assert_eq!(code(pair.driver.cuMemsetD8Async(address, 7, MIB, stream)), INVALID_VALUE);
            pair.driver.cuStreamSynchronize(stream).unwrap();
            pair.driver.cuCtxEnablePeerAccess(pair.contexts[0], 0).unwrap();
            pair.driver.cuMemsetD8Async(address, 7, MIB, stream).unwrap();
            pair.driver.cuStreamSynchronize(stream).unwrap();
            assert_eq!(pair.last_byte(0, address), 7);
            pair.enter(1);
            pair.driver.cuCtxDisablePeerAccess(pair.contexts[0]).unwrap();
            pair.driver.cuStreamDestroy_v2(stream).unwrap();
            pair.enter(0);
            pair.driver.cuMemFree_v2(address).unwrap();
        }
    }

    /// A copy needs no peer access: the driver copies through the host.
    fn copies_without_access(driver: &Driver) {
        let Some(pair) = Pair::new(driver) else { return };
        let (source, target) = (pair.alloc(0), pair.alloc(1));
        pair.enter(0);
        let stream = pair.stream();
        let [near, far] = pair.contexts;
        // SAFETY: the addresses are live until all work is done.
        unsafe {
            pair.driver.cuMemsetD8Async(source, 4, MIB, stream).unwrap();
            pair.driver.cuMemcpyPeerAsync(target, far, source, near, MIB, stream).unwrap();
            pair.driver.cuStreamSynchronize(stream).unwrap();
            assert_eq!(pair.last_byte(1, target), 4);
            pair.driver.cuMemFree_v2(target).unwrap();
            pair.enter(0);
            pair.driver.cuMemFree_v2(source).unwrap();
            pair.driver.cuStreamDestroy_v2(stream).unwrap();
        }
    }

    /// Memory of a pool needs access granted by the pool, for copies too, with or without peer access. It may be freed on a
    /// stream of the other device.
    fn memory_of_a_pool(driver: &Driver) {
        let Some(pair) = Pair::new(driver) else { return };
        pair.enter(0);
        let (home, pool, mut address) = (pair.stream(), pair.pool(), 0);
        // SAFETY: handles are live; a local outlives the call.
        unsafe {
            pair.driver.cuMemAllocFromPoolAsync(&mut address, MIB, pool, home).unwrap();
            pair.driver.cuMemsetD8Async(address, 6, MIB, home).unwrap();
            pair.driver.cuStreamSynchronize(home).unwrap();
        }
        let target = pair.alloc(1);
        let away = pair.stream();
        // SAFETY: the addresses are live until all work is done.
        unsafe {
            pair.driver.cuCtxEnablePeerAccess(pair.contexts[0], 0).unwrap();
            let copy = || pair.driver.cuMemcpyDtoDAsync_v2(target, address, MIB, away);
            assert_eq!(code(copy()), INVALID_VALUE);
            pair.driver.cuMemPoolSetAccess(pool, &access(1), 1).unwrap();
            copy().unwrap();
            pair.driver.cuMemFreeAsync(address, away).unwrap();
            pair.driver.cuStreamSynchronize(away).unwrap();
            assert_eq!(pair.last_byte(1, target), 6);
            pair.driver.cuCtxDisablePeerAccess(pair.contexts[0]).unwrap();
            pair.driver.cuMemFree_v2(target).unwrap();
            pair.driver.cuStreamDestroy_v2(away).unwrap();
            pair.enter(0);
            pair.driver.cuMemPoolDestroy(pool).unwrap();
            pair.driver.cuStreamDestroy_v2(home).unwrap();
        }
    }

    /// Events are recorded by streams of their own context, and any stream can wait for them.
    fn events_across_devices(driver: &Driver) {
        let Some(pair) = Pair::new(driver) else { return };
        pair.enter(0);
        let (home, mut event) = (pair.stream(), null_mut());
        let disable_timing = CUevent_flags::CU_EVENT_DISABLE_TIMING.0;
        // SAFETY: handles are live; a local outlives the call.
        unsafe {
            pair.driver.cuEventCreate(&mut event, disable_timing).unwrap();
            pair.enter(1);
            let away = pair.stream();
            let refused = code(pair.driver.cuEventRecord(event, away));
            assert_eq!(refused, CUresult::CUDA_ERROR_INVALID_HANDLE);
            pair.driver.cuEventRecord(event, home).unwrap();
            pair.driver.cuStreamWaitEvent(away, event, 0).unwrap();
            pair.driver.cuStreamSynchronize(away).unwrap();
            pair.driver.cuEventDestroy_v2(event).unwrap();
            pair.driver.cuStreamDestroy_v2(away).unwrap();
            pair.driver.cuStreamDestroy_v2(home).unwrap();
        }
    }

    /// A stream that has waited for an event of the other device sees all work before it, every time.
    fn waiting_for_the_other_device(driver: &Driver) {
        let Some(pair) = Pair::new(driver) else { return };
        let (source, target) = (pair.alloc(0), pair.alloc(1));
        let away = pair.stream();
        pair.enter(0);
        let (home, mut event) = (pair.stream(), null_mut());
        let disable_timing = CUevent_flags::CU_EVENT_DISABLE_TIMING.0;
        let [near, far] = pair.contexts;
        // SAFETY: handles are live, and so are the addresses until all work is done; a local outlives the call.
        unsafe {
            pair.driver.cuEventCreate(&mut event, disable_timing).unwrap();
            for value in 1..=20 {
                pair.enter(0);
                pair.driver.cuMemsetD8Async(source, 0, MIB, home).unwrap();
                pair.driver.cuMemsetD8Async(source, value, MIB, home).unwrap();
                pair.driver.cuEventRecord(event, home).unwrap();
                pair.enter(1);
                pair.driver.cuStreamWaitEvent(away, event, 0).unwrap();
                pair.driver.cuMemcpyPeerAsync(target, far, source, near, MIB, away).unwrap();
                pair.driver.cuStreamSynchronize(away).unwrap();
                assert_eq!(pair.last_byte(1, target), value);
            }
            pair.driver.cuMemFree_v2(target).unwrap();
            pair.driver.cuStreamDestroy_v2(away).unwrap();
            pair.enter(0);
            pair.driver.cuStreamSynchronize(home).unwrap();
            pair.driver.cuEventDestroy_v2(event).unwrap();
            pair.driver.cuMemFree_v2(source).unwrap();
            pair.driver.cuStreamDestroy_v2(home).unwrap();
        }
    }
}

fn access(id: i32) -> CUmemAccessDesc {
    CUmemAccessDesc {
        location: CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id },
        flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    }
}

/// Devices 0 and 1 with their primary contexts. [`Pair::enter`] makes one of them current.
struct Pair {
    driver: Driver,
    contexts: [CUcontext; 2],
}

impl Pair {
    /// Returns `None` on a machine with one GPU. A simulator with one device is replaced by one with two.
    fn new(driver: &Driver) -> Option<Self> {
        let driver = match gpumem_sim::Sim::of(driver) {
            Some(sim) => gpumem_sim::driver(SimConfig::new().seed(sim.seed()).devices(2)).unwrap(),
            None => driver.clone(),
        };
        let (mut count, mut contexts) = (0, [null_mut(); 2]);
        // SAFETY: locals outlive the calls.
        unsafe {
            driver.cuInit(0).unwrap();
            driver.cuDeviceGetCount(&mut count).unwrap();
            if count < 2 {
                skip_without_second_device();
                return None;
            }
            driver.cuDevicePrimaryCtxRetain(&mut contexts[0], 0).unwrap();
            driver.cuDevicePrimaryCtxRetain(&mut contexts[1], 1).unwrap();
        }
        Some(Self { driver, contexts })
    }

    fn enter(&self, device: usize) {
        // SAFETY: the context is live.
        unsafe { self.driver.cuCtxSetCurrent(self.contexts[device]).unwrap() };
    }

    /// Allocates a MiB on a device and leaves the device's context current.
    fn alloc(&self, device: usize) -> u64 {
        let mut address = 0;
        self.enter(device);
        // SAFETY: a local outlives the call.
        unsafe { self.driver.cuMemAlloc_v2(&mut address, MIB).unwrap() };
        address
    }

    fn stream(&self) -> CUstream {
        let mut stream = null_mut();
        // SAFETY: a local outlives the call.
        unsafe {
            self.driver.cuStreamCreate(&mut stream, CUstream_flags::CU_STREAM_NON_BLOCKING.0).unwrap();
        }
        stream
    }

    /// A new pool of device 0.
    fn pool(&self) -> CUmemoryPool {
        let mut pool = null_mut();
        let properties = CUmemPoolProps {
            allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            location: access(0).location,
            ..Default::default()
        };
        // SAFETY: locals outlive the call.
        unsafe { self.driver.cuMemPoolCreate(&mut pool, &properties).unwrap() };
        pool
    }

    /// Waits for a device, reads the last byte of a MiB there, and leaves the device's context current.
    fn last_byte(&self, device: usize, address: u64) -> u8 {
        let mut byte = 0_u8;
        self.enter(device);
        let last = address + MIB as u64 - 1;
        // SAFETY: a local outlives the call, which returns after the byte was copied.
        unsafe { self.driver.cuMemcpyDtoH_v2((&raw mut byte).cast(), last, 1).unwrap() };
        byte
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // SAFETY: releases the contexts that `new` retained. Errors mean that they were destroyed before.
        unsafe {
            let _ = self.driver.cuCtxSetCurrent(null_mut());
            let _ = self.driver.cuDevicePrimaryCtxRelease_v2(0);
            let _ = self.driver.cuDevicePrimaryCtxRelease_v2(1);
        }
    }
}

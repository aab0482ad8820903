//! The behaviour of a driver that this project relies on: return codes, orderings, attributes. Each case is written
//! once and holds on the simulator and on a GPU.

mod pools;

use gpumem_adapt::array::pool::sys::types::*;
use gpumem_adapt::array::pool::sys::{CUresult, Driver};
use gpumem_tests::cases;
use gpumem_tests::driver::raw::{Raw, code};
use std::ptr::null_mut;

const MIB: usize = 1 << 20;

cases! {
    /// Zero bytes: refused by the plain call, and a null address from the stream-ordered one.
    fn zero_bytes(driver: &Driver) {
        let &Fixture { ref raw, stream } = &Fixture::new(driver);
        assert_eq!(code(raw.alloc(0).map(drop)), CUresult::CUDA_ERROR_INVALID_VALUE);
        // SAFETY: the stream is alive; the frees accept null.
        unsafe {
            assert_eq!(raw.alloc_async(0, stream), Ok(0));
            assert_eq!(code(driver.cuMemFree_v2(0)), CUresult::CUDA_SUCCESS);
        }
    }

    /// A request larger than the device returns `OUT_OF_MEMORY` from both calls, and the next call succeeds.
    fn out_of_memory(driver: &Driver) {
        let &Fixture { ref raw, stream } = &Fixture::new(driver);
        let (mut free, mut total) = (0, 0);
        // SAFETY: the out-pointers live through the call.
        unsafe { driver.cuMemGetInfo_v2(&mut free, &mut total).unwrap() };
        assert!(0 < free && free <= total);
        assert_eq!(code(raw.alloc(total + MIB).map(drop)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        // SAFETY: the stream is alive.
        let refused = unsafe { raw.alloc_async(total + MIB, stream) };
        assert_eq!(code(refused.map(drop)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let address = raw.alloc(MIB).unwrap();
        // SAFETY: allocated above and unused.
        unsafe {
            driver.cuMemFree_v2(address).unwrap();
        }
    }

    /// An address that is unknown or was freed is refused by both calls.
    fn unknown_and_double_frees(driver: &Driver) {
        let &Fixture { ref raw, stream } = &Fixture::new(driver);
        let address = raw.alloc(MIB).unwrap();
        // SAFETY: the driver checks addresses, which is the subject of this test.
        unsafe {
            driver.cuMemFree_v2(address).unwrap();
            assert_eq!(code(driver.cuMemFree_v2(address)), CUresult::CUDA_ERROR_INVALID_VALUE);
            assert_eq!(code(driver.cuMemFreeAsync(address, stream)), CUresult::CUDA_ERROR_INVALID_VALUE);
            assert_eq!(code(driver.cuMemFree_v2(0x1234)), CUresult::CUDA_ERROR_INVALID_VALUE);
        }
    }

    /// Memory of either kind may be freed by either call.
    fn frees_across_kinds(driver: &Driver) {
        let &Fixture { ref raw, stream } = &Fixture::new(driver);
        let plain = raw.alloc(MIB).unwrap();
        // SAFETY: the stream and both allocations are alive, and no work uses them.
        unsafe {
            let ordered = raw.alloc_async(MIB, stream).unwrap();
            driver.cuStreamSynchronize(stream).unwrap();
            driver.cuMemFreeAsync(plain, stream).unwrap();
            driver.cuMemFree_v2(ordered).unwrap();
            driver.cuStreamSynchronize(stream).unwrap();
        }
    }

    /// Without a current context, calls that need one return an error.
    fn no_current_context(driver: &Driver) {
        let _raw = Raw::new(driver).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut current = std::ptr::without_provenance_mut(8);
                let mut address = 0;
                // SAFETY: out-pointers live through the calls.
                unsafe {
                    driver.cuCtxGetCurrent(&mut current).unwrap();
                    assert!(current.is_null());
                    let refused = driver.cuMemAlloc_v2(&mut address, MIB);
                    assert_eq!(code(refused), CUresult::CUDA_ERROR_INVALID_CONTEXT);
                }
            });
        });
    }

    /// A device ordinal past the end.
    fn no_such_device(driver: &Driver) {
        let _raw = Raw::new(driver).unwrap();
        let (mut count, mut device) = (0, 0);
        // SAFETY: out-pointers live through the calls.
        unsafe {
            driver.cuDeviceGetCount(&mut count).unwrap();
            let refused = driver.cuDeviceGet(&mut device, count);
            assert_eq!(code(refused), CUresult::CUDA_ERROR_INVALID_DEVICE);
        }
    }

    /// The attributes of a pointer: its kind, its device, and the range that contains it.
    fn pointer_attributes(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        let address = raw.alloc(3 * MIB).unwrap();
        let (mut kind, mut ordinal) = (0u32, -1i32);
        let (mut start, mut size): (CUdeviceptr, usize) = (0, 0);
        use CUpointer_attribute as Attribute;
        // SAFETY: each out-pointer has the type of its attribute.
        unsafe {
            let inside = address + 4096;
            let attribute = Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
            driver.cuPointerGetAttribute((&raw mut kind).cast(), attribute, inside).unwrap();
            let attribute = Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
            driver.cuPointerGetAttribute((&raw mut ordinal).cast(), attribute, inside).unwrap();
            driver.cuMemGetAddressRange_v2(&mut start, &mut size, inside).unwrap();
            driver.cuMemFree_v2(address).unwrap();
            let gone = driver.cuPointerGetAttribute((&raw mut kind).cast(), attribute, inside);
            assert_eq!(code(gone), CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        assert_eq!(kind, CUmemorytype::CU_MEMORYTYPE_DEVICE.0);
        assert_eq!(ordinal, 0);
        assert_eq!((start, size), (address, 3 * MIB));
    }

    /// Copies and fills of every direction move the right bytes.
    fn copies(driver: &Driver) {
        let &Fixture { ref raw, stream } = &Fixture::new(driver);
        let (a, b) = (raw.alloc(4096).unwrap(), raw.alloc(4096).unwrap());
        let source: Vec<u8> = (0..4096u32).map(|i| (i * 7 % 251) as u8).collect();
        let mut pinned = null_mut();
        // SAFETY: sizes fit both sides; every buffer lives until the synchronisation.
        unsafe {
            driver.cuMemHostAlloc(&mut pinned, 4096, 0).unwrap();
            driver.cuMemcpyHtoDAsync_v2(a, source.as_ptr().cast(), 4096, stream).unwrap();
            driver.cuMemcpyDtoDAsync_v2(b, a, 4096, stream).unwrap();
            driver.cuMemsetD8Async(b, 0xAB, 16, stream).unwrap();
            driver.cuMemsetD32Async(b + 16, 0x0102_0304, 4, stream).unwrap();
            driver.cuMemcpyDtoHAsync_v2(pinned, b, 4096, stream).unwrap();
            driver.cuStreamSynchronize(stream).unwrap();
            let got = std::slice::from_raw_parts(pinned.cast::<u8>(), 4096).to_vec();
            assert_eq!(got[..16], [0xAB; 16]);
            assert_eq!(got[16..20], [4, 3, 2, 1]);
            assert_eq!(got[32..], source[32..]);
            driver.cuMemFreeHost(pinned).unwrap();
            driver.cuMemFree_v2(a).unwrap();
            driver.cuMemFree_v2(b).unwrap();
        }
    }

    /// An event is complete when the work queued before it is, and a wait orders another stream behind it.
    fn events_order_streams(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        let (first, second, event) = (raw.stream().unwrap(), raw.stream().unwrap(), raw.event().unwrap());
        let size = 256 * MIB;
        let (a, b) = (raw.alloc(size).unwrap(), raw.alloc(size).unwrap());
        // SAFETY: sizes fit; handles live until the end.
        unsafe {
            // An event that was never recorded counts as complete.
            assert_eq!(code(driver.cuEventQuery(event)), CUresult::CUDA_SUCCESS);
            for _ in 0..4 {
                driver.cuMemsetD8Async(a, 1, size, first).unwrap();
            }
            driver.cuMemsetD8Async(a, 7, size, first).unwrap();
            driver.cuEventRecord(event, first).unwrap();
            driver.cuStreamWaitEvent(second, event, 0).unwrap();
            driver.cuMemcpyDtoDAsync_v2(b, a, size, second).unwrap();
            driver.cuStreamSynchronize(second).unwrap();
            assert_eq!(code(driver.cuEventQuery(event)), CUresult::CUDA_SUCCESS);
            assert_eq!(code(driver.cuStreamQuery(second)), CUresult::CUDA_SUCCESS);
        }
        assert_eq!(raw.read(b + size as u64 - 64, 64).unwrap(), [7; 64]);
        // SAFETY: all work is complete.
        unsafe {
            driver.cuMemFree_v2(a).unwrap();
            driver.cuMemFree_v2(b).unwrap();
            driver.cuEventDestroy_v2(event).unwrap();
            driver.cuStreamDestroy_v2(first).unwrap();
            driver.cuStreamDestroy_v2(second).unwrap();
        }
    }

    /// The time between two events requires events with timing.
    fn elapsed_time(driver: &Driver) {
        let &Fixture { ref raw, stream } = &Fixture::new(driver);
        let memory = raw.alloc(512 * MIB).unwrap();
        let (mut start, mut end, silent) = (null_mut(), null_mut(), raw.event().unwrap());
        let mut ms = -1.0;
        // SAFETY: handles are live until the end.
        unsafe {
            driver.cuEventCreate(&mut start, 0).unwrap();
            driver.cuEventCreate(&mut end, 0).unwrap();
            driver.cuEventRecord(start, stream).unwrap();
            driver.cuMemsetD8Async(memory, 1, 512 * MIB, stream).unwrap();
            driver.cuEventRecord(end, stream).unwrap();
            driver.cuEventRecord(silent, stream).unwrap();
            driver.cuStreamSynchronize(stream).unwrap();
            driver.cuEventElapsedTime(&mut ms, start, end).unwrap();
            assert!(ms > 0.01, "half a gigabyte was filled in {ms} ms");
            let refused = driver.cuEventElapsedTime(&mut ms, start, silent);
            assert_eq!(code(refused), CUresult::CUDA_ERROR_INVALID_HANDLE);
            for event in [start, end, silent] {
                driver.cuEventDestroy_v2(event).unwrap();
            }
            driver.cuMemFree_v2(memory).unwrap();
        }
    }

    /// A plain free waits for all work of the device, so no queued work can use the freed memory.
    fn plain_free_waits_for_the_device(driver: &Driver) {
        let &Fixture { ref raw, stream } = &Fixture::new(driver);
        let size = 256 * MIB;
        let (a, unrelated) = (raw.alloc(size).unwrap(), raw.alloc(4 * MIB).unwrap());
        // SAFETY: sizes fit; handles live until the end.
        unsafe {
            for _ in 0..16 {
                driver.cuMemsetD8Async(a, 1, size, stream).unwrap();
            }
            driver.cuMemFree_v2(unrelated).unwrap();
            assert_eq!(code(driver.cuStreamQuery(stream)), CUresult::CUDA_SUCCESS);
            driver.cuMemFree_v2(a).unwrap();
        }
    }

    /// The kernels of a module are found by name, also without a current context, as candle's threads do. An unknown name is `NOT_FOUND`,
    /// and text that is not PTX is refused.
    fn modules(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        let ptx = c".version 7.8\n.target sm_70\n.address_size 64\n.visible .entry nothing()\n{\nret;\n}\n";
        let (mut module, mut function) = (null_mut(), null_mut());
        // SAFETY: the text is NUL-terminated, out-pointers live through the calls.
        unsafe {
            driver.cuModuleLoadData(&mut module, ptx.as_ptr().cast()).unwrap();
            let refused = driver.cuModuleGetFunction(&mut function, module, c"something".as_ptr());
            assert_eq!(code(refused), CUresult::CUDA_ERROR_NOT_FOUND);
            driver.cuCtxSetCurrent(null_mut()).unwrap();
            assert!(current_context(driver).is_null());
            driver.cuModuleGetFunction(&mut function, module, c"nothing".as_ptr()).unwrap();
            driver.cuCtxSetCurrent(raw.context).unwrap();
            driver.cuModuleUnload(module).unwrap();
            let refused = driver.cuModuleLoadData(&mut module, c"this is not PTX".as_ptr().cast());
            assert!(matches!(
                code(refused),
                CUresult::CUDA_ERROR_INVALID_PTX | CUresult::CUDA_ERROR_INVALID_IMAGE
            ));
        }
    }

    /// Contexts are pushed and popped in order; retaining the primary context several times returns the same one.
    fn context_stack(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        let again = Raw::new(driver).unwrap();
        assert_eq!(raw.context, again.context);
        let mut popped = null_mut();
        // SAFETY: out-pointers live through the calls; each popped context was pushed.
        unsafe {
            driver.cuCtxPushCurrent_v2(raw.context).unwrap();
            driver.cuCtxPopCurrent_v2(&mut popped).unwrap();
            assert_eq!(popped, raw.context);
            // Setting null pops the stack, until no context is left.
            driver.cuCtxSetCurrent(null_mut()).unwrap();
            assert_eq!(current_context(driver), raw.context);
            driver.cuCtxSetCurrent(null_mut()).unwrap();
            assert!(current_context(driver).is_null());
            assert_eq!(code(driver.cuCtxPopCurrent_v2(&mut popped)), CUresult::CUDA_ERROR_INVALID_CONTEXT);
            driver.cuCtxSetCurrent(raw.context).unwrap();
            driver.cuCtxPushCurrent_v2(raw.context).unwrap();
        }
    }
}

/// A device and a stream, which is destroyed with it.
struct Fixture {
    raw: Raw,
    stream: CUstream,
}

impl Fixture {
    fn new(driver: &Driver) -> Self {
        let raw = Raw::new(driver).unwrap();
        let stream = raw.stream().unwrap();
        Self { raw, stream }
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // SAFETY: the stream is alive, and not used after this.
        let destroyed = unsafe { self.raw.driver.cuStreamDestroy_v2(self.stream) };
        assert!(destroyed.is_ok() || std::thread::panicking(), "{destroyed:?}");
    }
}

fn current_context(driver: &Driver) -> CUcontext {
    let mut current = null_mut();
    // SAFETY: the out-pointer lives through the call.
    unsafe { driver.cuCtxGetCurrent(&mut current).unwrap() };
    current
}

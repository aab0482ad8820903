//! Another user of the driver in the process: cudarc shares the device's context and finds it unchanged. Runs on a GPU only,
//! because cudarc loads NVIDIA's library itself.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use cudarc::driver::CudaContext;
use gpumem_adapt::array::pool::sys::Driver;
use gpumem_adapt::array::pool::{Device, Pool};
use gpumem_adapt::array::{Gpu, GpuArray};
use gpumem_tests::fixtures::backends::backends;
use gpumem_tests::fixtures::entry_points::{ENTRIES, Stage, is_missing};

mod cuda {
    use super::*;

    fn current(driver: &Driver) -> usize {
        let mut context = std::ptr::null_mut();
        // SAFETY: the out-pointer lives through the call.
        unsafe { driver.cuCtxGetCurrent(&mut context).unwrap() };
        context.addr()
    }

    /// cudarc and this crate retain the same primary context, and do not affect each other's thread state and memory.
    #[test]
    fn shares_the_context_with_cudarc() {
        let theirs = CudaContext::new(0).unwrap();
        let driver = Driver::cuda().unwrap();
        let device = Device::new(&driver, 0).unwrap();
        assert_eq!(device.context().addr(), theirs.cu_ctx().addr());

        let before = current(&driver);
        let stream = theirs.new_stream().unwrap();
        let slice = stream.clone_htod(&[1.0f32, 2.0, 3.0]).unwrap();
        let gpu = Gpu::new(&Pool::new(&device).unwrap()).unwrap();
        let array = GpuArray::from_slice(&gpu, &[10.0f32, 20.0, 30.0]).unwrap();
        let doubled = &array * 2.0;
        assert_eq!(doubled.to_vec().unwrap(), [20.0, 40.0, 60.0]);
        assert_eq!(current(&driver), before, "our calls changed the current context");
        assert_eq!(stream.clone_dtoh(&slice).unwrap(), [1.0, 2.0, 3.0]);

        drop((array, doubled, gpu, device));
        assert_eq!(current(&driver), before, "our drops changed the current context");
        assert_eq!(stream.clone_dtoh(&slice).unwrap(), [1.0, 2.0, 3.0]);
        theirs.check_err().unwrap();
    }

    /// Every entry point of the pool's crate, on a thread where cudarc's context is current.
    #[test]
    fn every_entry_leaves_cudarcs_context_current() {
        let theirs = CudaContext::new(0).unwrap();
        let stream = theirs.new_stream().unwrap();
        let slice = stream.clone_htod(&[1.0f32, 2.0, 3.0]).unwrap();
        let driver = Driver::cuda().unwrap();
        theirs.bind_to_thread().unwrap();
        for backend in backends(&Device::new(&driver, 0).unwrap()) {
            let stage = Stage::new(&driver, backend).unwrap();
            for (name, entry) in ENTRIES {
                let outcome = entry(&stage);
                assert_eq!(current(&driver), theirs.cu_ctx().addr(), "{backend}: {name}");
                assert!(outcome.as_ref().err().is_none_or(is_missing), "{backend}: {name}: {outcome:?}");
            }
        }
        assert_eq!(stream.clone_dtoh(&slice).unwrap(), [1.0, 2.0, 3.0]);
        theirs.check_err().unwrap();
    }

    /// cudarc is created and dropped while arrays of this crate live, on a thread without a context.
    #[test]
    fn survives_cudarc_coming_and_going() {
        let driver = Driver::cuda().unwrap();
        let device = Device::new(&driver, 0).unwrap();
        let gpu = Gpu::new(&Pool::new(&device).unwrap()).unwrap();
        let array = GpuArray::from_elem(&gpu, 1000, 7i32).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let theirs = CudaContext::new(0).unwrap();
                let stream = theirs.new_stream().unwrap();
                let slice = stream.alloc_zeros::<u8>(1 << 20).unwrap();
                assert_eq!((&array + 1).to_vec().unwrap(), vec![8; 1000]);
                drop(slice);
                theirs.check_err().unwrap();
            });
        });
        assert_eq!(array.to_vec().unwrap(), vec![7; 1000]);
    }
}

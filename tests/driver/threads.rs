//! Requirements of the driver on the calling threads, and the driver's own threads.

use gpumem_tests::cases;
use gpumem_tests::driver::raw::{Raw, code};
use gpumem_tests::driver::stream_gate::StreamGate;
use gpumem_tests::sys::CUresult;
use std::ptr::null_mut;

cases! {
    /// An event belongs to its context, so any thread may query, synchronise and destroy it. Libraries with a worker thread pass
    /// events to their callers in this way.
    fn an_event_is_waited_for_without_a_current_context(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        let (stream, event) = (raw.stream().unwrap(), raw.event().unwrap());
        let address = raw.alloc(1 << 20).unwrap();
        // SAFETY: the stream, the event and the memory are alive; the handle crosses to the thread as a number.
        unsafe {
            driver.cuMemsetD8Async(address, 1, 1 << 20, stream).unwrap();
            driver.cuEventRecord(event, stream).unwrap();
            let event = event.expose_provenance();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let (event, mut current) = (std::ptr::with_exposed_provenance_mut(event), null_mut());
                    driver.cuCtxGetCurrent(&mut current).unwrap();
                    assert!(current.is_null());
                    driver.cuEventSynchronize(event).unwrap();
                    driver.cuEventQuery(event).unwrap();
                    driver.cuEventDestroy_v2(event).unwrap();
                });
            });
            driver.cuMemFree_v2(address).unwrap();
            driver.cuStreamDestroy_v2(stream).unwrap();
        }
    }

    /// A host function may wait for the thread that queued it: the calls of that thread continue meanwhile.
    fn a_host_function_waits_for_the_thread_that_queued_it(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        let (stream, event, other) = (raw.stream().unwrap(), raw.event().unwrap(), raw.stream().unwrap());
        // SAFETY: the handles are alive.
        unsafe {
            let gate = StreamGate::close(driver, stream).unwrap();
            driver.cuEventRecord(event, stream).unwrap();
            for _ in 0..20 {
                assert_eq!(code(driver.cuEventQuery(event)), CUresult::CUDA_ERROR_NOT_READY);
                driver.cuStreamSynchronize(other).unwrap();
            }
            assert!(gate.open());
            driver.cuEventSynchronize(event).unwrap();
            driver.cuEventDestroy_v2(event).unwrap();
            driver.cuStreamDestroy_v2(stream).unwrap();
            driver.cuStreamDestroy_v2(other).unwrap();
        }
    }
}

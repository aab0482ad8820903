//! Kinds of streams: the null stream and the streams that wait for it, per-thread default streams, priorities; host functions,
//! and values in memory for which streams wait.

use gpumem_adapt::array::pool::sys::types::*;
use gpumem_adapt::array::pool::sys::{CUresult, Driver};
use gpumem_tests::cases;
use gpumem_tests::driver::raw::{Raw, code};
use std::ffi::c_void;
use std::ptr::{null_mut, without_provenance_mut};

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const SIZE_BYTES: usize = 1 << 20;

fn legacy() -> CUstream {
    without_provenance_mut(1)
}

fn per_thread() -> CUstream {
    without_provenance_mut(2)
}

fn blocking(raw: &Raw) -> CUstream {
    let mut stream = null_mut();
    // SAFETY: the out-pointer lives through the call.
    unsafe { raw.driver.cuStreamCreate(&mut stream, 0).unwrap() };
    stream
}

/// Fills on one stream and copies on another one. Only the kinds of the streams order them.
fn hand_over(raw: &Raw, writer: CUstream, reader: CUstream) -> u8 {
    let (source, target) = (raw.alloc(SIZE_BYTES).unwrap(), raw.alloc(SIZE_BYTES).unwrap());
    // SAFETY: the blocks and the streams are alive, and the blocks have that size.
    unsafe {
        raw.driver.cuMemsetD8Async(source, 1, SIZE_BYTES, writer).unwrap();
        raw.driver.cuCtxSynchronize().unwrap();
        raw.driver.cuMemsetD8Async(source, 2, SIZE_BYTES, writer).unwrap();
        raw.driver.cuMemcpyDtoDAsync_v2(target, source, SIZE_BYTES, reader).unwrap();
    }
    let seen = raw.read(target + SIZE_BYTES as u64 - 1, 1).unwrap()[0];
    // SAFETY: no work uses them.
    [source, target].into_iter().for_each(|address| unsafe { raw.driver.cuMemFree_v2(address).unwrap() });
    seen
}

cases! {
    /// The null stream, by either name, and a blocking one wait for each other.
    fn the_null_stream_and_blocking_streams(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        let stream = blocking(&raw);
        for null in [null_mut(), legacy()] {
            assert_eq!(hand_over(&raw, null, stream), 2);
            assert_eq!(hand_over(&raw, stream, null), 2);
            assert_eq!(hand_over(&raw, null, per_thread()), 2);
            assert_eq!(hand_over(&raw, per_thread(), null), 2);
        }
        // SAFETY: no work is queued on it.
        unsafe { driver.cuStreamDestroy_v2(stream).unwrap() };
    }

    /// Each thread has one default stream in a context.
    fn one_default_stream_for_each_thread(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        let id_of = |driver: &Driver, stream| {
            let mut id = 0;
            // SAFETY: the out-pointer lives through the call.
            unsafe { driver.cuStreamGetId(stream, &mut id).unwrap() };
            id
        };
        let mine = id_of(driver, per_thread());
        assert_eq!(id_of(driver, per_thread()), mine);
        assert_ne!(id_of(driver, null_mut()), mine);
        assert_eq!(id_of(driver, null_mut()), id_of(driver, legacy()));
        let context = raw.context as usize;
        let other = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                // SAFETY: the context is alive.
                unsafe { driver.cuCtxSetCurrent(context as CUcontext).unwrap() };
                id_of(driver, per_thread())
            });
            thread.join().unwrap()
        });
        assert_ne!(other, mine);
    }

    /// Priorities outside of the range are clamped.
    fn priorities(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        let (mut least, mut greatest) = (1, 1);
        // SAFETY: the out-pointers live through the calls.
        unsafe { raw.driver.cuCtxGetStreamPriorityRange(&mut least, &mut greatest).unwrap() };
        assert!(least == 0 && greatest < 0, "{least} {greatest}");
        for (asked, given) in [(least, least), (greatest, greatest), (greatest - 7, greatest), (least + 7, least)] {
            let (mut stream, mut found) = (null_mut(), 99);
            // SAFETY: the out-pointers live through the calls.
            unsafe {
                driver.cuStreamCreateWithPriority(&mut stream, 1, asked).unwrap();
                driver.cuStreamGetPriority(stream, &mut found).unwrap();
                driver.cuStreamDestroy_v2(stream).unwrap();
            }
            assert_eq!(found, given, "{asked}");
        }
    }

    /// The driver's own streams cannot be destroyed.
    fn default_streams_stay(driver: &Driver) {
        let _raw = Raw::new(driver).unwrap();
        // SAFETY: the driver refuses the calls.
        unsafe {
            assert_ne!(code(driver.cuStreamDestroy_v2(legacy())), CUresult::CUDA_SUCCESS);
            assert_ne!(code(driver.cuStreamDestroy_v2(per_thread())), CUresult::CUDA_SUCCESS);
        }
    }

    /// A host function must not allocate. (The vendor's driver allows a query there; the simulator refuses every call, as its
    /// documentation demands of programs.)
    fn host_functions_may_not_allocate(driver: &Driver) {
        struct Note {
            driver: Driver,
            codes: Vec<CUresult>,
        }
        unsafe extern "C" fn call(data: *mut c_void) {
            // SAFETY: the test passes a note and reads it only after the stream is complete.
            let note = unsafe { &mut *data.cast::<Note>() };
            let mut address = 0;
            // SAFETY: the driver refuses the call, so nothing is written.
            unsafe { note.codes.push(code(note.driver.cuMemAlloc_v2(&mut address, 1))) };
        }
        let raw = Raw::new(driver).unwrap();
        let stream = raw.stream().unwrap();
        let note = Note { driver: driver.clone(), codes: Vec::new() };
        let note = Box::into_raw(Box::new(note));
        // SAFETY: the note lives until the stream is complete, and is read then.
        let codes = unsafe {
            driver.cuLaunchHostFunc(stream, Some(call), note.cast()).unwrap();
            driver.cuStreamSynchronize(stream).unwrap();
            driver.cuStreamDestroy_v2(stream).unwrap();
            Box::from_raw(note).codes.clone()
        };
        assert_eq!(codes, [CUresult::CUDA_ERROR_NOT_PERMITTED]);
    }

    /// The answers of the driver in a host function, call by call. The simulator refuses all, since the documentation allows none. On a GPU
    /// the answers are printed; a call that does not return within ten seconds is named, and the case fails.
    fn the_calls_of_a_host_function(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        let (stream, other, event) = (raw.stream().unwrap(), raw.stream().unwrap(), raw.event().unwrap());
        let (plain, of_pool) = (raw.alloc(64).unwrap(), {
            let mut address = 0;
            // SAFETY: the place outlives the call.
            unsafe { driver.cuMemAllocAsync(&mut address, 64, other).unwrap() };
            address
        });
        // SAFETY: the streams and the event are alive.
        unsafe {
            driver.cuStreamSynchronize(other).unwrap();
            driver.cuEventRecord(event, other).unwrap();
        }
        let (other, event) = (other.expose_provenance(), event.expose_provenance());
        type Ask = Box<dyn Fn(&Driver) -> Result<(), gpumem_tests::sys::DriverError> + Send>;
        let other = move || -> CUstream { std::ptr::with_exposed_provenance_mut(other) };
        let event = move || -> CUevent { std::ptr::with_exposed_provenance_mut(event) };
        // SAFETY: handles and addresses are alive, places outlive the calls, and what is freed is not used again after a success.
        let calls: Vec<(&str, Ask)> = unsafe {
            vec![
                ("cuCtxGetCurrent", Box::new(|driver| driver.cuCtxGetCurrent(&mut null_mut()))),
                ("cuThreadExchangeStreamCaptureMode", Box::new(|driver| {
                    driver.cuThreadExchangeStreamCaptureMode(&mut CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL.clone())
                })),
                ("cuStreamQuery", Box::new(move |driver| driver.cuStreamQuery(other()))),
                ("cuEventQuery", Box::new(move |driver| driver.cuEventQuery(event()))),
                ("cuEventRecord", Box::new(move |driver| driver.cuEventRecord(event(), other()))),
                ("cuStreamWaitEvent", Box::new(move |driver| driver.cuStreamWaitEvent(other(), event(), 0))),
                ("cuMemGetInfo", Box::new(|driver| driver.cuMemGetInfo_v2(&mut 0, &mut 0))),
                ("cuMemAlloc", Box::new(|driver| driver.cuMemAlloc_v2(&mut 0, 64))),
                ("cuMemAllocAsync", Box::new(move |driver| driver.cuMemAllocAsync(&mut 0, 64, other()))),
                ("cuMemAddressReserve", Box::new(|driver| driver.cuMemAddressReserve(&mut 0, 2 << 20, 0, 0, 0))),
                ("cuMemFreeAsync", Box::new(move |driver| driver.cuMemFreeAsync(of_pool, other()))),
                ("cuMemFree", Box::new(move |driver| driver.cuMemFree_v2(plain))),
                ("cuEventDestroy", Box::new(move |driver| driver.cuEventDestroy_v2(event()))),
                ("cuStreamSynchronize", Box::new(move |driver| driver.cuStreamSynchronize(other()))),
                ("cuStreamDestroy", Box::new(move |driver| driver.cuStreamDestroy_v2(other()))),
                ("cuCtxSynchronize", Box::new(|driver| driver.cuCtxSynchronize())),
            ]
        };
        let is_sim = driver.kind() == gpumem_tests::sys::DriverKind::Sim;
        for (name, ask) in calls {
            let (sender, receiver) = std::sync::mpsc::channel();
            let inner = driver.clone();
            type Work = Box<dyn FnOnce() + Send>;
            unsafe extern "C" fn call(work: *mut c_void) {
                // SAFETY: the pointer is that of the box below, which the driver passes once.
                let work = unsafe { Box::from_raw(work.cast::<Work>()) };
                work();
            }
            let work: Work = Box::new(move || sender.send(code(ask(&inner))).unwrap_or(()));
            // SAFETY: the stream is alive, and the function owns its argument.
            unsafe { driver.cuLaunchHostFunc(stream, Some(call), Box::into_raw(Box::new(work)).cast()).unwrap() };
            // The simulator runs work in calls only.
            // SAFETY: the stream is alive.
            let waited = if is_sim { unsafe { driver.cuStreamSynchronize(stream) } } else { Ok(()) };
            waited.unwrap();
            let answer = receiver.recv_timeout(std::time::Duration::from_secs(10));
            match answer {
                Ok(answer) if is_sim => assert_eq!(answer, CUresult::CUDA_ERROR_NOT_PERMITTED, "{name}"),
                // NVIDIA's driver allows some calls. What matters is that each returns.
                Ok(_) => {}
                Err(_) => panic!("in a host function, {name} does not return"),
            }
        }
    }

    /// A stream that waits for a value continues after another stream has written it.
    fn a_value_orders_two_streams(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        let (writer, reader) = (raw.stream().unwrap(), raw.stream().unwrap());
        let (flag, source, target) = (raw.alloc(16).unwrap(), raw.alloc(1).unwrap(), raw.alloc(1).unwrap());
        // SAFETY: memory and streams are alive until the end.
        unsafe {
            driver.cuMemsetD8_v2(flag, 0, 16).unwrap();
            driver.cuMemsetD8_v2(source, 1, 1).unwrap();
            driver.cuCtxSynchronize().unwrap();
            driver.cuStreamWaitValue32_v2(reader, flag, 3, 0).unwrap();
            driver.cuStreamWaitValue64_v2(reader, flag + 8, 1 << 40, 1).unwrap();
            driver.cuMemcpyDtoDAsync_v2(target, source, 1, reader).unwrap();
            assert_eq!(code(driver.cuStreamQuery(reader)), CUresult::CUDA_ERROR_NOT_READY);
            driver.cuMemsetD8Async(source, 2, 1, writer).unwrap();
            driver.cuStreamWriteValue32_v2(writer, flag, 3, 0).unwrap();
            driver.cuStreamWriteValue64_v2(writer, flag + 8, 1 << 40, 0).unwrap();
            driver.cuStreamSynchronize(reader).unwrap();
            assert_eq!(raw.read(target, 1).unwrap(), [2]);
            [flag, source, target].into_iter().for_each(|address| driver.cuMemFree_v2(address).unwrap());
            driver.cuStreamDestroy_v2(writer).unwrap();
            driver.cuStreamDestroy_v2(reader).unwrap();
        }
    }

    /// The host releases a stream by writing to pinned memory.
    fn the_host_writes_a_value(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        let stream = raw.stream().unwrap();
        let mut host: *mut c_void = null_mut();
        // SAFETY: the pinned memory lives until the end; the host writes it while the device only reads it.
        unsafe {
            driver.cuMemHostAlloc(&mut host, 4, 0).unwrap();
            let flag = host.cast::<u32>();
            flag.write_volatile(0);
            let mut address = 0;
            driver.cuMemHostGetDevicePointer_v2(&mut address, host, 0).unwrap();
            driver.cuStreamWaitValue32_v2(stream, address, 1, 1).unwrap();
            assert_eq!(code(driver.cuStreamQuery(stream)), CUresult::CUDA_ERROR_NOT_READY);
            flag.write_volatile(1);
            driver.cuStreamSynchronize(stream).unwrap();
            driver.cuMemFreeHost(host).unwrap();
            driver.cuStreamDestroy_v2(stream).unwrap();
        }
    }

    /// Unaligned sizes and addresses are refused.
    fn values_that_are_refused(driver: &Driver) {
        let raw = Raw::new(driver).unwrap();
        let (stream, memory) = (raw.stream().unwrap(), raw.alloc(16).unwrap());
        // SAFETY: the driver refuses the calls.
        unsafe {
            assert_eq!(code(driver.cuStreamWriteValue32_v2(stream, memory + 2, 1, 0)), INVALID_VALUE);
            assert_eq!(code(driver.cuStreamWriteValue64_v2(stream, memory + 4, 1, 0)), INVALID_VALUE);
            assert_eq!(code(driver.cuStreamWaitValue32_v2(stream, 0, 1, 0)), INVALID_VALUE);
            driver.cuMemFree_v2(memory).unwrap();
            driver.cuStreamDestroy_v2(stream).unwrap();
        }
    }
}

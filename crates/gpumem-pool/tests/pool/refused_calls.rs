//! Driver calls that fail while captures and ends of borrows overlap.

use gpumem_pool::sys::CUresult;
use gpumem_pool::{Capture, CaptureMode, Device, DeviceError, HostMemory, Stream};
use gpumem_sim::{Rule, SimConfig};
use std::sync::mpsc::channel;
use std::time::Duration;

fn device(rule: &str) -> Device {
    let config = SimConfig::new().rule(rule.parse::<Rule>().unwrap());
    Device::new(&gpumem_sim::driver(config).unwrap(), 0).unwrap()
}

/// True if `work` ends within a few seconds.
fn ends(work: impl FnOnce() + Send + 'static) -> bool {
    let (notify, notified) = channel();
    std::thread::spawn(move || {
        work();
        let _ = notify.send(());
    });
    notified.recv_timeout(Duration::from_secs(8)).is_ok()
}

/// `Capture::end` guarantees that the stream runs work again, whatever the result. No one else can end the capture, and the end
/// of a borrow would wait for it forever.
#[test]
fn one_refused_end_of_a_capture_leaves_no_capture() {
    for code in ["OUT_OF_MEMORY", "INVALID_VALUE", "NOT_READY"] {
        let device = device(&format!("cuStreamEndCapture#1=fail:{code}"));
        let stream = Stream::new(&device).unwrap();
        let thread = std::thread::spawn({
            let stream = stream.clone();
            move || Capture::begin(&stream, CaptureMode::Global).unwrap().end().map(drop)
        });
        let ended = thread.join().unwrap();
        let borrower = device.clone();
        assert!(
            ends(move || borrower.with_host_memory(&mut [0_u8; 4096], |_| ()).unwrap()),
            "{code}: the end of the borrow hangs after {ended:?}"
        );
        device.synchronize().unwrap();
    }
}

/// No capture is open and the driver refuses to wait: this is the error, and inside of a closure it ends the process after half a
/// minute. It used to wait forever.
#[test]
fn a_refused_wait_for_the_device_is_not_taken_for_a_capture() {
    let device = device("cuCtxSynchronize#1+=fail:OUT_OF_MEMORY");
    let mut raw = std::ptr::null_mut();
    {
        let _bound = device.bind().unwrap();
        // SAFETY: the out-pointer outlives the call. With flag 1 the legacy stream does not wait for the stream.
        unsafe { device.driver().cuStreamCreate(&mut raw, 1).unwrap() };
    }
    // SAFETY: the stream is never destroyed.
    let _foreign = unsafe { Stream::from_raw(&device, raw).unwrap() };
    let memory = HostMemory::register(&device, vec![0_u8; 4096]).unwrap();
    let error = memory.into_inner().unwrap_err();
    let DeviceError::Driver(cause) = error.error() else { panic!("{error:?}") };
    assert_eq!(cause.code(), CUresult::CUDA_ERROR_OUT_OF_MEMORY, "{cause}");
}

/// Markers cannot be recorded, but without the capture the device can be synchronised: the capture is ended, and the process
/// continues.
#[test]
fn a_capture_of_this_thread_ends_before_the_process_does() {
    let mut tried = 0;
    for nth in 1..4 {
        let device = device(&format!("cuEventCreate#{nth}+=fail:OUT_OF_MEMORY"));
        let stream = Stream::new(&device).unwrap();
        let Ok(capture) = Capture::begin(&stream, CaptureMode::Global) else { continue };
        device.with_host_memory(&mut [0_u8; 4096], |_| ()).unwrap();
        tried += 1;
        let _broken = capture.end();
        device.synchronize().unwrap();
    }
    assert!(tried > 0);
}

/// `record_use` cannot return an error, so it must not lose the use: another stream would reuse the block's memory while launches
/// of the graph still write it.
#[test]
fn a_use_in_a_capture_counts_even_if_the_capture_state_is_unavailable() {
    let mut tried = 0;
    for nth in 1..8 {
        let device = device(&format!("cuStreamGetCaptureInfo#{nth}=fail:OUT_OF_MEMORY"));
        let pool = gpumem_pool::Pool::new(&device).unwrap();
        let stream = Stream::new(&device).unwrap();
        let used = pool.alloc(200_000, &stream).unwrap();
        let address = used.address();
        let Ok(capture) = Capture::begin(&stream, CaptureMode::Global) else { continue };
        used.record_use(&stream);
        let Ok(graph) = capture.end() else { continue };
        drop(used);
        let other = pool.alloc(200_000, &stream).unwrap();
        assert_ne!(other.address(), address, "question {nth}: the graph's launches write another's block");
        drop(graph);
        tried += 1;
    }
    assert!(tried > 0);
}

/// A block allocated in a capture outlives it. Later work of its stream on the block is ordered behind the earlier work on its
/// memory, though the driver refuses the wait.
#[test]
fn a_block_of_a_capture_is_ordered_after_its_end_whatever_is_refused() {
    let mut tried = 0;
    for nth in 1..8 {
        for is_dropped in [true, false] {
            let device = device(&format!("cuStreamWaitEvent#{nth}=fail:OUT_OF_MEMORY"));
            let pool = gpumem_pool::Pool::builder(&device).hard_limit(4 << 20).build().unwrap();
            let (home, other) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
            let fill = |address, stream: &Stream| {
                let _bound = device.bind().unwrap();
                // SAFETY: the block has that many bytes, and is alive.
                unsafe { device.driver().cuMemsetD8Async(address, 1, 3 << 20, stream.raw()).unwrap() };
            };
            let first = pool.alloc(3 << 20, &other).unwrap();
            fill(first.address(), &other);
            drop(first);
            let capture = Capture::begin(&home, CaptureMode::Global).unwrap();
            let Ok(block) = pool.alloc(3 << 20, &home) else { continue };
            let ended = if is_dropped {
                drop(capture);
                Ok(())
            } else {
                capture.end().map(drop)
            };
            fill(block.address(), &home);
            device.synchronize().unwrap();
            let findings = gpumem_sim::Sim::of(device.driver()).unwrap().take_findings();
            assert!(findings.is_empty(), "wait {nth}, dropped: {is_dropped}, {ended:?}: {findings:?}");
            tried += 1;
        }
    }
    assert!(tried > 0);
}

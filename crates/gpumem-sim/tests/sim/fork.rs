//! A process that forks while another thread holds the instance's lock.

use super::*;
use gpumem_sim::Kernel;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

unsafe extern "C" {
    fn fork() -> i32;
    fn _exit(status: i32) -> !;
    fn waitpid(process: i32, status: *mut i32, options: i32) -> i32;
    fn kill(process: i32, signal: i32) -> i32;
}

static IS_RUNNING: AtomicBool = AtomicBool::new(false);
static MAY_END: AtomicBool = AtomicBool::new(false);

/// The kernel holds the instance's lock as long as it runs.
static KERNELS: [Kernel; 1] = [Kernel::new("lingering", |_| {
    IS_RUNNING.store(true, Ordering::SeqCst);
    while !MAY_END.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    Ok(())
})];

#[test]
fn a_forked_process_is_refused_and_does_not_wait_for_a_thread_that_it_lacks() {
    let gpu = seeded(1);
    gpu.sim().register(&KERNELS);
    let image = c".version 8.0\n.target sm_70\n.address_size 64\n.visible .entry lingering() { ret; }";
    let (mut module, mut function, stream) = (null_mut(), null_mut(), gpu.stream());
    // SAFETY: locals outlive the calls, and strings end in NUL.
    unsafe {
        gpu.cuModuleLoadData(&mut module, image.as_ptr().cast()).unwrap();
        gpu.cuModuleGetFunction(&mut function, module, c"lingering".as_ptr()).unwrap();
    }
    let (function, stream_number, context) = (function as usize, stream as usize, gpu.context as usize);
    let driver = &gpu.driver;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let stream = stream_number as CUstream;
            // SAFETY: handles are checked by the driver under test, and the kernel has no parameters.
            unsafe {
                driver.cuCtxSetCurrent(context as CUcontext).unwrap();
                let (function, none) = (function as CUfunction, null_mut());
                driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, null_mut(), none).unwrap();
                driver.cuStreamSynchronize(stream).unwrap();
            }
        });
        while !IS_RUNNING.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let status = status_of_child(|| {
            let mut count = 0;
            // SAFETY: a local outlives the call.
            let answer = unsafe { gpu.cuDeviceGetCount(&mut count) };
            answer.is_err_and(|error| error.code() == CUresult::CUDA_ERROR_NOT_INITIALIZED)
        });
        MAY_END.store(true, Ordering::SeqCst);
        assert_eq!(status, Some(0), "the child hung, or got another answer");
    });
}

/// Runs a child that exits with its result. Returns its exit status, or `None` if it did not exit by itself.
fn status_of_child(is_well: impl FnOnce() -> bool) -> Option<i32> {
    // SAFETY: the child only calls the driver under test, and needs no lock of another thread.
    let child = unsafe { fork() };
    assert!(child >= 0, "no process could be forked off");
    if child == 0 {
        let status = i32::from(!is_well());
        // SAFETY: the child ends here, without running destructors of the parent.
        unsafe { _exit(status) };
    }
    const WITHOUT_WAITING: i32 = 1;
    const KILLED: i32 = 9;
    let (start, mut status) = (Instant::now(), 0);
    loop {
        // SAFETY: a local outlives the call.
        if unsafe { waitpid(child, &mut status, WITHOUT_WAITING) } == child {
            return Some(status);
        }
        if start.elapsed() > Duration::from_secs(20) {
            // SAFETY: the process is a child of this one, and was not waited for.
            unsafe {
                kill(child, KILLED);
                waitpid(child, &mut status, 0);
            }
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

//! Instances: one for each slot, isolated from each other, with any use of threads.

use super::*;
use gpumem_sim::SimError;
use gpumem_sim::sys::DriverError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

/// Destroys its own streams and memory on drop, on any thread.
struct Owned {
    driver: Driver,
    context: usize,
    stream: usize,
    memory: u64,
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: pointers are to locals that outlive the call; handles are checked by the driver.
        unsafe {
            let mut before = null_mut();
            self.driver.cuCtxGetCurrent(&mut before).unwrap();
            self.driver.cuCtxSetCurrent(std::ptr::without_provenance_mut(self.context)).unwrap();
            let stream = std::ptr::without_provenance_mut(self.stream);
            self.driver.cuMemFreeAsync(self.memory, stream).unwrap();
            self.driver.cuStreamDestroy_v2(stream).unwrap();
            self.driver.cuCtxSetCurrent(before).unwrap();
        }
    }
}

fn owned(gpu: &Machine) -> Owned {
    let stream = gpu.stream();
    let memory = gpu.alloc_on(stream, 1000);
    Owned { driver: gpu.driver.clone(), context: gpu.context as usize, stream: stream as usize, memory }
}

#[test]
fn two_run_side_by_side_with_helpers_and_drops_on_other_threads() {
    let work = |seed: u64, value: u8| {
        let gpu = seeded(seed);
        let (sender, receiver) = std::sync::mpsc::channel::<Owned>();
        let helper = thread::spawn(move || receiver.into_iter().for_each(drop));
        for _ in 0..200 {
            let block = owned(&gpu);
            let stream = std::ptr::without_provenance_mut(block.stream);
            gpu.fill(stream, block.memory, value, 1000);
            assert!(gpu.download(stream, block.memory, 1000).iter().all(|&byte| byte == value));
            sender.send(block).unwrap();
        }
        drop(sender);
        helper.join().unwrap();
        // SAFETY: pointers are to locals that outlive the call; handles are checked by the driver.
        unsafe { gpu.cuCtxSynchronize().unwrap() };
        let report = gpu.sim().report();
        assert!(report.allocations.is_empty() && report.faults.is_empty(), "{report}");
        assert_eq!(report.stream_count, 0);
    };
    thread::scope(|scope| {
        scope.spawn(|| work(1, 11));
        scope.spawn(|| work(2, 22));
    });
}

#[test]
fn two_on_one_thread_do_not_see_each_other() {
    let (a, b) = (seeded(1), seeded(2));
    let (stream, memory) = (a.stream(), a.alloc(10));
    // SAFETY: pointers are to locals that outlive the call; handles are checked by the driver.
    unsafe {
        let mut current = null_mut();
        a.cuCtxGetCurrent(&mut current).unwrap();
        assert_eq!(current, a.context);
        b.cuCtxGetCurrent(&mut current).unwrap();
        assert_eq!(current, b.context);
        assert_eq!(code(b.cuCtxSetCurrent(a.context)), CUresult::CUDA_ERROR_INVALID_CONTEXT);
        assert_eq!(code(b.try_sync(stream)), CUresult::CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(code(b.cuMemFree_v2(memory)), CUresult::CUDA_ERROR_INVALID_VALUE);
    }
}

#[test]
fn the_stack_of_contexts_is_the_threads_own() {
    let gpu = machine(SimConfig::new().devices(2));
    let other = primary(&gpu, 1);
    // SAFETY: pointers are to locals that outlive the call; handles are checked by the driver.
    unsafe {
        let mut popped = null_mut();
        gpu.cuCtxPushCurrent_v2(other).unwrap();
        let mut device = 9;
        gpu.cuCtxGetDevice(&mut device).unwrap();
        assert_eq!(device, 1);
        let driver = gpu.driver.clone();
        let there = thread::spawn(move || {
            let mut current = null_mut();
            driver.cuCtxGetCurrent(&mut current).unwrap();
            current.is_null()
        });
        assert!(there.join().unwrap());
        gpu.cuCtxPopCurrent_v2(&mut popped).unwrap();
        assert_eq!(popped, other);
        gpu.cuCtxGetDevice(&mut device).unwrap();
        assert_eq!(device, 0);
    }
}

#[test]
fn a_thread_locals_destructor_may_call_the_driver() {
    thread_local!(static LAST: Mutex<Option<Owned>> = const { Mutex::new(None) });
    let gpu = seeded(3);
    let block = owned(&gpu);
    thread::spawn(move || LAST.with(|last| *last.lock().unwrap() = Some(block))).join().unwrap();
    // SAFETY: pointers are to locals that outlive the call; handles are checked by the driver.
    unsafe { gpu.cuCtxSynchronize().unwrap() };
    assert_eq!(gpu.sim().report().allocations, []);
}

#[test]
fn a_slot_is_free_again_when_the_last_handle_is_gone() {
    for seed in 0..500 {
        let gpu = seeded(seed);
        let stream = gpu.stream();
        gpu.fill(stream, gpu.alloc(10), 1, 10);
    }
}

#[test]
fn a_table_that_outlives_its_driver_says_so() {
    let table = *seeded(4).table();
    // Another instance may have the slot by now, and its devices would be counted.
    // SAFETY: pointers are to locals that outlive the call; handles are checked by the driver.
    let code = unsafe { table.cuDeviceGetCount.unwrap()(&mut 0) };
    assert!(code == CUresult::CUDA_ERROR_DEINITIALIZED || code == CUresult::CUDA_SUCCESS);
}

#[test]
fn machines_that_can_not_be_are_refused() {
    assert!(matches!(
        gpumem_sim::driver(SimConfig::new().devices(65)),
        Err(SimError::TooManyDevices { count: 65 })
    ));
    let text = gpumem_sim::driver(SimConfig::new().memory_bytes(u64::MAX)).unwrap_err().to_string();
    assert!(text.contains("at most 4398046511104 bytes"), "{text}");
}

#[test]
fn a_released_context_takes_everything_with_it() {
    let gpu = seeded(5);
    let (stream, event) = (gpu.stream(), gpu.event());
    gpu.fill(stream, gpu.alloc(100), 1, 100);
    gpu.alloc_on(stream, 100);
    gpu.pinned(100);
    // SAFETY: pointers are to locals that outlive the call; handles are checked by the driver.
    unsafe {
        gpu.cuEventRecord(event, stream).unwrap();
        gpu.cuDevicePrimaryCtxRelease_v2(0).unwrap();
        let (mut flags, mut active) = (0, 1);
        gpu.cuDevicePrimaryCtxGetState(0, &mut flags, &mut active).unwrap();
        assert_eq!(active, 0);
        assert_eq!(code(gpu.cuDevicePrimaryCtxRelease_v2(0)), CUresult::CUDA_ERROR_INVALID_CONTEXT);
        gpu.cuCtxSetCurrent(primary(&gpu, 0)).unwrap();
        assert_eq!(code(gpu.try_sync(stream)), CUresult::CUDA_ERROR_INVALID_HANDLE);
        let (mut free, mut total) = (0, 0);
        gpu.cuMemGetInfo_v2(&mut free, &mut total).unwrap();
        assert_eq!(free, total);
    }
    let report = gpu.sim().report();
    assert_eq!((report.allocations.len(), report.stream_count, report.event_count), (0, 0, 0));
}

/// A table with some replaced functions accesses the same machine, behind the same lock.
#[test]
fn a_changed_table_reaches_the_same_machine() {
    let driver = seeded(0).driver;
    // SAFETY: nothing is changed.
    let wrapped = unsafe { driver.with_table(|_| ()) };
    assert!(wrapped != driver && wrapped.is_same_machine(&driver));
    assert!(!wrapped.is_same_machine(&seeded(0).driver));

    let (begun, is_over) = (Arc::new(Barrier::new(2)), Arc::new(AtomicBool::new(false)));
    let other = thread::spawn({
        let (begun, is_over) = (begun.clone(), is_over.clone());
        move || {
            begun.wait();
            let was_over = move |_: &Driver| {
                assert!(is_over.load(Ordering::SeqCst));
                Ok(())
            };
            wrapped.destroy(was_over).unwrap();
        }
    });
    let slow = move |_: &Driver| {
        begun.wait();
        thread::sleep(Duration::from_millis(50));
        is_over.store(true, Ordering::SeqCst);
        Ok(())
    };
    driver.destroy(slow).unwrap();
    other.join().unwrap();
}

/// Of calls that the driver refuses in a host function, each is repeated until it is accepted, once.
#[test]
fn what_a_host_function_cannot_destroy_is_destroyed_later() {
    let driver = seeded(0).driver;
    let (is_inside, count) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(0)));
    let call = {
        let (is_inside, count) = (is_inside.clone(), count.clone());
        move |_: &Driver| match is_inside.load(Ordering::SeqCst) {
            true => DriverError::check("cuStreamDestroy", CUresult::CUDA_ERROR_NOT_PERMITTED),
            false => {
                count.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }
        }
    };
    driver.destroy(call.clone()).unwrap();
    driver.destroy(call.clone()).unwrap();
    driver.destroy_refused();
    assert_eq!(count.load(Ordering::SeqCst), 0);
    is_inside.store(false, Ordering::SeqCst);
    driver.destroy(call).unwrap();
    driver.destroy_refused();
    assert_eq!(count.load(Ordering::SeqCst), 3);
    let lost =
        driver.destroy(|_| DriverError::check("cuStreamDestroy", CUresult::CUDA_ERROR_ILLEGAL_ADDRESS));
    assert!(lost.is_err());
}

#[test]
fn handles_of_machines_that_are_alive_differ_however_many_have_been() {
    let gpu = seeded(1);
    for _ in 0..600 {
        assert_ne!(seeded(1).context, gpu.context);
    }
}

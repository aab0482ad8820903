//! Elapsed times on the virtual clock.

use super::*;
use gpumem_sim::Schedule;
use std::sync::mpsc::{Receiver, Sender, channel};

#[test]
fn a_copy_takes_as_long_as_on_the_device_it_was_measured_on() {
    let gpu = machine(SimConfig::new().memory_bytes(4 << 30));
    let (stream, host, device) = (gpu.stream(), gpu.pinned(64 << 20), gpu.alloc(64 << 20));
    let (mut start, mut end, mut elapsed_ms) = (null_mut(), null_mut(), 0.0);
    // SAFETY: pointers are to locals and pinned memory that outlive the work.
    unsafe {
        gpu.cuEventCreate(&mut start, 0).unwrap();
        gpu.cuEventCreate(&mut end, 0).unwrap();
        let unrecorded = code(gpu.cuEventElapsedTime_v2(&mut elapsed_ms, start, end));
        assert_eq!(unrecorded, CUresult::CUDA_ERROR_INVALID_HANDLE);
        gpu.cuEventRecord(start, stream).unwrap();
        gpu.cuMemcpyHtoDAsync_v2(device, host.as_ptr().cast(), 64 << 20, stream).unwrap();
        gpu.cuEventRecord(end, stream).unwrap();
        gpu.sync(stream);
        gpu.cuEventElapsedTime_v2(&mut elapsed_ms, start, end).unwrap();
    }
    let gb_per_s = f64::from(64 << 20) / f64::from(elapsed_ms) / 1e6;
    assert!((50.0..56.0).contains(&gb_per_s), "{gb_per_s}");
}

/// The link works in both directions at once.
#[test]
fn copies_in_both_directions_overlap() {
    let gpu = machine(SimConfig::new().memory_bytes(4 << 30));
    let (up, down) = (gpu.stream(), gpu.stream());
    let (from, to, device) = (gpu.pinned(64 << 20), gpu.pinned(64 << 20), gpu.alloc(128 << 20));
    let elapsed_ms = elapsed_ms(&gpu, up, || {
        gpu.upload_from(up, device, from.as_ptr().cast(), 64 << 20);
        gpu.download_to(down, to, device + (64 << 20));
        gpu.order(down, up);
    });
    // One of them takes 1.21 ms.
    assert!((1.2..1.4).contains(&elapsed_ms), "{elapsed_ms}");
}

#[test]
fn a_wait_carries_the_time_over_and_pending_events_have_none() {
    let mut pending = 0;
    for seed in 0..50 {
        let gpu = seeded(seed);
        let (a, b, memory) = (gpu.stream(), gpu.stream(), gpu.alloc(1 << 20));
        let (mut start, mut end, mut elapsed_ms) = (null_mut(), null_mut(), 0.0);
        // SAFETY: pointers are to locals and pinned memory that outlive the work.
        unsafe {
            gpu.cuEventCreate(&mut start, 0).unwrap();
            gpu.cuEventCreate(&mut end, 0).unwrap();
            gpu.cuEventRecord(start, a).unwrap();
            (0..100).for_each(|_| gpu.fill(a, memory, 1, 1 << 20));
            gpu.order(a, b);
            gpu.cuEventRecord(end, b).unwrap();
            let early = code(gpu.cuEventElapsedTime(&mut elapsed_ms, start, end));
            pending += usize::from(early == CUresult::CUDA_ERROR_NOT_READY);
            gpu.cuEventSynchronize(end).unwrap();
            gpu.cuEventElapsedTime(&mut elapsed_ms, start, end).unwrap();
        }
        // A hundred memsets of 1.75 µs.
        assert!((0.17..0.25).contains(&elapsed_ms), "seed {seed}: {elapsed_ms}");
    }
    assert!(pending > 0);
}

/// The advance of the host's clock during a call, measured on an idle stream.
fn host_ns(gpu: &Machine, body: impl FnOnce()) -> f64 {
    f64::from(elapsed_ms(gpu, gpu.stream(), body)) * 1e6
}

/// The time between two events on a stream, recorded before and after `body`.
pub(super) fn elapsed_ms(gpu: &Machine, stream: CUstream, body: impl FnOnce()) -> f32 {
    let (mut start, mut end, mut elapsed_ms) = (null_mut(), null_mut(), 0.0);
    // SAFETY: locals outlive the calls.
    unsafe {
        gpu.cuEventCreate(&mut start, 0).unwrap();
        gpu.cuEventCreate(&mut end, 0).unwrap();
        gpu.cuEventRecord(start, stream).unwrap();
        body();
        gpu.cuEventRecord(end, stream).unwrap();
        gpu.sync(stream);
        gpu.cuEventElapsedTime_v2(&mut elapsed_ms, start, end).unwrap();
    }
    elapsed_ms
}

#[test]
fn calls_cost_the_host_what_they_cost_beside_a_gpu() {
    let gpu = machine(SimConfig::h200());
    let pairs_ns = host_ns(&gpu, || {
        for _ in 0..1000 {
            let address = gpu.alloc(2 << 20);
            // SAFETY: no work uses the memory.
            unsafe { gpu.cuMemFree_v2(address).unwrap() };
        }
    });
    assert!((44e6..48e6).contains(&pairs_ns), "{pairs_ns}");
    let pinned_ns = host_ns(&gpu, || _ = gpu.pinned(64 << 20));
    assert!((22e6..23e6).contains(&pinned_ns), "{pinned_ns}");
}

#[test]
fn a_call_costs_more_while_another_thread_is_in_the_driver() {
    type Ends = (Sender<()>, Receiver<()>);
    extern "C" fn wait(ends: *mut c_void) {
        // SAFETY: both outlive the stream's work, and nothing else uses them.
        let (notify, wake) = unsafe { &*ends.cast::<Ends>() };
        let _ = (notify.send(()), wake.recv());
    }
    let gpu = machine(SimConfig::new());
    let (context, waited) = (gpu.context as usize, gpu.stream() as usize);
    let record = |count: usize| {
        let (stream, event) = (gpu.stream(), gpu.event());
        // SAFETY: handles are live.
        host_ns(&gpu, || (0..count).for_each(|_| unsafe { gpu.cuEventRecord(event, stream).unwrap() }))
    };
    let alone_ns = record(1000);
    let ((notify, notified), (waker, wake)) = (channel(), channel());
    std::thread::scope(|scope| {
        let driver = gpu.driver.clone();
        scope.spawn(move || {
            let ends: Ends = (notify, wake);
            // SAFETY: handles are live, and the ends outlive the work.
            unsafe {
                driver.cuCtxSetCurrent(std::ptr::without_provenance_mut(context)).unwrap();
                let stream = std::ptr::without_provenance_mut(waited);
                driver.cuLaunchHostFunc(stream, Some(wait), (&raw const ends).cast_mut().cast()).unwrap();
                driver.cuStreamSynchronize(stream).unwrap();
            }
        });
        // From here on the other thread is inside its host function until it is woken.
        notified.recv().unwrap();
        let together_ns = record(1000);
        drop(waker);
        assert!((together_ns / alone_ns) > 2.5, "{alone_ns} {together_ns}");
    });
}

#[test]
fn costs_can_be_changed() {
    let mut costs = gpumem_sim::Costs::h200();
    costs.calls_percent = 0;
    let gpu = machine(SimConfig::small().costs(costs));
    let mark_ns = host_ns(&gpu, || _ = gpu.alloc(1 << 20));
    assert!((99.9..100.1).contains(&mark_ns), "{mark_ns}");
    assert_eq!(code(gpu.try_alloc(64 << 20)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
}

/// Creates, maps, makes accessible, unmaps and releases a number of handles. Returns each time in microseconds per handle. Access
/// and unmapping are one call for all handles.
#[cfg(target_os = "linux")]
fn handle_us(gpu: &Machine, count: usize, size_bytes: usize) -> [f64; 5] {
    use virtual_memory::{create, grant, reserve, unmap};
    let (base, mut handles) = (reserve(gpu, count * size_bytes), Vec::new());
    let created = host_ns(gpu, || handles = (0..count).map(|_| create(gpu, size_bytes).unwrap()).collect());
    let at = |index: usize| base + (index * size_bytes) as u64;
    let mapped = host_ns(gpu, || {
        for (index, &handle) in handles.iter().enumerate() {
            // SAFETY: addresses and handles are checked by the driver under test.
            unsafe { gpu.cuMemMap(at(index), size_bytes, 0, handle, 0).unwrap() };
        }
    });
    let granted = host_ns(gpu, || grant(gpu, base, count * size_bytes, 0).unwrap());
    let unmapped = host_ns(gpu, || unmap(gpu, base, count * size_bytes));
    let released = host_ns(gpu, || {
        // SAFETY: handles are checked by the driver under test.
        handles.iter().for_each(|&handle| unsafe { gpu.cuMemRelease(handle).unwrap() });
    });
    [created, mapped, granted, unmapped, released].map(|ns| ns / 1e3 / count as f64)
}

#[cfg(target_os = "linux")]
#[test]
fn handles_cost_what_they_cost_beside_a_gpu() {
    let measured: [(usize, usize, [f64; 5]); 5] = [
        (1, 2 << 20, [5.3, 0.4, 16.1, 11.4, 7.1]),
        (1, 64 << 20, [6.3, 0.4, 17.3, 11.8, 21.1]),
        (1, 1 << 30, [13.0, 0.4, 45.3, 22.6, 209.8]),
        (512, 2 << 20, [5.3, 0.4, 22.6, 13.7, 7.1]),
        (8, 128 << 20, [6.3, 0.4, 26.7, 16.1, 33.0]),
    ];
    for (count, size_bytes, measured) in measured {
        let gpu = machine(SimConfig::h200().schedule(Schedule::Early));
        for (found, measured) in handle_us(&gpu, count, size_bytes).into_iter().zip(measured) {
            // The two events have a small cost too.
            let is_near = (found - measured).abs() < measured * 0.2 + 0.5 / count as f64;
            assert!(is_near, "{count} of {size_bytes}: {found} beside {measured}");
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn handles_cost_more_while_the_device_is_busy_whenever_its_work_runs_here() {
    for schedule in [Schedule::Early, Schedule::Late, Schedule::Random] {
        let mut costs = gpumem_sim::Costs::h200();
        costs.fill_ns = 1_000_000_000;
        let gpu = machine(SimConfig::h200().schedule(schedule).costs(costs));
        gpu.fill(gpu.stream(), gpu.alloc(1), 1, 1);
        let [created, mapped, granted, unmapped, released] = handle_us(&gpu, 1, 2 << 20);
        assert!((25.0..27.0).contains(&created), "{created}");
        assert!((46.0..49.0).contains(&(mapped + granted)), "{mapped} {granted}");
        assert!((17.0..19.0).contains(&unmapped), "{unmapped}");
        assert!((19.0..22.0).contains(&released), "{released}");
    }
}

//! Elapsed times on the virtual clock.

use super::*;

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

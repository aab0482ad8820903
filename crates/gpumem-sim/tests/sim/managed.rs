//! Managed memory on the simulator: tests that a GPU cannot run.

use super::clock::elapsed_ms;
use super::*;

const MIB: usize = 1 << 20;

/// Managed memory until it is freed, as cells, because the device may write it at any time.
fn managed(gpu: &Machine, size_bytes: usize) -> (u64, &[Cell<u8>]) {
    let mut address = 0;
    // SAFETY: a local outlives the call; the driver allocates host-accessible memory.
    unsafe {
        gpu.cuMemAllocManaged(&mut address, size_bytes, 1).unwrap();
        let host = std::ptr::with_exposed_provenance(address as usize);
        (address, std::slice::from_raw_parts(host, size_bytes))
    }
}

fn prefetch(gpu: &Machine, stream: CUstream, address: u64, size_bytes: usize, device: i32) {
    // SAFETY: addresses are checked by the driver under test.
    unsafe { gpu.cuMemPrefetchAsync(address, size_bytes, device, stream).unwrap() };
}

fn attribute(gpu: &Machine, attribute: CUmem_range_attribute, address: u64, size_bytes: usize) -> i32 {
    let mut value = 99;
    // SAFETY: a local outlives the call.
    unsafe {
        let data = (&raw mut value).cast();
        gpu.cuMemRangeGetAttribute(data, 4, attribute, address, size_bytes).unwrap();
    }
    value
}

fn free_bytes(gpu: &Machine) -> usize {
    let (mut free, mut total) = (0, 0);
    // SAFETY: locals outlive the call.
    unsafe { gpu.cuMemGetInfo_v2(&mut free, &mut total).unwrap() };
    free
}

#[test]
fn a_host_that_does_not_wait_reads_old_bytes_for_some_seed_and_one_that_waits_never() {
    let mut stale = 0;
    for seed in 0..50 {
        let gpu = seeded(seed);
        let stream = gpu.stream();
        let (address, host) = managed(&gpu, 100);
        host[7].set(1);
        gpu.fill(stream, address, 2, 100);
        stale += usize::from(host[7].get() == 1);
        gpu.sync(stream);
        assert_eq!(host[7].get(), 2);
    }
    assert!((1..50).contains(&stale), "{stale}");
}

#[test]
fn pages_count_where_they_are_and_make_room() {
    let gpu = machine(SimConfig::new().memory_bytes(64 << 20));
    let stream = gpu.stream();
    let (address, _) = managed(&gpu, 48 * MIB);
    assert_eq!(free_bytes(&gpu), 64 * MIB);
    gpu.fill(stream, address, 1, 16 * MIB);
    gpu.sync(stream);
    assert_eq!(free_bytes(&gpu), 48 * MIB);
    prefetch(&gpu, stream, address, 48 * MIB, 0);
    gpu.sync(stream);
    assert_eq!(free_bytes(&gpu), 16 * MIB);
    // Pages of managed memory are evicted in favour of memory that cannot move.
    let plain = gpu.alloc(40 * MIB);
    assert_eq!(free_bytes(&gpu), 0);
    prefetch(&gpu, stream, address, 48 * MIB, -1);
    gpu.sync(stream);
    assert_eq!(free_bytes(&gpu), 24 * MIB);
    // More managed memory than the device has is not an error.
    let (large, host) = managed(&gpu, 128 * MIB);
    gpu.fill(stream, large, 3, 128 * MIB);
    gpu.sync(stream);
    assert_eq!((free_bytes(&gpu), host[100 * MIB].get()), (0, 3));
    // SAFETY: no work uses them.
    unsafe { [large, plain, address].into_iter().for_each(|address| gpu.cuMemFree_v2(address).unwrap()) };
    assert_eq!(free_bytes(&gpu), 64 * MIB);
    assert!(gpu.sim().report().allocations.is_empty());
}

#[test]
fn a_use_of_pages_that_are_elsewhere_takes_longer_than_one_after_a_prefetch() {
    let gpu = seeded(3);
    let stream = gpu.stream();
    let (address, _) = managed(&gpu, 64 * MIB);
    let timed = |body: &dyn Fn()| elapsed_ms(&gpu, stream, body);
    let faulting_ms = timed(&|| gpu.fill(stream, address, 1, 64 * MIB));
    assert!((5.0..5.5).contains(&faulting_ms), "{faulting_ms}");
    let resident_ms = timed(&|| gpu.fill(stream, address, 1, 64 * MIB));
    assert!(resident_ms < 0.1, "{resident_ms}");
    let to_host_ms = timed(&|| prefetch(&gpu, stream, address, 64 * MIB, -1));
    assert!((2.9..3.2).contains(&to_host_ms), "{to_host_ms}");
    let back_ms = timed(&|| prefetch(&gpu, stream, address, 64 * MIB, 0));
    assert!((1.3..1.5).contains(&back_ms), "{back_ms}");
}

#[test]
fn pages_stay_where_advice_wants_them() {
    let gpu = machine(SimConfig::new().memory_bytes(64 << 20));
    let stream = gpu.stream();
    let (address, host) = managed(&gpu, 4 * MIB);
    prefetch(&gpu, stream, address, 4 * MIB, -1);
    // SAFETY: addresses are checked by the driver under test.
    unsafe {
        let advice = CUmem_advise::CU_MEM_ADVISE_SET_PREFERRED_LOCATION;
        gpu.cuMemAdvise(address, 2 * MIB, advice, -1).unwrap();
    }
    gpu.fill(stream, address, 8, 4 * MIB);
    gpu.sync(stream);
    assert_eq!((free_bytes(&gpu), host[0].get()), (62 * MIB, 8));
    let preferred = CUmem_range_attribute::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION;
    assert_eq!(attribute(&gpu, preferred, address, 2 * MIB), -1);
    assert_eq!(attribute(&gpu, preferred, address, 4 * MIB), -2);
}

#[test]
fn it_is_freed_by_either_call_when_all_work_is_done() {
    for seed in 0..20 {
        let gpu = seeded(seed);
        let (stream, other) = (gpu.stream(), gpu.stream());
        for is_async in [false, true] {
            let (address, _) = managed(&gpu, MIB);
            gpu.fill(other, address, 1, MIB);
            // SAFETY: addresses are checked by the driver under test.
            unsafe {
                if is_async { gpu.cuMemFreeAsync(address, stream) } else { gpu.cuMemFree_v2(address) }
                    .unwrap();
                assert_eq!(code(gpu.cuMemFree_v2(address)), CUresult::CUDA_ERROR_INVALID_VALUE);
            }
        }
        let report = gpu.sim().report();
        assert!(report.allocations.is_empty() && report.faults.is_empty(), "{report}");
    }
}

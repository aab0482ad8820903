//! The host memory that a large simulated device uses: only as much as the program accesses, with the race detector on.
//!
//! A program of its own, because other tests would also use memory of the process.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "it shows a measurement")]

use gpumem_sim::SimConfig;
use gpumem_sys::Driver;
use gpumem_sys::types::*;
use std::ptr::null_mut;

const MIB: usize = 1 << 20;
/// The number of blocks of each kind, 1 MiB each; handles have 2 MiB.
const PLAIN_COUNT: usize = 342;
const POOL_COUNT: usize = 342;
const HANDLE_COUNT: usize = 170;

#[test]
fn a_device_of_141_gib_with_1_gib_touched_stays_under_one_and_a_half() {
    assert_eq!(PLAIN_COUNT + POOL_COUNT + 2 * HANDLE_COUNT, 1024);
    let driver = gpumem_sim::driver(SimConfig::h200()).unwrap();
    let before_bytes = peak_bytes();
    let (mut context, mut stream, mut untouched, mut base) = (null_mut(), null_mut(), 0, 0);
    // SAFETY: locals outlive the calls, and addresses are used while they are allocated.
    unsafe {
        driver.cuDevicePrimaryCtxRetain(&mut context, 0).unwrap();
        driver.cuCtxSetCurrent(context).unwrap();
        driver.cuStreamCreate(&mut stream, 1).unwrap();
        driver.cuMemAlloc_v2(&mut untouched, 100 << 30).unwrap();
        for _ in 0..PLAIN_COUNT {
            let mut address = 0;
            driver.cuMemAlloc_v2(&mut address, MIB).unwrap();
            driver.cuMemsetD8Async(address, 1, MIB, stream).unwrap();
        }
        for _ in 0..POOL_COUNT {
            let mut address = 0;
            driver.cuMemAllocAsync(&mut address, MIB, stream).unwrap();
            driver.cuMemsetD8Async(address, 2, MIB, stream).unwrap();
        }
        driver.cuMemAddressReserve(&mut base, 4 << 40, 0, 0, 0).unwrap();
        for index in 0..HANDLE_COUNT {
            let address = base + (index * 2 * MIB) as u64;
            map(&driver, address);
            driver.cuMemsetD8Async(address, 3, 2 * MIB, stream).unwrap();
        }
        driver.cuStreamSynchronize(stream).unwrap();
    }
    let peak_bytes = peak_bytes();
    let grown = (peak_bytes - before_bytes) as f64 / (1_u64 << 30) as f64;
    let peak = peak_bytes as f64 / (1_u64 << 30) as f64;
    println!("1 GiB touched of 140.4 GiB: {peak:.3} GiB at the peak, {grown:.3} GiB of it the device's");
    assert!(peak < 1.5 && grown > 1.0, "{peak} GiB");
}

/// Maps a handle of 2 MiB at an address.
fn map(driver: &Driver, address: u64) {
    let location = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };
    let properties = CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        location,
        ..Default::default()
    };
    let flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    let mut handle = 0;
    // SAFETY: locals outlive the calls; the address is reserved and vacant.
    unsafe {
        driver.cuMemCreate(&mut handle, 2 * MIB, &properties, 0).unwrap();
        driver.cuMemMap(address, 2 * MIB, 0, handle, 0).unwrap();
        driver.cuMemSetAccess(address, 2 * MIB, &CUmemAccessDesc { location, flags }, 1).unwrap();
    }
}

/// The peak of the process's memory.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

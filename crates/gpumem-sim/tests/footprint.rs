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

/// One after the other, because both measure the process.
#[test]
fn large_devices_take_what_is_touched() {
    skipped_work_touches_nothing();
    a_device_of_141_gib_with_1_gib_touched_stays_under_one_and_a_half();
}

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

/// A device that skips work: 64 GiB are filled and copied, which takes no memory of the host, and no time.
fn skipped_work_touches_nothing() {
    let driver = gpumem_sim::driver(SimConfig::h200().skip_work(true)).unwrap();
    let before_bytes = resident_bytes();
    let (mut context, mut stream, mut from, mut to) = (null_mut(), null_mut(), 0, 0);
    let size = 32 << 30;
    let mut read = [7_u8; 64];
    let written = [9_u8; 64];
    // SAFETY: locals outlive the calls, and addresses are used while they are allocated.
    unsafe {
        driver.cuDevicePrimaryCtxRetain(&mut context, 0).unwrap();
        driver.cuCtxSetCurrent(context).unwrap();
        driver.cuStreamCreate(&mut stream, 1).unwrap();
        driver.cuMemAlloc_v2(&mut from, size).unwrap();
        driver.cuMemAllocAsync(&mut to, size, stream).unwrap();
        driver.cuMemsetD8Async(from, 1, size, stream).unwrap();
        driver.cuMemcpyDtoDAsync_v2(to, from, size, stream).unwrap();
        driver.cuMemcpyHtoDAsync_v2(to, written.as_ptr().cast(), written.len(), stream).unwrap();
        driver.cuMemcpyDtoHAsync_v2(read.as_mut_ptr().cast(), to, read.len(), stream).unwrap();
        driver.cuStreamSynchronize(stream).unwrap();
        assert_eq!(read, [0; 64]);
        // From host to host a copy is a copy.
        driver.cuMemcpyAsync(read.as_mut_ptr() as u64, written.as_ptr() as u64, 64, stream).unwrap();
        driver.cuStreamSynchronize(stream).unwrap();
        assert_eq!(read, [9; 64]);
        // Addresses are checked as always.
        let beyond = driver.cuMemsetD8Async(from, 1, size + 1, stream);
        assert!(beyond.is_err() || driver.cuStreamSynchronize(stream).is_err());
    }
    let grown_bytes = resident_bytes().saturating_sub(before_bytes);
    assert!(grown_bytes < 64 << 20, "{grown_bytes} bytes");
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
    status_bytes("VmHWM:")
}

fn resident_bytes() -> u64 {
    status_bytes("VmRSS:")
}

fn status_bytes(row: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(row)).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

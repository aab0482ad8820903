//! Tests CUDA host code without a GPU.
//!
//! The code under test is a double buffer: a copy stream fills two blocks of device memory in turn from pinned host memory, and a
//! second stream processes each block. The code takes its driver as an argument, so it also runs on the vendor's driver. The
//! first version lacks a wait. On most runs it computes the right result, on a GPU too; the simulator reports the race on every
//! run, and shows the seeds under which the result is wrong.
//!
//! `cargo run --example test_without_gpu -p gpumem-sim`

#![allow(clippy::print_stdout)] // printing is what it is for

use gpumem_sim::SimConfig;
use gpumem_sys::types::{CUcontext, CUdeviceptr, CUevent, CUevent_flags, CUstream, CUstream_flags};
use gpumem_sys::{Driver, DriverError};
use std::error::Error;
use std::ptr::null_mut;

fn main() -> Result<(), Box<dyn Error>> {
    println!("Without the wait:");
    let wrong =
        (0..SEEDS).filter(|seed| !is_right(*seed, Version::Forgets).unwrap_or(false)).collect::<Vec<_>>();
    println!("  wrong results under {} of {SEEDS} seeds, the first is {:?}", wrong.len(), wrong.first());
    let driver = gpumem_sim::driver(SimConfig::new().seed(0))?;
    run(&driver, Version::Forgets)?;
    let findings = gpumem_sim::Sim::of(&driver).map(|sim| sim.report().silent_findings()).unwrap_or_default();
    println!("  and under seed 0, right or not, the simulator finds {} races; the first:", findings.len());
    findings.iter().take(1).for_each(|finding| println!("    {finding}"));
    assert!(!findings.is_empty() && !wrong.is_empty());

    println!("With the wait:");
    for seed in 0..SEEDS {
        let driver = gpumem_sim::driver(SimConfig::new().seed(seed))?;
        assert_eq!(run(&driver, Version::Waits)?, EXPECTED, "seed {seed}");
        let findings =
            gpumem_sim::Sim::of(&driver).map(|sim| sim.report().silent_findings()).unwrap_or_default();
        assert!(findings.is_empty(), "seed {seed}: {findings:?}");
    }
    println!("  right under all {SEEDS} seeds, and nothing to report: no race, no leak");
    Ok(())
}

fn is_right(seed: u64, version: Version) -> Result<bool, Box<dyn Error>> {
    Ok(run(&gpumem_sim::driver(SimConfig::new().seed(seed))?, version)? == EXPECTED)
}

const SEEDS: u64 = 200;
const ROUNDS: u8 = 4;
const SIZE_BYTES: usize = 4096;
/// The last round's bytes.
const EXPECTED: u8 = ROUNDS;

#[derive(Clone, Copy, PartialEq)]
enum Version {
    Forgets,
    Waits,
}

/// The code under test. Returns the byte that the second stream processed in the last round.
fn run(driver: &Driver, version: Version) -> Result<u8, DriverError> {
    let machine = Machine::new(driver)?;
    let mut last = 0;
    // SAFETY: all memory is `SIZE_BYTES` long and lives until the device is synchronised by the drop of `Machine`.
    unsafe {
        for round in 1..=ROUNDS {
            let buffer = machine.buffers[usize::from(round % 2)];
            let host = machine.pinned.wrapping_add(SIZE_BYTES * usize::from(round - 1));
            host.write_bytes(round, SIZE_BYTES);
            // The block is free again after the second stream has processed its contents.
            driver.cuStreamWaitEvent(machine.copy, machine.taken, 0)?;
            driver.cuMemcpyHtoDAsync_v2(buffer, host.cast(), SIZE_BYTES, machine.copy)?;
            driver.cuEventRecord(machine.filled, machine.copy)?;
            if version == Version::Waits {
                driver.cuStreamWaitEvent(machine.work, machine.filled, 0)?;
            }
            driver.cuMemcpyDtoDAsync_v2(machine.result, buffer, SIZE_BYTES, machine.work)?;
            driver.cuEventRecord(machine.taken, machine.work)?;
        }
        driver.cuStreamSynchronize(machine.work)?;
        driver.cuMemcpyDtoH_v2((&raw mut last).cast(), machine.result, 1)?;
    }
    Ok(last)
}

/// The objects that the code under test needs, released on drop.
struct Machine<'a> {
    driver: &'a Driver,
    copy: CUstream,
    work: CUstream,
    filled: CUevent,
    taken: CUevent,
    buffers: [CUdeviceptr; 2],
    result: CUdeviceptr,
    pinned: *mut u8,
}

impl<'a> Machine<'a> {
    fn new(driver: &'a Driver) -> Result<Self, DriverError> {
        let mut context: CUcontext = null_mut();
        let (mut copy, mut work, mut filled, mut taken) = (null_mut(), null_mut(), null_mut(), null_mut());
        let (mut buffers, mut result, mut pinned) = ([0; 2], 0, null_mut());
        // SAFETY: every out-pointer is to a local that outlives the call.
        unsafe {
            driver.cuInit(0)?;
            driver.cuDevicePrimaryCtxRetain(&mut context, 0)?;
            driver.cuCtxSetCurrent(context)?;
            for stream in [&mut copy, &mut work] {
                driver.cuStreamCreate(stream, CUstream_flags::CU_STREAM_NON_BLOCKING.0)?;
            }
            for event in [&mut filled, &mut taken] {
                driver.cuEventCreate(event, CUevent_flags::CU_EVENT_DISABLE_TIMING.0)?;
            }
            for address in buffers.iter_mut().chain([&mut result]) {
                driver.cuMemAlloc_v2(address, SIZE_BYTES)?;
                driver.cuMemsetD8_v2(*address, 0, SIZE_BYTES)?;
            }
            driver.cuMemHostAlloc(&mut pinned, SIZE_BYTES * usize::from(ROUNDS), 0)?;
            driver.cuCtxSynchronize()?;
        }
        Ok(Self { driver, copy, work, filled, taken, buffers, result, pinned: pinned.cast() })
    }
}

impl Drop for Machine<'_> {
    fn drop(&mut self) {
        let driver = self.driver;
        // SAFETY: after the synchronisation nothing is in use. A refused call would show up as a leak.
        unsafe {
            let _ = driver.cuCtxSynchronize();
            let _ = driver.cuMemFreeHost(self.pinned.cast());
            for address in self.buffers.into_iter().chain([self.result]) {
                let _ = driver.cuMemFree_v2(address);
            }
            for event in [self.filled, self.taken] {
                let _ = driver.cuEventDestroy_v2(event);
            }
            for stream in [self.copy, self.work] {
                let _ = driver.cuStreamDestroy_v2(stream);
            }
            let _ = driver.cuDevicePrimaryCtxRelease_v2(0);
        }
    }
}

//! The simulator from the outside: through the table, by return codes, bytes and reports.
//!
//! These tests also hold on the real driver, as far as it was measured; the package `tests` has the suite that runs on both.

#![allow(missing_docs, clippy::unwrap_used)] // Helpers outside of the test functions unwrap, too.

mod calls;
mod clock;
mod codes;
mod correct;
#[cfg(all(target_os = "linux", not(miri)))]
mod fork;
mod graphs;
mod images;
mod instances;
mod ipc;
mod kernels;
mod libraries;
mod links;
mod losses;
mod managed;
mod memory;
mod order;
mod origins;
mod peers;
mod pools;
mod races;
mod recycling;
mod registered;
mod reuse;
mod rules;
mod schedules;
mod seeded_bugs;
mod shared_pools;
mod sharing;
mod texts;
mod values;
mod virtual_memory;

use gpumem_sim::{Sim, SimConfig};
use gpumem_sys::types::*;
use gpumem_sys::{CUresult, Driver, DriverError};
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::null_mut;

/// A driver whose device 0 has its primary context current on this thread.
struct Machine {
    driver: Driver,
    context: CUcontext,
}

impl std::ops::Deref for Machine {
    type Target = Driver;

    fn deref(&self) -> &Driver {
        &self.driver
    }
}

fn machine(config: SimConfig) -> Machine {
    let driver = gpumem_sim::driver(config).unwrap();
    let context = primary(&driver, 0);
    // SAFETY: the context was just retained.
    unsafe { driver.cuCtxSetCurrent(context).unwrap() };
    Machine { driver, context }
}

fn seeded(seed: u64) -> Machine {
    machine(SimConfig::new().seed(seed))
}

fn primary(driver: &Driver, device: i32) -> CUcontext {
    let mut context = null_mut();
    // SAFETY: a local outlives the call.
    unsafe { driver.cuDevicePrimaryCtxRetain(&mut context, device).unwrap() };
    context
}

// Each of these functions passes pointers to locals, or to slices that outlive the work: the tests synchronise before they read.
impl Machine {
    fn sim(&self) -> &Sim {
        Sim::of(&self.driver).unwrap()
    }

    fn stream(&self) -> CUstream {
        let mut stream = null_mut();
        // SAFETY: a local outlives the call.
        unsafe { self.cuStreamCreate(&mut stream, 1).unwrap() };
        stream
    }

    fn blocking_stream(&self) -> CUstream {
        let mut stream = null_mut();
        // SAFETY: a local outlives the call.
        unsafe { self.cuStreamCreate(&mut stream, 0).unwrap() };
        stream
    }

    fn event(&self) -> CUevent {
        let mut event = null_mut();
        // SAFETY: a local outlives the call.
        unsafe { self.cuEventCreate(&mut event, 2).unwrap() };
        event
    }

    fn alloc(&self, size_bytes: usize) -> u64 {
        self.try_alloc(size_bytes).unwrap()
    }

    fn try_alloc(&self, size_bytes: usize) -> Result<u64, DriverError> {
        let mut address = 0;
        // SAFETY: a local outlives the call.
        unsafe { self.cuMemAlloc_v2(&mut address, size_bytes)? };
        Ok(address)
    }

    fn alloc_on(&self, stream: CUstream, size_bytes: usize) -> u64 {
        self.try_alloc_on(stream, size_bytes).unwrap()
    }

    fn try_alloc_on(&self, stream: CUstream, size_bytes: usize) -> Result<u64, DriverError> {
        let mut address = 0;
        // SAFETY: a local outlives the call.
        unsafe { self.cuMemAllocAsync(&mut address, size_bytes, stream)? };
        Ok(address)
    }

    fn free_on(&self, stream: CUstream, address: u64) {
        // SAFETY: addresses are checked by the driver under test.
        unsafe { self.cuMemFreeAsync(address, stream).unwrap() };
    }

    fn fill(&self, stream: CUstream, address: u64, value: u8, size_bytes: usize) {
        // SAFETY: addresses are checked by the driver under test.
        unsafe { self.cuMemsetD8Async(address, value, size_bytes, stream).unwrap() };
    }

    fn copy(&self, stream: CUstream, target: u64, source: u64, size_bytes: usize) {
        // SAFETY: addresses are checked by the driver under test.
        unsafe { self.cuMemcpyDtoDAsync_v2(target, source, size_bytes, stream).unwrap() };
    }

    fn upload(&self, stream: CUstream, target: u64, bytes: &[u8]) {
        self.upload_from(stream, target, bytes.as_ptr(), bytes.len());
    }

    fn upload_from(&self, stream: CUstream, target: u64, source: *const u8, size_bytes: usize) {
        // SAFETY: pageable memory is read before the call returns, and pinned memory lives as long as the machine.
        unsafe { self.cuMemcpyHtoDAsync_v2(target, source.cast(), size_bytes, stream).unwrap() };
    }

    fn download_to(&self, stream: CUstream, target: &[Cell<u8>], source: u64) {
        let (target, size_bytes) = (target.as_ptr().cast_mut(), target.len());
        // SAFETY: pinned memory lives as long as the machine.
        unsafe { self.cuMemcpyDtoHAsync_v2(target.cast(), source, size_bytes, stream).unwrap() };
    }

    fn download(&self, stream: CUstream, source: u64, size_bytes: usize) -> Vec<u8> {
        self.try_download(stream, source, size_bytes).unwrap()
    }

    fn try_download(&self, stream: CUstream, source: u64, size_bytes: usize) -> Result<Vec<u8>, DriverError> {
        let mut bytes = vec![0; size_bytes];
        // SAFETY: the copy into pageable memory is complete when the call returns.
        unsafe { self.cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), source, size_bytes, stream)? };
        Ok(bytes)
    }

    /// Pinned memory that lives until the machine is dropped, as cells, because the device may write it at any time.
    fn pinned(&self, size_bytes: usize) -> &[Cell<u8>] {
        let mut host: *mut c_void = null_mut();
        // SAFETY: a local outlives the call; the driver allocates each block once.
        unsafe {
            self.cuMemHostAlloc(&mut host, size_bytes, 0).unwrap();
            std::slice::from_raw_parts(host.cast(), size_bytes)
        }
    }

    fn sync(&self, stream: CUstream) {
        self.try_sync(stream).unwrap();
    }

    fn try_sync(&self, stream: CUstream) -> Result<(), DriverError> {
        // SAFETY: handles are checked by the driver under test.
        unsafe { self.cuStreamSynchronize(stream) }
    }

    /// Makes `waiter` wait for the work queued on `stream` so far.
    fn order(&self, stream: CUstream, waiter: CUstream) {
        let event = self.event();
        // SAFETY: handles are checked by the driver under test.
        unsafe {
            self.cuEventRecord(event, stream).unwrap();
            self.cuStreamWaitEvent(waiter, event, 0).unwrap();
            self.cuEventDestroy_v2(event).unwrap();
        }
    }
}

fn bytes_of(host: &[Cell<u8>]) -> Vec<u8> {
    host.iter().map(Cell::get).collect()
}

fn write(host: &[Cell<u8>], bytes: &[u8]) {
    host.iter().zip(bytes).for_each(|(cell, byte)| cell.set(*byte));
}

/// The error code of a call that must fail.
#[track_caller]
fn code<T>(result: Result<T, DriverError>) -> CUresult {
    match result {
        Ok(_) => CUresult::CUDA_SUCCESS,
        Err(error) => error.code(),
    }
}

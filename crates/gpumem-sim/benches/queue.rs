//! The throughput of the simulator: operations per second on one core, with race detection and without.
//!
//! `cargo bench -p gpumem-sim --bench queue`; with `-- --rows`, in the format of `cargo xtask bench`; with `--quick`, a hundredth of the
//! operations.

#![allow(clippy::print_stdout)] // printing is what it is for

use gpumem_sim::SimConfig;
use gpumem_sys::types::{CUevent, CUstream};
use gpumem_sys::{Driver, DriverError};
use std::error::Error;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

const STREAMS: usize = 4;
const BLOCKS: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    if !has("--rows") {
        println!("{:<44} {:>12} {:>12}", "million operations a second", "races off", "races on");
    }
    row("fill", "memsets of 64 bytes, one stream", |gpu, i| gpu.fill(0, gpu.blocks[i % BLOCKS]))?;
    row("fill_four_streams", "memsets of 64 bytes, four streams", |gpu, i| {
        gpu.fill(i % STREAMS, gpu.blocks[i % STREAMS * 16 + i % 16])
    })?;
    row("copy", "copies of 64 bytes, one stream", |gpu, i| {
        gpu.copy(0, gpu.blocks[i % BLOCKS], gpu.blocks[(i + 1) % BLOCKS])
    })?;
    row("handover", "record, wait, memset: a block goes round", |gpu, i| match i % 3 {
        0 => gpu.record(i / 3 % STREAMS),
        1 => gpu.wait((i / 3 + 1) % STREAMS),
        _ => gpu.fill((i / 3 + 1) % STREAMS, gpu.blocks[0]),
    })?;
    row("allocate", "allocate, memset, free in stream order", |gpu, i| gpu.churn(i))?;
    Ok(())
}

/// Prints one line: the same work on two machines.
fn row(
    name: &str,
    what: &str,
    mut work: impl FnMut(&mut Gpu, usize) -> Result<(), DriverError>,
) -> Result<(), Box<dyn Error>> {
    // A multiple of three, the length of a round.
    let operations: u32 = if has("--quick") { 3_999 } else { 399_999 };
    let mut rate = |is_looking| -> Result<f64, Box<dyn Error>> {
        let mut gpu = Gpu::new(SimConfig::new().seed(1).races(is_looking))?;
        let mut best = Duration::MAX;
        for _ in 0..3 {
            let start = Instant::now();
            for i in 0..operations as usize {
                work(&mut gpu, i)?;
            }
            gpu.synchronize()?;
            best = best.min(start.elapsed());
        }
        let found = gpumem_sim::Sim::of(&gpu.driver).map_or(0, |sim| sim.report().findings.len());
        assert_eq!(found, 0, "{what}");
        Ok(f64::from(operations) / best.as_secs_f64() / 1e6)
    };
    let (off, on) = (rate(false)?, rate(true)?);
    if has("--rows") {
        println!("row\tsim/{name}@races_off/1\t{off}\tMop/s\nrow\tsim/{name}/1\t{on}\tMop/s");
    } else {
        println!("{what:<44} {off:>12.2} {on:>12.2}");
    }
    Ok(())
}

fn has(option: &str) -> bool {
    std::env::args().any(|arg| arg == option)
}

struct Gpu {
    driver: Driver,
    streams: Vec<CUstream>,
    event: CUevent,
    blocks: Vec<u64>,
    last: u64,
}

// All addresses and handles below belong to this machine and live as long as it; the driver also checks them.
impl Gpu {
    fn new(config: SimConfig) -> Result<Self, Box<dyn Error>> {
        let driver = gpumem_sim::driver(config)?;
        let (mut context, mut event) = (null_mut(), null_mut());
        // SAFETY: locals outlive the calls.
        unsafe {
            driver.cuDevicePrimaryCtxRetain(&mut context, 0)?;
            driver.cuCtxSetCurrent(context)?;
            driver.cuEventCreate(&mut event, 2)?;
        }
        let mut gpu = Self { driver, streams: Vec::new(), event, blocks: Vec::new(), last: 0 };
        for _ in 0..STREAMS {
            let mut stream = null_mut();
            // SAFETY: a local outlives the call.
            unsafe { gpu.driver.cuStreamCreate(&mut stream, 1)? };
            gpu.streams.push(stream);
        }
        for _ in 0..BLOCKS {
            let mut block = 0;
            // SAFETY: a local outlives the call.
            unsafe { gpu.driver.cuMemAlloc_v2(&mut block, 256)? };
            gpu.blocks.push(block);
        }
        Ok(gpu)
    }

    fn fill(&self, stream: usize, block: u64) -> Result<(), DriverError> {
        // SAFETY: streams, blocks and the event belong to this driver, and live as long as it.
        unsafe { self.driver.cuMemsetD8Async(block, 1, 64, self.streams[stream]) }
    }

    fn copy(&self, stream: usize, target: u64, source: u64) -> Result<(), DriverError> {
        // SAFETY: streams, blocks and the event belong to this driver, and live as long as it.
        unsafe { self.driver.cuMemcpyDtoDAsync_v2(target, source, 64, self.streams[stream]) }
    }

    fn record(&self, stream: usize) -> Result<(), DriverError> {
        // SAFETY: streams, blocks and the event belong to this driver, and live as long as it.
        unsafe { self.driver.cuEventRecord(self.event, self.streams[stream]) }
    }

    fn wait(&self, stream: usize) -> Result<(), DriverError> {
        // SAFETY: streams, blocks and the event belong to this driver, and live as long as it.
        unsafe { self.driver.cuStreamWaitEvent(self.streams[stream], self.event, 0) }
    }

    fn churn(&mut self, i: usize) -> Result<(), DriverError> {
        let stream = self.streams[i / 3 % STREAMS];
        // SAFETY: the stream belongs to this driver; the block is allocated, used and freed on one stream.
        unsafe {
            match i % 3 {
                0 => self.driver.cuMemAllocAsync(&mut self.last, 4096, stream),
                1 => self.driver.cuMemsetD8Async(self.last, 1, 64, stream),
                _ => self.driver.cuMemFreeAsync(self.last, stream),
            }
        }
    }

    fn synchronize(&self) -> Result<(), DriverError> {
        // SAFETY: a context is current.
        unsafe { self.driver.cuCtxSynchronize() }
    }
}

//! The effect of eager release: the memory of a training run in which frees of other streams and memory over the soft limit are
//! processed in small steps, and of the same run without such steps until memory runs out.
//!
//! The run is CUDA.jl's example: 300,000 × 1,000 numbers on the device. A stream cuts batches of 2,048 into new blocks for
//! another stream, which allocates a few small arrays for each; the hard limit is 4 GiB, the soft limit 2 GiB. Only the memory is
//! real: kernels are copies and fills.
//!
//! `cargo run --release -p gpumem-pool --example eager [-- EPOCHS]`, on a GPU or, without one, on the simulator.

#![allow(clippy::print_stdout)] // printing is what it is for

use core::time::Duration;
use gpumem_pool::sys::Driver;
use gpumem_pool::{BackendKind, Block, Device, Pool, Stream};
use gpumem_sim::SimConfig;
use std::error::Error;
use std::time::Instant;

const OBSERVATIONS: u64 = 300_000;
const FEATURES: u64 = 1_000;
const BATCH: u64 = 2_048;

fn main() -> Result<(), Box<dyn Error>> {
    let epochs = std::env::args().nth(1).map_or(Ok(20), |epochs| epochs.parse())?;
    // A simulated device without wake-up costs: the example measures the host.
    let simulated = || gpumem_sim::driver(SimConfig::new().memory_bytes(8 << 30).races(false));
    let driver = Driver::cuda().or_else(|_| simulated())?;
    let device = Device::new(&driver, 0)?;
    println!("{device}, {}, {epochs} epochs", driver.kind());
    println!(
        "{:<24} {:>9} {:>13} {:>13} {:>15}",
        "served", "total, s", "median, µs", "longest, µs", "reserved, MiB"
    );
    let at_once = "";
    let at_last = "poll_budget_us:0,release_budget_us:0,inserted_waits:false,growth_slack:1000000";
    for (name, conf) in [("a little at a time", at_once), ("when memory runs out", at_last)] {
        let run = Run::new(&device, conf)?;
        let start = Instant::now();
        let mut steps = Vec::new();
        for _ in 0..epochs {
            run.epoch(&mut steps)?;
        }
        run.compute.synchronize()?;
        let total = start.elapsed();
        steps.sort_unstable();
        let micros = |step: Option<&Duration>| step.map_or(0.0, |step| step.as_secs_f64() * 1e6);
        println!(
            "{name:<24} {:>9.3} {:>13.1} {:>13.1} {:>15}",
            total.as_secs_f64(),
            micros(steps.get(steps.len() / 2)),
            micros(steps.last()),
            run.pool.status()?.reserved_peak_bytes >> 20,
        );
    }
    Ok(())
}

struct Run {
    pool: Pool,
    cutting: Stream,
    compute: Stream,
    table: Block,
}

impl Run {
    fn new(device: &Device, conf: &str) -> Result<Self, Box<dyn Error>> {
        let builder = Pool::builder(device).backend(BackendKind::Caching).conf(conf)?;
        let pool = builder.hard_limit(4 << 30).soft_limit(2 << 30).build()?;
        let (cutting, compute) = (Stream::new(device)?, Stream::new(device)?);
        let table = pool.alloc(OBSERVATIONS * FEATURES * 4, &cutting)?;
        Ok(Self { pool, cutting, compute, table })
    }

    /// Records the host time of each step.
    fn epoch(&self, steps: &mut Vec<Duration>) -> Result<(), Box<dyn Error>> {
        for first in (0..OBSERVATIONS).step_by(BATCH as usize) {
            let start = Instant::now();
            let rows = BATCH.min(OBSERVATIONS - first);
            let batch = self.pool.alloc(rows * FEATURES * 4, &self.cutting)?;
            self.copy(&batch, self.table.address() + first * FEATURES * 4, &self.cutting)?;
            self.compute.wait_for(&self.cutting)?;
            // Predictions, their errors, and a gradient.
            for size_bytes in [rows * 4, rows * 4, FEATURES * 4] {
                let array = self.pool.alloc(size_bytes, &self.compute)?;
                self.copy(&array, batch.address(), &self.compute)?;
            }
            batch.record_use(&self.compute);
            drop(batch);
            steps.push(start.elapsed());
        }
        // The program reads the loss.
        self.compute.synchronize()?;
        Ok(())
    }

    fn copy(&self, to: &Block, from: u64, stream: &Stream) -> Result<(), Box<dyn Error>> {
        let device = self.pool.device();
        let _bound = device.bind()?;
        // SAFETY: both ends are alive and at least this large. Their frees wait for the stream, which owns the block or was
        // recorded.
        unsafe {
            device.driver().cuMemcpyDtoDAsync_v2(
                to.address(),
                from,
                to.size_bytes() as usize,
                stream.raw(),
            )?;
        }
        Ok(())
    }
}

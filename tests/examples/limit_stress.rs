//! Many threads at a hard limit, for a given time: the pool never exceeds the limit, and refuses no request that fits.
//!
//! A driver table counts the memory that the driver has allocated. Each round has the next backend, profile and kind of memory. The
//! program prints the work of each round, and fails if the pool held more than the limit or refused a request.

#![allow(clippy::print_stdout, reason = "a program that prints its progress")]

use anyhow::{Result, ensure};
use clap::Parser;
use gpumem_tests::driver::memory_counter::MemoryCounter;
use gpumem_tests::fixtures::backends::{Setting, settings};
use gpumem_tests::pool::{BackendKind, Device, Limit, MemoryKind};
use gpumem_tests::stress::limit::{Mixture, Plan, run};
use std::time::Duration;

/// Lets many threads allocate up to a hard limit; runs on the simulator if there is no GPU.
///
/// GPUMEM_DRIVER=cuda|sim chooses the driver.
#[derive(Parser)]
#[command(name = "limit_stress")]
struct Options {
    /// The total time.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// The number of threads, each with a stream.
    #[arg(long, default_value_t = 16)]
    threads: usize,
    /// The hard limit of the pools.
    #[arg(long, default_value = "1GiB")]
    limit: Limit,
    /// Only this backend: caching, native or none [default: all that are built in, in turns].
    #[arg(long)]
    backend: Option<BackendKind>,
    /// Only this kind of memory [default: device, and on the simulator all].
    #[arg(long)]
    kind: Option<MemoryKind>,
    /// The seed of the random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let driver = gpumem_sim::driver_or_sim()?;
    let counted = MemoryCounter::new(&driver);
    let device = Device::new(&counted.driver, 0)?;
    println!("{}: {device}", driver.kind());
    let is_wanted = |setting: &Setting| {
        options.backend.is_none_or(|backend| backend == setting.backend)
            && options.kind.is_none_or(|kind| kind == setting.kind)
    };
    let all: Vec<Setting> = settings(&device).into_iter().filter(is_wanted).collect();
    ensure!(!all.is_empty(), "no backend that is built in has that name and kind");
    let mixtures = [Mixture::Even, Mixture::Mixed];
    let rounds: Vec<_> =
        all.into_iter().flat_map(|setting| mixtures.map(|mixture| (setting, mixture))).collect();
    let time = Duration::from_secs_f64(options.seconds / rounds.len() as f64);
    let limit_bytes = options.limit.resolve(device.total_bytes(), device.memory_info()?.free_bytes)?;
    for (setting, mixture) in rounds {
        let kind = setting.kind;
        let pool = setting.builder(&device).hard_limit(limit_bytes).build()?;
        let plan = Plan { threads: options.threads, limit_bytes, mixture, time, seed: options.seed };
        let done = run(&counted, &pool, kind, plan)?;
        println!("{setting}, {mixture:?}: {done}");
        pool.reclaim()?;
        ensure!(done.held_peak_bytes <= limit_bytes, "the pool held more than its limit");
        ensure!(done.refused == 0, "a request was refused although it fits");
        drop(pool);
        device.synchronize()?;
        ensure!(
            counted.held_bytes(kind) == 0,
            "{} bytes are still held after the end of the pool",
            counted.held_bytes(kind)
        );
    }
    Ok(())
}

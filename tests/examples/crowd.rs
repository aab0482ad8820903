//! Threads against a hard limit, for as long as wanted: it is never passed by a byte, and nobody is refused while there
//! is something to give back. What the driver has given is counted by a table of its own.
//!
//! Goes over the backends, their profiles and the kinds of memory, prints what each round did, and fails when one did
//! not hold.

#![allow(clippy::print_stdout, reason = "a program that says what it does")]

use anyhow::{Result, ensure};
use clap::Parser;
use gpumem_tests::backends::{Setting, settings};
use gpumem_tests::counted::Counted;
use gpumem_tests::crowd::{Mixture, Plan, run};
use gpumem_tests::pool::{BackendKind, Device, Limit, MemoryKind};
use std::time::Duration;

/// Has many threads allocate against a limit; on the simulator where there is no GPU.
///
/// GPUMEM_DRIVER=cuda|sim chooses the driver.
#[derive(Parser)]
#[command(name = "crowd")]
struct Options {
    /// For how long, all together.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Threads, each with a stream.
    #[arg(long, default_value_t = 16)]
    threads: usize,
    /// The pools' hard limit.
    #[arg(long, default_value = "1GiB")]
    limit: Limit,
    /// Only this backend [default: all that are built in, in turns].
    #[arg(long)]
    backend: Option<BackendKind>,
    /// Only this kind of memory [default: device, and on the simulator all].
    #[arg(long)]
    kind: Option<MemoryKind>,
    /// Decides the random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let driver = gpumem_sim::driver_or_sim()?;
    let counted = Counted::new(&driver);
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
    let limit_bytes = options.limit.resolve(device.total_bytes())?;
    for (setting, mixture) in rounds {
        let kind = setting.kind;
        let pool = setting.builder(&device).hard_limit(limit_bytes).build()?;
        let plan = Plan { threads: options.threads, limit_bytes, mixture, time, seed: options.seed };
        let done = run(&counted, &pool, kind, plan)?;
        println!("{setting}, {mixture:?}: {done}");
        pool.reclaim()?;
        ensure!(done.held_peak_bytes <= limit_bytes, "the limit was passed");
        ensure!(done.refused == 0, "something was refused though there was room");
        drop(pool);
        device.synchronize()?;
        ensure!(counted.held_bytes(kind) == 0, "{} bytes are held for nothing", counted.held_bytes(kind));
    }
    Ok(())
}

//! Records a program, then finds the settings and the smallest limit that it runs with.
//!
//! `cargo run -p gpumem-trace --example would_it_fit`, or with a file: a recording of gpumem, a memory snapshot of PyTorch, a log of RMM.

#![allow(clippy::print_stdout)] // printing is what it is for

use gpumem_sim::{Sim, SimConfig};
use gpumem_trace::fit::{self, CANDIDATES};
use gpumem_trace::pool::sys::Driver;
use gpumem_trace::pool::trace::Trace as Recorder;
use gpumem_trace::pool::{Bytes, Device, Pool, Stream};
use gpumem_trace::{Setup, Trace};
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let trace = match std::env::args_os().nth(1) {
        Some(file) => Trace::read(file)?,
        None => {
            let file = std::env::temp_dir().join(format!("gpumem-would-it-fit-{}.trace", std::process::id()));
            record(&file)?;
            let trace = Trace::read(&file)?;
            std::fs::remove_file(&file)?;
            trace
        }
    };
    trace.disagreements().iter().for_each(|note| println!("note: {note}"));
    println!(
        "{}: {} operations, {} live",
        trace.name(),
        trace.operation_count(),
        Bytes(trace.peaks().live_bytes)
    );

    // On a GPU this would be `Driver::cuda()`, without a clock.
    let setup = Setup { clock: Some(|driver| Sim::of(driver).map(Sim::host_time)), ..Setup::default() };
    let mut attempts = Vec::new();
    for candidate in CANDIDATES {
        let attempt = candidate.attempt(&trace, &new_driver()?, &setup)?;
        let found = fit::find_limit::<Box<dyn Error>>(&trace, candidate, &setup, new_driver, |_| ())?;
        let limit = found.map_or("none".into(), |found| Bytes(found.limit_bytes).to_string());
        println!("{candidate}: {attempt}; smallest limit {limit}");
        attempts.push((candidate, attempt));
    }
    if let Some(best) = fit::best(&attempts) {
        println!("least time in the driver: GPUMEM_CONF={}", best.conf());
    }
    Ok(())
}

fn new_driver() -> Result<Driver, Box<dyn Error>> {
    Ok(gpumem_sim::driver(SimConfig::h200().races(false))?)
}

/// A server: weights, and requests whose caches grow.
fn record(file: &Path) -> Result<(), Box<dyn Error>> {
    let device = Device::new(&new_driver()?, 0)?;
    let pool = Pool::builder(&device).adaptor(Recorder::create(file)?).build()?;
    let stream = Stream::new(&device)?;
    let _weights = pool.alloc(300 << 20, &stream)?;
    for request in 1..=20_u64 {
        let mut cache = pool.alloc(request << 20, &stream)?;
        for step in 1..=30 {
            cache = pool.alloc((request << 20) + (step << 18), &stream)?;
        }
        drop(cache);
    }
    Ok(())
}

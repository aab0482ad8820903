//! A race that the simulator finds: `compute` copies memory that `upload` writes, and nothing orders the two streams.
//!
//! `cargo run -p gpumem --features sim --example missing_wait`

#![allow(clippy::print_stdout)] // printing is what it is for

use gpumem::sim::{Finding, Sim, SimConfig};
use gpumem::{Device, Pool, Stream};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("{}", race()?);
    Ok(())
}

/// The finding of a program without a wait.
pub(crate) fn race() -> Result<Finding, Box<dyn std::error::Error>> {
    let driver = gpumem::sim::driver(SimConfig::new())?;
    let device = Device::new(&driver, 0)?;
    let pool = Pool::new(&device)?;
    let (upload, compute) = (Stream::new(&device)?, Stream::new(&device)?);
    let (input, output) = (pool.alloc(4096, &upload)?, pool.alloc(4096, &compute)?);
    let _context = device.bind()?;
    // SAFETY: both blocks have 4096 bytes and live until the device has done its work.
    unsafe {
        driver.cuMemsetD8Async(input.address(), 1, 4096, upload.raw())?;
        // Missing: compute.wait_for(&upload)?;
        driver.cuMemcpyDtoDAsync_v2(output.address(), input.address(), 4096, compute.raw())?;
    }
    device.synchronize()?;
    let findings = Sim::of(&driver).map(Sim::take_findings).unwrap_or_default();
    Ok(findings.into_iter().next().ok_or("no race found")?)
}

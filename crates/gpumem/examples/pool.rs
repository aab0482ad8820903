//! A pool with a hard limit, a block that two streams use, and the printed status.
//!
//! `cargo run -p gpumem --features sim --example pool`, on a GPU or, without one, on the simulator.

#![allow(clippy::print_stdout)] // printing is what it is for

use gpumem::{Device, Driver, Pool, Status, Stream};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("{}", status(&gpumem::sim::driver_or_sim()?)?);
    Ok(())
}

/// The status of a pool that holds one block and caches another.
pub(crate) fn status(driver: &Driver) -> Result<Status, Box<dyn std::error::Error>> {
    let device = Device::new(driver, 0)?;
    let pool = Pool::builder(&device).hard_limit("4GiB").build()?;
    let (upload, compute) = (Stream::new(&device)?, Stream::new(&device)?);

    let block = pool.alloc(64 << 20, &upload)?;
    // Here a program queues work on `upload` that fills the block at `block.address()`.
    compute.wait_for(&upload)?;
    block.record_use(&compute); // before work on `compute` that reads the block
    drop(block); // free once both streams have done their work; the host does not wait

    let _weights = pool.alloc(512 << 20, &compute)?;
    Ok(pool.status()?)
}

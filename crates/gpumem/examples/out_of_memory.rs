//! The report of a request that a limit refuses: what was refused, advice, and the memory in use by tag.
//!
//! `cargo run -p gpumem --features sim --example out_of_memory`, on a GPU or, without one, on the simulator.

#![allow(clippy::print_stdout)] // printing is what it is for

use gpumem::{Device, Driver, Pool, PoolError, Stream};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("{}", refusal(&gpumem::sim::driver_or_sim()?)?);
    Ok(())
}

/// The error of a request for 2 GiB in a pool that has 2.5 GiB in use and a limit of 4 GiB.
pub(crate) fn refusal(driver: &Driver) -> Result<PoolError, Box<dyn std::error::Error>> {
    let device = Device::new(driver, 0)?;
    let pool = Pool::builder(&device).name("training").hard_limit("4GiB").build()?;
    let stream = Stream::new(&device)?;
    let _weights = {
        let _scope = pool.scope("weights");
        pool.alloc(1536 << 20, &stream)?
    };
    let _batch = {
        let _scope = pool.scope("batch");
        pool.alloc(1 << 30, &stream)?
    };
    Ok(pool.alloc(2 << 30, &stream).err().ok_or("the limit should have refused this")?)
}

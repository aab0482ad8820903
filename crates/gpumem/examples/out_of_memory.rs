//! The report of a request that a limit refuses: memory in use by tag, every step that was tried, and advice.
//!
//! `cargo run -p gpumem --features sim --example out_of_memory`, on a GPU or, without one, on the simulator.

#![allow(clippy::print_stdout)] // printing is what it is for

use gpumem::{Device, Limit, Pool, Stream};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::new(&gpumem::sim::driver_or_sim()?, 0)?;
    let pool = Pool::builder(&device).hard_limit("4GiB".parse::<Limit>()?).build()?;
    let stream = Stream::new(&device)?;
    let weights = {
        let _scope = pool.scope("weights");
        pool.alloc(1536 << 20, &stream)?
    };
    let batch = {
        let _scope = pool.scope("batch");
        pool.alloc(1 << 30, &stream)?
    };
    match pool.alloc(2 << 30, &stream) {
        Err(error) => println!("{error}"),
        Ok(_) => return Err("the limit should have refused this".into()),
    }
    drop((weights, batch));
    Ok(())
}

//! A pool with a hard limit, a block that two streams use, arrays on the same pool, and the printed status.
//!
//! `cargo run -p gpumem --features sim --example quickstart`, on a GPU or, without one, on the simulator.

#![allow(clippy::print_stdout)] // printing is what it is for

use gpumem::{Device, Gpu, GpuArray, Limit, Pool, Stream};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let driver = gpumem::sim::driver_or_sim()?;
    let device = Device::new(&driver, 0)?;
    println!("{device}, {}", driver.kind());
    let pool = Pool::builder(&device).hard_limit("4GiB".parse::<Limit>()?).build()?;

    let (upload, compute) = (Stream::new(&device)?, Stream::new(&device)?);
    let block = pool.alloc(64 << 20, &upload)?;
    // Here a program queues work on `upload` that fills the block at `block.address()`.
    compute.wait_for(&upload)?;
    block.record_use(&compute); // before work on `compute` that reads the block
    drop(block); // free once both streams have done their work; the host does not wait

    let gpu = Gpu::with_stream(&pool, &compute)?;
    let x = GpuArray::from_slice(&gpu, &[1.0_f32, 2.0, 3.0])?;
    let y = &x * 2.0 + &x;
    println!("{:?}", y.to_vec()?);
    println!("{}", pool.status()?);
    Ok(())
}

//! Requests of an asynchronous service: each is a future that awaits its stream, may go on another thread after each `.await`, and
//! counts its memory for a tag.
//!
//! `cargo run -p gpumem-pool --example async_requests`, on a GPU or, without one, on the simulator.

#![allow(clippy::print_stdout)] // printing is what it is for

use gpumem_pool::{Device, Event, Pool, PoolError, Stream, Tag};
use std::error::Error;

const INPUT_BYTES: u64 = 1 << 20;

/// Fills a block on one stream, copies it on another, and returns the sum of the copy's bytes.
async fn answer(pool: Pool, streams: [Stream; 2], tag: Tag, value: u8) -> Result<u64, PoolError> {
    let [upload, compute] = &streams;
    let mut input = pool.alloc_tagged(INPUT_BYTES, upload, &tag)?;
    input.fill(0..INPUT_BYTES, value, upload)?;
    let uploaded = Event::new(pool.device())?;
    uploaded.record(upload)?;
    (&uploaded).await?; // no thread is blocked
    let mut output = pool.alloc_tagged(INPUT_BYTES, compute, &tag)?;
    output.copy_from(0, &input, 0..INPUT_BYTES, compute)?;
    compute.await?; // everything queued so far
    let mut bytes = vec![0_u8; INPUT_BYTES as usize];
    output.copy_to_host(0, &mut bytes, compute)?;
    Ok(bytes.into_iter().map(u64::from).sum())
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::new(&gpumem_sim::driver_or_sim()?, 0)?;
    let pool = Pool::new(&device)?;
    let tag = pool.tag("requests");
    let mut threads = Vec::new();
    for value in 1..=4 {
        let streams = [Stream::new(&device)?, Stream::new(&device)?];
        let request = answer(pool.clone(), streams, tag.clone(), value);
        // Any executor works; this one runs a future to its end on one thread.
        threads.push(std::thread::spawn(|| pollster::block_on(request)));
    }
    for (value, thread) in (1_u64..).zip(threads) {
        let sum = thread.join().map_err(|_| "a request panicked")??;
        assert_eq!(sum, value * INPUT_BYTES);
    }
    let status = pool.status()?;
    println!("{} requests, {status}", status.tags[0].allocation_count / 2);
    Ok(())
}

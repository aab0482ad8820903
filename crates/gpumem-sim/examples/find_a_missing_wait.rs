//! Finds a missing wait: a stream fills a buffer, a second stream reads it, and nothing orders the two.
//!
//! `cargo run -p gpumem-sim --example find_a_missing_wait`

#![allow(clippy::print_stdout)] // printing is its purpose

use gpumem_sim::{Sim, SimConfig};
use gpumem_sys::types::CUstream_flags;
use std::error::Error;
use std::ptr::null_mut;

fn main() -> Result<(), Box<dyn Error>> {
    let is_waiting = std::env::args().any(|arg| arg == "--wait");
    let driver = gpumem_sim::driver(SimConfig::new())?;
    let (mut context, mut fill, mut read, mut filled) = (null_mut(), null_mut(), null_mut(), null_mut());
    let (mut buffer, mut copy) = (0, 0);
    // SAFETY: the out-pointers are to locals that outlive the calls; the memory is at least as large as the accesses.
    unsafe {
        driver.cuInit(0)?;
        driver.cuDevicePrimaryCtxRetain(&mut context, 0)?;
        driver.cuCtxSetCurrent(context)?;
        driver.cuStreamCreate(&mut fill, CUstream_flags::CU_STREAM_NON_BLOCKING.0)?;
        driver.cuStreamCreate(&mut read, CUstream_flags::CU_STREAM_NON_BLOCKING.0)?;
        driver.cuEventCreate(&mut filled, 0)?;
        driver.cuMemAlloc_v2(&mut buffer, 4096)?;
        driver.cuMemAlloc_v2(&mut copy, 4096)?;

        driver.cuMemsetD8Async(buffer, 7, 4096, fill)?;
        driver.cuEventRecord(filled, fill)?;
        if is_waiting {
            driver.cuStreamWaitEvent(read, filled, 0)?;
        }
        driver.cuMemcpyDtoDAsync_v2(copy, buffer, 4096, read)?;
        driver.cuCtxSynchronize()?;
    }
    let findings = Sim::of(&driver).ok_or("not a simulator")?.report().findings;
    println!("{} findings", findings.len());
    findings.iter().for_each(|finding| println!("{finding}"));
    assert_eq!(findings.is_empty(), is_waiting);
    Ok(())
}

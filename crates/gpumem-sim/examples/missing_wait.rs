//! A wait that is missing, found by the simulator: one stream writes memory, another copies it, and nothing orders the two.
//!
//! `cargo run -p gpumem-sim --example missing_wait`

#![allow(clippy::print_stdout)] // printing is what it is for

use gpumem_sim::{Sim, SimConfig};
use gpumem_sys::types::CUstream_flags;
use std::ptr::null_mut;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let driver = gpumem_sim::driver(SimConfig::new())?;
    let (mut context, mut upload, mut compute) = (null_mut(), null_mut(), null_mut());
    let (mut input, mut output) = (0, 0);
    // SAFETY: out-pointers are to locals that outlive the calls; both allocations are as long as the work on them.
    unsafe {
        driver.cuInit(0)?;
        driver.cuDevicePrimaryCtxRetain(&mut context, 0)?;
        driver.cuCtxSetCurrent(context)?;
        driver.cuStreamCreate(&mut upload, CUstream_flags::CU_STREAM_NON_BLOCKING.0)?;
        driver.cuStreamCreate(&mut compute, CUstream_flags::CU_STREAM_NON_BLOCKING.0)?;
        driver.cuMemAlloc_v2(&mut input, 4096)?;
        driver.cuMemAlloc_v2(&mut output, 4096)?;

        driver.cuMemsetD8Async(input, 1, 4096, upload)?;
        // Missing here: an event recorded on `upload`, and a wait for it on `compute`.
        driver.cuMemcpyDtoDAsync_v2(output, input, 4096, compute)?;
        driver.cuCtxSynchronize()?;
    }
    let report = Sim::of(&driver).ok_or("not a simulator")?.report();
    assert_eq!(report.findings.len(), 1);
    println!("{}", report.findings[0]);
    Ok(())
}

//! Two streams write to memory of the host. The second stream waits for the first, and the host for the second.
//!
//! `cargo run -p gpumem-device --example order`

#![allow(clippy::print_stdout)] // printing is what it is for

use gpumem_device::{Device, HostMemory, Stream};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::new(&gpumem_sim::driver_or_sim()?, 0)?;
    let (first, second) = (Stream::new(&device)?, Stream::new(&device)?);
    let memory = HostMemory::register(&device, vec![0_u8; 8])?;
    let fill = |stream: &Stream, value, len| {
        // SAFETY: the memory has at least `len` bytes, and stays registered until all work on it is done.
        unsafe { device.driver().cuMemsetD8Async(memory.address(), value, len, stream.raw()) }
    };

    let bound = device.bind()?;
    fill(&first, 1, 8)?;
    second.wait_for(&first)?;
    fill(&second, 2, 4)?;
    drop(bound);

    second.synchronize()?;
    let written = memory.into_inner()?;
    assert_eq!(written, [2, 2, 2, 2, 1, 1, 1, 1]);
    println!("{device}: {written:?}");
    Ok(())
}

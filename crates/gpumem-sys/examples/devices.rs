//! Lists the GPUs of this machine, or prints why there are none.
//!
//! `cargo run -p gpumem-sys --example devices`

#![allow(clippy::print_stdout)] // printing is what it is for

use gpumem_sys::{CudaVersion, Driver, DriverError, LoadError};
use std::ffi::CStr;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let driver = match Driver::cuda() {
        Ok(driver) => driver,
        Err(error @ (LoadError::NoLibrary { .. } | LoadError::NoDevice(_))) => {
            println!("no GPU: {error}");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let (mut version, mut count) = (0, 0);
    // SAFETY: both locals outlive the calls.
    unsafe {
        driver.cuDriverGetVersion(&mut version)?;
        driver.cuDeviceGetCount(&mut count)?;
    }
    println!("driver for CUDA {}, {count} devices", CudaVersion(version.unsigned_abs()));
    for device in 0..count {
        let (name, memory_bytes) = describe(&driver, device)?;
        println!("{device}: {name}, {} MiB", memory_bytes >> 20);
    }
    Ok(())
}

/// The name and the memory of a device.
fn describe(driver: &Driver, device: i32) -> Result<(String, usize), DriverError> {
    let (mut name, mut memory_bytes) = ([0_u8; 256], 0);
    // SAFETY: the buffer is as long as stated, and both locals outlive the calls.
    unsafe {
        driver.cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32, device)?;
        driver.cuDeviceTotalMem_v2(&mut memory_bytes, device)?;
    }
    let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
    Ok((name.to_string_lossy().into_owned(), memory_bytes))
}

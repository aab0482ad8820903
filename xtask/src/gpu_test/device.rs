//! A description of the driver and the devices.

use anyhow::{Context, Result};
use gpumem_sys::{CudaVersion, Driver};
use std::ffi::CStr;
use std::fmt::Write as _;
use std::process::Command;

/// One line for the driver and one for each device; an error if there is none.
pub(crate) fn describe() -> Result<String> {
    let driver = Driver::cuda().context("gpu-test needs a GPU and takes no other driver")?;
    let (mut version, mut count) = (0, 0);
    // SAFETY: both numbers outlive the calls.
    unsafe {
        driver.cuDriverGetVersion(&mut version)?;
        driver.cuDeviceGetCount(&mut count)?;
    }
    let release = release().map(|release| format!(" {release}")).unwrap_or_default();
    let mut text = format!("driver{release}, CUDA {}\n", CudaVersion(version.unsigned_abs()));
    for ordinal in 0..count {
        writeln!(text, "device {ordinal}: {}", device(&driver, ordinal)?)?;
    }
    Ok(text)
}

fn device(driver: &Driver, ordinal: i32) -> Result<String> {
    let (mut device, mut size_bytes, mut name) = (0, 0, [0; 256]);
    // SAFETY: all out-pointers outlive the calls, and the length of the name is passed.
    unsafe {
        driver.cuDeviceGet(&mut device, ordinal)?;
        driver.cuDeviceTotalMem_v2(&mut size_bytes, device)?;
        driver.cuDeviceGetName(name.as_mut_ptr(), name.len() as i32 - 1, device)?;
    }
    // SAFETY: the last byte is still zero.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy();
    Ok(format!("{name}, {:.1} GiB", size_bytes as f64 / f64::from(1 << 30)))
}

/// The version of the driver's release, which only its command-line tool prints.
fn release() -> Option<String> {
    let query = ["--query-gpu=driver_version", "--format=csv,noheader"];
    let output =
        Command::new("nvidia-smi").args(query).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).lines().next()?.trim().to_string())
}

//! A description of the devices, from the tool that comes with the vendor's driver.

use anyhow::{Context, Result, ensure};
use std::process::Command;

/// One line for each device, with the driver's version; an error if there is none.
pub(crate) fn describe() -> Result<String> {
    let query = ["--query-gpu=index,name,memory.total,driver_version", "--format=csv"];
    let output = Command::new("nvidia-smi").args(query).output();
    let output =
        output.context("gpu-test needs an NVIDIA GPU and its driver: nvidia-smi cannot be started")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "gpu-test needs an NVIDIA GPU: nvidia-smi says {}", text.trim());
    Ok(text)
}

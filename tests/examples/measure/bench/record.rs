//! `--record FILE`: the figures of a run, with its machine, time and command.

use super::Args;
use crate::runs::{Figure, Origin};
use anyhow::{Context, Result};
use gpumem_tests::pool::Device;
use gpumem_tests::sys::DriverKind;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::SystemTime;

/// Writes a new file.
pub(super) fn write(file: &Path, args: &Args, figures: Vec<Figure>) -> Result<()> {
    let date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let origin = Origin { date, machine: machine()?, command: command(args), note: args.note.clone() };
    let mut text = serde_json::to_string(&origin)?;
    for figure in &figures {
        text = text + "\n" + &serde_json::to_string(figure)?;
    }
    text.push('\n');
    let mut file_of_run = File::create_new(file).with_context(|| file.display().to_string())?;
    file_of_run.write_all(text.as_bytes()).with_context(|| file.display().to_string())?;
    eprintln!("wrote {}", file.display());
    Ok(())
}

/// The command without the options that name folders and files of one machine.
fn command(args: &Args) -> String {
    let peer_files = args.peer_file.iter().map(|file| {
        let name = file.file_name().unwrap_or(file.as_os_str());
        format!(" --peer-file {}", name.to_string_lossy())
    });
    let names = args.names.iter().map(|name| format!(" {name}"));
    ["cargo xtask bench".to_string()].into_iter().chain(names).chain(peer_files).collect()
}

/// The device, its driver, and the host.
fn machine() -> Result<String> {
    let driver = gpumem_sim::driver_or_sim()?;
    let device = Device::new(&driver, 0)?;
    let version = match driver.kind() {
        DriverKind::Cuda => kernel_driver().unwrap_or_else(|| "driver of unknown version".into()),
        _ => "simulator".into(),
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (name, mib) = (device.name(), device.total_bytes() >> 20);
    Ok(format!("{name} ({mib} MiB); {version}; {cores} cores; {}", std::env::consts::OS))
}

/// The version that the kernel's module reports.
fn kernel_driver() -> Option<String> {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    let version = text.split_whitespace().find(|word| {
        word.contains('.')
            && word.split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
    });
    version.map(|version| format!("driver {version}"))
}

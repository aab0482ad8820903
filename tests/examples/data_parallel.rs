//! The example `train` on several devices, in every form that this machine has: gradients summed by NCCL or through blocks, in one
//! process and in one for each device. `train` compares the losses with those of one device, and this program fails if it fails.
//!
//! `cargo build --release -p gpumem-adapt --example train && cargo run --release -p gpumem-tests --example data_parallel`
//!
//! With two GPUs, NCCL connects both; with one, it has a single rank, and two ranks share the GPU through blocks. Without NCCL its forms
//! are skipped, with a message, unless the environment variable `NCCL_REQUIRED` is set.

#![allow(clippy::print_stdout, reason = "a program that prints its progress")]

use anyhow::{Context, Result, bail, ensure};
use gpumem_tests::pool::Device;
use gpumem_tests::sys::DriverKind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Small sums, then sums of 256 KiB.
const WORKLOADS: [&[&str]; 2] = [
    &["--epochs", "20"],
    &["--synthetic", "512x65536", "--batch", "128", "--epochs", "3", "--learning-rate", "1e-6"],
];

fn main() -> Result<()> {
    let driver = gpumem_sim::driver_or_sim()?;
    let present = Device::count(&driver)?;
    let is_simulator = driver.kind() == DriverKind::Sim;
    drop(driver);
    println!("devices: {present}");
    // On the simulator, the second workload takes long and has nothing to show.
    for workload in WORKLOADS.iter().take(if is_simulator { 1 } else { WORKLOADS.len() }) {
        if has_nccl(is_simulator)? {
            let ranks = present.min(2);
            form(workload, "nccl", ranks, false)?;
            form(workload, "nccl", ranks, true)?;
        }
        form(workload, "blocks", 2, false)?;
        if cfg!(all(target_os = "linux", feature = "backend-caching")) {
            form(workload, "blocks", 2, true)?;
        }
    }
    Ok(())
}

/// Returns whether NCCL can be used; an error if it must be there.
fn has_nccl(is_simulator: bool) -> Result<bool> {
    if is_simulator {
        println!("skipped: NCCL needs GPUs");
        return Ok(false);
    }
    // SAFETY: loading runs the initialisers of the vendor's library, which have no conditions.
    let is_installed = unsafe { cudarc::nccl::sys::is_culib_present() };
    if !is_installed {
        ensure!(
            std::env::var_os("NCCL_REQUIRED").is_none(),
            "NCCL_REQUIRED is set, and libnccl.so was not found"
        );
        println!("skipped: libnccl.so was not found");
    }
    Ok(is_installed)
}

/// Runs the example once, in one process or in one for each rank.
fn form(workload: &[&str], exchange: &str, ranks: u32, has_processes: bool) -> Result<()> {
    let processes = if has_processes { ranks } else { 1 };
    println!("\n== {exchange}, {ranks} ranks, {processes} processes: {} ==", workload.join(" "));
    let train = program()?;
    let socket = std::env::temp_dir().join(format!("gpumem-data-parallel-{}", std::process::id()));
    let start = |rank: u32| {
        let mut command = Command::new(&train);
        command.args(workload).args(["--exchange", exchange, "--devices", &ranks.to_string()]);
        // NCCL refuses ranks that share a device, and needs no such option for one.
        if exchange == "blocks" {
            command.arg("--oversubscribe");
        }
        if has_processes {
            command.args(["--rank", &rank.to_string(), "--rendezvous"]).arg(&socket);
        }
        // The example sets it, too. No rank may use multicast.
        command.env("NCCL_NVLS_ENABLE", "0").spawn().with_context(|| train.display().to_string())
    };
    let mut children = Children(Vec::new());
    for rank in 0..processes {
        children.0.push(start(rank)?);
    }
    children.wait()
}

/// `train` in the folder of this program.
fn program() -> Result<PathBuf> {
    let this = std::env::current_exe()?;
    let folder = this.parent().unwrap_or(Path::new("."));
    let train = folder.join(format!("train{}", std::env::consts::EXE_SUFFIX));
    ensure!(train.exists(), "{} is missing; build the example `train` of gpumem-adapt", train.display());
    Ok(train)
}

/// The processes of the ranks, which end together.
struct Children(Vec<Child>);

impl Children {
    /// Waits until all have succeeded. A rank that has failed leaves the others waiting, so they are ended.
    fn wait(mut self) -> Result<()> {
        let started = Instant::now();
        loop {
            let mut running = 0;
            for (rank, child) in self.0.iter_mut().enumerate() {
                match child.try_wait()? {
                    Some(status) => ensure!(status.success(), "rank {rank} has failed: {status}"),
                    None => running += 1,
                }
            }
            if running == 0 {
                return Ok(());
            }
            if started.elapsed() > PATIENCE {
                bail!("{running} ranks are still running after {PATIENCE:.0?}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

const PATIENCE: Duration = Duration::from_secs(300);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // A process that has ended is not an error here.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

//! `cargo xtask gpu-test`: runs every GPU case on the GPU.
//!
//! GPU cases are the tests named `…cuda::…`. They exist only with feature `gpu`, and always use the vendor's driver, whatever the
//! environment says. A missing device is a failure, and so is a suite that ran no case, because silence must not look like
//! success. In a bundle the same runner is a program of its own (`xtask/src/bin/gpu-test.rs`).

mod build;
mod bundle;
mod device;
mod libtest;
mod runner;
mod suite;

use crate::table;
use anyhow::{Result, ensure};
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write the programs and a run.sh into DIR, for a machine with a GPU and no Rust, instead of running them
    #[arg(long, value_name = "DIR", conflicts_with_all = ["suite", "libtest"])]
    bundle: Option<PathBuf>,
    #[command(flatten)]
    choice: runner::Choice,
}

pub(crate) fn run(args: Args) -> Result<()> {
    match args.bundle {
        Some(folder) => bundle::write(
            &build::programs()?,
            &crate::workspace::programs::benches(&["--release"])?,
            &build::runners()?,
            &folder,
        ),
        None => runner::run(build::suites, &args.choice),
    }
}

/// Lays out and lists a bundle of the programs that `cargo test --workspace` builds, without benches and runners, which are optimised. Fails
/// where a suite has no case.
pub(crate) fn check() -> Result<()> {
    let programs = build::programs_on_simulator()?;
    let folder = crate::workspace::root().join("target/bundle");
    bundle::write(&programs, &[], &[], &folder)?;
    for (kind_folder, kind) in suite::FOLDERS {
        for program in programs.iter().filter(|program| program.kind == kind) {
            let path = format!("{kind_folder}/{}", program.name);
            ensure!(folder.join(&path).is_file(), "the bundle has no {path}");
            println!("{path}");
        }
    }
    Ok(std::fs::remove_dir_all(folder)?)
}

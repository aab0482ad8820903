//! A folder like that of a CUDA toolkit, from packages of the Python package index.

use crate::workspace::wheel::unpacked;
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;

/// The package with the headers that `nvcc` includes by itself.
pub(super) const CUDA_CRT: (&str, &str) = ("nvidia-cuda-crt", "13.0.88");

/// Links these folders of all packages, which are of CUDA 13, into one place.
pub(super) fn merged(home: &Path, packages: &[(&str, &str)], folders: &[&str]) -> Result<()> {
    // Links to another version must not stay.
    for folder in folders.iter().map(|folder| home.join(folder)).filter(|folder| folder.is_dir()) {
        std::fs::remove_dir_all(folder)?;
    }
    std::fs::create_dir_all(home)?;
    for (package, version) in packages {
        let root = unpacked(package, version)?.join("nvidia/cu13");
        for folder in folders.iter().map(|folder| root.join(folder)).filter(|folder| folder.is_dir()) {
            let status =
                Command::new("cp").args(["--recursive", "--symbolic-link"]).arg(folder).arg(home).status();
            ensure!(status.context("cp cannot be started")?.success(), "cp made no links to {package}");
        }
    }
    Ok(())
}

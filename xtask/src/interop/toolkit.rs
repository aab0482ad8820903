//! A folder like that of a CUDA toolkit, from packages of the Python package index.

use crate::workspace::wheel::unpacked;
use anyhow::{Context, Result};
use std::path::Path;

/// The package with the headers that `nvcc` includes by itself.
pub(super) const CUDA_CRT: (&str, &str) = ("nvidia-cuda-crt", "13.0.88");

/// Links these folders of all packages, which are of CUDA 13, into one place.
pub(super) fn merged(home: &Path, packages: &[(&str, &str)], folders: &[&str]) -> Result<()> {
    // Links to another version must not stay.
    for folder in folders.iter().map(|folder| home.join(folder)).filter(|folder| folder.is_dir()) {
        std::fs::remove_dir_all(folder)?;
    }
    for (package, version) in packages {
        let root = unpacked(package, version)?.join("nvidia/cu13");
        for folder in folders.iter().filter(|folder| root.join(folder).is_dir()) {
            link_all(&root.join(folder), &home.join(folder))?;
        }
    }
    Ok(())
}

/// Links the files of a folder. Folders are made, because several packages have files in one.
fn link_all(source: &Path, target: &Path) -> Result<()> {
    std::fs::create_dir_all(target)?;
    for entry in std::fs::read_dir(source).with_context(|| source.display().to_string())? {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
        match path.is_dir() {
            true => link_all(&path, &target.join(name))?,
            false => crate::drop_in::link(&path.display().to_string(), &target.join(name))?,
        }
    }
    Ok(())
}

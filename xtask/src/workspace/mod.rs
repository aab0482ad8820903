//! The repository and its packages, programs that cargo builds from it, and files of vendors that tasks download.

pub(crate) mod programs;
pub(crate) mod wheel;

use anyhow::Result;
use cargo_metadata::{Metadata, MetadataCommand, Package};
use std::path::{Path, PathBuf};

/// The repository's root folder.
pub(crate) fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

/// The packages that users download.
pub(crate) fn published() -> Result<Vec<Package>> {
    // An empty list of registries is `publish = false`.
    Ok(metadata()?.packages.into_iter().filter(|package| package.publish.is_none()).collect())
}

/// Cargo's target folder.
pub(crate) fn target_folder() -> Result<PathBuf> {
    Ok(metadata()?.target_directory.into())
}

fn metadata() -> Result<Metadata> {
    let manifest = root().join("Cargo.toml");
    Ok(MetadataCommand::new().manifest_path(manifest).no_deps().exec()?)
}

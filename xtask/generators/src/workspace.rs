//! The repository, and files of vendors that the generators download.

#[path = "../../src/workspace/vendor.rs"]
pub(crate) mod vendor;
#[path = "../../src/workspace/wheel.rs"]
pub(crate) mod wheel;

use std::path::{Path, PathBuf};

/// The repository's root folder.
pub(crate) fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).unwrap_or(manifest).to_path_buf()
}

//! NVRTC, the compiler of CUDA text, from the Python package index.

use super::wheel::unpacked;
use anyhow::Result;
use std::path::PathBuf;

/// Newer than the one that makes the committed PTX: programs use the library of their toolkit.
const NVRTC: (&str, &str) = ("nvidia-cuda-nvrtc", "13.0.88");

/// Downloads NVRTC, and returns the folder of its libraries.
pub(crate) fn folder() -> Result<PathBuf> {
    Ok(unpacked(NVRTC.0, NVRTC.1)?.join("nvidia/cu13/lib"))
}

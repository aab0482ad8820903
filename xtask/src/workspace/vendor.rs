//! Packages of the Python package index that several tasks need, and the headers of an installed compiler.

use super::wheel::unpacked;
use anyhow::Result;
use std::path::PathBuf;

/// The package with `cuda.h`, of CUDA 13. In later versions `CUmemLocation` is not a plain struct.
pub(crate) const CUDA_RUNTIME: (&str, &str) = ("nvidia-cuda-runtime", "13.0.96");
const LIBCLANG: (&str, &str) = ("libclang", "18.1.1");

/// Downloads libclang and returns its folder.
pub(crate) fn libclang() -> Result<PathBuf> {
    let folder = unpacked(LIBCLANG.0, LIBCLANG.1)?;
    Ok(folder.join("libclang-18.1.1.data/platlib/clang/native"))
}

/// The include folder of an installed compiler: libclang from the package index comes without `stddef.h`.
pub(crate) fn compiler_headers() -> Vec<String> {
    let found = glob("/usr/lib/gcc/x86_64-linux-gnu").into_iter().chain(glob("/usr/lib/clang"));
    found.map(|folder| format!("-isystem{}", folder.join("include").display())).collect()
}

fn glob(parent: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

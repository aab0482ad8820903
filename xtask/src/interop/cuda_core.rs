//! cuda-core, whose build generates its bindings: it needs the headers of CUDA 13, those of cuRAND among them, and libclang.
//!
//! All of them come from the Python package index, unless `CUDA_TOOLKIT_PATH` names a toolkit and `LIBCLANG_PATH` a folder. Where the index
//! is unavailable, the program is skipped.

use super::process::{Needs, build};
use super::toolkit::{CUDA_CRT, merged};
use super::{Layout, run_seeds};
use crate::workspace::vendor;
use crate::workspace::wheel::Unreachable;
use anyhow::Result;
use std::ffi::OsString;
use std::path::PathBuf;

const CURAND: (&str, &str) = ("nvidia-curand", "10.4.0.35");

const TOOLKIT: &str = "CUDA_TOOLKIT_PATH";
const LIBCLANG: &str = "LIBCLANG_PATH";

pub(super) fn run(layout: &Layout, name: &str, seeds: u64) -> Result<String> {
    let variables = match variables(layout) {
        Err(error) if error.is::<Unreachable>() => return Ok(format!("skipped: {error:#}")),
        variables => variables?,
    };
    let built = build(layout, &layout.manifest(name), &["build", "--locked"], &variables)?;
    run_seeds(layout, &built, &Needs::default(), seeds)
}

fn variables(layout: &Layout) -> Result<Vec<(&'static str, OsString)>> {
    let mut variables = Vec::new();
    if std::env::var_os(TOOLKIT).is_none() {
        variables.push((TOOLKIT, toolkit(layout)?.into()));
    }
    if std::env::var_os(LIBCLANG).is_none() {
        variables.push((LIBCLANG, vendor::libclang()?.into()));
        variables.push(("BINDGEN_EXTRA_CLANG_ARGS", vendor::compiler_headers().join(" ").into()));
    }
    Ok(variables)
}

/// A toolkit without libraries.
fn toolkit(layout: &Layout) -> Result<PathBuf> {
    let home = layout.made.join("cuda-headers");
    merged(&home, &[vendor::CUDA_RUNTIME, CUDA_CRT, CURAND], &["include"])?;
    Ok(home)
}

//! cubecl, which compiles its kernels with NVRTC when they are first launched: it needs that library, and the headers of CUDA.
//!
//! Both come from the Python package index, unless `CUDA_PATH` names a toolkit. Where the index is unavailable, the program is skipped.

use super::process::{Needs, build};
use super::toolkit::{CUDA_CRT, merged};
use super::{Layout, run_seeds};
use crate::workspace::wheel::Unreachable;
use crate::workspace::{nvrtc, vendor};
use anyhow::Result;
use std::path::PathBuf;

/// The folder that has `include`.
const TOOLKIT: &str = "CUDA_PATH";

pub(super) fn run(layout: &Layout, name: &str, seeds: u64) -> Result<String> {
    let needs = match needs(layout) {
        Err(error) if error.is::<Unreachable>() => return Ok(format!("skipped: {error:#}")),
        needs => needs?,
    };
    let built = build(layout, &layout.manifest(name), &["build", "--locked"], &[])?;
    run_seeds(layout, &built, &needs, seeds)
}

fn needs(layout: &Layout) -> Result<Needs> {
    let toolkit = match std::env::var_os(TOOLKIT) {
        Some(toolkit) => PathBuf::from(toolkit),
        None => headers(layout)?,
    };
    Ok(Needs { libraries: vec![nvrtc::folder()?], variables: vec![(TOOLKIT, toolkit.into_os_string())] })
}

fn headers(layout: &Layout) -> Result<PathBuf> {
    let home = layout.made.join("headers");
    merged(&home, &[CUDA_CRT, vendor::CUDA_RUNTIME], &["include"])?;
    Ok(home)
}

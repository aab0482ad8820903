//! A network of candle-nn, trained on candle's CPU device and on its CUDA device, which is the drop-in.

use super::candle_tests::prepared;
use super::process::build;
use super::{Layout, run_seeds};
use crate::workspace::wheel::Unreachable;
use anyhow::Result;

pub(super) fn run(layout: &Layout, name: &str, seeds: u64) -> Result<String> {
    let (variables, needs) = match prepared(layout) {
        Err(error) if error.is::<Unreachable>() => return Ok(format!("skipped: {error:#}")),
        prepared => prepared?,
    };
    let built = build(layout, &layout.manifest(name), &["build", "--release", "--locked"], &variables)?;
    run_seeds(layout, &built, &needs, seeds)
}

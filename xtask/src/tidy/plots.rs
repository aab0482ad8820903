//! Checks that the plots agree with the recorded runs.

use super::{Files, Finding};
use crate::measure::plots::stale;

pub(super) fn check(files: &Files) -> Vec<Finding> {
    let advice = "run `cargo xtask plots`, or correct the file of the run";
    stale(files).into_iter().map(|(path, what)| Finding::new(path, 1, what, advice)).collect()
}

//! The random formulas of the differential test.

#[path = "../../../../crates/gpumem-array/tests/array/expressions/trees.rs"]
mod shared;

pub(super) use shared::{Reference, Tree, formula, on_host, trees};

//! Kernels run from their text: values, branches, barriers, calls, and the mistakes that are found.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::single_range_in_vec_init, reason = "accesses are lists of ranges")]

mod accesses;
mod checks;
mod control;
mod cores;
mod hostile;
mod link;
mod matrix;
mod memory;
mod mistakes;
mod support;
mod text;
mod values;

//! Many threads, random programs, and recorded programs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod limit_stress;
mod model;
mod replay;
mod stress;

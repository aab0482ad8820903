//! Stream capture and graphs, on both drivers.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fixture;
mod forks;
mod graphs;
mod modes;
mod nodes;

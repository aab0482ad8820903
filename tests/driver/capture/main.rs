//! Stream capture and graphs, on either driver.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fixture;
mod forks;
mod graphs;
mod modes;
mod nodes;

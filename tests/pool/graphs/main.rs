//! The pool while streams capture, and the memory of graphs: on either driver, with every backend. One case at a time: on
//! a GPU they share a process, and what one asks the driver for would break another's capture.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod course;
mod fixture;
mod memory;

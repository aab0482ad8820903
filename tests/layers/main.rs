//! Arrays and adapt, and several layers at once.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod adapt;
mod array;
mod arrays_graphs;
mod bits;
mod copies;
#[cfg(feature = "gpu")]
mod cudarc;
mod devices;
mod expressions;
mod held;
mod kernels;
mod launches;
mod spilling;
mod spilling_pipeline;
mod stream_entries;
mod texts;
mod transfers;
mod variables;

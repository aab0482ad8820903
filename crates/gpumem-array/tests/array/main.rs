//! The arrays from the outside, on the simulator. The package `tests` has the suites that also run on a GPU.

#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod arithmetic;
mod borrows;
mod casts;
mod choices;
mod clients;
mod copies;
mod creation;
#[cfg(feature = "cudarc")]
mod cudarc;
#[cfg(feature = "dlpack")]
mod dlpack;
mod edges;
mod elements;
mod expressions;
mod foreign;
mod futures;
mod graphs;
#[cfg(feature = "backend-caching")]
mod growable;
mod host_memory;
mod indices;
mod kernels;
mod kinds;
mod layouts;
mod losses;
mod peaks;
mod print;
mod products;
mod random;
mod ranges;
mod reductions;
mod resize;
mod scans;
mod staging;
mod stream_races;
mod support;
mod tracking;
mod unusual_clients;
#[cfg(any(feature = "backend-caching", feature = "backend-native"))]
mod waits;

//! The pool, with every backend.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod adaptors;
mod contents;
mod contexts;
mod features;
mod foreign;
mod futures;
mod graphs;
mod kinds;
mod lifetimes;
mod limits;
mod others_bugs;
mod pool;
mod service;
mod situations;
#[cfg(feature = "backend-caching")]
mod sleep;
mod streams;

//! The driver itself, by its own calls.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod alias;
mod approximate;
mod boxes;
mod calls;
mod capture;
mod conformance;
mod functions;
mod hundred;
mod instructions;
mod managed;
mod mistakes;
mod others;
mod peers;
mod pool_kinds;
mod reuse;
mod settings;
#[cfg(target_os = "linux")]
mod sharing;
mod stream_kinds;
mod texts;
mod threads;
mod vmm;

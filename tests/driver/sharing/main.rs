//! Memory that one process hands to another, or takes back from itself. Each case holds on the simulator and on
//! a GPU. Where a refusal's code is not documented, only that it is one.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod blocks;
mod child;
mod fixture;
mod handles;
mod killed;
mod plain;
mod pools;

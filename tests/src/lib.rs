//! Shared by the tests across layers.

pub mod backends;
pub mod bench;
pub mod cases;
pub mod counted;
pub mod crowd;
pub mod entries;
pub mod fit;
pub mod gate;
pub mod meter;
pub mod model;
pub mod pattern;
mod random;
pub mod raw;
pub mod replay;
pub mod schedules;
pub mod seeds;
pub mod stress;
pub mod told;
pub mod trace;
pub mod vmm;

pub use gpumem_adapt as adapt;
pub use gpumem_adapt::array;
pub use gpumem_adapt::array::pool;
pub use gpumem_adapt::array::pool::sys;

/// The folder of this package: where cargo says it is while it runs tests, which is elsewhere once a test program was carried
/// to another machine.
pub fn folder() -> std::path::PathBuf {
    let said = std::env::var_os("CARGO_MANIFEST_DIR");
    said.map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), Into::into)
}

/// The README's example, as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;

/// The page on adaptors.
#[cfg(doctest)]
#[doc = include_str!("../../docs/adaptors.md")]
pub struct Adaptors;

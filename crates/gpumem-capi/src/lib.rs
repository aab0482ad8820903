//! gpumem's pool for C: a shared library with the header `include/gpumem.h`.
//!
//! Every function returns a [`gpumem_result`](error::gpumem_result). No panic leaves the library, no lock is held during a callback, and
//! a handle or an address is looked up before it is used: one that was destroyed or freed is an error.

#![deny(unsafe_code)]
// Work goes through `Stream::run_borrowed`, which refuses memory that sleeps.
#![deny(clippy::disallowed_methods)]

pub mod error;

#[allow(unsafe_code)]
mod blocks;
#[allow(unsafe_code)]
pub mod entry;
#[allow(unsafe_code)]
mod handles;

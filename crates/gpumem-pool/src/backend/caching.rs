//! `caching`: our own heap over the driver's virtual memory.
//!
//! | module | noun |
//! | --- | --- |
//! | `class` | size classes of blocks up to 1 MiB |
//! | `thread`, `magazine`, `lock` | what a thread keeps at hand of a stream's freed blocks, behind a lock word |
//! | `depot`, `budget` | batches that wander between threads; how much all of this may hold |
//! | `heap` | all that is larger, and what the front is filled from: addresses, handles, windows |
//! | `vmm`, `dials` | the driver's calls for physical memory; what the heap trades |
//! | `front` | magazines and depot of one pool, put together |
//! | `stats`, `sync` | counters; what the front needs of threads |

// The parts stand before they are put together.
#![allow(dead_code)]

mod budget;
mod class;
mod depot;
mod dials;
mod front;
mod heap;
#[allow(unsafe_code)]
mod lock;
mod magazine;
mod stats;
mod sync;
#[cfg(test)]
mod tests;
#[allow(unsafe_code)]
mod thread;
mod vmm;

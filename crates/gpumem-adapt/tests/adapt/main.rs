//! Values to the GPU and back, on the simulator, by the public interface only.

#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod basics;
mod batches;
mod checkpoint;
mod containers;
mod derive;
mod feeds;
mod fit;
mod identity;
mod machine;
mod out_of_memory;
mod packing;
mod policies;
mod train;
mod wrappers;

//! Thread caches and a heap for stream-ordered memory.
//!
//! This crate keeps books about memory that it never touches: which bytes are free, in the order of which stream, and how physical
//! memory is mapped under addresses. It calls no driver. Two traits supply what it needs from outside:
//!
//! - [`PhysicalMemory`]: creates, maps, unmaps and releases physical memory;
//! - [`Order`](order::Order): which uses of memory are ordered before a stream's next operation, and which are complete.
//!
//! Functions that use them are generic, so a pool that implements both gets its own copies of them, without dynamic calls. Neither is
//! called before a request misses the thread caches.
//!
//! | module | job |
//! | --- | --- |
//! | [`sync`] | atomics and locks of the standard library, or of a model checker; the biased lock, the spinning mutex, asymmetric fences |
//! | [`order`] | streams, stamps and epochs: two numbers that tell whether memory freed on one stream may be used on another |
//! | [`counters`] | blocks handed out and given back, counted by thread |
//! | [`SizeClass`], [`HeapBlock`], [`Tuning`] | sizes of small blocks; what caches and heap exchange; the options of the heap |
//! | [`cache`] | thread caches: freed blocks that a thread keeps for a stream, and the depot between threads |
//! | [`heap`] | everything else: addresses, pages, mappings and segments behind one lock |
//!
//! # Model checking
//!
//! `--cfg gpumem_loom` and `--cfg gpumem_shuttle` compile the crate over the threads of [loom](https://docs.rs/loom) or
//! [shuttle](https://docs.rs/shuttle). Only the tests of this repository use them.

// The few modules that need `unsafe` allow it.
#![deny(unsafe_code)]

mod block;
#[allow(unsafe_code)]
pub mod cache;
pub mod counters;
pub mod heap;
#[cfg(gpumem_planted_bugs)]
#[doc(hidden)]
#[allow(unsafe_code)]
pub mod injected_bugs;
mod memory;
pub mod order;
mod size_class;
#[allow(unsafe_code)]
pub mod sync;
mod tuning;

pub use block::HeapBlock;
pub use memory::{PhysicalMemory, RawHandle};
pub use size_class::SizeClass;
pub use tuning::{SPLIT_BYTES_MAX_MIN, Tuning};

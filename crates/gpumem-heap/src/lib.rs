//! Thread caches and a heap for stream-ordered memory.
//!
//! This crate does the book-keeping for memory that it never accesses: which bytes are free for which stream, and how physical memory is
//! mapped at addresses. It calls no driver. Two traits supply the rest:
//!
//! - [`PhysicalMemory`]: creates, maps, unmaps and releases physical memory;
//! - [`Order`](order::Order): which uses of memory are ordered before a stream's next operation, and which are complete.
//!
//! Functions that use them are generic, so a pool that implements both pays for no dynamic calls. Neither trait is called unless a request
//! misses the thread caches.
//!
//! Arguments out of range are refused or clamped, and never panic in a release build. Debug assertions and [`heap::Heap::check`] detect a
//! caller that returns a block twice.
//!
//! # Rooms
//!
//! A room imports only rooms before it in this table, which `cargo xtask tidy` checks.
//!
//! | room | content |
//! | --- | --- |
//! | [`sync`] | atomics and locks of the standard library or of a model checker; the biased lock and count, the spinning mutex, asymmetric fences |
//! | [`order`] | streams, stamps and epochs: two numbers that decide whether memory freed on one stream may be used on another |
//! | [`counters`] | blocks allocated and freed, counted by thread |
//! | [`SizeClass`], [`HeapBlock`], [`PhysicalMemory`], [`HeapTuning`] | a file each: sizes of small blocks; what caches and heap exchange; the memory under the heap; its options |
//! | [`cache`] | thread caches: freed blocks that a thread keeps for a stream, and the depot between threads |
//! | [`heap`] | all other memory: addresses, pages, mappings and segments |
//!
//! `injected_bugs`, before all of them, exists only with `--cfg gpumem_planted_bugs`.
//!
//! # Model checking
//!
//! `--cfg gpumem_loom` and `--cfg gpumem_shuttle` compile the crate over the threads of [loom](https://docs.rs/loom) or
//! [shuttle](https://docs.rs/shuttle). Only the tests of this repository use them.

#![cfg_attr(docsrs, feature(doc_cfg))]
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
pub use tuning::{HeapTuning, SPLIT_BYTES_MAX_MIN};

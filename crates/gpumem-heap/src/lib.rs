//! Thread caches and a heap for stream-ordered memory.
//!
//! This crate does the book-keeping for memory that it never accesses: which bytes are free for which stream, and how physical memory is
//! mapped at addresses. It calls no driver. Two traits supply the rest:
//!
//! - [`PhysicalMemory`]: creates, maps, unmaps and releases physical memory;
//! - [`Order`](gpumem_base::order::Order): which uses of memory are ordered before a stream's next operation, and which are complete.
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
//! | [`SizeClass`], [`HeapBlock`], [`PhysicalMemory`] | a file each: sizes of small blocks; what caches and heap exchange; the memory under the heap |
//! | [`cache`] | thread caches: freed blocks that a thread keeps for a stream, and the depot between threads |
//! | [`heap`] | all other memory: addresses, pages, mappings and segments |
//!
//! Stamps, epochs, locks, counters and the heap's options are in [`gpumem_base`].

#![cfg_attr(docsrs, feature(doc_cfg))]
// The few modules that need `unsafe` allow it.
#![deny(unsafe_code)]

mod block;
#[allow(unsafe_code)]
pub mod cache;
pub mod heap;
mod memory;
mod size_class;

pub use block::HeapBlock;
pub use memory::{PhysicalMemory, RawHandle};
pub use size_class::SizeClass;

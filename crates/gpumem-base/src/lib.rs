//! The parts that heap, devices and pool share: stamps and epochs of streams, locks, counters, ranges of addresses.
//!
//! The crate has neither a driver nor a heap: `gpumem-heap` uses it without a driver, and `gpumem-device` without a heap.
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
//! | [`FreeVaRanges`] | free ranges of addresses |
//! | [`HeapTuning`] | the options of a heap |
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

pub mod counters;
mod free_va_ranges;
#[cfg(gpumem_planted_bugs)]
#[doc(hidden)]
#[allow(unsafe_code)]
pub mod injected_bugs;
pub mod order;
#[allow(unsafe_code)]
pub mod sync;
mod tuning;

pub use free_va_ranges::FreeVaRanges;
pub use tuning::{HeapTuning, SPLIT_BYTES_MAX_MIN};

//! Order: [`Point`]s in streams, vector clocks, and the accesses that are compared by them.
//!
//! `happens_before` is the order that the program has stated by the time of a call; pools decide reuse by it. `clock` is the order of
//! what has run; `races` compares accesses by it, with `shadow` (the last accesses to each byte) and `usage` (the uses of each
//! mapping).

pub(crate) mod clock;
pub(crate) mod happens_before;
pub(crate) mod races;
pub(crate) mod shadow;
pub(crate) mod usage;

use crate::base::handle::Handle;

/// A position in a stream: all work up to and including an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) stream: Handle,
    pub(crate) position: u64,
}

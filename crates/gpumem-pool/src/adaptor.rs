//! Adaptors, which [`PoolBuilder::adaptor`](crate::PoolBuilder::adaptor) adds around a pool.
//!
//! An [`Adaptor`] adds behaviour to allocation and free, such as a budget, a log, or guard bytes at the ends of blocks. Any number of
//! adaptors can be nested; the innermost wraps the backend.
//!
//! A request goes inwards, adaptor by adaptor, as a [`Request`] that each may change. The backend's memory returns outwards as a [`Grant`]
//! that each may narrow, or replace with memory of another pool. The outermost grant becomes an ordinary [`Block`](crate::Block). When the
//! block is dropped, a [`Release`] notifies each adaptor from the outside in, before the backend gets the memory back.
//!
//! *What an adaptor cannot do.* Adaptors need no `unsafe`, and an incorrect adaptor cannot hand out memory that is in use: a [`Grant`]
//! is owned and comes only from the pool, a [`Release`] is read-only, and the pool compares an adaptor's result with the request (pool,
//! stream, size and alignment). A mismatch is an error that names the adaptor. The memory under a block that an adaptor has narrowed or
//! replaced belongs only to that block, which has a unique number until it is dropped. An incorrect adaptor can refuse every request, keep
//! memory forever, or block. A panic in an allocation propagates to the caller; a panic in a drop is caught.
//!
//! *What adaptors see.* Every block except empty ones, in the order of the calls. Memory allocated while its stream captures is part of a
//! chunk that the graph keeps. Adaptors see the chunk, not its parts: when it is allocated, on a stream that never captures, and when it is
//! released with its graph. Nothing that they queue becomes part of a graph. Blocks from outside that a graph keeps are released with the
//! graph. A pool with adaptors refuses growable blocks, except with [`Trace`], which does not record them. A private pool uses its parent's
//! adaptors. Every object names its pool ([`PoolId`]).
//!
//! Adaptors are free for pools without them, which check a flag that they check anyway.

mod failures;
mod fallback;
mod fill;
mod guard;
mod limit;
mod tracking;

pub use crate::error::damage::{Damage, Side};
pub use crate::pool::adaptors::{Adaptor, Grant, Next, Opening, PoolId, Release, Request};
pub use crate::trace::Trace;
pub use failures::Failures;
pub use fallback::Fallback;
pub use fill::Fill;
pub use guard::Guard;
pub use limit::Budget;
pub use tracking::{LiveBlock, LiveBlocks, Tracking};

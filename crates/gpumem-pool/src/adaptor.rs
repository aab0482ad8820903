//! Adaptors, to put around a pool with [`PoolBuilder::adaptor`](crate::PoolBuilder::adaptor).
//!
//! [`Adaptor`]: one behaviour around what a pool hands out, such as a limit of its own, a record, or bytes that guard a
//! block's ends. Any number of them stand one around the other, and the innermost around the backend.
//!
//! A request goes inwards, adaptor by adaptor, as a [`Request`] that each may change; what the backend grants comes back
//! outwards as a [`Grant`] that each may narrow, or replace by memory of another pool. What leaves the outermost becomes an
//! ordinary [`Block`](crate::Block). When that is dropped, each adaptor hears of it from the outside in, as a [`Release`], before the
//! backend gets the memory back.
//!
//! *What an adaptor can't do.* None of this is `unsafe`, and no adaptor, however wrong, can hand out memory that somebody
//! else has: a [`Grant`] is owned and comes from the pool alone, a [`Release`] is only looked at, and the pool compares what
//! an adaptor returns with what was asked of it: pool, stream, size and alignment. What does not fit is an error that names
//! the adaptor. What is behind a block that an adaptor has narrowed or brought in belongs to that block alone: the block has
//! its number, which no other block has, and its drop ends it. A wrong adaptor can refuse everything, keep memory for ever, or
//! wait; a panic in an allocation is the caller's, one in a drop ends there.
//!
//! *What they see.* Every block but empty ones, in the order of the calls. Memory that is allocated while its stream captures
//! is a part of a chunk that the graph keeps: adaptors see the chunk when it is allocated, on a stream that never captures,
//! and when it goes with its graph, and not its parts; nothing that they queue becomes part of a graph. Outside blocks that a
//! graph keeps go when the graph does. Blocks that grow are asked about before they do ([`Adaptor::grow`]). A private pool has
//! the very adaptors of the pool that it was made from. Which pool something belongs to, each can be asked ([`PoolId`]).
//!
//! A pool without adaptors has none of this: it looks at a flag that it looks at anyway.

mod failures;
mod fallback;
mod fill;
mod guard;
mod limit;
mod tracking;

pub use crate::error::damage::{Damage, Side};
pub use crate::pool::adaptors::{Adaptor, Change, Grant, Next, Opening, PoolId, Release, Request};
pub use crate::trace::Trace;
pub use failures::Failures;
pub use fallback::Fallback;
pub use fill::Fill;
pub use guard::Guard;
pub use limit::Budget;
pub use tracking::{LiveBlock, LiveBlocks, Tracking};

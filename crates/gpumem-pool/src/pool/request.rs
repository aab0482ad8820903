//! The way of a request, in the order in which it runs.
//!
//! | module | contents |
//! | --- | --- |
//! | `fast` | the thread's cache; tags |
//! | `slow` | checks, then the graph that the stream captures, the adaptors, or the backend |
//! | `check` | the checks |
//! | `found` | the backend, inside all adaptors |
//! | `ladder` | makes room when memory is short, and repeats the request |
//! | `largest` | requests for a range of sizes |
//! | `ahead` | requests for memory that is not needed yet |
//! | `report` | the error of a request that nothing helped |
//!
//! `found`, `ladder` and `report` know only the pool's [`Hub`](super::hub::Hub).

pub(crate) mod ahead;
pub(crate) mod check;
mod fast;
pub(crate) mod found;
pub(crate) mod ladder;
pub(crate) mod largest;
pub(crate) mod report;
mod slow;

pub(crate) use fast::{alloc, alloc_ready, alloc_tagged};
pub(crate) use report::Origin;

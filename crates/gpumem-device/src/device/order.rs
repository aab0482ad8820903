//! [`Clocks`] determines which uses of memory are ordered before a stream's next operation, and which are complete.
//!
//! A free makes no driver call: it takes a [`Stamp`], the stream's index and its epoch. A later request for the memory
//! compares two numbers ([`Order`]). Markers, events in the streams that advance those numbers, are recorded only when
//! a request needs one, before a stream captures (a capturing stream takes none), and by every operation of this crate
//! that orders or observes streams.
//!
//! One `Clocks` serves a machine: its devices and all threads share it, because streams of two devices may wait for each other.
//! [`gpumem_base::order`] has the numbers and their rules. `stream_state` is a stream's side, which calls the driver. `stream_table`
//! assigns and reclaims stream indices.
//!
//! *Steps, always in this order.* Recording a marker closes the epoch, stores what is ordered before the stream,
//! records the event, and lists the marker if that succeeded. A stream's wait calls the driver, then raises the order.
//! A query or wait of the host closes the epoch, calls the driver, and raises completion if the driver reports it.
//! During a capture nothing is raised: captured work runs when the graph is launched, if ever.
//!
//! *Locks.* Each state has a lock, held around short driver calls. The lock of `StreamTable` is taken before a state's
//! lock. A state's lock is taken before the lock under which the driver destroys objects, and never inside it.

mod awaited;
mod capture;
mod clocks;
mod finish;
#[allow(unsafe_code)]
mod marker;
#[allow(unsafe_code)]
mod stream_state;
#[allow(unsafe_code)]
mod stream_table;
pub mod uses;
mod wait;

pub use capture::CapturePart;
pub use clocks::Clocks;
pub use gpumem_base::order::{Order, Stamp, StreamId, StreamIndex};
pub use marker::MarkerEvent;
pub(crate) use marker::{LEGACY, Marker};
pub(crate) use stream_state::{Life, StreamParts};
pub use uses::GRAPH_BIT;
pub(crate) use wait::Observation;

#[cfg(test)]
#[allow(unsafe_code)]
mod tests;

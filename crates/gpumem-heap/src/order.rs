//! Streams, stamps and epochs: whether memory that was freed on one stream may be used on another.
//!
//! A free asks no driver: it takes a [`Stamp`], the stream's index and its epoch. Two numbers are compared later to decide whether a
//! stream may use the memory ([`Order`]). [`Epochs`] holds the numbers of all streams.

mod epochs;
mod stamp;
#[cfg(test)]
mod tests;

pub use epochs::{Epochs, Seen};
pub use stamp::{Order, Stamp, StreamId, StreamIndex};

//! Streams, stamps and epochs: whether memory that was freed on one stream may be used on another.
//!
//! A free makes no driver call. It takes a [`Stamp`]: the stream's index and its current epoch. A later request compares the stamp's
//! epoch with the latest epoch that is ordered before its own stream ([`Order`]). [`Epochs`] holds these epochs for all streams.

mod epochs;
mod stamp;
#[cfg(test)]
mod tests;

pub use epochs::{Epochs, Seen};
pub use stamp::{Order, Stamp, StreamId, StreamIndex};

//! The alignment of blocks.

/// The alignment of every block, in bytes.
pub(crate) const ALIGNMENT_MIN: u64 = 256;

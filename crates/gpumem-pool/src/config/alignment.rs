//! The alignment of blocks.

pub(crate) const ALIGNMENT_MIN: u64 = 256;

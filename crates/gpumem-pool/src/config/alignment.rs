//! How blocks are aligned.

/// What every block has.
pub(crate) const ALIGNMENT_MIN: u64 = 256;

//! Which alignments a block can have.

use crate::error::{BadArgument, PoolError};

pub(crate) fn check_alignment(alignment: u64) -> Result<(), PoolError> {
    if alignment.is_power_of_two() && alignment <= ALIGNMENT_MAX {
        Ok(())
    } else {
        Err(PoolError::BadArgument(BadArgument::Alignment { alignment, largest: ALIGNMENT_MAX }))
    }
}

/// The largest supported alignment, far larger than any page of device memory.
const ALIGNMENT_MAX: u64 = 1 << 30;

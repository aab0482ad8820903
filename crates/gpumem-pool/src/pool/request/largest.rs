//! [`Pool::alloc_up_to`](crate::Pool::alloc_up_to): the largest block of a range of sizes that the pool can provide.
//!
//! The search begins at the end of the range. A refusal has figures, which bound the next size: the room below a limit, or the free memory.
//! If memory is fragmented, that size is refused too, and the search halves the range between the smallest size and the smallest refused
//! one. A block that is found on the way is dropped before a larger one is tried, because it is part of the memory.

use super::{fast, report};
use crate::config::{ALIGNMENT_MIN, MemoryKind};
use crate::error::{BadArgument, OutOfMemory, PoolError, RefusedBy};
use crate::pool::block::Block;
use crate::pool::state::StateRef;
use core::ops::RangeInclusive;
use gpumem_device::Stream;
use gpumem_device::internal::not_forked;

pub(crate) fn alloc_up_to(
    state: StateRef,
    sizes: RangeInclusive<u64>,
    stream: &Stream,
) -> Result<Block, PoolError> {
    not_forked()?;
    let (min_bytes, max_bytes) = (*sizes.start(), *sizes.end());
    if sizes.is_empty() {
        return Err(PoolError::BadArgument(BadArgument::EmptyRange { min_bytes, max_bytes }));
    }
    stream.check_usable()?;
    stream.check_runs("an allocation of the largest size")?;
    let search = SizeSearch { state, stream, min_bytes, refused_bytes: u64::MAX };
    report::alloc_one_of(&state, || search.run(max_bytes))
}

struct SizeSearch<'a> {
    state: StateRef,
    stream: &'a Stream,
    min_bytes: u64,
    refused_bytes: u64,
}

impl SizeSearch<'_> {
    fn run(mut self, max_bytes: u64) -> Result<Block, PoolError> {
        let mut size_bytes = max_bytes;
        for _ in 0..FIGURES_MAX {
            let error = match self.attempt(size_bytes)? {
                Ok(block) => return Ok(block),
                Err(error) => error,
            };
            let Some(bound_bytes) = bound_bytes(&error).filter(|bound_bytes| *bound_bytes < size_bytes)
            else {
                break;
            };
            size_bytes = (bound_bytes - bound_bytes % ALIGNMENT_MIN).max(self.min_bytes);
        }
        self.halve()
    }

    fn halve(mut self) -> Result<Block, PoolError> {
        let (mut least_bytes, mut found) = (self.min_bytes, None);
        let step_bytes = ((self.refused_bytes - least_bytes) / STEP_COUNT).max(ALIGNMENT_MIN);
        while self.refused_bytes - least_bytes > step_bytes {
            drop(found.take());
            let middle_bytes = least_bytes.midpoint(self.refused_bytes);
            let size_bytes = (middle_bytes - middle_bytes % ALIGNMENT_MIN).max(least_bytes + 1);
            found = self.attempt(size_bytes)?.ok();
            if found.is_some() {
                least_bytes = size_bytes;
            }
        }
        match found {
            Some(block) => Ok(block),
            // Another thread may have taken the memory of a block that was found and dropped.
            None => self
                .attempt(least_bytes)?
                .or_else(|_| fast::alloc(self.state, self.min_bytes, ALIGNMENT_MIN, self.stream)),
        }
    }

    /// One request. The inner error is a refusal of this size; the outer one ends the search.
    fn attempt(&mut self, size_bytes: u64) -> Result<Result<Block, PoolError>, PoolError> {
        match fast::alloc(self.state, size_bytes, ALIGNMENT_MIN, self.stream) {
            Ok(block) => Ok(Ok(block)),
            Err(error) if error.is_out_of_memory() && size_bytes > self.min_bytes => {
                self.refused_bytes = self.refused_bytes.min(size_bytes);
                Ok(Err(error))
            }
            Err(error) => Err(error),
        }
    }
}

/// An upper bound of the available size, if the refusal has figures.
fn bound_bytes(error: &PoolError) -> Option<u64> {
    match error {
        PoolError::TooLarge { device_bytes, .. } => Some(*device_bytes),
        error => error.out_of_memory().and_then(bound_of_report),
    }
}

fn bound_of_report(report: &OutOfMemory) -> Option<u64> {
    let room_bytes = match (report.limit_bytes, report.refused_by) {
        // Bytes of adaptors between the budget and the pool count only against the budget.
        (Some(limit_bytes), RefusedBy::Budget) => limit_bytes.saturating_sub(report.limit_others_bytes),
        (Some(limit_bytes), _) => {
            limit_bytes.saturating_sub(report.limit_others_bytes).saturating_sub(report.in_use_bytes)
        }
        // An injected failure has no figures, and the driver has none for host memory.
        (_, RefusedBy::OnPurpose) => return None,
        (None, _) if report.kind == MemoryKind::Host => return None,
        (None, _) => report.device_free_bytes.saturating_add(report.cached_bytes()),
    };
    Some(room_bytes.saturating_sub(report.added_bytes))
}

/// The number of requests before the range is halved. Their figures come from the device, its margin, the pool's limit and its parent's
/// limit.
const FIGURES_MAX: usize = 5;
const STEP_COUNT: u64 = 64;

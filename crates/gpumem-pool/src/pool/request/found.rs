//! The end of a request, inside all adaptors: the backend finds memory, or the ladder does.

use super::{check, ladder};
use crate::backend::{Allocation, MemorySource, Search};
use crate::error::PoolError;
use crate::pool::events;
use crate::pool::hub::Hub;
use gpumem_device::Stream;

/// Allocates from the backend, and counts the block. Climbs the ladder if no memory is free.
pub(crate) fn from_backend(
    hub: &Hub,
    size_bytes: u64,
    alignment: u64,
    stream: &Stream,
) -> Result<Allocation, PoolError> {
    hub.activity.slow_allocation_count.add(1);
    events::slow_allocation(hub, size_bytes, stream);
    check::size(hub, size_bytes)?;
    let climb = |search: &mut dyn Search<Allocation>| ladder::climb(hub, search);
    let allocation = hub.backend.alloc(size_bytes, alignment, stream, climb)?;
    if !hub.backend.counts_blocks() {
        hub.lifetime.count_in();
    }
    Ok(allocation)
}

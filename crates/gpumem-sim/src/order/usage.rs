//! The uses of each mapping of virtual memory, which must be complete before it is unmapped.
//!
//! `shadow.rs` records bytes, which are the same through every mapping of a handle, and drops a use when a later one is ordered
//! after it. That is not sufficient for an unmapping: the later use may have come through another mapping. So each mapping has
//! its own uses here, as a whole, because it is unmapped as a whole. It also has the call that made it, which separates its uses
//! from work queued for an earlier mapping at its address.

use crate::order::shadow::Trace;
use std::collections::BTreeMap;

/// The uses of all mappings, by base.
#[derive(Default)]
pub(crate) struct Usage(pub(crate) BTreeMap<u64, MappingUse>);

pub(crate) struct MappingUse {
    pub(crate) made_by: Trace,
    /// The uses after which no other use in this list is ordered.
    pub(crate) uses: Vec<Trace>,
}

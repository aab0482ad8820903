//! What each mapping of virtual memory has been used for: the uses that somebody who takes it away must know to be over.
//!
//! `shadow.rs` remembers bytes, which are the same through every mapping of a handle, and forgets a use when a
//! later one is ordered after it. For an unmapping that is too little: the later use may have come through another
//! mapping. So each mapping has its own uses here, whole, since it goes whole; and the call that made it, so that work
//! queued for what was at the address before is told from its own.

use crate::order::shadow::Trace;
use std::collections::BTreeMap;

/// The uses of all mappings, by base.
#[derive(Default)]
pub(crate) struct Usage(pub(crate) BTreeMap<u64, MappingUse>);

pub(crate) struct MappingUse {
    pub(crate) made_by: Trace,
    /// Those that no other here is ordered after.
    pub(crate) uses: Vec<Trace>,
}

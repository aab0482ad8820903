//! The memory of graphs: an allocation node's address is fixed when the node is made, its bytes live from the node's
//! turn in a launch until they are freed.
//!
//! The address is known to the host for as long as the graph or an executable of it lives, so that other nodes can be
//! made for it. The device's capacity is taken at the first launch, and kept for the next one until the device's
//! graph memory is trimmed or the graph is gone.
//!
//! A known difference: every allocation has an address and memory of its own. The real driver lays allocations of one
//! graph over each other when one is freed before the other is made, and graphs over each other whose launches are in
//! order, so a graph takes less there and addresses of different nodes may be equal. Here they never are, on purpose: a
//! node that uses the first allocation after its free is found out instead of reading the second one's bytes.

use crate::backing::Backing;
use crate::base::handle::Handle;
use crate::memory::Allocation;
use crate::memory::pool::Gauge;

/// The memory of one allocation node.
pub(crate) struct GraphMemory {
    pub(crate) allocation: Allocation,
    pub(crate) graph: Handle,
    pub(crate) mapped_bytes: u64,
    pub(crate) backing: Backing,
    /// The node, and the executable that was made of its graph.
    pub(crate) holder_count: u32,
    /// A node of the graph frees it, so the program must not.
    pub(crate) is_freed_within: bool,
    /// Launched and not freed, as the program sees it.
    pub(crate) is_live: bool,
    /// The launches whose free has not run.
    pub(crate) pending_count: u64,
    /// Counted against the device's capacity.
    pub(crate) is_resident: bool,
}

/// The memory of a device's graphs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MemoryUse {
    pub(crate) used: Gauge,
    pub(crate) reserved: Gauge,
}

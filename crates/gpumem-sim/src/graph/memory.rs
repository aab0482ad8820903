//! The memory of graphs: the address of an allocation node is fixed when the node is created; the bytes live from the execution
//! of the node in a launch until they are freed.
//!
//! The program may use the address as long as the graph or one of its executables lives, so that other nodes can refer to it. The
//! capacity of the device is taken at the first launch, and kept for the next one until the device's graph memory is trimmed or
//! the graph is destroyed.
//!
//! A known difference: every allocation has its own address and memory. The vendor's driver overlaps allocations of one graph if
//! one is freed before the other is made, and the memory of graphs whose launches are ordered. So a graph takes less memory
//! there, and addresses of different nodes may be equal. The simulator never overlaps them: a node that uses the first allocation
//! after its free is reported, instead of reading the bytes of the second one.

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
    /// The number of owners: the node, and the executable of its graph.
    pub(crate) holder_count: u32,
    /// True if a node of the graph frees it, so that the program must not.
    pub(crate) is_freed_within: bool,
    /// True if it was launched and not freed, as the program sees it.
    pub(crate) is_live: bool,
    /// The number of launches whose free has not run.
    pub(crate) pending_count: u64,
    /// True if it counts against the device's capacity.
    pub(crate) is_resident: bool,
}

/// The memory of a device's graphs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MemoryUse {
    pub(crate) used: Gauge,
    pub(crate) reserved: Gauge,
}

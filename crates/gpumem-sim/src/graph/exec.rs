//! Executable graphs: what instantiation makes of a graph, and how a launch queues it.
//!
//! Instantiation sorts the nodes and puts them on *lanes*: streams of the driver's own, each a chain in which every
//! node depends on the one before. A launch queues the nodes on the lanes, with waits where an edge leads from one to
//! another; the lanes wait for the launching stream, and that one for what nothing in the graph comes after. So the
//! schedule has for a graph's nodes exactly the freedom that its edges leave, among themselves and towards the work
//! of other streams, and all that is known about streams holds for them. Launches of one executable never overlap.

use crate::base::handle::Handle;
use crate::graph::Work;
use crate::order::Point;
use gpumem_sys::types::CUgraphExecUpdateResult as UpdateResult;

/// One executable.
pub(crate) struct Exec {
    /// The graph that it was made of, which may be destroyed.
    pub(crate) graph: Handle,
    pub(crate) flags: u64,
    pub(crate) steps: Vec<Step>,
    pub(crate) lanes: Vec<Handle>,
    /// The end of its last launch.
    pub(crate) last: Option<Point>,
}

/// One node, after all that it depends on.
#[derive(Clone)]
pub(crate) struct Step {
    pub(crate) node: Handle,
    pub(crate) context: Handle,
    pub(crate) work: Work,
    /// The steps that it comes after, by index.
    pub(crate) after: Vec<usize>,
    pub(crate) lane: usize,
    /// Whether another step comes after it.
    pub(crate) is_waited_for: bool,
    pub(crate) is_enabled: bool,
}

/// Why an executable could not be updated.
pub(crate) struct UpdateRefused {
    pub(crate) code: gpumem_sys::types::CUresult,
    pub(crate) result: UpdateResult,
    /// The node of the new graph that does not fit, or none.
    pub(crate) node: Handle,
}

impl UpdateRefused {
    pub(crate) fn of(code: gpumem_sys::types::CUresult) -> Self {
        Self { code, result: UpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR, node: Handle::NONE }
    }
}

impl Step {
    pub(crate) fn allocates(&self) -> Option<u64> {
        if let Work::Alloc(base) = self.work { Some(base) } else { None }
    }

    pub(crate) fn new(node: Handle, context: Handle, work: Work, after: Vec<usize>) -> Self {
        Self { node, context, work, after, lane: 0, is_waited_for: false, is_enabled: true }
    }
}

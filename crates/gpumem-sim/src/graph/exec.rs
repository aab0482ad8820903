//! Executable graphs: the result of an instantiation, and how a launch queues it.
//!
//! Instantiation sorts the nodes and puts them on *lanes*: internal streams, each a chain in which every node depends on the one
//! before. A launch queues the nodes on the lanes, with a wait for each edge between two lanes. The lanes wait for the launching
//! stream, which then waits for the nodes without successors. So the schedule can order the nodes of a graph, among themselves
//! and relative to other streams, exactly as freely as the edges allow, and all rules of streams apply to them. Launches of one
//! executable never overlap.

use crate::base::handle::Handle;
use crate::graph::Work;
use crate::order::Point;
use gpumem_sys::types::CUgraphExecUpdateResult as UpdateResult;

/// One executable.
pub(crate) struct Exec {
    /// The graph that it was instantiated from, which may have been destroyed.
    pub(crate) graph: Handle,
    pub(crate) flags: u64,
    pub(crate) steps: Vec<Step>,
    pub(crate) lanes: Vec<Handle>,
    /// The end of its last launch.
    pub(crate) last: Option<Point>,
}

/// A node, behind all nodes that it depends on.
#[derive(Clone)]
pub(crate) struct Step {
    pub(crate) node: Handle,
    pub(crate) context: Handle,
    pub(crate) work: Work,
    /// The steps that it depends on, by index.
    pub(crate) after: Vec<usize>,
    pub(crate) lane: usize,
    /// True if another step depends on it.
    pub(crate) is_waited_for: bool,
    pub(crate) is_enabled: bool,
}

/// The reason why an executable could not be updated.
pub(crate) struct UpdateRefused {
    pub(crate) code: gpumem_sys::types::CUresult,
    pub(crate) result: UpdateResult,
    /// The node of the new graph that does not match, or `NONE`.
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

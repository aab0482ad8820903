//! Graphs: work that is described once, as nodes with dependencies, and launched repeatedly.
//!
//! A [`Graph`] is only a description. `exec` instantiates and launches it, `memory` keeps the allocations of its nodes. Nodes
//! come from a capture (`stream/capture.rs`) or are added explicitly. An explicit node is made by capturing its operation on a
//! temporary stream, so both kinds are checked alike.

pub(crate) mod exec;
pub(crate) mod memory;
#[allow(unsafe_code)]
pub(crate) mod parameters;

use crate::base::codes::{Answer, INVALID_VALUE};
use crate::base::handle::{Handle, Kind, Slab};
pub(crate) use crate::graph::exec::Exec;
pub(crate) use crate::graph::memory::{GraphMemory, MemoryUse};
use crate::graph::parameters::ParameterPointers;
use crate::stream::operation::Operation;
use gpumem_sys::types::CUgraphNodeType as NodeType;
use std::collections::BTreeMap;

/// The graphs, nodes and executables of an instance.
pub(crate) struct Graphs {
    pub(crate) graphs: Slab<Graph>,
    pub(crate) nodes: Slab<Node>,
    pub(crate) execs: Slab<Exec>,
    pub(crate) memory: BTreeMap<u64, GraphMemory>,
    /// The memory of graphs, by device.
    pub(crate) memory_use: BTreeMap<usize, MemoryUse>,
}

/// One graph.
#[derive(Default)]
pub(crate) struct Graph {
    /// The nodes, in the order in which they were added.
    pub(crate) nodes: Vec<Handle>,
    /// True if a node allocates or frees: such a graph cannot be cloned, and has at most one executable.
    pub(crate) has_memory: bool,
    /// True if this is a child graph, which belongs to its node.
    pub(crate) is_child: bool,
    /// For a clone: its nodes, by the nodes of the original.
    pub(crate) clones: BTreeMap<Handle, Handle>,
}

/// One node of a graph.
pub(crate) struct Node {
    pub(crate) graph: Handle,
    pub(crate) context: Handle,
    pub(crate) work: Work,
    pub(crate) after: Vec<Handle>,
    pub(crate) parameter_pointers: ParameterPointers,
}

/// The operation of a node.
#[derive(Clone)]
pub(crate) enum Work {
    /// A kernel, a copy, a memset, a host function, or an empty node.
    Queue(Operation),
    /// Records an event for work outside of the graph.
    Record(Handle),
    /// Waits for an event, as recorded at the time of the launch.
    Wait(Handle),
    /// Allocates the graph's memory at this address.
    Alloc(u64),
    /// Frees a graph's memory.
    Free(u64),
    /// A child graph.
    Child(Handle),
}

impl Graphs {
    pub(crate) fn new(instance: u64) -> Self {
        Self {
            graphs: Slab::new(Kind::Graph, instance),
            nodes: Slab::new(Kind::GraphNode, instance),
            execs: Slab::new(Kind::GraphExec, instance),
            memory: BTreeMap::new(),
            memory_use: BTreeMap::new(),
        }
    }
}

impl Work {
    /// Replaces the event of a node that records one or waits for one.
    pub(crate) fn set_event(&mut self, event: Handle, is_wait: bool) -> Answer<()> {
        match self {
            Self::Wait(given) if is_wait => *given = event,
            Self::Record(given) if !is_wait => *given = event,
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    }

    pub(crate) fn node_type(&self) -> NodeType {
        match self {
            Self::Queue(Operation::Launch(_)) => NodeType::CU_GRAPH_NODE_TYPE_KERNEL,
            Self::Queue(Operation::Fill(_)) => NodeType::CU_GRAPH_NODE_TYPE_MEMSET,
            Self::Queue(Operation::Call(_)) => NodeType::CU_GRAPH_NODE_TYPE_HOST,
            Self::Queue(Operation::Nothing) => NodeType::CU_GRAPH_NODE_TYPE_EMPTY,
            Self::Queue(Operation::WaitValue(..) | Operation::WriteValue(_)) => {
                NodeType::CU_GRAPH_NODE_TYPE_BATCH_MEM_OP
            }
            Self::Queue(_) => NodeType::CU_GRAPH_NODE_TYPE_MEMCPY,
            Self::Record(_) => NodeType::CU_GRAPH_NODE_TYPE_EVENT_RECORD,
            Self::Wait(_) => NodeType::CU_GRAPH_NODE_TYPE_WAIT_EVENT,
            Self::Alloc(_) => NodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC,
            Self::Free(_) => NodeType::CU_GRAPH_NODE_TYPE_MEM_FREE,
            Self::Child(_) => NodeType::CU_GRAPH_NODE_TYPE_GRAPH,
        }
    }
}

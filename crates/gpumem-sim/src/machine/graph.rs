//! Graphs: creation, nodes and dependencies.

pub(crate) mod clone;
pub(crate) mod exec;
pub(crate) mod memory;
pub(crate) mod parameters;

use crate::base::codes::{Answer, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED};
use crate::base::handle::Handle;
use crate::graph::parameters::ParameterPointers;
use crate::graph::{Graph, Node, Work};
use crate::machine::Machine;
use crate::stream::capture::Joined;
use crate::stream::{NON_BLOCKING, Role, Stream};
use gpumem_sys::types::CUgraphNodeType as NodeType;
use std::collections::BTreeSet;

impl Machine {
    pub(crate) fn graph_create(&mut self) -> Answer<Handle> {
        self.graphs.graphs.insert(Graph::default())
    }

    /// Destroys a graph. Its executables stay, and so does memory that it allocated and that is not freed.
    pub(crate) fn graph_destroy(&mut self, handle: Handle) -> Answer<()> {
        let graph = self.graphs.graphs.remove(handle).ok_or(INVALID_VALUE)?;
        for node in graph.nodes {
            self.node_drop(node);
        }
        Ok(())
    }

    fn node_drop(&mut self, handle: Handle) {
        match self.graphs.nodes.remove(handle).map(|node| node.work) {
            Some(Work::Alloc(base)) => self.graph_memory_unhold(base),
            Some(Work::Child(graph)) => {
                // Only its node refers to the child graph, so it exists.
                let _ = self.graph_destroy(graph);
            }
            _ => {}
        }
    }

    /// Removes a node and its edges.
    pub(crate) fn graph_destroy_node(&mut self, handle: Handle) -> Answer<()> {
        let owner = self.node(handle)?.graph;
        let graph = self.graphs.graphs.get_mut(owner).ok_or(INVALID_VALUE)?;
        if graph.has_memory {
            return Err(NOT_SUPPORTED);
        }
        graph.nodes.retain(|&node| node != handle);
        for node in graph.nodes.clone() {
            if let Some(node) = self.graphs.nodes.get_mut(node) {
                node.after.retain(|&after| after != handle);
            }
        }
        self.node_drop(handle);
        Ok(())
    }

    fn graph(&self, handle: Handle) -> Answer<&Graph> {
        self.graphs.graphs.get(handle).ok_or(INVALID_VALUE)
    }

    fn node(&self, handle: Handle) -> Answer<&Node> {
        self.graphs.nodes.get(handle).ok_or(INVALID_VALUE)
    }

    /// Checks that the nodes belong to the graph, without duplicates.
    pub(crate) fn graph_check_nodes(&self, graph: Handle, nodes: &[Handle]) -> Answer<()> {
        self.graph(graph)?;
        let mut seen = BTreeSet::new();
        let is_good = |node: &Handle| {
            seen.insert(*node) && self.graphs.nodes.get(*node).is_some_and(|found| found.graph == graph)
        };
        if nodes.iter().all(is_good) { Ok(()) } else { Err(INVALID_VALUE) }
    }

    /// Adds a node with its dependencies.
    pub(crate) fn graph_add(
        &mut self,
        graph: Handle,
        context: Handle,
        work: Work,
        after: Vec<Handle>,
    ) -> Answer<Handle> {
        self.graph_check_nodes(graph, &after)?;
        let is_memory = matches!(work, Work::Alloc(_) | Work::Free(_));
        let node = self.graphs.nodes.insert(Node {
            graph,
            context,
            work,
            after,
            parameter_pointers: ParameterPointers::default(),
        })?;
        let graph = self.graphs.graphs.get_mut(graph).ok_or(INVALID_VALUE)?;
        graph.nodes.push(node);
        graph.has_memory |= is_memory;
        Ok(node)
    }

    /// Adds the node that `queue` captures on a stream of the context.
    pub(crate) fn graph_add_by(
        &mut self,
        graph: Handle,
        context: Handle,
        after: Vec<Handle>,
        queue: impl FnOnce(&mut Self, Handle) -> Answer<()>,
    ) -> Answer<Handle> {
        self.graph_check_nodes(graph, &after)?;
        let stream = self.lane_create(context)?;
        if let Some(found) = self.streams.get_mut(stream) {
            found.capture = Some(Joined::new(0, graph, after.clone()));
        }
        let queued = queue(self, stream);
        let joined = self.streams.remove(stream).and_then(|stream| stream.capture);
        queued?;
        let added = joined.filter(|joined| joined.after != after);
        // An operation of size zero makes no node.
        added.and_then(|joined| joined.after.last().copied()).ok_or(INVALID_VALUE)
    }

    /// Replaces the work of a node by work of the same kind, queued on a stream of the context.
    pub(crate) fn node_set_by(
        &mut self,
        handle: Handle,
        context: Handle,
        queue: impl FnOnce(&mut Self, Handle) -> Answer<()>,
    ) -> Answer<()> {
        let work = self.work_by(handle, context, queue)?;
        self.graphs.nodes.get_mut(handle).ok_or(INVALID_VALUE)?.work = work;
        Ok(())
    }

    /// The work that `queue` captures on a stream of the context, if it is of the node's kind.
    fn work_by(
        &mut self,
        handle: Handle,
        context: Handle,
        queue: impl FnOnce(&mut Self, Handle) -> Answer<()>,
    ) -> Answer<Work> {
        let scratch = self.graph_create()?;
        let work = self.graph_add_by(scratch, context, Vec::new(), queue).and_then(|made| {
            let (made, given) = (&self.node(made)?.work, &self.node(handle)?.work);
            let is_of_kind = made.node_type() == given.node_type();
            if is_of_kind { Ok(made.clone()) } else { Err(INVALID_VALUE) }
        });
        self.graph_destroy(scratch)?;
        work
    }

    /// Creates an internal stream for a chain of nodes.
    fn lane_create(&mut self, context: Handle) -> Answer<Handle> {
        let device = self.context_device(context)?;
        self.streams.insert(Stream::new(context, device, NON_BLOCKING, 0, Role::Lane))
    }

    /// Some nodes, and all nodes that they depend on.
    pub(crate) fn graph_ancestors(&self, nodes: &[Handle]) -> BTreeSet<Handle> {
        let mut found = BTreeSet::new();
        let mut left = nodes.to_vec();
        while let Some(node) = left.pop() {
            if found.insert(node)
                && let Some(node) = self.graphs.nodes.get(node)
            {
                left.extend(&node.after);
            }
        }
        found
    }

    /// The number of graphs that the program refers to.
    pub(crate) fn graph_count(&self) -> usize {
        self.graphs.graphs.iter().filter(|(_, graph)| !graph.is_child).count()
    }

    pub(crate) fn graph_nodes(&self, graph: Handle) -> Answer<Vec<Handle>> {
        Ok(self.graph(graph)?.nodes.clone())
    }

    pub(crate) fn graph_roots(&self, graph: Handle) -> Answer<Vec<Handle>> {
        let is_root = |node: &Handle| self.graphs.nodes.get(*node).is_some_and(|node| node.after.is_empty());
        Ok(self.graph(graph)?.nodes.iter().copied().filter(is_root).collect())
    }

    /// The edges: pairs of a node and a node that depends on it.
    pub(crate) fn graph_edges(&self, graph: Handle) -> Answer<Vec<(Handle, Handle)>> {
        let mut edges = Vec::new();
        for &to in &self.graph(graph)?.nodes {
            edges.extend(self.node(to)?.after.iter().map(|&from| (from, to)));
        }
        Ok(edges)
    }

    pub(crate) fn node_type(&self, node: Handle) -> Answer<NodeType> {
        Ok(self.node(node)?.work.node_type())
    }

    pub(crate) fn node_dependencies(&self, node: Handle) -> Answer<Vec<Handle>> {
        Ok(self.node(node)?.after.clone())
    }

    pub(crate) fn node_dependents(&self, node: Handle) -> Answer<Vec<Handle>> {
        let edges = self.graph_edges(self.node(node)?.graph)?;
        Ok(edges.into_iter().filter(|&(from, _)| from == node).map(|(_, to)| to).collect())
    }

    /// Adds edges, each of which must be new. A cycle is detected when the graph is instantiated.
    pub(crate) fn graph_connect(&mut self, graph: Handle, edges: &[(Handle, Handle)]) -> Answer<()> {
        for &(from, to) in edges {
            self.graph_check_nodes(graph, &[from, to])?;
            let node = self.graphs.nodes.get_mut(to).ok_or(INVALID_VALUE)?;
            if node.after.contains(&from) {
                return Err(INVALID_VALUE);
            }
            node.after.push(from);
        }
        Ok(())
    }

    pub(crate) fn graph_disconnect(&mut self, graph: Handle, edges: &[(Handle, Handle)]) -> Answer<()> {
        if self.graph(graph)?.has_memory {
            return Err(NOT_SUPPORTED);
        }
        for &(from, to) in edges {
            self.graph_check_nodes(graph, &[from, to])?;
            let node = self.graphs.nodes.get_mut(to).ok_or(INVALID_VALUE)?;
            if !node.after.contains(&from) {
                return Err(INVALID_VALUE);
            }
            node.after.retain(|&after| after != from);
        }
        Ok(())
    }

    fn graph_has_memory(&self, graph: Handle) -> Answer<bool> {
        Ok(self.graph(graph)?.has_memory)
    }

    /// The event of a node that records or waits for one.
    pub(crate) fn node_event(&self, node: Handle, wanted: NodeType) -> Answer<Handle> {
        match self.node(node)?.work {
            Work::Record(event) | Work::Wait(event) if self.node_type(node)? == wanted => Ok(event),
            _ => Err(INVALID_VALUE),
        }
    }

    /// The address that a node allocates or frees.
    pub(crate) fn node_memory(&self, node: Handle, wanted: NodeType) -> Answer<u64> {
        match self.node(node)?.work {
            Work::Alloc(base) | Work::Free(base) if self.node_type(node)? == wanted => Ok(base),
            _ => Err(INVALID_VALUE),
        }
    }

    /// Adds a node that records an event or waits for one.
    pub(crate) fn graph_add_event(
        &mut self,
        graph: Handle,
        event: Handle,
        after: Vec<Handle>,
        is_wait: bool,
    ) -> Answer<Handle> {
        let context = self.events.get(event).ok_or(INVALID_HANDLE)?.context;
        let work = if is_wait { Work::Wait(event) } else { Work::Record(event) };
        self.graph_add(graph, context, work, after)
    }
}

//! Copies of graphs: clones, and child graphs.

use crate::base::codes::{Answer, INVALID_VALUE, NOT_SUPPORTED};
use crate::base::handle::Handle;
use crate::graph::Work;
use crate::machine::Machine;
use std::collections::BTreeMap;

impl Machine {
    /// Clones a graph without memory nodes.
    pub(crate) fn graph_clone(&mut self, original: Handle) -> Answer<Handle> {
        if self.graph_has_memory(original)? {
            return Err(NOT_SUPPORTED);
        }
        let clone = self.graph_create()?;
        let mut clones = BTreeMap::new();
        for node in self.graph_nodes(original)? {
            let found = self.node(node)?;
            let (context, work) = (found.context, found.work.clone());
            let work = match work {
                Work::Child(child) => self.graph_clone_as_child(child)?,
                work => work,
            };
            clones.insert(node, self.graph_add(clone, context, work, Vec::new())?);
        }
        // Edges added explicitly may lead to a node that was added earlier.
        for (&node, &twin) in &clones {
            let after =
                self.node(node)?.after.iter().filter_map(|after| clones.get(after)).copied().collect();
            self.graphs.nodes.get_mut(twin).ok_or(INVALID_VALUE)?.after = after;
        }
        self.graphs.graphs.get_mut(clone).ok_or(INVALID_VALUE)?.clones = clones;
        Ok(clone)
    }

    fn graph_clone_as_child(&mut self, graph: Handle) -> Answer<Work> {
        let clone = self.graph_clone(graph)?;
        self.graphs.graphs.get_mut(clone).ok_or(INVALID_VALUE)?.is_child = true;
        Ok(Work::Child(clone))
    }

    /// Adds a copy of a graph as a child node.
    pub(crate) fn graph_add_child(
        &mut self,
        graph: Handle,
        context: Handle,
        child: Handle,
        after: Vec<Handle>,
    ) -> Answer<Handle> {
        self.graph_check_nodes(graph, &after)?;
        let work = self.graph_clone_as_child(child)?;
        self.graph_add(graph, context, work, after)
    }

    /// The child graph of a node.
    pub(crate) fn node_child(&self, node: Handle) -> Answer<Handle> {
        match self.node(node)?.work {
            Work::Child(child) => Ok(child),
            _ => Err(INVALID_VALUE),
        }
    }

    /// The counterpart of a node in a clone of its graph.
    pub(crate) fn node_in_clone(&self, node: Handle, clone: Handle) -> Answer<Handle> {
        self.graph(clone)?.clones.get(&node).copied().ok_or(INVALID_VALUE)
    }
}

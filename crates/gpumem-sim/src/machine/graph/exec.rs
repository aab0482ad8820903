//! Executable graphs: instantiation, launch, and changes to their nodes.

use crate::base::codes::{Answer, GRAPH_EXEC_UPDATE_FAILURE, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED};
use crate::base::handle::Handle;
use crate::graph::Work;
use crate::graph::exec::{Exec, Step, UpdateRefused};
use crate::machine::Machine;
use crate::order::Point;
use crate::stream::operation::Operation;
use gpumem_sys::types::CUgraphExecUpdateResult as UpdateResult;
use std::collections::BTreeMap;

impl Machine {
    pub(crate) fn graph_instantiate(&mut self, graph: Handle, flags: u64) -> Answer<Handle> {
        let is_contradictory = flags & AUTO_FREE != 0 && flags & DEVICE_LAUNCH != 0;
        if flags & !FLAGS_KNOWN != 0 || is_contradictory {
            return Err(INVALID_VALUE);
        }
        if flags & DEVICE_LAUNCH != 0 {
            return Err(NOT_SUPPORTED);
        }
        let is_of_graph = |exec: &Exec| exec.graph == graph;
        if self.graph_has_memory(graph)? && self.graphs.execs.iter().any(|(_, exec)| is_of_graph(exec)) {
            return Err(NOT_SUPPORTED);
        }
        let mut steps = self.graph_steps(graph)?;
        let lanes = self.lanes_for(&mut steps)?;
        let bases: Vec<u64> = steps.iter().filter_map(Step::allocates).collect();
        let exec = self.graphs.execs.insert(Exec { graph, flags, steps, lanes, last: None })?;
        bases.into_iter().for_each(|base| self.graph_memory_hold(base));
        Ok(exec)
    }

    /// The nodes of a graph in topological order; a child graph is expanded between a first and a last step.
    fn graph_steps(&self, graph: Handle) -> Answer<Vec<Step>> {
        let mut steps = Vec::new();
        self.graph_steps_into(graph, &[], &mut steps)?;
        for index in 0..steps.len() {
            for before in steps[index].after.clone() {
                steps[before].is_waited_for = true;
            }
        }
        Ok(steps)
    }

    /// Appends a graph behind some steps. Returns its steps without successors.
    fn graph_steps_into(
        &self,
        graph: Handle,
        roots_after: &[usize],
        steps: &mut Vec<Step>,
    ) -> Answer<Vec<usize>> {
        let mut left = self.graph_nodes(graph)?;
        let mut placed = BTreeMap::new();
        while !left.is_empty() {
            let is_ready = |node: &Handle| {
                self.graphs
                    .nodes
                    .get(*node)
                    .is_some_and(|node| node.after.iter().all(|after| placed.contains_key(after)))
            };
            let (ready, rest): (Vec<Handle>, Vec<Handle>) = left.into_iter().partition(is_ready);
            if ready.is_empty() {
                // If no node is ready, the remaining ones form a cycle.
                return Err(INVALID_VALUE);
            }
            for handle in ready {
                let node = self.node(handle)?;
                let mut after: Vec<usize> =
                    node.after.iter().filter_map(|after| placed.get(after)).copied().collect();
                if after.is_empty() {
                    after.extend_from_slice(roots_after);
                }
                let work = match node.work {
                    Work::Child(child) => {
                        steps.push(Step::new(handle, node.context, NOTHING, after));
                        after = self.graph_steps_into(child, &[steps.len() - 1], steps)?;
                        if after.is_empty() {
                            after.push(steps.len() - 1);
                        }
                        NOTHING
                    }
                    ref work => work.clone(),
                };
                steps.push(Step::new(handle, node.context, work, after));
                placed.insert(handle, steps.len() - 1);
            }
            left = rest;
        }
        let is_leaf = |index: &usize| !placed.values().any(|&other| steps[other].after.contains(index));
        Ok(placed.values().copied().filter(is_leaf).collect())
    }

    /// Puts each step behind one that it depends on and that is the last of its lane, or on a new lane.
    fn lanes_for(&mut self, steps: &mut [Step]) -> Answer<Vec<Handle>> {
        let (mut lanes, mut tails) = (Vec::new(), Vec::<usize>::new());
        for index in 0..steps.len() {
            let step = &steps[index];
            let continues = |&before: &usize| {
                tails[steps[before].lane] == before && steps[before].context == step.context
            };
            let lane = step.after.iter().copied().find(continues).map(|before| steps[before].lane);
            let context = step.context;
            let lane = match lane {
                Some(lane) => lane,
                None => {
                    lanes.push(self.lane_create(context)?);
                    tails.push(index);
                    lanes.len() - 1
                }
            };
            tails[lane] = index;
            steps[index].lane = lane;
        }
        Ok(lanes)
    }

    /// Destroys an executable. Queued launches still run.
    pub(crate) fn exec_destroy(&mut self, handle: Handle) -> Answer<()> {
        let exec = self.graphs.execs.remove(handle).ok_or(INVALID_VALUE)?;
        for lane in exec.lanes {
            if let Some(stream) = self.streams.get_mut(lane) {
                stream.is_closing = true;
            }
            self.remove_if_drained(lane);
        }
        let bases = exec.steps.iter().filter_map(Step::allocates);
        bases.for_each(|base| self.graph_memory_unhold(base));
        Ok(())
    }

    pub(crate) fn exec_count(&self) -> usize {
        self.graphs.execs.len()
    }

    pub(crate) fn exec_flags(&self, handle: Handle) -> Answer<u64> {
        Ok(self.graphs.execs.get(handle).ok_or(INVALID_VALUE)?.flags)
    }

    /// Takes the memory that a launch needs.
    pub(crate) fn exec_upload(&mut self, handle: Handle) -> Answer<()> {
        let exec = self.graphs.execs.get(handle).ok_or(INVALID_VALUE)?;
        let works: Vec<Work> = exec.steps.iter().map(|step| step.work.clone()).collect();
        self.graph_memory_admit(&works)
    }

    /// Queues the whole graph on a stream. A capturing stream refuses it, because a capture cannot contain a launch.
    pub(crate) fn exec_launch(&mut self, handle: Handle, stream: Handle) -> Answer<()> {
        let exec = self.graphs.execs.get(handle).ok_or(INVALID_VALUE)?;
        let (steps, lanes, last, flags) = (exec.steps.clone(), exec.lanes.clone(), exec.last, exec.flags);
        self.capture_check_outside(stream)?;
        let works: Vec<Work> = steps.iter().map(|step| step.work.clone()).collect();
        let stale = self.graph_memory_check(&works, flags & AUTO_FREE != 0)?;
        self.graph_memory_admit(&works)?;
        if let Some(last) = last.filter(|last| last.stream != stream) {
            self.enqueue(stream, Operation::Wait { point: last, event: None });
        }
        for base in stale {
            let free = self.graph_memory_launch_free(base)?;
            self.enqueue(stream, free);
        }
        let fork = self.enqueue(stream, Operation::Nothing);
        let points = self.steps_enqueue(&steps, &lanes, fork)?;
        for (_, &point) in steps.iter().zip(&points).filter(|(step, _)| !step.is_waited_for) {
            self.enqueue(stream, Operation::Wait { point, event: None });
        }
        let end = self.enqueue(stream, Operation::Nothing);
        if let Some(exec) = self.graphs.execs.get_mut(handle) {
            exec.last = Some(end);
        }
        Ok(())
    }

    /// Queues the steps on their lanes. Returns the point of each.
    fn steps_enqueue(&mut self, steps: &[Step], lanes: &[Handle], fork: Point) -> Answer<Vec<Point>> {
        let mut points = Vec::with_capacity(steps.len());
        for step in steps {
            let lane = lanes[step.lane];
            if step.after.is_empty() {
                self.enqueue(lane, Operation::Wait { point: fork, event: None });
            }
            for &before in step.after.iter().filter(|&&before| steps[before].lane != step.lane) {
                self.enqueue(lane, Operation::Wait { point: points[before], event: None });
            }
            points.push(self.step_enqueue(step, lane)?);
        }
        Ok(points)
    }

    fn step_enqueue(&mut self, step: &Step, lane: Handle) -> Answer<Point> {
        let operation = match &step.work {
            _ if !step.is_enabled => Operation::Nothing,
            Work::Queue(operation) => operation.clone(),
            Work::Alloc(base) => self.graph_memory_launch_alloc(*base)?,
            Work::Free(base) => self.graph_memory_launch_free(*base)?,
            Work::Record(event) => {
                self.event_record(*event, lane)?;
                Operation::Nothing
            }
            Work::Wait(event) => {
                self.stream_wait(lane, *event)?;
                Operation::Nothing
            }
            Work::Child(_) => Operation::Nothing,
        };
        let point = self.enqueue(lane, operation);
        if let Work::Alloc(base) = step.work {
            self.graph_memory_born(base, point);
        }
        Ok(point)
    }

    /// Replaces the work of an executable's nodes by that of a graph with the same topology.
    pub(crate) fn exec_update(&mut self, handle: Handle, graph: Handle) -> Result<(), UpdateRefused> {
        let exec = self.graphs.execs.get(handle).ok_or(UpdateRefused::of(INVALID_VALUE))?;
        let steps = self.graph_steps(graph).map_err(UpdateRefused::of)?;
        let refuse = |result, node| Err(UpdateRefused { code: GRAPH_EXEC_UPDATE_FAILURE, result, node });
        for (old, new) in exec.steps.iter().zip(&steps) {
            if old.work.node_type() != new.work.node_type() {
                return refuse(UpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, new.node);
            }
            if old.after != new.after {
                return refuse(UpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, new.node);
            }
            if matches!(new.work, Work::Alloc(_) | Work::Free(_)) || old.context != new.context {
                return refuse(UpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED, new.node);
            }
        }
        if exec.steps.len() != steps.len() {
            return refuse(UpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, Handle::NONE);
        }
        if let Some(exec) = self.graphs.execs.get_mut(handle) {
            for (old, new) in exec.steps.iter_mut().zip(steps) {
                old.work = new.work;
            }
        }
        Ok(())
    }

    /// Replaces the work of one node by the work that `queue` captures on a stream of the context.
    pub(crate) fn exec_set_by(
        &mut self,
        handle: Handle,
        node: Handle,
        context: Handle,
        queue: impl FnOnce(&mut Self, Handle) -> Answer<()>,
    ) -> Answer<()> {
        self.exec_step(handle, node)?;
        let work = self.work_by(node, context, queue)?;
        self.exec_step(handle, node)?.work = work;
        Ok(())
    }

    /// Replaces the event of a node that records one or waits for one.
    pub(crate) fn exec_set_event(
        &mut self,
        handle: Handle,
        node: Handle,
        event: Handle,
        is_wait: bool,
    ) -> Answer<()> {
        self.events.get(event).ok_or(INVALID_HANDLE)?;
        self.exec_step(handle, node)?.work.set_event(event, is_wait)
    }

    /// Disables or enables a kernel, memset or copy of an executable.
    pub(crate) fn exec_enable(&mut self, handle: Handle, node: Handle, enables: bool) -> Answer<()> {
        let step = self.exec_step(handle, node)?;
        match step.work {
            Work::Queue(Operation::Call(_) | Operation::Nothing) => Err(INVALID_VALUE),
            Work::Queue(_) => {
                step.is_enabled = enables;
                Ok(())
            }
            _ => Err(INVALID_VALUE),
        }
    }

    pub(crate) fn exec_is_enabled(&mut self, handle: Handle, node: Handle) -> Answer<bool> {
        Ok(self.exec_step(handle, node)?.is_enabled)
    }

    /// The step of a node of the original graph.
    fn exec_step(&mut self, handle: Handle, node: Handle) -> Answer<&mut Step> {
        let exec = self.graphs.execs.get_mut(handle).ok_or(INVALID_VALUE)?;
        exec.steps.iter_mut().rev().find(|step| step.node == node).ok_or(INVALID_VALUE)
    }
}

const NOTHING: Work = Work::Queue(Operation::Nothing);

const AUTO_FREE: u64 = 1;
const UPLOAD: u64 = 2;
const DEVICE_LAUNCH: u64 = 4;
const NODE_PRIORITY: u64 = 8;
const FLAGS_KNOWN: u64 = AUTO_FREE | UPLOAD | DEVICE_LAUNCH | NODE_PRIORITY;

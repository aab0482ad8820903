//! Graphs: work that runs at each launch, and the memory that graphs keep.
//!
//! A capture does not change the twin: fills and copies become *operations* of the graph, which each launch applies. The simulated
//! user is correct here too: a launch waits for all earlier uses of the blocks that its operations touch, except for those that the
//! capture already waited for, provided that the block was not used since.

use super::coverage::Coverage;
use super::faults::{self, Fault};
use super::objects::{Built, Capturing, GraphOp};
use super::operation::{Pick, Wait};
use super::step::Step;
use super::streams::Uses;
use super::world::World;
use crate::pool::{CaptureError, DeviceError, PoolError};
use std::collections::BTreeMap;
use std::rc::Rc;

impl World<'_> {
    pub(super) fn instantiate(
        &mut self,
        (pick, fault): (Pick, Option<Fault>),
        coverage: &mut Coverage,
        said: &mut Vec<String>,
    ) -> Step {
        let places: Vec<usize> =
            (0..self.graphs.len()).filter(|at| self.graphs[*at].graph.is_some()).collect();
        let Some(at) = pick.of(places.len()).map(|index| places[index]) else { return Ok(()) };
        let Built { name, graph: Some(graph), execs, .. } = &self.graphs[at] else { return Ok(()) };
        if execs.len() >= EXECS_MAX {
            return Ok(());
        }
        said.push(format!("let x{} = c{name}.instantiate()", self.next_name));
        let (outcome, seen) = faults::observed(&self.real, fault, || graph.instantiate());
        coverage.count("instantiate", seen, outcome.is_ok());
        self.note(&outcome, seen, said);
        match outcome {
            Ok(exec) => {
                self.graphs[at].execs.push((self.next_name, exec));
                self.next_name += 1;
                Ok(())
            }
            Err(PoolError::Device(DeviceError::Driver(_))) if seen.refused().is_some() => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    pub(super) fn launch(
        &mut self,
        (pick, stream, wait, fault): (Pick, Pick, Wait, Option<Fault>),
        coverage: &mut Coverage,
        said: &mut Vec<String>,
    ) -> Step {
        let (Some((at, exec)), Some(stream)) = (self.pick_exec(pick), self.streams.pick(stream)) else {
            return Ok(());
        };
        let is_captured = self.streams.is_captured(stream.id());
        let ops = Rc::clone(&self.graphs[at].ops);
        let mut touched = touched(&ops);
        // A later part of the graph may reuse the memory of a dropped part. Each launch then writes to both.
        let before = touched.iter().filter(|(_, writes)| **writes).map(|(name, _)| *name);
        let overwritten = self.twin.overlapped_by_kept(&before.collect::<Vec<_>>());
        touched.extend(overwritten.iter().map(|name| (*name, true)));
        let can_order = |uses: Option<&Uses>| uses.is_none_or(|uses| self.streams.can_order(uses, &stream));
        if !is_captured && !touched.keys().all(|name| can_order(self.uses_of(*name))) {
            return Ok(());
        }
        let mut waits = String::new();
        for (name, writes) in touched.iter().filter(|_| !is_captured) {
            // The capture has already waited for these uses.
            let awaited = self.graphs[at].awaited.get(name).copied().filter(|_| fault.is_none());
            let Some(mut uses) = self.uses_of(*name).cloned() else { continue };
            match awaited == Some(uses.count) {
                true => uses.enter(&stream, *writes),
                false => waits += &self.streams.order_uses(&mut uses, &stream, *writes, wait)?,
            }
            self.set_uses(*name, uses);
        }
        let (name, handle) = &self.graphs[at].execs[exec];
        said.push(format!("{waits}x{name}.launch(&{})", self.streams.name(&stream)));
        // SAFETY: the stream was made to wait for all uses of the blocks that the graph touches.
        let (outcome, seen) = faults::observed(&self.real, fault, || unsafe { handle.launch(&stream) });
        coverage.count("launch", seen, outcome.is_ok());
        self.note(&outcome, seen, said);
        match outcome {
            Ok(()) if is_captured => Err("a graph was launched in a capture".into()),
            Ok(()) => {
                coverage.launches += 1;
                overwritten.iter().for_each(|name| self.twin.forget(*name));
                ops.iter().for_each(|op| match *op {
                    GraphOp::Fill { block, value } => self.twin.fill(block, value),
                    GraphOp::Copy { source, target, count } => self.twin.copy(source, target, count),
                });
                Ok(())
            }
            Err(PoolError::Device(DeviceError::Capture(CaptureError::NotCapturable { .. })))
                if is_captured || self.capturing.is_some() =>
            {
                Ok(())
            }
            Err(PoolError::Device(DeviceError::Driver(_))) if seen.refused().is_some() => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    pub(super) fn drop_graph(&mut self, pick: Pick, said: &mut Vec<String>) -> Step {
        let places: Vec<usize> =
            (0..self.graphs.len()).filter(|at| self.graphs[*at].graph.is_some()).collect();
        if let Some(at) = pick.of(places.len()).map(|index| places[index]) {
            said.push(format!("drop(c{})", self.graphs[at].name));
            self.graphs[at].graph = None;
            self.settle_graphs();
        }
        Ok(())
    }

    pub(super) fn drop_exec(&mut self, pick: Pick, said: &mut Vec<String>) -> Step {
        if let Some((at, exec)) = self.pick_exec(pick) {
            let (name, handle) = self.graphs[at].execs.swap_remove(exec);
            said.push(format!("drop(x{name})"));
            drop(handle);
            self.settle_graphs();
        }
        Ok(())
    }

    /// Drops all captures and graphs.
    pub(super) fn end_graphs(&mut self) {
        if let Some(Capturing { name, .. }) = self.capturing.take() {
            self.graphs.push(Built::new(name, None, Vec::new(), BTreeMap::new()));
        }
        self.streams.set_captured(Vec::new());
        self.twin.end_capture();
        for built in &mut self.graphs {
            built.graph = None;
            built.execs.clear();
        }
        self.settle_graphs();
    }

    fn pick_exec(&self, pick: Pick) -> Option<(usize, usize)> {
        let all = self.graphs.iter().enumerate();
        let all: Vec<_> =
            all.flat_map(|(at, built)| (0..built.execs.len()).map(move |exec| (at, exec))).collect();
        pick.of(all.len()).map(|index| all[index])
    }

    /// The uses of a block, which the program or a graph owns.
    fn uses_of(&self, name: u32) -> Option<&Uses> {
        let live = self.blocks.iter().find(|live| live.name == name).map(|live| &live.uses);
        live.or_else(|| self.kept.iter().find(|kept| kept.name == name).map(|kept| &kept.uses))
    }

    fn set_uses(&mut self, name: u32, uses: Uses) {
        let live = self.blocks.iter_mut().find(|live| live.name == name).map(|live| &mut live.uses);
        let kept = self.kept.iter_mut().find(|kept| kept.name == name).map(|kept| &mut kept.uses);
        live.or(kept).into_iter().for_each(|place| *place = uses.clone());
    }

    /// Releases the blocks of graphs that have been dropped with all their executables.
    pub(super) fn settle_graphs(&mut self) {
        let is_over = |built: &Built| built.graph.is_none() && built.execs.is_empty();
        for built in self.graphs.extract_if(.., |built| is_over(built)) {
            self.blocks.iter_mut().for_each(|live| live.graphs.retain(|graph| *graph != built.name));
            self.kept.iter_mut().for_each(|kept| kept.graphs.retain(|graph| *graph != built.name));
            self.twin.close_graph(built.name);
        }
        for kept in self.kept.extract_if(.., |kept| kept.graphs.is_empty()) {
            self.twin.let_go(kept.name);
        }
    }
}

/// The blocks that operations touch, and whether each is written.
fn touched(ops: &[GraphOp]) -> BTreeMap<u32, bool> {
    let mut all = BTreeMap::new();
    for op in ops {
        match op {
            GraphOp::Fill { block, .. } => *all.entry(*block).or_default() |= true,
            GraphOp::Copy { source, target, .. } => {
                *all.entry(*source).or_default() |= false;
                *all.entry(*target).or_default() |= true;
            }
        }
    }
    all
}

const EXECS_MAX: usize = 3;

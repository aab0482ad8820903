//! Captures and graphs: work that runs at each launch, and memory that stays for it.
//!
//! In a capture nothing happens to the twin: fills and copies become *deeds* of the graph, which each launch carries out.
//! The user is correct here too: in the capture a stream waits for those of its streams that touched a block before; a
//! launch comes after everybody who used what its deeds touch. What streams outside were waited for in the capture, the
//! launch does not wait for again, as long as nobody has used the block since.

use super::coverage::Coverage;
use super::faults::{self, Fault};
use super::operation::{Pick, Wait};
use super::streams::{User, Uses};
use super::twin::copyable_bytes;
use super::world::{Step, World, text};
use crate::pool::{Capture, CaptureMode, Graph, GraphExec, PoolError, Stream, StreamId};
use std::collections::BTreeMap;
use std::rc::Rc;

/// A capture that goes on.
pub(super) struct Capturing {
    pub(super) name: u32,
    capture: Capture,
    deeds: Vec<Deed>,
    /// By a block's name: who touched it in the capture.
    touched: BTreeMap<u32, Touched>,
    /// By a block's name: how many uses it had outside when they were waited for in the capture.
    awaited: BTreeMap<u32, u32>,
    /// Blocks that were used on their own stream and have not been told: dropped in the capture, they need not be.
    untold: BTreeMap<u32, StreamId>,
}

/// What has come of a capture, as long as anything of it is left.
pub(super) struct Built {
    pub(super) name: u32,
    graph: Option<Graph>,
    execs: Vec<(u32, GraphExec)>,
    deeds: Rc<[Deed]>,
    awaited: BTreeMap<u32, u32>,
}

/// A block that the program has dropped, and graphs keep.
pub(super) struct Kept {
    pub(super) name: u32,
    pub(super) uses: Uses,
    pub(super) graphs: Vec<u32>,
}

#[derive(Default)]
struct Touched {
    writer: Option<StreamId>,
    readers: Vec<StreamId>,
    is_written: bool,
}

/// What a launch does, to blocks by their names.
#[derive(Clone, Copy)]
enum Deed {
    Fill { block: u32, value: u8 },
    Copy { source: u32, target: u32, count: u64 },
}

impl World<'_> {
    pub(super) fn begin_capture(
        &mut self,
        (pick, mode, fault): (Pick, CaptureMode, Option<Fault>),
        coverage: &mut Coverage,
        said: &mut Vec<String>,
    ) -> Step {
        let Some(stream) = self.streams.pick(pick) else { return Ok(()) };
        let is_taken = self.streams.is_captured(stream.id());
        // Blocking streams take part in what the context's default stream does.
        let is_default = self.streams.is_default(stream.id());
        if self.graphs.len() >= GRAPHS_MAX || is_default || self.capturing.is_some() && !is_taken {
            return Ok(());
        }
        let (name, on) = (self.next_name, self.streams.name(&stream));
        said.push(format!("let c{name} = {on}.begin_capture({mode:?})"));
        let (outcome, seen) = faults::observed(&self.real, fault, || stream.begin_capture(mode));
        coverage.count("begin_capture", seen, outcome.is_ok());
        self.note(&outcome, seen, said);
        match outcome {
            Ok(_) if is_taken => Err("a stream that captures began another capture".into()),
            Ok(capture) => {
                self.next_name += 1;
                self.twin.begin_capture(name);
                self.streams.set_captured(vec![stream.id()]);
                let (touched, awaited, untold) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
                self.capturing =
                    Some(Capturing { name, capture, deeds: Vec::new(), touched, awaited, untold });
                Ok(())
            }
            Err(PoolError::NotInCapture { .. }) if is_taken => Ok(()),
            Err(PoolError::Driver(_)) if seen.refused().is_some() => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    pub(super) fn fork(&mut self, pick: Pick, said: &mut Vec<String>) -> Step {
        let (Some(capturing), Some(stream)) = (&self.capturing, self.streams.pick(pick)) else {
            return Ok(());
        };
        if self.streams.is_captured(stream.id()) || self.streams.is_default(stream.id()) {
            return Ok(());
        }
        let origin = capturing.capture.stream();
        said.push(format!(
            "{}.wait_for(&{}) // joins",
            self.streams.name(&stream),
            self.streams.name(origin)
        ));
        stream.wait_for(origin).map_err(text)?;
        self.streams.join_capture(stream.id());
        match stream.is_capturing().map_err(text)? {
            true => Ok(()),
            false => Err("it did not become part of the capture".into()),
        }
    }

    /// A fill on a stream that is captured.
    pub(super) fn captured_fill(
        &mut self,
        (index, value, wait): (usize, u8, Wait),
        stream: &Stream,
        said: &mut Vec<String>,
    ) -> Step {
        let Some(waits) = self.touch(index, stream, true, wait)? else { return Ok(()) };
        let live = &self.blocks[index];
        said.push(format!(
            "{waits}fill(&b{}, {value}, &{}) // captured",
            live.name,
            self.streams.name(stream)
        ));
        Self::fill_all(&self.driver, &self.device, &live.block, value, stream)?;
        let block = live.name;
        self.capturing.iter_mut().for_each(|capturing| capturing.deeds.push(Deed::Fill { block, value }));
        Ok(())
    }

    /// A copy on a stream that is captured.
    pub(super) fn captured_copy(
        &mut self,
        (source, target, wait): (usize, usize, Wait),
        stream: &Stream,
        said: &mut Vec<String>,
    ) -> Step {
        let known = |index: usize| {
            let live = &self.blocks[index];
            let touched = self.capturing.as_ref().and_then(|capturing| capturing.touched.get(&live.name));
            let is_known = self.twin.contents(live.name).is_some();
            (live.block.size_bytes(), is_known || touched.is_some_and(|touched| touched.is_written))
        };
        let Some(count) = copyable_bytes(known(source), known(target)).filter(|_| source != target) else {
            return Ok(());
        };
        let Some(first) = self.touch(source, stream, false, wait)? else { return Ok(()) };
        let Some(second) = self.touch(target, stream, true, wait)? else { return Ok(()) };
        let (from, to) = (&self.blocks[source], &self.blocks[target]);
        said.push(format!(
            "{first}{second}copy(&b{}, &b{}, {count}, &{}) // captured",
            from.name,
            to.name,
            self.streams.name(stream)
        ));
        let deed = Deed::Copy { source: from.name, target: to.name, count };
        let _bound = self.device.bind().map_err(text)?;
        let (from, to) = (from.block.address(), to.block.address());
        // SAFETY: both blocks stay for the graph, since they record this stream, and are at least this long.
        unsafe { self.driver.cuMemcpyAsync(to, from, count as usize, stream.raw()).map_err(text)? };
        self.capturing.iter_mut().for_each(|capturing| capturing.deeds.push(deed));
        Ok(())
    }

    /// Makes a captured stream wait for what it must before it touches a block. `None` where that can't be.
    fn touch(
        &mut self,
        index: usize,
        stream: &Stream,
        writes: bool,
        wait: Wait,
    ) -> Result<Option<String>, String> {
        let Some(capturing) = &mut self.capturing else { return Ok(None) };
        let live = &mut self.blocks[index];
        // A part of a stream of somebody else's is there for its graph alone until that has been launched.
        if live.part_of.is_some_and(|graph| graph != capturing.name) && live.uses.writer.is_none() {
            return Ok(None);
        }
        let mut said = String::new();
        // Only what is asked of streams outside can be left to the launches.
        let is_new = !capturing.touched.contains_key(&live.name);
        if is_new && live.uses.count.is_multiple_of(2) && self.streams.can_finish(&live.uses) {
            said += &self.streams.order_uses(&mut live.uses.clone(), stream, true, wait)?;
            capturing.awaited.insert(live.name, live.uses.count);
        }
        let touched = capturing.touched.entry(live.name).or_insert_with(|| Touched {
            // The memory is there in its stream's order.
            writer: live.part_of.filter(|graph| *graph == capturing.name).map(|_| live.block.stream_id()),
            ..Touched::default()
        });
        let readers = if writes { std::mem::take(&mut touched.readers) } else { Vec::new() };
        for user in readers.into_iter().chain(touched.writer).filter(|user| *user != stream.id()) {
            let other = self.streams.find(user)?;
            stream.wait_for(other).map_err(text)?;
            said += &format!("{} waits for {}; ", self.streams.name(stream), self.streams.name(other));
        }
        match writes {
            true => touched.writer = Some(stream.id()),
            false => touched.readers.push(stream.id()),
        }
        touched.is_written |= writes;
        let is_home = stream.id() == live.block.stream_id() && self.streams.is_ours(stream.id());
        if is_home && live.name.is_multiple_of(2) && !live.graphs.contains(&capturing.name) {
            capturing.untold.insert(live.name, stream.id());
        } else {
            live.record(stream, Some(capturing.name));
        }
        Ok(Some(said))
    }

    /// The capture that goes on.
    pub(super) fn open_graph(&self) -> Option<u32> {
        self.capturing.as_ref().map(|capturing| capturing.name)
    }

    pub(super) fn end_capture(
        &mut self,
        (is_wanted, joins): (bool, bool),
        coverage: &mut Coverage,
        said: &mut Vec<String>,
    ) -> Step {
        let Some(Capturing { name, capture, deeds, awaited, untold, .. }) = self.capturing.take() else {
            return Ok(());
        };
        for live in &mut self.blocks {
            if let Some(stream) = untold.get(&live.name) {
                live.record(self.streams.find(*stream)?, Some(name));
            }
        }
        let origin = capture.stream().clone();
        let joined: Vec<StreamId> = self.streams.captured()[1..].to_vec();
        for other in joined.iter().filter(|_| joins) {
            let other = self.streams.find(*other)?;
            said.push(format!("{}.wait_for(&{})", self.streams.name(&origin), self.streams.name(other)));
            origin.wait_for(other).map_err(text)?;
        }
        let how = if is_wanted { format!("let c{name} = c{name}.end()") } else { format!("drop(c{name})") };
        said.push(how);
        let (outcome, seen) = faults::observed(&self.real, None, || match is_wanted {
            true => capture.end().map(Some),
            false => Ok(None),
        });
        coverage.count("end_capture", seen, outcome.is_ok());
        self.note(&outcome, seen, said);
        self.own_parts(name);
        self.streams.set_captured(Vec::new());
        self.twin.end_capture();
        let graph = match outcome {
            Ok(graph) => graph,
            Err(PoolError::CaptureUnjoined) if !joins && !joined.is_empty() => None,
            Err(error) => return Err(error.to_string()),
        };
        coverage.graphs += u64::from(graph.is_some());
        self.graphs.push(Built { name, graph, execs: Vec::new(), deeds: deeds.into(), awaited });
        self.settle_graphs();
        Ok(())
    }

    /// What a capture has allocated is there in its streams' order once it has ended.
    fn own_parts(&mut self, graph: u32) {
        let captured = self.streams.captured();
        for live in self.blocks.iter_mut().filter(|live| live.part_of == Some(graph)) {
            let home = live.block.stream_id();
            if captured.contains(&home) && (self.streams.is_ours(home) || captured[0] == home) {
                live.uses.writer = Some(User::Stream(home));
            }
        }
    }

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
            Err(PoolError::Driver(_)) if seen.refused().is_some() => Ok(()),
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
        let deeds = Rc::clone(&self.graphs[at].deeds);
        let mut touched = touched(&deeds);
        // What had the place of a part before it writes there at each launch.
        let before = touched.iter().filter(|(_, writes)| **writes).map(|(name, _)| *name);
        let overwritten = self.twin.overlapped_by_kept(&before.collect::<Vec<_>>());
        touched.extend(overwritten.iter().map(|name| (*name, true)));
        let can_order = |uses: Option<&Uses>| uses.is_none_or(|uses| self.streams.can_order(uses, &stream));
        if !is_captured && !touched.keys().all(|name| can_order(self.uses_of(*name))) {
            return Ok(());
        }
        let mut waits = String::new();
        for (name, writes) in touched.iter().filter(|_| !is_captured) {
            // What was waited for in the capture need not be waited for again.
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
        // SAFETY: the stream has been made to wait for all who used what the graph uses.
        let (outcome, seen) = faults::observed(&self.real, fault, || unsafe { handle.launch(&stream) });
        coverage.count("launch", seen, outcome.is_ok());
        self.note(&outcome, seen, said);
        match outcome {
            Ok(()) if is_captured => Err("a graph was launched in a capture".into()),
            Ok(()) => {
                coverage.launches += 1;
                overwritten.iter().for_each(|name| self.twin.forget(*name));
                deeds.iter().for_each(|deed| match *deed {
                    Deed::Fill { block, value } => self.twin.fill(block, value),
                    Deed::Copy { source, target, count } => self.twin.copy(source, target, count),
                });
                Ok(())
            }
            Err(PoolError::NotInCapture { .. }) if is_captured || self.capturing.is_some() => Ok(()),
            Err(PoolError::Driver(_)) if seen.refused().is_some() => Ok(()),
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

    /// Ends everything of captures and graphs.
    pub(super) fn end_graphs(&mut self) {
        if let Some(Capturing { name, .. }) = self.capturing.take() {
            self.graphs.push(Built {
                name,
                graph: None,
                execs: Vec::new(),
                deeds: Rc::new([]),
                awaited: BTreeMap::new(),
            });
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

    /// Of a block by its name, that the program or a graph has.
    fn uses_of(&self, name: u32) -> Option<&Uses> {
        let live = self.blocks.iter().find(|live| live.name == name).map(|live| &live.uses);
        live.or_else(|| self.kept.iter().find(|kept| kept.name == name).map(|kept| &kept.uses))
    }

    fn set_uses(&mut self, name: u32, uses: Uses) {
        let live = self.blocks.iter_mut().find(|live| live.name == name).map(|live| &mut live.uses);
        let kept = self.kept.iter_mut().find(|kept| kept.name == name).map(|kept| &mut kept.uses);
        live.or(kept).into_iter().for_each(|place| *place = uses.clone());
    }

    /// Graphs of which nothing is left keep nothing.
    fn settle_graphs(&mut self) {
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

/// The blocks that deeds touch, and whether they are written.
fn touched(deeds: &[Deed]) -> BTreeMap<u32, bool> {
    let mut all = BTreeMap::new();
    for deed in deeds {
        match deed {
            Deed::Fill { block, .. } => *all.entry(*block).or_default() |= true,
            Deed::Copy { source, target, .. } => {
                *all.entry(*source).or_default() |= false;
                *all.entry(*target).or_default() |= true;
            }
        }
    }
    all
}

const GRAPHS_MAX: usize = 4;
const EXECS_MAX: usize = 3;

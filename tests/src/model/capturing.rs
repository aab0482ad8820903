//! The open capture of a case.
//!
//! The simulated user is correct here too: before a stream touches a block, it waits for the captured streams that touched the
//! block before. Waits for streams outside of the capture happen now or at each launch.

use super::coverage::Coverage;
use super::faults::{self, Fault};
use super::objects::{Built, Capturing, GraphOp, Touched};
use super::operation::{Pick, Wait};
use super::step::{Step, text};
use super::streams::User;
use super::twin::copyable_bytes;
use super::world::World;
use crate::pool::{Capture, CaptureError, CaptureMode, DeviceError, PoolError, Stream, StreamId};
use std::collections::BTreeMap;

impl World<'_> {
    pub(super) fn begin_capture(
        &mut self,
        (pick, mode, fault): (Pick, CaptureMode, Option<Fault>),
        coverage: &mut Coverage,
        said: &mut Vec<String>,
    ) -> Step {
        let Some(stream) = self.streams.pick(pick) else { return Ok(()) };
        let is_taken = self.streams.is_captured(stream.id());
        // The context's default stream synchronises with blocking streams, so a capture of it would affect them.
        let is_default = self.streams.is_default(stream.id());
        if self.graphs.len() >= GRAPHS_MAX || is_default || self.capturing.is_some() && !is_taken {
            return Ok(());
        }
        let (name, on) = (self.next_name, self.streams.name(&stream));
        said.push(format!("let c{name} = {on}.begin_capture({mode:?})"));
        let (outcome, seen) = faults::observed(&self.real, fault, || Capture::begin(&stream, mode));
        coverage.count("begin_capture", seen, outcome.is_ok());
        self.note(&outcome, seen, said);
        match outcome {
            Ok(_) if is_taken => Err("a stream that captures began another capture".into()),
            Ok(capture) => {
                self.next_name += 1;
                self.twin.begin_capture(name);
                self.streams.set_captured(vec![stream.id()]);
                let (touched, awaited, unannounced) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
                self.capturing =
                    Some(Capturing { name, capture, ops: Vec::new(), touched, awaited, unannounced });
                Ok(())
            }
            Err(PoolError::Device(DeviceError::Capture(CaptureError::NotCapturable { .. }))) if is_taken => {
                Ok(())
            }
            Err(PoolError::Device(DeviceError::Driver(_))) if seen.refused().is_some() => Ok(()),
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

    /// Queues a fill on a captured stream.
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
        self.capturing.iter_mut().for_each(|capturing| capturing.ops.push(GraphOp::Fill { block, value }));
        Ok(())
    }

    /// Queues a copy on a captured stream.
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
        let op = GraphOp::Copy { source: from.name, target: to.name, count };
        let _bound = self.device.bind().map_err(text)?;
        let (from, to) = (from.block.address(), to.block.address());
        // SAFETY: the graph keeps both blocks alive, because they record this stream; both are at least `count` bytes long.
        unsafe { self.driver.cuMemcpyAsync(to, from, count as usize, stream.raw()).map_err(text)? };
        self.capturing.iter_mut().for_each(|capturing| capturing.ops.push(op));
        Ok(())
    }

    /// Makes a captured stream wait for the earlier uses of a block. Returns `None` if the stream cannot wait for them.
    fn touch(
        &mut self,
        index: usize,
        stream: &Stream,
        writes: bool,
        wait: Wait,
    ) -> Result<Option<String>, String> {
        let Some(capturing) = &mut self.capturing else { return Ok(None) };
        let live = &mut self.blocks[index];
        // The memory of a part on another library's stream belongs to its graph alone until the first launch.
        if live.part_of.is_some_and(|graph| graph != capturing.name) && live.uses.writer.is_none() {
            return Ok(None);
        }
        let mut said = String::new();
        // A launch can wait for streams outside of the capture only, so half of those waits are left to the launches.
        let is_new = !capturing.touched.contains_key(&live.name);
        if is_new && live.uses.count.is_multiple_of(2) && self.streams.can_finish(&live.uses) {
            said += &self.streams.order_uses(&mut live.uses.clone(), stream, true, wait)?;
            capturing.awaited.insert(live.name, live.uses.count);
        }
        let touched = capturing.touched.entry(live.name).or_insert_with(|| Touched {
            // The owner stream counts as the first writer: the memory is ordered behind it.
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
            capturing.unannounced.insert(live.name, stream.id());
        } else {
            live.record(stream, Some(capturing.name));
        }
        Ok(Some(said))
    }

    /// The name of the open capture.
    pub(super) fn open_graph(&self) -> Option<u32> {
        self.capturing.as_ref().map(|capturing| capturing.name)
    }

    pub(super) fn end_capture(
        &mut self,
        (is_wanted, joins): (bool, bool),
        coverage: &mut Coverage,
        said: &mut Vec<String>,
    ) -> Step {
        let Some(Capturing { name, capture, ops, awaited, unannounced, .. }) = self.capturing.take() else {
            return Ok(());
        };
        for live in &mut self.blocks {
            if let Some(stream) = unannounced.get(&live.name) {
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
            Err(PoolError::Device(DeviceError::Capture(CaptureError::Unjoined)))
                if !joins && !joined.is_empty() =>
            {
                None
            }
            Err(error) => return Err(error.to_string()),
        };
        coverage.graphs += u64::from(graph.is_some());
        self.graphs.push(Built::new(name, graph, ops, awaited));
        self.settle_graphs();
        Ok(())
    }

    /// After the capture, the memory allocated in it is ordered behind its streams.
    fn own_parts(&mut self, graph: u32) {
        let captured = self.streams.captured();
        for live in self.blocks.iter_mut().filter(|live| live.part_of == Some(graph)) {
            let home = live.block.stream_id();
            if captured.contains(&home) && (self.streams.is_ours(home) || captured[0] == home) {
                live.uses.writer = Some(User::Stream(home));
            }
        }
    }
}

const GRAPHS_MAX: usize = 4;

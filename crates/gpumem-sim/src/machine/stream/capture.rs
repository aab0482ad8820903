//! Stream capture: begin, join, end, and the nodes that captured work becomes.

use crate::base::codes::{
    Answer, CAPTURE_IMPLICIT, CAPTURE_INVALIDATED, CAPTURE_ISOLATION, CAPTURE_MERGE, CAPTURE_UNJOINED,
    CAPTURE_UNMATCHED, CAPTURE_UNSUPPORTED, CAPTURE_WRONG_THREAD, CAPTURED_EVENT, ILLEGAL_STATE,
    INVALID_HANDLE, INVALID_VALUE,
};
use crate::base::handle::Handle;
use crate::base::thread::ThreadKey;
use crate::graph::Work;
use crate::machine::Machine;
use crate::stream::Role;
use crate::stream::capture::{Capture, CaptureInfo, CapturedAt, Joined};
use gpumem_sys::types::{CUstreamCaptureMode as Mode, CUstreamCaptureStatus as Status};
use std::collections::BTreeSet;

impl Machine {
    /// True if work queued on a stream becomes part of a graph.
    pub(crate) fn is_capturing(&self, stream: Handle) -> bool {
        self.streams.get(stream).is_some_and(|stream| stream.capture.is_some())
    }

    /// Begins a capture, into a new graph or behind some nodes of an existing one.
    pub(crate) fn capture_begin(
        &mut self,
        handle: Handle,
        thread: ThreadKey,
        mode: Mode,
        into: Option<(Handle, Vec<Handle>)>,
    ) -> Answer<()> {
        if mode.0 > Mode::CU_STREAM_CAPTURE_MODE_RELAXED.0 {
            return Err(INVALID_VALUE);
        }
        let stream = self.streams.get(handle).ok_or(INVALID_HANDLE)?;
        if stream.role == Role::Legacy {
            return Err(CAPTURE_UNSUPPORTED);
        }
        if stream.capture.is_some() {
            return Err(ILLEGAL_STATE);
        }
        let owns_graph = into.is_none();
        let (graph, after) = match into {
            Some(given) => given,
            None => (self.graph_create()?, Vec::new()),
        };
        self.graph_check_nodes(graph, &after)?;
        self.captures.last_id += 1;
        let id = self.captures.last_id;
        let capture = Capture { origin: handle, thread, mode, graph, owns_graph, is_broken: false };
        self.captures.live.insert(id, capture);
        self.join(handle, Joined::new(id, graph, after))
    }

    /// Ends the capture that began on a stream. Every stream that joined leaves it, whatever the result.
    pub(crate) fn capture_end(&mut self, handle: Handle, thread: ThreadKey) -> Answer<Handle> {
        let stream = self.streams.get(handle).ok_or(INVALID_HANDLE)?;
        let joined = stream.capture.as_ref().ok_or(ILLEGAL_STATE)?;
        let (id, after) = (joined.id, joined.after.clone());
        let capture = self.captures.live.get(&id).ok_or(ILLEGAL_STATE)?;
        if capture.origin != handle {
            self.capture_break(id);
            return Err(CAPTURE_UNMATCHED);
        }
        if capture.mode != Mode::CU_STREAM_CAPTURE_MODE_RELAXED && capture.thread != thread {
            return Err(CAPTURE_WRONG_THREAD);
        }
        let left = self.capture_leave(id);
        let Some(capture) = self.captures.live.remove(&id) else { return Err(ILLEGAL_STATE) };
        let joined = self.graph_ancestors(&after);
        let code = match () {
            () if capture.is_broken => CAPTURE_INVALIDATED,
            () if !left.iter().all(|node| joined.contains(node)) => CAPTURE_UNJOINED,
            () => return Ok(capture.graph),
        };
        if capture.owns_graph {
            self.graph_destroy(capture.graph)?;
        }
        Err(code)
    }

    /// Removes every stream from a capture. Returns the nodes on which their next nodes would have depended.
    fn capture_leave(&mut self, id: u64) -> BTreeSet<Handle> {
        let mut left = BTreeSet::new();
        for handle in self.streams.handles() {
            let Some(stream) = self.streams.get_mut(handle) else { continue };
            if let Some(joined) = stream.capture.take_if(|joined| joined.id == id) {
                left.extend(joined.after);
            }
        }
        left
    }

    /// Records work of a capturing stream as its next node.
    pub(crate) fn capture_work(&mut self, handle: Handle, work: Work) -> Answer<Handle> {
        let stream = self.streams.get(handle).ok_or(INVALID_HANDLE)?;
        let (context, joined) = (stream.context, stream.capture.as_ref().ok_or(ILLEGAL_STATE)?);
        let (graph, after) = (joined.graph, joined.after.clone());
        let node = self.graph_add(graph, context, work, after)?;
        if let Some(joined) = self.streams.get_mut(handle).and_then(|stream| stream.capture.as_mut()) {
            joined.after = vec![node];
        }
        Ok(node)
    }

    /// Records an event on a capturing stream: from now on it refers to a position in the graph.
    pub(crate) fn capture_record(&mut self, event: Handle, stream: Handle) -> Answer<()> {
        let joined = self.streams.get(stream).and_then(|stream| stream.capture.as_ref());
        let joined = joined.ok_or(ILLEGAL_STATE)?;
        let at = CapturedAt { id: joined.id, after: joined.after.clone() };
        let event = self.events.get_mut(event).ok_or(INVALID_HANDLE)?;
        (event.captured, event.point, event.time_ns) = (Some(at), None, None);
        Ok(())
    }

    /// A wait that involves a capture: the stream joins it, or its next node also depends on the event.
    pub(crate) fn capture_wait(&mut self, stream: Handle, event: Handle) -> Answer<()> {
        let found = self.streams.get(stream).ok_or(INVALID_HANDLE)?;
        let role = found.role;
        let own = found.capture.as_ref().map(|joined| joined.id);
        let at = self.events.get(event).ok_or(INVALID_HANDLE)?.captured.clone();
        match (own, at) {
            (Some(id), None) => self.capture_refuse([id], CAPTURE_ISOLATION),
            (Some(id), Some(at)) if id == at.id => {
                if let Some(joined) = self.streams.get_mut(stream).and_then(|s| s.capture.as_mut()) {
                    let news: Vec<Handle> =
                        at.after.into_iter().filter(|node| !joined.after.contains(node)).collect();
                    joined.after.extend(news);
                }
                Ok(())
            }
            (Some(id), Some(at)) if self.captures.live.contains_key(&at.id) => {
                self.capture_refuse([id, at.id], CAPTURE_MERGE)
            }
            (Some(id), Some(_)) => self.capture_refuse([id], CAPTURED_EVENT),
            (None, Some(at)) => self.capture_join(stream, role, at),
            (None, None) => Ok(()),
        }
    }

    /// Records an event, or waits for one, as a separate node that refers to work outside of the graph. Only while capturing.
    pub(crate) fn capture_external(&mut self, event: Handle, stream: Handle, is_wait: bool) -> Answer<()> {
        self.events.get(event).ok_or(INVALID_HANDLE)?;
        if !self.is_capturing(stream) {
            return Err(INVALID_VALUE);
        }
        let work = if is_wait { Work::Wait(event) } else { Work::Record(event) };
        self.capture_work(stream, work).map(drop)
    }

    fn capture_join(&mut self, stream: Handle, role: Role, at: CapturedAt) -> Answer<()> {
        let capture = self.captures.live.get(&at.id).ok_or(CAPTURED_EVENT)?;
        if capture.is_broken {
            return Err(CAPTURE_INVALIDATED);
        }
        if role == Role::Legacy {
            return self.capture_refuse([at.id], CAPTURE_IMPLICIT);
        }
        self.join(stream, Joined::new(at.id, capture.graph, at.after))
    }

    fn join(&mut self, stream: Handle, joined: Box<Joined>) -> Answer<()> {
        self.streams.get_mut(stream).ok_or(INVALID_HANDLE)?.capture = Some(joined);
        Ok(())
    }

    /// The capture of a stream. A query of the null stream while a blocking stream captures is refused and has no effect.
    pub(crate) fn capture_status(&self, stream: Handle) -> Answer<Status> {
        if !self.captures_implied_by(stream).is_empty() {
            return Err(CAPTURE_IMPLICIT);
        }
        let joined = self.streams.get(stream).ok_or(INVALID_HANDLE)?.capture.as_ref();
        Ok(match joined {
            None => Status::CU_STREAM_CAPTURE_STATUS_NONE,
            Some(joined) if self.capture_is_broken(joined.id) => Status::CU_STREAM_CAPTURE_STATUS_INVALIDATED,
            Some(_) => Status::CU_STREAM_CAPTURE_STATUS_ACTIVE,
        })
    }

    /// The capture on a stream, if there is one that is valid.
    pub(crate) fn capture_info(&mut self, stream: Handle) -> Answer<Option<CaptureInfo>> {
        if self.capture_status(stream)? != Status::CU_STREAM_CAPTURE_STATUS_ACTIVE {
            return Ok(None);
        }
        let joined = self.streams.get_mut(stream).and_then(|stream| stream.capture.as_mut());
        Ok(joined.map(|joined| {
            joined.shown = joined.after.iter().map(|node| node.to_bits() as usize).collect();
            CaptureInfo {
                id: joined.id,
                graph: joined.graph,
                after: joined.shown.as_ptr().cast(),
                after_count: joined.shown.len(),
            }
        }))
    }

    /// Adds to the dependencies of a stream's next node, or replaces them.
    pub(crate) fn capture_set_after(
        &mut self,
        stream: Handle,
        nodes: Vec<Handle>,
        replaces: bool,
    ) -> Answer<()> {
        self.capture_check(stream)?;
        let found = self.streams.get(stream).ok_or(INVALID_HANDLE)?;
        let graph = found.capture.as_ref().ok_or(ILLEGAL_STATE)?.graph;
        self.graph_check_nodes(graph, &nodes)?;
        if let Some(joined) = self.streams.get_mut(stream).and_then(|stream| stream.capture.as_mut()) {
            if replaces {
                joined.after.clear();
            }
            let news: Vec<Handle> = nodes.into_iter().filter(|node| !joined.after.contains(node)).collect();
            joined.after.extend(news);
        }
        Ok(())
    }

    /// Exchanges a thread's mode. Returns the previous one.
    pub(crate) fn capture_exchange_mode(&mut self, thread: ThreadKey, mode: Mode) -> Answer<Mode> {
        if mode.0 > Mode::CU_STREAM_CAPTURE_MODE_RELAXED.0 {
            return Err(INVALID_VALUE);
        }
        // A thread in the usual mode is not listed, so that those which have ended are forgotten.
        let before = match mode {
            Mode::CU_STREAM_CAPTURE_MODE_GLOBAL => self.captures.modes.remove(&thread),
            _ => self.captures.modes.insert(thread, mode),
        };
        Ok(before.unwrap_or(Mode::CU_STREAM_CAPTURE_MODE_GLOBAL))
    }

    /// Removes captures whose origin was destroyed with its context.
    pub(crate) fn captures_forget(&mut self) {
        let streams = &self.streams;
        let gone = self.captures.live.iter().filter(|(_, capture)| streams.get(capture.origin).is_none());
        let gone: Vec<u64> = gone.map(|(&id, _)| id).collect();
        for id in gone {
            self.capture_leave(id);
            let Some(capture) = self.captures.live.remove(&id) else { continue };
            if capture.owns_graph {
                // The program never got the handle, so the graph exists.
                let _ = self.graph_destroy(capture.graph);
            }
        }
    }
}

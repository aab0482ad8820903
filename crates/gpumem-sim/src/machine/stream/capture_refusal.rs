//! Calls that captures refuse or that invalidate them, checked before a call has an effect.

use crate::base::codes::{
    Answer, CAPTURE_IMPLICIT, CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED, CAPTURED_EVENT, INVALID_HANDLE,
};
use crate::base::handle::Handle;
use crate::base::thread::ThreadKey;
use crate::machine::Machine;
use crate::stream::capture::Capture;
use crate::stream::{Role, Stream};
use gpumem_sys::types::{CUresult, CUstreamCaptureMode as Mode};

impl Machine {
    /// Called before work is queued on a stream: an invalidated capture accepts none, and the null stream accepts none that it
    /// would order with a blocking stream that captures.
    pub(crate) fn capture_check(&mut self, stream: Handle) -> Answer<()> {
        if self.captures.live.is_empty() {
            return Ok(());
        }
        let found = self.streams.get(stream).ok_or(INVALID_HANDLE)?;
        match &found.capture {
            Some(joined) if self.capture_is_broken(joined.id) => Err(CAPTURE_INVALIDATED),
            Some(_) => Ok(()),
            None => {
                let implicit = self.captures_implied_by(stream);
                self.capture_refuse(implicit, CAPTURE_IMPLICIT)
            }
        }
    }

    /// Called before the host queries or waits for a stream: a capturing stream has no progress to observe.
    pub(crate) fn capture_check_observed(&mut self, stream: Handle, thread: ThreadKey) -> Answer<()> {
        self.capture_check(stream)?;
        let own = self.streams.get(stream).and_then(|stream| stream.capture.as_ref()).map(|joined| joined.id);
        self.capture_refuse(own, CAPTURE_UNSUPPORTED)?;
        self.capture_check_unsafe(thread)
    }

    /// Called before the host queries or waits for an event.
    pub(crate) fn capture_check_event(&mut self, event: Handle, thread: ThreadKey) -> Answer<()> {
        if let Some(at) = &self.events.get(event).ok_or(INVALID_HANDLE)?.captured {
            let id = at.id;
            return self.capture_refuse([id], CAPTURED_EVENT);
        }
        self.capture_check_unsafe(thread)
    }

    /// Called before the host waits for a whole context.
    pub(crate) fn capture_check_context(&mut self, context: Handle) -> Answer<()> {
        let within: Vec<u64> = self.captures_where(|stream| stream.context == context);
        self.capture_refuse(within, CAPTURE_UNSUPPORTED)
    }

    /// Called before a call that may implicitly wait for the device, which the modes may refuse.
    pub(crate) fn capture_check_unsafe(&mut self, thread: ThreadKey) -> Answer<()> {
        if self.captures.live.is_empty() {
            return Ok(());
        }
        let mode = self.captures.modes.get(&thread).copied().unwrap_or(Mode::CU_STREAM_CAPTURE_MODE_GLOBAL);
        if mode == Mode::CU_STREAM_CAPTURE_MODE_RELAXED {
            return Ok(());
        }
        let is_hit = |capture: &Capture| {
            let is_own = capture.thread == thread && capture.mode != Mode::CU_STREAM_CAPTURE_MODE_RELAXED;
            let is_global = Mode::CU_STREAM_CAPTURE_MODE_GLOBAL;
            is_own || mode == is_global && capture.mode == is_global
        };
        let hit = self.captures.live.iter().filter(|(_, capture)| is_hit(capture)).map(|(&id, _)| id);
        let hit: Vec<u64> = hit.collect();
        self.capture_refuse(hit, CAPTURE_UNSUPPORTED)
    }

    /// Refuses with a code and invalidates the captures, if there are any.
    pub(crate) fn capture_refuse(
        &mut self,
        ids: impl IntoIterator<Item = u64>,
        code: CUresult,
    ) -> Answer<()> {
        let mut answer = Ok(());
        for id in ids {
            self.capture_break(id);
            answer = Err(code);
        }
        answer
    }

    pub(crate) fn capture_break(&mut self, id: u64) {
        if let Some(capture) = self.captures.live.get_mut(&id) {
            capture.is_broken = true;
        }
    }

    pub(crate) fn capture_is_broken(&self, id: u64) -> bool {
        self.captures.live.get(&id).is_none_or(|capture| capture.is_broken)
    }

    /// The captures that work on a stream would join by the implicit order of the null stream.
    pub(crate) fn captures_implied_by(&self, stream: Handle) -> Vec<u64> {
        match self.streams.get(stream) {
            Some(stream) if stream.role == Role::Legacy => {
                self.captures_where(|other| other.context == stream.context && other.is_blocking())
            }
            _ => Vec::new(),
        }
    }

    fn captures_where(&self, test: impl Fn(&Stream) -> bool) -> Vec<u64> {
        if self.captures.live.is_empty() {
            return Vec::new();
        }
        let joined = self.streams.iter().filter(|(_, stream)| test(stream));
        joined.filter_map(|(_, stream)| Some(stream.capture.as_ref()?.id)).collect()
    }

    /// Called before calls that a capturing stream never accepts (its destruction, a launch of a graph, attaching memory,
    /// a query of its id or its flags):
    /// refuses and invalidates the capture.
    pub(crate) fn capture_check_outside(&mut self, stream: Handle) -> Answer<()> {
        let own = self.streams.get(stream).and_then(|stream| stream.capture.as_ref()).map(|joined| joined.id);
        self.capture_refuse(own, CAPTURE_UNSUPPORTED)
    }
}

//! The streams of a running case: their names, the uses of blocks, and the ways in which one stream waits for another.

use super::operation::{Kind, Pick, Wait};
use super::step::text;
use crate::pool::{Device, DeviceError, Event, Stream, StreamId};
use crate::sys::types::{CUstream, CUstream_flags};
use std::rc::Rc;

/// The live streams, and the ids of all streams so far.
pub(super) struct Streams {
    live: Vec<Stream>,
    /// The ids, in order of creation.
    ids: Vec<StreamId>,
    /// Live streams that another library owns.
    foreign: Vec<StreamId>,
    /// Streams of another library that live as long as the device, including those whose handle was dropped.
    long_lived: Vec<(StreamId, CUstream)>,
    /// The default streams of the thread and of the context. They are never destroyed.
    defaults: Vec<StreamId>,
    /// The streams of the open capture.
    captured: Vec<StreamId>,
    had_foreign: bool,
}

/// The last uses of a block: the next writer waits for all of them, the next reader for the writer.
#[derive(Clone, Default)]
pub(super) struct Uses {
    pub(super) writer: Option<User>,
    pub(super) readers: Vec<User>,
    /// The number of uses so far.
    pub(super) count: u32,
}

/// A past use of a block, and the object to wait on.
#[derive(Clone)]
pub(super) enum User {
    /// A live stream.
    Stream(StreamId),
    /// An event recorded when the stream was dropped.
    Gone(Rc<Event>),
}

impl Streams {
    pub(super) fn new(live: Vec<Stream>) -> Self {
        let ids = live.iter().map(Stream::id).collect();
        let (foreign, long_lived, defaults, captured) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { live, ids, foreign, long_lived, defaults, captured, had_foreign: false }
    }

    /// Creates a stream, unless the maximum is reached.
    pub(super) fn make(&mut self, kind: Kind, device: &Device) -> Result<Option<Stream>, String> {
        if self.live.len() >= STREAMS_MAX {
            return Ok(None);
        }
        let stream = match kind {
            Kind::Own => Stream::new(device),
            Kind::NoWaits => Stream::builder(device).no_waits().build(),
            Kind::Foreign | Kind::LongLived => foreign(device, kind),
            Kind::Legacy => Stream::legacy(device),
            Kind::OfThread => Stream::per_thread(device),
        };
        let stream = stream.map_err(text)?;
        if self.live.contains(&stream) {
            return Ok(None);
        }
        self.ids.push(stream.id());
        match kind {
            Kind::Own | Kind::NoWaits => {}
            Kind::Foreign => self.foreign.push(stream.id()),
            Kind::LongLived => self.long_lived.push((stream.id(), stream.raw())),
            Kind::Legacy | Kind::OfThread => self.defaults.push(stream.id()),
        }
        self.had_foreign |= !matches!(kind, Kind::Own | Kind::NoWaits | Kind::LongLived);
        self.live.push(stream.clone());
        Ok(Some(stream))
    }

    /// Removes a stream from the list, unless it is the last one or captured.
    pub(super) fn take(&mut self, pick: Pick) -> Option<Stream> {
        let index = pick.of(self.live.len()).filter(|_| self.live.len() > 1)?;
        (!self.is_captured(self.live[index].id())).then(|| self.live.remove(index))
    }

    /// Drops a stream that was removed from the list, and destroys it if another library owns it. True if it was retired.
    pub(super) fn end(&mut self, stream: Stream, retires: bool) -> Result<bool, String> {
        let place = self.foreign.iter().position(|id| *id == stream.id());
        let is_default = self.is_default(stream.id());
        if let Some(at) = self.long_lived.iter().position(|(id, _)| *id == stream.id()) {
            // Without `retire`, the stream stays alive until the end, and the pool may record events on it.
            if retires {
                stream.retire().map_err(text)?;
                destroy(stream.device(), self.long_lived.swap_remove(at).1)?;
            }
            return Ok(retires);
        }
        if place.is_none() && !is_default {
            return Ok(false);
        }
        if retires {
            stream.retire().map_err(text)?;
        }
        if is_default {
            self.defaults.retain(|id| *id != stream.id());
            return Ok(retires);
        }
        self.foreign.retain(|id| *id != stream.id());
        let (device, raw) = (stream.device().clone(), stream.raw());
        drop(stream);
        destroy(&device, raw)?;
        Ok(retires)
    }

    /// True if a stream is a default stream.
    pub(super) fn is_default(&self, stream: StreamId) -> bool {
        self.defaults.contains(&stream)
    }

    /// True if the pool may record events on a stream at any time.
    pub(super) fn is_ours(&self, stream: StreamId) -> bool {
        !self.is_default(stream) && !self.foreign.contains(&stream)
    }

    /// True if the stream's handle has been dropped.
    pub(super) fn is_gone(&self, stream: StreamId) -> bool {
        self.find(stream).is_err()
    }

    /// The streams of the open capture, its first stream in front.
    pub(super) fn captured(&self) -> &[StreamId] {
        &self.captured
    }

    pub(super) fn set_captured(&mut self, captured: Vec<StreamId>) {
        self.captured = captured;
    }

    /// Adds a stream to the open capture.
    pub(super) fn join_capture(&mut self, stream: StreamId) {
        self.captured.push(stream);
    }

    pub(super) fn is_captured(&self, stream: StreamId) -> bool {
        self.captured.contains(&stream)
    }

    /// True if any stream so far was a default stream or one that another library may destroy.
    pub(super) fn had_foreign(&self) -> bool {
        self.had_foreign
    }

    pub(super) fn end_all(&mut self, device: &Device) -> Result<(), String> {
        let live = std::mem::take(&mut self.live);
        live.into_iter().try_for_each(|stream| self.end(stream, true).map(drop))?;
        self.long_lived.drain(..).try_for_each(|(id, raw)| {
            // SAFETY: the stream is alive until it is destroyed below.
            let stream = unsafe { Stream::from_raw_long_lived(device, raw).map_err(text)? };
            if stream.id() != id {
                return Err(format!("{id} has come again as {}", stream.id()));
            }
            stream.retire().map_err(text)?;
            destroy(device, raw)
        })
    }

    pub(super) fn pick(&self, pick: Pick) -> Option<Stream> {
        pick.of(self.live.len()).map(|index| self.live[index].clone())
    }

    /// The name in the transcript: `s0` for the first stream.
    pub(super) fn name(&self, stream: &Stream) -> String {
        format!("s{}", self.place(stream))
    }

    /// The index in order of creation. A program creates fewer streams than the sink has slots.
    pub(super) fn place(&self, stream: &Stream) -> usize {
        self.ids.iter().position(|id| *id == stream.id()).unwrap_or(0)
    }

    /// Waits on the host for a past use.
    pub(super) fn finish(&self, user: &User) -> Result<(), String> {
        match user {
            User::Gone(event) => event.synchronize().map_err(text),
            User::Stream(id) => self.find(*id)?.synchronize().map_err(text),
        }
    }

    /// True if a stream can wait for all past uses without joining a capture.
    pub(super) fn can_order(&self, uses: &Uses, stream: &Stream) -> bool {
        let is_captured =
            |user: &User| matches!(user, User::Stream(id) if self.is_captured(*id) && *id != stream.id());
        !uses.readers.iter().chain(&uses.writer).any(is_captured)
    }

    /// True if the host can wait for all past uses.
    pub(super) fn can_finish(&self, uses: &Uses) -> bool {
        let is_captured = |user: &User| matches!(user, User::Stream(id) if self.is_captured(*id));
        !uses.readers.iter().chain(&uses.writer).any(is_captured)
    }

    /// Makes a stream wait for the past uses that conflict with a new one, and records the new one. Returns the transcript of the
    /// waits.
    pub(super) fn order_uses(
        &self,
        uses: &mut Uses,
        stream: &Stream,
        writes: bool,
        wait: Wait,
    ) -> Result<String, String> {
        let mut said = String::new();
        let readers: &[User] = if writes { &uses.readers } else { &[] };
        for user in readers.iter().chain(&uses.writer) {
            said += &self.order(stream, user, wait)?;
        }
        uses.enter(stream, writes);
        Ok(said)
    }

    /// Waits on the host for all past uses.
    pub(super) fn finish_uses(&self, uses: &Uses) -> Result<(), String> {
        uses.readers.iter().chain(&uses.writer).try_for_each(|user| self.finish(user))
    }

    /// Makes a stream wait for a past use, unless it is on the same stream. Returns the transcript of the wait.
    pub(super) fn order(&self, stream: &Stream, user: &User, wait: Wait) -> Result<String, String> {
        let other = match user {
            User::Stream(id) if *id == stream.id() => return Ok(String::new()),
            User::Stream(id) => self.find(*id)?,
            User::Gone(event) => {
                match wait {
                    Wait::Host => event.synchronize().map_err(text)?,
                    Wait::Fence | Wait::Event => stream.wait(event).map_err(text)?,
                }
                return Ok(format!("{} waits for a stream that is gone; ", self.name(stream)));
            }
        };
        match wait {
            Wait::Fence => stream.wait_for(other).map_err(text)?,
            Wait::Host => other.synchronize().map_err(text)?,
            Wait::Event => {
                let event = Event::new(stream.device()).map_err(text)?;
                event.record(other).map_err(text)?;
                stream.wait(&event).map_err(text)?;
            }
        }
        Ok(format!("{} waits for {} ({wait:?}); ", self.name(stream), self.name(other)))
    }

    pub(super) fn find(&self, id: StreamId) -> Result<&Stream, String> {
        self.live.iter().find(|stream| stream.id() == id).ok_or_else(|| format!("{id} is not in the list"))
    }
}

impl Uses {
    /// The uses of memory that was just allocated on a stream.
    pub(super) fn of(stream: &Stream) -> Self {
        Self { writer: Some(User::Stream(stream.id())), ..Self::default() }
    }

    /// Records a use.
    pub(super) fn enter(&mut self, stream: &Stream, writes: bool) {
        self.count += 1;
        if writes {
            self.readers.clear();
            self.writer = Some(User::Stream(stream.id()));
        } else {
            self.readers.push(User::Stream(stream.id()));
        }
    }

    /// Replaces a stream that is being dropped by an event behind its work.
    pub(super) fn replace(&mut self, stream: &Stream, event: &Rc<Event>) {
        for user in self.readers.iter_mut().chain(&mut self.writer) {
            if matches!(user, User::Stream(id) if *id == stream.id()) {
                *user = User::Gone(Rc::clone(event));
            }
        }
    }
}

/// Destroys a stream created by `foreign`. No handle to it is left.
fn destroy(device: &Device, raw: CUstream) -> Result<(), String> {
    let _bound = device.bind().map_err(text)?;
    // SAFETY: the caller guarantees that the stream is unused.
    unsafe { device.driver().cuStreamDestroy_v2(raw).map_err(text) }
}

/// Creates a stream like another library does.
fn foreign(device: &Device, kind: Kind) -> Result<Stream, DeviceError> {
    let _bound = device.bind()?;
    let mut raw = std::ptr::null_mut();
    // SAFETY: `raw` outlives the call; `end` destroys the stream after the last clone is dropped or the stream is retired.
    unsafe {
        device.driver().cuStreamCreate(&mut raw, CUstream_flags::CU_STREAM_NON_BLOCKING.0)?;
        match kind {
            Kind::LongLived => Stream::from_raw_long_lived(device, raw),
            _ => Stream::from_raw(device, raw),
        }
    }
}

const STREAMS_MAX: usize = 6;

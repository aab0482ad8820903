//! The streams of a running case: their names, who of them used a block, and how one waits for another.

use super::operation::{Kind, Pick, Wait};
use super::world::text;
use crate::pool::{Device, Event, PoolError, Stream, StreamId};
use crate::sys::types::CUstream_flags;
use std::rc::Rc;

/// The streams that the user still has, and the names of all that there were.
pub(super) struct Streams {
    live: Vec<Stream>,
    /// In the order in which they were made.
    ids: Vec<StreamId>,
    /// Those that somebody else made.
    foreign: Vec<StreamId>,
    had_foreign: bool,
}

/// What a block's users are waited for by.
#[derive(Clone)]
pub(super) enum User {
    /// A stream that the user of the pool still has.
    Stream(StreamId),
    /// An event recorded when he let the stream go.
    Gone(Rc<Event>),
}

impl Streams {
    pub(super) fn new(live: Vec<Stream>) -> Self {
        Self { ids: live.iter().map(Stream::id).collect(), live, foreign: Vec::new(), had_foreign: false }
    }

    /// One more, unless there are many.
    pub(super) fn make(&mut self, kind: Kind, device: &Device) -> Result<Option<Stream>, String> {
        if self.live.len() >= STREAMS_MAX {
            return Ok(None);
        }
        let stream = match kind {
            Kind::Own => Stream::new(device),
            Kind::NoWaits => Stream::builder(device).no_waits().build(),
            Kind::Foreign => foreign(device),
        };
        let stream = stream.map_err(text)?;
        self.ids.push(stream.id());
        if kind == Kind::Foreign {
            self.foreign.push(stream.id());
            self.had_foreign = true;
        }
        self.live.push(stream.clone());
        Ok(Some(stream))
    }

    /// One less, unless it is the last.
    pub(super) fn take(&mut self, pick: Pick) -> Option<Stream> {
        let index = pick.of(self.live.len()).filter(|_| self.live.len() > 1)?;
        Some(self.live.remove(index))
    }

    /// Drops a stream that is not in the list any more; its maker destroys it. Says whether it was retired.
    pub(super) fn end(&mut self, stream: Stream, retires: bool) -> Result<bool, String> {
        let Some(index) = self.foreign.iter().position(|id| *id == stream.id()) else { return Ok(false) };
        self.foreign.swap_remove(index);
        if retires {
            stream.retire().map_err(text)?;
        }
        let (device, raw) = (stream.device().clone(), stream.raw());
        drop(stream);
        let _bound = device.bind().map_err(text)?;
        // SAFETY: it was made in `foreign`, and nobody names it from here on.
        unsafe { device.driver().cuStreamDestroy_v2(raw).map_err(text)? };
        Ok(retires)
    }

    /// Whether there ever was one that somebody else made.
    pub(super) fn had_foreign(&self) -> bool {
        self.had_foreign
    }

    pub(super) fn end_all(&mut self) -> Result<(), String> {
        let live = std::mem::take(&mut self.live);
        live.into_iter().try_for_each(|stream| self.end(stream, true).map(drop))
    }

    pub(super) fn pick(&self, pick: Pick) -> Option<Stream> {
        pick.of(self.live.len()).map(|index| self.live[index].clone())
    }

    /// `s0` for the first that there was.
    pub(super) fn name(&self, stream: &Stream) -> String {
        format!("s{}", self.place(stream))
    }

    /// Its number, below a hundred and some: a program is not longer.
    pub(super) fn place(&self, stream: &Stream) -> usize {
        self.ids.iter().position(|id| *id == stream.id()).unwrap_or(0)
    }

    /// The host waits for a user.
    pub(super) fn finish(&self, user: &User) -> Result<(), String> {
        match user {
            User::Gone(event) => event.synchronize().map_err(text),
            User::Stream(id) => self.find(*id)?.synchronize().map_err(text),
        }
    }

    /// Makes a stream wait for a user; nothing where the order is there already. Says what was done.
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

    fn find(&self, id: StreamId) -> Result<&Stream, String> {
        self.live.iter().find(|stream| stream.id() == id).ok_or_else(|| format!("{id} is not in the list"))
    }
}

impl User {
    pub(super) fn is(&self, stream: &Stream) -> bool {
        matches!(self, Self::Stream(id) if *id == stream.id())
    }
}

/// A stream as another library makes it.
fn foreign(device: &Device) -> Result<Stream, PoolError> {
    let _bound = device.bind()?;
    let mut raw = std::ptr::null_mut();
    // SAFETY: `raw` outlives the call; the stream is destroyed in `end`, when no clone is left.
    unsafe {
        device.driver().cuStreamCreate(&mut raw, CUstream_flags::CU_STREAM_NON_BLOCKING.0)?;
        Stream::from_raw(device, raw)
    }
}

const STREAMS_MAX: usize = 6;

//! The streams of a running case: their names, who of them used a block, and how one waits for another.

use super::operation::{Pick, Wait};
use super::world::text;
use crate::pool::{Device, Event, Stream, StreamId};
use std::rc::Rc;

/// The streams that the user still has, and the names of all that there were.
pub(super) struct Streams {
    live: Vec<Stream>,
    /// In the order in which they were made.
    ids: Vec<StreamId>,
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
        Self { ids: live.iter().map(Stream::id).collect(), live }
    }

    /// One more, unless there are many.
    pub(super) fn make(&mut self, device: &Device) -> Result<Option<Stream>, String> {
        if self.live.len() >= STREAMS_MAX {
            return Ok(None);
        }
        let stream = Stream::new(device).map_err(text)?;
        self.ids.push(stream.id());
        self.live.push(stream.clone());
        Ok(Some(stream))
    }

    /// One less, unless it is the last.
    pub(super) fn take(&mut self, pick: Pick) -> Option<Stream> {
        let index = pick.of(self.live.len()).filter(|_| self.live.len() > 1)?;
        Some(self.live.remove(index))
    }

    pub(super) fn keep_one(&mut self) {
        self.live.truncate(1);
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

const STREAMS_MAX: usize = 6;

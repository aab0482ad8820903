//! Operations on streams and events: create, record, wait, query.

use super::coverage::Coverage;
use super::faults::Fault;
use super::operation::{Kind, Pick};
use super::step::{Step, text};
use super::world::World;
use crate::pool::Event;
use std::rc::Rc;

impl World<'_> {
    pub(super) fn new_stream(&mut self, kind: Kind, said: &mut Vec<String>) -> Step {
        if let Some(stream) = self.streams.make(kind, &self.device)? {
            said.push(format!("let {} = a stream ({kind:?})", self.streams.name(&stream)));
        }
        Ok(())
    }

    pub(super) fn drop_stream(&mut self, pick: Pick, retires: bool, said: &mut Vec<String>) -> Step {
        let Some(stream) = self.streams.take(pick) else { return Ok(()) };
        let name = self.streams.name(&stream);
        let event = Event::new(&self.device).map_err(text)?;
        event.record(&stream).map_err(text)?;
        let event = Rc::new(event);
        self.blocks.iter_mut().for_each(|live| live.uses.replace(&stream, &event));
        self.kept.iter_mut().for_each(|kept| kept.uses.replace(&stream, &event));
        self.growing.iter_mut().for_each(|growing| growing.uses.replace(&stream, &event));
        let retired = if self.streams.end(stream, retires)? { " // retired before" } else { "" };
        said.push(format!("drop({name}){retired}"));
        Ok(())
    }

    pub(super) fn mark(
        &mut self,
        pick: Pick,
        fault: Option<Fault>,
        coverage: &mut Coverage,
        said: &mut Vec<String>,
    ) -> Step {
        let Some(stream) = self.streams.pick(pick).filter(|_| self.marks.len() < MARKS_MAX) else {
            return Ok(());
        };
        // An event recorded in a capture orders no work outside of it.
        if self.streams.is_captured(stream.id()) {
            return Ok(());
        }
        let event = Event::new(&self.device).map_err(text)?;
        said.push(format!("let e{} = an event recorded on {}", self.marks.len(), self.streams.name(&stream)));
        if self
            .refusable("record", fault, coverage, said, |_| event.record(&stream).map_err(Into::into))?
            .is_some()
        {
            self.marks.push(event);
        }
        Ok(())
    }

    pub(super) fn wait_for_mark(
        &mut self,
        (pick, mark, fault): (Pick, Pick, Option<Fault>),
        coverage: &mut Coverage,
        said: &mut Vec<String>,
    ) -> Step {
        let (Some(stream), Some(mark)) = (self.streams.pick(pick), mark.of(self.marks.len())) else {
            return Ok(());
        };
        said.push(format!("{}.wait(&e{mark})", self.streams.name(&stream)));
        self.refusable("wait", fault, coverage, said, |world| {
            stream.wait(&world.marks[mark]).map_err(Into::into)
        })
        .map(drop)
    }

    pub(super) fn ask_mark(&mut self, mark: Pick, waits: bool, said: &mut Vec<String>) -> Step {
        let Some(mark) = mark.of(self.marks.len()) else { return Ok(()) };
        said.push(format!("e{mark}.{}()", if waits { "synchronize" } else { "is_complete" }));
        let event = &self.marks[mark];
        if waits { event.synchronize() } else { event.is_complete().map(drop) }.map_err(text)
    }
}

const MARKS_MAX: usize = 8;

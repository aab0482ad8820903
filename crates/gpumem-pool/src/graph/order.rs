//! Waits and queries while streams capture. A captured stream waits for nothing outside of its capture: what it is asked
//! to wait for there, each launch waits for instead, and the stream itself once the capture has ended.

use crate::clock::Part;
use crate::context::Relaxed;
use crate::device::Device;
use crate::error::PoolError;
use crate::event::Event;
use crate::stream::Stream;

impl Stream {
    /// What is done now with what is queued on it; the caller has it in his hands.
    pub(crate) fn part(&self) -> Result<Part, PoolError> {
        Ok(self.clocks().part(self.stream_index())?)
    }

    /// Whether a wait could make it part of a capture now: one goes on, and it is part of none.
    pub(crate) fn may_join(&self) -> Result<bool, PoolError> {
        Ok(self.clocks().holds().is_open() && self.part()? == Part::Runs)
    }

    /// Refuses what the driver would break a capture for.
    pub(crate) fn check_runs(&self, operation: &'static str) -> Result<(), PoolError> {
        if !self.clocks().holds().is_open() {
            return Ok(());
        }
        match self.part()? {
            Part::Runs => Ok(()),
            Part::In(_) => Err(PoolError::NotInCapture { operation }),
            Part::Broken => Err(PoolError::CaptureBroken),
        }
    }

    /// Whether a wait for another stream has been left to the launches.
    pub(crate) fn defers_wait_for(&self, other: &Stream) -> Result<bool, PoolError> {
        if !self.clocks().holds().is_open() || self == other {
            return Ok(false);
        }
        let holds = self.clocks().holds();
        match (self.part()?, other.part()?) {
            (Part::Broken, _) | (_, Part::Broken) => Err(PoolError::CaptureBroken),
            (Part::In(graph), Part::Runs) if holds.knows(graph) => {
                let _relaxed = Relaxed::enter(self.device().driver())?;
                holds.add_after(graph, self.stream_index(), self.clocks().marked(other.stream_index())?);
                Ok(true)
            }
            (Part::In(graph), Part::In(other)) if graph != other => {
                Err(PoolError::NotInCapture { operation: "waiting for another capture" })
            }
            _ => Ok(false),
        }
    }

    /// After a wait that may have made it part of a capture, on a device where none was perhaps.
    pub(crate) fn note_joined(&self) {
        let holds = self.clocks().holds();
        if holds.is_open()
            && let Ok(Part::In(graph)) = self.part()
        {
            holds.join(graph, self);
        }
    }

    /// Whether a wait for an event has been left to the launches.
    pub(crate) fn defers_wait(&self, event: &Event) -> Result<bool, PoolError> {
        let holds = self.clocks().holds();
        let captured_in = event.captured_in();
        // The driver would break the capture that the stream is part of: a mark of another capture has no place outside it.
        if captured_in.is_some_and(|graph| !holds.knows(graph)) {
            return Err(PoolError::NotInCapture {
                operation: "waiting for a mark of a capture that has ended",
            });
        }
        if !holds.is_open() {
            return Ok(false);
        }
        match (self.part()?, event.mark()) {
            (Part::Broken, _) => Err(PoolError::CaptureBroken),
            (Part::In(graph), _) if captured_in.is_some_and(|other| other != graph) => {
                Err(PoolError::NotInCapture { operation: "waiting for another capture" })
            }
            (Part::In(_), _) if event.is_blank() => Ok(true),
            (Part::In(graph), Some(mark)) if holds.knows(graph) => {
                let waited_for = match self.clocks().can_be_ordered(mark) {
                    true => Some(mark),
                    // A stream of others can't be marked later. The capture's own waits now, and stands for the event then.
                    false => {
                        let _relaxed = Relaxed::enter(self.device().driver())?;
                        let source = self.source_of(graph)?;
                        event.make_wait(&source)?;
                        self.clocks().marked(source.stream_index())?
                    }
                };
                holds.add_after(graph, self.stream_index(), waited_for);
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}

impl Device {
    /// Refuses what the driver would break captures of this device for.
    pub(crate) fn check_runs(&self, operation: &'static str) -> Result<(), PoolError> {
        match self.clocks().holds().captures_on(self) {
            true => Err(PoolError::NotInCapture { operation }),
            false => Ok(()),
        }
    }
}

//! Waits and queries while streams capture. A captured stream waits for nothing outside of its capture: what it is asked
//! to wait for there, each launch waits for instead, and the stream itself once the capture has ended.

use crate::device::{CaptureModeGuard, Device, Event, Part, Stream, StreamIndex};
use crate::error::PoolError;
use gpumem_sys::DriverError;

impl Stream {
    /// What is done now with what is queued on it; the caller has it in his hands.
    pub(crate) fn part(&self) -> Result<Part, PoolError> {
        Ok(self.clocks().part(self.stream_index())?)
    }

    /// Whether a wait could make it part of a capture now: one goes on, and it is part of none.
    pub(crate) fn may_join(&self) -> Result<bool, PoolError> {
        Ok(self.clocks().captures().is_open() && self.part()? == Part::Runs)
    }

    /// Refuses what the driver would break a capture for.
    pub(crate) fn check_runs(&self, operation: &'static str) -> Result<(), PoolError> {
        if !self.clocks().captures().is_open() {
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
        if !self.clocks().captures().is_open() || self == other {
            return Ok(false);
        }
        let captures = self.clocks().captures();
        match (self.part()?, other.part()?) {
            (Part::Broken, _) | (_, Part::Broken) => Err(PoolError::CaptureBroken),
            (Part::In(graph), Part::Runs) if captures.knows(graph) => {
                let _relaxed = CaptureModeGuard::enter(self.device().driver())?;
                captures.add_after(graph, self.stream_index(), self.clocks().marked(other.stream_index())?);
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
        let captures = self.clocks().captures();
        if captures.is_open()
            && let Ok(Part::In(graph)) = self.part()
        {
            captures.join(graph, self);
        }
    }

    /// Whether a wait for an event has been left to the launches.
    pub(crate) fn defers_wait(&self, event: &Event) -> Result<bool, PoolError> {
        let captures = self.clocks().captures();
        let captured_in = event.captured_in();
        // The driver would break the capture that the stream is part of: a mark of another capture has no place outside it.
        if captured_in.is_some_and(|graph| !captures.knows(graph)) {
            return Err(PoolError::NotInCapture {
                operation: "waiting for a mark of a capture that has ended",
            });
        }
        if !captures.is_open() {
            return Ok(false);
        }
        match (self.part()?, event.mark()) {
            (Part::Broken, _) => Err(PoolError::CaptureBroken),
            (Part::In(graph), _) if captured_in.is_some_and(|other| other != graph) => {
                Err(PoolError::NotInCapture { operation: "waiting for another capture" })
            }
            (Part::In(_), _) if event.is_blank() => Ok(true),
            (Part::In(graph), Some(mark)) if captures.knows(graph) => {
                let waited_for = match self.clocks().can_be_ordered(mark) {
                    true => Some(mark),
                    // A stream of others can't be marked later. The capture's own waits now, and stands for the event then.
                    false => {
                        let _relaxed = CaptureModeGuard::enter(self.device().driver())?;
                        let source = self.source_of(graph)?;
                        event.make_wait(&source)?;
                        self.clocks().marked(source.stream_index())?
                    }
                };
                captures.add_after(graph, self.stream_index(), waited_for);
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}

impl Device {
    /// Refuses what the driver would break captures of this device for.
    pub(crate) fn check_runs(&self, operation: &'static str) -> Result<(), PoolError> {
        match self.clocks().captures().captures_on(self) {
            true => Err(PoolError::NotInCapture { operation }),
            false => Ok(()),
        }
    }
}

impl Stream {
    /// A stream of the capture's own, which never captures.
    pub(crate) fn source_of(&self, graph: u64) -> Result<Self, PoolError> {
        let (device, captures) = (self.device(), self.clocks().captures());
        match captures.source(graph) {
            Some(source) => Ok(source),
            None => {
                let _relaxed = CaptureModeGuard::enter(device.driver())?;
                Ok(captures.set_source(graph, Self::new(device)?))
            }
        }
    }

    /// The capture that it is part of, if that was begun here.
    pub(crate) fn captures_for(&self) -> Result<Option<u64>, PoolError> {
        let captures = self.clocks().captures();
        match self.part()? {
            Part::In(graph) if captures.knows(graph) => Ok(Some(graph)),
            Part::Broken if captures.capture_of(self.stream_index(), true).is_some() => {
                Err(PoolError::CaptureBroken)
            }
            _ => Ok(None),
        }
    }
}

/// Ends a capture that this thread has begun, which kept the end of a borrow from waiting for the device: the borrowed memory
/// comes before the graph. [`Capture::end`](crate::Capture::end) says that the capture is broken.
pub(crate) fn cut_short(device: &Device, graph: u64, origin: StreamIndex) {
    let clocks = device.clocks();
    let members = clocks.captures().members(graph);
    let _alone = Stream::close_for_end(&members);
    if clocks.captures().end_begins(graph) {
        // If the driver refuses, the next try to wait finds that out.
        let _ = clocks.discard_capture(origin);
        let _ = run_again(device, graph, origin);
    }
}

/// The capture is over: its streams wait for what they were asked to wait for meanwhile.
pub(crate) fn run_again(device: &Device, graph: u64, origin: StreamIndex) -> Result<(), DriverError> {
    let clocks = device.clocks();
    let waits = clocks.captures().end(graph, clocks);
    let ours =
        waits.into_iter().filter(|(slot, _)| *slot == origin || clocks.own_part(*slot) == Some(Part::Runs));
    let mut refused = None;
    // Every wait is tried, also behind one that was refused.
    for (slot, stamp) in ours {
        refused = clocks.order_launch(stamp, slot).err().or(refused);
    }
    match refused {
        // Nothing asks for these waits again, and blocks of the capture may live on: the host waits instead.
        Some(error) if !clocks.finish_everything(device)? => Err(error),
        _ => Ok(()),
    }
}

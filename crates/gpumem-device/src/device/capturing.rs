//! Waits and queries while streams capture. A captured stream cannot wait for work outside its capture. Such a wait is
//! deferred: each launch performs it instead, and so does the stream itself once the capture has ended.

use crate::device::{CaptureModeGuard, CapturePart, Event, Stamp, Stream};
use crate::error::{CaptureError, DeviceError, not_forked};

impl Stream {
    /// True if work queued on this stream now becomes part of a capture, which `Capture::begin` began on this stream or on one
    /// that it has waited for.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Stream`], [`DeviceError::Driver`] and [`DeviceError::DeviceLost`] as
    /// for [`Stream::synchronize`].
    #[inline]
    pub fn is_capturing(&self) -> Result<bool, DeviceError> {
        self.check_usable()?;
        if self.clocks().captures().is_open() { self.is_part_of_capture() } else { Ok(false) }
    }

    #[cold]
    fn is_part_of_capture(&self) -> Result<bool, DeviceError> {
        not_forked()?;
        Ok(self.part()? != CapturePart::Runs)
    }

    /// True if work queued on the stream now runs, and false if it is captured. The call must name the stream.
    #[doc(hidden)]
    #[inline]
    pub fn part(&self) -> Result<CapturePart, DeviceError> {
        Ok(self.clocks().part(self.stream_index())?)
    }

    /// True if a wait could make the stream join a capture: one is active, and the stream is in none.
    pub(crate) fn may_join(&self) -> Result<bool, DeviceError> {
        Ok(self.clocks().captures().is_open() && self.part()? == CapturePart::Runs)
    }

    /// Refuses an operation that would make the driver break the capture.
    #[doc(hidden)]
    pub fn check_runs(&self, operation: &'static str) -> Result<(), DeviceError> {
        if !self.clocks().captures().is_open() {
            return Ok(());
        }
        match self.part()? {
            CapturePart::Runs => Ok(()),
            CapturePart::In(_) => Err(DeviceError::Capture(CaptureError::NotCapturable { operation })),
            CapturePart::Broken => Err(DeviceError::Capture(CaptureError::Broken)),
        }
    }

    /// True if a wait for another stream was deferred to the launches.
    pub(crate) fn defers_wait_for(&self, other: &Stream) -> Result<bool, DeviceError> {
        if !self.clocks().captures().is_open() || self == other {
            return Ok(false);
        }
        let captures = self.clocks().captures();
        match (self.part()?, other.part()?) {
            (CapturePart::Broken, _) | (_, CapturePart::Broken) => {
                Err(DeviceError::Capture(CaptureError::Broken))
            }
            (CapturePart::In(graph), CapturePart::Runs) if captures.knows(graph) => {
                let _relaxed = CaptureModeGuard::enter(self.device().driver())?;
                captures.add_after(graph, self.stream_index(), [other.marked()?]);
                Ok(true)
            }
            (CapturePart::In(graph), CapturePart::In(other)) if graph != other => {
                Err(DeviceError::Capture(CaptureError::NotCapturable {
                    operation: "waiting for another capture",
                }))
            }
            _ => Ok(false),
        }
    }

    /// Records the capture that a wait may have made the stream join. Its device may have had no capture before.
    pub(crate) fn note_joined(&self) {
        let captures = self.clocks().captures();
        if captures.is_open()
            && let Ok(CapturePart::In(graph)) = self.part()
        {
            captures.join(graph, &self.shared());
        }
    }

    /// True if a wait for an event was deferred to the launches.
    pub(crate) fn defers_wait(&self, event: &Event) -> Result<bool, DeviceError> {
        let captures = self.clocks().captures();
        let captured_in = event.captured_in();
        // The driver would break the stream's capture: an event recorded in another capture is meaningless outside it.
        if captured_in.is_some_and(|graph| !captures.knows(graph)) {
            return Err(DeviceError::Capture(CaptureError::NotCapturable {
                operation: "waiting for an event of a capture that has ended",
            }));
        }
        if !captures.is_open() {
            return Ok(false);
        }
        match (self.part()?, event.mark()) {
            (CapturePart::Broken, _) => Err(DeviceError::Capture(CaptureError::Broken)),
            (CapturePart::In(graph), _) if captured_in.is_some_and(|other| other != graph) => {
                Err(DeviceError::Capture(CaptureError::NotCapturable {
                    operation: "waiting for another capture",
                }))
            }
            (CapturePart::In(_), _) if event.is_blank() => Ok(true),
            (CapturePart::In(graph), Some(mark)) if captures.knows(graph) => {
                let waited_for = match self.clocks().can_be_ordered(mark) {
                    true => mark,
                    // Another library's stream may not be marked later, so the capture's own stream waits now and represents the event.
                    false => {
                        let _relaxed = CaptureModeGuard::enter(self.device().driver())?;
                        let source = self.source_of(graph)?;
                        event.make_wait(&source)?;
                        source.marked()?
                    }
                };
                captures.add_after(graph, self.stream_index(), [waited_for]);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// A stream that belongs to the capture and never captures.
    #[doc(hidden)]
    pub fn source_of(&self, graph: u64) -> Result<Self, DeviceError> {
        let (device, captures) = (self.device(), self.clocks().captures());
        match captures.source(graph).and_then(Self::of_shared) {
            Some(source) => Ok(source),
            None => {
                let _relaxed = CaptureModeGuard::enter(device.driver())?;
                let source = Self::new(device)?;
                Ok(Self::of_shared(captures.set_source(graph, source.shared())).unwrap_or(source))
            }
        }
    }

    /// A stamp for everything queued on the stream so far, with a marker, so that a deferred wait can follow it.
    fn marked(&self) -> Result<Stamp, DeviceError> {
        if let Some(marked) = self.clocks().marked(self.stream_index())? {
            return Ok(marked);
        }
        // Another thread has retired it, the driver does not report whether it captures, or it has begun to capture.
        self.check_usable()?;
        self.part()?;
        Err(DeviceError::Capture(CaptureError::NotCapturable {
            operation: "waiting for a stream that captures",
        }))
    }

    /// The capture that the stream is part of, if this crate began it.
    #[doc(hidden)]
    pub fn captures_for(&self) -> Result<Option<u64>, DeviceError> {
        let captures = self.clocks().captures();
        match self.part()? {
            CapturePart::In(graph) if captures.knows(graph) => Ok(Some(graph)),
            CapturePart::Broken if captures.capture_of(self.stream_index(), true).is_some() => {
                Err(DeviceError::Capture(CaptureError::Broken))
            }
            _ => Ok(None),
        }
    }
}

//! Captures at the level of a stream's state: begun and ended under its lock, so that no marker is recorded in between.

use super::clocks::Clocks;
use super::stream_state::{Asker, Locked};
use crate::device::objects::Object;
use crate::device::primary::PrimaryContext;
use gpumem_base::order::{Order, Stamp, StreamIndex};
use gpumem_sys::DriverError;
use gpumem_sys::types::{CUgraph, CUresult, CUstreamCaptureMode, CUstreamCaptureStatus as Status};

/// The effect of queueing work on a stream now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapturePart {
    /// It runs.
    Runs,
    /// It becomes part of a capture with this number of the driver's.
    In(u64),
    /// It is refused: the capture is broken and has not ended yet.
    Broken,
}

impl Clocks {
    /// Begins a capture on a stream that the call names. Returns the driver's number for it; `None` if the stream is
    /// gone. Work queued before is marked first: it can then be waited for while the stream captures.
    pub fn begin_capture(
        &self,
        index: StreamIndex,
        mode: CUstreamCaptureMode,
    ) -> Result<Option<u64>, DriverError> {
        self.with_stream_state(index, |state| {
            let Some(raw) = state.raw() else { return Ok(None) };
            self.mark_before_capture(state, index)?;
            // SAFETY: the stream is alive, because its user named it.
            unsafe { state.device.driver().cuStreamBeginCapture_v2(raw, mode)? };
            match state.part() {
                Ok(CapturePart::In(id)) => {
                    state.set_captured(id, self.stamp(index).epoch());
                    Ok(Some(id))
                }
                other => {
                    // Ended here, because no later operation would end it.
                    destroy(state, state.end_capture()?);
                    other.map(|_| None)
                }
            }
        })
        .map(Option::flatten)
    }

    /// Marks the work queued on a stream that the call names, unless it is complete: a capturing stream takes no
    /// marker.
    pub(super) fn mark_before_capture(
        &self,
        state: &mut Locked<'_>,
        index: StreamIndex,
    ) -> Result<(), DriverError> {
        if self.is_complete(self.stamp(index)) {
            Ok(())
        } else {
            state.record_marker(index, &self.epochs, Asker::User).map(drop)
        }
    }

    /// Records that a wait may have made the stream join a capture. The work queued before was marked; everything
    /// queued from here on belongs to the capture.
    pub(super) fn note_captured(&self, state: &mut Locked<'_>, index: StreamIndex) {
        if let Ok(CapturePart::In(id)) = state.part() {
            state.set_captured(id, self.stamp(index).epoch());
        }
    }

    /// Ends the capture that was begun on a stream. Afterwards the stream runs work again, even if the capture failed,
    /// unless this is the wrong thread.
    pub(crate) fn end_capture(&self, index: StreamIndex) -> Result<CUgraph, DriverError> {
        let end = || self.with_stream_state(index, |state| state.end_capture());
        let mut ended = end();
        for _ in 0..TRIES {
            // A broken or unjoined capture has ended with that error. After any other error it may be active, and no
            // later operation would end it.
            if ended.is_ok() || matches!(self.part(index), Ok(CapturePart::Runs)) {
                break;
            }
            ended = end().or(ended);
        }
        Ok(ended?.unwrap_or(core::ptr::null_mut()))
    }

    /// True if any owned or long-lived stream of a device is capturing, in a capture of any thread or library.
    pub(crate) fn has_capture(&self, device: &PrimaryContext) -> bool {
        let captures = |index: StreamIndex| {
            self.with_stream_state(index, |state| Ok(state.is_ours() && state.part()? != CapturePart::Runs))
        };
        self.indices_on(device).any(|index| matches!(captures(index), Ok(Some(true))))
    }

    /// The streams of one device. Their states can be locked without another device's context.
    fn indices_on(&self, device: &PrimaryContext) -> impl Iterator<Item = StreamIndex> {
        self.used_indices()
            .filter(|index| self.stream_states.lock(*index).is_some_and(|state| *state.device == *device))
    }

    /// Ends captures on a device's streams that were begun without this crate, if the driver lets this thread end them (its own, and
    /// relaxed ones of any thread), and discards their graphs. False if there are none. The caller prevents captures of this crate from
    /// beginning.
    pub(crate) fn end_others_captures(&self, device: &PrimaryContext) -> bool {
        let end = |index: &StreamIndex| {
            self.with_stream_state(*index, |state| {
                let is_others = state.is_ours()
                    && match state.part()? {
                        CapturePart::Runs => false,
                        CapturePart::In(graph) => !self.captures.knows(graph),
                        CapturePart::Broken => self.captures.capture_of(*index, false).is_none(),
                    };
                if is_others {
                    destroy(state, state.end_capture()?);
                }
                Ok(is_others)
            })
        };
        // A stream that joined a capture cannot end it: the driver refuses that, and accepts its first stream.
        self.indices_on(device).filter(|index| matches!(end(index), Ok(Some(true)))).count() > 0
    }

    /// The capture state of a stream. For another library's stream, only inside a call that names it.
    #[inline]
    pub fn part(&self, index: StreamIndex) -> Result<CapturePart, DriverError> {
        self.with_stream_state(index, |state| state.part()).map(|part| part.unwrap_or(CapturePart::Runs))
    }

    /// Like [`Clocks::part`], in any call: `None` for another library's stream.
    pub fn own_part(&self, index: StreamIndex) -> Option<CapturePart> {
        self.with_stream_state(index, |state| if state.is_ours() { state.part().map(Some) } else { Ok(None) })
            .unwrap_or_default()
            .flatten()
    }

    /// Makes a stream that the call names wait for a stamp. False if the stamp's stream cannot be marked now.
    pub fn order_launch(&self, stamp: Stamp, waiter: StreamIndex) -> Result<bool, DriverError> {
        if self.is_ordered(stamp, waiter) {
            return Ok(true);
        }
        let Some((_device, mark)) = self.marker_for(stamp, |_| true)? else {
            // The driver may have failed to report whether the stream captures: that error is returned here.
            let says = |state: &mut Locked<'_>| if state.is_ours() { state.part().map(drop) } else { Ok(()) };
            self.with_stream_state(stamp.stream_index(), says)?;
            return Ok(false);
        };
        self.queue_wait(waiter, mark.event.raw(), Some(&mark.covered)).map(|_| true)
    }

    /// True if a stream can be made to wait for a stamp in a call that does not name the stamp's stream.
    pub fn can_be_ordered(&self, stamp: Stamp) -> bool {
        let state = self.stream_states.lock(stamp.stream_index());
        self.is_complete(stamp)
            || state.is_some_and(|state| state.is_ours() || state.marker_of(stamp).is_some())
    }

    /// A stamp for everything queued so far on a stream that the call names, with a marker that covers it. `None` if
    /// the stream cannot be marked now.
    pub(crate) fn marked(&self, index: StreamIndex) -> Result<Option<Stamp>, DriverError> {
        let stamp = self.stamp(index);
        Ok(self.record_marker_by_user(index)?.then_some(stamp))
    }
}

impl Locked<'_> {
    /// The capture state of the stream, as the driver reports it. The context is current.
    pub(super) fn part(&self) -> Result<CapturePart, DriverError> {
        let Some(raw) = self.raw() else { return Ok(CapturePart::Runs) };
        if self.device.driver().table().cuStreamGetCaptureInfo.is_none() {
            return Ok(CapturePart::Runs);
        }
        let (mut status, mut id) = (Status::CU_STREAM_CAPTURE_STATUS_NONE, 0);
        // SAFETY: both outlive the call; the stream is alive while the state is locked, or its user named it.
        match unsafe { self.device.driver().cuStreamGetCaptureInfo(raw, &mut status, &mut id) } {
            // The null stream does not capture, but a stream that it synchronizes with may.
            Err(error) if error.code() == CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => {
                Ok(CapturePart::Runs)
            }
            answer => answer.map(|()| match status {
                Status::CU_STREAM_CAPTURE_STATUS_NONE => CapturePart::Runs,
                Status::CU_STREAM_CAPTURE_STATUS_ACTIVE => CapturePart::In(id),
                _ => CapturePart::Broken,
            }),
        }
    }

    /// Ends the capture and passes the graph to the caller. The context is current.
    fn end_capture(&self) -> Result<CUgraph, DriverError> {
        let mut graph = core::ptr::null_mut();
        if let Some(raw) = self.raw() {
            // SAFETY: `graph` outlives the call; the stream is alive, because its user named it.
            unsafe { self.device.driver().cuStreamEndCapture(raw, &mut graph)? };
        }
        Ok(graph)
    }
}

/// Destroys a graph that has just been created, so that no other code has its handle.
fn destroy(state: &Locked<'_>, graph: CUgraph) {
    if !graph.is_null() {
        state.device.destroy(Object::Graph(graph));
    }
}

/// The number of times that a refused end of a capture is repeated.
const TRIES: usize = 3;

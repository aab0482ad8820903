//! Captures, as a stream's state sees them: begun and ended under its lock, so that nobody makes a mark in between.

use super::stream_state::{Asker, Locked};
use super::{Clocks, Order, Stamp, StreamIndex};
use crate::device::Device;
use gpumem_sys::DriverError;
use gpumem_sys::types::{CUgraph, CUresult, CUstreamCaptureMode, CUstreamCaptureStatus as Status};

/// What a stream does with what is queued on it now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// It runs.
    Runs,
    /// It becomes part of a capture, of which this is the driver's number.
    In(u64),
    /// Nothing can be queued: the capture is broken, and has not been ended yet.
    Broken,
}

impl Clocks {
    /// Begins a capture on a stream that the caller has in his hands; the driver's number for it. `None` if the stream
    /// is gone. What is queued there by then is marked first: while the stream captures, it can be waited for all the same.
    pub(crate) fn begin_capture(
        &self,
        slot: StreamIndex,
        mode: CUstreamCaptureMode,
    ) -> Result<Option<u64>, DriverError> {
        self.with_stream_state(slot, |state| {
            let Some(raw) = state.raw() else { return Ok(None) };
            self.mark_before_capture(state, slot)?;
            // SAFETY: the stream is alive: its user names it.
            unsafe { state.device.driver().cuStreamBeginCapture_v2(raw, mode)? };
            match state.part() {
                Ok(Part::In(id)) => {
                    state.set_captured(id, self.stamp(slot).epoch());
                    Ok(Some(id))
                }
                other => {
                    // Nobody would end it otherwise.
                    state.end_capture().and_then(|graph| destroy(state, graph))?;
                    other.map(|_| None)
                }
            }
        })
        .map(Option::flatten)
    }

    /// Marks what is queued on a stream that its user names, unless it is done: while the stream captures, no mark can be made.
    pub(super) fn mark_before_capture(
        &self,
        state: &mut Locked<'_>,
        slot: StreamIndex,
    ) -> Result<(), DriverError> {
        match self.is_complete(self.stamp(slot)) {
            true => Ok(()),
            false => state.record_marker(slot, &self.epochs, Asker::User).map(drop),
        }
    }

    /// After a wait that may have made a stream part of a capture, before which what it had queued was marked: all that is
    /// queued from here on is the capture's.
    pub(super) fn note_captured(&self, state: &mut Locked<'_>, slot: StreamIndex) {
        if let Ok(Part::In(id)) = state.part() {
            state.set_captured(id, self.stamp(slot).epoch());
        }
    }

    /// Ends the capture that was begun on a stream. Whatever comes of it, the stream runs its work again, unless this is
    /// the wrong thread.
    pub(crate) fn end_capture(&self, slot: StreamIndex) -> Result<CUgraph, DriverError> {
        let end = || self.with_stream_state(slot, |state| state.end_capture());
        let mut ended = end();
        for _ in 0..TRIES {
            // A broken or unjoined capture has ended with that answer. After any other it may go on, and nobody else would end it.
            if ended.is_ok() || matches!(self.part(slot), Ok(Part::Runs)) {
                break;
            }
            ended = end().or(ended);
        }
        Ok(ended?.unwrap_or(core::ptr::null_mut()))
    }

    /// Whether a stream of a device captures now that may be asked in any call, whoever has begun that.
    pub(crate) fn has_capture(&self, device: &Device) -> bool {
        let captures = |slot: StreamIndex| {
            self.with_stream_state(slot, |state| {
                Ok(state.device == *device && state.is_ours() && state.part()? != Part::Runs)
            })
        };
        self.used_slots().any(|slot| matches!(captures(slot), Ok(Some(true))))
    }

    /// Ends captures on a device's streams that were begun without this crate, where the driver lets this thread end them (its
    /// own, and relaxed ones of any thread), and throws their graphs away. False if there is none. The caller keeps captures of
    /// this crate from beginning.
    pub(crate) fn end_others_captures(&self, device: &Device) -> bool {
        let end = |slot: &StreamIndex| {
            self.with_stream_state(*slot, |state| {
                let is_others = state.device == *device
                    && state.is_ours()
                    && match state.part()? {
                        Part::Runs => false,
                        Part::In(graph) => !self.captures.knows(graph),
                        Part::Broken => self.captures.capture_of(*slot, false).is_none(),
                    };
                if is_others {
                    state.end_capture().and_then(|graph| destroy(state, graph))?;
                }
                Ok(is_others)
            })
        };
        // A stream that joined a capture can't end it: the driver refuses that, and takes its origin.
        self.used_slots().filter(|slot| matches!(end(slot), Ok(Some(true)))).count() > 0
    }

    /// Ends a capture that this thread has begun, and throws its graph away.
    pub(crate) fn discard_capture(&self, slot: StreamIndex) -> Result<(), DriverError> {
        self.with_stream_state(slot, |state| state.end_capture().and_then(|graph| destroy(state, graph)))
            .map(drop)
    }

    /// What a stream does now. For one that is not ours only inside a call that names it.
    pub(crate) fn part(&self, slot: StreamIndex) -> Result<Part, DriverError> {
        self.with_stream_state(slot, |state| state.part()).map(|part| part.unwrap_or(Part::Runs))
    }

    /// The same from anywhere: of a stream that is not ours nothing is known.
    pub(crate) fn own_part(&self, slot: StreamIndex) -> Option<Part> {
        self.with_stream_state(slot, |state| if state.is_ours() { state.part().map(Some) } else { Ok(None) })
            .unwrap_or_default()
            .flatten()
    }

    /// What a stamp of now stands for that runs: of a stream of ours that captures, what it had queued before, which was marked.
    pub(crate) fn that_runs(&self, stamp: Stamp) -> Stamp {
        let captures =
            self.with_stream_state(stamp.stream_index(), |state| Ok(state.is_ours() && state.is_capturing()));
        match captures {
            Ok(Some(true)) => Stamp::new(stamp.stream_index(), stamp.epoch().saturating_sub(1)),
            _ => stamp,
        }
    }

    /// Makes a stream that the caller has in his hands wait for what the stamp stands for. False if its stream can't be
    /// marked now.
    pub(crate) fn order_launch(&self, stamp: Stamp, waiter: StreamIndex) -> Result<bool, DriverError> {
        if self.is_ordered(stamp, waiter) {
            return Ok(true);
        }
        let Some((_device, mark)) = self.marker_for(stamp, |_| true)? else { return Ok(false) };
        self.queue_wait(waiter, mark.event.raw(), Some(&mark.covered)).map(|_| true)
    }

    /// Whether a stream can be made to wait for what a stamp stands for in a call that does not name the stamp's own stream.
    pub(crate) fn can_be_ordered(&self, stamp: Stamp) -> bool {
        let state = self.stream_states.lock(stamp.stream_index());
        self.is_complete(stamp)
            || state.is_some_and(|state| state.is_ours() || state.marker_of(stamp).is_some())
    }

    /// A stamp for everything queued so far on a stream that the caller has in his hands, with a mark that covers it.
    /// `None` if it can't be marked now.
    pub(crate) fn marked(&self, slot: StreamIndex) -> Result<Option<Stamp>, DriverError> {
        let stamp = self.stamp(slot);
        Ok(self.record_marker_by_user(slot)?.then_some(stamp))
    }
}

impl Locked<'_> {
    /// What the stream does now, by the driver. The context is current.
    pub(super) fn part(&self) -> Result<Part, DriverError> {
        let Some(raw) = self.raw() else { return Ok(Part::Runs) };
        if self.device.driver().table().cuStreamGetCaptureInfo.is_none() {
            return Ok(Part::Runs);
        }
        let (mut status, mut id) = (Status::CU_STREAM_CAPTURE_STATUS_NONE, 0);
        // SAFETY: both outlive the call; the stream is alive while the state is locked, or named by its user.
        match unsafe { self.device.driver().cuStreamGetCaptureInfo(raw, &mut status, &mut id) } {
            // The null stream, which captures nothing, while a stream that it waits for does.
            Err(error) if error.code() == CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => Ok(Part::Runs),
            answer => answer.map(|()| match status {
                Status::CU_STREAM_CAPTURE_STATUS_NONE => Part::Runs,
                Status::CU_STREAM_CAPTURE_STATUS_ACTIVE => Part::In(id),
                _ => Part::Broken,
            }),
        }
    }

    /// The context is current. The graph is the caller's.
    fn end_capture(&self) -> Result<CUgraph, DriverError> {
        let mut graph = core::ptr::null_mut();
        if let Some(raw) = self.raw() {
            // SAFETY: `graph` outlives the call; the stream is alive: its user names it.
            unsafe { self.device.driver().cuStreamEndCapture(raw, &mut graph)? };
        }
        Ok(graph)
    }
}

fn destroy(state: &Locked<'_>, graph: CUgraph) -> Result<(), DriverError> {
    if graph.is_null() {
        return Ok(());
    }
    // SAFETY: the graph has just been made, and nobody else knows it.
    unsafe { state.device.driver().cuGraphDestroy(graph) }
}

/// How often a refused end of a capture is repeated.
const TRIES: usize = 3;

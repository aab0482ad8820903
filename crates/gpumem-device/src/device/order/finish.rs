//! Waiting, by markers, for everything that runs on a device, while a capture prevents a wait for the device itself.

use super::capture::CapturePart;
use super::clocks::Clocks;
use super::marker::{Marker, MarkerEvent};
use super::stream_state::{Asker, Locked};
use super::wait::PAUSE_MAX;
use crate::device::primary::PrimaryContext;
use gpumem_base::order::{Order, Stamp, StreamIndex};
use gpumem_sys::DriverError;
use std::sync::Arc;
use std::time::Instant;

enum Cover {
    /// The work is known to be complete.
    Complete,
    /// By a marker in the stream.
    Marker(Arc<Marker>),
    /// By a marker in the legacy stream, which follows all work of blocking streams.
    Legacy,
    /// Only by a wait for the whole device.
    Device,
}

impl Clocks {
    /// Waits on the host until all running work queued on a device so far is done. False if a stream may have work that
    /// only a wait for the whole device covers: another library's stream, which this call does not name, or a stream
    /// that joined a capture without this crate.
    ///
    /// Work that a stream queued before it began to capture is covered by the marker recorded then.
    pub fn finish_everything(&self, device: &PrimaryContext) -> Result<bool, DriverError> {
        let _entered = device.enter_relaxed()?;
        let (mut markers, mut needs_legacy, mut is_covered) = (Vec::new(), false, true);
        for index in self.used_indices() {
            match self.cover(index, device)? {
                Cover::Complete => {}
                Cover::Marker(marker) => markers.push(marker),
                Cover::Legacy => needs_legacy = true,
                Cover::Device => is_covered = false,
            }
        }
        match self.mark_legacy(device)? {
            Some(event) => wait(device, &event)?,
            None => is_covered &= !needs_legacy,
        }
        for marker in markers {
            wait(device, &marker.event)?;
            self.raise_complete(&marker.covered);
        }
        Ok(is_covered)
    }

    /// Like [`Clocks::finish_everything`], until a deadline, and without a marker in the legacy stream, which would delay later work of
    /// other streams. The first result is true if all marked work was done in time, the second if markers cover everything.
    pub(crate) fn finish_markers_until(
        &self,
        device: &PrimaryContext,
        until: Instant,
    ) -> Result<(bool, bool), DriverError> {
        let _entered = device.enter_relaxed()?;
        let (mut is_in_time, mut is_covered) = (true, true);
        for index in self.used_indices() {
            match self.cover(index, device)? {
                Cover::Complete => {}
                // After a late stream the others are still queried: their completed work counts.
                Cover::Marker(marker) => is_in_time &= self.wait_for_mark(device, marker, until)?,
                Cover::Legacy | Cover::Device => is_covered = false,
            }
        }
        Ok((is_in_time, is_covered))
    }

    fn cover(&self, index: StreamIndex, device: &PrimaryContext) -> Result<Cover, DriverError> {
        let Some(mut state) = self.stream_states.lock(index).filter(|state| *state.device == *device) else {
            return Ok(Cover::Complete);
        };
        let stamp = self.stamp(index);
        let runs = match self.captured_from(&state)? {
            Some(epoch) => Stamp::new(index, epoch.saturating_sub(1)),
            None => stamp,
        };
        if self.is_complete(runs) {
            return Ok(Cover::Complete);
        }
        if let Some(marker) = state.marker_of(runs) {
            return Ok(Cover::Marker(marker));
        }
        if runs == stamp
            && state.is_ours()
            && let Some(marker) = state.record_marker(index, &self.epochs, Asker::Pool)?
        {
            return Ok(Cover::Marker(marker));
        }
        Ok(if state.is_blocking() { Cover::Legacy } else { Cover::Device })
    }

    /// The first epoch whose work is part of a capture that is still active.
    fn captured_from(&self, state: &Locked<'_>) -> Result<Option<u64>, DriverError> {
        let Some((graph, epoch)) = state.captured().filter(|(graph, _)| self.captures.knows(*graph)) else {
            return Ok(None);
        };
        // Another library's stream stays in the capture until its end. An owned or long-lived stream is queried, which
        // is more reliable.
        let is_in = !state.is_ours() || matches!(state.part()?, CapturePart::In(_) | CapturePart::Broken);
        Ok(is_in.then_some(epoch).filter(|_| self.captures.knows(graph)))
    }

    /// Records a marker in the legacy stream. `None` while a blocking stream captures, because the marker would break
    /// the capture.
    fn mark_legacy(&self, device: &PrimaryContext) -> Result<Option<MarkerEvent>, DriverError> {
        // The handle of the legacy stream refers to the current context's stream.
        let _bound = device.enter()?;
        // No capture begins between the query and the marker.
        let Some(_still) = device.keep_captures_out() else { return Ok(None) };
        if !MarkerEvent::may_mark_legacy(device) {
            return Ok(None);
        }
        let event = MarkerEvent::create(device)?;
        event.record_legacy(device)?;
        Ok(Some(event))
    }
}

/// Waits for an event. If the driver refuses the wait, queries the event instead. The context is current.
fn wait(device: &PrimaryContext, event: &MarkerEvent) -> Result<(), DriverError> {
    let waited = event.synchronize(device);
    if waited.is_ok() || device.is_context_gone() {
        return device.noting(waited);
    }
    while !event.query(device)? {
        std::thread::sleep(PAUSE_MAX);
    }
    Ok(())
}

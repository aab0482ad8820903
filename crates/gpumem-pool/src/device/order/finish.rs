//! Waiting for everything that runs on a device, by markers, while a capture keeps the device itself from being waited for.

use super::marker::{Marker, MarkerEvent};
use super::stream_state::{Asker, Locked};
use super::wait::PAUSE_MAX;
use super::{Clocks, Order, Stamp, StreamIndex};
use crate::device::{CaptureModeGuard, Device, Part};
use gpumem_sys::DriverError;
use std::sync::Arc;
use std::time::Instant;

/// How a stream's work can be waited for.
enum Cover {
    /// It is known to be done.
    Complete,
    /// By a marker in the stream.
    Marker(Arc<Marker>),
    /// By a marker in the legacy stream, which comes after all work of blocking streams.
    Legacy,
    /// Only by waiting for the whole device.
    Device,
}

impl Clocks {
    /// Waits on the host until everything that was queued on a device by now, and runs, is done. False if a stream may have
    /// work that only a wait for the whole device covers: one of another library's, which nobody names in this call, or one
    /// that joined a capture without this crate.
    ///
    /// What a stream queued before it began to capture is covered by the marker made then.
    pub(crate) fn finish_everything(&self, device: &Device) -> Result<bool, DriverError> {
        let _bound = device.enter()?;
        let _relaxed = CaptureModeGuard::enter(&self.driver)?;
        let (mut markers, mut needs_legacy, mut is_covered) = (Vec::new(), false, true);
        for slot in self.used_slots() {
            match self.cover(slot, device)? {
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

    /// As [`Clocks::finish_everything`], but no longer than until a deadline, and without a marker in the legacy stream, behind
    /// which later work of others would have to wait. Whether all that markers cover was done in time, and whether that is
    /// everything.
    pub(crate) fn finish_markers_until(
        &self,
        device: &Device,
        until: Instant,
    ) -> Result<(bool, bool), DriverError> {
        let _bound = device.enter()?;
        let _relaxed = CaptureModeGuard::enter(&self.driver)?;
        let (mut is_in_time, mut is_covered) = (true, true);
        for slot in self.used_slots() {
            match self.cover(slot, device)? {
                Cover::Complete => {}
                // After a late one the others are asked about all the same: what they have done counts.
                Cover::Marker(marker) => is_in_time &= self.wait_for_mark(device, marker, until)?,
                Cover::Legacy | Cover::Device => is_covered = false,
            }
        }
        Ok((is_in_time, is_covered))
    }

    fn cover(&self, slot: StreamIndex, device: &Device) -> Result<Cover, DriverError> {
        let Some(mut state) = self.stream_states.lock(slot).filter(|state| state.device == *device) else {
            return Ok(Cover::Complete);
        };
        let stamp = self.stamp(slot);
        let runs = match self.captured_from(&state)? {
            Some(epoch) => Stamp::new(slot, epoch.saturating_sub(1)),
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
            && let Some(marker) = state.record_marker(slot, &self.epochs, Asker::Pool)?
        {
            return Ok(Cover::Marker(marker));
        }
        Ok(if state.is_blocking() { Cover::Legacy } else { Cover::Device })
    }

    /// The epoch from which on all that was queued on a state is part of a capture that goes on.
    fn captured_from(&self, state: &Locked<'_>) -> Result<Option<u64>, DriverError> {
        let Some((graph, epoch)) = state.captured().filter(|(graph, _)| self.captures.knows(*graph)) else {
            return Ok(None);
        };
        // Another library's stream stays in the capture until its end. One of ours can be asked, which is surer.
        let is_in = !state.is_ours() || matches!(state.part()?, Part::In(_) | Part::Broken);
        Ok(is_in.then_some(epoch).filter(|_| self.captures.knows(graph)))
    }

    /// A marker in the legacy stream; `None` while a blocking stream captures, which the driver would break for it. The
    /// context is current.
    fn mark_legacy(&self, device: &Device) -> Result<Option<MarkerEvent>, DriverError> {
        // No capture begins between the question and the marker.
        let Some(_still) = device.keep_captures_out() else { return Ok(None) };
        if !MarkerEvent::may_mark_legacy(device) {
            return Ok(None);
        }
        let event = MarkerEvent::create(device)?;
        event.record_legacy(device)?;
        Ok(Some(event))
    }
}

/// Where the driver refuses to wait it may still answer. The context is current.
fn wait(device: &Device, event: &MarkerEvent) -> Result<(), DriverError> {
    let waited = event.synchronize(device);
    if waited.is_ok() || device.is_context_gone() {
        return device.noting(waited);
    }
    while !event.query(device)? {
        std::thread::sleep(PAUSE_MAX);
    }
    Ok(())
}

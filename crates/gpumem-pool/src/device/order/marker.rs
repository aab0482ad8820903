//! [`Marker`]: an event in a stream, and what is done once it has been passed.

use super::Stamp;
use crate::device::{Device, Handle, LEGACY, WeakDevice};
use gpumem_sys::types::{CUevent, CUevent_flags, CUevent_st, CUresult, CUstream, CUstreamCaptureStatus};
use gpumem_sys::{Driver, DriverError};
use std::time::Instant;

/// A recorded event of the clocks' own, with what it covers: its stream's stamp first.
pub(crate) struct Marker {
    pub(super) event: MarkerEvent,
    pub(super) covered: Box<[Stamp]>,
    pub(super) made_at: Instant,
}

impl Marker {
    /// The last stamp of its stream that it covers.
    pub(super) fn closed(&self) -> Stamp {
        self.covered.first().copied().unwrap_or(Stamp::COMPLETE)
    }
}

/// An event that is recorded in any stream of one device, or in all.
pub(crate) struct MarkerEvent {
    /// Not a clone: the device owns the clocks, and so this.
    device: WeakDevice,
    raw: Handle<CUevent_st>,
}

impl MarkerEvent {
    /// The device's context is current.
    pub(crate) fn create(device: &Device) -> Result<Self, DriverError> {
        let mut raw = core::ptr::null_mut();
        // SAFETY: `raw` outlives the call, and the caller made the context current.
        unsafe { device.driver().cuEventCreate(&mut raw, CUevent_flags::CU_EVENT_DISABLE_TIMING.0)? };
        Ok(Self { device: device.downgrade(), raw: Handle(raw) })
    }

    pub(super) fn raw(&self) -> CUevent {
        self.raw.0
    }

    /// The context is current, and the stream one of its own and alive.
    pub(super) fn record(&self, device: &Device, stream: CUstream) -> Result<(), DriverError> {
        // SAFETY: the event is alive for as long as this is, and the stream by the caller's promise.
        unsafe { device.driver().cuEventRecord(self.raw.0, stream) }
    }

    /// Whether the legacy stream takes a marker: not while a blocking stream captures. The context is current.
    pub(super) fn may_mark_legacy(device: &Device) -> bool {
        let driver = device.driver();
        if driver.table().cuStreamIsCapturing.is_none() {
            return true;
        }
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: `status` outlives the call; the legacy stream is there as long as its context. The question breaks no capture.
        let answer = unsafe { driver.cuStreamIsCapturing(LEGACY as CUstream, &mut status) };
        answer.is_ok() && status == CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE
    }

    /// Behind all work of the legacy stream and of blocking streams. The context is current.
    pub(super) fn record_legacy(&self, device: &Device) -> Result<(), DriverError> {
        self.record(device, LEGACY as CUstream)
    }

    /// Records it behind all that the streams of the context have queued. The context is current.
    pub(crate) fn record_all(&self, device: &Device) -> Result<(), DriverError> {
        // SAFETY: the event is alive for as long as this is, and the context for as long as the device.
        unsafe { device.driver().cuCtxRecordEvent(device.context(), self.raw.0) }
    }

    /// Whether it has been passed. The context is current.
    pub(crate) fn query(&self, device: &Device) -> Result<bool, DriverError> {
        // SAFETY: the event is alive for as long as this is.
        match unsafe { device.driver().cuEventQuery(self.raw.0) } {
            Err(error) if error.code() == CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// Waits on the host until it has been passed. The context is current.
    pub(crate) fn synchronize(&self, device: &Device) -> Result<(), DriverError> {
        // SAFETY: the event is alive for as long as this is.
        unsafe { device.driver().cuEventSynchronize(self.raw.0) }
    }

    /// Once it has been passed: what the driver's own pools were given before it, they can release from now on. After queries
    /// alone they keep it, and after waits for an event of [`MarkerEvent::record_all`] too (seen on an H200 with CUDA 13.0).
    pub(crate) fn show(&self, device: &Device) -> Result<(), DriverError> {
        self.synchronize(device)
    }

    /// Another holder of the same context takes it over.
    pub(super) fn move_to(&mut self, heir: &Device) {
        self.device = heir.downgrade();
    }

    /// For the end of the device, which can't be held any more. The context is current.
    pub(super) fn destroy(self, driver: &Driver) {
        let _guard = driver.teardown();
        // SAFETY: nobody passes the handle again. There is nobody to tell of a failure.
        let _ = unsafe { driver.cuEventDestroy_v2(self.raw.0) };
        // What is dropped here finds no device, and leaves it at that.
    }
}

impl Drop for MarkerEvent {
    fn drop(&mut self) {
        let Some(device) = self.device.upgrade() else { return };
        let Ok(_bound) = device.enter() else { return };
        let _guard = device.driver().teardown();
        // SAFETY: nobody passes the handle again; the driver keeps what pending waits need. There is nobody to tell of
        // a failure.
        let _ = unsafe { device.driver().cuEventDestroy_v2(self.raw.0) };
    }
}

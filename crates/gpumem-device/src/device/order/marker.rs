//! [`Marker`]: an event in a stream, and the stamps that are complete once the event is.

use crate::device::context::Handle;
use crate::device::objects::{Object, Owned};
use crate::device::primary::{PrimaryContext, WeakContext};
use gpumem_base::order::Stamp;
use gpumem_sys::types::{
    CUcontext, CUevent, CUevent_flags, CUevent_st, CUresult, CUstream, CUstreamCaptureStatus,
};
use gpumem_sys::{Driver, DriverError, fork};
use std::time::Instant;

/// A recorded event of the clocks, with the stamps that it covers: its stream's stamp first.
pub(crate) struct Marker {
    pub(super) event: MarkerEvent,
    pub(super) covered: Box<[Stamp]>,
    pub(super) made_at: Instant,
}

impl Marker {
    /// A marker in a stream that is not known to the clocks. Its event covers these stamps.
    pub(crate) fn new(event: MarkerEvent, covered: &[Stamp]) -> Self {
        Self { event, covered: covered.into(), made_at: Instant::now() }
    }

    pub(crate) fn event(&self) -> &MarkerEvent {
        &self.event
    }

    /// The last stamp of its stream that it covers.
    pub(crate) fn closed(&self) -> Stamp {
        self.covered.first().copied().unwrap_or(Stamp::COMPLETE)
    }
}

/// An event of one device, recorded in one or in all of its streams.
pub struct MarkerEvent {
    /// Weak, because the device owns the clocks, and so this event.
    device: WeakContext,
    raw: Handle<CUevent_st>,
}

impl MarkerEvent {
    /// Creates an event. The device's context is current.
    pub(crate) fn create(device: &PrimaryContext) -> Result<Self, DriverError> {
        let mut raw = core::ptr::null_mut();
        // SAFETY: `raw` outlives the call, and the caller made the context current.
        unsafe { device.driver().cuEventCreate(&mut raw, CUevent_flags::CU_EVENT_DISABLE_TIMING.0)? };
        Ok(Self { device: device.downgrade(), raw: Handle(raw) })
    }

    pub(crate) fn raw(&self) -> CUevent {
        self.raw.0
    }

    /// Records the event. The context is current, and the stream belongs to it and is alive.
    pub(crate) fn record(&self, device: &PrimaryContext, stream: CUstream) -> Result<(), DriverError> {
        // SAFETY: the event is alive as long as this value, and the caller guarantees that the stream is.
        unsafe { device.driver().cuEventRecord(self.raw.0, stream) }
    }

    /// True if the legacy stream takes a marker: not while a blocking stream captures. The context is current.
    pub(super) fn may_mark_legacy(device: &PrimaryContext) -> bool {
        let driver = device.driver();
        if driver.table().cuStreamIsCapturing.is_none() {
            return true;
        }
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: `status` outlives the call; the legacy stream exists as long as its context. The query breaks no
        // capture.
        let answer = unsafe { driver.cuStreamIsCapturing(LEGACY as CUstream, &mut status) };
        answer.is_ok() && status == CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE
    }

    /// Records the event behind all work of the legacy stream and of blocking streams. The context is current.
    pub(super) fn record_legacy(&self, device: &PrimaryContext) -> Result<(), DriverError> {
        self.record(device, LEGACY as CUstream)
    }

    /// Records the event behind all work queued on the context's streams. The context is current.
    pub(crate) fn record_all(&self, device: &PrimaryContext) -> Result<(), DriverError> {
        // SAFETY: the event is alive as long as this value, and the context as long as the device.
        unsafe { device.driver().cuCtxRecordEvent(device.context(), self.raw.0) }
    }

    /// True if the event is complete. The context is current.
    pub fn query(&self, device: &PrimaryContext) -> Result<bool, DriverError> {
        // SAFETY: the event is alive as long as this value.
        match unsafe { device.driver().cuEventQuery(self.raw.0) } {
            Err(error) if error.code() == CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// Waits on the host until the event is complete. The context is current.
    pub(crate) fn synchronize(&self, device: &PrimaryContext) -> Result<(), DriverError> {
        // SAFETY: the event is alive as long as this value.
        unsafe { device.driver().cuEventSynchronize(self.raw.0) }
    }

    /// Waits for an event that is already complete, so that the driver's memory pools may release memory freed before it. They keep that
    /// memory after mere queries, and after waits for an event of [`MarkerEvent::record_all`] (seen on an H200 with CUDA 13.0).
    #[inline]
    pub fn show(&self, device: &PrimaryContext) -> Result<(), DriverError> {
        self.synchronize(device)
    }

    /// Moves the event to another `Device` of its context.
    pub(super) fn move_to(&mut self, heir: &PrimaryContext) {
        self.device = heir.downgrade();
    }

    /// Destroys the event while its device is being dropped and cannot be upgraded.
    pub(super) fn destroy(self, driver: &Driver, context: CUcontext) {
        Owned { object: Object::Event(self.raw.0), context }.destroy_at_end(driver);
        // The drop of `self` finds no device, and does nothing.
    }
}

impl Drop for MarkerEvent {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        if let Some(device) = self.device.upgrade() {
            device.destroy(Object::Event(self.raw.0));
        }
    }
}

/// `CU_STREAM_LEGACY`, which is a macro in the driver's header.
pub(crate) const LEGACY: usize = 1;

//! [`Event`]: a point in a stream's work that the device or the host can wait for.

use crate::device::stream::complete;
use crate::device::{CaptureModeGuard, Clocks, Device, Handle, Object, OrderEvent, Stamp, Stream};
use crate::error::{CaptureError, DeviceError, StreamError};
use core::ffi::c_uint;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use gpumem_base::sync::Lock;
use gpumem_sys::text::debug_fields;
use gpumem_sys::types::{CUevent, CUevent_flags, CUevent_st};
use gpumem_sys::{DriverError, fork};
use std::sync::Arc;

/// A CUDA event: complete once all work queued before its last record is done.
///
/// Dropping an event that a stream waits for is safe: the wait stays in effect.
pub struct Event {
    device: Device,
    raw: Handle<CUevent_st>,
    timed: bool,
    /// The stamps that are complete once the event is; `None` before the first record and after a record in a capture.
    /// Locked from the driver call until the stamps are stored, so that both belong together.
    covered: Lock<Option<Arc<[Stamp]>>>,
    /// True if it was last recorded in a capture. Querying it would make the driver break that capture.
    is_captured: AtomicBool,
    /// The capture, begun by this crate, in which it was last recorded, or 0.
    captured_in: AtomicU64,
    is_recorded: AtomicBool,
}

impl Event {
    /// Creates an event without timing, which costs less than one with timing.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Driver`] if a call fails, [`DeviceError::DeviceLost`] if the context is lost.
    pub fn new(device: &Device) -> Result<Self, DeviceError> {
        device.check_open()?;
        Ok(Self::create(device, false)?)
    }

    /// Creates an event that records the time of its completion; see [`Event::elapsed_ms_since`].
    ///
    /// # Errors
    ///
    /// [`DeviceError::Driver`] if a call fails, [`DeviceError::DeviceLost`] if the context is lost.
    pub fn with_timing(device: &Device) -> Result<Self, DeviceError> {
        device.check_open()?;
        Ok(Self::create(device, true)?)
    }

    /// The device of the event.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The driver's handle, alive as long as this event.
    ///
    /// Raw driver calls may wait for it and query it. Record it only with [`Event::record`]: the pool considers memory
    /// free once the last record that it observed has been waited for.
    #[must_use]
    pub fn raw(&self) -> CUevent {
        self.raw.0
    }

    /// Records the event behind all work queued on `stream` so far. A later record replaces this one.
    ///
    /// # Errors
    ///
    /// - [`DeviceError::WrongDevice`] if the stream belongs to another device.
    /// - All errors of [`Stream::synchronize`].
    pub fn record(&self, stream: &Stream) -> Result<(), DeviceError> {
        self.device.check_open()?;
        let _call = stream.call()?;
        if stream.device() != self.device() {
            return Err(self.device().mismatch(stream.device()));
        }
        self.queue_record(stream)?;
        self.device.watch().note(OrderEvent::Mark { event: self.raw(), stream: stream.id() });
        Ok(())
    }

    /// True if the last recorded work is complete, or if the event was never recorded.
    ///
    /// Never waits, but once a millisecond it may take up to the pools' `release_budget_us` to release
    /// memory above a soft limit.
    ///
    /// # Errors
    ///
    /// - [`DeviceError::Capture`] if the event was last recorded in a capture and a capture is active.
    /// - [`DeviceError::Driver`] or [`DeviceError::DeviceLost`] if the query or earlier work failed.
    /// - [`DeviceError::AwaitedDeviceLost`] if a device is lost that another device has waited for.
    pub fn is_complete(&self) -> Result<bool, DeviceError> {
        self.device.check_open()?;
        self.check_runs("querying an event")?;
        let _entered = self.device.enter_relaxed()?;
        let covered = self.covered.lock();
        // SAFETY: the event is alive.
        let is_complete =
            complete(self.device.noting(unsafe { self.device.driver().cuEventQuery(self.raw.0) }))?;
        if let Some(covered) = covered.as_ref().filter(|_| is_complete) {
            self.clocks().raise_complete(covered);
        }
        drop(covered);
        if is_complete {
            self.device.watch().note(OrderEvent::MarkDone(self.raw()));
        }
        self.device.serve();
        if is_complete {
            self.device.check_awaited()?;
        }
        Ok(is_complete)
    }

    /// Waits on the host until the last recorded work is complete.
    ///
    /// # Errors
    ///
    /// - [`DeviceError::Capture`] if the event was last recorded in a capture and a capture is active.
    /// - [`DeviceError::Driver`] or [`DeviceError::DeviceLost`] if the wait or earlier work failed.
    /// - [`DeviceError::AwaitedDeviceLost`] if a device is lost that another device has waited for.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        self.device.check_open()?;
        self.check_runs("waiting for an event on the host")?;
        let _bound = self.device.enter()?;
        self.device.maintenance().before_wait();
        let _relaxed = CaptureModeGuard::enter(self.device.driver())?;
        let before = self.covered.lock().clone();
        // SAFETY: the event is alive.
        self.device.noting(unsafe { self.device.driver().cuEventSynchronize(self.raw.0) })?;
        // If another thread has recorded it since, the wait may have been for a different record than the stored one.
        let after = self.covered.lock();
        if let (Some(before), Some(after)) = (before, after.as_ref())
            && Arc::ptr_eq(&before, after)
        {
            self.clocks().raise_complete(after);
        }
        drop(after);
        self.device.after_wait();
        self.device.watch().note(OrderEvent::MarkDone(self.raw()));
        self.device.check_awaited()
    }

    /// The device time in milliseconds from the record of `start` to the record of this event. Both must be complete.
    ///
    /// # Errors
    ///
    /// - [`DeviceError::Untimed`] if an event was created by [`Event::new`].
    /// - [`DeviceError::WrongDevice`] if the events belong to two devices.
    /// - [`DeviceError::Driver`] if a call fails, with `CUDA_ERROR_NOT_READY` if an event is not complete.
    pub fn elapsed_ms_since(&self, start: &Event) -> Result<f32, DeviceError> {
        self.device.check_open()?;
        if !(self.timed && start.timed) {
            return Err(DeviceError::Untimed);
        }
        if start.device != self.device {
            return Err(self.device.mismatch(&start.device));
        }
        let _bound = self.device.enter()?;
        let driver = self.device.driver();
        let mut elapsed_ms = 0.0;
        // SAFETY: both events are alive, and `elapsed_ms` outlives the call.
        unsafe {
            if driver.table().cuEventElapsedTime_v2.is_some() {
                driver.cuEventElapsedTime_v2(&mut elapsed_ms, start.raw.0, self.raw.0)?;
            } else {
                driver.cuEventElapsedTime(&mut elapsed_ms, start.raw.0, self.raw.0)?;
            }
        }
        Ok(elapsed_ms)
    }

    fn create(device: &Device, timed: bool) -> Result<Self, DriverError> {
        let flags =
            if timed { CUevent_flags::CU_EVENT_DEFAULT } else { CUevent_flags::CU_EVENT_DISABLE_TIMING };
        let _bound = device.enter()?;
        let mut raw = core::ptr::null_mut();
        // SAFETY: `raw` outlives the call, and the context is current.
        unsafe { device.driver().cuEventCreate(&mut raw, flags.0 as c_uint)? };
        Ok(Self {
            device: device.clone(),
            raw: Handle(raw),
            timed,
            covered: Lock::new(None),
            is_captured: AtomicBool::new(false),
            captured_in: AtomicU64::new(0),
            is_recorded: AtomicBool::new(false),
        })
    }

    pub(crate) fn queue_record(&self, stream: &Stream) -> Result<(), DriverError> {
        let mut covered = self.covered.lock();
        self.is_recorded.store(true, Ordering::Release);
        // A broken capture takes no record.
        let graph =
            if self.clocks().captures().is_open() { stream.captures_for().ok().flatten() } else { None };
        // After a failed record, the recorded point is unknown.
        *covered = None;
        *covered = self.clocks().record(stream.stream_index(), self.raw.0)?.map(Arc::from);
        self.captured_in.store(graph.filter(|_| covered.is_none()).unwrap_or(0), Ordering::Release);
        self.is_captured.store(covered.is_none(), Ordering::Release);
        Ok(())
    }

    /// Calls `with` with the stamps of the last record, which is not replaced during the call; `None` after a record in a capture.
    pub(crate) fn with_record<R>(&self, with: impl FnOnce(Option<&[Stamp]>) -> R) -> R {
        with(self.covered.lock().as_deref())
    }

    pub(crate) fn make_wait(&self, stream: &Stream) -> Result<(), DriverError> {
        let covered = self.covered.lock();
        self.clocks().queue_wait(stream.stream_index(), self.raw.0, covered.as_deref()).map(drop)
    }

    fn check_runs(&self, operation: &'static str) -> Result<(), DeviceError> {
        if self.is_captured.load(Ordering::Acquire) && self.clocks().captures().is_open() {
            Err(DeviceError::Capture(CaptureError::NotCapturable { operation }))
        } else {
            Ok(())
        }
    }

    /// The last stamp that it covers; `None` if it was never recorded, or in a capture.
    pub(crate) fn mark(&self) -> Option<Stamp> {
        self.covered.lock().as_ref().and_then(|covered| covered.first().copied())
    }

    pub(crate) fn captured_in(&self) -> Option<u64> {
        Some(self.captured_in.load(Ordering::Acquire)).filter(|graph| *graph != 0)
    }

    /// True if it was never recorded; a wait for such an event is a no-op.
    pub(crate) fn is_blank(&self) -> bool {
        !self.is_recorded.load(Ordering::Acquire)
    }

    fn clocks(&self) -> &Clocks {
        self.device.clocks()
    }
}

impl Stream {
    /// Makes work queued on this stream from now on wait, on the device, for the event. The host continues.
    ///
    /// The event may belong to another device. A wait for an event that was never recorded has no effect.
    ///
    /// # Errors
    ///
    /// - [`DeviceError::WrongDevice`] if the event belongs to another driver.
    /// - [`DeviceError::Capture`] if the wait would break a capture, or if the stream's capture is broken.
    /// - [`DeviceError::Stream`], [`DeviceError::Driver`] and [`DeviceError::DeviceLost`]
    ///   as for [`Stream::synchronize`].
    pub fn wait(&self, event: &Event) -> Result<(), DeviceError> {
        self.device().check_open()?;
        let _call = self.call()?;
        check_driver(self.device(), event.device())?;
        let joins = self.may_join()? && event.mark().is_none();
        let _alone = self.close_to_join(joins)?;
        if self.defers_wait(event)? {
            return Ok(());
        }
        event.make_wait(self)?;
        self.note_joined();
        self.device().watch().note(OrderEvent::WaitForMark { stream: self.id(), event: event.raw() });
        Ok(())
    }

    /// Makes work queued on this stream from now on wait, on the device, for everything queued on `other` so far.
    ///
    /// # Errors
    ///
    /// All errors of [`Stream::wait`] for either stream, such as [`DeviceError::Stream`].
    pub fn wait_for(&self, other: &Stream) -> Result<(), DeviceError> {
        self.device().check_open()?;
        let _calls = (self.call()?, other.call()?);
        check_driver(self.device(), other.device())?;
        let joins = self != other && self.may_join()? && other.is_capturing()?;
        let _alone = self.close_to_join(joins)?;
        if self.defers_wait_for(other)? {
            return Ok(());
        }
        self.queue_wait_for(other)?;
        self.note_joined();
        self.device().watch().note(OrderEvent::Wait { stream: self.id(), source: other.id() });
        Ok(())
    }

    pub(crate) fn queue_wait_for(&self, other: &Stream) -> Result<(), DeviceError> {
        let is_queued = self.id() == other.id()
            || self.clocks().queue_wait_for(self.stream_index(), other.stream_index())?;
        // Another thread may have retired the stream since the check.
        if is_queued { Ok(()) } else { Err(DeviceError::Stream(StreamError::Retired)) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        self.device.destroy(Object::Event(self.raw.0));
    }
}

debug_fields!(Event, it, device: it.device.ordinal(), timed: it.timed);

/// Refuses objects of different drivers: the vendor's driver would dereference a handle of the simulator.
fn check_driver(device: &Device, other: &Device) -> Result<(), DeviceError> {
    if device.driver().is_same_machine(other.driver()) { Ok(()) } else { Err(device.mismatch(other)) }
}

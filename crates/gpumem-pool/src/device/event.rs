//! [`Event`]: a mark in a stream, to wait for on the device or on the host.

use crate::device::{CaptureModeGuard, Clocks, Device, Handle, OrderEvent, Stamp, Stream, stream::complete};
use crate::error::PoolError;
use core::ffi::c_uint;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use gpumem_sys::DriverError;
use gpumem_sys::types::{CUevent, CUevent_flags, CUevent_st};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A mark that a stream passes when everything queued before it is done.
///
/// Dropping one that is waited for is safe: the wait stands.
pub struct Event {
    device: Device,
    raw: Handle<CUevent_st>,
    timed: bool,
    /// What is done once the mark has been passed, as the clocks have it; `None` before the first record and in a
    /// capture. Locked from the driver's call to the note of it, so that the two belong together.
    covered: Mutex<Option<Arc<[Stamp]>>>,
    /// Whether it was last recorded in a capture. The driver would break that if it were asked about the event.
    is_captured: AtomicBool,
    /// The capture of this crate in which it was last recorded; 0 if that was in none.
    captured_in: AtomicU64,
    /// Whether a record was ever attempted.
    is_recorded: AtomicBool,
}

impl Event {
    /// An event that keeps no time, which is the cheaper kind.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn new(device: &Device) -> Result<Self, PoolError> {
        Ok(Self::create(device, false)?)
    }

    /// An event that remembers when it was passed; see [`Event::elapsed_ms_since`].
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn with_timing(device: &Device) -> Result<Self, PoolError> {
        Ok(Self::create(device, true)?)
    }

    /// The device that it was made for.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The driver's handle, alive for as long as this event is.
    ///
    /// Whoever hands it to the driver himself may wait for it and ask about it. Recording it is for [`Event::record`]
    /// alone: the pool takes memory to be free where the last record that it saw has been waited for.
    #[must_use]
    pub fn raw(&self) -> CUevent {
        self.raw.0
    }

    /// Marks the point that `stream` has been filled to. A later record moves the mark.
    ///
    /// # Errors
    ///
    /// [`PoolError::WrongDevice`] when the stream is another device's, else as [`Stream::synchronize`].
    pub fn record(&self, stream: &Stream) -> Result<(), PoolError> {
        let _call = stream.call()?;
        if stream.device() != self.device() {
            return Err(self.device().mismatch(stream.device()));
        }
        self.queue_record(stream)?;
        self.device.watch().note(OrderEvent::Mark { event: self.raw(), stream: stream.id() });
        Ok(())
    }

    /// Whether the mark has been passed. True for one that was never recorded. Never waits, but once a millisecond it may
    /// take as long as the pools' [`release_budget`](crate::Tuning::release_budget) to give back what is over a soft limit.
    ///
    /// # Errors
    ///
    /// What the driver says, the failure of earlier work included.
    pub fn is_complete(&self) -> Result<bool, PoolError> {
        self.check_runs("asking whether a mark has been passed")?;
        let _bound = self.device.enter()?;
        let _relaxed = CaptureModeGuard::enter(self.device.driver())?;
        let covered = self.covered();
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
        Ok(is_complete)
    }

    /// Waits on the host until the mark has been passed.
    ///
    /// # Errors
    ///
    /// What the driver says, the failure of earlier work included.
    pub fn synchronize(&self) -> Result<(), PoolError> {
        self.check_runs("waiting for a mark on the host")?;
        let _bound = self.device.enter()?;
        self.device.maintenance().before_wait();
        let _relaxed = CaptureModeGuard::enter(self.device.driver())?;
        let before = self.covered().clone();
        // SAFETY: the event is alive.
        self.device.noting(unsafe { self.device.driver().cuEventSynchronize(self.raw.0) })?;
        // Recorded anew meanwhile, it may have been waited for at another mark than the one noted.
        let after = self.covered();
        if let (Some(before), Some(after)) = (before, after.as_ref())
            && Arc::ptr_eq(&before, after)
        {
            self.clocks().raise_complete(after);
        }
        drop(after);
        self.device.after_wait();
        self.device.watch().note(OrderEvent::MarkDone(self.raw()));
        Ok(())
    }

    /// Milliseconds on the device from the other mark to this one; both must have been passed.
    ///
    /// # Errors
    ///
    /// [`PoolError::NotTimed`] for events made by [`Event::new`], [`PoolError::WrongDevice`] for those of two devices,
    /// or what the driver says: `CUDA_ERROR_NOT_READY` when a mark is still ahead.
    pub fn elapsed_ms_since(&self, start: &Event) -> Result<f32, PoolError> {
        if !(self.timed && start.timed) {
            return Err(PoolError::NotTimed);
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
            covered: Mutex::new(None),
            is_captured: AtomicBool::new(false),
            captured_in: AtomicU64::new(0),
            is_recorded: AtomicBool::new(false),
        })
    }

    pub(crate) fn queue_record(&self, stream: &Stream) -> Result<(), DriverError> {
        let mut covered = self.covered();
        self.is_recorded.store(true, Ordering::Release);
        // A capture that is broken takes no record.
        let graph =
            if self.clocks().captures().is_open() { stream.captures_for().ok().flatten() } else { None };
        // If the record fails, there is no telling where the mark is.
        *covered = None;
        *covered = self.clocks().record(stream.stream_index(), self.raw.0)?.map(Arc::from);
        self.captured_in.store(graph.filter(|_| covered.is_none()).unwrap_or(0), Ordering::Release);
        self.is_captured.store(covered.is_none(), Ordering::Release);
        Ok(())
    }

    pub(crate) fn make_wait(&self, stream: &Stream) -> Result<(), DriverError> {
        let covered = self.covered();
        self.clocks().queue_wait(stream.stream_index(), self.raw.0, covered.as_deref()).map(drop)
    }

    fn check_runs(&self, operation: &'static str) -> Result<(), PoolError> {
        match self.is_captured.load(Ordering::Acquire) && self.clocks().captures().is_open() {
            true => Err(PoolError::NotInCapture { operation }),
            false => Ok(()),
        }
    }

    /// The last stamp that it covers, unless it was never recorded, or in a capture.
    pub(crate) fn mark(&self) -> Option<Stamp> {
        self.covered().as_ref().and_then(|covered| covered.first().copied())
    }

    /// The capture of this crate in which it was last recorded.
    pub(crate) fn captured_in(&self) -> Option<u64> {
        Some(self.captured_in.load(Ordering::Acquire)).filter(|graph| *graph != 0)
    }

    /// Whether it was never recorded; a wait for such an event is a no-op.
    pub(crate) fn is_blank(&self) -> bool {
        !self.is_recorded.load(Ordering::Acquire)
    }

    fn covered(&self) -> MutexGuard<'_, Option<Arc<[Stamp]>>> {
        self.covered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clocks(&self) -> &Clocks {
        self.device.clocks()
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // Without its context the event is gone already.
        let Ok(_bound) = self.device.enter() else { return };
        let _guard = self.device.driver().teardown();
        // SAFETY: nobody passes the handle again; the driver keeps what pending waits need. There is nobody to tell of
        // a failure.
        let _ = unsafe { self.device.driver().cuEventDestroy_v2(self.raw.0) };
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("device", &self.device.ordinal())
            .field("timed", &self.timed)
            .finish_non_exhaustive()
    }
}

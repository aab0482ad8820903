//! Waits for a whole device, which must not break captures.
//!
//! | wait | bounded by |
//! | --- | --- |
//! | [`Device::synchronize`], [`Stream::synchronize`](crate::Stream::synchronize), [`Event::synchronize`](crate::Event::synchronize), `Pool::reclaim` | nothing: the caller requests the wait |
//! | ends of host borrows and imported blocks, frees of backend `none`, the drop of a device | nothing: safety takes precedence |
//! | an allocation, a growth, `Pool::reserve` | `wait_deadline_ms`, over all its attempts ([`deadline`](crate::device::deadline)) |

use super::Device;
use super::order::{MarkerEvent, Observation};
use super::watch::OrderEvent;
use crate::error::{CaptureError, DeviceError};
use core::time::Duration;
use gpumem_base::order::{Order, Stamp};
use gpumem_sys::DriverError;
use gpumem_sys::types::CUresult;
use std::sync::{RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

impl Device {
    /// Waits on the host until everything queued on the device so far is done. Then releases host memory that could not
    /// be released when it was dropped ([`DeviceError::Kept`]).
    ///
    /// # Errors
    ///
    /// - [`DeviceError::Capture`] while a capture is active on the device.
    /// - [`DeviceError::Kept`] once for each registration or import that could not be released when it was dropped.
    /// - [`DeviceError::DeviceLost`] or [`DeviceError::Driver`] if the wait or earlier work failed.
    /// - [`DeviceError::AwaitedDeviceLost`] if a device is lost that another device has waited for.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        self.check_open()?;
        self.take_kept()?;
        self.synchronize_for_drop()?;
        self.give_back_kept();
        self.check_awaited()
    }

    /// Like [`Device::synchronize`], for drops in other layers: it leaves [`DeviceError::Kept`] to the program's own calls.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Capture`], [`DeviceError::DeviceLost`] or [`DeviceError::Driver`], under the conditions of
    /// [`Device::synchronize`].
    #[doc(hidden)]
    pub fn synchronize_for_drop(&self) -> Result<(), DeviceError> {
        self.check_open()?;
        let operation = "waiting for the device";
        self.check_runs(operation)?;
        let _bound = self.enter()?;
        self.maintenance().before_wait();
        // If a capture has begun since, the wait did not include all work.
        if !self.finish_whole()? {
            return Err(DeviceError::Capture(CaptureError::NotCapturable { operation }));
        }
        self.after_wait();
        self.watch().note(OrderEvent::DeviceDone);
        Ok(())
    }

    /// Refuses an operation that would make the driver break captures of this device.
    #[doc(hidden)]
    pub fn check_runs(&self, operation: &'static str) -> Result<(), DeviceError> {
        if self.clocks().captures().captures_on(self.primary()) {
            Err(DeviceError::Capture(CaptureError::NotCapturable { operation }))
        } else {
            Ok(())
        }
    }

    /// Waits on the host for the devices of the machine that have the work of these stamps, until a deadline, if any.
    #[doc(hidden)]
    pub fn finish_stamps(&self, stamps: &[Stamp], until: Option<Instant>) -> Result<(), DriverError> {
        for stamp in stamps {
            // One wait completes the stamps of all streams of a device.
            if !self.clocks().is_complete(*stamp)
                && let Some(user) = self.clocks().device_of(stamp.stream_index()).and_then(Self::of)
            {
                match until {
                    None => user.finish()?,
                    Some(until) => drop(user.finish_until(until)?),
                }
            }
        }
        Ok(())
    }

    /// Like [`Device::synchronize`], for pools: [`Device::finish_until`] with the maintenance of a host wait, without a deadline for
    /// `None`. False if some work was not done by then.
    #[doc(hidden)]
    pub fn finish_with_maintenance(&self, until: Option<Instant>) -> Result<bool, DriverError> {
        let _bound = self.enter()?;
        self.maintenance().before_wait();
        let is_idle = match until {
            None => self.finish().map(|()| true)?,
            Some(until) => self.finish_until(until)?,
        };
        self.after_wait_until(is_idle);
        Ok(is_idle)
    }

    /// Waits for the device. While a capture is active on it, the wait includes only work behind markers, which excludes the work of
    /// another library's non-blocking stream.
    #[doc(hidden)]
    #[inline]
    pub fn finish(&self) -> Result<(), DriverError> {
        if self.finish_whole()? { Ok(()) } else { self.clocks().finish_everything(self.primary()).map(drop) }
    }

    /// Waits for all work of the device. False, without waiting, while a capture is active there.
    fn finish_whole(&self) -> Result<bool, DriverError> {
        if self.clocks().captures().captures_on(self.primary()) {
            return Ok(false);
        }
        let _bound = self.enter()?;
        let observation = self.clocks().observe_device(self.primary());
        // Taken just before the call: a thread that begins a capture does not wait for long.
        let Some(_quiet) = self.quiet() else { return Ok(false) };
        // SAFETY: the context is current and alive.
        self.noting(unsafe { self.driver().cuCtxSynchronize() })?;
        self.clocks().saw_device(self.primary(), observation);
        Ok(true)
    }

    /// Like [`Device::finish`], until a deadline: false if some work was not done by then. In either case, work that
    /// owned and long-lived streams have done by then is known to be complete.
    ///
    /// The driver's waits have no deadline, so an event behind all work of the context is queried at growing intervals. Drivers before CUDA
    /// 12.5 have no such event: there, the wait for known streams has the deadline, and the wait for other libraries' streams has none.
    #[doc(hidden)]
    pub fn finish_until(&self, until: Instant) -> Result<bool, DriverError> {
        let _entered = self.enter_relaxed()?;
        let observation = self.clocks().observe_device(self.primary());
        // Each stream's own events, before the one that covers them all.
        let mut each = Vec::new();
        if self.maintenance().has_driver_pools() {
            self.clocks().mark_each(self.primary(), &mut each)?;
        }
        let all = if self.clocks().captures().captures_on(self.primary()) {
            ContextMarker::Capturing
        } else {
            self.mark_all()?
        };
        if let ContextMarker::Event(event) = &all {
            let is_idle = self.finish_event_until(event, observation, until)?;
            if is_idle {
                each.iter().try_for_each(|(_, event)| self.noting(event.show(self.primary())))?;
            }
            return Ok(is_idle);
        }
        let (is_in_time, is_covered) = self.clocks().finish_markers_until(self.primary(), until)?;
        match all {
            ContextMarker::Missing if is_in_time => self.finish().map(|()| true),
            _ => Ok(is_in_time && is_covered),
        }
    }

    fn finish_event_until(
        &self,
        event: &MarkerEvent,
        observation: Observation,
        until: Instant,
    ) -> Result<bool, DriverError> {
        let (mut pause, mut has_marks) = (PAUSE, false);
        loop {
            if self.is_passed(event)? {
                self.clocks().saw_device(self.primary(), observation);
                return Ok(true);
            }
            let now = Instant::now();
            let is_late = now >= until;
            // If the wait takes longer, streams are marked one by one: completed work of some then counts, and reports
            // name the others.
            if !has_marks && (is_late || pause >= PAUSE_MAX) {
                self.clocks().mark_streams(self.primary())?;
                has_marks = true;
            }
            if is_late {
                self.clocks().poll(Duration::MAX)?;
                return Ok(false);
            }
            std::thread::sleep(pause.min(until - now));
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// True if the device is idle without waiting for work: all work queued so far is then known to be complete, that of streams included
    /// which only their users may mark. False if the device cannot be queried.
    #[doc(hidden)]
    pub fn is_idle(&self) -> Result<bool, DriverError> {
        let _entered = self.enter_relaxed()?;
        let observation = self.clocks().observe_device(self.primary());
        match self.mark_all()? {
            ContextMarker::Event(event) => {
                let is_idle = self.is_passed(&event)?;
                if is_idle {
                    self.clocks().saw_device(self.primary(), observation);
                }
                Ok(is_idle)
            }
            ContextMarker::Capturing => Ok(false),
            ContextMarker::Missing => {
                self.clocks().mark_streams(self.primary())?;
                self.clocks().poll(Duration::MAX)?;
                Ok(self.clocks().unfinished(self.primary()).is_empty())
            }
        }
    }

    /// Queries an event for as long as an idle device takes to complete it. The context is current.
    fn is_passed(&self, event: &MarkerEvent) -> Result<bool, DriverError> {
        for _ in 0..IDLE_QUERIES {
            if self.noting(event.query(self.primary()))? {
                return Ok(true);
            }
            core::hint::spin_loop();
        }
        Ok(false)
    }

    /// An event behind all work queued on the context's streams, other libraries' included. The context is current.
    fn mark_all(&self) -> Result<ContextMarker, DriverError> {
        if self.driver().table().cuCtxRecordEvent.is_none() {
            return Ok(ContextMarker::Missing);
        }
        let event = MarkerEvent::create(self.primary())?;
        // Taken just before the call: a thread that begins a capture does not wait for long.
        let Some(_quiet) = self.quiet() else { return Ok(ContextMarker::Capturing) };
        match event.record_all(self.primary()) {
            Ok(()) => Ok(ContextMarker::Event(event)),
            Err(error) if error.code() == CUresult::CUDA_ERROR_NOT_SUPPORTED => Ok(ContextMarker::Missing),
            Err(error) => self.noting(Err(error)),
        }
    }

    /// Does due maintenance, after an allocation on the slow path and after a query.
    #[doc(hidden)]
    #[inline]
    pub fn serve(&self) {
        self.maintenance().serve(self.primary(), self.clocks(), || self.is_idle());
    }

    /// Prevents captures from beginning on this device; `None` if one is active or beginning.
    pub(super) fn quiet(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.primary().keep_captures_out().filter(|_| !self.clocks().captures().captures_on(self.primary()))
    }

    /// Held while a capture begins on this device, until other threads can see it: a wait for the device that found no
    /// capture would break it. The driver checks for captures when a wait begins, so only the beginning of such a wait
    /// is waited for.
    #[doc(hidden)]
    pub fn begin_capture(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        let start = Instant::now();
        loop {
            match self.primary().try_begin_capture() {
                None if start.elapsed() < WAIT_BEGINS_WITHIN => std::thread::sleep(PAUSE),
                begun => return begun,
            }
        }
    }

    /// Runs maintenance after the host has waited for work of this device. The context is current.
    pub(crate) fn after_wait(&self) {
        self.maintenance().after_wait(self.primary(), self.clocks());
    }

    /// Like [`Device::after_wait`], after [`Device::finish_until`].
    #[doc(hidden)]
    pub fn after_wait_until(&self, is_idle: bool) {
        if is_idle {
            self.after_wait()
        } else {
            self.maintenance().after_late_wait(self.driver(), self.clocks())
        }
    }
}

/// The result of [`Device::mark_all`].
enum ContextMarker {
    Event(MarkerEvent),
    /// A capture is active or beginning, which the event would break.
    Capturing,
    /// The driver has no event that covers a context.
    Missing,
}

/// After this time, the driver has begun the wait of a thread that was about to wait for the device.
const WAIT_BEGINS_WITHIN: Duration = Duration::from_millis(250);
const PAUSE: Duration = Duration::from_micros(20);

/// An idle device takes some microseconds to complete an event.
const IDLE_QUERIES: usize = 64;

/// The longest pause between two queries.
const PAUSE_MAX: Duration = Duration::from_micros(200);

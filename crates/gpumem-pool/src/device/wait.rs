//! Waiting for all of a device, and captures that such a wait must not break.
//!
//! | wait | bounded by |
//! | --- | --- |
//! | [`Device::synchronize`], [`Stream::synchronize`](crate::Stream::synchronize), [`Event::synchronize`](crate::Event::synchronize), [`Pool::reclaim`](crate::Pool::reclaim) | nothing: the caller asked for the wait |
//! | ends of host borrows and imported blocks, frees of backend `none`, the end of a device | nothing: safety comes first |
//! | an allocation, a growth, [`Pool::reserve`](crate::Pool::reserve) | [`Tuning::wait_deadline`](crate::Tuning::wait_deadline), over all that it tries ([`deadline`](crate::device::deadline)) |

use super::Device;
use crate::device::{CaptureModeGuard, MarkerEvent, Observation, OrderEvent};
use crate::error::PoolError;
use core::time::Duration;
use gpumem_sys::DriverError;
use gpumem_sys::types::CUresult;
use std::sync::{RwLockReadGuard, RwLockWriteGuard, TryLockError};
use std::time::Instant;

impl Device {
    /// Waits on the host until everything queued on the device so far is done. Then gives back host memory that was kept when it
    /// was dropped ([`PoolError::Kept`]).
    ///
    /// # Errors
    ///
    /// [`PoolError::NotInCapture`] while a capture goes on on the device; [`PoolError::Kept`] once for each registration or
    /// import that could not be given back when it was dropped; [`PoolError::DeviceLost`] or [`PoolError::Driver`] if the
    /// wait or earlier work failed.
    pub fn synchronize(&self) -> Result<(), PoolError> {
        self.take_kept()?;
        self.synchronize_for_drop()?;
        self.give_back_kept();
        Ok(())
    }

    /// As [`Device::synchronize`], for the drops of other layers: reports of memory that was kept stay for the program.
    #[doc(hidden)]
    pub fn synchronize_for_drop(&self) -> Result<(), PoolError> {
        let operation = "waiting for the device";
        self.check_runs(operation)?;
        let _bound = self.enter()?;
        self.maintenance().before_wait();
        // A capture may have begun meanwhile: then part of the work has not been waited for.
        if !self.finish_whole()? {
            return Err(PoolError::NotInCapture { operation });
        }
        self.after_wait();
        self.watch().note(OrderEvent::DeviceDone);
        Ok(())
    }

    /// As [`Device::synchronize`], for pools: what they want to do at such a wait is done.
    pub(crate) fn finish_with_maintenance(&self) -> Result<(), DriverError> {
        let _bound = self.enter()?;
        self.maintenance().before_wait();
        self.finish()?;
        self.after_wait();
        Ok(())
    }

    /// While a capture goes on on the device, what markers cover is all that can be waited for: not the work of another
    /// library's non-blocking stream.
    pub(crate) fn finish(&self) -> Result<(), DriverError> {
        match self.finish_whole()? {
            true => Ok(()),
            false => self.clocks().finish_everything(self).map(drop),
        }
    }

    /// Waits for all of the device. False, without waiting, while a capture goes on there.
    fn finish_whole(&self) -> Result<bool, DriverError> {
        if self.clocks().captures().captures_on(self) {
            return Ok(false);
        }
        let _bound = self.enter()?;
        let observation = self.clocks().observe_device(self);
        // Last before the call: whoever begins a capture does not wait for long.
        let Some(_quiet) = self.quiet() else { return Ok(false) };
        // SAFETY: the context is current and alive.
        self.noting(unsafe { self.driver().cuCtxSynchronize() })?;
        self.clocks().saw_device(self, observation);
        Ok(true)
    }

    /// As [`Device::finish_with_maintenance`], but no longer than until a deadline: false if something was not done by then.
    pub(crate) fn finish_with_maintenance_until(&self, until: Instant) -> Result<bool, DriverError> {
        let _bound = self.enter()?;
        self.maintenance().before_wait();
        let is_idle = self.finish_until(until)?;
        self.after_wait_until(is_idle);
        Ok(is_idle)
    }

    /// As [`Device::finish`], but no longer than until a deadline: false if something was not done by then. What streams of
    /// ours have done by then is known to be complete in either case.
    ///
    /// The driver's waits have no deadline, so an event behind all work of the context is asked about, ever less often.
    /// Drivers before CUDA 12.5 have no such event: there only streams of ours are waited for up to the deadline, and work of
    /// others' streams without one.
    pub(crate) fn finish_until(&self, until: Instant) -> Result<bool, DriverError> {
        let _bound = self.enter()?;
        let _relaxed = CaptureModeGuard::enter(self.driver())?;
        let observation = self.clocks().observe_device(self);
        // Each stream's own, before the one that covers them all.
        let mut each = Vec::new();
        if self.maintenance().has_driver_pools() {
            self.clocks().mark_each(self, &mut each)?;
        }
        let all = match self.clocks().captures().captures_on(self) {
            true => ContextMarker::Capturing,
            false => self.mark_all()?,
        };
        if let ContextMarker::Event(event) = &all {
            let is_idle = self.finish_event_until(event, observation, until)?;
            if is_idle {
                each.iter().try_for_each(|(_, event)| self.noting(event.show(self)))?;
            }
            return Ok(is_idle);
        }
        let (is_in_time, is_covered) = self.clocks().finish_markers_until(self, until)?;
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
                self.clocks().saw_device(self, observation);
                return Ok(true);
            }
            let now = Instant::now();
            let is_late = now >= until;
            // Where it takes longer, streams are told apart: what some have done counts, and reports name the others.
            if !has_marks && (is_late || pause >= PAUSE_MAX) {
                self.clocks().mark_streams(self)?;
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

    /// Whether the device has nothing to do, as far as that can be asked without a wait for work: false where it can't.
    pub(crate) fn is_idle(&self) -> Result<bool, DriverError> {
        let _bound = self.enter()?;
        let _relaxed = CaptureModeGuard::enter(self.driver())?;
        match self.mark_all()? {
            ContextMarker::Event(event) => self.is_passed(&event),
            ContextMarker::Capturing => Ok(false),
            ContextMarker::Missing => {
                self.clocks().mark_streams(self)?;
                self.clocks().poll(Duration::MAX)?;
                Ok(self.clocks().unfinished(self).is_empty())
            }
        }
    }

    /// Asks for as long as an idle device takes to pass an event. The context is current.
    fn is_passed(&self, event: &MarkerEvent) -> Result<bool, DriverError> {
        for _ in 0..IDLE_QUERIES {
            if self.noting(event.query(self))? {
                return Ok(true);
            }
            core::hint::spin_loop();
        }
        Ok(false)
    }

    /// An event behind all that the streams of the context have queued, those of others included. The context is current.
    fn mark_all(&self) -> Result<ContextMarker, DriverError> {
        if self.driver().table().cuCtxRecordEvent.is_none() {
            return Ok(ContextMarker::Missing);
        }
        let event = MarkerEvent::create(self)?;
        // Last before the call: whoever begins a capture does not wait for long.
        let Some(_quiet) = self.quiet() else { return Ok(ContextMarker::Capturing) };
        match event.record_all(self) {
            Ok(()) => Ok(ContextMarker::Event(event)),
            Err(error) if error.code() == CUresult::CUDA_ERROR_NOT_SUPPORTED => Ok(ContextMarker::Missing),
            Err(error) => self.noting(Err(error)),
        }
    }

    /// Does what is due: after an allocation that took the slow path, and after a query.
    #[inline]
    pub(crate) fn serve(&self) {
        self.maintenance().serve(self);
    }

    /// Keeps captures from beginning on this device; `None` if one goes on or is just beginning.
    pub(super) fn quiet(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.keep_captures_out().filter(|_| !self.clocks().captures().captures_on(self))
    }

    /// Keeps captures from beginning on this device, whether others go on or not; `None` if one is just beginning.
    pub(crate) fn keep_captures_out(&self) -> Option<RwLockReadGuard<'_, ()>> {
        match self.0.common.quiet.try_read() {
            Ok(quiet) => Some(quiet),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// For whoever begins a capture on this device, until others can know of it: a wait for the device that had found none
    /// would break it. The driver looks where a wait begins, so of one that goes on, only the beginning is waited for.
    pub(crate) fn begin_capture(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        let start = Instant::now();
        loop {
            match self.0.common.quiet.try_write() {
                Ok(quiet) => return Some(quiet),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if start.elapsed() >= WAIT_BEGINS_WITHIN => return None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
            }
        }
    }

    /// The host has waited for work of this device. The context is current.
    pub(crate) fn after_wait(&self) {
        self.maintenance().after_wait(self.driver(), self.clocks());
    }

    /// The same after [`Device::finish_until`].
    pub(crate) fn after_wait_until(&self, is_idle: bool) {
        match is_idle {
            true => self.after_wait(),
            false => self.maintenance().after_late_wait(self.driver(), self.clocks()),
        }
    }
}

/// What [`Device::mark_all`] came to.
enum ContextMarker {
    Event(MarkerEvent),
    /// A capture goes on or is beginning, which it would break.
    Capturing,
    /// The driver has no such event.
    Missing,
}

/// By then a thread that is about to wait for the device has been let in by the driver.
const WAIT_BEGINS_WITHIN: Duration = Duration::from_millis(250);
const PAUSE: Duration = Duration::from_micros(20);

/// An idle device takes some microseconds to pass an event.
const IDLE_QUERIES: usize = 64;

/// Between two questions, in the long run.
const PAUSE_MAX: Duration = Duration::from_micros(200);

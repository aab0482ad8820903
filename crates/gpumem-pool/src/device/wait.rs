//! Waiting for all of a device, and captures that such a wait must not break.

use super::Device;
use crate::error::PoolError;
use core::time::Duration;
use gpumem_sys::DriverError;
use std::sync::{RwLockReadGuard, RwLockWriteGuard, TryLockError};
use std::time::Instant;

impl Device {
    /// Waits on the host until everything queued on the device so far is done.
    ///
    /// # Errors
    ///
    /// [`PoolError::NotInCapture`] while a capture goes on on the device; [`PoolError::Kept`] once for each registration or
    /// import that could not be given back when it was dropped; [`PoolError::DeviceLost`] or [`PoolError::Driver`] if the
    /// wait or earlier work failed.
    pub fn synchronize(&self) -> Result<(), PoolError> {
        self.take_kept()?;
        self.synchronize_for_drop()
    }

    /// As [`Device::synchronize`], for the drops of other layers: reports of memory that was kept stay for the program.
    #[doc(hidden)]
    pub fn synchronize_for_drop(&self) -> Result<(), PoolError> {
        let operation = "waiting for the device";
        self.check_runs(operation)?;
        let _bound = self.enter()?;
        self.upkeep().before_wait();
        // A capture may have begun meanwhile: then part of the work has not been waited for.
        if !self.finish_whole()? {
            return Err(PoolError::NotInCapture { operation });
        }
        self.after_wait();
        self.watch().device_done();
        Ok(())
    }

    /// As [`Device::synchronize`], for pools: what they want to do at such a wait is done.
    pub(crate) fn finish_with_upkeep(&self) -> Result<(), DriverError> {
        let _bound = self.enter()?;
        self.upkeep().before_wait();
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
        if self.clocks().holds().captures_on(self) {
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

    /// Keeps captures from beginning on this device; `None` if one goes on or is just beginning.
    pub(super) fn quiet(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.keep_captures_out().filter(|_| !self.clocks().holds().captures_on(self))
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
        self.upkeep().after_wait(self.driver(), self.clocks());
    }
}

/// By then a thread that is about to wait for the device has been let in by the driver.
const WAIT_BEGINS_WITHIN: Duration = Duration::from_millis(250);
const PAUSE: Duration = Duration::from_micros(20);

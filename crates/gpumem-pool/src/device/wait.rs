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
    /// What the driver says, the failure of earlier work included.
    pub fn synchronize(&self) -> Result<(), PoolError> {
        self.check_runs("waiting for the device")?;
        self.finish_with_upkeep()?;
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

    /// While streams of this device capture, those that do not, and that are ours, are all that can be waited for.
    pub(crate) fn finish(&self) -> Result<(), DriverError> {
        if self.clocks().holds().captures_on(self) {
            return self.clocks().finish_streams(self);
        }
        let _bound = self.enter()?;
        let observation = self.clocks().observe_device(self);
        // Last before the call: whoever begins a capture does not wait for long.
        let Some(_quiet) = self.quiet() else { return self.clocks().finish_streams(self) };
        // SAFETY: the context is current and alive.
        self.noting(unsafe { self.driver().cuCtxSynchronize() })?;
        self.clocks().saw_device(self, observation);
        Ok(())
    }

    /// Keeps captures from beginning on this device; `None` if one goes on or is just beginning.
    fn quiet(&self) -> Option<RwLockReadGuard<'_, ()>> {
        let quiet = match self.0.common.quiet.try_read() {
            Ok(quiet) => quiet,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        (!self.clocks().holds().captures_on(self)).then_some(quiet)
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

//! Devices that wait for the work of others.
//!
//! If a device is lost, the waits of other devices' streams for it end as if its work had run, and no call on those devices fails. So the
//! waits between devices are listed until the work is known to be complete and its device known to be alive. When the host has waited for a
//! device, the program learns that a listed wait failed ([`Device::check_awaited`]). Which contents come from the lost work is not tracked:
//! until the waiting device is closed, all waits of the host fail, for any device.

use super::{Clocks, Order, Stamp, StreamIndex};
use crate::device::{Device, Handle};
use crate::error::{PoolError, is_over};
use core::sync::atomic::Ordering;
use gpumem_sys::types::{CUcontext, CUctx_st};
use gpumem_sys::{Driver, DriverError};
use std::sync::{MutexGuard, PoisonError};

/// A wait of one context's streams for the work of another. There is one for each stream that is waited for.
pub(super) struct Awaited {
    waiter: Handle<CUctx_st>,
    source: Handle<CUctx_st>,
    /// Their devices.
    ordinals: [u32; 2],
    /// The latest work that is waited for.
    stamp: Stamp,
    /// The error with which the device of `source` was lost, if it has been closed since.
    lost: Option<DriverError>,
}

impl Clocks {
    /// Adds the waits for the work of other devices that a stream makes by waiting for `covered`.
    pub(super) fn note_awaited(&self, waiter: StreamIndex, covered: &[Stamp]) {
        if !self.had_several_devices.load(Ordering::Acquire) {
            return;
        }
        let Some(waiter) = self.device_of(waiter) else { return };
        for stamp in covered.iter().filter(|stamp| !self.is_complete(**stamp)) {
            // The streams of its own device are ordered behind their waits.
            if let Some(source) = self.device_of(stamp.stream_index()).filter(|source| *source != waiter) {
                self.add_awaited(&waiter, &source, *stamp);
            }
        }
    }

    fn add_awaited(&self, waiter: &Device, source: &Device, stamp: Stamp) {
        let mut list = self.awaited();
        let known = list.iter_mut().find(|known| {
            known.waiter.0 == waiter.context()
                && known.source.0 == source.context()
                && known.stamp.stream_index() == stamp.stream_index()
        });
        match known {
            Some(known) => known.stamp = known.stamp.max(stamp),
            None => list.push(Awaited {
                waiter: Handle(waiter.context()),
                source: Handle(source.context()),
                ordinals: [waiter.ordinal(), source.ordinal()],
                stamp,
                lost: None,
            }),
        }
        self.has_awaited.store(true, Ordering::Release);
    }

    /// Returns an error if a device is lost that another device has waited for. Forgets the waits for work that has run.
    #[cold]
    fn find_lost_source(&self) -> Result<(), PoolError> {
        let devices = self.devices_with_reset();
        let waits: Vec<_> =
            self.awaited().iter().map(|wait| (wait.source.0, wait.stamp, wait.lost, wait.ordinals)).collect();
        for (source, stamp, lost, [ordinal, awaited]) in waits {
            // Queried before the device: if the device is alive afterwards, the work has run.
            let is_complete = self.is_complete(stamp);
            let loss = || devices.iter().find(|device| device.context() == source)?.loss();
            if let Some(error) = lost.or_else(loss) {
                return Err(PoolError::AwaitedDeviceLost { ordinal, awaited, error });
            }
            if is_complete {
                self.retain_awaited(|wait| wait.source.0 != source || wait.stamp != stamp);
            }
        }
        Ok(())
    }

    /// The end of a context, whose handle may be reused. `error` states that it was lost.
    pub(super) fn end_awaited(&self, context: CUcontext, error: impl FnOnce() -> Option<DriverError>) {
        if !self.has_awaited.load(Ordering::Acquire) {
            return;
        }
        let error = error();
        self.retain_awaited(|wait| {
            let is_source = wait.source.0 == context;
            if is_source {
                (wait.source, wait.lost) = (Handle(core::ptr::null_mut()), error);
            }
            wait.waiter.0 != context && (!is_source || error.is_some())
        });
    }

    fn retain_awaited(&self, keeps: impl FnMut(&mut Awaited) -> bool) {
        let mut list = self.awaited();
        list.retain_mut(keeps);
        self.has_awaited.store(!list.is_empty(), Ordering::Release);
    }

    fn awaited(&self) -> MutexGuard<'_, Vec<Awaited>> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error of the current context, if it is lost.
pub(super) fn loss_of_current(driver: &Driver) -> Option<DriverError> {
    let (mut free, mut total) = (0_usize, 0_usize);
    // SAFETY: both outlive the call.
    let answer = unsafe { driver.cuMemGetInfo_v2(&mut free, &mut total) };
    answer.err().filter(|error| is_over(error.code()))
}

impl Device {
    /// Returns an error if a device is lost that another device has waited for. Called after each wait of the host that the program
    /// requests.
    ///
    /// # Errors
    ///
    /// [`PoolError::AwaitedDeviceLost`].
    #[inline]
    pub(crate) fn check_awaited(&self) -> Result<(), PoolError> {
        if self.clocks().has_awaited.load(Ordering::Acquire) {
            self.clocks().find_lost_source()
        } else {
            Ok(())
        }
    }
}

//! Devices that wait for the work of others.
//!
//! If a device is lost, the waits of other devices' streams for it end as if its work had run, and no call on those devices fails. So the
//! waits between devices are listed until the work is known to be complete and its device known to be alive. When the host has waited for a
//! device, the program learns that a listed wait failed ([`Clocks::check_awaited`](super::Clocks::check_awaited)). Which contents come from
//! the lost work is not tracked: until the waiting device is closed, all waits of the host fail, for any device.

use crate::device::context::Handle;
use crate::device::primary::{HeldContext, PrimaryContext};
use crate::error::DeviceError;
use core::sync::atomic::{AtomicBool, Ordering};
use gpumem_base::order::Stamp;
use gpumem_base::sync::Lock;
use gpumem_sys::DriverError;
use gpumem_sys::types::{CUcontext, CUctx_st};

#[derive(Default)]
pub(super) struct AwaitedWork {
    /// True if there were ever two devices, which can wait for each other.
    is_expected: AtomicBool,
    /// True if there are any waits. Each wait of the host checks it.
    has_any: AtomicBool,
    waits: Lock<Vec<Awaited>>,
}

/// A wait of one context's streams for the work of another. There is one for each stream that is waited for.
struct Awaited {
    waiter: Handle<CUctx_st>,
    source: Handle<CUctx_st>,
    ordinals: [u32; 2],
    /// The latest work that is waited for.
    stamp: Stamp,
    /// The error with which the device of `source` was lost, if it has been closed since.
    lost: Option<DriverError>,
}

impl AwaitedWork {
    pub(super) fn expect_waits(&self) {
        self.is_expected.store(true, Ordering::Release);
    }

    pub(super) fn is_expected(&self) -> bool {
        self.is_expected.load(Ordering::Acquire)
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        !self.has_any.load(Ordering::Acquire)
    }

    pub(super) fn add(&self, waiter: &PrimaryContext, source: &PrimaryContext, stamp: Stamp) {
        let mut list = self.waits.lock();
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
        self.has_any.store(true, Ordering::Release);
    }

    /// Returns an error if a device is lost that another device has waited for. Forgets the waits for work that has run.
    #[cold]
    pub(super) fn find_lost_source(
        &self,
        devices: &[HeldContext],
        is_complete: impl Fn(Stamp) -> bool,
    ) -> Result<(), DeviceError> {
        let waits: Vec<_> = self
            .waits
            .lock()
            .iter()
            .map(|wait| (wait.source.0, wait.stamp, wait.lost, wait.ordinals))
            .collect();
        for (source, stamp, lost, [ordinal, awaited]) in waits {
            // Queried before the device: if the device is alive afterwards, the work has run.
            let is_complete = is_complete(stamp);
            let loss = || devices.iter().find(|device| device.context() == source)?.loss();
            if let Some(error) = lost.or_else(loss) {
                return Err(DeviceError::AwaitedDeviceLost { ordinal, awaited, error });
            }
            if is_complete {
                self.retain(|wait| wait.source.0 != source || wait.stamp != stamp);
            }
        }
        Ok(())
    }

    /// The end of a context, whose handle may be reused. `error` states that it was lost.
    pub(super) fn end(&self, context: CUcontext, error: impl FnOnce() -> Option<DriverError>) {
        if self.is_empty() {
            return;
        }
        let error = error();
        self.retain(|wait| {
            let is_source = wait.source.0 == context;
            if is_source {
                (wait.source, wait.lost) = (Handle(core::ptr::null_mut()), error);
            }
            wait.waiter.0 != context && (!is_source || error.is_some())
        });
    }

    fn retain(&self, keeps: impl FnMut(&mut Awaited) -> bool) {
        let mut list = self.waits.lock();
        list.retain_mut(keeps);
        self.has_any.store(!list.is_empty(), Ordering::Release);
    }
}

//! [`PendingFrees`]: memory of dropped blocks that is not yet back at the driver.

use crate::backend::allocation::FreeRequest;
use core::sync::atomic::{AtomicBool, Ordering};
use gpumem_base::sync::Lock;
use gpumem_device::Device;
use gpumem_device::internal::{Clocks, HowFar, Order, Stamp};
use gpumem_sys::types::CUdeviceptr;
use gpumem_sys::{Driver, DriverError};

pub(super) struct PendingFree {
    pub(super) address: CUdeviceptr,
    pub(super) stamps: Vec<Stamp>,
}

#[derive(Default)]
pub(super) struct PendingFrees {
    waiting: Lock<Vec<PendingFree>>,
    failed: Lock<Vec<PendingFree>>,
    /// True if any free is waiting. Each allocation checks it.
    has_waiting: AtomicBool,
}

impl PendingFree {
    pub(super) fn new(freed: &FreeRequest, clocks: &Clocks) -> Self {
        let stamps = freed.stamps(clocks).collect();
        Self { address: freed.allocation.address, stamps }
    }

    fn is_complete(&self, clocks: &Clocks) -> bool {
        self.stamps.iter().all(|stamp| clocks.is_complete(*stamp))
    }
}

impl PendingFrees {
    pub(super) fn has_waiting(&self) -> bool {
        self.has_waiting.load(Ordering::Acquire)
    }

    pub(super) fn add(&self, free: PendingFree) {
        self.waiting.lock().push(free);
        self.has_waiting.store(true, Ordering::Release);
    }

    /// Adds a free that the driver refused. In a host function, where it allows no calls, the free waits for the next call of another
    /// thread; after any other failure the memory stays reserved.
    pub(super) fn add_refused(&self, free: PendingFree, error: DriverError) -> Result<(), DriverError> {
        if error.is_not_permitted() {
            self.add(free);
            return Ok(());
        }
        self.failed.lock().push(free);
        Err(error)
    }

    /// Removes each waiting free for which `free` returns true. Returns true if any was removed. A failed free stays, and the others are
    /// tried.
    ///
    /// # Errors
    ///
    /// The error of the last free that failed.
    pub(super) fn sweep(
        &self,
        free: impl Fn(&PendingFree) -> Result<bool, DriverError>,
    ) -> Result<bool, DriverError> {
        let mut waiting = self.waiting.lock();
        let (before_count, mut failed) = (waiting.len(), None);
        waiting.retain(|pending| match free(pending) {
            Ok(is_freed) => !is_freed,
            Err(error) => {
                failed = Some(error);
                true
            }
        });
        self.has_waiting.store(!waiting.is_empty(), Ordering::Release);
        failed.map_or(Ok(waiting.len() < before_count), Err)
    }

    /// Records markers in streams with pending uses, so that their completion can be detected.
    pub(super) fn record_markers(&self, clocks: &Clocks) -> Result<(), DriverError> {
        let mut stamps: Vec<Stamp> =
            self.waiting.lock().iter().flat_map(|free| free.stamps.clone()).collect();
        // Only the latest stamp of a stream can lack a marker.
        let is_unmarked = |stamp: &Stamp| clocks.stamp(stamp.stream_index()) == *stamp;
        stamps.retain(is_unmarked);
        for stamp in stamps {
            if is_unmarked(&stamp) {
                clocks.record_marker(stamp.stream_index())?;
            }
        }
        Ok(())
    }

    /// At the end of the pool: frees that failed wait again.
    pub(super) fn retry_failed(&self) {
        let failed = core::mem::take(&mut *self.failed.lock());
        failed.into_iter().for_each(|free| self.add(free));
    }

    /// At the end of the pool: hands the remaining memory to the device's maintenance, which calls `release` for each
    /// address. The driver pool may be destroyed before that: the driver keeps it until its last block is freed.
    pub(super) fn leave_to(
        &self,
        device: &Device,
        release: impl Fn(&Driver, CUdeviceptr) -> Result<(), DriverError> + Send + 'static,
    ) {
        let mut frees = core::mem::take(&mut *self.waiting.lock());
        if !frees.is_empty() {
            device.maintenance().defer_release(false, true, move |driver, clocks, how| {
                let is_done = |free: &PendingFree| how == HowFar::All || free.is_complete(clocks);
                frees.retain(|free| !(is_done(free) && release(driver, free.address).is_ok()));
                frees.is_empty()
            });
        }
    }
}

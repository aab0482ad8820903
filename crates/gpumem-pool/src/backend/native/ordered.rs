//! [`Ordered`]: frees of device memory, each in the order of a stream.

use super::pending_frees::{PendingFree, PendingFrees};
use crate::backend::allocation::FreeRequest;
use crate::figures::ActivityCounters;
use gpumem_base::sync::Lock;
use gpumem_device::internal::{Order, Stamp};
use gpumem_device::{Device, DeviceError, MemoryRange, Stream, StreamId};
use gpumem_sys::DriverError;
use gpumem_sys::types::CUdeviceptr;
use std::sync::Arc;

pub(super) struct Ordered {
    device: Device,
    activity: Arc<ActivityCounters>,
    /// The stream for blocks that can't be freed in the order of their owner stream. Created on first use.
    sweeper: Lock<Option<Stream>>,
    pub(super) pending: PendingFrees,
}

impl Ordered {
    pub(super) fn new(device: &Device, activity: &Arc<ActivityCounters>) -> Self {
        let (device, activity) = (device.clone(), Arc::clone(activity));
        Self { device, activity, sweeper: Lock::default(), pending: PendingFrees::default() }
    }

    /// Records a marker in the stream and queues the frees that waited for it. The caller of the allocation has
    /// passed the stream, so the pool may use it during this call.
    pub(super) fn before_acquire(&self, stream: &Stream) -> Result<(), DriverError> {
        if self.pending.has_waiting() {
            stream.clocks().record_marker_by_user(stream.stream_index())?;
            // A failure concerns other blocks, so the next trim returns it.
            let _ = self.sweep();
        }
        Ok(())
    }

    /// Frees a block in the order of its owner stream. If that is impossible, because the stream is gone, belongs to another library,
    /// captures, or may not wait for the other uses, frees it in the order of the pool's own stream. After a failure the memory stays
    /// reserved.
    pub(super) fn release(&self, freed: &FreeRequest) -> Result<(), DriverError> {
        let clocks = self.device.clocks();
        let freed_in_order = self.free(freed.allocation.address, freed.stamps(clocks), freed.owner_stream);
        if matches!(freed_in_order, Ok(true)) {
            return Ok(());
        }
        let pending = PendingFree::new(freed, clocks);
        match freed_in_order.and_then(|_| self.free_apart(&pending)) {
            Ok(true) => Ok(()),
            Ok(false) => {
                self.pending.add(pending);
                Ok(())
            }
            Err(error) => self.pending.add_refused(pending, error),
        }
    }

    /// Queues the waiting frees whose streams the pool may now wait for. Returns true if any was queued.
    pub(super) fn sweep(&self) -> Result<bool, DriverError> {
        self.pending.sweep(|pending| self.free_apart(pending))
    }

    /// Frees a block in the order of the pool's own stream. Returns false if that stream can't wait for one of the uses
    /// now.
    fn free_apart(&self, pending: &PendingFree) -> Result<bool, DriverError> {
        let Some(sweeper) = self.sweeper()? else { return Ok(false) };
        self.free(pending.address, pending.stamps.iter().copied(), sweeper.id())
    }

    /// Queues a free on a stream, behind all uses. Returns false if that is impossible now.
    fn free(
        &self,
        address: CUdeviceptr,
        uses: impl Iterator<Item = Stamp>,
        stream: StreamId,
    ) -> Result<bool, DriverError> {
        // SAFETY: the address came from the driver's pool and its only block is gone or being dropped; the stream is
        // alive during the call, and waits for every stream that used the block.
        let call = |stream| unsafe { self.device.driver().cuMemFreeAsync(address, stream) };
        let free = |stream| self.activity.driver_call(|| call(stream));
        let (clocks, mut wait_count) = (self.device.clocks(), 0);
        let counted = uses.inspect(|stamp| {
            wait_count += u64::from(!clocks.is_ordered(*stamp, stream.stream_index()));
        });
        // This backend's memory does not sleep.
        let is_queued = self.device.queue_behind(counted, stream, MemoryRange::NONE, free)?;
        if is_queued {
            self.activity.inserted_wait_count.add(wait_count);
        }
        Ok(is_queued)
    }

    fn sweeper(&self) -> Result<Option<Stream>, DriverError> {
        let mut sweeper = self.sweeper.lock();
        if sweeper.is_none() {
            *sweeper = match Stream::new(&self.device) {
                Ok(stream) => Some(stream),
                Err(
                    DeviceError::Driver(cause)
                    | DeviceError::HostFunction(cause)
                    | DeviceError::DeviceLost(cause),
                ) => return Err(cause),
                Err(_) => None,
            };
        }
        Ok(sweeper.clone())
    }
}

impl Drop for Ordered {
    fn drop(&mut self) {
        self.pending.retry_failed();
        let _ = self.sweep();
        // Markers let the device detect when the pending work is complete, where streams can be marked.
        let _ = self.pending.record_markers(self.device.clocks());
        // The release call waits for the device, because there is no stream to queue the free on: every stream may be
        // gone, and a stream created here would keep its device alive.
        // SAFETY: the address came from the driver's pool, its only block is gone, and all uses are complete.
        self.pending.leave_to(&self.device, |driver, address| unsafe { driver.cuMemFree_v2(address) });
    }
}

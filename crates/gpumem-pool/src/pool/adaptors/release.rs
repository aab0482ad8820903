//! [`Release`]: memory on its way back through the adaptors.

use crate::config::PoolId;
use core::cell::Cell;
use core::ops::Range;
use gpumem_device::{Device, MemoryRange, StreamId};
use gpumem_sys::text::debug_fields;
use gpumem_sys::types::{CUdeviceptr, CUstream};
use gpumem_sys::{Driver, DriverError};

/// Memory that is about to be freed, with the address and size that the notified adaptor returned.
pub struct Release<'a> {
    pub(super) address: CUdeviceptr,
    pub(super) size_bytes: u64,
    pub(super) whole: (CUdeviceptr, u64),
    pub(super) owner_stream: StreamId,
    pub(super) uses: u64,
    pub(super) device: &'a Device,
    pub(super) pool: PoolId,
    /// Set to false as soon as an adaptor queues work on the memory.
    pub(super) is_complete: &'a Cell<bool>,
}

impl<'a> Release<'a> {
    /// Returns the start address.
    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }

    /// Returns the size in bytes that the adaptor passed on.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns the whole range, including the bytes that the adaptor itself hid ([`Grant::narrow`](super::Grant::narrow)).
    #[must_use]
    pub fn whole(&self) -> Range<CUdeviceptr> {
        let (address, size_bytes) = self.whole;
        address..address + size_bytes
    }

    /// Returns the owner stream, in whose order the memory is freed. The stream itself may no longer exist.
    #[must_use]
    pub fn stream_id(&self) -> StreamId {
        self.owner_stream
    }

    /// Returns the pool's device.
    #[must_use]
    pub fn device(&self) -> &'a Device {
        self.device
    }

    /// Returns the identifier of the pool that allocated the memory.
    #[must_use]
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// Returns the other streams that have used the memory.
    pub fn users(&self) -> impl Iterator<Item = StreamId> + use<'a> {
        self.device.clocks().users(self.uses)
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete.get()
    }

    /// Queues work on the owner stream behind all uses of the memory. The stream's context is current during the call. Returns false if the
    /// memory sleeps, or if a wait would be needed: the owner stream is gone, belongs to another library or captures, or must not wait for
    /// one of the other streams.
    pub(crate) fn queue(&self, work: impl FnOnce(&Driver, CUstream) -> Result<(), DriverError>) -> bool {
        let (device, whole) = (self.device, self.whole());
        let uses = (!self.is_complete.get()).then(|| device.clocks().uses(self.owner_stream, self.uses));
        let memory = [MemoryRange::new(whole.start, whole.end - whole.start)];
        let call = |owner_stream| work(device.driver(), owner_stream);
        // A refused driver call has queued nothing.
        let queued =
            device.queue_behind(uses.into_iter().flatten(), self.owner_stream, memory, call).unwrap_or(false);
        if queued {
            self.set_used();
        }
        queued
    }

    /// Marks the memory as in use by the device, regardless of the free's guarantee.
    pub(crate) fn set_used(&self) {
        self.is_complete.set(false);
    }
}

debug_fields!(Release<'_>, it, address: format_args!("{:#x}", it.address()), size_bytes: it.size_bytes());

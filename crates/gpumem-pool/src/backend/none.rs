//! `none`: every block is an allocation of its own, and nothing is kept.
//!
//! For debugging tools that watch allocations, for interfaces that refuse stream-ordered memory, and for drivers without
//! pools. A free waits for the devices whose streams used the block: the plain free has no place in any stream's order,
//! and that it waits for the device by itself is what drivers do, not what they promise.

use super::direct::DriverAllocator;
use super::{FreeRequest, Reserved, plain};
use crate::config::{BackendKind, MemoryKind};
use crate::device::{CaptureModeGuard, Device, Order, Stamp, Stream};
use crate::error::PoolError;
use gpumem_sys::DriverError;
use gpumem_sys::types::CUdeviceptr;
use std::sync::{Mutex, PoisonError};

pub(crate) struct PlainAllocator {
    kind: MemoryKind,
    /// What the driver would not take back when it was asked, for the end of the pool.
    failed: Mutex<Option<Failed>>,
}

#[derive(Debug)]
struct Failed {
    device: Device,
    frees: Vec<FreeRequest>,
}

impl PlainAllocator {
    pub(super) fn new(kind: MemoryKind) -> Self {
        Self { kind, failed: Mutex::default() }
    }

    fn free(&self, device: &Device, freed: &FreeRequest) -> Result<(), DriverError> {
        let clocks = device.clocks();
        let stamps: Vec<Stamp> = freed.stamps(clocks).collect();
        for stamp in stamps {
            // One wait completes the stamps of all streams of a device.
            if !clocks.is_complete(stamp)
                && let Some(user) = clocks.device_of(stamp.stream_index())
            {
                user.finish()?;
            }
        }
        let _bound = device.enter()?;
        let _relaxed = CaptureModeGuard::enter(device.driver())?;
        // SAFETY: the address came from `acquire`, its one block is gone, and after a success nobody names it again. The uses of
        // the block are done; only while a capture goes on may another library's stream, which can't be marked then, have one
        // that is pending: it is the program's to order before the drop, and the driver's plain free waits for the device by
        // itself.
        unsafe { plain::release(device.driver(), self.kind, freed.allocation.address) }
    }
}

impl Drop for PlainAllocator {
    fn drop(&mut self) {
        let failed = self.failed.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Failed { device, frees }) = failed {
            for freed in &frees {
                // There is nobody to tell of a failure.
                let _ = self.free(&device, freed);
            }
        }
    }
}

impl DriverAllocator for PlainAllocator {
    const KIND: BackendKind = BackendKind::None;
    const KEEPS_MEMORY: bool = false;

    fn acquire(&self, size_bytes: u64, stream: &Stream) -> Result<CUdeviceptr, DriverError> {
        let device = stream.device();
        let _bound = device.enter()?;
        let _relaxed = CaptureModeGuard::enter(device.driver())?;
        plain::acquire(device.driver(), self.kind, size_bytes)
    }

    fn release(&self, device: &Device, freed: &FreeRequest) -> Result<(), DriverError> {
        self.free(device, freed).inspect_err(|_| {
            let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
            let failed = failed.get_or_insert_with(|| Failed { device: device.clone(), frees: Vec::new() });
            failed.frees.push(*freed);
        })
    }

    fn enable_peer_access(&self, device: &Device, peer: &Device) -> Result<(), DriverError> {
        plain::enable_peer_access(device, self.kind, peer)
    }

    /// The driver never moves what `cuMemAlloc` has given.
    fn pin(&self) -> Result<(), PoolError> {
        Ok(())
    }

    fn trim_to(&self, _device: &Device, _keep_bytes: u64) -> Result<(), DriverError> {
        Ok(())
    }

    fn reserved(&self, _device: &Device) -> Result<Option<Reserved>, DriverError> {
        Ok(None)
    }
}

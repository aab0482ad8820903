//! `none`: every block is an allocation of its own, and nothing is cached.
//!
//! This backend is for debugging tools that track allocations, for interfaces that reject stream-ordered memory, and
//! for drivers without pools. A free waits for the devices whose streams used the block, because the plain free is
//! not stream-ordered. Drivers wait for the device in that call, but do not promise it.

use super::direct::DriverAllocator;
use super::{FreeRequest, Reserved, plain};
use crate::config::{BackendKind, MemoryKind};
use crate::device::{Device, PeerDevice, Stamp, Stream};
use crate::error::PoolError;
use crate::stats::ActivityCounters;
use core::sync::atomic::{AtomicU64, Ordering};
use gpumem_sys::DriverError;
use gpumem_sys::types::CUdeviceptr;
use std::sync::{Arc, Mutex, PoisonError};

pub(crate) struct PlainAllocator {
    kind: MemoryKind,
    activity: Arc<ActivityCounters>,
    /// The bytes by which the driver rounds up live blocks of more than [`SMALL_BYTES_MAX`].
    rounding_bytes: AtomicU64,
    /// Frees that failed. They are retried when the pool ends.
    failed: Mutex<Option<Failed>>,
}

#[derive(Debug)]
struct Failed {
    device: Device,
    frees: Vec<FreeRequest>,
}

impl PlainAllocator {
    pub(super) fn new(kind: MemoryKind, activity: &Arc<ActivityCounters>) -> Self {
        let (activity, rounding_bytes) = (Arc::clone(activity), AtomicU64::new(0));
        Self { kind, activity, rounding_bytes, failed: Mutex::default() }
    }

    /// The bytes by which the driver rounds up a block of device memory.
    fn rounding_of(&self, size_bytes: u64) -> u64 {
        match self.kind == MemoryKind::Device && size_bytes > SMALL_BYTES_MAX {
            true => size_bytes.wrapping_neg() % PAGE_BYTES,
            false => 0,
        }
    }

    fn free(&self, device: &Device, freed: &FreeRequest) -> Result<(), DriverError> {
        let clocks = device.clocks();
        let uses: Vec<Stamp> = freed.stamps(clocks).collect();
        if !uses.is_empty() {
            self.activity.host_wait(|| clocks.finish_stamps(&uses, None))?;
        }
        let _entered = device.enter_relaxed()?;
        // SAFETY: the address came from `acquire`, its only block is gone, and the address is not used again after a
        // success. The uses of the block are complete, with one exception: during a capture, another library's stream
        // can't be marked and may have a pending use. The program must order that use before the drop, and the
        // driver's plain free waits for the device.
        self.activity
            .driver_call(|| unsafe { plain::release(device.driver(), self.kind, freed.allocation.address) })
    }
}

impl Drop for PlainAllocator {
    fn drop(&mut self) {
        let failed = self.failed.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Failed { device, frees }) = failed {
            for freed in &frees {
                // A drop cannot report a failure.
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
        let _entered = device.enter_relaxed()?;
        let acquire = || plain::acquire(device.driver(), self.kind, size_bytes);
        let address = self.activity.driver_call(acquire)?;
        self.rounding_bytes.fetch_add(self.rounding_of(size_bytes), Ordering::Relaxed);
        Ok(address)
    }

    fn release(&self, device: &Device, freed: &FreeRequest) -> Result<(), DriverError> {
        let released = self.free(device, freed).inspect_err(|_| {
            let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
            let failed = failed.get_or_insert_with(|| Failed { device: device.clone(), frees: Vec::new() });
            failed.frees.push(*freed);
        });
        if released.is_ok() {
            self.rounding_bytes.fetch_sub(self.rounding_of(freed.size_bytes), Ordering::Relaxed);
        }
        released
    }

    fn rounding_bytes(&self) -> u64 {
        self.rounding_bytes.load(Ordering::Relaxed)
    }

    fn enable_peer_access(&self, device: &Device, peer: PeerDevice) -> Result<(), PoolError> {
        plain::enable_peer_access(device, self.kind, peer)
    }

    /// The driver never moves memory from `cuMemAlloc`.
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

/// Blocks up to this size share pages with others.
const SMALL_BYTES_MAX: u64 = 1 << 20;

/// The driver gives larger blocks whole pages.
const PAGE_BYTES: u64 = 2 << 20;

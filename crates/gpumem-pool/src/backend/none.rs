//! `none`: every block is a separate allocation, and nothing is cached.
//!
//! This backend is for debugging tools that track allocations, for interfaces that reject stream-ordered memory, and
//! for drivers without pools. A free waits for the devices whose streams used the block, because the plain free is
//! not stream-ordered. Drivers wait for the device in that call, but do not promise it.

use super::allocation::FreeRequest;
use super::direct::DriverAllocator;
use super::figures::Reserved;
use super::plain;
use crate::config::MemoryKind;
use crate::error::PoolError;
use crate::figures::ActivityCounters;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use gpumem_base::sync::Lock;
use gpumem_device::internal::{HowFar, Order, PeerDevice, Stamp};
use gpumem_device::{Device, Stream};
use gpumem_sys::DriverError;
use gpumem_sys::types::CUdeviceptr;
use std::sync::Arc;

pub(crate) struct PlainAllocator {
    kind: MemoryKind,
    activity: Arc<ActivityCounters>,
    /// The bytes by which the driver rounds up live blocks of more than [`SMALL_BYTES_MAX`].
    rounding_bytes: AtomicU64,
    /// Frees that failed. They are retried when the pool ends, or by the next call.
    failed: Lock<Vec<(Device, FreeRequest)>>,
    /// True if the next call retries them, because the driver refused some in a host function, where it allows no calls. Each allocation
    /// checks it.
    has_refused: AtomicBool,
}

impl PlainAllocator {
    pub(super) fn new(kind: MemoryKind, activity: &Arc<ActivityCounters>) -> Self {
        let (activity, rounding_bytes) = (Arc::clone(activity), AtomicU64::new(0));
        Self { kind, activity, rounding_bytes, failed: Lock::default(), has_refused: AtomicBool::new(false) }
    }

    fn rounding_of(&self, size_bytes: u64) -> u64 {
        if self.kind == MemoryKind::Device && size_bytes > SMALL_BYTES_MAX {
            size_bytes.wrapping_neg() % PAGE_BYTES
        } else {
            0
        }
    }

    fn free(&self, device: &Device, freed: &FreeRequest) -> Result<(), DriverError> {
        let clocks = device.clocks();
        let uses: Vec<Stamp> = freed.stamps(clocks).collect();
        if !uses.is_empty() {
            self.activity.host_wait(|| device.finish_stamps(&uses, None))?;
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
        let mut failed = core::mem::take(self.failed.get_mut());
        // A drop cannot report a failure. Frees that still fail, for example in a host function, are left to the device.
        failed.retain(|(device, freed)| self.free(device, freed).is_err());
        leave_to(self.kind, failed);
    }
}

impl DriverAllocator for PlainAllocator {
    const KEEPS_MEMORY: bool = false;

    fn acquire(&self, size_bytes: u64, stream: &Stream) -> Result<CUdeviceptr, DriverError> {
        // A failure concerns other blocks, so the next trim returns it.
        let _ = self.sweep();
        let device = stream.device();
        let _entered = device.enter_relaxed()?;
        let acquire = || plain::acquire(device.driver(), self.kind, size_bytes);
        let address = self.activity.driver_call(acquire)?;
        self.rounding_bytes.fetch_add(self.rounding_of(size_bytes), Ordering::Relaxed);
        Ok(address)
    }

    fn release(&self, device: &Device, freed: &FreeRequest) -> Result<(), DriverError> {
        let released = self.free(device, freed);
        let Err(error) = released else {
            self.rounding_bytes.fetch_sub(self.rounding_of(freed.size_bytes), Ordering::Relaxed);
            return Ok(());
        };
        self.failed.lock().push((device.clone(), *freed));
        if error.is_not_permitted() {
            self.has_refused.store(true, Ordering::Release);
            return Ok(());
        }
        Err(error)
    }

    /// Retries frees that the driver refused in a host function. Those that fail again are left to the next sweep.
    fn sweep(&self) -> Result<bool, DriverError> {
        if !self.has_refused.swap(false, Ordering::AcqRel) {
            return Ok(false);
        }
        let frees = core::mem::take(&mut *self.failed.lock());
        // A free that fails is stored again, and the others are tried.
        let mut swept = Ok(true);
        for (device, freed) in &frees {
            let released = self.release(device, freed);
            if released.is_err() {
                self.has_refused.store(true, Ordering::Release);
            }
            swept = released.and(swept);
        }
        swept
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

fn leave_to(kind: MemoryKind, frees: Vec<(Device, FreeRequest)>) {
    let Some((device, _)) = frees.first() else { return };
    // Read now: later stamps would cover later work too.
    let stamps = |freed: &FreeRequest| freed.stamps(device.clocks()).collect::<Vec<Stamp>>();
    let mut left: Vec<_> = frees.iter().map(|(_, freed)| (freed.allocation.address, stamps(freed))).collect();
    device.maintenance().defer_release(kind == MemoryKind::Host, true, move |driver, clocks, how| {
        left.retain(|(address, stamps)| {
            let is_done = how == HowFar::All || stamps.iter().all(|stamp| clocks.is_complete(*stamp));
            // SAFETY: the address came from `acquire`, its only block is gone, and all uses are complete.
            !(is_done && unsafe { plain::release(driver, kind, *address) }.is_ok())
        });
        left.is_empty()
    });
}

/// Blocks up to this size share pages with others.
const SMALL_BYTES_MAX: u64 = 1 << 20;

/// The driver gives whole pages to larger blocks.
const PAGE_BYTES: u64 = 2 << 20;

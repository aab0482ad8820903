//! [`Complete`]: allocations and frees of host-accessible memory.
//!
//! The driver's pool reuses a freed block immediately in the order of its stream, while the device may still be using it. Host accesses
//! follow no stream order, so stream-ordered reuse is not safe for them.
//!
//! Blocks are therefore allocated and freed on a separate stream of the pool, the quiet stream, where no other work is queued. A block is
//! freed there once all its uses are complete; until then it waits here. An allocation is ready when the quiet stream is idle, and every
//! stream and the host may then use it.

use super::chain::Chain;
use super::pending_frees::{PendingFree, PendingFrees};
use crate::backend::allocation::FreeRequest;
use crate::config::MemoryKind;
use crate::figures::ActivityCounters;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use gpumem_device::Device;
use gpumem_device::internal::{Handle, Object, Owned, WeakDevice};
use gpumem_sys::types::{CUctx_st, CUdeviceptr, CUresult, CUstream, CUstream_flags, CUstream_st};
use gpumem_sys::{Driver, DriverError};
use std::sync::Arc;
use std::time::Instant;

pub(super) struct Complete {
    device: Device,
    kind: MemoryKind,
    quiet: Arc<Quiet>,
    pub(super) pending: PendingFrees,
    /// The bytes that have not been returned to the driver, including live blocks.
    held_bytes: AtomicU64,
    /// The time that one allocation may spend on polling for completed work.
    poll_budget: Duration,
}

/// A stream on which no work is queued, so that its allocations and frees complete almost immediately.
struct Quiet {
    driver: Driver,
    /// Weak, because the device keeps the frees of a dropped pool, and they keep this.
    device: WeakDevice,
    context: Handle<CUctx_st>,
    raw: Handle<CUstream_st>,
    activity: Arc<ActivityCounters>,
}

impl Complete {
    /// Requires the device's context to be current.
    pub(super) fn new(
        device: &Device,
        kind: MemoryKind,
        poll_budget: Duration,
        activity: &Arc<ActivityCounters>,
    ) -> Result<Self, DriverError> {
        Ok(Self {
            device: device.clone(),
            kind,
            quiet: Arc::new(Quiet::new(device, activity)?),
            pending: PendingFrees::default(),
            held_bytes: AtomicU64::new(0),
            poll_budget,
        })
    }

    /// Allocates memory that is unused and ready for every stream and the host, if no more than `most_bytes` are then
    /// held.
    pub(super) fn acquire(
        &self,
        chain: &Chain,
        size_bytes: u64,
        most_bytes: u64,
    ) -> Result<CUdeviceptr, DriverError> {
        // A failure concerns other blocks, so the next trim returns it.
        let _ = self.poll_and_sweep();
        let held_bytes = self.held_bytes.fetch_add(size_bytes, Ordering::AcqRel).saturating_add(size_bytes);
        let acquired =
            if held_bytes <= most_bytes { chain.acquire(size_bytes, self.quiet.raw.0) } else { Err(full()) };
        let address = acquired.inspect_err(|_| {
            self.held_bytes.fetch_sub(size_bytes, Ordering::AcqRel);
        })?;
        // After an error the memory has no owner, so it waits to be freed.
        let unused = |_: &DriverError| {
            self.pending.add(PendingFree { address, size_bytes, stamps: Vec::new() });
        };
        self.quiet.settle().inspect_err(unused)?;
        Ok(address)
    }

    /// After a failure the memory stays reserved, and the free is retried when the pool ends; after one in a host function, by the next
    /// call.
    pub(super) fn release(&self, freed: &FreeRequest) -> Result<(), DriverError> {
        let free = PendingFree::new(freed, self.device.clocks());
        if !free.stamps.is_empty() {
            self.pending.add(free);
            return Ok(());
        }
        self.free_now(&free).or_else(|error| self.pending.add_refused(free, error))
    }

    /// Frees the waiting blocks whose uses are complete. Returns true if there were any.
    pub(super) fn sweep(&self) -> Result<bool, DriverError> {
        if !self.pending.has_waiting() {
            return Ok(false);
        }
        let _entered = self.device.enter_relaxed()?;
        let clocks = self.device.clocks();
        self.pending.sweep(|free| Ok(free.is_complete(clocks) && self.free(free).map(|()| true)?))
    }

    /// Waits for the quiet stream. The driver releases only memory whose frees the host has synchronised with.
    pub(super) fn wait(&self) -> Result<(), DriverError> {
        self.quiet.wait()
    }

    /// Waits until a block is freed, up to the deadline. A block whose uses no marker covers is passed over.
    pub(super) fn wait_for_free(&self, until: Instant) -> Result<bool, DriverError> {
        for stamps in self.pending.uses() {
            if self.device.clocks().wait_on_host(&stamps, until)? {
                return self.sweep();
            }
        }
        Ok(false)
    }

    /// Waits for the devices whose work uses waiting blocks, up to the deadline, if any.
    pub(super) fn finish(&self, until: Option<Instant>) -> Result<(), DriverError> {
        self.device.finish_stamps(&self.pending.uses().concat(), until)
    }

    /// Polls for completed work and frees the blocks that it used. Records markers in streams with pending uses, so that a later poll can
    /// detect their completion.
    pub(super) fn poll_and_sweep(&self) -> Result<(), DriverError> {
        if !self.pending.has_waiting() {
            return Ok(());
        }
        self.sweep()?;
        self.pending.record_markers(self.device.clocks())?;
        if self.device.clocks().poll(self.poll_budget)? {
            self.sweep()?;
        }
        Ok(())
    }

    fn free_now(&self, free: &PendingFree) -> Result<(), DriverError> {
        let _entered = self.device.enter_relaxed()?;
        self.free(free)
    }

    /// Requires the device's context to be current.
    fn free(&self, free: &PendingFree) -> Result<(), DriverError> {
        self.quiet.free(free.address)?;
        self.held_bytes.fetch_sub(free.size_bytes, Ordering::AcqRel);
        Ok(())
    }
}

impl Drop for Complete {
    fn drop(&mut self) {
        if self.device.find_reset() {
            // Memory and stream are gone, and others may have their addresses and its handle.
            return core::mem::forget(Arc::clone(&self.quiet));
        }
        self.pending.retry_failed();
        // Markers let the device detect when the pending work is complete.
        let _ = self.poll_and_sweep();
        let quiet = Arc::clone(&self.quiet);
        self.pending.leave_to(&self.device, (self.kind, false), move |_, address| quiet.free(address));
    }
}

/// Requires the device's context to be current, except in the drop.
impl Quiet {
    fn new(device: &Device, activity: &Arc<ActivityCounters>) -> Result<Self, DriverError> {
        let mut raw: CUstream = core::ptr::null_mut();
        // SAFETY: `raw` outlives the call.
        unsafe { device.driver().cuStreamCreate(&mut raw, CUstream_flags::CU_STREAM_NON_BLOCKING.0)? };
        let (driver, activity) = (device.driver().clone(), Arc::clone(activity));
        Ok(Self {
            driver,
            device: device.downgrade(),
            context: Handle(device.context()),
            raw: Handle(raw),
            activity,
        })
    }

    /// Ensures that all work queued on the stream is complete. The stream waits for nothing, so that is soon.
    fn settle(&self) -> Result<(), DriverError> {
        // SAFETY: the stream is alive.
        match unsafe { self.driver.cuStreamQuery(self.raw.0) } {
            Err(error) if error.code() == CUresult::CUDA_ERROR_NOT_READY => self.wait(),
            other => other,
        }
    }

    fn wait(&self) -> Result<(), DriverError> {
        // SAFETY: the stream is alive.
        unsafe { self.driver.cuStreamSynchronize(self.raw.0) }
    }

    fn free(&self, address: CUdeviceptr) -> Result<(), DriverError> {
        // SAFETY: the address was allocated on this stream, its only block is gone, and all uses are complete.
        self.activity.driver_call(|| unsafe { self.driver.cuMemFreeAsync(address, self.raw.0) })
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let object = Object::Stream(self.raw.0);
        match self.device.upgrade() {
            Some(device) => device.destroy(object),
            // This value is being dropped.
            None => Owned { object, context: self.context.0 }.destroy_at_end(&self.driver),
        }
    }
}

/// The error that the driver returns when it is out of memory.
fn full() -> DriverError {
    DriverError::Failed { call: "cuMemAllocFromPoolAsync", code: CUresult::CUDA_ERROR_OUT_OF_MEMORY }
}

//! [`Complete`]: allocations and frees of memory that the host may use too.
//!
//! The driver's pool hands a block out again in the order of the stream that it was freed on, at once, while the device may
//! still use it. The host's next access is in no stream's order. So blocks are allocated and freed on a stream of the pool's
//! own, where nothing else is ever queued, and freed there once every use is known to be complete; until then they wait
//! here. What is allocated there is allocated as soon as the stream says that it has nothing left to do, and is then
//! everybody's.

use super::chain::Chain;
use crate::backend::FreeRequest;
use crate::config::MemoryKind;
use crate::device::{
    CaptureModeGuard, Clocks, ContextGuard, DeferredRelease, Device, Handle, HowFar, Order, Stamp,
};
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use gpumem_sys::types::{CUcontext, CUdeviceptr, CUresult, CUstream, CUstream_flags, CUstream_st};
use gpumem_sys::{Driver, DriverError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

pub(super) struct Complete {
    device: Device,
    kind: MemoryKind,
    quiet: Arc<Quiet>,
    waiting: Mutex<Vec<Pending>>,
    /// What the driver would not take back, for the end of the pool.
    failed: Mutex<Vec<Pending>>,
    /// What the driver has not got back yet, blocks that are alive included.
    held_bytes: AtomicU64,
    /// How long one allocation may ask the driver what is complete.
    poll_budget: Duration,
}

/// Memory whose block is gone, and the uses that are not known to be complete.
struct Pending {
    address: CUdeviceptr,
    size_bytes: u64,
    stamps: Vec<Stamp>,
}

/// A stream that never has anything to wait for.
struct Quiet {
    driver: Driver,
    context: CUcontext,
    raw: Handle<CUstream_st>,
}

// SAFETY: the context is named, never followed; the driver takes such names from any thread.
unsafe impl Send for Quiet {}
// SAFETY: a shared one passes the names on unchanged, and the driver locks what threads share behind them.
unsafe impl Sync for Quiet {}

impl Complete {
    /// The device's context is current.
    pub(super) fn new(device: &Device, kind: MemoryKind, poll_budget: Duration) -> Result<Self, DriverError> {
        Ok(Self {
            device: device.clone(),
            kind,
            quiet: Arc::new(Quiet::new(device)?),
            waiting: Mutex::default(),
            failed: Mutex::default(),
            held_bytes: AtomicU64::new(0),
            poll_budget,
        })
    }

    /// Memory that nobody uses and that is there for everybody now, as long as no more than `most_bytes` are held.
    pub(super) fn acquire(
        &self,
        chain: &Chain,
        size_bytes: u64,
        most_bytes: u64,
    ) -> Result<CUdeviceptr, DriverError> {
        self.free_what_may_be_done()?;
        let held_bytes = self.held_bytes.fetch_add(size_bytes, Ordering::AcqRel).saturating_add(size_bytes);
        let acquired = match held_bytes <= most_bytes {
            true => chain.acquire(size_bytes, self.quiet.raw.0),
            false => Err(full()),
        };
        let address = acquired.inspect_err(|_| {
            self.held_bytes.fetch_sub(size_bytes, Ordering::AcqRel);
        })?;
        // After an error it is nobody's.
        let unused = |_: &DriverError| {
            self.lock_waiting().push(Pending { address, size_bytes, stamps: Vec::new() });
        };
        self.quiet.settle().inspect_err(unused)?;
        Ok(address)
    }

    pub(super) fn release(&self, freed: &FreeRequest) -> Result<(), DriverError> {
        let stamps: Vec<Stamp> = freed.stamps(self.device.clocks()).collect();
        let block = Pending { address: freed.allocation.address, size_bytes: freed.size_bytes, stamps };
        if block.stamps.is_empty() {
            // What fails counts as in use, and is tried again at the end of the pool.
            return self.free_now(&block).inspect_err(|_| {
                self.failed.lock().unwrap_or_else(PoisonError::into_inner).push(block);
            });
        }
        self.lock_waiting().push(block);
        Ok(())
    }

    /// Frees what is known to be done. Says whether there was any.
    pub(super) fn sweep(&self) -> Result<bool, DriverError> {
        let mut waiting = self.lock_waiting();
        if waiting.is_empty() {
            return Ok(false);
        }
        let _bound = self.device.enter()?;
        let _relaxed = CaptureModeGuard::enter(self.device.driver())?;
        let (clocks, before_count, mut failure) = (self.device.clocks(), waiting.len(), None);
        waiting.retain(|block| {
            let is_freed = failure.is_none()
                && block.is_done(clocks)
                && self.free(block).inspect_err(|error| failure = Some(*error)).is_ok();
            !is_freed
        });
        failure.map_or(Ok(waiting.len() < before_count), Err)
    }

    /// Lets the driver see that what was freed is free: it gives nothing else back.
    pub(super) fn wait(&self) -> Result<(), DriverError> {
        self.quiet.wait()
    }

    /// Whether anything waits for its uses.
    pub(super) fn has_waiting(&self) -> bool {
        !self.lock_waiting().is_empty()
    }

    /// Waits for the devices whose work uses what waits here, up to a deadline if there is one.
    pub(super) fn finish(&self, until: Option<Instant>) -> Result<(), DriverError> {
        let stamps: Vec<Stamp> =
            self.lock_waiting().iter().flat_map(|block| block.stamps.iter().copied()).collect();
        let clocks = self.device.clocks();
        for stamp in stamps {
            // One wait completes the stamps of all streams of a device.
            if !clocks.is_complete(stamp)
                && let Some(user) = clocks.device_of(stamp.stream_index())
            {
                match until {
                    None => user.finish()?,
                    Some(until) => drop(user.finish_until(until)?),
                }
            }
        }
        Ok(())
    }

    /// Asks what is complete, and marks the streams of what is not, for the next time.
    pub(super) fn free_what_may_be_done(&self) -> Result<(), DriverError> {
        if self.lock_waiting().is_empty() {
            return Ok(());
        }
        self.sweep()?;
        let clocks = self.device.clocks();
        // Of each stream only what was used last is without a mark.
        let is_unmarked = |stamp: &Stamp| clocks.stamp(stamp.stream_index()) == *stamp;
        let mut unmarked: Vec<Stamp> =
            self.lock_waiting().iter().flat_map(|block| &block.stamps).copied().collect();
        unmarked.retain(is_unmarked);
        unmarked.dedup();
        for stamp in unmarked {
            if is_unmarked(&stamp) {
                clocks.record_marker(stamp.stream_index())?;
            }
        }
        if clocks.poll(self.poll_budget)? {
            self.sweep()?;
        }
        Ok(())
    }

    fn free_now(&self, block: &Pending) -> Result<(), DriverError> {
        let _bound = self.device.enter()?;
        let _relaxed = CaptureModeGuard::enter(self.device.driver())?;
        self.free(block)
    }

    fn free(&self, block: &Pending) -> Result<(), DriverError> {
        self.quiet.free(block.address)?;
        self.held_bytes.fetch_sub(block.size_bytes, Ordering::AcqRel);
        Ok(())
    }

    fn lock_waiting(&self) -> MutexGuard<'_, Vec<Pending>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What work may still use stays with the device. The pool itself may be destroyed meanwhile: the driver keeps it until
/// its last block is back.
impl Drop for Complete {
    fn drop(&mut self) {
        let failed = core::mem::take(self.failed.get_mut().unwrap_or_else(PoisonError::into_inner));
        self.lock_waiting().extend(failed);
        // Marks tell the device when the rest is done.
        let _ = self.free_what_may_be_done();
        let waiting = core::mem::take(&mut *self.lock_waiting());
        if !waiting.is_empty() {
            let (kind, quiet) = (self.kind, Arc::clone(&self.quiet));
            self.device.maintenance().add_left(Box::new(OrphanedHeap { kind, quiet, waiting }));
        }
    }
}

/// The blocks of a pool that is gone.
struct OrphanedHeap {
    kind: MemoryKind,
    quiet: Arc<Quiet>,
    waiting: Vec<Pending>,
}

impl DeferredRelease for OrphanedHeap {
    fn kind(&self) -> MemoryKind {
        self.kind
    }

    fn waits(&self) -> bool {
        false
    }

    fn give_back(&mut self, driver: &Driver, clocks: &Clocks, how: HowFar) -> bool {
        let Ok(_relaxed) = CaptureModeGuard::enter(driver) else { return false };
        let is_done = |block: &Pending| how == HowFar::All || block.is_done(clocks);
        self.waiting.retain(|block| !(is_done(block) && self.quiet.free(block.address).is_ok()));
        self.waiting.is_empty()
    }
}

impl Pending {
    fn is_done(&self, clocks: &Clocks) -> bool {
        self.stamps.iter().all(|stamp| clocks.is_complete(*stamp))
    }
}

/// The device's context is current in all but the drop.
impl Quiet {
    fn new(device: &Device) -> Result<Self, DriverError> {
        let mut raw: CUstream = core::ptr::null_mut();
        // SAFETY: the place outlives the call.
        unsafe { device.driver().cuStreamCreate(&mut raw, CUstream_flags::CU_STREAM_NON_BLOCKING.0)? };
        Ok(Self { driver: device.driver().clone(), context: device.context(), raw: Handle(raw) })
    }

    /// Once this returns, everything that was queued here is done: it has nothing to wait for, so that is soon.
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
        // SAFETY: the address was allocated on this stream, its one block is gone, and all uses are complete.
        unsafe { self.driver.cuMemFreeAsync(address, self.raw.0) }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // Without its context the stream is gone already.
        let Ok(_bound) = ContextGuard::enter(&self.driver, self.context) else { return };
        let _guard = self.driver.teardown();
        // SAFETY: nobody passes it again. There is nobody to tell of a failure.
        let _ = unsafe { self.driver.cuStreamDestroy_v2(self.raw.0) };
    }
}

/// As the driver says it.
fn full() -> DriverError {
    DriverError::Failed { call: "cuMemAllocFromPoolAsync", code: CUresult::CUDA_ERROR_OUT_OF_MEMORY }
}

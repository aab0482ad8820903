//! [`Ordered`]: frees of device memory, each in the order of a stream.

use crate::backend::FreeRequest;
use crate::config::MemoryKind;
use crate::device::{CaptureModeGuard, Clocks, DeferredRelease, Device, HowFar, Order, Stamp, Stream};
use crate::error::PoolError;
use core::sync::atomic::{AtomicBool, Ordering};
use gpumem_sys::types::CUdeviceptr;
use gpumem_sys::{Driver, DriverError};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(super) struct Ordered {
    device: Device,
    /// The stream for blocks that can't be freed in the order of their owner stream. Created on first use.
    sweeper: Mutex<Option<Stream>>,
    waiting: Mutex<Vec<Waiting>>,
    /// Frees that failed. They are retried when the pool ends.
    failed: Mutex<Vec<Waiting>>,
    /// Whether any free is waiting. Each allocation checks it.
    is_any_waiting: AtomicBool,
}

/// Memory of a dropped block, with the uses that may still be pending.
struct Waiting {
    address: CUdeviceptr,
    stamps: Vec<Stamp>,
}

impl Ordered {
    pub(super) fn new(device: &Device) -> Self {
        Self {
            device: device.clone(),
            sweeper: Mutex::default(),
            waiting: Mutex::default(),
            failed: Mutex::default(),
            is_any_waiting: AtomicBool::new(false),
        }
    }

    /// Records a marker in the stream and queues the frees that waited for it. The caller of the allocation has
    /// passed the stream, so the pool may use it during this call.
    pub(super) fn before_acquire(&self, stream: &Stream) -> Result<(), DriverError> {
        if self.is_any_waiting.load(Ordering::Acquire) {
            stream.clocks().record_marker_by_user(stream.stream_index())?;
            self.sweep()?;
        }
        Ok(())
    }

    pub(super) fn has_waiting(&self) -> bool {
        self.is_any_waiting.load(Ordering::Acquire)
    }

    /// After a failure the memory counts as in use, and the free is retried when the pool ends.
    pub(super) fn release(&self, freed: &FreeRequest) -> Result<(), DriverError> {
        let at_home = self.free_at_home(freed);
        if matches!(at_home, Ok(true)) {
            return Ok(());
        }
        let stamps = freed.stamps(self.device.clocks()).collect();
        let waiting = Waiting { address: freed.allocation.address, stamps };
        match at_home.and_then(|_| self.free_apart(&waiting)) {
            Ok(true) => Ok(()),
            Ok(false) => {
                self.lock_waiting().push(waiting);
                self.is_any_waiting.store(true, Ordering::Release);
                Ok(())
            }
            Err(error) => {
                self.failed.lock().unwrap_or_else(PoisonError::into_inner).push(waiting);
                Err(error)
            }
        }
    }

    /// Queues the waiting frees whose streams the pool may now wait for. Returns whether any has been queued.
    pub(super) fn sweep(&self) -> Result<bool, DriverError> {
        let mut waiting = self.lock_waiting();
        let (before_count, mut index) = (waiting.len(), 0);
        while let Some(block) = waiting.get(index) {
            match self.free_apart(block)? {
                true => drop(waiting.swap_remove(index)),
                false => index += 1,
            }
        }
        self.is_any_waiting.store(!waiting.is_empty(), Ordering::Release);
        Ok(waiting.len() < before_count)
    }

    /// Frees a block in the order of its owner stream. Returns false if that stream is gone, belongs to another
    /// library, or may not wait for the other uses.
    fn free_at_home(&self, freed: &FreeRequest) -> Result<bool, DriverError> {
        let clocks = self.device.clocks();
        for stamp in
            freed.stamps(clocks).filter(|stamp| stamp.stream_index() != freed.owner_stream.stream_index())
        {
            if !clocks.order_free(stamp, freed.owner_stream)? {
                return Ok(false);
            }
        }
        let _relaxed = CaptureModeGuard::enter(self.device.driver())?;
        // SAFETY: the address came from the driver's pool and its only block is being dropped; the owner stream waits
        // for every other stream that used the block, and is alive during the call.
        let free = |owner_stream| unsafe {
            self.device.driver().cuMemFreeAsync(freed.allocation.address, owner_stream)
        };
        Ok(clocks.with_open(freed.owner_stream, free)?.is_some())
    }

    /// Frees a block in the order of the pool's own stream, which waits for all uses. Returns false if that stream
    /// can't wait for one of the uses now.
    fn free_apart(&self, waiting: &Waiting) -> Result<bool, DriverError> {
        let Some(sweeper) = self.sweeper()? else { return Ok(false) };
        for stamp in &waiting.stamps {
            if !self.device.clocks().order_free(*stamp, sweeper.id())? {
                return Ok(false);
            }
        }
        let _bound = self.device.enter()?;
        let _relaxed = CaptureModeGuard::enter(self.device.driver())?;
        // SAFETY: the address came from the driver's pool and its only block is gone; the sweeper stream waits for
        // every stream that used the block.
        unsafe { self.device.driver().cuMemFreeAsync(waiting.address, sweeper.raw())? };
        Ok(true)
    }

    /// The pool's own stream, created on first use. `None` while there are too many streams.
    fn sweeper(&self) -> Result<Option<Stream>, DriverError> {
        let mut sweeper = self.sweeper.lock().unwrap_or_else(PoisonError::into_inner);
        if sweeper.is_none() {
            *sweeper = match Stream::new(&self.device) {
                Ok(stream) => Some(stream),
                Err(PoolError::Driver(cause) | PoolError::DeviceLost(cause)) => return Err(cause),
                Err(_) => None,
            };
        }
        Ok(sweeper.clone())
    }

    fn lock_waiting(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory that is pending, or that the driver failed to free, is handed to the device's maintenance.
impl Drop for Ordered {
    fn drop(&mut self) {
        let failed = core::mem::take(self.failed.get_mut().unwrap_or_else(PoisonError::into_inner));
        self.lock_waiting().extend(failed);
        let _ = self.sweep();
        let waiting = core::mem::take(&mut *self.lock_waiting());
        if !waiting.is_empty() {
            // Markers let the device detect when the pending work is complete, where streams can be marked.
            let clocks = self.device.clocks();
            for stamp in waiting.iter().flat_map(|block| &block.stamps) {
                if clocks.stamp(stamp.stream_index()) == *stamp {
                    let _ = clocks.record_marker(stamp.stream_index());
                }
            }
            self.device.maintenance().add_left(Box::new(OrphanedHeap { waiting }));
        }
    }
}

/// The pending blocks of a pool that is gone. The driver pool may be destroyed before them: the driver keeps it until
/// its last block is freed.
struct OrphanedHeap {
    waiting: Vec<Waiting>,
}

impl DeferredRelease for OrphanedHeap {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Device
    }

    /// The release call waits for the device, because there is no stream to queue the free on: every stream may be
    /// gone, and a stream created here would keep its device alive.
    fn waits(&self) -> bool {
        true
    }

    fn give_back(&mut self, driver: &Driver, clocks: &Clocks, how: HowFar) -> bool {
        let Ok(_relaxed) = CaptureModeGuard::enter(driver) else { return false };
        self.waiting.retain(|block| {
            let is_done = how == HowFar::All || block.stamps.iter().all(|stamp| clocks.is_complete(*stamp));
            // SAFETY: the address came from the driver's pool, its only block is gone, and all uses are complete.
            !(is_done && unsafe { driver.cuMemFree_v2(block.address) }.is_ok())
        });
        self.waiting.is_empty()
    }
}

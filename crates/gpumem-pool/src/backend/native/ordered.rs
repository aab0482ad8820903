//! [`Ordered`]: frees of the device's own memory, each in a stream's order.

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
    /// Frees what can't be freed in the order of its owner stream; made on first use.
    sweeper: Mutex<Option<Stream>>,
    waiting: Mutex<Vec<Waiting>>,
    /// What the driver would not take back, for the end of the pool.
    failed: Mutex<Vec<Waiting>>,
    /// Whether anything waits: looked at when memory is asked for.
    is_any_waiting: AtomicBool,
}

/// Memory whose block is gone, and the uses that are not known to be done.
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

    /// A stream is in its user's hands: what waits for it may go on.
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

    /// What fails counts as in use, and is tried again at the end of the pool.
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

    /// Frees that had to wait for a stream that the pool may not touch.
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

    /// In the order of the stream that the block was allocated on. False if that is gone, or another's, or may not be
    /// made to wait for the other uses.
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
        // SAFETY: the address came from the driver's pool and its one block is being dropped; the owner stream has just been made to wait
        // for every other stream that used it, and is alive during the call.
        let free = |owner_stream| unsafe {
            self.device.driver().cuMemFreeAsync(freed.allocation.address, owner_stream)
        };
        Ok(clocks.with_open(freed.owner_stream, free)?.is_some())
    }

    /// In the order of a stream of the pool's own, which waits for all uses. False if one can't be waited for now.
    fn free_apart(&self, waiting: &Waiting) -> Result<bool, DriverError> {
        let Some(sweeper) = self.sweeper()? else { return Ok(false) };
        for stamp in &waiting.stamps {
            if !self.device.clocks().order_free(*stamp, sweeper.id())? {
                return Ok(false);
            }
        }
        let _bound = self.device.enter()?;
        let _relaxed = CaptureModeGuard::enter(self.device.driver())?;
        // SAFETY: the address came from the driver's pool and its one block is gone; the stream has just been made to wait for
        // every stream that used it.
        unsafe { self.device.driver().cuMemFreeAsync(waiting.address, sweeper.raw())? };
        Ok(true)
    }

    /// `None` while there are too many streams.
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

/// What work may still use, or the driver would not take back, stays with the device.
impl Drop for Ordered {
    fn drop(&mut self) {
        let failed = core::mem::take(self.failed.get_mut().unwrap_or_else(PoisonError::into_inner));
        self.lock_waiting().extend(failed);
        let _ = self.sweep();
        let waiting = core::mem::take(&mut *self.lock_waiting());
        if !waiting.is_empty() {
            // Marks tell the device when the rest is done, where they can be made.
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

/// The blocks of a pool that is gone. The pool itself may be destroyed meanwhile: the driver keeps it until its last block is
/// back.
struct OrphanedHeap {
    waiting: Vec<Waiting>,
}

impl DeferredRelease for OrphanedHeap {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Device
    }

    /// There is no stream to free it on: each may be gone, and one of its own would keep its device.
    fn waits(&self) -> bool {
        true
    }

    fn give_back(&mut self, driver: &Driver, clocks: &Clocks, how: HowFar) -> bool {
        let Ok(_relaxed) = CaptureModeGuard::enter(driver) else { return false };
        self.waiting.retain(|block| {
            let is_done = how == HowFar::All || block.stamps.iter().all(|stamp| clocks.is_complete(*stamp));
            // SAFETY: the address came from the driver's pool, its one block is gone, and all uses are complete.
            !(is_done && unsafe { driver.cuMemFree_v2(block.address) }.is_ok())
        });
        self.waiting.is_empty()
    }
}

//! [`Ordered`]: frees of the device's own memory, each in a stream's order.

use crate::backend::Freed;
use crate::clock::Stamp;
use crate::context::Relaxed;
use crate::device::Device;
use crate::error::PoolError;
use crate::stream::Stream;
use core::sync::atomic::{AtomicBool, Ordering};
use gpumem_sys::DriverError;
use gpumem_sys::types::CUdeviceptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(super) struct Ordered {
    device: Device,
    /// Frees what can't be freed in the order of its home; made on first use.
    sweeper: Mutex<Option<Stream>>,
    waiting: Mutex<Vec<Waiting>>,
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
            is_any_waiting: AtomicBool::new(false),
        }
    }

    /// A stream is in its user's hands: what waits for it may go on.
    pub(super) fn before_acquire(&self, stream: &Stream) -> Result<(), DriverError> {
        if self.is_any_waiting.load(Ordering::Acquire) {
            stream.clocks().tick_by_user(stream.slot())?;
            self.sweep()?;
        }
        Ok(())
    }

    pub(super) fn release(&self, freed: &Freed) -> Result<(), DriverError> {
        if self.free_at_home(freed)? {
            return Ok(());
        }
        let stamps = freed.stamps(self.device.clocks()).collect();
        let waiting = Waiting { address: freed.piece.address, stamps };
        if !self.free_apart(&waiting)? {
            self.lock_waiting().push(waiting);
            self.is_any_waiting.store(true, Ordering::Release);
        }
        Ok(())
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
    fn free_at_home(&self, freed: &Freed) -> Result<bool, DriverError> {
        let clocks = self.device.clocks();
        for stamp in freed.stamps(clocks).filter(|stamp| stamp.slot() != freed.home.slot()) {
            if !clocks.order_free(stamp, freed.home)? {
                return Ok(false);
            }
        }
        let _relaxed = Relaxed::enter(self.device.driver())?;
        // SAFETY: the address came from the driver's pool and its one block is being dropped; home has just been made to wait
        // for every other stream that used it, and is alive during the call.
        let free = |home| unsafe { self.device.driver().cuMemFreeAsync(freed.piece.address, home) };
        Ok(clocks.with_open(freed.home, free)?.is_some())
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
        let _relaxed = Relaxed::enter(self.device.driver())?;
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

/// What still waits here goes with the context.
impl Drop for Ordered {
    fn drop(&mut self) {
        let _ = self.sweep();
    }
}

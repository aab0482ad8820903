//! Sleep: the heap's handles return to the device, and the contents of blocks wait in pinned host memory.
//!
//! During sleep the pool above lets no operation use the memory, and all work is complete. So the only races are with frees, which the heap
//! records as usual, and with requests that began before. Such a request may get a sleeping block, whose contents are unspecified anyway.
//!
//! If a step fails, the memory wakes: unmapped memory is mapped again, and released memory is created again and gets its contents back. If
//! that fails as well, the memory sleeps, and the program wakes it later.

use super::contents::Contents;
use super::{CachingPool, Core};
use crate::backend::caching::access::HeapMemory;
use crate::backend::search::{Outcome, Search, Shortage, WAIT_AND_TRIM};
use crate::backend::sleeping::{Keep, Slept, Woken};
use crate::config::MemoryKind;
use crate::error::{PoolError, Refusal, Unsupported};
use core::ops::Range;
use core::sync::atomic::Ordering;
use gpumem_base::sync::MutexGuard;
use gpumem_device::DeviceError;
use gpumem_sys::DriverError;
use std::sync::PoisonError;

impl CachingPool {
    pub(crate) fn check_sleeps(&self) -> Result<(), PoolError> {
        const WHAT: &str = "sleep";
        match self.access.memory {
            HeapMemory::Virtual => Ok(()),
            HeapMemory::Segments(MemoryKind::Device) => {
                Err(PoolError::Unsupported(Unsupported::OnSegments { what: WHAT }))
            }
            HeapMemory::Segments(kind) => Err(PoolError::not_with_kind(kind, WHAT)),
        }
    }

    pub(crate) fn addresses(&self) -> Vec<Range<u64>> {
        let blocks = self.ranges.iter().map(|(address, size_bytes)| *address..address + size_bytes);
        blocks.chain(self.core().extents.ranges()).collect()
    }

    /// Prepares sleep. Called before the wait for the device, which does not cover memory that thread caches return later.
    pub(crate) fn prepare_sleep(&self) {
        self.drain_all();
    }

    /// Puts the memory to sleep. All work of the device is complete. An error may leave a part asleep: [`is_asleep`](Self::is_asleep).
    pub(crate) fn sleep(&self, keep: Keep) -> Result<Slept, PoolError> {
        let _entered = self.device.enter_relaxed()?;
        let before_bytes = self.reserved_bytes();
        self.drain_all();
        self.trim(0)?;
        let mut contents = self.contents();
        let ranges = self.select()?;
        let saved = contents.save(&self.device, keep, &ranges);
        let slept = saved.and_then(|copied_bytes| {
            self.put_to_sleep(&mut contents)?;
            Ok(copied_bytes)
        });
        let copied_bytes = match slept {
            Ok(copied_bytes) => copied_bytes,
            Err(error) => {
                // If this fails too, the memory sleeps, and `wake` repeats it.
                if self.wake_up(&mut contents).is_ok() {
                    let _ = contents.free_buffers(self.device.driver());
                }
                self.note_buffers(&contents);
                return Err(error);
            }
        };
        self.note_buffers(&contents);
        // Growable blocks may have been dropped. The next change of one retries failed releases.
        let _ = self.settle_extents();
        let kept_bytes = self.reserved_bytes();
        Ok(Slept { released_bytes: before_bytes.saturating_sub(kept_bytes), kept_bytes, copied_bytes })
    }

    /// Wakes the memory, with the help of `climb`. It can be repeated, even after an error.
    pub(crate) fn wake(
        &self,
        climb: impl FnOnce(&mut dyn Search<Woken>) -> Result<Woken, PoolError>,
    ) -> Result<Woken, PoolError> {
        let size_bytes = self.core().sleeping_bytes();
        climb(&mut WakeSearch { pool: self, size_bytes, refusal: None })
    }

    pub(crate) fn is_asleep(&self) -> bool {
        self.core().is_sleeping()
    }
}

enum WakeFailure {
    Memory(Refusal),
    Contents(PoolError),
}

impl CachingPool {
    pub(in super::super) fn asleep(&self) -> PoolError {
        PoolError::Device(DeviceError::Asleep { pool: self.limits.node.name.as_str().into() })
    }

    /// Frees the host memory that is kept for the next sleep. The calls wait for the device.
    pub(super) fn free_host_copy(&self) -> Result<(), DriverError> {
        if self.on_host_bytes.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let mut contents = self.contents();
        // The pool may have gone to sleep since.
        if !contents.is_empty() {
            return Ok(());
        }
        let freed = contents.free_buffers(self.device.driver());
        self.note_buffers(&contents);
        freed
    }

    /// Selects the handles that sleep, and returns the ranges of the blocks in them.
    fn select(&self) -> Result<Vec<(u64, u64)>, PoolError> {
        let mut core = self.core();
        if core.heap.pins_any() {
            return Err(PoolError::cannot_sleep(
                &self.limits.node.name,
                "a block was exported or pinned, and its memory must stay",
                "allocate such blocks from another pool",
            ));
        }
        let mut ranges = core.heap.begin_sleep(&mut self.vmm())?;
        ranges.extend(core.extents.begin_sleep());
        Ok(ranges)
    }

    /// Unmaps and releases the selected memory, whose contents were saved.
    fn put_to_sleep(&self, contents: &mut Contents) -> Result<(), DriverError> {
        let (mut core, mut vmm) = (self.core(), self.vmm());
        let slept = core.heap.put_to_sleep(&mut vmm).and_then(|_| core.extents.put_to_sleep(&mut vmm));
        self.note_extents(&mut core);
        contents.are_lost |= core.sleeping_bytes() > 0;
        slept
    }

    /// Maps the memory again and restores its contents. After an error all of it sleeps again, if the driver allows.
    fn wake_up(&self, contents: &mut Contents) -> Result<Woken, WakeFailure> {
        // Blocks in thread caches would look as if they were in use.
        self.drain_all();
        let created = {
            let (mut core, mut vmm) = (self.core(), self.vmm());
            let heap = core.heap.wake(&mut vmm);
            let created = heap.and_then(|created_bytes| Ok(created_bytes + core.extents.wake(&mut vmm)?));
            self.note_extents(&mut core);
            created.map_err(WakeFailure::Memory)
        };
        let restored = created.and_then(|created_bytes| {
            let is_mapped = |address| {
                let core = self.core();
                core.heap.has_mapping(address) || core.extents.has_mapping(address)
            };
            let copied_bytes = if contents.are_lost {
                contents.restore(&self.device, is_mapped).map_err(WakeFailure::Contents)?
            } else {
                0
            };
            Ok(Woken { created_bytes, copied_bytes })
        });
        match restored {
            Ok(woken) => {
                let mut core = self.core();
                core.heap.end_sleep();
                core.extents.end_sleep();
                self.set_cache_cap(&core);
                contents.clear();
                drop(core);
                // Growable blocks may have been shrunk or dropped. A later change of one retries failed releases.
                let _ = self.settle_extents();
                Ok(woken)
            }
            Err(failure) => {
                // The next attempt uses memory that stays mapped.
                let _ = self.put_to_sleep(contents);
                Err(failure)
            }
        }
    }

    fn note_extents(&self, core: &mut Core) {
        let reserved_bytes = core.extents.reserved_bytes();
        core.heap.set_outside_bytes(reserved_bytes);
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_buffers(&self, contents: &Contents) {
        self.on_host_bytes.store(contents.buffers_bytes(), Ordering::Relaxed);
    }
}

struct WakeSearch<'a> {
    pool: &'a CachingPool,
    size_bytes: u64,
    refusal: Option<Refusal>,
}

impl WakeSearch<'_> {
    fn wake(&mut self) -> Result<Outcome<Woken>, PoolError> {
        let mut contents = self.pool.contents();
        match self.pool.wake_up(&mut contents) {
            Ok(woken) => Ok(Outcome::Found(woken)),
            Err(WakeFailure::Contents(error)) => Err(error),
            Err(WakeFailure::Memory(refusal)) => {
                self.refusal = Some(refusal.if_out_of_memory()?);
                Ok(Outcome::Short)
            }
        }
    }
}

impl Search<Woken> for WakeSearch<'_> {
    fn rung(&self, rung: usize) -> Option<&'static str> {
        (rung == 0).then_some(WAIT_AND_TRIM)
    }

    fn begin(&mut self, _is_first: bool) -> Result<Outcome<Woken>, PoolError> {
        self.wake()
    }

    fn climb(&mut self, _rung: usize) -> Result<Outcome<Woken>, PoolError> {
        // Requests that began earlier may have allocated and freed memory since.
        self.pool.drain_all();
        self.pool.wait_for_room()?;
        self.pool.trim(0)?;
        self.wake()
    }

    fn free_bytes(&self) -> Result<i64, PoolError> {
        Ok(-self.pool.reserved_bytes().cast_signed())
    }

    fn requested_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn shortage(&self) -> Result<Shortage, PoolError> {
        // A limit refused while part of the memory was awake. That part sleeps again, so the limit's present figures count.
        let refusal = self.refusal.filter(|refusal| refusal.limit().is_none());
        Ok(self.pool.describe_shortage(self.size_bytes, refusal))
    }
}

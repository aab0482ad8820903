//! Sleep: the heap's handles return to the device, and the contents of blocks wait in pinned host memory.
//!
//! During sleep the pool above lets no operation use the memory, and all work is complete. So the only races are with frees, which the heap
//! records as usual, and with requests that began before. Such a request may get a sleeping block, whose contents are unspecified anyway.
//!
//! If a step fails, the memory wakes: unmapped memory is mapped again, and released memory is created again and gets its contents back. If
//! that fails as well, the memory sleeps, and the program wakes it later.

use super::{CachingPool, Core};
use crate::backend::caching::access::Memory;
use crate::backend::{Keep, Search, Shortage, Sleeping, Slept, Step, WAIT_AND_TRIM, Woken, plain};
use crate::config::MemoryKind;
use crate::device::{Clocks, Device, HowFar, MemoryRange, Stream};
use crate::error::{PoolError, Refusal, Unsupported};
use core::ops::Range;
use core::sync::atomic::Ordering;
use gpumem_heap::sync::MutexGuard;
use gpumem_sys::types::CUstream;
use gpumem_sys::{Driver, DriverError};
use std::sync::PoisonError;

/// The contents of sleeping memory, and the host memory for them.
#[derive(Default)]
pub(super) struct Contents {
    pieces: Vec<Piece>,
    /// Pinned buffers: address and size. They stay for the next sleep until the pool is reclaimed or dropped.
    buffers: Vec<(u64, u64)>,
    /// True if memory was released since its contents were saved.
    are_lost: bool,
}

/// A part of the contents.
#[derive(Clone, Copy)]
struct Piece {
    address: u64,
    /// The address of the copy in host memory; `None` for contents that are not kept.
    copy: Option<u64>,
    size_bytes: u64,
}

impl Contents {
    /// Saves the contents of these ranges. Returns the bytes copied.
    fn save(&mut self, device: &Device, keep: Keep, ranges: &[(u64, u64)]) -> Result<u64, PoolError> {
        self.are_lost = false;
        if keep == Keep::Nothing {
            let piece = |&(address, size_bytes)| Piece { address, copy: None, size_bytes };
            self.pieces = ranges.iter().map(piece).collect();
            return Ok(0);
        }
        let sum_bytes = ranges.iter().map(|(_, size_bytes)| size_bytes).sum();
        self.pieces.clear();
        self.reserve(device.driver(), sum_bytes)?;
        self.pieces = place(ranges, &self.buffers);
        queue(device, "putting a pool to sleep", &self.pieces, |driver, piece, raw| match piece.copy {
            // SAFETY: both are memory of this size, the block's memory is mapped, and its uses are complete. The caller waits for the
            // copy before it changes either.
            Some(copy) => unsafe {
                driver.cuMemcpyAsync(copy, piece.address, piece.size_bytes as usize, raw)
            },
            None => Ok(()),
        })?;
        Ok(sum_bytes)
    }

    /// Restores the contents in the ranges that have memory. Returns the bytes copied.
    fn restore(&self, device: &Device, is_mapped: impl Fn(u64) -> bool) -> Result<u64, PoolError> {
        let pieces: Vec<Piece> =
            self.pieces.iter().copied().filter(|piece| is_mapped(piece.address)).collect();
        queue(device, "waking a pool", &pieces, |driver, piece, raw| {
            let size = piece.size_bytes as usize;
            // SAFETY: both are memory of this size, and the block's memory is mapped again and used by nothing else. The caller waits
            // for the work before it changes either.
            unsafe {
                match piece.copy {
                    Some(copy) => driver.cuMemcpyAsync(piece.address, copy, size, raw),
                    None => driver.cuMemsetD8Async(piece.address, 0, size, raw),
                }
            }
        })?;
        Ok(pieces.iter().filter(|piece| piece.copy.is_some()).map(|piece| piece.size_bytes).sum())
    }

    /// Allocates buffers until they have `size_bytes` together.
    fn reserve(&mut self, driver: &Driver, size_bytes: u64) -> Result<(), DriverError> {
        let mut missing_bytes = size_bytes.saturating_sub(self.buffers_bytes());
        while missing_bytes > 0 {
            let buffer_bytes = missing_bytes.clamp(BUFFER_MIN_BYTES, BUFFER_MAX_BYTES);
            let address = plain::acquire(driver, MemoryKind::Host, buffer_bytes)?;
            self.buffers.push((address, buffer_bytes));
            missing_bytes = missing_bytes.saturating_sub(buffer_bytes);
        }
        Ok(())
    }

    fn buffers_bytes(&self) -> u64 {
        self.buffers.iter().map(|(_, size_bytes)| size_bytes).sum()
    }
}

/// Frees pinned buffers, and keeps those that the driver fails to free. No work uses them.
fn free_buffers(driver: &Driver, buffers: &mut Vec<(u64, u64)>) -> Result<(), DriverError> {
    let mut freed = Ok(());
    buffers.retain(|(address, _)| {
        // SAFETY: the buffer was allocated in `reserve`, nothing uses it any more, and it is forgotten if the call succeeds.
        let result = unsafe { plain::release(driver, MemoryKind::Host, *address) };
        freed = freed.and(result);
        result.is_err()
    });
    freed
}

/// Gives each range a place in the buffers, which are large enough together. A range that spans two buffers becomes two pieces.
fn place(ranges: &[(u64, u64)], buffers: &[(u64, u64)]) -> Vec<Piece> {
    let mut pieces = Vec::with_capacity(ranges.len() + buffers.len());
    let mut buffers = buffers.iter().copied();
    let (mut copy, mut left_bytes) = (0, 0);
    for (mut address, mut missing_bytes) in ranges.iter().copied() {
        while missing_bytes > 0 {
            if left_bytes == 0 {
                let Some(next) = buffers.next() else { return pieces };
                (copy, left_bytes) = next;
            }
            let size_bytes = missing_bytes.min(left_bytes);
            pieces.push(Piece { address, copy: Some(copy), size_bytes });
            (address, missing_bytes) = (address + size_bytes, missing_bytes - size_bytes);
            (copy, left_bytes) = (copy + size_bytes, left_bytes - size_bytes);
        }
    }
    pieces
}

/// Queues work for each piece on a new stream, and waits for it.
fn queue(
    device: &Device,
    operation: &'static str,
    pieces: &[Piece],
    work: impl Fn(&Driver, &Piece, CUstream) -> Result<(), DriverError>,
) -> Result<(), PoolError> {
    if pieces.is_empty() {
        return Ok(());
    }
    let stream = Stream::new(device)?;
    // The sleeping memory is closed so that these copies can run: all other work that names it is refused.
    let queued = stream.run_borrowed(operation, MemoryRange::NONE, |raw| {
        pieces.iter().try_for_each(|piece| device.noting(work(device.driver(), piece, raw)))
    });
    Ok(queued??)
}

impl Sleeping for CachingPool {
    fn addresses(&self) -> Vec<Range<u64>> {
        let blocks = self.ranges.iter().map(|(address, size_bytes)| *address..address + size_bytes);
        blocks.chain(self.core().extents.ranges()).collect()
    }

    fn prepare(&self) {
        self.drain_all();
    }

    fn sleep(&self, keep: Keep) -> Result<Slept, PoolError> {
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
                    let _ = free_buffers(self.device.driver(), &mut contents.buffers);
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

    fn wake(&self) -> Box<dyn Search<Woken> + '_> {
        let size_bytes = self.core().sleeping_bytes();
        Box::new(WakeSearch { pool: self, size_bytes, refusal: None })
    }

    fn is_asleep(&self) -> bool {
        self.core().is_sleeping()
    }
}

/// The reason why memory does not wake.
enum WakeFailure {
    /// Physical memory could not be created or mapped.
    Memory(Refusal),
    /// The contents could not be restored.
    Contents(PoolError),
}

impl CachingPool {
    /// The interface to sleep, if the memory can sleep.
    pub(super) fn as_sleeping(&self) -> Result<&dyn Sleeping, PoolError> {
        const WHAT: &str = "sleep";
        match self.access.memory() {
            Memory::Virtual => Ok(self),
            Memory::Segments(MemoryKind::Device) => {
                Err(PoolError::Unsupported(Unsupported::OnSegments { what: WHAT }))
            }
            Memory::Segments(kind) => Err(PoolError::not_with_kind(kind, WHAT)),
        }
    }

    /// The error of an operation that needs sleeping memory.
    pub(in super::super) fn asleep(&self) -> PoolError {
        PoolError::Asleep { pool: self.limits.node().name().as_str().into() }
    }

    fn cannot_sleep(&self, reason: &'static str, remedy: &'static str) -> PoolError {
        PoolError::CannotSleep { pool: self.limits.node().name().as_str().into(), reason, remedy }
    }

    /// Frees the host memory that is kept for the next sleep. The calls wait for the device.
    pub(super) fn free_host_copy(&self) -> Result<(), DriverError> {
        if self.on_host_bytes.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let mut contents = self.contents();
        // The pool may have gone to sleep since.
        if !contents.pieces.is_empty() {
            return Ok(());
        }
        let freed = free_buffers(self.device.driver(), &mut contents.buffers);
        self.note_buffers(&contents);
        freed
    }

    /// Takes the host memory of a pool that ends. Returns a closure that releases it, with calls that wait for the device.
    pub(super) fn take_host_copy(
        &mut self,
    ) -> Option<impl FnMut(&Driver, &Clocks, HowFar) -> bool + Send + 'static> {
        let contents = self.contents.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut buffers = core::mem::take(&mut contents.buffers);
        (!buffers.is_empty()).then_some(move |driver: &Driver, _: &Clocks, _: HowFar| {
            free_buffers(driver, &mut buffers).is_ok()
        })
    }

    /// Selects the handles that sleep, and returns the ranges of the blocks in them.
    fn select(&self) -> Result<Vec<(u64, u64)>, PoolError> {
        let mut core = self.core();
        if core.heap.pins_any() {
            return Err(self.cannot_sleep(
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
                contents.pieces.clear();
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

/// A request to wake memory, once the device and the limits have room for it.
struct WakeSearch<'a> {
    pool: &'a CachingPool,
    size_bytes: u64,
    refusal: Option<Refusal>,
}

impl WakeSearch<'_> {
    fn wake(&mut self) -> Result<Option<Woken>, PoolError> {
        let mut contents = self.pool.contents();
        match self.pool.wake_up(&mut contents) {
            Ok(woken) => Ok(Some(woken)),
            Err(WakeFailure::Contents(error)) => Err(error),
            Err(WakeFailure::Memory(refusal)) => {
                self.refusal = Some(refusal.if_out_of_memory()?);
                Ok(None)
            }
        }
    }
}

impl Search<Woken> for WakeSearch<'_> {
    fn rung(&self, rung: usize) -> Option<&'static str> {
        (rung == 0).then_some(WAIT_AND_TRIM)
    }

    fn begin(&mut self, _is_first: bool) -> Result<Option<Woken>, PoolError> {
        self.wake()
    }

    fn climb(&mut self, _rung: usize) -> Result<Step<Woken>, PoolError> {
        // Requests that began earlier may have allocated and freed memory since.
        self.pool.drain_all();
        self.pool.wait_for_room()?;
        self.pool.trim(0)?;
        Ok(self.wake()?.map_or(Step::Short, Step::Found))
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

/// The sizes of pinned buffers.
const BUFFER_MIN_BYTES: u64 = 2 << 20;
const BUFFER_MAX_BYTES: u64 = 256 << 20;

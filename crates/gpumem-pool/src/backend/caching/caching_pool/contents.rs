//! [`Contents`]: what sleeping memory had in it, in pinned host memory.

use crate::backend::plain;
use crate::backend::sleeping::Keep;
use crate::config::MemoryKind;
use crate::error::PoolError;
use gpumem_device::{Device, MemoryRange, Stream};
use gpumem_sys::types::CUstream;
use gpumem_sys::{Driver, DriverError};

#[derive(Default)]
pub(super) struct Contents {
    pieces: Vec<Piece>,
    /// Pinned buffers: address and size. They stay for the next sleep until the pool is reclaimed or dropped.
    buffers: Vec<(u64, u64)>,
    /// True if memory was released since its contents were saved.
    pub(super) are_lost: bool,
}

#[derive(Clone, Copy)]
struct Piece {
    address: u64,
    /// The address of the copy in host memory; `None` for contents that are not kept.
    copy: Option<u64>,
    size_bytes: u64,
}

impl Contents {
    /// Saves the contents of these ranges. Returns the bytes copied.
    pub(super) fn save(
        &mut self,
        device: &Device,
        keep: Keep,
        ranges: &[(u64, u64)],
    ) -> Result<u64, PoolError> {
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
    pub(super) fn restore(&self, device: &Device, is_mapped: impl Fn(u64) -> bool) -> Result<u64, PoolError> {
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

    pub(super) fn buffers_bytes(&self) -> u64 {
        self.buffers.iter().map(|(_, size_bytes)| size_bytes).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Forgets the contents. The buffers stay.
    pub(super) fn clear(&mut self) {
        self.pieces.clear();
    }

    /// Frees the pinned buffers, and keeps those that the driver fails to free. No work uses them.
    pub(super) fn free_buffers(&mut self, driver: &Driver) -> Result<(), DriverError> {
        let mut freed = Ok(());
        self.buffers.retain(|(address, _)| {
            // SAFETY: the buffer was allocated in `reserve`, nothing uses it any more, and it is forgotten if the call succeeds.
            let result = unsafe { plain::release(driver, MemoryKind::Host, *address) };
            freed = freed.and(result);
            result.is_err()
        });
        freed
    }
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

const BUFFER_MIN_BYTES: u64 = 2 << 20;
const BUFFER_MAX_BYTES: u64 = 256 << 20;

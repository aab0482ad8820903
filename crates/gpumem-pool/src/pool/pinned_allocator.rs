//! [`PinnedAllocator`]: vectors in pinned host memory, with the traits of the crate `allocator-api2`.
//!
//! The allocator keeps the [`Block`] of each allocation by its address, and a block keeps its pool and device. So the memory is valid as
//! long as the vector, even if pool or stream are dropped first.

use crate::config::{ALIGNMENT_MIN, MemoryKind};
use crate::error::{PoolError, Unsupported};
use crate::pool::alignment::check_alignment;
use crate::pool::request::Origin;
use crate::pool::{Block, Pool};
use allocator_api2::alloc::{AllocError, Allocator, Layout};
use allocator_api2::vec::Vec;
use core::ptr::{self, NonNull};
use gpumem_device::Stream;
use gpumem_device::internal::not_forked;
use gpumem_sys::fork;
use gpumem_sys::text::{Shown, debug_fields};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A vector in pinned host memory.
#[cfg_attr(docsrs, doc(cfg(feature = "allocator-api2")))]
pub type PinnedVec<T> = Vec<T, PinnedAllocator>;

/// Allocates from a pool of pinned host memory, for `Vec`, `Box` and every other collection that takes an
/// `allocator_api2::alloc::Allocator`. Clones allocate from one pool, and each may free memory of another.
///
/// Copies between pinned memory and a device are several times as fast as with pageable memory, and the device can access pinned memory in
/// place, at the host's address.
///
/// Memory is freed in the order of the allocator's stream: a vector may be dropped while work that was queued on that
/// stream uses it. For work on other streams, wait before the drop. An allocation does not wait for the stream, and is
/// refused while the stream captures.
///
/// `Vec::with_capacity_in` and `push` abort the process when memory runs out, as for every allocator.
/// [`PinnedAllocator::vec_with_capacity`] returns an error with a report instead, and `Vec::try_reserve` an error without one.
///
/// ```
/// use gpumem_pool::{Device, MemoryKind, PinnedAllocator, Pool, Stream};
/// use gpumem_sim::SimConfig;
///
/// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
/// let (pool, stream) = (Pool::new(&device)?, Stream::new(&device)?);
/// let pinned = Pool::builder(&device).kind(MemoryKind::Host).build()?;
///
/// let mut batch = PinnedAllocator::new(&pinned, &stream)?.vec_with_capacity(1024)?;
/// batch.extend((0..1024).map(|value| value as f32));
/// let mut block = pool.alloc(4096, &stream)?;
/// block.copy_from_host(0, &batch, &stream)?; // at the rate of the link
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg_attr(docsrs, doc(cfg(feature = "allocator-api2")))]
#[derive(Clone)]
pub struct PinnedAllocator(Arc<PinnedInner>);

struct PinnedInner {
    pool: Pool,
    stream: Stream,
    /// The blocks in use, by their addresses.
    blocks: Mutex<HashMap<usize, Block>>,
}

impl PinnedAllocator {
    /// An allocator of the memory of `pool`, which is freed in the order of `stream`. Makes no driver call.
    ///
    /// # Errors
    ///
    /// - [`PoolError::Unsupported`] unless the pool has pinned memory ([`MemoryKind::Host`]).
    /// - [`DeviceError::WrongDevice`](crate::DeviceError::WrongDevice) for another device's stream.
    pub fn new(pool: &Pool, stream: &Stream) -> Result<Self, PoolError> {
        if pool.kind() != MemoryKind::Host {
            let what = "hold vectors of the host";
            return Err(PoolError::Unsupported(Unsupported::OnKind {
                kind: pool.kind(),
                what,
                instead: "`host`",
            }));
        }
        if stream.device() != pool.device() {
            return Err(pool.device().mismatch(stream.device()).into());
        }
        let (pool, stream) = (pool.clone(), stream.clone());
        Ok(Self(Arc::new(PinnedInner { pool, stream, blocks: Mutex::default() })))
    }

    /// An empty vector with room for `capacity` elements.
    ///
    /// # Errors
    ///
    /// - [`PoolError::TooLarge`] if the elements exceed the address space.
    /// - [`DeviceError::Capture`](crate::DeviceError::Capture) if the stream captures.
    /// - All errors of [`Pool::alloc_aligned`], such as [`PoolError::OutOfMemory`] and [`PoolError::LimitReached`].
    pub fn vec_with_capacity<T>(&self, capacity: usize) -> Result<PinnedVec<T>, PoolError> {
        let Ok(layout) = Layout::array::<T>(capacity) else {
            let requested_bytes = size_of::<T>().saturating_mul(capacity) as u64;
            let device_bytes = self.0.pool.device().total_bytes();
            let origin = Origin { size_bytes: None, stream: Some(self.0.stream.id()), tag: 0 };
            let error = PoolError::too_large(requested_bytes, device_bytes);
            return self.0.pool.0.with_report(Err(error), &origin);
        };
        if layout.size() == 0 {
            return Ok(Vec::new_in(self.clone()));
        }
        let start = self.0.alloc(layout)?.cast();
        // SAFETY: this allocator has just allocated the memory with the layout of that many elements.
        Ok(unsafe { Vec::from_raw_parts_in(start.as_ptr(), 0, capacity, self.clone()) })
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.0.pool
    }

    /// The stream in whose order memory is freed.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.0.stream
    }
}

impl PinnedInner {
    /// Allocates at least one byte.
    fn alloc(&self, layout: Layout) -> Result<NonNull<u8>, PoolError> {
        not_forked()?;
        let (size_bytes, alignment) = (layout.size() as u64, (layout.align() as u64).max(ALIGNMENT_MIN));
        check_alignment(alignment)?;
        self.stream.check_usable()?;
        // A graph would keep the memory, and write it at each launch if captured work does.
        self.stream.check_runs("an allocation of host memory")?;
        let block = self.pool.alloc_aligned(size_bytes, alignment, &self.stream)?;
        let Some(start) = block.host_ptr() else {
            // A block that an adaptor has taken from another pool.
            let what = "hold vectors of the host";
            return Err(PoolError::Unsupported(Unsupported::OnKind {
                kind: block.kind(),
                what,
                instead: "`host`",
            }));
        };
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner).insert(start.as_ptr().addr(), block);
        Ok(start)
    }

    fn free(&self, start: NonNull<u8>) {
        if fork::is_child() {
            return;
        }
        let block = self.blocks.lock().unwrap_or_else(PoisonError::into_inner).remove(&start.as_ptr().addr());
        // Outside the lock: a drop may run code of adaptors.
        drop(block);
    }
}

// SAFETY: an allocation is a block of its own, whose memory the host can access. It stays valid until it is freed or the last
// clone is dropped, because all clones share the list of blocks. Blocks have the requested alignment.
unsafe impl Allocator for PinnedAllocator {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let start = match layout.size() {
            // Not null, because alignments are not zero.
            0 => NonNull::new(ptr::without_provenance_mut(layout.align())).ok_or(AllocError)?,
            _ => self.0.alloc(layout).map_err(|_| AllocError)?,
        };
        Ok(NonNull::slice_from_raw_parts(start, layout.size()))
    }

    unsafe fn deallocate(&self, start: NonNull<u8>, layout: Layout) {
        if layout.size() > 0 {
            self.0.free(start);
        }
    }
}

debug_fields!(PinnedAllocator, it, pool: Shown::name(it.0.pool.name()), stream: it.0.stream);

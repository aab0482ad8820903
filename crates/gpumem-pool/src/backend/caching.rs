//! The backend `caching`: thread caches and a heap (`gpumem-heap`) over the driver's virtual memory, or over plain segments.
//!
//! A block of up to 1 MiB comes from the calling thread's magazine for the stream, and a freed block goes to the freeing thread's magazine:
//! plain reads and writes of memory that no other thread touches. Every other case takes the slow path through [`CachingPool`]: a magazine
//! that is empty or full, larger blocks, and blocks that other streams have used.
//!
//! | module | content |
//! | --- | --- |
//! | `caching_pool` | the thread caches and the heap of one pool, with its limits and releases |
//! | `rungs` | a block that found no free memory: the rungs of the ladder |
//! | `extent` | blocks that grow in place; reserving memory ahead |
//! | `vmm`, `access` | the driver's calls for physical memory; which devices may use it |

mod access;
mod caching_pool;
mod extent;
mod rungs;
#[allow(unsafe_code)]
mod vmm;

use super::allocation::{Allocation, FreeRequest};
pub(crate) use caching_pool::CachingPool;
use gpumem_device::StreamId;
pub(crate) use gpumem_heap::cache::FoundCache;
use gpumem_heap::cache::{self, OwnerGuard, SizeStep};
use gpumem_heap::{HeapBlock, SizeClass};

/// An allocation from the calling thread's cache; `None` on a miss. A stream that the thread has not yet
/// used with this pool always misses. Inlined, like [`put_back_small`], so that arguments stay in registers.
#[inline(always)]
pub(crate) fn hit(cache_key: u64, size_bytes: u64, fast_path_id: u64) -> Option<Allocation> {
    let Some(class) = SizeClass::of(size_bytes) else {
        return hit_large(cache_key, size_bytes, fast_path_id);
    };
    let block = cache::with_cache(cache_key, fast_path_id, |cache| cache.take(class, size_bytes));
    block.flatten().map(|block| of_class(class, block))
}

#[inline(never)]
fn hit_large(cache_key: u64, size_bytes: u64, fast_path_id: u64) -> Option<Allocation> {
    let large = cache::with_cache(cache_key, fast_path_id, |cache| cache.take_large(size_bytes)).flatten();
    large.map(|large| of_heap(large.block, large.step))
}

/// A free into the calling thread's cache, for a small block that only the owner stream has used.
/// Returns false if the cache has no room. Once this returns true, the pool may be gone.
#[inline(always)]
pub(crate) fn put_back_small(
    cache_key: u64,
    allocation: &Allocation,
    size_bytes: u64,
    owner_stream: StreamId,
) -> bool {
    let Some(class) = SizeClass::at(allocation.untagged_class()) else { return false };
    let put = |cache: OwnerGuard<'_>| cache.put(class, size_bytes, block_of(allocation));
    cache::with_cache(cache_key, owner_stream.as_u64(), put) == Some(true)
}

/// The calling thread's cache for [`put_back_found`]. `None` if the block is large, or the thread has no cache for its owner stream.
#[inline(always)]
pub(crate) fn find_for_tagged(
    cache_key: u64,
    allocation: &Allocation,
    owner_stream: StreamId,
) -> Option<FoundCache> {
    SizeClass::at(usize::from(allocation.class()))?;
    cache::find_cache(cache_key, owner_stream.as_u64())
}

/// Like [`put_back_small`], for a block that may have a tag, into the cache that was found for it.
///
/// # Safety
///
/// [`find_for_tagged`] has found the cache for the allocation, and the thread has used no cache since.
#[allow(unsafe_code)]
#[inline(always)]
pub(crate) unsafe fn put_back_found(cache: FoundCache, allocation: &Allocation, size_bytes: u64) -> bool {
    let index = usize::from(allocation.class());
    // SAFETY: `find_for_tagged` has found that the class is a small one.
    unsafe { core::hint::assert_unchecked(index < SizeClass::COUNT) };
    let Some(class) = SizeClass::at(index) else { return false };
    // SAFETY: the caller upholds the contract, and the guard is used in this call alone.
    unsafe { cache.own() }.put(class, size_bytes, block_of(allocation))
}

/// The stream of a cache.
///
/// # Safety
///
/// Since [`find_for_tagged`] has found the cache, the thread has used no other.
#[allow(unsafe_code)]
#[inline(always)]
pub(crate) unsafe fn stream_of_found(cache: FoundCache) -> StreamId {
    // SAFETY: the caller upholds the contract, and the guard is used in this call alone.
    StreamId::from_u64(unsafe { cache.own() }.stream())
}

impl FreeRequest {
    /// True if the free has to wait only for the owner stream.
    fn is_plain(&self) -> bool {
        self.uses == 0 && !self.is_complete && self.behind.is_none()
    }
}

fn of_class(class: SizeClass, allocation: HeapBlock) -> Allocation {
    Allocation::new(allocation.address, allocation.record, class.index() as u16)
}

#[inline(always)]
fn block_of(allocation: &Allocation) -> HeapBlock {
    HeapBlock { address: allocation.address, record: allocation.record() }
}

/// The class of a large block encodes its minimum size.
fn of_heap(allocation: HeapBlock, step: SizeStep) -> Allocation {
    Allocation::new(allocation.address, allocation.record, LARGE_FIRST + step.number())
}

/// A lower bound of a large block's size, if its class encodes one.
fn step_of(allocation: &Allocation) -> SizeStep {
    allocation.class().checked_sub(LARGE_FIRST).and_then(SizeStep::at).unwrap_or_default()
}

/// The first class of large blocks, beyond the classes of small ones.
const LARGE_FIRST: u16 = 256;

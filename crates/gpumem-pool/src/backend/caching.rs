//! The backend `caching`: thread caches and a heap (`gpumem-heap`) over the driver's virtual memory, or over plain segments.
//!
//! A block of up to 1 MiB comes from the calling thread's magazine for the stream, and a freed one goes to the freeing thread's:
//! plain reads and writes of memory that no other thread touches. Every other case takes the slow path through
//! [`CachingPool`]: a magazine that is empty or full, larger blocks, and blocks that other streams have used.
//!
//! | module | content |
//! | --- | --- |
//! | `caching_pool` | the thread caches and the heap of one pool, with its limits and what it gives back |
//! | `rungs` | a block that found no free memory: the rungs of the ladder |
//! | `extent` | blocks that grow in place; reserving memory ahead |
//! | `vmm`, `access` | the driver's calls for physical memory; which devices may use it |

mod access;
mod caching_pool;
mod extent;
mod rungs;
#[allow(unsafe_code)]
mod vmm;

use super::{Allocation, Answer, Counts, FreeOutcome, FreeRequest, Growing, Reserved, Source, Underlying};
use crate::config::{BackendKind, Config};
use crate::device::{Device, Stream, StreamId};
use crate::error::{OutOfMemory, PoolError};
use crate::limits::Limits;
use caching_pool::CachingPool;
use core::sync::atomic::{AtomicU64, Ordering};
use gpumem_heap::cache::{self, LargeBlock, OwnerGuard, SizeStep};
use gpumem_heap::counters::Counters;
use gpumem_heap::{HeapBlock, SizeClass};
use std::sync::Arc;

pub(crate) struct CachingBackend {
    /// The key of the thread caches. Keys are never reused, so an entry that a thread caches of a dropped pool
    /// matches no other pool.
    cache_key: u64,
    pool: Arc<CachingPool>,
}

impl CachingBackend {
    pub(super) fn new(device: &Device, config: &Config, limits: &Limits) -> Result<Self, PoolError> {
        static NEXT: AtomicU64 = AtomicU64::new(cache::KEY_STEP);
        let cache_key = NEXT.fetch_add(cache::KEY_STEP, Ordering::Relaxed);
        Ok(Self { cache_key, pool: CachingPool::new(cache_key, device, config, limits)? })
    }
}

impl CachingBackend {
    pub(super) fn cache_key(&self) -> u64 {
        self.cache_key
    }

    #[inline(always)]
    pub(super) fn hit(cache_key: u64, size_bytes: u64, fast_path_id: u64) -> Option<Allocation> {
        let Some(class) = SizeClass::of(size_bytes) else {
            return Self::hit_large(cache_key, size_bytes, fast_path_id);
        };
        let allocation = cache::with_cache(cache_key, fast_path_id, |set| set.take(class, size_bytes));
        allocation.flatten().map(|allocation| of_class(class, allocation))
    }

    #[inline(always)]
    pub(super) fn put_back_small(
        cache_key: u64,
        allocation: &Allocation,
        size_bytes: u64,
        owner_stream: StreamId,
    ) -> bool {
        let Some(class) = SizeClass::at(allocation.untagged_class()) else { return false };
        let put = |set: OwnerGuard<'_>| {
            set.put(class, size_bytes, HeapBlock { address: allocation.address, record: allocation.record() })
        };
        cache::with_cache(cache_key, owner_stream.as_u64(), put) == Some(true)
    }

    pub(super) fn put_back(
        &self,
        cache_key: u64,
        allocation: &Allocation,
        size_bytes: u64,
        owner_stream: StreamId,
    ) -> bool {
        if SizeClass::at(allocation.untagged_class()).is_some() {
            return Self::put_back_small(cache_key, allocation, size_bytes, owner_stream);
        }
        let Some(large) = self.pool.large(allocation, size_bytes, owner_stream) else { return false };
        cache::with_cache(cache_key, owner_stream.as_u64(), |set| set.put_large(large)) == Some(true)
    }

    #[inline(never)]
    fn hit_large(cache_key: u64, size_bytes: u64, fast_path_id: u64) -> Option<Allocation> {
        cache::with_cache(cache_key, fast_path_id, |set| set.take_large(size_bytes)).flatten().map(of_recent)
    }
}

impl Source for CachingBackend {
    fn kind(&self) -> BackendKind {
        BackendKind::Caching
    }

    fn alloc<'a>(
        &'a self,
        size_bytes: u64,
        alignment: u64,
        stream: &'a Stream,
    ) -> Result<Answer<'a, Allocation>, PoolError> {
        Ok(self.pool.alloc(size_bytes, alignment, stream))
    }

    fn describe(&self, report: &mut OutOfMemory) -> Result<(), PoolError> {
        self.pool.describe(report);
        Ok(())
    }

    fn free(&self, freed: &FreeRequest) -> FreeOutcome {
        self.pool.free(freed)
    }

    fn reserve(&self, size_bytes: u64) -> Answer<'_, ()> {
        self.pool.reserve(size_bytes)
    }

    fn check(&self) -> Result<(), String> {
        self.pool.check()
    }

    fn enable_peer_access(&self, peer: &Device) -> Result<(), PoolError> {
        self.pool.enable_peer_access(peer)
    }

    fn pin(&self, allocation: Allocation) -> Result<(), PoolError> {
        self.pool.pin(allocation.record());
        Ok(())
    }

    fn backing(&self, allocation: Allocation) -> Option<Underlying> {
        self.pool.backing(&allocation)
    }

    fn growing(&self) -> Option<&dyn Growing> {
        if self.pool.can_map() { Some(&*self.pool) } else { None }
    }

    fn limits_changed(&self) -> Result<(), PoolError> {
        self.pool.register_for_waits();
        Ok(())
    }

    fn close(&self) -> u64 {
        self.pool.close()
    }

    fn counts_blocks(&self) -> bool {
        true
    }

    fn keeps_memory(&self) -> bool {
        true
    }

    fn counts(&self) -> Counts {
        self.pool.counts()
    }

    fn streams(&self) -> Vec<(Option<StreamId>, Counters)> {
        self.pool.streams()
    }

    fn reset_peaks(&self) -> Result<(), PoolError> {
        self.pool.reset_peaks();
        Ok(())
    }

    fn has_plain_segments(&self) -> bool {
        self.pool.has_plain_segments()
    }

    fn trim_to(&self, keep_bytes: u64) -> Result<(), PoolError> {
        self.pool.trim_to(keep_bytes)
    }

    fn reclaim(&self) -> Result<(), PoolError> {
        self.pool.reclaim()
    }

    fn reserved(&self) -> Result<Option<Reserved>, PoolError> {
        Ok(Some(self.pool.reserved()))
    }
}

impl FreeRequest {
    /// Whether the free has to wait for the owner stream alone.
    fn is_plain(&self) -> bool {
        self.uses == 0 && !self.is_complete
    }
}

fn of_class(class: SizeClass, allocation: HeapBlock) -> Allocation {
    Allocation::new(allocation.address, allocation.record, class.index() as u16)
}

fn of_recent(large: LargeBlock) -> Allocation {
    of_heap(large.block, large.step)
}

/// The class of a large block encodes its minimum size.
fn of_heap(allocation: HeapBlock, step: SizeStep) -> Allocation {
    Allocation::new(allocation.address, allocation.record, LARGE_FIRST + step.number())
}

/// A lower bound of a large block's size, as far as its class encodes one.
fn step_of(allocation: &Allocation) -> SizeStep {
    allocation.class().checked_sub(LARGE_FIRST).and_then(SizeStep::at).unwrap_or_default()
}

/// The first class of large blocks, beyond the classes of small ones.
const LARGE_FIRST: u16 = 256;

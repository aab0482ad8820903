//! [`BlockSearch`]: a requested block, from the search of ready memory to the allocation. Its rungs are in `rungs`.

use super::{CachingPool, Core, OwnerGuard, Retention, SizeStep, SpinMutexGuard, cache, of_class, of_heap};
use crate::backend::allocation::Allocation;
use crate::backend::caching::access::HeapMemory;
use crate::backend::figures::Counts;
use crate::config::ALIGNMENT_MIN;
use crate::error::Refusal;
use gpumem_device::Stream;
use gpumem_device::internal::StreamIndex;
use gpumem_heap::heap::BlockRequest;
use gpumem_heap::{HeapBlock, SizeClass};

pub(in super::super) struct BlockSearch<'a> {
    pub(in super::super) pool: &'a CachingPool,
    pub(in super::super) size_bytes: u64,
    pub(in super::super) alignment: u64,
    stream: &'a Stream,
    pub(super) class: Option<SizeClass>,
    /// The request with a rounded size, which is exact near a limit: another block may need the excess.
    pub(in super::super) request: BlockRequest,
    rounded_bytes: u64,
    least_bytes: u64,
    pub(in super::super) refusal: Option<Refusal>,
    pub(in super::super) before: Counts,
    /// True if the heap leaves small blocks in the thread caches, because it has enough free memory or may still grow
    /// enough.
    pub(in super::super) spares_magazines: bool,
    /// True if the heap may reserve more than its peak of use.
    pub(in super::super) has_slack: bool,
    /// The heap's free memory at the last search, read under the lock of that search: at a limit, threads contend for it.
    pub(in super::super) free_bytes: i64,
}

impl<'a> BlockSearch<'a> {
    pub(super) fn new(pool: &'a CachingPool, size_bytes: u64, alignment: u64, stream: &'a Stream) -> Self {
        // Magazines and depot track stream order, not completion on the host.
        let class = SizeClass::of(size_bytes).filter(|_| alignment <= ALIGNMENT_MIN && !pool.is_for_host());
        // The driver chooses the address of a segment, so the size includes room for the alignment.
        let (padding_bytes, heap_alignment) = match pool.access.memory {
            HeapMemory::Virtual => (0, alignment),
            HeapMemory::Segments(_) => (alignment - ALIGNMENT_MIN, ALIGNMENT_MIN),
        };
        let least_bytes = class.map_or(size_bytes.saturating_add(padding_bytes), SizeClass::size_bytes);
        let rounded_bytes = if class.is_some() { least_bytes } else { pool.tuning.rounded(least_bytes) };
        Self {
            pool,
            size_bytes,
            alignment,
            stream,
            class,
            request: BlockRequest {
                size_bytes: rounded_bytes,
                alignment: heap_alignment,
                stream: order_of(pool, stream),
            },
            rounded_bytes,
            least_bytes,
            refusal: None,
            before: Counts::default(),
            spares_magazines: false,
            has_slack: false,
            free_bytes: 0,
        }
    }

    pub(in super::super) fn exact(&self) -> BlockRequest {
        BlockRequest { size_bytes: self.least_bytes, ..self.request }
    }

    /// Takes a block of the heap's ready memory, including the large blocks that this thread's cache does not retain.
    pub(in super::super) fn take_ready(&mut self) -> Option<Allocation> {
        let pool = self.pool;
        let mut core = pool.core();
        if self.class.is_none() {
            // The heap is locked during the transfer, so a search finds each block either in the cache or in the
            // heap.
            let give = |cache: OwnerGuard<'_>| cache.empty_unkept(|large| core.give_large(large));
            let kept = cache::with_cache(pool.cache_key, self.stream.id().as_u64(), give).unwrap_or_default();
            core.heap.note_kept(kept.0, kept.1);
        }
        self.request.size_bytes = if core.heap.has_limit() { self.least_bytes } else { self.rounded_bytes };
        let block = core.heap.take_ready(&self.request, pool.clocks())?;
        Some(self.hand_out(core, block))
    }

    /// Finishes a search that took the ladder.
    pub(in super::super) fn finish(&self, block: HeapBlock) -> Allocation {
        let pool = self.pool;
        let used_bytes = {
            let mut core = pool.core();
            core.note_peak();
            pool.set_cache_cap(&core);
            core.heap.used_bytes()
        };
        pool.note_growth(used_bytes);
        let allocation = self.hand_out(pool.core(), block);
        pool.device.serve();
        allocation
    }

    /// Counts a heap block, and converts it to the requested allocation.
    fn hand_out(&self, mut core: SpinMutexGuard<'_, Core>, block: HeapBlock) -> Allocation {
        let (pool, stream) = (self.pool, self.stream.id());
        core.note_peak();
        let room_bytes = core.heap.room_bytes(block.record);
        let retention = Retention {
            keep_bytes: core.heap.keepable_bytes() / pool.thread_caches.cache_count().max(1),
            excess_steps: CachingPool::excess_steps(&core.heap),
        };
        drop(core);
        pool.count_out(stream, self.size_bytes);
        if let Some(class) = self.class {
            return of_class(class, block);
        }
        cache::with_cache(pool.cache_key, stream.as_u64(), |cache| cache.note_out(block.record, retention));
        let address = block.address.next_multiple_of(self.alignment);
        let step = SizeStep::floor(room_bytes - (address - block.address));
        of_heap(HeapBlock { address, ..block }, step)
    }
}

/// The stream in whose order the block is allocated. Host-accessible memory is allocated in the host's order, because the host may use it
/// immediately.
fn order_of(pool: &CachingPool, stream: &Stream) -> StreamIndex {
    #[cfg(gpumem_planted_bugs)]
    if crate::injected_bugs::has(crate::injected_bugs::Bug::HostInStreamOrder) {
        return stream.stream_index();
    }
    if pool.is_for_host() { StreamIndex::HOST } else { stream.stream_index() }
}

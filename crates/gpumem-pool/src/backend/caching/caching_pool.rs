//! [`CachingPool`]: the thread caches and the heap of one pool, and the slow paths of allocation and free.
//!
//! | module | contents |
//! | --- | --- |
//! | `frees` | frees that the thread caches have no room for |
//! | `drains` | draining the thread caches into the heap |
//! | `guarded` | the state under the heap's lock |
//! | `stats` | the pool's counters, and their check |
//! | `refusal` | the report of a failed allocation |
//! | `relief` | reserving memory ahead, and releasing it |
//! | `eager` | releasing memory before it is short |
//! | `users` | peer access, export and pinning |
//! | `addresses` | reserving the heap's addresses, or the choice of plain segments |
//! | `orphaned_heap` | the heap of a pool that is gone |
//!
//! *Locks.* `core` is the heap's lock. Its holder makes no driver calls except those for physical memory. The locks
//! of [`ThreadCaches`] are never taken while `core` is held. A thread that drains caches holds `draining` from the
//! first removed block until the blocks are in the heap, and takes `core` within that time. So every search finds all
//! free memory in the thread caches or in the heap, except what other threads allocate and free meanwhile. After a
//! search that found nothing, the ladder checks whether they did.

mod addresses;
mod drains;
mod eager;
mod frees;
mod guarded;
mod orphaned_heap;
mod refusal;
mod relief;
mod stats;
mod users;

use super::access::{Access, Memory};
use super::extent::Extents;
use super::ladder;
use super::vmm::Vmm;
use super::{of_class, of_heap};
use crate::backend::Allocation as BlockPiece;
use crate::config::{Config, Tuning};
use crate::device::{Clocks, Device, Idle, Order, Stamp, Stream, StreamId, StreamIndex};
use crate::error::{GrowthLog, PoolError};
use crate::limits::Limits;
use core::sync::atomic::AtomicBool;
use gpumem_heap::HeapBlock;
use gpumem_heap::SizeClass;
use gpumem_heap::cache;
use gpumem_heap::cache::OwnerGuard;
use gpumem_heap::cache::ThreadCaches;
use gpumem_heap::cache::{CLOSE_STEPS, LOOSE_STEPS, Retention, SizeStep};
use gpumem_heap::heap::{Heap, Request};
use gpumem_heap::sync::Mutex;
use gpumem_heap::sync::{SpinMutex, SpinMutexGuard};
pub(super) use guarded::Core;
pub(super) use refusal::AllocFailure;
use std::sync::{Arc, Weak};

pub(super) struct CachingPool {
    /// The key of the pool's caches in the thread-local tables.
    cache_key: u64,
    pub(super) device: Device,
    pub(super) tuning: Tuning,
    limits: Limits,
    access: Access,
    growth: GrowthLog,
    /// See [`PoolBuilder::garbage_collection_threshold`](crate::PoolBuilder::garbage_collection_threshold).
    collect_above: Option<f64>,
    idle: Idle,
    /// Whether the device notifies this pool of host waits.
    hears_of_waits: AtomicBool,
    /// The heap's address ranges, as address and size.
    ranges: [(u64, u64); 2],
    thread_caches: ThreadCaches<Stamp>,
    core: SpinMutex<Core>,
    draining: Mutex<()>,
}

impl CachingPool {
    pub(super) fn new(
        cache_key: u64,
        device: &Device,
        config: &Config,
        limits: &Limits,
    ) -> Result<Arc<Self>, PoolError> {
        let mut tuning = config.tuning.clone();
        // A wait that is inserted in a stream does not make the host wait.
        tuning.inserted_waits &= !config.kind.is_host_accessible();
        let _bound = device.enter()?;
        let (memory, ranges) = addresses::choose(device, config, limits)?;
        let access = Access::new(memory, device, config, limits);
        let mut heap = match memory {
            Memory::Virtual => Heap::new(tuning.heap, ranges),
            Memory::Segments(_) => Heap::of_segments(tuning.heap),
        };
        heap.set_limit_bytes(limits.node().limit_bytes());
        let pool = Arc::new(Self {
            cache_key,
            device: device.clone(),
            tuning,
            limits: limits.clone(),
            access,
            growth: GrowthLog::default(),
            collect_above: config.collect_above,
            idle: Idle::new(config.idle_after),
            hears_of_waits: AtomicBool::new(false),
            ranges,
            thread_caches: ThreadCaches::new(heap.magazine_bytes()),
            core: SpinMutex::new(Core { heap, extents: Extents::default(), out_peak_bytes: 0 }),
            draining: Mutex::new(()),
        });
        if limits.soft_bytes().is_some() || pool.idle.is_asked_for() {
            pool.hear_of_waits();
        }
        let member: Weak<Self> = Arc::downgrade(&pool);
        device.maintenance().add_trimmable(member);
        let member: Weak<Self> = Arc::downgrade(&pool);
        limits.node().add_trimmable(member);
        Ok(pool)
    }

    pub(super) fn alloc(&self, size_bytes: u64, stream: &Stream) -> Result<BlockPiece, PoolError> {
        // Magazines and depot track the order of streams, and not completion on the host.
        match SizeClass::of(size_bytes).filter(|_| !self.is_for_host()) {
            Some(class) => self.alloc_small(class, size_bytes, stream),
            None => self.alloc_from_heap(size_bytes, UNIT_BYTES, stream),
        }
    }

    /// The slow path of a small allocation, after a miss in the thread's magazine: the depot, then the heap.
    fn alloc_small(
        &self,
        class: SizeClass,
        size_bytes: u64,
        stream: &Stream,
    ) -> Result<BlockPiece, PoolError> {
        let stream_index = stream.stream_index();
        let cached = self.with_cache_or_adopt(stream.id(), |set| {
            let may_have = |stamp: &Stamp| self.clocks().is_ordered(*stamp, stream_index);
            let own = || Some((class, set.take(class, size_bytes)?));
            let oversized = || set.take_oversized(class, size_bytes);
            own().or_else(oversized).or_else(|| self.thread_caches.refill(set, class, may_have).then(own)?)
        });
        if let Some((class, allocation)) = cached.flatten() {
            return Ok(of_class(class, allocation));
        }
        let class_bytes = class.size_bytes();
        let request = Request { size_bytes: class_bytes, alignment: UNIT_BYTES, stream: stream_index };
        let found = self.climb(&request, class_bytes, size_bytes, None)?;
        self.count_out(stream.id(), size_bytes);
        Ok(of_class(class, found.allocation))
    }

    /// Allocates a large or an aligned block, which magazines do not hold.
    pub(super) fn alloc_from_heap(
        &self,
        size_bytes: u64,
        alignment: u64,
        stream: &Stream,
    ) -> Result<BlockPiece, PoolError> {
        // The driver chooses the address of a segment, so the size includes room for the alignment.
        let (padding_bytes, heap_alignment) = match self.access.memory() {
            Memory::Virtual => (0, alignment),
            Memory::Segments(_) => (alignment - UNIT_BYTES, UNIT_BYTES),
        };
        let least_bytes = size_bytes.saturating_add(padding_bytes);
        let request = Request {
            size_bytes: self.tuning.rounded(least_bytes),
            alignment: heap_alignment,
            stream: self.order_of(stream),
        };
        let Found { allocation, room_bytes, retention } =
            self.climb(&request, least_bytes, size_bytes, Some(stream.id()))?;
        self.count_out(stream.id(), size_bytes);
        cache::with_cache(self.cache_key, stream.id().as_u64(), |set| {
            set.note_out(allocation.record, retention)
        });
        let address = allocation.address.next_multiple_of(alignment);
        Ok(of_heap(
            HeapBlock { address, ..allocation },
            SizeStep::floor(room_bytes - (address - allocation.address)),
        ))
    }

    /// The stream in whose order the block is allocated. Host-accessible memory is allocated in the host's order,
    /// because the host may use it at once.
    fn order_of(&self, stream: &Stream) -> StreamIndex {
        #[cfg(gpumem_planted_bugs)]
        if crate::injected_bugs::has(crate::injected_bugs::Bug::HostInStreamOrder) {
            return stream.stream_index();
        }
        if self.is_for_host() { StreamIndex::HOST } else { stream.stream_index() }
    }

    /// Counts a block that the heap has handed out.
    fn count_out(&self, stream: StreamId, size_bytes: u64) {
        if self.with_cache_or_adopt(stream, |set| set.count_out(size_bytes)) != Some(true) {
            self.thread_caches.count_out(stream.as_u64(), size_bytes);
        }
    }

    /// Runs `work` on this thread's cache for a stream, and adopts a cache if there is none. `None` if the stream is
    /// gone and has no cache here, or if the thread is ending.
    fn with_cache_or_adopt<R>(&self, stream: StreamId, work: impl FnOnce(OwnerGuard<'_>) -> R) -> Option<R> {
        let adopt = || {
            let is_gone = |stream| self.stamp_of(stream) == Stamp::COMPLETE;
            if is_gone(stream.as_u64()) {
                return None;
            }
            let mut spill = Vec::new();
            let kept_bytes = self.thread_caches.purge(is_gone, |stream| self.stamp_of(stream), &mut spill);
            if kept_bytes > 0 {
                self.core().heap.note_kept(kept_bytes, 0);
            }
            self.give_all(spill);
            self.thread_caches.adopt(stream.as_u64())
        };
        cache::with_cache_or_adopt(self.cache_key, stream.as_u64(), adopt, work)
    }

    /// Searches the heap's ready memory, including the large blocks that this thread's cache does not retain; then
    /// climbs the ladder, cheapest rung first, with a new search after each rung. A block of `least_bytes` satisfies
    /// the request. `size_bytes` is the block's own size, for garbage collection and reports.
    fn climb(
        &self,
        request: &Request,
        least_bytes: u64,
        size_bytes: u64,
        recent_of: Option<StreamId>,
    ) -> Result<Found, PoolError> {
        let mut core = self.core();
        if let Some(stream) = recent_of {
            // The heap is locked during the transfer, so a search finds each block either in the cache or in the
            // heap.
            let give = |set: OwnerGuard<'_>| set.empty_unkept(|large| core.give_large(large));
            let kept = cache::with_cache(self.cache_key, stream.as_u64(), give).unwrap_or_default();
            core.heap.note_kept(kept.0, kept.1);
        }
        // Under a limit the size is not rounded up, because another block may need the excess.
        let exact = Request { size_bytes: least_bytes, ..*request };
        let request = if core.heap.has_limit() { &exact } else { request };
        if let Some(allocation) = core.heap.take_ready(request, self.clocks()) {
            return Ok(self.found(&mut core, allocation));
        }
        drop(core);
        self.climb_further(request, least_bytes, size_bytes)
    }

    #[cold]
    fn climb_further(
        &self,
        request: &Request,
        least_bytes: u64,
        size_bytes: u64,
    ) -> Result<Found, PoolError> {
        let mut failure = AllocFailure::default();
        self.collect_garbage(size_bytes)?;
        let allocation = ladder::climb(self, request, least_bytes, &mut failure)?;
        let allocation = allocation.ok_or_else(|| self.refusal(size_bytes, failure))?;
        let mut core = self.core();
        let found = self.found(&mut core, allocation);
        self.thread_caches.set_cap(core.heap.magazine_bytes());
        let in_use_bytes = core.heap.used_bytes();
        drop(core);
        self.note_growth(in_use_bytes);
        self.device.serve();
        Ok(found)
    }

    fn found(&self, core: &mut Core, allocation: HeapBlock) -> Found {
        core.note_peak();
        let keep_bytes = core.heap.keepable_bytes() / self.thread_caches.cache_count().max(1);
        let retention = Retention { keep_bytes, excess_steps: Self::excess_steps(&core.heap) };
        Found { allocation, room_bytes: core.heap.room_bytes(allocation.record), retention }
    }

    /// How much larger than its request a cached block may be.
    fn excess_steps(heap: &Heap) -> u16 {
        if heap.tuning().has_slack() {
            LOOSE_STEPS
        } else if heap.has_limit() {
            // Near a limit, the excess of a block over its request counts towards what must fit.
            0
        } else if heap.is_far_ahead() {
            LOOSE_STEPS
        } else {
            CLOSE_STEPS
        }
    }

    /// Ends allocation. Returns the number of live blocks. Later frees are counted elsewhere.
    pub(super) fn close(&self) -> u64 {
        let mut spill = Vec::new();
        let counters = self.thread_caches.close(|stream| self.stamp_of(stream), &mut spill);
        self.give_all(spill);
        counters.block_count()
    }

    fn stamp_of(&self, stream: u64) -> Stamp {
        self.clocks().stamp_of(StreamId::from_u64(stream))
    }

    pub(super) fn vmm(&self) -> Vmm<'_> {
        Vmm::new(self.device.driver(), &self.access)
    }

    pub(super) fn clocks(&self) -> &Clocks {
        self.device.clocks()
    }

    pub(super) fn core(&self) -> SpinMutexGuard<'_, Core> {
        self.core.enter()
    }
}

/// The result of a search.
struct Found {
    allocation: HeapBlock,
    /// The usable size of the block.
    room_bytes: u64,
    /// The large blocks that a cache may retain from now on.
    retention: Retention,
}

/// The alignment of every block. Every size class is a multiple of it.
const UNIT_BYTES: u64 = 256;

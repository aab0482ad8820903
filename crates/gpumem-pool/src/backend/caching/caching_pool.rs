//! [`CachingPool`]: front and heap of one pool, and everything of an allocation or a free that is not a hit.
//!
//! | room | noun |
//! | --- | --- |
//! | `frees` | what comes back and finds no room at hand |
//! | `drains` | taking from threads what they keep at hand |
//! | `guarded` | what the heap's lock guards |
//! | `books` | what the pool says of itself |
//! | `refusal` | why an allocation failed |
//! | `relief` | taking memory before it is asked for, and giving it back |
//! | `eager` | giving back before anybody is short |
//! | `users` | other devices, and what stays in its place for them |
//! | `addresses` | the heap's addresses, or that it has none of its own |
//! | `remains` | the heap of a pool that is gone |
//!
//! *Locks.* The heap has one, `core`. Whoever holds it calls the driver at most for physical memory. The front's locks are
//! never taken while it is held. Who drains others holds `draining` from what he takes out to where he puts it, and takes
//! `core` inside. So what is free is in the front or in the heap whenever anybody looks, but for what other threads
//! allocate and free meanwhile; after a look that found nothing the ladder asks whether they did.

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
    /// The front's number, by which threads find their sets.
    id: u64,
    pub(super) device: Device,
    pub(super) tuning: Tuning,
    limits: Limits,
    access: Access,
    growth: GrowthLog,
    /// As [`PoolBuilder::garbage_collection_threshold`](crate::PoolBuilder::garbage_collection_threshold).
    collect_above: Option<f64>,
    idle: Idle,
    /// Whether the device tells this pool when the host waits.
    hears_of_waits: AtomicBool,
    /// The heap's addresses.
    ranges: [(u64, u64); 2],
    front: ThreadCaches<Stamp>,
    core: SpinMutex<Core>,
    draining: Mutex<()>,
}

impl CachingPool {
    pub(super) fn new(
        id: u64,
        device: &Device,
        config: &Config,
        limits: &Limits,
    ) -> Result<Arc<Self>, PoolError> {
        let mut tuning = config.tuning.clone();
        // No stream waits in place of the host.
        tuning.inserted_waits &= !config.kind.is_host_accessible();
        let _bound = device.enter()?;
        let (memory, ranges) = addresses::choose(device, config, limits)?;
        let access = Access::new(memory, device, config, limits);
        let mut heap = match memory {
            Memory::Virtual => Heap::new(tuning.heap, ranges),
            Memory::Segments(_) => Heap::of_segments(tuning.heap),
        };
        heap.set_limit_bytes(limits.node().limit_bytes());
        let shared = Arc::new(Self {
            id,
            device: device.clone(),
            tuning,
            limits: limits.clone(),
            access,
            growth: GrowthLog::default(),
            collect_above: config.collect_above,
            idle: Idle::new(config.idle_after),
            hears_of_waits: AtomicBool::new(false),
            ranges,
            front: ThreadCaches::new(heap.magazine_bytes()),
            core: SpinMutex::new(Core { heap, extents: Extents::default(), out_peak_bytes: 0 }),
            draining: Mutex::new(()),
        });
        if limits.soft_bytes().is_some() || shared.idle.is_asked_for() {
            shared.hear_of_waits();
        }
        let member: Weak<Self> = Arc::downgrade(&shared);
        device.maintenance().add_trimmable(member);
        let member: Weak<Self> = Arc::downgrade(&shared);
        limits.node().add_trimmable(member);
        Ok(shared)
    }

    pub(super) fn alloc(&self, size_bytes: u64, stream: &Stream) -> Result<BlockPiece, PoolError> {
        // Magazines and depot know what is ordered, and not what is complete.
        match SizeClass::of(size_bytes).filter(|_| !self.is_for_host()) {
            Some(class) => self.alloc_small(class, size_bytes, stream),
            None => self.alloc_from_heap(size_bytes, UNIT_BYTES, stream),
        }
    }

    /// What the thread's magazine did not have: from the depot, or from the heap.
    fn alloc_small(
        &self,
        class: SizeClass,
        size_bytes: u64,
        stream: &Stream,
    ) -> Result<BlockPiece, PoolError> {
        let slot = stream.stream_index();
        let near = self.with_cache_or_adopt(stream.id(), |set| {
            let may_have = |stamp: &Stamp| self.clocks().is_ordered(*stamp, slot);
            let own = || Some((class, set.take(class, size_bytes)?));
            let near = || set.take_oversized(class, size_bytes);
            own().or_else(near).or_else(|| self.front.refill(set, class, may_have).then(own)?)
        });
        if let Some((class, allocation)) = near.flatten() {
            return Ok(of_class(class, allocation));
        }
        let class_bytes = class.size_bytes();
        let request = Request { size_bytes: class_bytes, alignment: UNIT_BYTES, stream: slot };
        let found = self.climb(&request, class_bytes, size_bytes, None)?;
        self.count_out(stream.id(), size_bytes);
        Ok(of_class(class, found.allocation))
    }

    /// What no magazine keeps: large blocks, and aligned ones.
    pub(super) fn alloc_from_heap(
        &self,
        size_bytes: u64,
        alignment: u64,
        stream: &Stream,
    ) -> Result<BlockPiece, PoolError> {
        // The heap doesn't know where the driver will put a segment: there has to be room for the alignment.
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
        cache::with_cache(self.id, stream.id().as_u64(), |set| set.note_out(allocation.record, retention));
        let address = allocation.address.next_multiple_of(alignment);
        Ok(of_heap(
            HeapBlock { address, ..allocation },
            SizeStep::floor(room_bytes - (address - allocation.address)),
        ))
    }

    /// In whose order memory is handed out: what the host may use is the host's at once.
    fn order_of(&self, stream: &Stream) -> StreamIndex {
        #[cfg(gpumem_planted_bugs)]
        if crate::injected_bugs::has(crate::injected_bugs::Bug::HostInStreamOrder) {
            return stream.stream_index();
        }
        if self.is_for_host() { StreamIndex::HOST } else { stream.stream_index() }
    }

    /// The heap has handed out a block.
    fn count_out(&self, stream: StreamId, size_bytes: u64) {
        if self.with_cache_or_adopt(stream, |set| set.count_out(size_bytes)) != Some(true) {
            self.front.count_out(stream.as_u64(), size_bytes);
        }
    }

    /// This thread's set for a stream, unless the stream is long gone or the thread at its end.
    fn with_cache_or_adopt<R>(&self, stream: StreamId, work: impl FnOnce(OwnerGuard<'_>) -> R) -> Option<R> {
        let adopt = || {
            let is_gone = |stream| self.stamp_of(stream) == Stamp::COMPLETE;
            if is_gone(stream.as_u64()) {
                return None;
            }
            let mut spill = Vec::new();
            let kept_bytes = self.front.purge(is_gone, |stream| self.stamp_of(stream), &mut spill);
            if kept_bytes > 0 {
                self.core().heap.note_kept(kept_bytes, 0);
            }
            self.give_all(spill);
            self.front.adopt(stream.as_u64())
        };
        cache::with_cache_or_adopt(self.id, stream.as_u64(), adopt, work)
    }

    /// The ladder: what is free, with what the stream has freed most recently, cheapest first, and a fresh search after
    /// each rung. Of the request, so many bytes would do; the block is given `size_bytes`.
    fn climb(
        &self,
        request: &Request,
        least_bytes: u64,
        size_bytes: u64,
        recent_of: Option<StreamId>,
    ) -> Result<Found, PoolError> {
        let mut core = self.core();
        if let Some(stream) = recent_of {
            // With the heap locked: whoever looks for memory finds it in the set or there, and never in somebody's hands.
            let give = |set: OwnerGuard<'_>| set.empty_unkept(|large| core.give_large(large));
            let kept = cache::with_cache(self.id, stream.as_u64(), give).unwrap_or_default();
            core.heap.note_kept(kept.0, kept.1);
        }
        // Under a limit nothing is rounded up: what is over could be what another block lacks.
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
        let mut lack = AllocFailure::default();
        self.collect_garbage(size_bytes)?;
        let allocation = ladder::climb(self, request, least_bytes, &mut lack)?;
        let allocation = allocation.ok_or_else(|| self.refusal(size_bytes, lack))?;
        let mut core = self.core();
        let found = self.found(&mut core, allocation);
        self.front.set_cap(core.heap.magazine_bytes());
        let in_use_bytes = core.heap.used_bytes();
        drop(core);
        self.note_growth(in_use_bytes);
        self.device.serve();
        Ok(found)
    }

    fn found(&self, core: &mut Core, allocation: HeapBlock) -> Found {
        core.note_peak();
        let keep_bytes = core.heap.keepable_bytes() / self.front.cache_count().max(1);
        let retention = Retention { keep_bytes, excess_steps: Self::excess_steps(&core.heap) };
        Found { allocation, room_bytes: core.heap.room_bytes(allocation.record), retention }
    }

    /// How much larger than its request a kept block may be.
    fn excess_steps(heap: &Heap) -> u16 {
        if heap.tuning().has_slack() {
            LOOSE_STEPS
        } else if heap.has_limit() {
            // Near a limit, what a block has beyond its request is part of what has to fit.
            0
        } else if heap.is_far_ahead() {
            LOOSE_STEPS
        } else {
            CLOSE_STEPS
        }
    }

    /// Nobody allocates any more. Returns how many blocks are alive; from now on their frees are counted elsewhere.
    pub(super) fn close(&self) -> u64 {
        let mut spill = Vec::new();
        let counters = self.front.close(|stream| self.stamp_of(stream), &mut spill);
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

/// What the ladder came to.
struct Found {
    allocation: HeapBlock,
    /// What there is of it.
    room_bytes: u64,
    /// What a set may keep of large blocks from now on.
    retention: Retention,
}

/// Every block starts at a multiple of it, and each size class is one.
const UNIT_BYTES: u64 = 256;

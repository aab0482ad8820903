//! [`CachingPool`]: the thread caches and the heap of one pool, and the slow paths of allocation and free up to the ladder.
//!
//! | module | contents |
//! | --- | --- |
//! | `source` | the methods that the pool above calls: counters, checks, reports, peers, trims |
//! | `block_search` | a requested block, and the search of ready memory for it |
//! | `frees` | frees that do not fit into the thread caches |
//! | `drains` | draining the thread caches into the heap |
//! | `guarded` | the state under the heap's lock |
//! | `relief` | how much the limits let the heap reserve, and which limit refused; releasing memory |
//! | `eager` | releasing memory before it is short |
//! | `addresses` | reserving the heap's addresses, or the choice of plain segments |
//! | `probe` | a trial of virtual memory on a device |
//! | `orphaned_heap` | the heap of a pool that is gone |
//! | `growing` | memory for blocks that grow in place, and memory reserved ahead |
//! | `sleep`, `contents` | memory that returns to the device and keeps its addresses; its contents |
//!
//! *Locks.* `core` is the heap's lock. Its holder makes no driver calls except those for physical memory. The locks of [`ThreadCaches`] are
//! never taken while `core` is held. A thread that drains caches holds `draining` from the first removed block until the blocks are in the
//! heap, and takes `core` within that time. So every search finds all free memory in the thread caches or in the heap, except memory that
//! other threads allocate and free during the search. After a pass that found nothing, the ladder checks for that.

mod addresses;
mod block_search;
#[allow(unsafe_code)]
mod contents;
mod drains;
mod eager;
mod frees;
mod growing;
mod guarded;
mod orphaned_heap;
mod probe;
mod relief;
mod sleep;
mod source;

use super::access::{HeapMemory, MemoryAccess};
use super::extent::Extents;
use super::vmm::Vmm;
use super::{of_class, of_heap};
use crate::backend::allocation::Allocation;
use crate::backend::figures::Counts;
use crate::backend::source::BackendSetup;
use crate::config::Tuning;
use crate::error::{GrowthLog, PoolError};
use crate::figures::ActivityCounters;
use crate::limits::{Limits, Trimmable, WeakList};
use crate::stats::Tags;
use addresses::Chosen;
pub(super) use block_search::BlockSearch;
use contents::Contents;
use core::sync::atomic::{AtomicU64, Ordering};
use gpumem_base::sync::{Mutex, SpinMutex, SpinMutexGuard};
use gpumem_device::internal::{Clocks, HowFar, Idle, Order, Stamp};
use gpumem_device::{Device, Stream, StreamId};
use gpumem_heap::cache::{CLOSE_STEPS, LOOSE_STEPS, OwnerGuard, Retention, SizeStep, ThreadCaches};
use gpumem_heap::heap::Heap;
use gpumem_heap::{SizeClass, cache};
use gpumem_sys::{Driver, DriverError, fork};
pub(super) use guarded::Core;
use orphaned_heap::OrphanedHeap;
use std::sync::{Arc, Once, PoisonError, Weak};

pub(crate) struct CachingPool {
    own: Weak<Self>,
    /// The key of the pool's caches in the thread-local tables. Keys are never reused, so an entry that a thread caches of a
    /// dropped pool matches no other pool.
    pub(crate) cache_key: u64,
    pub(super) device: Device,
    pub(super) tuning: Tuning,
    limits: Limits,
    access: MemoryAccess,
    growth: GrowthLog,
    tags: Tags,
    collect_above: Option<f64>,
    idle: Idle,
    is_registered_for_waits: Once,
    /// The reason for plain segments, if virtual memory was wanted.
    lack: Option<String>,
    /// The heap's address ranges, as address and size.
    ranges: [(u64, u64); 2],
    thread_caches: ThreadCaches<Stamp>,
    core: SpinMutex<Core>,
    draining: Mutex<()>,
    /// Held while memory goes to sleep or wakes. Taken before all other locks.
    contents: Mutex<Contents>,
    /// The size of the host memory in `contents`, without its lock.
    on_host_bytes: AtomicU64,
}

impl CachingPool {
    pub(crate) fn new(setup: BackendSetup<'_>) -> Result<Arc<Self>, PoolError> {
        static NEXT_KEY: AtomicU64 = AtomicU64::new(cache::KEY_STEP);
        let BackendSetup { device, config, limits, tags, .. } = setup;
        let mut tuning = config.tuning.clone();
        // A wait inserted into a stream does not make the host wait.
        tuning.inserted_waits &= !config.kind.is_host_accessible();
        let _bound = device.enter()?;
        let Chosen { memory, ranges, lack } = addresses::choose(setup)?;
        let access = MemoryAccess::new(memory, setup);
        let mut heap = match memory {
            HeapMemory::Virtual => Heap::new(tuning.heap, ranges),
            HeapMemory::Segments(_) => Heap::of_segments(tuning.heap),
        };
        heap.set_limit_bytes(limits.node.limit_bytes());
        let pool = Arc::new_cyclic(|own| Self {
            own: own.clone(),
            cache_key: NEXT_KEY.fetch_add(cache::KEY_STEP, Ordering::Relaxed),
            device: device.clone(),
            tuning,
            limits: limits.clone(),
            access,
            growth: GrowthLog::default(),
            tags: tags.clone(),
            collect_above: config.collect_above,
            idle: Idle::new(config.idle_after),
            is_registered_for_waits: Once::new(),
            lack,
            ranges,
            thread_caches: ThreadCaches::new(heap.magazine_bytes()),
            core: SpinMutex::new(Core { heap, extents: Extents::default(), out_peak_bytes: 0 }),
            draining: Mutex::new(()),
            contents: Mutex::new(Contents::default()),
            on_host_bytes: AtomicU64::new(0),
        });
        if limits.soft_bytes().is_some() || pool.idle.is_asked_for() {
            pool.register_for_waits();
        }
        forget_caches_in_children();
        WeakList::<dyn Trimmable>::on(device).add(pool.own.clone());
        limits.node.add_trimmable(pool.own.clone());
        Ok(pool)
    }

    /// Takes and counts a small block of the thread's cache for the stream. Fills the cache from the depot if it is empty.
    fn take_cached(&self, class: SizeClass, size_bytes: u64, stream: &Stream) -> Option<Allocation> {
        let stream_index = stream.stream_index();
        let taken = self.with_cache_or_adopt(stream.id(), |cache| {
            let may_have = |stamp: &Stamp| self.clocks().is_ordered(*stamp, stream_index);
            let refill = || Some((class, self.thread_caches.refill(cache, class, size_bytes, may_have)?));
            cache.take_slow(class, size_bytes).or_else(refill)
        });
        taken.flatten().map(|(class, block)| of_class(class, block))
    }

    fn count_out(&self, stream: StreamId, size_bytes: u64) {
        if self.with_cache_or_adopt(stream, |set| set.count_out(size_bytes)) != Some(true) {
            self.thread_caches.count_out(stream.as_u64(), size_bytes);
        }
    }

    /// Runs `work` on this thread's cache for a stream, and adopts a cache if there is none. `None` if the stream is
    /// gone and has no cache here, if it may be another thread's default stream, on which this thread must not get memory, or if the thread
    /// is ending.
    fn with_cache_or_adopt<R>(&self, stream: StreamId, work: impl FnOnce(OwnerGuard<'_>) -> R) -> Option<R> {
        let adopt = || {
            let is_gone = |stream| self.stamp_of(stream) == Stamp::COMPLETE;
            if is_gone(stream.as_u64()) || self.clocks().may_be_of_other_thread(stream.stream_index()) {
                return None;
            }
            let mut drained = Vec::new();
            let kept_bytes = self.thread_caches.purge(is_gone, |stream| self.stamp_of(stream), &mut drained);
            if kept_bytes > 0 {
                self.core().heap.note_kept(kept_bytes, 0);
            }
            self.give_all(drained);
            self.thread_caches.adopt(stream.as_u64())
        };
        cache::with_cache_or_adopt(self.cache_key, stream.as_u64(), adopt, work)
    }

    pub(super) fn set_cache_cap(&self, core: &Core) {
        self.thread_caches.set_cap(core.heap.magazine_bytes());
    }

    /// The maximum excess of a cached block over its request.
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

    /// True if the memory is host-accessible. If so, only complete memory is free.
    fn is_for_host(&self) -> bool {
        self.access.memory.kind().is_host_accessible()
    }

    pub(super) fn reserved_bytes(&self) -> u64 {
        self.core().heap.reserved_bytes()
    }

    fn stamp_of(&self, stream: u64) -> Stamp {
        self.clocks().stamp_of(StreamId::from_u64(stream))
    }

    pub(super) fn vmm(&self) -> Vmm<'_> {
        Vmm::new(self.device.driver(), &self.access)
    }

    /// Like [`Extents::settle`]; the device's context must be current.
    pub(super) fn settle_extents(&self) -> Result<(), DriverError> {
        let mut core = self.core();
        let core = &mut *core;
        let settled = core.extents.settle(self.clocks(), &mut self.vmm());
        core.heap.set_outside_bytes(core.extents.reserved_bytes());
        settled
    }

    /// True if the memory is mapped by the heap, rather than in plain segments.
    pub(crate) fn is_virtual(&self) -> bool {
        self.access.memory == HeapMemory::Virtual
    }

    pub(super) fn counts(&self) -> Counts {
        let (sum, core) = (self.thread_caches.counters().shown(), self.core());
        // While other threads allocate and free, the sums may include only part of their operations.
        let in_use_bytes = sum.in_use_bytes().min(core.heap.used_bytes()) + core.extents.size_bytes();
        Counts {
            in_use_bytes,
            in_use_peak_bytes: core.out_peak_bytes.max(in_use_bytes),
            block_count: sum.block_count(),
            allocation_count: sum.allocation_count(),
        }
    }

    /// Trims without waiting for work: markers detect completed work. Plain segments are the exception, because the calls that release them
    /// wait for the device.
    pub(super) fn trim_to(&self, keep_bytes: u64) -> Result<(), PoolError> {
        self.drain_all();
        let _entered = self.device.enter_relaxed()?;
        let pending = self.core().pending_streams();
        self.poll_with_markers(pending)?;
        Ok(self.trim(keep_bytes)?)
    }

    pub(super) fn activity(&self) -> &ActivityCounters {
        &self.access.activity
    }

    pub(super) fn clocks(&self) -> &Clocks {
        self.device.clocks()
    }

    pub(super) fn core(&self) -> SpinMutexGuard<'_, Core> {
        self.core.enter()
    }
}

impl Drop for CachingPool {
    fn drop(&mut self) {
        let mut host_copy = core::mem::take(self.contents.get_mut().unwrap_or_else(PoisonError::into_inner));
        let core = self.core.get_mut();
        core.heap.forget_sleepers();
        core.extents.forget_sleepers();
        let pending = core.pending_streams();
        let heap =
            core::mem::replace(&mut core.heap, Heap::new(gpumem_base::HeapTuning::BALANCED, [(0, 0); 2]));
        let extents = core::mem::take(&mut core.extents);
        let ranges = match self.access.memory {
            HeapMemory::Virtual => self.ranges.to_vec(),
            HeapMemory::Segments(_) => Vec::new(),
        };
        let mut left = OrphanedHeap { access: self.access.for_orphaned_heap(), heap, extents, ranges };
        left.heap.set_outside_bytes(0);
        let (driver, clocks) = (self.device.driver(), self.clocks());
        if self.device.find_reset() {
            // Plain segments and the host's copy went with the context. Mapped memory belongs to no context. Once the device is in use
            // again, others may have the addresses, so the memory is leaked.
            if !left.waits() && self.device.primary().is_unused() {
                left.give_back(driver, clocks, HowFar::All);
            }
            return;
        }
        // A drop cannot report a failure. Pending memory stays for the device's maintenance, and so does all memory if the context cannot
        // be entered now.
        let is_gone = self.device.enter_relaxed().is_ok_and(|_entered| {
            let _ = self.poll_with_markers(pending);
            // The calls that release segments wait for the device, and a drop must not wait. On a busy device the
            // segments stay for later.
            let is_free_to_go = !left.waits() || self.device.is_idle().unwrap_or(false);
            is_free_to_go && left.give_back(driver, clocks, HowFar::Known)
        });
        if !is_gone {
            left.defer(&self.device);
        }
        if host_copy.buffers_bytes() > 0 {
            let mut release =
                move |driver: &Driver, _: &Clocks, _: HowFar| host_copy.free_buffers(driver).is_ok();
            // The calls wait for the device, like those that release segments.
            let is_gone = self.device.enter_relaxed().is_ok_and(|_entered| {
                self.device.is_idle().unwrap_or(false) && release(driver, clocks, HowFar::Known)
            });
            if !is_gone {
                self.device.maintenance().defer_release(true, true, release);
            }
        }
    }
}

/// From here on, forked children use no cache of their parent's thread.
fn forget_caches_in_children() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| fork::run_in_children(cache::forget_found));
}

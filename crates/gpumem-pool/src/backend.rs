//! [`Source`] supplies a pool with device memory: the backends `caching`, `native` and `none` implement it.
//!
//! The pool validates each request before it calls the backend: the stream belongs to the pool's device, and the size
//! is neither zero nor larger than the device. The backend applies the limits and keeps the counters. A request that finds no
//! free memory becomes a [`Search`], which the pool's ladder continues. `native` and `none` call the driver for each block, and
//! share that code in `direct`.

#[cfg(feature = "backend-caching")]
mod caching;
mod direct;
#[cfg(feature = "backend-native")]
#[allow(unsafe_code)]
mod native;
#[allow(unsafe_code)]
mod none;
#[allow(unsafe_code)]
mod plain;
mod search;
mod sleeping;

use crate::config::{BackendKind, Config, HandleUse};
use crate::device::{Clocks, Device, PeerDevice, Stamp, Stream, StreamId};
use crate::error::{OutOfMemory, PoolError, Unsupported};
use crate::figures::ActivityCounters;
use crate::limits::Limits;
use crate::stats::TagCounters;
#[cfg(feature = "backend-caching")]
use caching::CachingPool;
#[cfg(feature = "backend-caching")]
pub(crate) use caching::{FoundCache, find_for_tagged, hit, put_back_found, put_back_small, stream_of_found};
use direct::DirectBackend;
use gpumem_heap::counters::Counters;
use gpumem_sys::DriverError;
use gpumem_sys::types::CUdeviceptr;
#[cfg(unix)]
use gpumem_sys::types::CUmemGenericAllocationHandle;
#[cfg(feature = "backend-native")]
use native::NativeAllocator;
use none::PlainAllocator;
pub(crate) use search::{Answer, Search, Shortage, Step};
use search::{WAIT_AND_TRIM, WAIT_FOR_FREES};
pub(crate) use sleeping::Sleeping;
pub use sleeping::{Keep, Slept, Woken};
use std::sync::Arc;

/// A source of device memory. Any number of threads may call any method at the same time, with any context current.
pub(crate) trait Source: Send + Sync {
    fn kind(&self) -> BackendKind;

    /// Allocates memory for work that is queued on `stream` from now on, at a multiple of `alignment`, which is a power of
    /// two.
    ///
    /// # Errors
    ///
    /// `PoolError::Driver` or `PoolError::DeviceLost` if a call fails for a reason other than a shortage of memory.
    fn alloc<'a>(
        &'a self,
        size_bytes: u64,
        alignment: u64,
        stream: &'a Stream,
    ) -> Result<Answer<'a, Allocation>, PoolError>;

    /// Allocates up to `count_max` blocks of `size_bytes` each from free memory. Neither grows nor waits.
    fn alloc_ready(&self, _size_bytes: u64, _count_max: usize, _: &Stream) -> Vec<Allocation> {
        Vec::new()
    }

    /// The key of this backend's thread caches, for [`hit`] and [`put_back_small`]. [`NO_CACHE`] if it has none.
    fn cache_key(&self) -> u64 {
        NO_CACHE
    }

    /// Like [`put_back_small`], for any size.
    fn put_back(&self, _cache_key: u64, _: &Allocation, _size_bytes: u64, _owner_stream: StreamId) -> bool {
        false
    }

    /// Adds the backend's figures to the report of a request that it could not serve.
    ///
    /// # Errors
    ///
    /// `PoolError::Driver` or `PoolError::DeviceLost` if a query fails.
    fn describe(&self, report: &mut OutOfMemory) -> Result<(), PoolError>;

    /// Gives a peer device access to all memory of the pool, present and future. The peer has a link to the pool's
    /// device. A further call for the same device changes nothing.
    fn enable_peer_access(&self, peer: PeerDevice) -> Result<(), PoolError>;

    /// Pins the physical memory of a live allocation to its addresses.
    fn pin(&self, allocation: Allocation) -> Result<(), PoolError>;

    /// The physical memory under a live allocation, if it can be exported to other processes.
    #[cfg(unix)]
    fn backing(&self, _allocation: Allocation) -> Result<Option<Underlying>, PoolError> {
        Ok(None)
    }

    /// The driver's pool behind this backend, which a device can allocate others' memory from.
    ///
    /// # Errors
    ///
    /// `PoolError::Unsupported` if there is none, or none that can enforce
    /// the hard limit.
    fn device_pool(&self) -> Result<&dyn DevicePool, PoolError> {
        Err(no_device_pool(self.kind()))
    }

    /// The interface to blocks that grow in place, if the backend supports them.
    fn growing(&self) -> Option<&dyn Growing> {
        None
    }

    /// The interface to memory that sleeps.
    ///
    /// # Errors
    ///
    /// `PoolError::Unsupported` if the memory cannot sleep.
    fn sleeping(&self) -> Result<&dyn Sleeping, PoolError> {
        Err(PoolError::Unsupported(Unsupported::OnBackend {
            backend: self.kind(),
            what: "sleep",
            instead: "`caching`",
        }))
    }

    /// Takes back a block that is being dropped. Never panics. Never waits, except in `none`.
    fn free(&self, freed: &FreeRequest) -> FreeOutcome;

    /// Reserves at least `size_bytes` from the device, if the backend keeps memory.
    fn reserve(&self, _size_bytes: u64) -> Answer<'_, ()> {
        Answer::Found(())
    }

    /// Checks the backend's counters and returns the first contradiction. Exact while nothing else uses the pool.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// Ends allocation, when the last handle to the pool is dropped. Called once. Returns the number of live blocks
    /// that the backend counts. When such a block is freed later, [`FreeOutcome::counted`] is false.
    fn close(&self) -> u64 {
        0
    }

    /// True if the backend counts its blocks; otherwise the pool counts each block.
    fn counts_blocks(&self) -> bool {
        false
    }

    /// True if freed memory stays reserved by the backend. Such a backend is one of its device's trimmables.
    fn keeps_memory(&self) -> bool;

    fn counts(&self) -> Counts;

    /// The counters of each stream that has live blocks. The entry `None` sums the streams that are gone.
    fn streams(&self) -> Vec<(Option<StreamId>, Counters)>;

    /// Resets the peak counters.
    fn reset_peaks(&self) -> Result<(), PoolError>;

    /// True if the backend keeps memory in plain segments, because virtual memory is unavailable or the configuration requests segments.
    fn has_plain_segments(&self) -> bool {
        false
    }

    /// The reason for plain segments, if virtual memory was wanted.
    fn lack(&self) -> Option<String> {
        None
    }

    /// Called before the hard limit changes to `limit_bytes`.
    fn allow_hard_limit(&self, _limit_bytes: u64) {}

    /// True if reservations, including cached memory, never exceed `bytes`, which is at least the hard limit.
    fn is_bounded_by(&self, _bytes: u64) -> bool {
        true
    }

    /// Called after the soft limit has changed, and when a changed hard limit is below the reserved memory.
    fn limits_changed(&self) -> Result<(), PoolError> {
        Ok(())
    }

    /// Returns free memory to the driver until `keep_bytes` are reserved.
    fn trim_to(&self, keep_bytes: u64) -> Result<(), PoolError>;

    /// Waits for the device, then returns all memory that no block holds to the driver.
    fn reclaim(&self) -> Result<(), PoolError>;

    /// The memory reserved from the device. `None` if the backend reserves only the memory of live blocks.
    fn reserved(&self) -> Result<Option<Reserved>, PoolError>;
}

/// A driver pool that can be its device's current pool, which `cuMemAllocAsync` allocates from.
pub(crate) trait DevicePool {
    /// Makes it the device's current pool.
    fn make_current(&self) -> Result<(), DriverError>;

    /// Makes the device's default pool current, if this one is current.
    fn end_current(&self) -> Result<(), DriverError>;

    /// True if it is the device's current pool.
    fn is_current(&self) -> Result<bool, DriverError>;

    /// The driver's counters.
    fn usage(&self) -> Result<DriverPoolUsage, DriverError>;

    /// True if it was ever made current, so other libraries may have memory from it.
    fn has_been_current(&self) -> bool;
}

/// The driver's counters of a pool, for all its users; see [`CurrentPool::usage`](crate::CurrentPool::usage).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverPoolUsage {
    /// Bytes held from the device.
    pub reserved_bytes: u64,
    /// The peak of reserved bytes, ever or since [`Pool::reset_peaks`](crate::Pool::reset_peaks).
    pub reserved_peak_bytes: u64,
    /// Bytes in allocations of this pool and of others.
    pub used_bytes: u64,
    /// The peak of bytes in allocations, ever or since [`Pool::reset_peaks`](crate::Pool::reset_peaks).
    pub used_peak_bytes: u64,
}

/// The error of a backend without a pool of the driver.
fn no_device_pool(backend: BackendKind) -> PoolError {
    PoolError::Unsupported(Unsupported::OnBackend {
        backend,
        what: "be the device's current pool",
        instead: "`native` (option backend:native)",
    })
}

/// Address ranges whose memory grows and shrinks at the end. Each range has an id.
pub(crate) trait Growing {
    /// Reserves addresses for `max_bytes`, which is not zero. Returns the id of the range and its first address.
    fn add(&self, max_bytes: u64) -> Result<(u64, CUdeviceptr), PoolError>;

    /// Maps memory up to `size_bytes` within the range, with the ladder's help. After an error, the range is unchanged.
    fn grow_to(&self, id: u64, size_bytes: u64) -> Box<dyn Search<()> + '_>;

    /// Releases the memory behind `size_bytes`, once these uses are complete.
    fn shrink_to(&self, id: u64, size_bytes: u64, uses: &[Stamp]) -> Result<(), PoolError>;

    /// Releases the memory and the addresses of the range, once these uses are complete.
    fn remove(&self, id: u64, uses: &[Stamp]);
}

/// Physical memory under an allocation: adjacent driver handles, each with its size.
#[cfg(unix)]
#[derive(Clone, Debug)]
pub(crate) struct Underlying {
    pub(crate) handles: Vec<(CUmemGenericAllocationHandle, u64)>,
    /// The offset of the allocation in the first handle.
    pub(crate) offset_bytes: u64,
}

/// An allocation of a backend: an address, a record and a class. The backend defines the record and the class, and
/// gets both back with the block. A block may add a tag.
///
/// Record, class and tag share one word, because blocks are moved often and the processor stalls when it reads memory with a different
/// width than the last write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) address: CUdeviceptr,
    /// From the lowest bit: 32 bits of record, 16 of class, 16 of tag.
    mark: u64,
}

impl Allocation {
    /// No memory and no class.
    pub(crate) const EMPTY: Self = Self::new(0, 0, Self::NO_CLASS);

    /// The class of allocations without backend memory: an empty block, or a part of the memory that a graph retains.
    pub(crate) const NO_CLASS: u16 = u16::MAX;

    /// The class of blocks that adaptors track: the record is an index into the pool's own
    /// [`Stack`](crate::pool::adaptors::Stack). No backend uses this class.
    const SPECIAL: u16 = u16::MAX - 1;

    #[inline]
    pub(crate) const fn new(address: CUdeviceptr, record: u32, class: u16) -> Self {
        Self { address, mark: record as u64 | (class as u64) << CLASS_SHIFT }
    }

    /// A block that the pool's adaptors track under `number`.
    pub(crate) fn special(address: CUdeviceptr, number: u32) -> Self {
        Self::new(address, number, Self::SPECIAL)
    }

    #[inline]
    pub(crate) fn is_special(self) -> bool {
        self.class() == Self::SPECIAL
    }

    #[inline]
    pub(crate) fn record(self) -> u32 {
        self.mark as u32
    }

    #[inline]
    pub(crate) fn class(self) -> u16 {
        (self.mark >> CLASS_SHIFT) as u16
    }

    /// The class, if there is no tag. With a tag, a value greater than every class.
    #[cfg(feature = "backend-caching")]
    #[inline]
    pub(crate) fn untagged_class(self) -> usize {
        (self.mark >> CLASS_SHIFT) as usize
    }

    /// The tag. 0 means that there is none.
    #[inline]
    pub(crate) fn tag(self) -> u16 {
        (self.mark >> TAG_SHIFT) as u16
    }

    /// Adds a tag to an allocation that has none.
    #[inline]
    pub(crate) fn with_tag(self, tag: u16) -> Self {
        Self { mark: self.mark | u64::from(tag) << TAG_SHIFT, ..self }
    }

    /// The allocation as the backend returned it.
    #[inline]
    pub(crate) fn without_tag(self) -> Self {
        Self { mark: self.mark & ((1 << TAG_SHIFT) - 1), ..self }
    }

    /// Record, class and tag as one word, for [`from_mark`](Self::from_mark).
    pub(crate) fn mark(self) -> u64 {
        self.mark
    }

    pub(crate) fn from_mark(address: CUdeviceptr, mark: u64) -> Self {
        Self { address, mark }
    }
}

const CLASS_SHIFT: u32 = 32;
const TAG_SHIFT: u32 = 48;

/// A non-empty block that is being dropped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreeRequest {
    pub(crate) allocation: Allocation,
    pub(crate) size_bytes: u64,
    /// The stream that the block was allocated on. The stream may be gone.
    pub(crate) owner_stream: StreamId,
    /// The other streams that used the block, in the encoding that [`Clocks::uses`] reads.
    pub(crate) uses: u64,
    /// True if the caller guarantees that all uses of the block are complete.
    pub(crate) is_complete: bool,
}

impl FreeRequest {
    /// The uses that may still be pending. The owner stream's comes first.
    pub(crate) fn stamps(&self, clocks: &Clocks) -> impl Iterator<Item = Stamp> {
        let uses = (!self.is_complete).then(|| clocks.uses(self.owner_stream, self.uses));
        uses.into_iter().flatten()
    }
}

/// The outcome of a free.
#[derive(Debug)]
#[must_use = "a failure poisons the pool"]
pub(crate) struct FreeOutcome {
    /// After an error the memory is not freed: it stays reserved, and is no longer in use.
    pub(crate) result: Result<(), DriverError>,
    /// True if the backend has removed the block from its counters. Once this is true, the pool may be gone, so the
    /// caller does not access it again.
    pub(crate) counted: bool,
}

/// Usage counters. Exact while no other thread allocates or frees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) in_use_bytes: u64,
    /// An upper bound. [`Status::in_use_peak_bytes`](crate::Status::in_use_peak_bytes) documents its accuracy.
    pub(crate) in_use_peak_bytes: u64,
    pub(crate) block_count: u64,
    pub(crate) allocation_count: u64,
}

impl Counts {
    /// True if a search that found nothing may succeed now: other threads have allocated or freed since `before`, and live blocks leave
    /// room for `size_bytes` below `most_bytes`.
    pub(crate) fn may_fit_since(&self, before: &Self, size_bytes: u64, most_bytes: u64) -> bool {
        let moves = |counts: &Self| (counts.allocation_count, counts.block_count);
        moves(before) != moves(self) && self.in_use_bytes.saturating_add(size_bytes) <= most_bytes
    }
}

/// The memory that a backend has reserved from the device, for live blocks and for reuse.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reserved {
    pub(crate) current_bytes: u64,
    pub(crate) peak_bytes: u64,
    /// The part of `current_bytes` that the driver refused to free. No block has it, and no trim releases it.
    pub(crate) unfreed_bytes: u64,
    /// The host memory of the backend's records.
    pub(crate) record_bytes: u64,
    /// The sleeping memory; not part of `current_bytes`.
    pub(crate) asleep_bytes: u64,
    /// The pinned host memory for the contents of sleeping memory.
    pub(crate) on_host_bytes: u64,
}

/// The key of a backend without thread caches. It matches no cache.
pub(crate) const NO_CACHE: u64 = u64::MAX;

/// [`Source::alloc`] from the calling thread's cache; `None` on a miss. A stream that the thread has not yet used with this pool
/// always misses.
#[cfg(not(feature = "backend-caching"))]
#[inline(always)]
pub(crate) fn hit(_cache_key: u64, _size_bytes: u64, _fast_path_id: u64) -> Option<Allocation> {
    None
}

/// [`Source::free`] into the calling thread's cache, for a small block that only the owner stream has used. Returns false if the
/// cache has no room. Once this returns true, the pool may be gone.
#[cfg(not(feature = "backend-caching"))]
#[inline(always)]
pub(crate) fn put_back_small(_cache_key: u64, _: &Allocation, _size_bytes: u64, _: StreamId) -> bool {
    false
}

/// The calling thread's cache for a stream: none.
#[cfg(not(feature = "backend-caching"))]
#[derive(Clone, Copy)]
pub(crate) enum FoundCache {}

/// The calling thread's cache for a block that may have a tag: none.
#[cfg(not(feature = "backend-caching"))]
#[inline(always)]
pub(crate) fn find_for_tagged(_cache_key: u64, _: &Allocation, _: StreamId) -> Option<FoundCache> {
    None
}

/// Like [`put_back_small`], into a cache that [`find_for_tagged`] has found.
///
/// # Safety
///
/// No requirements: there is no such cache.
#[cfg(not(feature = "backend-caching"))]
#[allow(unsafe_code, reason = "it has the contract of the function for caches")]
pub(crate) unsafe fn put_back_found(cache: FoundCache, _: &Allocation, _size_bytes: u64) -> bool {
    match cache {}
}

/// The stream of a cache.
///
/// # Safety
///
/// No requirements: there is no such cache.
#[cfg(not(feature = "backend-caching"))]
#[allow(unsafe_code, reason = "it has the contract of the function for caches")]
pub(crate) unsafe fn stream_of_found(cache: FoundCache) -> StreamId {
    match cache {}
}

/// Arguments for creating a backend.
#[derive(Clone, Copy)]
pub(crate) struct BackendSetup<'a> {
    pub(crate) device: &'a Device,
    pub(crate) config: &'a Config,
    pub(crate) limits: &'a Limits,
    pub(crate) tags: &'a TagCounters,
    pub(crate) activity: &'a Arc<ActivityCounters>,
}

/// Creates the configured backend, or by default the best one that is compiled in and that the device supports.
pub(crate) fn open(setup: BackendSetup<'_>) -> Result<Arc<dyn Source>, PoolError> {
    match setup.config.backend {
        Some(BackendKind::Caching) => caching(setup),
        Some(BackendKind::Native) => native(setup),
        Some(BackendKind::None) => none(setup),
        None => caching(setup)
            .or_else(|error| instead(error, || native(setup)))
            .or_else(|error| instead(error, || none(setup))),
    }
}

/// Tries the next backend if this one is not compiled in or the device does not support it.
fn instead(
    error: PoolError,
    next: impl FnOnce() -> Result<Arc<dyn Source>, PoolError>,
) -> Result<Arc<dyn Source>, PoolError> {
    match error {
        PoolError::Unsupported(
            Unsupported::NotBuilt { .. } | Unsupported::Backend { .. } | Unsupported::OnBackend { .. },
        ) => next(),
        other => Err(other),
    }
}

#[cfg(feature = "backend-caching")]
fn caching(setup: BackendSetup<'_>) -> Result<Arc<dyn Source>, PoolError> {
    Ok(CachingPool::new(setup)?)
}

#[cfg(not(feature = "backend-caching"))]
fn caching(_: BackendSetup<'_>) -> Result<Arc<dyn Source>, PoolError> {
    Err(PoolError::Unsupported(Unsupported::NotBuilt {
        backend: BackendKind::Caching,
        feature: "backend-caching",
    }))
}

fn none(setup: BackendSetup<'_>) -> Result<Arc<dyn Source>, PoolError> {
    check_not_exported(BackendKind::None, setup.config.handle_use)?;
    Ok(DirectBackend::new(setup, PlainAllocator::new(setup.config.kind, setup.activity)))
}

fn check_not_exported(backend: BackendKind, handle_use: HandleUse) -> Result<(), PoolError> {
    match handle_use.exportable {
        true => Err(PoolError::Unsupported(Unsupported::OnBackend {
            backend,
            what: "export blocks (exportable:true)",
            instead: "`caching`",
        })),
        false => Ok(()),
    }
}

#[cfg(feature = "backend-native")]
fn native(setup: BackendSetup<'_>) -> Result<Arc<dyn Source>, PoolError> {
    check_not_exported(BackendKind::Native, setup.config.handle_use)?;
    if setup.config.handle_use.rdma {
        return Err(PoolError::Unsupported(Unsupported::OnBackend {
            backend: BackendKind::Native,
            what: "pin memory for network cards (rdma:true)",
            instead: "`caching` or `none`",
        }));
    }
    Ok(DirectBackend::new(setup, NativeAllocator::new(setup)?))
}

#[cfg(not(feature = "backend-native"))]
fn native(_: BackendSetup<'_>) -> Result<Arc<dyn Source>, PoolError> {
    Err(PoolError::Unsupported(Unsupported::NotBuilt {
        backend: BackendKind::Native,
        feature: "backend-native",
    }))
}

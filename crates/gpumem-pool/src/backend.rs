//! Where a pool's bytes come from: one enum, and the trait that its variants share.
//!
//! The pool has checked a request before it comes here: the stream is the device's, and the size is neither zero nor
//! beyond the device. Limits, the ladder on a miss and the counts are the backend's: `native` and `none`, which ask the
//! driver for each block, share theirs in `direct`.

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

use crate::config::{BackendKind, Config, HandleUse};
use crate::device::{Clocks, Device, Stamp, Stream, StreamId};
use crate::error::PoolError;
use crate::limits::Limits;
#[cfg(feature = "backend-caching")]
use caching::CachingBackend;
use direct::Direct;
use enum_dispatch::enum_dispatch;
use gpumem_heap::counters::Counters;
use gpumem_sys::DriverError;
use gpumem_sys::types::{CUdeviceptr, CUmemGenericAllocationHandle};
#[cfg(feature = "backend-native")]
use native::NativeAllocator;
use none::PlainAllocator;

/// A source of device memory. Every method may be called by any threads at once, with any context current.
#[enum_dispatch]
pub(crate) trait Source {
    fn kind(&self) -> BackendKind;

    /// Memory for work queued on `stream` from now on.
    fn alloc(&self, size_bytes: u64, stream: &Stream) -> Result<Allocation, PoolError>;

    /// The same at an alignment of more than 256, a power of two.
    fn alloc_aligned(
        &self,
        size_bytes: u64,
        alignment: u64,
        stream: &Stream,
    ) -> Result<Allocation, PoolError>;

    /// Lets another device, which has a link to ours, use what was and will be handed out.
    fn enable_peer_access(&self, peer: &Device) -> Result<(), PoolError>;

    /// Keeps the physical memory of a live allocation where it is.
    fn pin(&self, allocation: Allocation) -> Result<(), PoolError>;

    /// What a live allocation lies in, if that can be named to other processes.
    #[cfg_attr(not(unix), allow(dead_code, reason = "only exports ask for it, which are for Unix"))]
    fn backing(&self, _piece: Allocation) -> Option<Underlying> {
        None
    }

    /// Blocks that grow in place, if the backend has them.
    fn growing(&self) -> Option<&dyn Growing> {
        None
    }

    /// Takes back a block that is being dropped. Never waits and never panics, except that `none` waits.
    fn free(&self, freed: &FreeRequest) -> FreeOutcome;

    /// Holds at least so much from the device, if the backend keeps memory.
    fn reserve(&self, _size_bytes: u64) -> Result<(), PoolError> {
        Ok(())
    }

    /// Says the first thing that contradicts another, if the backend keeps books. Exact when nothing else uses the pool.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// The pool has no handle any more, so that nobody allocates. Returns how many blocks are alive of those that the
    /// backend counts; of each that is freed from here on it says [`FreeOutcome::counted`] is false. Called once.
    fn close(&self) -> u64;

    /// Whether the backend counts its blocks itself. If not, the pool counts each.
    fn counts_blocks(&self) -> bool;

    /// Whether freed memory stays with the backend, which so is one of its device's trimmables.
    fn keeps_memory(&self) -> bool;

    fn counts(&self) -> Counts;

    /// What has been counted for each stream whose blocks are alive, and together under `None` for those that are gone.
    fn streams(&self) -> Vec<(Option<StreamId>, Counters)>;

    /// From now on peaks are of what comes.
    fn reset_peaks(&self) -> Result<(), PoolError>;

    /// Whether it keeps memory in plain segments, for want of virtual memory or because that was asked for.
    fn has_plain_segments(&self) -> bool {
        false
    }

    /// The hard limit is about to become this.
    fn allow_hard_limit(&self, _limit_bytes: u64) {}

    /// The soft limit has changed, or more is held than a changed hard limit allows.
    fn limits_changed(&self) -> Result<(), PoolError> {
        Ok(())
    }

    /// Gives back what is free beyond `keep_bytes`.
    fn trim_to(&self, keep_bytes: u64) -> Result<(), PoolError>;

    /// Waits for the device, then gives back all that no block holds.
    fn reclaim(&self) -> Result<(), PoolError>;

    /// What is held from the device; `None` where that is what the blocks hold.
    fn reserved(&self) -> Result<Option<Reserved>, PoolError>;
}

/// Stretches of addresses whose memory grows and shrinks at their end, each by its number.
pub(crate) trait Growing {
    /// Addresses for so many bytes, not zero: their number and where they start.
    fn add(&self, max_bytes: u64) -> Result<(u64, CUdeviceptr), PoolError>;

    /// Memory up to a size within the addresses, or no change.
    fn grow_to(&self, id: u64, size_bytes: u64) -> Result<(), PoolError>;

    /// No memory behind a size, once these uses are done.
    fn shrink_to(&self, id: u64, size_bytes: u64, uses: &[Stamp]) -> Result<(), PoolError>;

    /// Neither memory nor addresses, once these uses are done.
    fn remove(&self, id: u64, uses: &[Stamp]);
}

/// They have memory in whole units of this.
pub(crate) const GROWTH_UNIT_BYTES: u64 = 2 << 20;

/// Physical memory under an allocation: handles side by side, by the driver's names, each with its size.
#[cfg_attr(not(unix), allow(dead_code, reason = "only exports ask for it, which are for Unix"))]
#[derive(Clone, Debug)]
pub(crate) struct Underlying {
    pub(crate) handles: Vec<(CUmemGenericAllocationHandle, u64)>,
    /// Where in the first of them the piece starts.
    pub(crate) offset_bytes: u64,
}

/// What a backend hands out: an address, and a record and a class that come back with the block and mean what the backend
/// likes. In a block there may be a tag with them. They are one word: the processor waits for what it reads from memory in
/// another width than it has just been written in, and blocks are moved a lot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) address: CUdeviceptr,
    /// From the lowest bit: 32 of the record, 16 of the class, 16 of the tag.
    mark: u64,
}

impl Allocation {
    /// No memory, and of no class.
    pub(crate) const EMPTY: Self = Self::new(0, 0, Self::NO_CLASS);

    /// No memory of a backend's own: an empty block, or a part of what a graph keeps.
    pub(crate) const NO_CLASS: u16 = u16::MAX;

    /// What adaptors know more of than a backend: the record is a number of the pool's own
    /// [`Stack`](crate::pool::adaptors::Stack). No backend has such a class.
    const SPECIAL: u16 = u16::MAX - 1;

    #[inline]
    pub(crate) const fn new(address: CUdeviceptr, record: u32, class: u16) -> Self {
        Self { address, mark: record as u64 | (class as u64) << CLASS_SHIFT }
    }

    /// A block that the pool's adaptors have a number for.
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

    /// The class of one without a tag; with one, more than any class.
    #[cfg(feature = "backend-caching")]
    #[inline]
    pub(crate) fn untagged_class(self) -> usize {
        (self.mark >> CLASS_SHIFT) as usize
    }

    /// 0 is none.
    #[inline]
    pub(crate) fn tag(self) -> u16 {
        (self.mark >> TAG_SHIFT) as u16
    }

    /// The same, which has none yet, with a tag.
    #[inline]
    pub(crate) fn with_tag(self, tag: u16) -> Self {
        Self { mark: self.mark | u64::from(tag) << TAG_SHIFT, ..self }
    }

    /// As the backend knows it.
    #[inline]
    pub(crate) fn without_tag(self) -> Self {
        Self { mark: self.mark & ((1 << TAG_SHIFT) - 1), ..self }
    }

    /// All but the address, to be put together again.
    pub(crate) fn mark(self) -> u64 {
        self.mark
    }

    pub(crate) fn from_mark(address: CUdeviceptr, mark: u64) -> Self {
        Self { address, mark }
    }
}

const CLASS_SHIFT: u32 = 32;
const TAG_SHIFT: u32 = 48;

/// A block that is being dropped, not empty.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreeRequest {
    pub(crate) allocation: Allocation,
    pub(crate) size_bytes: u64,
    /// The stream that it was allocated on, which may be gone.
    pub(crate) owner_stream: StreamId,
    /// The other streams that used it, as [`Clocks::uses`] reads them.
    pub(crate) uses: u64,
    /// Whoever drops it knows that no work uses it any more.
    pub(crate) is_complete: bool,
}

impl FreeRequest {
    /// The uses that are not known to be done, the owner stream's first.
    pub(crate) fn stamps(&self, clocks: &Clocks) -> impl Iterator<Item = Stamp> {
        let uses = (!self.is_complete).then(|| clocks.uses(self.owner_stream, self.uses));
        uses.into_iter().flatten()
    }
}

/// What became of a free.
#[derive(Debug)]
#[must_use = "a failure poisons the pool"]
pub(crate) struct FreeOutcome {
    /// After an error nothing was freed: the block is leaked, and was not counted.
    pub(crate) result: Result<(), DriverError>,
    /// Whether the backend counted the block off. Once this is true, the pool may be gone: it is not touched again.
    pub(crate) counted: bool,
}

/// Exact when no other thread is allocating or freeing meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) in_use_bytes: u64,
    /// An upper bound: [`Status::in_use_peak_bytes`](crate::Status::in_use_peak_bytes) says how near.
    pub(crate) in_use_peak_bytes: u64,
    pub(crate) block_count: u64,
    pub(crate) allocation_count: u64,
}

/// What a backend holds from the device, for blocks and for reuse.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reserved {
    pub(crate) current_bytes: u64,
    pub(crate) peak_bytes: u64,
    /// Host memory of the backend's own records.
    pub(crate) record_bytes: u64,
}

#[enum_dispatch(Source)]
pub(crate) enum Backend {
    #[cfg(feature = "backend-caching")]
    Caching(CachingBackend),
    #[cfg(feature = "backend-native")]
    Native(Direct<NativeAllocator>),
    None(Direct<PlainAllocator>),
}

/// What takes no lock that threads share, and no driver call. Always part of their callers: what they pass is in registers
/// then. They are told the backend's [`near`](Backend::near), so that none has to look for it.
impl Backend {
    /// Where threads have at hand what is free of this backend's; [`NO_CACHE`] if they have nothing.
    pub(crate) fn near(&self) -> u64 {
        match self {
            #[cfg(feature = "backend-caching")]
            Self::Caching(caching) => caching.near(),
            _ => NO_CACHE,
        }
    }

    /// What [`Source::alloc`] gives, where it is at hand. Of a stream that this thread has not been seen to use with this
    /// pool, nothing is.
    #[inline(always)]
    pub(crate) fn hit(near: u64, size_bytes: u64, fast_path_id: u64) -> Option<Allocation> {
        #[cfg(feature = "backend-caching")]
        return CachingBackend::hit(near, size_bytes, fast_path_id);
        #[cfg(not(feature = "backend-caching"))]
        {
            let _ = (near, size_bytes, fast_path_id);
            None
        }
    }

    /// [`Source::free`] of a small block that only the owner stream has used, if there is room for it at hand; false if there is not.
    /// Once it is true, the pool may be gone.
    #[inline(always)]
    pub(crate) fn put_back_small(
        near: u64,
        allocation: &Allocation,
        size_bytes: u64,
        owner_stream: StreamId,
    ) -> bool {
        #[cfg(feature = "backend-caching")]
        return CachingBackend::put_back_small(near, allocation, size_bytes, owner_stream);
        #[cfg(not(feature = "backend-caching"))]
        {
            let _ = (near, allocation, size_bytes, owner_stream);
            false
        }
    }

    /// The same of any size.
    pub(crate) fn put_back(
        &self,
        near: u64,
        allocation: &Allocation,
        size_bytes: u64,
        owner_stream: StreamId,
    ) -> bool {
        match self {
            #[cfg(feature = "backend-caching")]
            Self::Caching(caching) => caching.put_back(near, allocation, size_bytes, owner_stream),
            _ => {
                let _ = (near, allocation, size_bytes, owner_stream);
                false
            }
        }
    }
}

/// Where no thread has anything.
pub(crate) const NO_CACHE: u64 = u64::MAX;

impl Backend {
    /// The one that was asked for, else the best that is built and that the device can carry.
    pub(crate) fn new(device: &Device, config: &Config, limits: &Limits) -> Result<Self, PoolError> {
        let caching = || caching(device, config, limits);
        let native = || native(device, config, limits);
        let none = || none(device, config, limits);
        match config.backend {
            Some(BackendKind::Caching) => caching(),
            Some(BackendKind::Native) => native(),
            Some(BackendKind::None) => none(),
            None => caching().or_else(|error| instead(error, native)).or_else(|error| instead(error, none)),
        }
    }
}

/// The next best, where this one is not built in or the device can't carry it.
fn instead(
    error: PoolError,
    next: impl FnOnce() -> Result<Backend, PoolError>,
) -> Result<Backend, PoolError> {
    match error {
        PoolError::BackendNotBuilt { .. }
        | PoolError::BackendUnsupported { .. }
        | PoolError::NotWithBackend { .. } => next(),
        other => Err(other),
    }
}

#[cfg(feature = "backend-caching")]
fn caching(device: &Device, config: &Config, limits: &Limits) -> Result<Backend, PoolError> {
    Ok(CachingBackend::new(device, config, limits)?.into())
}

#[cfg(not(feature = "backend-caching"))]
fn caching(_: &Device, _: &Config, _: &Limits) -> Result<Backend, PoolError> {
    Err(PoolError::BackendNotBuilt { backend: BackendKind::Caching, feature: "backend-caching" })
}

fn none(device: &Device, config: &Config, limits: &Limits) -> Result<Backend, PoolError> {
    check_not_exported(BackendKind::None, config.handle_use)?;
    Ok(Direct::new(device, config, limits, PlainAllocator::new(config.kind)).into())
}

fn check_not_exported(backend: BackendKind, handle_use: HandleUse) -> Result<(), PoolError> {
    match handle_use.exportable {
        true => Err(PoolError::NotWithBackend { backend, what: "export blocks", instead: "`caching`" }),
        false => Ok(()),
    }
}

#[cfg(feature = "backend-native")]
fn native(device: &Device, config: &Config, limits: &Limits) -> Result<Backend, PoolError> {
    check_not_exported(BackendKind::Native, config.handle_use)?;
    if config.handle_use.rdma {
        return Err(native::cannot_pin());
    }
    Ok(Direct::new(device, config, limits, NativeAllocator::new(device, config, limits)?).into())
}

#[cfg(not(feature = "backend-native"))]
fn native(_: &Device, _: &Config, _: &Limits) -> Result<Backend, PoolError> {
    Err(PoolError::BackendNotBuilt { backend: BackendKind::Native, feature: "backend-native" })
}

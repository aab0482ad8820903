//! [`Pool`]: a handle to a `State`. The state owns the backend and lives until the last handle and the last block are dropped.
//!
//! A request goes through `request`, in the order of its files. `state`, `block`, `adaptors` and `graph_memory` name each other: a state has
//! adaptors and memory of graphs, these keep blocks, and a block keeps its state alive. All other files have an order: `hub`, below them,
//! has what requests need; `Pool` is above all.

pub(crate) mod adaptors;
mod alignment;
pub(crate) mod block;
mod current;
mod events;
mod frames;
pub(crate) mod graph_memory;
pub(crate) mod growable;
mod hub;
pub(crate) mod listing;
mod observer;
pub(crate) mod request;
mod room;
mod rooms;
mod scope;
#[cfg(unix)]
mod sharing;
mod sleep_state;
mod spill;
mod state;
mod unified;

pub(crate) use adaptors::{Adaptor, Figures, Grant, Next, Opening, PoolId, PoolSettings, Release, Request};
pub use block::{Block, BlockToken, RawBlock};
pub use current::CurrentPool;
pub use frames::ScopeUsage;
pub(crate) use graph_memory::GraphMemory;
pub use growable::GrowableBlock;
pub(crate) use observer::{MoveKind, Observer, SpillMove, Witness};
pub use room::{Reservation, Room, RoomFuture};
pub use scope::{Scope, Tag};
#[cfg(all(feature = "ipc", target_os = "linux"))]
pub use sharing::SocketError;
#[cfg(unix)]
pub use sharing::{ExportedBlock, ExportedHandle, ImportedBlock};
pub use spill::{Settled, SpillPin, SpillableBlock};
#[cfg(feature = "status-socket")]
pub(crate) use state::{StateRef, with_recordable};
pub use unified::{Location, MemoryAdvice};

use crate::backend::{Keep, MemorySource, Search, Slept, Woken};
use crate::config::{
    ALIGNMENT_MIN, BackendKind, IgnoredOption, IntoLimit, Limit, MemoryKind, PoolName, ignored,
};
use crate::error::{PoolError, PoolUsage, Unsupported};
use crate::limits::{Limits, WeakList};
use crate::stats::Status;
use adaptors::Stack;
use alignment::check_alignment;
use core::ops::{Range, RangeInclusive};
use gpumem_device::internal::not_forked;
use gpumem_device::{Device, Stream};
use gpumem_sys::text::{Shown, debug_fields};
use gpumem_sys::types::CUdevice_attribute;
use hub::Hub;
pub(crate) use hub::Setup;
use listing::Listing;
use request::ahead::without_moves;
use request::{Origin, check, ladder, largest};
use sleep_state::{ASLEEP, AWAKE, check_not_lent};
use spill::Spiller;
use state::{PoolHandle, State};
use std::sync::Arc;

/// Allocates [`Block`]s of one device's memory. Clones share the pool; blocks keep it alive.
///
/// ```
/// use gpumem_pool::{Device, Pool, PoolError, Stream};
/// use gpumem_sim::SimConfig;
///
/// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
/// let pool = Pool::builder(&device).hard_limit(64 << 20).build()?;
/// let stream = Stream::new(&device)?;
///
/// let block = pool.alloc(48 << 20, &stream)?;
/// assert!(matches!(pool.alloc(32 << 20, &stream), Err(PoolError::LimitReached { .. })));
/// drop(block);
/// let block = pool.alloc(32 << 20, &stream)?;
/// println!("{}", pool.status()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Pool(pub(crate) PoolHandle);

impl Pool {
    /// `adaptors`: innermost first. `parent`: the pool above, if any.
    pub(crate) fn build(
        setup: Setup,
        adaptors: Vec<Arc<dyn Adaptor>>,
        parent: Option<&Self>,
    ) -> Result<Self, PoolError> {
        not_forked()?;
        let is_for_host = check_kind(setup.config.kind, &setup.device)?;
        let hub = Hub::open(setup, is_for_host)?;
        let stack = Stack::new(&adaptors);
        if let Some(stack) = &stack {
            if stack.is_open() {
                hub.take_cache_key();
            }
            stack.open(&hub);
        }
        WeakList::on(hub.device()).add(Arc::downgrade(&hub.listing));
        #[cfg(feature = "status-socket")]
        Listing::of_process().add(Arc::downgrade(&hub.listing));
        if let Some(spiller) = Spiller::open(&hub, parent.and_then(|parent| parent.0.spiller()))? {
            hub.set_spiller(spiller);
        }
        let pool = Self(PoolHandle::new(hub, adaptors, stack));
        #[cfg(feature = "status-socket")]
        pool.0.list_if_recordable();
        pool.0.setup.peers.iter().try_for_each(|peer| pool.enable_peer_access(peer))?;
        pool.0.open_to_configured()?;
        Ok(pool)
    }

    /// Lists all pools of a GPU that have a handle or a live block, private pools included, in the order of their
    /// creation. Pools of all `Device`s opened on one GPU are listed.
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let pool = Pool::builder(&device).name("training").hard_limit(1 << 30).build()?;
    /// let cache = pool.private_named("cache", 64 << 20)?;
    /// let block = cache.alloc(8 << 20, &Stream::new(&device)?)?;
    /// for pool in Pool::list(&device) {
    ///     println!("{}: {} of {:?} bytes", pool.name, pool.in_use_bytes, pool.hard_limit_bytes);
    /// }
    /// let names: Vec<_> = Pool::list(&device).into_iter().map(|pool| (pool.name, pool.in_use_bytes)).collect();
    /// assert_eq!(names, [("training".into(), 0), ("training/cache".into(), 8 << 20)]);
    /// # drop(block);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn list(device: &Device) -> Vec<PoolUsage> {
        Listing::usage_on(device)
    }

    /// Allocates `size_bytes` on `stream`. Work queued on `stream` after this call may use the memory. Its contents
    /// are unspecified.
    ///
    /// A request for zero bytes returns a block at address 0 and costs no driver call. When the device or the limit is
    /// full, the pool waits for the device and releases its cached memory. If that is not enough, it runs the
    /// registered reclaim callbacks ([`Reclaimable`](crate::Reclaimable)), trims the device's other pools, and retries.
    /// No other allocation waits.
    ///
    /// # Errors
    ///
    /// - [`PoolError::OutOfMemory`] if the device has no free memory.
    /// - [`PoolError::LimitReached`] if a hard limit or quota refuses.
    /// - [`PoolError::TooLarge`] if the request exceeds the device's memory.
    /// - [`DeviceError::WrongDevice`](crate::DeviceError::WrongDevice) for another device's stream.
    /// - [`DeviceError::Stream`](crate::DeviceError::Stream) if this thread cannot use the stream.
    /// - [`DeviceError::Asleep`](crate::DeviceError::Asleep) if the pool sleeps.
    /// - [`DeviceError::DeviceLost`](crate::DeviceError::DeviceLost) or [`PoolError::Poisoned`] after an earlier failure.
    /// - [`PoolError::Refused`] or another error of an adaptor.
    /// - [`DeviceError::Driver`](crate::DeviceError::Driver) if a call fails.
    #[inline]
    pub fn alloc(&self, size_bytes: u64, stream: &Stream) -> Result<Block, PoolError> {
        request::alloc(*self.0, size_bytes, ALIGNMENT_MIN, stream)
    }

    /// Allocates up to `count_max` blocks of `size_bytes` bytes each on `stream`, side by side in one free range. That is faster than one
    /// [`Pool::alloc`] call per block. The pool neither grows nor waits. If too little memory is free, it returns fewer blocks, or none.
    ///
    /// The blocks of one call have at most 1 MiB together. Pools of unified or host memory, pools with adaptors, and the backends
    /// `native` and `none` return none.
    ///
    /// ```
    /// use gpumem_pool::{BackendKind, Device, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let (pool, stream) = (Pool::new(&device)?, Stream::new(&device)?);
    /// let first = pool.alloc(4096, &stream)?; // reserves memory for more
    /// let blocks = pool.alloc_ready(4096, 100, &stream)?;
    /// assert!(blocks.len() == 100 || pool.backend() != BackendKind::Caching);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`DeviceError::WrongDevice`](crate::DeviceError::WrongDevice) for another device's stream.
    /// - [`DeviceError::Stream`](crate::DeviceError::Stream) if this thread cannot use the stream.
    /// - [`DeviceError::Asleep`](crate::DeviceError::Asleep) if the pool sleeps.
    /// - [`DeviceError::DeviceLost`](crate::DeviceError::DeviceLost) or [`PoolError::Poisoned`] after an earlier failure.
    pub fn alloc_ready(
        &self,
        size_bytes: u64,
        count_max: usize,
        stream: &Stream,
    ) -> Result<Vec<Block>, PoolError> {
        request::alloc_ready(*self.0, size_bytes, count_max, stream)
    }

    /// Returns the name under which the pool is listed in reports, [`Status`] and [`Pool::list`]: the name given to
    /// [`PoolBuilder::name`](crate::PoolBuilder::name), otherwise the number of [`Pool::id`]. The name of a private pool begins with its
    /// parent's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name().as_str()
    }

    /// Returns the pool's identity, which no other pool of the process ever has.
    #[must_use]
    pub fn id(&self) -> PoolId {
        self.0.id()
    }

    /// Returns the pool's backend.
    #[must_use]
    pub fn backend(&self) -> BackendKind {
        self.0.backend.kind()
    }

    /// Returns the options that were set, by name, builder or environment, but have no effect on this backend, including a soft limit above
    /// the hard limit, even one set later. [`Status`] notes that limit too.
    ///
    /// On `native`, such a soft limit has an effect, and is not listed, where the driver's pool may cache more than the hard limit:
    /// after the hard limit was set or lowered on a built pool, and with drivers before CUDA 12.2.
    #[must_use]
    pub fn ignored_options(&self) -> Vec<IgnoredOption> {
        let can_map = self.0.backend.growing().is_some();
        ignored::ignored_options(self.0.config(), self.backend(), can_map, self.0.is_soft_limit_idle())
    }

    /// Returns the kind of the pool's memory.
    #[must_use]
    pub fn kind(&self) -> MemoryKind {
        self.0.config().kind
    }

    /// Returns the device that owns the pool's memory or, for host memory, uses it.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.0.device()
    }

    /// Like [`Pool::alloc`], with a start address that is a multiple of `alignment`, a power of two up to 1 GiB.
    /// Every block is aligned to 256 bytes; a smaller alignment has no effect.
    ///
    /// `caching` searches for a matching address. For alignments beyond 2 MiB it may reserve memory in front of the block, which other
    /// blocks may use. `native` and `none` request up to `alignment` more bytes from the driver, which count as in use.
    ///
    /// ```
    /// use gpumem_pool::{BadArgument, Device, Pool, PoolError, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let (pool, stream) = (Pool::new(&device)?, Stream::new(&device)?);
    ///
    /// let table = pool.alloc_aligned(3000, 64 << 10, &stream)?;
    /// assert_eq!(table.address() % (64 << 10), 0);
    /// assert!(matches!(pool.alloc_aligned(3000, 100, &stream), Err(PoolError::BadArgument(BadArgument::Alignment { .. }))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PoolError::BadArgument`] if `alignment` is not a power of two or exceeds 1 GiB; otherwise the errors of [`Pool::alloc`].
    pub fn alloc_aligned(
        &self,
        size_bytes: u64,
        alignment: u64,
        stream: &Stream,
    ) -> Result<Block, PoolError> {
        check_alignment(alignment)?;
        request::alloc(*self.0, size_bytes, alignment.max(ALIGNMENT_MIN), stream)
    }

    /// Allocates the largest block of a range of sizes that the pool can provide; [`Block::size_bytes`] is the size. Use it for
    /// work that can be split to fit into memory, such as a batch or a workspace.
    ///
    /// The end of the range is tried first, with everything that [`Pool::alloc`] does to make room. If it is refused, the figures of the
    /// refusal give the next size, which uses a limit or the free memory up to the last 256 bytes. If free memory is fragmented, the result
    /// is within a 64th of the range of the largest size that fits. That takes at most a dozen requests. Their refusals count as one, and
    /// only if no size of the range is available: then it is counted, observed
    /// ([`PoolBuilder::on_out_of_memory`](crate::PoolBuilder::on_out_of_memory)), recorded in traces, and an event of `tracing`.
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let (pool, stream) = (Pool::builder(&device).hard_limit(64 << 20).build()?, Stream::new(&device)?);
    /// let weights = pool.alloc(40 << 20, &stream)?;
    /// let workspace = pool.alloc_up_to(1 << 20..=1 << 30, &stream)?;
    /// assert_eq!(workspace.size_bytes(), 24 << 20);
    /// # drop(weights);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`PoolError::BadArgument`] if the end of the range is below its start.
    /// - [`DeviceError::Capture`](crate::DeviceError::Capture) if the stream captures: a graph would keep the memory of each size that is tried.
    /// - All errors of [`Pool::alloc`] for the smallest size, such as [`PoolError::OutOfMemory`] and
    ///   [`PoolError::LimitReached`].
    pub fn alloc_up_to(&self, sizes: RangeInclusive<u64>, stream: &Stream) -> Result<Block, PoolError> {
        largest::alloc_up_to(*self.0, sizes, stream)
    }

    /// Like [`Pool::alloc`], with all bytes set to zero. The fill is work on `stream`, and this call does not wait for it:
    /// before the host reads memory that it can access ([`Block::host_ptr`]), it waits for the stream.
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let (pool, stream) = (Pool::new(&device)?, Stream::new(&device)?);
    /// let block = pool.alloc_zeroed(4096, &stream)?;
    /// let mut sums = [1_u64; 512];
    /// block.copy_to_host(0, &mut sums, &stream)?;
    /// assert_eq!(sums, [0; 512]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`DeviceError::Capture`](crate::DeviceError::Capture) if the stream captures.
    /// - All errors of [`Pool::alloc`], such as [`PoolError::OutOfMemory`] and [`PoolError::LimitReached`].
    pub fn alloc_zeroed(&self, size_bytes: u64, stream: &Stream) -> Result<Block, PoolError> {
        not_forked()?;
        stream.check_usable()?;
        // Before the allocation, which would take memory for the graph.
        stream.check_runs("an allocation of zeroed memory")?;
        let mut block = self.alloc(size_bytes, stream)?;
        block.fill(0..size_bytes, 0_u8, stream)?;
        Ok(block)
    }

    /// Reserves addresses for up to `max_bytes`, without memory; see [`GrowableBlock`].
    ///
    /// # Errors
    ///
    /// - [`PoolError::Unsupported`] unless the backend is `caching` and maps device memory, which it does not with plain segments, unified or
    ///   host memory.
    /// - [`PoolError::TooLarge`] if `max_bytes` exceeds the device's memory.
    /// - [`PoolError::Refused`] in a pool with adaptors other than [`Trace`](crate::adaptor::Trace).
    /// - [`DeviceError::Asleep`](crate::DeviceError::Asleep) if the pool sleeps.
    /// - [`DeviceError::WrongDevice`](crate::DeviceError::WrongDevice) for another device's stream.
    /// - [`DeviceError::Stream`](crate::DeviceError::Stream) if this thread cannot use the stream.
    /// - [`DeviceError::DeviceLost`](crate::DeviceError::DeviceLost) or [`PoolError::Poisoned`] after an earlier failure.
    /// - [`DeviceError::Driver`](crate::DeviceError::Driver) if a call fails.
    pub fn growable(&self, max_bytes: u64, stream: &Stream) -> Result<GrowableBlock, PoolError> {
        GrowableBlock::new(&self.0, max_bytes, stream)
    }

    /// Opens a scope. Until the scope is dropped, the calling thread's allocations from this pool count for its
    /// tag, in [`Status::tags`](crate::Status::tags) and among the holders in an out-of-memory report. In nested
    /// scopes, the innermost tag counts. Scopes of one name share their tag, on all threads.
    ///
    /// A name that no scope, [`Tag`] or block uses may be forgotten with its counters; the last 256 such names stay. So one name per request
    /// is fine. A pool with a trace or a flight recorder distinguishes at most 65,534 names; further ones count for `(others)`.
    ///
    /// A block keeps its tag on any thread that frees it. Allocations outside scopes have no tag, and scopes add no cost to them. Tasks
    /// that change threads use [`Pool::alloc_tagged`].
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let (pool, stream) = (Pool::new(&device)?, Stream::new(&device)?);
    ///
    /// let scope = pool.scope("forward");
    /// let activations = pool.alloc(3 << 20, &stream)?;
    /// drop(pool.alloc(1 << 20, &stream)?);
    /// let usage = scope.end();
    /// assert_eq!((usage.allocated_bytes, usage.freed_bytes, usage.peak_bytes), (4 << 20, 1 << 20, 4 << 20));
    ///
    /// let status = pool.status()?;
    /// assert_eq!((&*status.tags[0].tag, status.tags[0].in_use_bytes), ("forward", 3 << 20));
    /// # drop(activations);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scope(&self, name: &str) -> Scope {
        Scope::open(&self.0.tags, name)
    }

    /// Returns the tag with this name, for [`Pool::alloc_tagged`].
    #[must_use]
    pub fn tag(&self, name: &str) -> Tag {
        Tag::new(&self.0.tags, name)
    }

    /// Like [`Pool::alloc`], for a tag instead of the thread's innermost scope. The block counts for the tag on any allocating and freeing
    /// thread, and also in the usage of this thread's open scopes.
    ///
    /// # Errors
    ///
    /// The errors of [`Pool::alloc`].
    pub fn alloc_tagged(&self, size_bytes: u64, stream: &Stream, tag: &Tag) -> Result<Block, PoolError> {
        tag.with_number_in(&self.0.tags, |number| request::alloc_tagged(*self.0, size_bytes, stream, number))
    }

    /// Asks for room for a piece of work, and waits for its turn: [`Room::wait`], [`Room::try_now`], or `.await`.
    ///
    /// Work that starts with all of its memory set aside neither fails half-way nor takes memory from work that runs. Requests are admitted
    /// in the order of their arrival, once what they ask for can be had below the limit, beside what is set aside already. Those that fit
    /// may pass one that does not, until they have asked for as much as that one. What is admitted is a [`Reservation`].
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, PoolError, Stream};
    /// use gpumem_sim::SimConfig;
    /// use std::time::Duration;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let pool = Pool::builder(&device).hard_limit(64 << 20).build()?;
    ///
    /// let first = pool.room(48 << 20).wait()?;
    /// let block = {
    ///     let _drawing = first.scope();
    ///     pool.alloc(40 << 20, &Stream::new(&device)?)?
    /// };
    /// assert!(pool.room(20 << 20).try_now()?.is_none());
    /// let late = pool.room(20 << 20).within(Duration::from_millis(5)).wait();
    /// assert!(matches!(late, Err(PoolError::NoRoom(_))));
    ///
    /// let second = std::thread::scope(|scope| {
    ///     let second = scope.spawn(|| pool.room(20 << 20).wait());
    ///     drop((first, block));
    ///     second.join().expect("the thread does not panic")
    /// })?;
    /// assert_eq!(second.size_bytes(), 20 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn room(&self, size_bytes: u64) -> Room {
        Room::new(&self.0, size_bytes)
    }

    /// Builds a separate pool for one part of a program. The new pool has this pool's configuration, separate memory, separate counters and
    /// its own hard limit, the quota. Its memory also counts against this pool's hard limit, if any, so either pool may be refused because
    /// of the other. When that limit is reached, cached memory of any of the pools is released first (`caching`). A quota is therefore an
    /// upper bound, not a reservation.
    ///
    /// A quota above this pool's limit is reduced to that limit. The pools may be dropped in either order.
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, PoolError, Stream, Unsupported};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let pool = Pool::builder(&device).hard_limit(64 << 20).build()?;
    /// let stream = Stream::new(&device)?;
    ///
    /// let cache = pool.private(24 << 20)?;
    /// let held = cache.alloc(20 << 20, &stream)?;
    /// assert!(matches!(cache.alloc(8 << 20, &stream), Err(PoolError::LimitReached { .. })));
    /// assert!(matches!(pool.alloc(50 << 20, &stream), Err(PoolError::LimitReached { .. })));
    /// let other = pool.alloc(40 << 20, &stream)?;
    /// # drop((held, other));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ConfigError::LimitSyntax`](crate::ConfigError::LimitSyntax) for an invalid text or share.
    /// - [`ConfigError::ShareOfHost`](crate::ConfigError::ShareOfHost) for a share of host memory.
    /// - The errors of [`PoolBuilder::build`](crate::PoolBuilder::build), such as [`PoolError::BadArgument`] for
    ///   a quota below the smallest accepted value.
    pub fn private(&self, quota: impl IntoLimit) -> Result<Self, PoolError> {
        self.build_beneath(None, Some(quota.into_limit()?))
    }

    /// Like [`Pool::private`], with a name for the new pool, which follows this pool's name:
    /// `training/cache` ([`Pool::name`]).
    ///
    /// # Errors
    ///
    /// The errors of [`Pool::private`].
    pub fn private_named(&self, name: &str, quota: impl IntoLimit) -> Result<Self, PoolError> {
        self.build_beneath(Some(name), Some(quota.into_limit()?))
    }

    /// Builds a pool with this pool's configuration whose memory also counts against this pool's limits.
    fn build_beneath(&self, name: Option<&str>, quota: Option<Limit>) -> Result<Self, PoolError> {
        not_forked()?;
        let device = self.device();
        let free_bytes = || Ok(device.memory_info()?.free_bytes);
        let resolve = |quota| Limits::resolve(Some(quota), self.kind(), device.total_bytes(), free_bytes);
        let quota_bytes = quota.map(resolve).transpose()?;
        let least = |quota: u64| self.0.limits.hard_bytes().map_or(quota, |limit| limit.min(quota));
        let mut setup = self.0.setup.clone();
        setup.name = PoolName::new(name, Some(&setup.name));
        setup.parent = Some(Arc::clone(&self.0.limits.node));
        setup.config.backend = Some(self.backend());
        setup.config.hard_limit = quota_bytes.map(|quota| least(quota).into());
        if self.0.backend.has_plain_segments() {
            setup.config.expandable_segments = Some(false);
        }
        let pool = Self::build(setup, self.0.adaptors.to_vec(), Some(self))?;
        pool.0.open_like(&self.0)?;
        Ok(pool)
    }

    /// Returns the part of this pool with a name. The first call creates it.
    ///
    /// A part is a pool with this pool's configuration and separate memory, so it can sleep while the rest works ([`Pool::sleep_parts`]):
    /// the weights of a model in one part, its cache in another. Its memory counts against this pool's hard limit, if any. It has no quota,
    /// unlike a [private pool](Pool::private_named).
    ///
    /// Parts live as long as this pool or one of its blocks. Their names follow this pool's name: `server/weights`. Once there are 64 parts,
    /// parts that are awake and have neither a handle nor a block may be forgotten, with their limits and counters. A call with such a name
    /// creates the part again, so one part per request is fine.
    ///
    /// ```
    /// use gpumem_pool::{BackendKind, Device, DeviceError, Keep, Pool, PoolError, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// # #[cfg(feature = "backend-caching")] {
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let pool = Pool::builder(&device).backend(BackendKind::Caching).build()?;
    /// let stream = Stream::new(&device)?;
    /// let mut weights = pool.part("weights")?.alloc(8 << 20, &stream)?;
    /// let cache = pool.part("cache")?.alloc(64 << 20, &stream)?;
    /// weights.copy_from_host(0, &[1.0_f32, 2.0], &stream)?;
    ///
    /// pool.sleep_parts(["weights"], Keep::OnHost)?;
    /// pool.sleep_parts(["cache"], Keep::Nothing)?;
    /// assert!(matches!(pool.part("cache")?.alloc(256, &stream), Err(PoolError::Device(DeviceError::Asleep { .. }))));
    /// // … another phase of the program uses the device's memory: the pool itself is awake …
    /// let other = pool.alloc(72 << 20, &stream)?;
    /// drop(other);
    ///
    /// pool.wake_parts(["weights", "cache"])?;
    /// let mut values = [0.0_f32; 2];
    /// weights.copy_to_host(0, &mut values, &stream)?;
    /// assert_eq!(values, [1.0, 2.0]);
    /// # drop(cache);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// All errors of [`PoolBuilder::build`](crate::PoolBuilder::build), in the first call with a name.
    pub fn part(&self, name: &str) -> Result<Self, PoolError> {
        not_forked()?;
        // Dropped after the lock.
        let _unused;
        let mut parts = self.0.parts.lock();
        if let Some(part) = parts.by_name.get(name) {
            return Ok(Self(part.clone()));
        }
        _unused = parts.purge();
        let part = self.build_beneath(Some(name), None)?;
        parts.by_name.insert(name.into(), part.0.clone());
        Ok(part)
    }

    /// Puts the parts of this pool with these names to sleep, one after another ([`Pool::sleep`]), and returns the sum of their bytes.
    /// Duplicate names count once.
    ///
    /// # Errors
    ///
    /// After an error the parts of this call are awake, if [`Pool::wake`] succeeds. [`Keep::Nothing`] may have zeroed their contents.
    ///
    /// - [`PoolError::NotFound`] if no part has the name. Then nothing has changed.
    /// - All errors of [`Pool::sleep`].
    pub fn sleep_parts<'a>(
        &self,
        names: impl IntoIterator<Item = &'a str>,
        keep: Keep,
    ) -> Result<Slept, PoolError> {
        let parts = self.find_parts(names)?;
        let mut sum = Slept::default();
        for (index, part) in parts.iter().enumerate() {
            match part.sleep(keep) {
                Ok(slept) => {
                    sum.released_bytes += slept.released_bytes;
                    sum.kept_bytes += slept.kept_bytes;
                    sum.copied_bytes += slept.copied_bytes;
                }
                Err(error) => {
                    // A part that cannot wake stays asleep, as `is_asleep` reports; the first error names the cause.
                    parts[..index].iter().for_each(|part| drop(part.wake()));
                    return Err(error);
                }
            }
        }
        Ok(sum)
    }

    /// Wakes the parts of this pool with these names ([`Pool::wake`]), and returns the sum of their bytes. Parts that are awake are
    /// unchanged.
    ///
    /// # Errors
    ///
    /// After an error the parts before the one that failed are awake. Call it again, for example after memory was freed.
    ///
    /// - [`PoolError::NotFound`] if no part has the name. Then nothing has changed.
    /// - All errors of [`Pool::wake`].
    pub fn wake_parts<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<Woken, PoolError> {
        let mut sum = Woken::default();
        for part in self.find_parts(names)? {
            let woken = part.wake()?;
            sum.created_bytes += woken.created_bytes;
            sum.copied_bytes += woken.copied_bytes;
        }
        Ok(sum)
    }

    fn find_parts<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<Vec<Self>, PoolError> {
        not_forked()?;
        let parts = self.0.parts.lock();
        let mut found: Vec<Self> = Vec::new();
        for name in names {
            let part = parts.by_name.get(name).ok_or_else(|| PoolError::NotFound {
                pool: self.name().into(),
                part: name.into(),
                parts: parts.by_name.keys().cloned().collect(),
            })?;
            if found.iter().all(|there| there.id() != part.id()) {
                found.push(Self(part.clone()));
            }
        }
        Ok(found)
    }

    /// Releases the physical memory of the pool to the device. Blocks keep their addresses, so captured graphs and stored addresses are
    /// valid again after [`Pool::wake`]. A server that alternates between training and inference lets the memory of one phase sleep during
    /// the other.
    ///
    /// Waits first for the device, and for the other devices that have access to the memory. With [`Keep::OnHost`] the contents of all
    /// blocks are copied to pinned host memory. The pool keeps that memory for its next sleep, because pinning takes longer than the
    /// copies; [`Pool::reclaim`] releases it while the pool is awake. Cached memory is released too. In a pool that spills, arrays whose contents
    /// are on the host already stay there until their next use after [`Pool::wake`].
    ///
    /// While the pool sleeps,
    ///
    /// - allocations return [`DeviceError::Asleep`](crate::DeviceError::Asleep);
    /// - so do copies, fills and launches of graphs that use the memory, and all operations of `gpumem-array` on arrays in it;
    /// - blocks may be dropped on any thread. [`Pool::wake`] does not create memory without blocks again;
    /// - the pool may be dropped, which never waits.
    ///
    /// All memory of a pool sleeps together. Put memory that sleeps separately, such as weights and caches, into parts of the pool
    /// ([`Pool::part`]). Parts and private pools ([`Pool::private`]) do not sleep with their parent.
    ///
    /// While an array of `gpumem-array` is lent to another library, until its guard is dropped (`read_on`, `write_on`, the slices for
    /// cudarc), its pool does not sleep. A guard that was leaked counts until the array is dropped. All other work that uses an address
    /// without this crate's functions is the caller's responsibility: queue it before this call or after [`Pool::wake`]. This concerns
    /// [`Block::address`](crate::Block::address) and tensors exported by DLPack.
    ///
    /// ```
    /// use gpumem_pool::{BackendKind, Device, DeviceError, Keep, Pool, PoolError, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// # #[cfg(feature = "backend-caching")] {
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let pool = Pool::builder(&device).backend(BackendKind::Caching).build()?;
    /// let stream = Stream::new(&device)?;
    /// let mut weights = pool.alloc(6 << 20, &stream)?;
    /// weights.copy_from_host(0, &[1.0_f32, 2.0], &stream)?;
    ///
    /// let slept = pool.sleep(Keep::OnHost)?;
    /// assert_eq!((slept.copied_bytes, slept.kept_bytes), (6 << 20, 0));
    /// assert!(matches!(weights.fill(0..4, 0_u8, &stream), Err(PoolError::Device(DeviceError::Asleep { .. }))));
    /// // … another pool, or another program, uses the device's memory …
    /// pool.wake()?;
    ///
    /// let mut values = [0.0_f32; 2];
    /// weights.copy_to_host(0, &mut values, &stream)?;
    /// assert_eq!(values, [1.0, 2.0]);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// After an error the pool is awake, unless the driver also refuses to undo its earlier calls: then [`Pool::is_asleep`] is true, and
    /// [`Pool::wake`] tries again. [`Keep::OnHost`] loses no contents. [`Keep::Nothing`] may have zeroed them.
    ///
    /// - [`PoolError::Unsupported`] unless the backend is `caching` and maps device memory, which it does not with plain segments, unified or
    ///   host memory.
    /// - [`PoolError::CannotSleep`] if the pool already sleeps or has exported or pinned blocks, if an array in it is lent to another
    ///   library, or with [`Keep::Nothing`] if an adaptor, such as [`Guard`](crate::adaptor::Guard), hides bytes beside blocks.
    /// - [`DeviceError::Stream`](crate::DeviceError::Stream) in the closure of [`Stream::run_borrowed`](crate::Stream::run_borrowed).
    /// - [`DeviceError::Capture`](crate::DeviceError::Capture) while a capture is active on one of these devices.
    /// - [`DeviceError::DeviceLost`](crate::DeviceError::DeviceLost) or [`PoolError::Poisoned`] after an earlier failure.
    /// - [`DeviceError::Driver`](crate::DeviceError::Driver) if a call fails, for example because the host has too little memory.
    pub fn sleep(&self, keep: Keep) -> Result<Slept, PoolError> {
        let (state, operation) = (&**self.0, "putting a pool to sleep");
        state.check_usable()?;
        let (sleeping, device) = (state.backend.sleeping()?, self.device());
        device.check_runs(operation)?;
        device.sleepers().check_not_in_call()?;
        // Before the state changes, so that a refusal does not affect other threads. Checked again below, for a loan that begins in between.
        check_not_lent(state.name(), device, sleeping)?;
        if let Some(spiller) = state.spiller().filter(|_| state.sleep_state.is_awake()) {
            spiller.prepare_sleep(keep == Keep::OnHost);
        }
        let mut change = state.sleep_state.begin(state.name(), AWAKE)?;
        state.take_cache_key();
        device.sleepers().add(state.id().number(), state.name().shared(), sleeping.addresses());
        device.sleepers().let_calls_end();
        device.clocks().let_calls_end();
        sleeping.prepare_sleep();
        let slept = check_not_lent(state.name(), device, sleeping)
            .and_then(|()| state.sleep_state.check_keep(state.name(), keep))
            .and_then(|()| {
                device.synchronize_for_drop()?;
                state.wait_for_peers()?;
                sleeping.sleep(keep)
            });
        if slept.is_ok() || sleeping.is_asleep() {
            change.to = ASLEEP;
        } else {
            state.be_awake();
            drop(change);
            state.settle_cache_key();
        }
        slept
    }

    /// Creates the physical memory of a sleeping pool again, at the same addresses, and restores the contents of its blocks ([`Keep`]).
    /// Does nothing if the pool is awake. When the device or a limit is full, the pool makes room like [`Pool::alloc`].
    ///
    /// # Errors
    ///
    /// After an error the pool still sleeps, without memory on the device if the driver allows. Call it again, for example after memory was
    /// freed.
    ///
    /// - [`PoolError::OutOfMemory`] if the device has too little free memory.
    /// - [`PoolError::LimitReached`] if a hard limit or quota refuses.
    /// - [`PoolError::CannotSleep`] if another thread is putting the pool to sleep or waking it.
    /// - [`DeviceError::DeviceLost`](crate::DeviceError::DeviceLost) or [`PoolError::Poisoned`] after an earlier failure.
    /// - [`DeviceError::Driver`](crate::DeviceError::Driver) if a call fails.
    pub fn wake(&self) -> Result<Woken, PoolError> {
        let state = &**self.0;
        state.check_usable()?;
        if state.sleep_state.is_awake() {
            return Ok(Woken::default());
        }
        let sleeping = state.backend.sleeping()?;
        let mut change = state.sleep_state.begin(state.name(), ASLEEP)?;
        let woken = sleeping.wake(|search| ladder::climb(state, search));
        if woken.is_ok() {
            state.be_awake();
            change.to = AWAKE;
        }
        drop(change);
        if woken.is_ok() {
            state.settle_cache_key();
        }
        state.with_report(woken, &Origin { size_bytes: None, stream: None, tag: 0 })
    }

    /// True if the pool sleeps ([`Pool::sleep`]), or is currently going to sleep or waking.
    #[must_use]
    pub fn is_asleep(&self) -> bool {
        !self.0.sleep_state.is_awake()
    }

    /// Reserves memory from the device until the pool holds at least `size_bytes`, so that blocks up to that sum
    /// need no driver call for memory. Waits only if the device or the limit is full. Only the backend `caching`
    /// reserves ahead; `native` and `none` grow with each block.
    ///
    /// Thread caches keep large blocks in memory that was reserved ahead and never needed. While there is such memory,
    /// a block may be a quarter larger than requested, and below 64 KiB twice as large.
    ///
    /// # Errors
    ///
    /// - [`PoolError::OutOfMemory`] if the device has too little free memory.
    /// - [`PoolError::LimitReached`] if a hard limit or quota refuses.
    /// - [`PoolError::TooLarge`] if `size_bytes` exceeds the device's memory.
    /// - [`DeviceError::Asleep`](crate::DeviceError::Asleep) if the pool sleeps.
    /// - [`DeviceError::DeviceLost`](crate::DeviceError::DeviceLost) or [`PoolError::Poisoned`] after an earlier failure.
    /// - [`DeviceError::Driver`](crate::DeviceError::Driver) if a call fails.
    pub fn reserve(&self, size_bytes: u64) -> Result<(), PoolError> {
        self.0.check_usable()?;
        self.0.check_awake()?;
        let climb = |search: &mut dyn Search<()>| ladder::climb(&self.0, search);
        let reserved =
            check::size(&self.0, size_bytes).and_then(|()| self.0.backend.reserve(size_bytes, climb));
        self.0.with_report(reserved, &Origin { size_bytes: None, stream: None, tag: 0 })
    }

    /// Runs the reclaim callbacks registered with the device ([`Reclaimable`](crate::Reclaimable)), waits for the
    /// device, then releases all memory that no block holds, and the host memory that [`Pool::sleep`] keeps. Returns the number of
    /// bytes released from the device.
    ///
    /// An allocation does this automatically when the device is full. Call it to leave room for other users of the device.
    ///
    /// # Errors
    ///
    /// - [`DeviceError::DeviceLost`](crate::DeviceError::DeviceLost) or [`PoolError::Poisoned`] after an earlier failure.
    /// - [`DeviceError::Driver`](crate::DeviceError::Driver) if a call fails.
    pub fn reclaim(&self) -> Result<u64, PoolError> {
        self.giving_back(|state| {
            ladder::run_all_callbacks(state);
            state.backend.reclaim()
        })
    }

    /// Moves the contents of arrays to the host until `size_bytes` of device memory are free, if the pool spills
    /// ([`PoolBuilder::spill`](crate::PoolBuilder::spill)). Returns the freed bytes. The memory is free behind the copies, which this call does
    /// not wait for, and stays with the pool; [`Pool::reclaim`] then returns it to the device.
    ///
    /// A request does this automatically when memory is short. Call it to make room for others, or ahead of time.
    ///
    /// # Errors
    ///
    /// - [`DeviceError::Asleep`](crate::DeviceError::Asleep) if the pool sleeps.
    /// - [`DeviceError::DeviceLost`](crate::DeviceError::DeviceLost) or [`PoolError::Poisoned`] after an earlier failure.
    pub fn spill(&self, size_bytes: u64) -> Result<u64, PoolError> {
        self.0.check_usable()?;
        self.0.check_awake()?;
        self.device().sleepers().check_not_in_call()?;
        Ok(self.0.spiller().map_or(0, |spiller| spiller.make_room(size_bytes)))
    }

    /// Calls `request`, whose requests for memory are refused rather than that they wait on the host or move arrays out, if the pool spills. In
    /// other pools it is only called.
    #[doc(hidden)]
    pub fn without_moves<R>(&self, request: impl FnOnce() -> R) -> R {
        if self.0.spiller().is_some() { without_moves(request) } else { request() }
    }

    /// Changes the hard limit ([`PoolBuilder::hard_limit`](crate::PoolBuilder::hard_limit)) for all clones and all
    /// threads. After this call returns, the pool does not grow beyond the limit. `Limit::Bytes(u64::MAX)` removes
    /// the limit. A share of the device corresponds to PyTorch's per-process memory fraction.
    ///
    /// When the pool already holds more, arrays move to the host if the pool spills, and memory that no block holds is released: memory that needs no wait immediately, the rest as blocks
    /// are freed, whenever the host waits. Until then the pool does not grow.
    ///
    /// ```
    /// use gpumem_pool::{Device, Limit, Pool, PoolError, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new().memory_bytes(1 << 30))?, 0)?;
    /// let (pool, stream) = (Pool::new(&device)?, Stream::new(&device)?);
    /// let block = pool.alloc(48 << 20, &stream)?;
    /// pool.set_hard_limit("6.25%")?;
    /// assert_eq!(pool.status()?.hard_limit_bytes, Some(64 << 20));
    /// assert!(matches!(pool.alloc(32 << 20, &stream), Err(PoolError::LimitReached { .. })));
    /// pool.set_hard_limit(512 << 20)?;
    /// let more = pool.alloc(32 << 20, &stream)?;
    /// # drop((block, more));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`PoolError::BadArgument`] if the limit is below the smallest accepted value.
    /// - [`ConfigError::LimitSyntax`](crate::ConfigError::LimitSyntax) for an invalid text or share.
    /// - [`ConfigError::ShareOfHost`](crate::ConfigError::ShareOfHost) for a share of host memory.
    /// - [`PoolError::Unsupported`] with the backend `native`, if the limit is above the one that the pool was built with, rounded up to
    ///   32 MiB: the driver's pool has a fixed size.
    /// - [`DeviceError::DeviceLost`](crate::DeviceError::DeviceLost) or [`PoolError::Poisoned`] after an earlier failure.
    /// - [`DeviceError::Driver`](crate::DeviceError::Driver) if a call fails. The limit is then in force, but releasable memory may remain.
    pub fn set_hard_limit(&self, limit: impl IntoLimit) -> Result<(), PoolError> {
        self.0.check_usable()?;
        let (limit, kind, total_bytes) = (limit.into_limit()?, self.kind(), self.device().total_bytes());
        let (pool, free_bytes) = (self.0.name(), || self.own_and_free_bytes());
        let limit_bytes = Limits::resolve_hard(pool, Some(limit), kind, total_bytes, free_bytes)?;
        self.0.listing.set_hard_limit(limit_bytes, || self.spill_below(limit_bytes))
    }

    /// Moves arrays of this pool to the host, and then those of pools beneath it, until a limit holds what is in use.
    fn spill_below(&self, limit_bytes: u64) {
        let family_bytes: u64 = self.0.family().iter().map(|pool| pool.usage().in_use_bytes).sum();
        let in_use_bytes = self.0.backend.counts().in_use_bytes.saturating_add(family_bytes);
        let mut excess_bytes = in_use_bytes.saturating_sub(limit_bytes);
        let own = self.0.spiller();
        for spiller in own.into_iter().chain(&ladder::other_spillers(&self.0, Some(self.id()))) {
            if excess_bytes == 0 {
                return;
            }
            excess_bytes = excess_bytes.saturating_sub(spiller.make_room(excess_bytes));
        }
    }

    /// Changes the soft limit ([`PoolBuilder::soft_limit`](crate::PoolBuilder::soft_limit)). Cached memory beyond it is released: memory
    /// that needs no wait immediately, the rest whenever the host waits. `Limit::Bytes(u64::MAX)` removes the limit.
    ///
    /// # Errors
    ///
    /// - [`ConfigError::LimitSyntax`](crate::ConfigError::LimitSyntax) for an invalid text or share.
    /// - [`ConfigError::ShareOfHost`](crate::ConfigError::ShareOfHost) for a share of host memory.
    /// - [`DeviceError::DeviceLost`](crate::DeviceError::DeviceLost) or [`PoolError::Poisoned`] after an earlier failure.
    /// - [`DeviceError::Driver`](crate::DeviceError::Driver) if a call fails.
    pub fn set_soft_limit(&self, limit: impl IntoLimit) -> Result<(), PoolError> {
        self.0.check_usable()?;
        let (limit, kind, total_bytes) = (limit.into_limit()?, self.kind(), self.device().total_bytes());
        let limit_bytes = Limits::resolve(Some(limit), kind, total_bytes, || self.own_and_free_bytes())?;
        self.0.listing.set_soft_limit(limit_bytes)
    }

    /// Releases memory that no block holds, until `keep_bytes` are reserved. Live blocks, and frees that the device has
    /// not reached yet, may keep more reserved. Does not wait. Returns the number of bytes released.
    ///
    /// # Errors
    ///
    /// - [`DeviceError::DeviceLost`](crate::DeviceError::DeviceLost) or [`PoolError::Poisoned`] after an earlier failure.
    /// - [`DeviceError::Driver`](crate::DeviceError::Driver) if a call fails.
    pub fn trim_to(&self, keep_bytes: u64) -> Result<u64, PoolError> {
        self.giving_back(|state| state.backend.trim_to(keep_bytes))
    }

    /// The memory that a share of free memory refers to: the device's free memory plus this pool's reserved memory.
    fn own_and_free_bytes(&self) -> Result<u64, PoolError> {
        Ok(self.device().memory_info()?.free_bytes.saturating_add(self.0.reserved_bytes()?))
    }

    fn giving_back(&self, work: impl FnOnce(&State) -> Result<(), PoolError>) -> Result<u64, PoolError> {
        self.0.check_usable()?;
        let before_bytes = self.0.reserved_bytes()?;
        self.0.noting(work(&self.0))?;
        let released_bytes = before_bytes.saturating_sub(self.0.reserved_bytes()?);
        events::released(&self.0, released_bytes);
        Ok(released_bytes)
    }

    /// Lets the streams of another device use this pool's blocks, existing and future ones, and those of its parts, its private pools and
    /// the pools behind its adaptors. Access cannot be revoked. Each growth of the pool then needs one more driver call per device. The
    /// option `peers` of [`conf`](crate::conf) gives access from the start.
    ///
    /// Use a block on such a stream as on any other stream: make it wait for the block's owner stream first, and record the use. With the
    /// backend `none` and over plain segments, the pool keeps the other device's context, and that device may from then on use all plain
    /// memory of this device, allocated by any pool or library, because the driver has no narrower setting.
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, PoolError, Stream, Unsupported};
    /// use gpumem_sim::SimConfig;
    ///
    /// let driver = gpumem_sim::driver(SimConfig::new().devices(3).without_link(0, 2))?;
    /// let device = Device::new(&driver, 0)?;
    /// let (peer, far) = (Device::new(&driver, 1)?, Device::new(&driver, 2)?);
    /// let pool = Pool::builder(&device).peer_access(&[peer.clone()]).build()?;
    /// let (home, other) = (Stream::new(&device)?, Stream::new(&peer)?);
    ///
    /// let block = pool.alloc(4096, &home)?;
    /// other.wait_for(&home)?;
    /// // … queue work that uses `block.address()` on `other` …
    /// block.record_use(&other);
    ///
    /// assert!(matches!(pool.enable_peer_access(&far), Err(PoolError::Unsupported(Unsupported::PeerAccess { .. }))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// After an error, the other device has only the access to this pool that it had before.
    ///
    /// - [`PoolError::Unsupported`] for a device that has no link to this one or belongs to another driver.
    /// - [`DeviceError::DeviceLost`](crate::DeviceError::DeviceLost) or [`PoolError::Poisoned`] after an earlier failure.
    /// - [`DeviceError::Driver`](crate::DeviceError::Driver) if a call fails.
    pub fn enable_peer_access(&self, peer: &Device) -> Result<(), PoolError> {
        self.0.enable_peer_access(peer)
    }

    /// Returns the pool's current counters. A poisoned pool returns them too.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Driver`](crate::DeviceError::Driver) or [`DeviceError::DeviceLost`](crate::DeviceError::DeviceLost) if a call fails.
    pub fn status(&self) -> Result<Status, PoolError> {
        not_forked()?;
        self.0.listing.status()
    }

    /// Returns the device addresses that the pool has memory for, in order, with neighbours joined. Free memory between blocks is part of
    /// them. The backends `native` and `none` keep no records of it, and return nothing.
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let (pool, stream) = (Pool::new(&device)?, Stream::new(&device)?);
    /// let block = pool.alloc(3 << 20, &stream)?;
    /// let ranges = pool.reserved_ranges()?;
    /// assert!(ranges.iter().any(|range| range.contains(&block.address())));
    /// let reserved_bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
    /// assert_eq!(reserved_bytes, pool.status()?.reserved_bytes);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`DeviceError::Forked`](crate::DeviceError::Forked) in a forked child.
    pub fn reserved_ranges(&self) -> Result<Vec<Range<u64>>, PoolError> {
        not_forked()?;
        let mut mappings = self.0.backend.resident_ranges();
        mappings.sort_unstable();
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (start, size_bytes) in mappings {
            let end = start.saturating_add(size_bytes);
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => ranges.push(start..end),
            }
        }
        Ok(ranges)
    }

    /// Resets the peak counters reported by [`Pool::status`].
    ///
    /// # Errors
    ///
    /// [`DeviceError::Driver`](crate::DeviceError::Driver) or [`DeviceError::DeviceLost`](crate::DeviceError::DeviceLost) if a call fails: with `native`, the driver keeps a peak
    /// too.
    pub fn reset_peaks(&self) -> Result<(), PoolError> {
        not_forked()?;
        let state = &self.0;
        state.tags.reset_peaks();
        state.backend.reset_peaks()
    }

    /// Verifies the pool's internal records against each other, for tests and debugging. It walks all records
    /// of the pool, and verifies that the device's clocks only move forward. The result is exact only while the
    /// pool is otherwise unused. The backends `native` and `none` keep no records of their own.
    ///
    /// # Errors
    ///
    /// A `String` that describes the first inconsistency.
    pub fn check(&self) -> Result<(), String> {
        not_forked().map_err(|forked| forked.to_string())?;
        self.0.device().clocks().check()?;
        self.0.backend.check()
    }
}

debug_fields!(
    Pool, it,
    name: Shown::name(it.name()),
    backend: it.backend(),
    device: it.device(),
    hard_limit_bytes: it.0.limits.hard_bytes(),
    soft_limit_bytes: it.0.limits.soft_bytes(),
    counts: not_forked().is_ok().then(|| it.0.backend.counts()),
    poison: it.0.poison(),
);

/// Checks that the device supports pools of this kind. Returns true if the host may use their memory while the device works.
fn check_kind(kind: MemoryKind, device: &Device) -> Result<bool, PoolError> {
    let unsupported = |reason: String| PoolError::Unsupported(Unsupported::Kind { kind, reason });
    match kind {
        MemoryKind::Device => Ok(false),
        MemoryKind::Host => Ok(true),
        MemoryKind::Unified => {
            let has = |attribute| Ok::<_, PoolError>(device.attribute(attribute)? != 0);
            if device.driver().table().cuMemAllocManaged.is_none()
                || !has(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY)?
            {
                return Err(unsupported(format!("{device} has no managed memory")));
            }
            has(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)
        }
    }
}

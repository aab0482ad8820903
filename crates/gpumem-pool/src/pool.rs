//! [`Pool`]: a handle to a `State`. The state owns the backend and lives until the last handle and the last block are dropped.

pub(crate) mod adaptors;
mod alignment;
pub(crate) mod block;
mod contents;
mod current;
mod events;
pub(crate) mod graph_memory;
pub(crate) mod growable;
mod largest;
pub(crate) mod listing;
pub(crate) mod observer;
pub(crate) mod part;
pub(crate) mod peers;
#[cfg(feature = "allocator-api2")]
mod pinned_allocator;
pub(crate) mod pinning;
mod private;
pub(crate) mod raw_block;
mod room;
pub(crate) mod scope;
#[cfg(unix)]
pub(crate) mod sharing;
mod sleep;
pub(crate) mod state;
mod status;
pub(crate) mod unified;

pub(crate) use adaptors::{
    Adaptor, BackingAllocation, Change, Figures, Gauge, Grant, Next, Opening, Peak, PoolId, PoolSettings,
    Release, Request, Stack, Subject,
};
pub use block::Block;
pub use current::CurrentPool;
pub(crate) use graph_memory::GraphMemory;
pub use growable::GrowableBlock;
pub(crate) use listing::Listing;
pub(crate) use observer::{Observer, Witness};
#[cfg(feature = "allocator-api2")]
pub use pinned_allocator::{PinnedAllocator, PinnedVec};
pub use raw_block::{BlockToken, RawBlock};
pub use scope::{Scope, ScopeUsage, Tag};
#[cfg(all(feature = "ipc", target_os = "linux"))]
pub use sharing::SocketError;
#[cfg(unix)]
pub use sharing::{ExportedBlock, ExportedHandle, ImportedBlock};
pub(crate) use state::{Origin, State, StateRef};
pub use unified::{Location, MemoryAdvice};

use crate::backend::{self, BackendSetup};
use crate::config::{ALIGNMENT_MIN, BackendKind, Config, IgnoredOption, MemoryKind, PoolName, ignored};
use crate::device::{Device, Stream};
use crate::error::{PoolError, Unsupported, not_forked};
use crate::figures::ActivityCounters;
use crate::limits::{LimitNode, Limits};
use crate::stats::Tags;
use core::fmt;
use gpumem_sys::text::Shown;
use gpumem_sys::types::CUdevice_attribute;
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
pub struct Pool(pub(crate) StateRef);

/// The device, configuration, adaptors and parent limit that a pool is built from. The pool keeps them for its
/// lifetime.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) name: PoolName,
    pub(crate) device: Device,
    pub(crate) config: Config,
    pub(crate) peers: Vec<Device>,
    /// The adaptors, innermost first.
    pub(crate) adaptors: Vec<Arc<dyn Adaptor>>,
    /// The limit of a parent pool, which this pool's memory also counts against.
    pub(crate) parent: Option<Arc<LimitNode>>,
    pub(crate) observer: Option<Observer>,
    pub(crate) witness: Option<Arc<dyn Witness>>,
}

impl Pool {
    pub(crate) fn build(setup: Setup) -> Result<Self, PoolError> {
        not_forked()?;
        let Setup { ref name, ref device, ref config, ref parent, .. } = setup;
        let is_for_host = check_kind(config.kind, device)?;
        let (kind, total_bytes) = (config.kind, device.total_bytes());
        let free_bytes = || Ok(device.memory_info()?.free_bytes);
        let soft_limit_bytes = Limits::resolve(config.soft_limit, kind, total_bytes, free_bytes)?;
        let hard_limit_bytes = Limits::resolve_hard(name, config.hard_limit, kind, total_bytes, free_bytes)?;
        let node = LimitNode::new(name.clone(), hard_limit_bytes, parent.clone());
        let limits = Limits::new(node, soft_limit_bytes);
        let (tags, activity) = (Tags::new(), Arc::<ActivityCounters>::default());
        let backend = backend::open(BackendSetup {
            device,
            config,
            limits: &limits,
            tags: tags.counters(),
            activity: &activity,
        })?;
        let peers = setup.peers.clone();
        let pool = Self(StateRef::new(setup, is_for_host, backend, limits, (tags, activity)));
        peers.iter().try_for_each(|peer| pool.enable_peer_access(peer))?;
        pool.0.open_to_configured()?;
        Ok(pool)
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
    /// - [`PoolError::WrongDevice`] for another device's stream.
    /// - [`PoolError::Stream`] if this thread cannot use the stream.
    /// - [`PoolError::Asleep`] if the pool sleeps.
    /// - [`PoolError::DeviceLost`] or [`PoolError::Poisoned`] after an earlier failure.
    /// - [`PoolError::Refused`] or another error of an adaptor.
    /// - [`PoolError::Driver`] if a call fails.
    #[inline]
    pub fn alloc(&self, size_bytes: u64, stream: &Stream) -> Result<Block, PoolError> {
        self.0.alloc(size_bytes, ALIGNMENT_MIN, stream)
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
    /// - [`PoolError::WrongDevice`] for another device's stream.
    /// - [`PoolError::Stream`] if this thread cannot use the stream.
    /// - [`PoolError::Asleep`] if the pool sleeps.
    /// - [`PoolError::DeviceLost`] or [`PoolError::Poisoned`] after an earlier failure.
    pub fn alloc_ready(
        &self,
        size_bytes: u64,
        count_max: usize,
        stream: &Stream,
    ) -> Result<Vec<Block>, PoolError> {
        self.0.alloc_ready(size_bytes, count_max, stream)
    }

    /// Returns the name under which the pool is listed in reports, [`Status`](crate::Status) and [`Device::pools`]: the name given to
    /// [`PoolBuilder::name`](crate::PoolBuilder::name), otherwise the number of [`Pool::id`]. The name of a private pool begins with its
    /// parent's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.setup().name.as_str()
    }

    /// Returns the pool's identity, which no other pool of the process ever has.
    #[must_use]
    pub fn id(&self) -> PoolId {
        self.0.setup().name.id()
    }

    /// Returns the pool's backend.
    #[must_use]
    pub fn backend(&self) -> BackendKind {
        self.0.backend().kind()
    }

    /// Returns the options that were set, by name, builder or environment, but have no effect on this backend, including a soft limit above
    /// the hard limit, even one set later. [`Status`](crate::Status) notes that limit too.
    ///
    /// On `native`, such a soft limit has an effect, and is not listed, where the driver's pool may cache more than the hard limit:
    /// in pools of unified memory, after the hard limit was set or lowered on a built pool, and with drivers before CUDA 12.2.
    #[must_use]
    pub fn ignored_options(&self) -> Vec<IgnoredOption> {
        let can_map = self.0.backend().growing().is_some();
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

    /// Verifies the pool's internal records against each other. Meant for tests and debugging: it walks all records
    /// of the pool, and verifies that the device's clocks only move forward. The result is exact only while the
    /// pool is otherwise unused. The backends `native` and `none` keep no records of their own.
    ///
    /// # Errors
    ///
    /// A `String` that describes the first inconsistency.
    pub fn check(&self) -> Result<(), String> {
        not_forked().map_err(|forked| forked.to_string())?;
        self.0.device().clocks().check()?;
        self.0.backend().check()
    }
}

impl Clone for Pool {
    fn clone(&self) -> Self {
        Self(self.0.add_handle())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.0.drop_handle();
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Pool");
        fields
            .field("name", &Shown::name(self.name()))
            .field("backend", &self.backend())
            .field("device", self.device());
        if not_forked().is_ok() {
            fields.field("limits", &self.0.limits()).field("counts", &self.0.backend().counts());
        }
        fields.field("poison", &self.0.poison()).finish()
    }
}

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

//! [`Pool`]: the front door. A handle to a `State`, which has the backend and outlives the last handle for as long as
//! blocks live.

pub(crate) mod adaptors;
mod alignment;
pub(crate) mod block;
pub(crate) mod graph_memory;
pub(crate) mod growable;
pub(crate) mod observer;
pub(crate) mod peers;
pub(crate) mod pinning;
mod private;
pub(crate) mod raw_block;
pub(crate) mod scope;
#[cfg(unix)]
pub(crate) mod sharing;
pub(crate) mod state;
pub(crate) mod unified;

pub(crate) use adaptors::{
    Adaptor, After, Behind, Change, Grant, Next, Opening, Peak, PoolId, Release, Request, Stack, Subject,
};
pub use block::Block;
pub(crate) use graph_memory::GraphMemory;
pub use growable::GrowableBlock;
pub(crate) use observer::Observer;
pub use raw_block::{BlockToken, RawBlock};
pub use scope::{Scope, ScopeUsage};
#[cfg(unix)]
pub use sharing::{ExportedBlock, ExportedHandle, ImportedBlock};
pub(crate) use state::{State, StateRef};
pub use unified::{Location, MemoryAdvice};

use crate::backend::{Backend, Source};
use crate::config::{BackendKind, Config, Limit, MemoryKind, conf, conf::IgnoredOption};
use crate::device::{Device, Stream};
use crate::error::PoolError;
use crate::limits::{LimitNode, Limits};
use crate::stats::Status;
use core::fmt;
use gpumem_sys::types::CUdevice_attribute;
use std::sync::Arc;

/// Hands out [`Block`]s of one device's memory. Clones share it; blocks keep it alive.
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

/// What a pool is made of, and what it knows of its making as long as it lives.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) device: Device,
    pub(crate) config: Config,
    pub(crate) peers: Vec<Device>,
    /// Innermost first.
    pub(crate) adaptors: Vec<Arc<dyn Adaptor>>,
    /// The limit of another pool that this pool's memory counts against too.
    pub(crate) parent: Option<Arc<LimitNode>>,
    pub(crate) observer: Option<Observer>,
}

impl Pool {
    pub(crate) fn build(setup: Setup) -> Result<Self, PoolError> {
        let Setup { ref device, ref config, ref parent, .. } = setup;
        let is_for_host = check_kind(config.kind, device)?;
        let soft_limit_bytes = Limits::resolve(config.soft_limit, config.kind, device.total_bytes())?;
        let hard_limit_bytes = Limits::resolve_hard(config.hard_limit, config.kind, device.total_bytes())?;
        let limits = Limits::new(LimitNode::new(hard_limit_bytes, parent.clone()), soft_limit_bytes);
        let backend = Backend::new(device, config, &limits)?;
        let peers = setup.peers.clone();
        let pool = Self(StateRef::new(setup, is_for_host, backend, limits));
        peers.iter().try_for_each(|peer| pool.enable_peer_access(peer))?;
        Ok(pool)
    }

    /// Allocates on `stream`: work queued there from now on may use the memory, whose contents are whatever they were.
    ///
    /// Zero bytes are a block at address 0 and cost no driver call. When the device is full, what the pool can give back
    /// is given back first, which waits for the device, and then others are asked for room
    /// ([`Reclaimable`](crate::Reclaimable)). Nothing else here waits.
    ///
    /// # Errors
    ///
    /// [`PoolError::OutOfMemory`], [`PoolError::TooLarge`], [`PoolError::LimitReached`]; [`PoolError::WrongDevice`] for
    /// another device's stream; [`PoolError::DeviceLost`] or [`PoolError::Poisoned`] after an earlier failure.
    #[inline]
    pub fn alloc(&self, size_bytes: u64, stream: &Stream) -> Result<Block, PoolError> {
        self.0.alloc(size_bytes, stream)
    }

    /// Where the bytes come from.
    #[must_use]
    pub fn backend(&self) -> BackendKind {
        self.0.backend().kind()
    }

    /// The options that were given, by name, builder or environment, and have no effect on its backend. Tuning options that were set all
    /// together ([`PoolBuilder::tuning`](crate::PoolBuilder::tuning)) are not told apart.
    #[must_use]
    pub fn ignored_options(&self) -> Vec<IgnoredOption> {
        conf::ignored_options(self.0.config(), self.backend(), self.0.backend().growing().is_some())
    }

    /// Whose memory it hands out.
    #[must_use]
    pub fn kind(&self) -> MemoryKind {
        self.0.config().kind
    }

    /// The device whose memory it hands out, or which uses it.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.0.device()
    }

    /// The pool's numbers now. Works on a poisoned pool too.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn status(&self) -> Result<Status, PoolError> {
        self.0.status()
    }

    /// From now on the peaks that [`Pool::status`] tells are of what comes.
    ///
    /// # Errors
    ///
    /// What the driver says, which keeps a peak of its own for `native`.
    pub fn reset_peaks(&self) -> Result<(), PoolError> {
        self.0.reset_peaks()
    }

    /// Makes the pool hold at least `size_bytes` from the device, so that blocks up to that sum need no driver call for
    /// memory. Waits for nothing, unless device or limit are full. The backend `caching` does it; `native` and `none` grow with their blocks alone.
    ///
    /// # Errors
    ///
    /// As [`Pool::alloc`], when so much can't be had.
    pub fn reserve(&self, size_bytes: u64) -> Result<(), PoolError> {
        self.0.reserve(size_bytes)
    }

    /// Compares everything the pool knows with everything else it knows, and says the first contradiction. For tests and
    /// for debugging: it walks all of the pool's records, and its device's clocks, which never go back; it is exact only while
    /// nothing else uses the pool. The backends `native` and `none` keep no records of their own.
    ///
    /// # Errors
    ///
    /// What contradicts what, in words.
    pub fn check(&self) -> Result<(), String> {
        self.0.device().clocks().check()?;
        self.0.backend().check()
    }

    /// Asks all that is registered with the device ([`Reclaimable`](crate::Reclaimable)) for what it can do without, waits for
    /// the device, then gives back all memory that no block holds. Returns how many bytes were given back.
    ///
    /// Allocating does this by itself when the device is full; call it to leave room for others.
    ///
    /// # Errors
    ///
    /// What the driver says, or [`PoolError::Poisoned`] after an earlier failure.
    pub fn reclaim(&self) -> Result<u64, PoolError> {
        self.0.reclaim()
    }

    /// Changes the hard limit, which [`PoolBuilder::hard_limit`](crate::PoolBuilder::hard_limit) describes, for all clones and all threads: once this
    /// returns, nothing is added beyond it. `Limit::Bytes(u64::MAX)` is no limit any more. A share of the device is what
    /// PyTorch calls the fraction of a process's memory.
    ///
    /// When the pool has more than that already, what no block holds is given back: now as far as that goes without waiting,
    /// and later, when more has been freed, whenever the host waits. Until then the pool does not grow.
    ///
    /// ```
    /// use gpumem_pool::{Device, Limit, Pool, PoolError, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new().memory_bytes(1 << 30))?, 0)?;
    /// let (pool, stream) = (Pool::new(&device)?, Stream::new(&device)?);
    /// let block = pool.alloc(48 << 20, &stream)?;
    /// pool.set_hard_limit("6.25%".parse::<Limit>()?)?;
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
    /// [`PoolError::LimitTooSmall`], [`ConfigError::LimitSyntax`](crate::ConfigError::LimitSyntax) for a share that is none, [`ConfigError::ShareOfHost`](crate::ConfigError::ShareOfHost). What the driver says: the limit
    /// holds then, and what could be given back may still be there.
    pub fn set_hard_limit(&self, limit: impl Into<Limit>) -> Result<(), PoolError> {
        self.0.set_hard_limit(limit.into())
    }

    /// Changes the soft limit, which [`PoolBuilder::soft_limit`](crate::PoolBuilder::soft_limit) describes. What is cached beyond it is given back now as far
    /// as that goes without waiting, and later whenever the host waits. `Limit::Bytes(u64::MAX)` is no limit any more.
    ///
    /// # Errors
    ///
    /// [`ConfigError::LimitSyntax`](crate::ConfigError::LimitSyntax) for a share that is none, [`ConfigError::ShareOfHost`](crate::ConfigError::ShareOfHost), or what the driver says.
    pub fn set_soft_limit(&self, limit: impl Into<Limit>) -> Result<(), PoolError> {
        self.0.set_soft_limit(limit.into())
    }

    /// Gives back memory that no block holds until `keep_bytes` are reserved, or as near to it as blocks, and frees
    /// that the device has not reached yet, allow. Does not wait. Returns how many bytes were given back.
    ///
    /// # Errors
    ///
    /// As [`Pool::reclaim`].
    pub fn trim_to(&self, keep_bytes: u64) -> Result<u64, PoolError> {
        self.0.trim_to(keep_bytes)
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
        f.debug_struct("Pool")
            .field("backend", &self.backend())
            .field("device", self.device())
            .field("limits", &self.0.limits())
            .field("counts", &self.0.backend().counts())
            .field("poison", &self.0.poison())
            .finish()
    }
}

/// What pools of this kind need of a device. Says whether the host may use their memory while the device works.
fn check_kind(kind: MemoryKind, device: &Device) -> Result<bool, PoolError> {
    let unsupported = |reason: String| PoolError::KindUnsupported { kind, reason };
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

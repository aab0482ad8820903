//! [`Pool`]: the front door. A handle to a `State`, which has the backend and outlives the last handle for as long as
//! blocks live.

use crate::backend::{Backend, Source};
use crate::block::Block;
use crate::device::Device;
use crate::error::PoolError;
use crate::family::Family;
use crate::kind::MemoryKind;
use crate::limit::{Limit, Limits};
use crate::options::{BackendKind, PoolBuilder};
use crate::state::StateRef;
use crate::status::Status;
use crate::stream::Stream;
use core::fmt;
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

impl Pool {
    /// A pool with the defaults; the environment is not read.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn new(device: &Device) -> Result<Self, PoolError> {
        Self::builder(device).build()
    }

    /// A pool as `GPUMEM_CONF`, `GPUMEM_KIND`, `GPUMEM_POOL`, `GPUMEM_PROFILE`, `GPUMEM_HARD_LIMIT`, `GPUMEM_SOFT_LIMIT`
    /// and `GPUMEM_TRACE` say.
    ///
    /// # Errors
    ///
    /// As [`PoolBuilder::from_env`] and [`PoolBuilder::build`].
    pub fn from_env(device: &Device) -> Result<Self, PoolError> {
        PoolBuilder::from_env(device)?.build()
    }

    /// Starts from the defaults; the environment is not read.
    pub fn builder(device: &Device) -> PoolBuilder {
        PoolBuilder::new(device)
    }

    pub(crate) fn build(mut options: PoolBuilder) -> Result<Self, PoolError> {
        let device = &options.device;
        options.is_for_host = options.kind.check_supported(device)?;
        let soft_limit_bytes = Limits::resolve(options.soft_limit, options.kind, device)?;
        let hard_limit_bytes = Limits::resolve_hard(options.hard_limit, options.kind, device)?;
        let family = Family::new(hard_limit_bytes, options.family.take());
        options.family = Some(Arc::clone(&family));
        let limits = Limits::new(family, soft_limit_bytes);
        let backend = Backend::new(&options, &limits)?;
        options.adaptors.extend(options.trace.take().map(|trace| trace as _));
        let peers = options.peers.clone();
        let pool = Self(StateRef::new(options, backend, limits));
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

    /// The options that were given, by name, builder or environment, and have no effect on its backend. Dials that were set all
    /// together ([`PoolBuilder::dials`]) are not told apart.
    #[must_use]
    pub fn notices(&self) -> Vec<crate::conf::Notice> {
        crate::conf::notices(self.0.setup(), self.backend(), self.0.backend().growing().is_some())
    }

    /// Whose memory it hands out.
    #[must_use]
    pub fn kind(&self) -> MemoryKind {
        self.0.setup().kind
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

    /// Changes the hard limit, which [`PoolBuilder::hard_limit`] describes, for all clones and all threads: once this
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
    /// [`PoolError::LimitTooSmall`], [`PoolError::LimitSyntax`] for a share that is none, [`PoolError::ShareOfHost`]. What the driver says: the limit
    /// holds then, and what could be given back may still be there.
    pub fn set_hard_limit(&self, limit: impl Into<Limit>) -> Result<(), PoolError> {
        self.0.set_hard_limit(limit.into())
    }

    /// Changes the soft limit, which [`PoolBuilder::soft_limit`] describes. What is cached beyond it is given back now as far
    /// as that goes without waiting, and later whenever the host waits. `Limit::Bytes(u64::MAX)` is no limit any more.
    ///
    /// # Errors
    ///
    /// [`PoolError::LimitSyntax`] for a share that is none, [`PoolError::ShareOfHost`], or what the driver says.
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

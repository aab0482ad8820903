//! How a pool is set up: [`PoolBuilder`], and [`BackendKind`], which names where the bytes come from.
//!
//! | option | builder | environment | default |
//! | --- | --- | --- | --- |
//! | kind of memory | [`PoolBuilder::kind`] | `GPUMEM_KIND` | `device` |
//! | unified memory beyond the margin | [`PoolBuilder::oversubscribe`] | | no |
//! | plain segments | [`PoolBuilder::plain_segments`] | | where there is no virtual memory |
//! | backend | [`PoolBuilder::backend`] | `GPUMEM_POOL` | the first of `caching`, `native` and `none` that is built and works |
//! | profile | [`PoolBuilder::profile`], option by option [`PoolBuilder::tuning`] | `GPUMEM_PROFILE` | `balanced` |
//! | hard limit | [`PoolBuilder::hard_limit`] | `GPUMEM_HARD_LIMIT` | none |
//! | trace | [`PoolBuilder::adaptor`] with a [`Trace`] | `GPUMEM_TRACE` | none |
//! | exact peaks | [`PoolBuilder::exact_peaks`] | | upper bounds |
//! | idle time | [`PoolBuilder::trim_when_idle`] | | never |
//! | soft limit | [`PoolBuilder::soft_limit`] | `GPUMEM_SOFT_LIMIT` | none |
//! | any of them, and PyTorch's knobs, by name | [`PoolBuilder::conf`] | `GPUMEM_CONF` | see [`conf`] |
//!
//! The builder wins over the environment, and the environment, which only `from_env` reads, over the default.

mod environment;

pub use environment::VARIABLES;

use crate::adaptor::Adaptor;
use crate::config::{BackendKind, Config, Limit, MemoryKind, Profile, Tuning, conf, conf::ConfigError};
use crate::device::Device;
use crate::error::PoolError;
use crate::pool::{Observer, Pool, Setup};
use crate::trace::Trace;
use core::time::Duration;
use std::sync::Arc;

/// Sets up a [`Pool`]; see [`Pool::builder`] and [`PoolBuilder::from_env`].
#[derive(Clone, Debug)]
#[must_use = "nothing happens before `build`"]
pub struct PoolBuilder {
    pub(crate) setup: Setup,
    /// Around all adaptors.
    pub(crate) trace: Option<Arc<Trace>>,
}

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
}

impl PoolBuilder {
    pub(crate) fn new(device: &Device) -> Self {
        let setup = Setup {
            device: device.clone(),
            config: Config::default(),
            peers: Vec::new(),
            adaptors: Vec::new(),
            parent: None,
            observer: None,
        };
        Self { setup, trace: None }
    }

    /// Sets options by name: `key:value,…`; [`conf`] has the table. Those that have no effect on the pool's
    /// backend are told of by [`Pool::ignored_options`].
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let builder = Pool::builder(&device).conf("backend:none, max_split_size_mb:128")?;
    /// let pool = builder.build()?;
    /// assert!(pool.ignored_options()[0].to_string().starts_with("max_split_size_mb has no effect on the backend none"));
    /// let mistake = Pool::builder(&device).conf("max_split_size:128").unwrap_err();
    /// assert!(mistake.to_string().contains("did you mean max_split_size_mb?"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConfigError`], which says what is wrong and what is right.
    pub fn conf(mut self, text: &str) -> Result<Self, ConfigError> {
        conf::apply(&mut self.setup.config, text, None)?;
        Ok(self)
    }

    /// Gives idle memory back before an allocation that finds none at hand, as long as more than this part of the hard limit
    /// (of the device, if there is none) is reserved. Of the driver's pool, the backend `native`, nobody knows what it has at
    /// hand: there idle memory goes back when it takes more than that, a moment before or after. `none` keeps nothing.
    pub fn garbage_collection_threshold(mut self, share: f64) -> Self {
        self.setup.config.collect_above = Some(share.clamp(0.0, 1.0));
        self.setup.config.asked.push("garbage_collection_threshold");
        self
    }

    /// Chooses whose memory the pool hands out. Every backend has all kinds; `native` has them where the driver has pools of
    /// them, which is since CUDA 12.6 for the host's and 13.0 for unified memory.
    ///
    /// Memory that the host may use comes again when every use is complete, and until then the pool grows: only at its hard
    /// limit does it wait. Nothing else bounds host memory, so give such a pool one.
    pub fn kind(mut self, kind: MemoryKind) -> Self {
        self.setup.config.kind = kind;
        self
    }

    /// Lets the pool's memory pass the margin that unified memory keeps to: without this, unified memory and all that
    /// pools of the same [`Device`] hold stay below 15/16 of the device's memory, together. Beyond what the device has free,
    /// pages move back and forth, and a program that uses them all at once may stand still. A block of unified memory may be
    /// larger than the device then.
    pub fn oversubscribe(mut self) -> Self {
        self.setup.config.oversubscribes = true;
        self
    }

    /// Counts the most that is in use to the byte ([`Status::in_use_peak_bytes`](crate::Status::in_use_peak_bytes)), where
    /// the backend `caching` tells an upper bound: so each block goes the longer way, as with an adaptor. The others count so
    /// anyway.
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, Profile, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let pool = Pool::builder(&device).profile(Profile::Fast).exact_peaks().build()?;
    /// let stream = Stream::new(&device)?;
    /// pool.reserve(256 << 20)?;
    /// (20..30).try_for_each(|mib| pool.alloc(mib << 20, &stream).map(drop))?;
    /// assert_eq!(pool.status()?.in_use_peak_bytes, 29 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn exact_peaks(mut self) -> Self {
        self.setup.config.exact_peaks = true;
        self.setup.config.asked.push("exact_peaks");
        self
    }

    /// Chooses the backend. One that is not built in, or that the device can't carry, is an error of
    /// [`PoolBuilder::build`]; left alone, the best that works is taken.
    pub fn backend(mut self, backend: BackendKind) -> Self {
        self.setup.config.backend = Some(backend);
        self
    }

    /// Never hands out more than this at a time. Each pool has its own limit, for its own kind of memory; one of host
    /// memory is in bytes, since a share would be one of the device's.
    pub fn hard_limit(mut self, limit: impl Into<Limit>) -> Self {
        self.setup.config.hard_limit = Some(limit.into());
        self
    }

    /// Gives cached memory back at synchronisation points until no more than this is reserved. The backend `none`
    /// caches nothing, so there it has no effect.
    pub fn soft_limit(mut self, limit: impl Into<Limit>) -> Self {
        self.setup.config.soft_limit = Some(limit.into());
        self.setup.config.asked.push("soft_limit");
        self
    }

    /// Gives back all that the pool keeps and no block holds, once `after` has passed without an allocation. No thread
    /// watches: it is noticed where the host waits for a stream or the device or asks whether work is done, and where another pool of the device
    /// allocates the long way. An allocation does not look at a clock either: the time begins at the first such moment after
    /// it. The backend `none` keeps nothing.
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    /// use std::time::Duration;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let pool = Pool::builder(&device).trim_when_idle(Duration::from_millis(5)).build()?;
    /// let stream = Stream::new(&device)?;
    /// drop(pool.alloc(5 << 20, &stream)?);
    /// stream.synchronize()?;
    /// std::thread::sleep(Duration::from_millis(10));
    /// stream.synchronize()?;
    /// assert_eq!(pool.status()?.reserved_bytes, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn trim_when_idle(mut self, after: Duration) -> Self {
        self.setup.config.idle_after = Some(after);
        self.setup.config.asked.push("trim_when_idle_ms");
        self
    }

    /// Chooses what the caching backend trades: memory, driver calls, time. Other backends have little such choice: to
    /// `native` only `poll_budget` means something, of memory that the host may use.
    pub fn profile(mut self, profile: Profile) -> Self {
        self.setup.config.asked.push("profile");
        self.tuning(Tuning::of(profile))
    }

    /// The same option by option.
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.setup.config.tuning = tuning;
        self
    }

    /// Lets the streams of these devices use the pool's blocks; see [`Pool::enable_peer_access`].
    pub fn peer_access(mut self, peers: &[Device]) -> Self {
        self.setup.peers = peers.to_vec();
        self
    }

    /// Makes memory that can be handed to other processes as file descriptors: the driver names the handle under a
    /// block's address (`cuMemRetainAllocationHandle`) and exports it (`cuMemExportToShareableHandle`), with all blocks that
    /// lie in it. Only the backend `caching` can; see [`Block::pin_backing`](crate::Block::pin_backing).
    pub fn exportable(mut self) -> Self {
        self.setup.config.handle_use.exportable = true;
        self
    }

    /// Makes memory that network cards can reach by themselves, once it is pinned; see
    /// [`Block::pin_backing`](crate::Block::pin_backing). The backend `none` does so anyway, `native` can't, and
    /// `caching` can where the device's driver can.
    pub fn rdma(mut self) -> Self {
        self.setup.config.handle_use.rdma = true;
        self
    }

    /// DriverAllocator `observer` with every error of this pool that says there is not so much memory: [`PoolError::OutOfMemory`] and
    /// [`PoolError::LimitReached`], which have a report ([`PoolError::out_of_memory`]), [`PoolError::TooLarge`] and
    /// [`PoolError::OverBudget`]. It is told once, on the thread that asks, before the request returns, and not of what was
    /// refused on the way to memory that was had in the end. No lock is held: it may look at the pool, and free what it has of
    /// it. Of requests that it makes itself it is not told, and its panics are the caller's.
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    /// use std::sync::{Arc, Mutex};
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new().memory_bytes(1 << 30))?, 0)?;
    /// let log = Arc::new(Mutex::new(Vec::new()));
    /// let lines = Arc::clone(&log);
    /// let observed = Pool::builder(&device).on_out_of_memory(move |error| lines.lock().unwrap().push(error.to_string()));
    /// let pool = observed.hard_limit(64 << 20).build()?;
    /// let stream = Stream::new(&device)?;
    /// assert!(pool.alloc(96 << 20, &stream).is_err() && pool.alloc(2 << 30, &stream).is_err());
    /// let log = log.lock().unwrap();
    /// assert!(log[0].contains("the limit of 64.000 MiB refused 96.000 MiB"), "{log:?}");
    /// assert!(log[1].contains("more than the 1.000 GiB that the device has"), "{log:?}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_out_of_memory(mut self, observer: impl Fn(&PoolError) + Send + Sync + 'static) -> Self {
        self.setup.observer = Some(Observer(Arc::new(observer)));
        self
    }

    /// Lets the backend `caching` take its memory in plain segments (`cuMemAlloc`) even where it could map handles: for
    /// what can't deal with mapped memory, such as `cuIpcGetMemHandle` or older tools. It does so by itself where virtual
    /// memory management is missing or refused; [`Status::plain_segments`](crate::Status::plain_segments) says.
    ///
    /// Nothing is mapped elsewhere then, so what is free between blocks stays there ([`Tuning::split_bytes_max`] keeps small blocks
    /// out of large segments), and only a segment that is free as a
    /// whole goes back to the driver, whose plain free waits for the device: so may [`Pool::trim_to`] and the end of the
    /// pool.
    ///
    /// ```
    /// use gpumem_pool::{BackendKind, Device, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// # #[cfg(feature = "backend-caching")] {
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let pool = Pool::builder(&device).backend(BackendKind::Caching).plain_segments().build()?;
    /// let block = pool.alloc(5 << 20, &Stream::new(&device)?)?;
    /// assert!(pool.status()?.to_string().contains("caching (plain segments)"));
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn plain_segments(mut self) -> Self {
        (self.setup.config.plain_segments, self.setup.config.expandable_segments) = (true, false);
        self.setup.config.asked.push("expandable_segments");
        self
    }

    /// Puts an adaptor around the pool, and around those that were put there before: the last one is asked first. See
    /// [`adaptor`](crate::adaptor).
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, PoolError, Stream, adaptor::Budget};
    /// use gpumem_sim::SimConfig;
    /// use std::sync::Arc;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let budget = Arc::new(Budget::new(1 << 20));
    /// let pool = Pool::builder(&device).adaptor(budget.clone()).build()?;
    /// let stream = Stream::new(&device)?;
    /// let block = pool.alloc(600 << 10, &stream)?;
    /// assert!(matches!(pool.alloc(600 << 10, &stream), Err(PoolError::OverBudget { .. })));
    /// assert_eq!(budget.in_use_bytes(), 600 << 10);
    /// # drop(block);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn adaptor(mut self, adaptor: Arc<dyn Adaptor>) -> Self {
        self.setup.adaptors.push(adaptor);
        self
    }

    /// Makes the pool.
    ///
    /// # Errors
    ///
    /// [`PoolError::BackendNotBuilt`], [`PoolError::BackendUnsupported`], [`PoolError::KindUnsupported`],
    /// [`PoolError::LimitTooSmall`], [`ConfigError::LimitSyntax`] for a share that is none, [`ConfigError::ShareOfHost`], [`PoolError::NoPeerAccess`], [`PoolError::NotWithBackend`], or
    /// what the driver says.
    pub fn build(mut self) -> Result<Pool, PoolError> {
        self.setup.adaptors.extend(self.trace.take().map(|trace| trace as _));
        Pool::build(self.setup)
    }
}

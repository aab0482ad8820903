//! [`PoolBuilder`]: sets up a pool.
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
//! | any of them, and PyTorch's allocator options, by name | [`PoolBuilder::conf`] | `GPUMEM_CONF` | see [`conf`] |
//!
//! The builder wins over the environment, and the environment wins over the default. Only `from_env` reads the
//! environment.

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
    /// The outermost adaptor, around all others.
    pub(crate) trace: Option<Arc<Trace>>,
}

impl Pool {
    /// Creates a pool with the defaults, without reading the environment.
    ///
    /// # Errors
    ///
    /// As [`PoolBuilder::build`] with the defaults: [`PoolError::Driver`] if a driver call fails.
    pub fn new(device: &Device) -> Result<Self, PoolError> {
        Self::builder(device).build()
    }

    /// Creates a pool as configured by `GPUMEM_CONF`, `GPUMEM_KIND`, `GPUMEM_POOL`, `GPUMEM_PROFILE`,
    /// `GPUMEM_HARD_LIMIT`, `GPUMEM_SOFT_LIMIT` and `GPUMEM_TRACE`.
    ///
    /// # Errors
    ///
    /// [`PoolError::Env`] for an invalid or unknown `GPUMEM_…` variable, and all errors of [`PoolBuilder::build`].
    pub fn from_env(device: &Device) -> Result<Self, PoolError> {
        PoolBuilder::from_env(device)?.build()
    }

    /// Starts from the defaults, without reading the environment.
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

    /// Sets named options: `key:value,…`; [`conf`] lists them. [`Pool::ignored_options`] lists the given options that
    /// have no effect on the pool's backend.
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
    /// [`ConfigError`] for an unknown, repeated, contradictory or malformed option.
    pub fn conf(mut self, text: &str) -> Result<Self, ConfigError> {
        conf::apply(&mut self.setup.config, text, None)?;
        Ok(self)
    }

    /// Releases idle memory before an allocation that finds no cached block, while more than this share of the hard
    /// limit (of the device, if there is none) is reserved. The backend `native` cannot see what the driver's pool has
    /// cached: it releases idle memory when the driver's pool grows beyond the threshold, shortly before or after. The
    /// backend `none` caches nothing.
    pub fn garbage_collection_threshold(mut self, share: f64) -> Self {
        self.setup.config.collect_above = Some(share.clamp(0.0, 1.0));
        self.setup.config.asked.push("garbage_collection_threshold");
        self
    }

    /// Chooses the kind of memory. Every backend supports all kinds; `native` needs a driver with pools of the kind:
    /// CUDA 12.6 for host memory, 13.0 for unified memory.
    ///
    /// Host-accessible memory is reused only when every use is complete. Until then the pool grows, and waits only at
    /// its hard limit. Nothing else bounds host memory, so set a hard limit for such a pool.
    pub fn kind(mut self, kind: MemoryKind) -> Self {
        self.setup.config.kind = kind;
        self
    }

    /// Allows the pool to exceed the margin of unified memory. Without this, unified memory and all pools of this
    /// [`Device`] together stay below 15/16 of the device's memory. Beyond the device's free memory, pages move back
    /// and forth, and a program that uses them all at once may come to a standstill. With this, a block of unified
    /// memory may be larger than the device.
    pub fn oversubscribe(mut self) -> Self {
        self.setup.config.oversubscribes = true;
        self
    }

    /// Makes the peak of memory in use ([`Status::in_use_peak_bytes`](crate::Status::in_use_peak_bytes)) exact to the
    /// byte, where the backend `caching` otherwise reports an upper bound. The cost: every allocation and free takes
    /// the slow path, as with an adaptor. The peaks of the other backends are always exact.
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

    /// Chooses the backend. [`PoolBuilder::build`] fails if it is not built in or the device does not support it. By
    /// default the first of `caching`, `native` and `none` that works is used.
    pub fn backend(mut self, backend: BackendKind) -> Self {
        self.setup.config.backend = Some(backend);
        self
    }

    /// Sets the hard limit: the pool never exceeds it. Each pool has its own limit, for its kind of memory. A limit of
    /// host memory is given in bytes, because a share refers to device memory.
    pub fn hard_limit(mut self, limit: impl Into<Limit>) -> Self {
        self.setup.config.hard_limit = Some(limit.into());
        self
    }

    /// Sets the soft limit: at synchronisation points, cached memory is released until at most this much is reserved.
    /// Without effect on the backend `none`, which caches nothing.
    pub fn soft_limit(mut self, limit: impl Into<Limit>) -> Self {
        self.setup.config.soft_limit = Some(limit.into());
        self.setup.config.asked.push("soft_limit");
        self
    }

    /// Releases all cached memory once `after` has passed without an allocation. There is no background thread. The
    /// idle time is checked when the host waits for a stream or the device, when it queries whether work is complete,
    /// and when another pool of the device allocates on the slow path. An allocation does not read the clock: the idle
    /// time begins at the first such moment after it. Without effect on the backend `none`, which caches nothing.
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

    /// Chooses the trade-off between memory, driver calls and time. It affects the caching backend; `native` uses only
    /// `poll_budget`, for host-accessible memory, and all backends use `wait_deadline`.
    pub fn profile(mut self, profile: Profile) -> Self {
        self.setup.config.asked.push("profile");
        self.tuning(Tuning::of(profile))
    }

    /// Sets the tuning options one by one instead of by [`PoolBuilder::profile`].
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.setup.config.tuning = tuning;
        self
    }

    /// Gives the streams of these devices access to the pool's blocks; see [`Pool::enable_peer_access`].
    pub fn peer_access(mut self, peers: &[Device]) -> Self {
        self.setup.peers = peers.to_vec();
        self
    }

    /// Creates memory that can be handed to other processes as file descriptors. The driver finds the handle under a
    /// block's address (`cuMemRetainAllocationHandle`) and exports it (`cuMemExportToShareableHandle`), with all blocks
    /// that lie in it. Only the backend `caching` supports this; see [`Block::pin_backing`](crate::Block::pin_backing).
    pub fn exportable(mut self) -> Self {
        self.setup.config.handle_use.exportable = true;
        self
    }

    /// Creates memory that network cards can access directly once it is pinned; see
    /// [`Block::pin_backing`](crate::Block::pin_backing). Memory of the backend `none` always supports this. The
    /// backend `native` does not. The backend `caching` does if the device's driver does.
    pub fn rdma(mut self) -> Self {
        self.setup.config.handle_use.rdma = true;
        self
    }

    /// Calls `observer` with every error of this pool that reports a lack of memory: [`PoolError::OutOfMemory`] and
    /// [`PoolError::LimitReached`], which have a report ([`PoolError::out_of_memory`]), [`PoolError::TooLarge`] and
    /// [`PoolError::OverBudget`].
    ///
    /// The call happens once, on the requesting thread, before the request returns. Refusals along the way of a request
    /// that succeeds in the end are not reported. No lock is held, so the observer may inspect the pool and free
    /// blocks. Its own requests are not reported to it. Its panics propagate to the caller.
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
    /// assert!(log[1].contains("the device has only 1.000 GiB"), "{log:?}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_out_of_memory(mut self, observer: impl Fn(&PoolError) + Send + Sync + 'static) -> Self {
        self.setup.observer = Some(Observer(Arc::new(observer)));
        self
    }

    /// Makes the backend `caching` use plain segments (`cuMemAlloc`) even where it could map handles, for software that
    /// cannot handle mapped memory, such as `cuIpcGetMemHandle` or older tools. Plain segments are the default where
    /// virtual memory management is missing or refused; [`Status::plain_segments`](crate::Status::plain_segments)
    /// reports which applies.
    ///
    /// Plain segments cannot be remapped, so free memory between blocks stays there ([`Tuning::split_bytes_max`] keeps
    /// small blocks out of large segments). Only a segment that is free as a whole can be released, and the driver's
    /// plain free waits for the device: [`Pool::trim_to`] and dropping the pool may wait therefore.
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

    /// Adds an adaptor around the pool and the adaptors added before: the last one sees a request first. See
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

    /// Creates the pool.
    ///
    /// # Errors
    ///
    /// - [`PoolError::BackendNotBuilt`], [`PoolError::BackendUnsupported`] or [`PoolError::KindUnsupported`] if the
    ///   backend or the kind is unavailable.
    /// - [`PoolError::NotWithBackend`] or [`PoolError::NotWithKind`] if the backend or the kind lacks a requested
    ///   property.
    /// - [`PoolError::LimitTooSmall`] for a hard limit below the minimum.
    /// - [`PoolError::Config`] with [`ConfigError::LimitSyntax`] for a share outside 0 to 100 %, or
    ///   [`ConfigError::ShareOfHost`] for a share of host memory.
    /// - [`PoolError::NoPeerAccess`] if a peer device has no link.
    /// - [`PoolError::Driver`] if a driver call fails.
    pub fn build(mut self) -> Result<Pool, PoolError> {
        self.setup.adaptors.extend(self.trace.take().map(|trace| trace as _));
        Pool::build(self.setup)
    }
}

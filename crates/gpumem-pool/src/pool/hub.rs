//! [`Hub`]: the part of a pool that serves requests: its device, backend, limits and counters. It knows neither blocks nor adaptors.

use crate::backend::{self, Backend, BackendSetup, NO_CACHE};
use crate::config::{Config, PoolId, PoolName};
use crate::error::PoolError;
use crate::figures::ActivityCounters;
use crate::limits::spills::Spills;
use crate::limits::{LimitNode, Limits};
use crate::pool::listing::{Listed, Listing};
use crate::pool::observer::{Observer, Witness};
use crate::pool::rooms::Rooms;
use crate::pool::sleep_state::SleepState;
use crate::stats::Tags;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use gpumem_base::sync::{Lifetime, Lock};
use gpumem_device::internal::{Clocks, RESET, not_forked};
use gpumem_device::{Device, DeviceError, Stream};
use gpumem_sys::fork;
use std::sync::{Arc, OnceLock};

/// The values that a pool is built from, besides its adaptors. The pool keeps it for its lifetime.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) name: PoolName,
    pub(crate) device: Device,
    pub(crate) config: Config,
    pub(crate) peers: Vec<Device>,
    /// The limit of a parent pool, which this pool's memory also counts against.
    pub(crate) parent: Option<Arc<LimitNode>>,
    pub(crate) observer: Option<Observer>,
    pub(crate) witness: Option<Arc<dyn Witness>>,
}

/// All that a pool's requests need. The requests of blocks and adaptors end here.
pub(crate) struct Hub {
    pub(crate) setup: Setup,
    pub(crate) clocks: Arc<Clocks>,
    /// The key of this pool's thread caches. `NO_CACHE` if every block must take the slow path: for adaptors, while the
    /// pool sleeps, or after a failure.
    cache_key: AtomicU64,
    /// The key of the backend's thread caches, which adaptors get their memory from.
    pub(crate) backend_cache_key: u64,
    pub(crate) listing: Arc<Listing>,
    pub(crate) is_for_host: bool,
    pub(crate) backend: Backend,
    pub(crate) limits: Limits,
    pub(crate) tags: Tags,
    pub(crate) activity: Arc<ActivityCounters>,
    /// The recorders among the adaptors, which see the refusals that end a request.
    witnesses: Lock<Vec<Arc<dyn Witness>>>,
    poison: OnceLock<PoolError>,
    pub(crate) sleep_state: SleepState,
    /// Set once, by the pool, if it spills.
    spiller: OnceLock<Arc<dyn Spills>>,
    /// True if arrays of this pool may exist.
    pub(crate) has_arrays: AtomicBool,
    pub(crate) rooms: Arc<Rooms>,
    pub(crate) lifetime: Lifetime,
}

impl Hub {
    /// Opens the backend. The hub has one handle, and its requests take the fast path.
    pub(crate) fn open(setup: Setup, is_for_host: bool) -> Result<Self, PoolError> {
        let Setup { ref name, ref device, ref config, ref parent, .. } = setup;
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
            tags: &tags,
            activity: &activity,
        })?;
        Ok(Self {
            clocks: Arc::clone(device.clocks()),
            cache_key: AtomicU64::new(backend.cache_key()),
            backend_cache_key: backend.cache_key(),
            listing: Listing::new(Listed {
                device,
                kind,
                backend: &backend,
                limits: &limits,
                tags: &tags,
                activity: &activity,
            }),
            is_for_host,
            backend,
            limits,
            tags,
            activity,
            witnesses: Lock::default(),
            poison: OnceLock::new(),
            sleep_state: SleepState::default(),
            spiller: OnceLock::new(),
            has_arrays: AtomicBool::new(false),
            rooms: Arc::default(),
            lifetime: Lifetime::new(),
            setup,
        })
    }

    pub(crate) fn device(&self) -> &Device {
        &self.setup.device
    }

    pub(crate) fn name(&self) -> &PoolName {
        &self.setup.name
    }

    pub(crate) fn id(&self) -> PoolId {
        self.name().id
    }

    pub(crate) fn config(&self) -> &Config {
        &self.setup.config
    }

    pub(crate) fn spiller(&self) -> Option<&Arc<dyn Spills>> {
        self.spiller.get()
    }

    pub(crate) fn set_spiller(&self, spiller: Arc<dyn Spills>) {
        let _first_counts = self.listing.spiller.set(Arc::downgrade(&spiller));
        let _first_counts = self.spiller.set(spiller);
    }

    pub(crate) fn add_witness(&self, witness: Arc<dyn Witness>) {
        self.witnesses.lock().push(witness);
    }

    /// All recorders of refusals: those among the adaptors, and the flight recorder.
    pub(crate) fn witnesses(&self) -> Vec<Arc<dyn Witness>> {
        let mut all = self.witnesses.lock().clone();
        all.extend(self.setup.witness.clone());
        all
    }

    pub(crate) fn is_soft_limit_idle(&self) -> bool {
        self.listing.is_soft_limit_idle()
    }

    #[inline]
    pub(crate) fn poison(&self) -> Option<&PoolError> {
        self.poison.get()
    }

    /// Makes the pool refuse all further requests. The first reason stays.
    pub(crate) fn set_poison(&self, poison: PoolError) {
        let _first_counts = self.poison.set(poison);
        self.take_cache_key();
    }

    /// Makes every allocation and every free take the slow path.
    pub(crate) fn take_cache_key(&self) {
        self.cache_key.store(NO_CACHE, Ordering::SeqCst);
    }

    /// Ends [`Hub::take_cache_key`] if `may` allows it. The caller has changed what `may` reads before. If several threads do that, the key
    /// is right after the last of them: each exchange sees what was changed before the others'.
    pub(crate) fn settle_cache_key(&self, may: impl Fn() -> bool) {
        let may = || self.poison.get().is_none() && may();
        while may() {
            self.cache_key.swap(self.backend_cache_key, Ordering::SeqCst);
            if may() {
                return;
            }
            self.cache_key.swap(NO_CACHE, Ordering::SeqCst);
        }
    }

    /// Returns the cache key for the fast path, or `None` while the slow path must run first.
    #[inline(always)]
    pub(crate) fn fast_path_key(&self) -> Option<u64> {
        if self.clocks.captures().slow_path().is_none() {
            Some(self.cache_key.load(Ordering::Relaxed))
        } else {
            None
        }
    }

    /// True if a capture may be active, so that each stream's capture state must be queried first.
    #[inline]
    pub(crate) fn has_captures(&self) -> bool {
        self.clocks.captures().is_open()
    }

    #[inline]
    pub(crate) fn check_usable(&self) -> Result<(), PoolError> {
        not_forked()?;
        match (self.poison.get(), self.setup.device.primary().lost()) {
            (None, None) => Ok(()),
            (Some(poison), _) => Err(poison.clone()),
            (None, Some(cause)) => Err(PoolError::Device(DeviceError::DeviceLost(cause))),
        }
    }

    #[inline]
    pub(crate) fn check_awake(&self) -> Result<(), PoolError> {
        if self.sleep_state.is_awake() {
            Ok(())
        } else {
            Err(PoolError::Device(DeviceError::Asleep { pool: self.name().as_str().into() }))
        }
    }

    #[inline]
    pub(crate) fn check_stream(&self, stream: &Stream) -> Result<(), PoolError> {
        stream.check_usable()?;
        if *stream.device() == self.setup.device {
            return Ok(());
        }
        // A reset may be known of one device and not yet of the other.
        Err(match stream.device().primary().lost() {
            Some(cause) => DeviceError::DeviceLost(cause).into(),
            None => self.setup.device.mismatch(stream.device()).into(),
        })
    }

    /// True if a request needs no checks besides the adaptors.
    #[inline]
    pub(crate) fn has_only_adaptors_to_ask(&self, stream: &Stream) -> bool {
        // A lost device sets the slow-path flag.
        self.clocks.captures().slow_path().is_none()
            && !fork::is_child()
            && self.poison.get().is_none()
            && stream.is_owned()
            && *stream.device() == self.setup.device
    }

    /// Records that the device was reset, if an error may come from that: later requests do not take the fast path.
    pub(crate) fn noting<T>(&self, result: Result<T, PoolError>) -> Result<T, PoolError> {
        result.inspect_err(|error| {
            if matches!(error, PoolError::Device(DeviceError::DeviceLost(cause)) if cause.code() == RESET) {
                self.setup.device.find_reset();
            }
        })
    }

    /// Handles a call that names a stream and takes the slow path. Marks the stream now if it can be marked only in
    /// such calls, and if other streams want its memory or may soon.
    pub(crate) fn name_stream(&self, stream: &Stream, size_bytes: u64) {
        if self.is_mark_due(size_bytes, stream) { stream.mark_named() } else { stream.note_named() }
    }

    /// True if a call that names `stream` must mark it, after `size_bytes` more: an eighth of the pool may be used between two markers.
    pub(crate) fn is_mark_due(&self, size_bytes: u64, stream: &Stream) -> bool {
        stream.is_mark_due(size_bytes, || self.reserved_bytes().unwrap_or(0) / 8)
    }

    pub(crate) fn reserved_bytes(&self) -> Result<u64, PoolError> {
        self.listing.reserved_bytes()
    }

    /// The parts and private pools of this pool, recursively.
    pub(crate) fn family(&self) -> Vec<Arc<Listing>> {
        self.listing.family_of(self.id())
    }
}

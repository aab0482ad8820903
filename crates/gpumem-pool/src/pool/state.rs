//! [`State`]: the shared state of a pool. It lives until no handle and no block of the pool is left, as its
//! [`Lifetime`] counts them.
//!
//! Its methods are in the submodules. `blocks`: allocation and free. `ladder`: retries when memory is short. `report`: the
//! error when nothing helped. `adapted`: pools with adaptors.
//! `captured`: streams that capture.

mod adapted;
mod blocks;
mod captured;
mod ladder;
mod report;

pub(crate) use report::Origin;

use crate::backend::{NO_CACHE, Shortage, Source};
use crate::config::{BackendKind, Config, MemoryKind};
use crate::device::catch_panic::catch_panic;
use crate::device::{Clocks, Device, Stream};
use crate::error::{PoolError, RESET, Refusal, Requested, not_forked};
use crate::figures::ActivityCounters;
use crate::limits::Limits;
use crate::pool::part::Parts;
use crate::pool::sleep::SleepState;
use crate::pool::{Gauge, GraphMemory, Listing, Peak, PoolSettings, Setup, Stack};
use crate::stats::Tags;
use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use gpumem_heap::sync::Lifetime;
use gpumem_sys::fork;
use std::sync::{Arc, OnceLock};

/// The shared state of a pool, alive as long as a handle or a block of it.
pub(crate) struct State {
    device: Device,
    /// The clocks of `device`.
    clocks: Arc<Clocks>,
    /// The key of this pool's thread caches. `NO_CACHE` if every block must take the slow path: for adaptors, while the
    /// pool sleeps, or after a failure.
    cache_key: AtomicU64,
    /// The key of the backend's thread caches, which adaptors get their memory from.
    backend_cache_key: u64,
    setup: Setup,
    /// The entry of the pool in the list of its device.
    listing: Arc<Listing>,
    /// True if the host may use the memory, as the device reports.
    is_for_host: bool,
    graph_memory: Arc<GraphMemory>,
    backend: Arc<dyn Source>,
    limits: Limits,
    tags: Tags,
    activity: Arc<ActivityCounters>,
    /// The innermost adaptor, if exact peaks were requested.
    peak: Option<Arc<Peak>>,
    /// The adaptors around the backend, if any.
    stack: Option<Stack>,
    poison: OnceLock<PoolError>,
    sleep_state: SleepState,
    parts: Parts,
    lifetime: Lifetime,
}

/// A pointer to a state that a handle of the pool, or a counted block, keeps alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct StateRef(NonNull<State>);

// SAFETY: any thread may use and drop a state: all of it is `Send` and `Sync`, which `shared` checks.
unsafe impl Send for StateRef {}
// SAFETY: a shared pointer gives shared access to the state, which any thread may use: it is `Sync`, which `shared`
// checks.
unsafe impl Sync for StateRef {}

const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<State>();
};

impl StateRef {
    /// Creates a state with one handle.
    pub(crate) fn new(
        setup: Setup,
        is_for_host: bool,
        backend: Arc<dyn Source>,
        limits: Limits,
        (tags, activity): (Tags, Arc<ActivityCounters>),
    ) -> Self {
        let device = setup.device.clone();
        let counts_apart = setup.config.exact_peaks && backend.kind() == BackendKind::Caching;
        let peak = counts_apart.then(Arc::<Peak>::default);
        let mut adaptors = setup.adaptors.clone();
        peak.iter().for_each(|peak| adaptors.insert(0, Arc::clone(peak) as _));
        let stack = Stack::new(&setup.name, &adaptors, tags.names());
        if let Some(stack) = &stack {
            stack.open(&device, &PoolSettings::new(&setup, &*backend, &limits), &Gauge::new(&backend));
        }
        let listing = Listing::new(&setup, &backend, &limits);
        device.list_pool(&listing);
        let state = State {
            clocks: Arc::clone(device.clocks()),
            graph_memory: GraphMemory::of(device.clocks()),
            device,
            cache_key: AtomicU64::new(if stack.is_none() { backend.cache_key() } else { NO_CACHE }),
            backend_cache_key: backend.cache_key(),
            setup,
            listing,
            is_for_host,
            backend,
            limits,
            tags,
            activity,
            peak,
            stack,
            poison: OnceLock::new(),
            sleep_state: SleepState::default(),
            parts: Parts::default(),
            lifetime: Lifetime::new(),
        };
        Self(NonNull::from(Box::leak(Box::new(state))))
    }

    /// Counts one more handle.
    pub(crate) fn add_handle(self) -> Self {
        self.lifetime.add_handle();
        self
    }

    /// Drops one handle. The caller does not use it again.
    pub(crate) fn drop_handle(self) {
        if fork::is_child() {
            return;
        }
        if !self.lifetime.drop_handle() {
            return;
        }
        if let Some(stack) = &self.stack {
            stack.close();
        }
        if self.lifetime.close(self.backend.close()) {
            self.take_down();
        }
    }

    /// Drops one block. The caller does not use the pointer again.
    fn drop_block(self) {
        if self.lifetime.count_off() {
            self.take_down();
        }
    }

    /// Destroys the state, after the last handle and the last block.
    fn take_down(self) {
        // SAFETY: the pointer came from a box in `new`. No handle is left and every block has been counted off, so
        // this is the only pointer still in use. The lifetime returns true only once.
        let mut state = unsafe { Box::from_raw(self.0.as_ptr()) };
        // Before the backend is dropped, after which others may get its addresses.
        state.end_sleep();
        // This runs in a drop. An adaptor's drop may panic; all of them must still be dropped.
        let adaptors = core::mem::take(&mut state.setup.adaptors);
        drop(state.stack.take());
        adaptors.into_iter().for_each(|adaptor| drop(catch_panic(|| drop(adaptor))));
        drop(catch_panic(|| drop(state)));
    }
}

impl Deref for StateRef {
    type Target = State;

    #[inline]
    fn deref(&self) -> &State {
        // SAFETY: the pointer belongs to a handle, or to a block that has not been counted off, so the state is
        // alive.
        unsafe { self.0.as_ref() }
    }
}

impl State {
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(in crate::pool) fn listing(&self) -> &Listing {
        &self.listing
    }

    pub(crate) fn backend(&self) -> &dyn Source {
        &*self.backend
    }

    pub(crate) fn setup(&self) -> &Setup {
        &self.setup
    }

    pub(crate) fn config(&self) -> &Config {
        &self.setup.config
    }

    /// True if the host may use the memory.
    pub(crate) fn is_for_host(&self) -> bool {
        self.is_for_host
    }

    pub(crate) fn graph_memory(&self) -> &Arc<GraphMemory> {
        &self.graph_memory
    }

    pub(crate) fn tags(&self) -> &Tags {
        &self.tags
    }

    /// The counters of the pool's activity since it was built.
    pub(crate) fn activity(&self) -> &ActivityCounters {
        &self.activity
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// True if the soft limit is above the hard limit, which then also bounds the cached memory.
    pub(crate) fn is_soft_limit_idle(&self) -> bool {
        match (self.limits.hard_bytes(), self.limits.soft_bytes()) {
            (Some(hard), Some(soft)) => soft > hard && self.backend.is_bounded_by(soft),
            _ => false,
        }
    }

    /// The innermost adaptor, if exact peaks were requested.
    pub(crate) fn peak(&self) -> Option<&Peak> {
        self.peak.as_deref()
    }

    pub(crate) fn poison(&self) -> Option<&PoolError> {
        self.poison.get()
    }

    pub(crate) fn parts(&self) -> &Parts {
        &self.parts
    }

    pub(crate) fn sleep_state(&self) -> &SleepState {
        &self.sleep_state
    }

    /// Makes every allocation and every free take the slow path.
    pub(crate) fn take_cache_key(&self) {
        self.cache_key.store(NO_CACHE, Ordering::SeqCst);
    }

    /// Ends [`State::take_cache_key`].
    pub(crate) fn give_cache_key(&self) {
        if self.stack.is_none() {
            self.cache_key.store(self.backend_cache_key, Ordering::SeqCst);
        }
    }

    #[inline]
    pub(crate) fn check_usable(&self) -> Result<(), PoolError> {
        not_forked()?;
        match (self.poison.get(), self.device.primary().lost()) {
            (None, None) => Ok(()),
            (Some(poison), _) => Err(poison.clone()),
            (None, Some(cause)) => Err(PoolError::DeviceLost(cause)),
        }
    }

    /// Records that the device was reset, if an error may come from that: later requests do not take the fast path.
    pub(crate) fn noting<T>(&self, result: Result<T, PoolError>) -> Result<T, PoolError> {
        result.inspect_err(|error| {
            if matches!(error, PoolError::DeviceLost(cause) if cause.code() == RESET) {
                self.device.find_reset();
            }
        })
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

    /// True if a request needs no checks besides the adaptors.
    #[inline]
    fn has_only_adaptors_to_ask(&self, stream: &Stream) -> bool {
        // A lost device sets the slow-path flag.
        self.clocks.captures().slow_path().is_none()
            && !fork::is_child()
            && self.poison.get().is_none()
            && stream.is_owned()
            && *stream.device() == self.device
    }

    #[inline]
    fn check_stream(&self, stream: &Stream) -> Result<(), PoolError> {
        stream.check_usable()?;
        if *stream.device() == self.device { Ok(()) } else { Err(self.device.mismatch(stream.device())) }
    }

    /// Performs the checks that apply to every request.
    pub(crate) fn check_request(&self, size_bytes: u64, stream: &Stream) -> Result<(), PoolError> {
        self.check_usable()?;
        self.check_stream(stream)?;
        self.with_report(
            self.check_size(size_bytes),
            &Origin { size_bytes: Some(size_bytes), stream: Some(stream.id()), tag: 0 },
        )
    }

    pub(crate) fn check_size(&self, size_bytes: u64) -> Result<(), PoolError> {
        let device_bytes = self.device.total_bytes();
        // Unified memory with oversubscription and host memory need not fit into the device; the driver decides
        // about them.
        let is_bounded_by_device = match self.setup.config.kind {
            MemoryKind::Device => true,
            MemoryKind::Unified => !self.setup.config.oversubscribes,
            MemoryKind::Host => false,
        };
        match size_bytes > device_bytes {
            true if is_bounded_by_device => Err(PoolError::too_large(size_bytes, device_bytes)),
            true => self.check_computation(size_bytes),
            false => Ok(()),
        }
    }

    /// Refuses a size that only an arithmetic bug can produce: the ladder would uselessly release all cached memory for it.
    #[cold]
    fn check_computation(&self, size_bytes: u64) -> Result<(), PoolError> {
        if !Requested(size_bytes).is_miscomputed() {
            return Ok(());
        }
        let shortage = Shortage {
            requested_bytes: size_bytes,
            alignment: 0,
            admitted_bytes: self.reserved_bytes()?,
            refusal: self.limits.node().limit_exceeded_by(size_bytes).map(Refusal::Limit),
        };
        Err(self.out_of_memory_error(&shortage, Vec::new()))
    }

    /// Returns the reserved bytes. For a backend that reserves only its blocks, these are the bytes in use.
    pub(crate) fn reserved_bytes(&self) -> Result<u64, PoolError> {
        let reserved = self.backend.reserved()?;
        Ok(reserved.map_or_else(|| self.backend.counts().in_use_bytes, |reserved| reserved.current_bytes))
    }
}

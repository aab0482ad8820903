//! [`Device`]: one GPU and its primary context.
//!
//! The CUDA runtime, cudarc, PyTorch and every other library of the process use the primary context, so memory and
//! streams can be shared with them. It is retained here and released with the last clone. Every object that needs the
//! context (stream, event, pool, block) holds a clone.

pub(crate) mod captures;
pub(crate) mod capturing;
pub(crate) mod completion;
pub(crate) mod context;
pub(crate) mod deadline;
pub(crate) mod event;
pub(crate) mod host;
pub(crate) mod host_memory;
pub(crate) mod maintenance;
pub(crate) mod order;
pub(crate) mod peer;
pub(crate) mod processes;
pub(crate) mod sleepers;
pub(crate) mod slow_path_flag;
pub(crate) mod stream;
pub(crate) mod watch;

mod objects;
mod settle;
mod wait;

pub(crate) use captures::Captures;
pub use completion::Completion;
pub(crate) use context::Handle;
pub use context::{CaptureModeGuard, ContextGuard};
pub use event::Event;
pub use host_memory::{BorrowedHostMemory, HostBuffer, HostBufferMut, HostMemory, HostMemoryError};
pub(crate) use maintenance::{HowFar, Idle, Maintenance, PoolMaintenance};
pub(crate) use objects::{Object, Owned, at_end};
pub use order::StreamId;
pub(crate) use order::{
    Clocks, GRAPH_BIT, Life, Marker, MarkerEvent, Observation, Order, Part, Stamp, StreamIndex, StreamParts,
};
#[doc(hidden)]
pub use peer::PeerDevice;
pub(crate) use slow_path_flag::SlowPathFlag;
pub(crate) use stream::{LEGACY, WeakStream};
pub use stream::{RecentStreams, Stream, StreamBuilder, StreamPoint};
pub(crate) use watch::{OrderEvent, OrderObserver};

#[cfg(feature = "backend-caching")]
use crate::config::HandleUse;
use crate::config::{Bytes, PoolId};
use crate::error::{PoolError, PoolUsage, RESET, UnfinishedStream, is_sticky, may_mean_reset, not_forked};
use crate::limits::DeviceBudget;
use crate::reclaim::{Reclaimable, Registration};
use completion::lanes::Lanes;
use completion::notifier;
use core::cmp::Reverse;
use core::ffi::{CStr, c_char, c_int};
use core::fmt;
#[cfg(feature = "backend-caching")]
use core::sync::atomic::AtomicU8;
use core::sync::atomic::{AtomicBool, Ordering};
use gpumem_heap::cache;
use gpumem_sys::text::Shown;
use gpumem_sys::types::{CUcontext, CUctx_st, CUdevice, CUdevice_attribute};
use gpumem_sys::{Driver, DriverError, fork};
pub(crate) use settle::{KeptMemory, Patience, Work};
pub(crate) use sleepers::Sleepers;
#[doc(hidden)]
pub use sleepers::{LentMemory, MemoryRange};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError, RwLock, Weak};
use std::time::Instant;
use watch::Watch;

/// One GPU, used through its primary context. Clones share it.
///
/// ```
/// use gpumem_pool::Device;
/// use gpumem_sim::SimConfig;
///
/// let driver = gpumem_sim::driver(SimConfig::new().memory_bytes(1 << 30))?;
/// let device = Device::new(&driver, 0)?;
/// assert_eq!(device.total_bytes(), 1 << 30);
/// assert!(device.to_string().ends_with("(device 0, 1.0 GiB)"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Device(Arc<Inner>);

/// A weak reference to a device.
#[derive(Clone, Default)]
pub(crate) struct WeakDevice(Weak<Inner>);

struct Inner {
    driver: Driver,
    /// Shared by all devices of the machine.
    clocks: Arc<Clocks>,
    own: WeakDevice,
    common: Arc<Common>,
    /// The error that destroyed the context, once a call has returned it.
    lost: OnceLock<DriverError>,
    /// True once a call has found that the program has reset the device. From then on no call uses the context or its objects, whose
    /// handles may have been reused.
    is_reset: AtomicBool,
    ordinal: u32,
    raw: CUdevice,
    context: Handle<CUctx_st>,
    /// The driver's number of the context, never reused; `None` for drivers before CUDA 12.0.
    context_id: Option<u64>,
    name: String,
    total_bytes: u64,
    /// True if the device uses the host's memory.
    is_integrated: bool,
    compute_capability: (u32, u32),
    /// The streams that notify of completed work.
    lanes: Lanes,
}

/// The state shared by all `Device`s opened on one GPU, because they share its memory.
struct Common {
    /// The pools of the GPU, in the order of their creation.
    pools: Mutex<Vec<Weak<dyn Listed>>>,
    maintenance: Maintenance,
    watch: Watch,
    budget: Arc<DeviceBudget>,
    /// A bit for each use of handles with which memory has been mapped and written.
    #[cfg(feature = "backend-caching")]
    mapped: AtomicU8,
    /// Held shared while the host waits for the whole GPU, and exclusively while a capture begins there.
    quiet: RwLock<()>,
    /// Unreported failures to release memory.
    kept: Mutex<Vec<PoolError>>,
    /// The memory of these reports that can be released later.
    kept_memory: Mutex<Vec<KeptMemory>>,
}

/// A pool in the list of its device.
pub(crate) trait Listed: Send + Sync {
    /// The pool, and the pool that it is private to.
    fn lineage(&self) -> (PoolId, Option<PoolId>);

    /// The name and the figures of the pool.
    fn usage(&self) -> PoolUsage;

    /// Lets a device with a link use the pool's memory.
    fn open_to(&self, peer: PeerDevice) -> Result<(), PoolError>;
}

/// The total and free memory of a device, over all processes; see [`Device::memory_info`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryInfo {
    /// The free memory.
    pub free_bytes: u64,
    /// The total memory.
    pub total_bytes: u64,
}

impl Device {
    /// The number of devices that the driver has.
    ///
    /// # Errors
    ///
    /// [`PoolError::Driver`] if the call fails.
    pub fn count(driver: &Driver) -> Result<u32, PoolError> {
        not_forked()?;
        let mut count: c_int = 0;
        // SAFETY: `count` outlives the call.
        unsafe { driver.cuDeviceGetCount(&mut count)? };
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// Opens the device with this ordinal, counted from 0, and retains its primary context.
    ///
    /// The first time that a process opens a device, the context is created, which takes the vendor's driver a tenth of a second.
    ///
    /// # Errors
    ///
    /// - [`PoolError::NotFound`] if the driver has no device with this ordinal.
    /// - [`PoolError::Driver`] if a call fails, for example because the context cannot be created.
    pub fn new(driver: &Driver, ordinal: u32) -> Result<Self, PoolError> {
        let raw = PeerDevice::new(driver, ordinal)?.raw();
        let name = name(driver, raw)?;
        let total_bytes = total_bytes(driver, raw)?;
        let major = attribute(driver, raw, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(driver, raw, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let is_integrated = attribute(driver, raw, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0;
        let compute_capability = (u32::try_from(major).unwrap_or(0), u32::try_from(minor).unwrap_or(0));

        watch_forks();
        let clocks = Clocks::of(driver);
        let mut open = clocks.devices();
        // Before the context is retained: an inactive context that is retained here was destroyed.
        open.iter().filter(|open| open.raw() == raw).for_each(|open| _ = open.find_reset());
        // Retained last, so that earlier failures have no context to release.
        let mut context = core::ptr::null_mut();
        // SAFETY: `context` outlives the call; the release is in `Inner::drop`.
        unsafe { driver.cuDevicePrimaryCtxRetain(&mut context, raw)? };
        let context_id = context_id(driver, context);
        let is_same = |open: &&Self| open.context() == context && open.0.context_id == context_id;
        open.iter().filter(|open| open.raw() == raw && !is_same(open)).for_each(Self::note_reset);
        open.retain(|open| !open.is_reset());
        let known = open.iter().find(is_same);
        let common = known.map_or_else(
            || Arc::new(Common::new(driver, ordinal, total_bytes, is_integrated)),
            |open| Arc::clone(&open.0.common),
        );
        let device = Self(Arc::new_cyclic(|own| Inner {
            driver: driver.clone(),
            clocks,
            own: WeakDevice(own.clone()),
            common,
            lost: OnceLock::new(),
            is_reset: AtomicBool::new(false),
            ordinal,
            raw,
            context: Handle(context),
            context_id,
            name,
            total_bytes,
            is_integrated,
            compute_capability,
            lanes: Lanes::default(),
        }));
        device.clocks().add_device(&device);
        Ok(device)
    }

    /// The ordinal of this device in the driver.
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        self.0.ordinal
    }

    /// The vendor's name for the device.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The total memory of the device.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.0.total_bytes
    }

    /// The compute capability, major and minor: (9, 0) for an H200.
    #[must_use]
    pub fn compute_capability(&self) -> (u32, u32) {
        self.0.compute_capability
    }

    /// Queries an attribute of the device.
    ///
    /// # Errors
    ///
    /// [`PoolError::Driver`] if the call fails.
    pub fn attribute(&self, attribute: CUdevice_attribute) -> Result<i32, PoolError> {
        not_forked()?;
        Ok(self::attribute(self.driver(), self.raw(), attribute)?)
    }

    /// The driver that the device was opened with.
    #[must_use]
    pub fn driver(&self) -> &Driver {
        &self.0.driver
    }

    /// The driver's handle.
    #[must_use]
    pub fn raw(&self) -> CUdevice {
        self.0.raw
    }

    /// The primary context, alive as long as this device.
    #[must_use]
    pub fn context(&self) -> CUcontext {
        self.0.context.0
    }

    /// The free and total memory, as reported by the driver: other pools and processes count.
    ///
    /// An integrated device (Tegra, DGX Spark) uses the host's memory, and the driver counts the system's page cache as used. There, the
    /// free memory is the system's available memory (`MemAvailable` on Linux), because an allocation makes the system give up its page
    /// cache. Swap space does not count. On other systems it is the driver's figure.
    ///
    /// All figures of free memory in this crate are this one: shares of free memory, [`Status`](crate::Status), reports.
    ///
    /// # Errors
    ///
    /// [`PoolError::Driver`] if a call fails, [`PoolError::DeviceLost`] if the context is lost.
    pub fn memory_info(&self) -> Result<MemoryInfo, PoolError> {
        not_forked()?;
        let _bound = self.enter()?;
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: both outlive the call.
        self.noting(unsafe { self.driver().cuMemGetInfo_v2(&mut free, &mut total) })?;
        let total_bytes = total as u64;
        let available_bytes =
            self.is_integrated().then(|| host::available_to(self.driver(), self.ordinal())).flatten();
        let free_bytes =
            available_bytes.map_or(free as u64, |available_bytes| available_bytes.min(total_bytes));
        Ok(MemoryInfo { free_bytes, total_bytes })
    }

    /// True if the device uses the host's memory.
    pub(crate) fn is_integrated(&self) -> bool {
        self.0.is_integrated
    }

    /// Makes the context current on this thread until the guard is dropped, which restores the previous context.
    ///
    /// Only raw driver calls need this; this crate binds the context internally.
    ///
    /// # Errors
    ///
    /// [`PoolError::Driver`] if a call fails, [`PoolError::DeviceLost`] if the context is lost.
    #[inline]
    pub fn bind(&self) -> Result<ContextGuard<'_>, PoolError> {
        Ok(self.enter()?)
    }

    /// Switches this thread to the relaxed capture mode until the guard is dropped. In that mode, driver calls that may
    /// wait for the device, such as allocations and kernel loading, do not break a capture.
    ///
    /// Only raw driver calls need this; this crate switches the mode internally.
    ///
    /// # Errors
    ///
    /// [`PoolError::Driver`] if the call fails.
    pub fn relax(&self) -> Result<CaptureModeGuard<'_>, PoolError> {
        not_forked()?;
        Ok(CaptureModeGuard::enter_for_user(self.driver())?)
    }

    /// Registers reclaim callbacks of `holder`, which run when memory of this device is short, until `holder` or the
    /// registration is dropped. All `Device`s opened on one GPU share the registrations.
    pub fn register_reclaimable<T: Reclaimable + 'static>(&self, holder: &Arc<T>) -> Registration {
        let holder: Weak<dyn Reclaimable> = Arc::<T>::downgrade(holder);
        Registration::new(self.maintenance().registry(), holder)
    }

    /// Lists a pool until it is dropped.
    pub(crate) fn add_pool<T: Listed + 'static>(&self, pool: &Arc<T>) {
        let pool: Weak<dyn Listed> = Arc::<T>::downgrade(pool);
        let mut pools = self.0.common.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(pool);
    }

    /// The pools that are listed.
    pub(crate) fn listed_pools(&self) -> Vec<Arc<dyn Listed>> {
        if fork::is_child() {
            return Vec::new();
        }
        let pools = self.0.common.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.iter().filter_map(Weak::upgrade).collect()
    }

    /// The error for an object of `found` where an object of this device was expected.
    pub(crate) fn mismatch(&self, found: &Self) -> PoolError {
        let [expected, found] = self.names_apart(found);
        PoolError::WrongDevice { expected, found }
    }

    /// The names of this device and of a different one, for an error. The devices of two drivers, or of two contexts, may have equal names,
    /// so the second text states the difference.
    #[doc(hidden)]
    #[must_use]
    pub fn names_apart(&self, other: &Self) -> [String; 2] {
        let (own_kind, other_kind) = (self.driver().kind(), other.driver().kind());
        let is_one_machine = self.driver().is_same_machine(other.driver());
        let other = match (is_one_machine, own_kind == other_kind) {
            (true, _) if self.ordinal() == other.ordinal() => {
                format!("{other} of the {other_kind}, in another context")
            }
            (false, true) => format!("{other} of another {other_kind}"),
            _ => format!("{other} of the {other_kind}"),
        };
        [format!("{self} of the {own_kind}"), other]
    }

    /// The streams with unfinished work if this thread's request reached its deadline, the longest wait first; otherwise empty.
    pub(crate) fn unfinished_of_request(&self) -> Vec<UnfinishedStream> {
        if !deadline::has_passed() {
            return Vec::new();
        }
        let now = Instant::now();
        let unfinished =
            self.clocks().unfinished(self).into_iter().map(|(stream, marked_at)| UnfinishedStream {
                stream,
                queued_ago: marked_at.map(|marked_at| now.saturating_duration_since(marked_at)),
            });
        let mut unfinished: Vec<_> = unfinished.collect();
        unfinished.sort_by_key(|stream| Reverse(stream.queued_ago));
        unfinished
    }

    /// Makes the context current, unless the program has reset the device.
    #[inline]
    pub(crate) fn enter(&self) -> Result<ContextGuard<'_>, DriverError> {
        if self.find_reset() {
            return Err(reset());
        }
        ContextGuard::enter(self.driver(), self.context()).map_err(|error| self.noted(error))
    }

    /// Like [`Device::enter`], and in the relaxed capture mode.
    pub(crate) fn enter_relaxed(&self) -> Result<(CaptureModeGuard<'_>, ContextGuard<'_>), DriverError> {
        let context = self.enter()?;
        Ok((CaptureModeGuard::enter(self.driver())?, context))
    }

    /// Records an error which states that the context is lost. Paths without driver calls would not notice it. If the error may come from a
    /// reset device, and the device was reset, it is replaced by one that says so.
    pub(crate) fn noting<T>(&self, result: Result<T, DriverError>) -> Result<T, DriverError> {
        result.map_err(|error| self.noted(error))
    }

    #[cold]
    fn noted(&self, error: DriverError) -> DriverError {
        if may_mean_reset(error.code()) && !fork::is_child() && self.find_reset() {
            return error.with_code(RESET);
        }
        if is_sticky(error.code()) {
            self.lose(error);
        }
        error
    }

    /// Records the error that destroyed the context. The first one counts.
    #[cold]
    fn lose(&self, error: DriverError) {
        if self.0.lost.set(error).is_ok() {
            self.clocks().captures().slow_path().add_lost();
            notifier::check_all();
        }
    }

    fn note_reset(&self) {
        if !self.0.is_reset.swap(true, Ordering::AcqRel) {
            self.maintenance().forget_objects();
            self.sleepers().add_reset();
            self.lose(reset());
        }
    }

    /// True if the program has reset the device, which is recorded. Calls that name an object of the context ask first: the vendor's driver
    /// dereferences stream handles, and a handle of a former context crashes the process.
    #[inline]
    pub(crate) fn find_reset(&self) -> bool {
        self.is_reset() || (!self.0.has_its_context() && self.confirm_reset())
    }

    #[cold]
    fn confirm_reset(&self) -> bool {
        let is_gone = self.0.is_context_replaced();
        if is_gone {
            self.note_reset();
        }
        is_gone
    }

    /// True once a call has found that the program reset the device.
    #[inline]
    pub(crate) fn is_reset(&self) -> bool {
        self.0.is_reset.load(Ordering::Acquire)
    }

    /// True if the device has no primary context now, as after a reset.
    #[cfg(feature = "backend-caching")]
    pub(crate) fn is_unused(&self) -> bool {
        self.0.is_unused()
    }

    /// Refuses operations of a forked child, and operations on a device that was reset.
    pub(crate) fn check_open(&self) -> Result<(), PoolError> {
        not_forked()?;
        if self.is_reset() { Err(PoolError::DeviceLost(reset())) } else { Ok(()) }
    }

    /// The error that destroyed the context, if a call of this device has returned it.
    pub(crate) fn lost(&self) -> Option<DriverError> {
        if self.is_reset() { Some(reset()) } else { self.0.lost.get().copied() }
    }

    /// The memory held by the device's pools.
    pub(crate) fn budget(&self) -> &Arc<DeviceBudget> {
        &self.0.common.budget
    }

    /// True if virtual memory for this use has been mapped and written on the device.
    #[cfg(feature = "backend-caching")]
    pub(crate) fn has_mapped(&self, handle_use: HandleUse) -> bool {
        self.0.common.mapped.load(Ordering::Relaxed) & handle_use.bit() != 0
    }

    #[cfg(feature = "backend-caching")]
    pub(crate) fn note_mapped(&self, handle_use: HandleUse) {
        self.0.common.mapped.fetch_or(handle_use.bit(), Ordering::Relaxed);
    }

    pub(crate) fn watch(&self) -> &Watch {
        &self.0.common.watch
    }

    /// The memory that sleeps, of all devices of the machine.
    pub(crate) fn sleepers(&self) -> &Sleepers {
        self.0.clocks.sleepers()
    }

    pub(crate) fn maintenance(&self) -> &Maintenance {
        &self.0.common.maintenance
    }

    /// Stream order and completion, over all streams of the machine.
    pub(crate) fn clocks(&self) -> &Arc<Clocks> {
        &self.0.clocks
    }

    pub(crate) fn lanes(&self) -> &Lanes {
        &self.0.lanes
    }

    pub(crate) fn downgrade(&self) -> WeakDevice {
        self.0.own.clone()
    }
}

impl Common {
    fn new(driver: &Driver, ordinal: u32, total_bytes: u64, is_integrated: bool) -> Self {
        let driver = driver.clone();
        let available_bytes = move || host::available_to(&driver, ordinal);
        let available_bytes = is_integrated.then(|| Box::new(available_bytes) as _);
        let budget = Arc::new(DeviceBudget::new(total_bytes, available_bytes));
        let (quiet, kept, kept_memory) = (RwLock::default(), Mutex::default(), Mutex::default());
        Self {
            pools: Mutex::default(),
            maintenance: Maintenance::default(),
            watch: Watch::default(),
            budget,
            #[cfg(feature = "backend-caching")]
            mapped: AtomicU8::new(0),
            quiet,
            kept,
            kept_memory,
        }
    }
}

impl WeakDevice {
    pub(crate) fn upgrade(&self) -> Option<Device> {
        self.0.upgrade().map(Device)
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.0.ptr_eq(&other.0)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        if self.lost.get().is_some() {
            self.clocks.captures().slow_path().remove_lost();
        }
        if *self.is_reset.get_mut() {
            self.clocks.sleepers().remove_reset();
            // All objects are gone. The driver may or may not still count the context as retained; one release too many would destroy the
            // next context.
            return self.clocks.drop_device(&self.own, self.context.0, reset());
        }
        if !self.has_its_context() && self.is_context_replaced() {
            return self.clocks.drop_device(&self.own, self.context.0, reset());
        }
        // Another `Device` of this GPU returns the rest later.
        let has_heir = self.clocks.devices().iter().any(|other| other.context() == self.context.0);
        if !has_heir {
            self.release_deferred();
        }
        self.lanes.destroy(&self.driver, self.context.0);
        self.clocks.close_device(&self.own, self.context.0);
        if !has_heir {
            self.common.maintenance.end(&self.driver);
        }
        // Objects that host functions dropped are destroyed before their context.
        release_context(&self.driver, self.raw);
    }
}

/// Releases a context that was retained once for the caller. A failure means that the driver is shutting down or that the context is lost.
fn release_context(driver: &Driver, raw: CUdevice) {
    // SAFETY: the caller has retained the context.
    at_end(|| driver.destroy(move |driver| unsafe { driver.cuDevicePrimaryCtxRelease_v2(raw) }));
}

impl Inner {
    /// True if the driver confirms that the context is the one that was opened.
    #[inline]
    fn has_its_context(&self) -> bool {
        match self.context_id {
            None => !self.is_unused(),
            id => context_id(&self.driver, self.context.0) == id,
        }
    }

    /// True if the context was destroyed. Uses separate queries, because one failure may concern only one call. The context is retained
    /// here, so otherwise it would be active and the same.
    #[cold]
    fn is_context_replaced(&self) -> bool {
        if self.is_unused() {
            return true;
        }
        let (driver, raw, mut context) = (&self.driver, self.raw, core::ptr::null_mut());
        // SAFETY: `context` outlives the call. It is released below.
        if unsafe { driver.cuDevicePrimaryCtxRetain(&mut context, raw) }.is_err() {
            return false;
        }
        let is_same = context == self.context.0 && context_id(driver, context) == self.context_id;
        release_context(driver, raw);
        !is_same
    }

    fn is_unused(&self) -> bool {
        let (mut flags, mut is_active) = (0, 1);
        // SAFETY: both outlive the call.
        let asked = unsafe { self.driver.cuDevicePrimaryCtxGetState(self.raw, &mut flags, &mut is_active) };
        asked.is_ok() && is_active == 0
    }

    /// Releases the memory of pools that were dropped while work was queued.
    fn release_deferred(&self) {
        let maintenance = &self.common.maintenance;
        if !maintenance.has_deferred() {
            return;
        }
        let bound = at_end(|| ContextGuard::enter(&self.driver, self.context.0));
        // SAFETY: the context is current and alive.
        let is_idle = bound.is_some() && at_end(|| unsafe { self.driver.cuCtxSynchronize() }).is_some();
        if is_idle {
            self.clocks.saw_end(&self.own);
            maintenance.after_wait(&self.driver, &self.clocks);
        }
        // The rest is used by work of other devices, which access the memory over their links. Memory of a lost context is left too, and
        // goes with the context.
        if maintenance.has_deferred() {
            let waited: Vec<_> = self.clocks.devices().into_iter().map(|other| other.finish()).collect();
            if is_idle && waited.iter().all(Result::is_ok) {
                maintenance.finish(&self.driver, &self.clocks);
            }
        }
    }
}

/// True if both are one GPU of one driver: such devices share one primary context.
impl PartialEq for Device {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
            || self.context() == other.context()
                && self.driver().is_same_machine(other.driver())
                && self.is_reset() == other.is_reset()
    }
}

impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("ordinal", &self.0.ordinal)
            .field("name", &Shown::name(&self.0.name))
            .finish()
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} (device {}, {:.1})",
            Shown::name(&self.0.name),
            self.0.ordinal,
            Bytes(self.0.total_bytes)
        )
    }
}

fn name(driver: &Driver, raw: CUdevice) -> Result<String, DriverError> {
    let mut text = [0_u8; 256];
    // SAFETY: the buffer is as long as stated and outlives the call.
    unsafe { driver.cuDeviceGetName(text.as_mut_ptr().cast::<c_char>(), text.len() as c_int, raw)? };
    let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
    Ok(text.to_string_lossy().into_owned())
}

/// From here on, forked children use no cache of their parent's thread, and every slow path refuses them.
fn watch_forks() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        fork::watch();
        fork::run_in_children(cache::forget_found);
    });
}

/// The error of a device that was reset, when no call has failed.
fn reset() -> DriverError {
    DriverError::Failed { call: "cuDevicePrimaryCtxReset", code: RESET }
}

/// The driver's unique number of a context, never reused. `None` if the context is gone or the driver has no numbers.
#[inline]
fn context_id(driver: &Driver, context: CUcontext) -> Option<u64> {
    driver.table().cuCtxGetId?;
    let mut id = 0;
    // SAFETY: the handle was a primary context's, of which the driver says whether it is gone, and `id` outlives the call.
    unsafe { driver.cuCtxGetId(context, &mut id) }.ok().map(|()| id)
}

fn total_bytes(driver: &Driver, raw: CUdevice) -> Result<u64, DriverError> {
    let mut total = 0_usize;
    // SAFETY: `total` outlives the call.
    unsafe { driver.cuDeviceTotalMem_v2(&mut total, raw)? };
    Ok(total as u64)
}

fn attribute(driver: &Driver, raw: CUdevice, attribute: CUdevice_attribute) -> Result<i32, DriverError> {
    let mut value: c_int = 0;
    // SAFETY: `value` outlives the call.
    unsafe { driver.cuDeviceGetAttribute(&mut value, attribute, raw)? };
    Ok(value)
}

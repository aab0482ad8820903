//! [`Device`]: one GPU and its primary context.
//!
//! The primary context is the one that the CUDA runtime, cudarc, PyTorch and every other library of the process use, so
//! memory and streams can be shared with them. It is retained here and released with the last clone; whatever needs the
//! context alive (streams, events, pools, blocks) holds a clone.

pub(crate) mod captures;
pub(crate) mod capturing;
pub(crate) mod context;
pub(crate) mod deadline;
pub(crate) mod event;
pub(crate) mod host_memory;
pub(crate) mod maintenance;
#[allow(dead_code, reason = "what only the caching backend asks for")]
pub(crate) mod order;
pub(crate) mod processes;
#[cfg_attr(
    not(feature = "backend-caching"),
    allow(dead_code, reason = "what only the caching backend asks for")
)]
pub(crate) mod slow_path_flag;
pub(crate) mod stream;
pub(crate) mod watch;

mod settle;
mod wait;

pub(crate) use captures::Captures;
pub(crate) use context::Handle;
pub use context::{CaptureModeGuard, ContextGuard};
pub use event::Event;
pub use host_memory::{BorrowedHostMemory, HostBuffer, HostBufferMut, HostMemory, HostMemoryError};
pub(crate) use maintenance::{DeferredRelease, HowFar, Idle, Maintenance, Waiting};
pub use order::StreamId;
pub(crate) use order::{
    Clocks, GRAPH_BIT, Life, MarkerEvent, Observation, Order, Part, Stamp, StreamIndex, StreamParts,
};
pub(crate) use slow_path_flag::SlowPathFlag;
pub(crate) use stream::{LEGACY, WeakStream};
pub use stream::{Stream, StreamBuilder};
pub(crate) use watch::{OrderEvent, OrderObserver};

use crate::config::Bytes;
use crate::error::{PoolError, UnfinishedStream, is_sticky};
use crate::limits::DeviceBudget;
use crate::reclaim::{Reclaimable, Registration};
use core::cmp::Reverse;
use core::ffi::{CStr, c_char, c_int};
use core::fmt;
use gpumem_sys::types::{CUcontext, CUctx_st, CUdevice, CUdevice_attribute};
use gpumem_sys::{Driver, DriverError};
pub(crate) use settle::{KeptMemory, Patience, Work};
use std::sync::{Arc, Mutex, OnceLock, RwLock, Weak};
use std::time::Instant;
use watch::Watch;

/// One GPU, through its primary context. Clones share it.
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

/// A device that may be gone.
#[derive(Clone, Default)]
pub(crate) struct WeakDevice(Weak<Inner>);

struct Inner {
    driver: Driver,
    /// Shared by all devices of the machine.
    clocks: Arc<Clocks>,
    own: WeakDevice,
    common: Arc<Common>,
    /// What killed the context, once that has been seen.
    lost: OnceLock<DriverError>,
    ordinal: u32,
    raw: CUdevice,
    context: Handle<CUctx_st>,
    name: String,
    total_bytes: u64,
    compute_capability: (u32, u32),
}

/// What all that were opened of one GPU share, as they share its memory.
struct Common {
    maintenance: Maintenance,
    watch: Watch,
    budget: Arc<DeviceBudget>,
    /// Held together by those who wait for all of the GPU, and alone by whoever begins a capture there.
    quiet: RwLock<()>,
    /// Memory that was kept instead of being given back, and not yet reported.
    kept: Mutex<Vec<PoolError>>,
    /// The same memory, as far as it can be given back later.
    kept_memory: Mutex<Vec<KeptMemory>>,
}

/// How much memory a device has, and how much of it is free, whoever uses the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryInfo {
    /// Free now.
    pub free_bytes: u64,
    /// All of it.
    pub total_bytes: u64,
}

impl Device {
    /// How many devices the driver has.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn count(driver: &Driver) -> Result<u32, PoolError> {
        let mut count: c_int = 0;
        // SAFETY: `count` outlives the call.
        unsafe { driver.cuDeviceGetCount(&mut count)? };
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// Opens a device, counted from zero, and retains its primary context.
    ///
    /// The first opening of a device in a process creates the context, which takes the vendor's driver a tenth of a
    /// second.
    ///
    /// # Errors
    ///
    /// [`PoolError::NoSuchDevice`], or what the driver says when the context can't be had.
    pub fn new(driver: &Driver, ordinal: u32) -> Result<Self, PoolError> {
        let count = Self::count(driver)?;
        let index = c_int::try_from(ordinal).ok().filter(|_| ordinal < count);
        let index = index.ok_or(PoolError::NoSuchDevice { ordinal, count })?;
        let mut raw: CUdevice = 0;
        // SAFETY: `raw` outlives the call.
        unsafe { driver.cuDeviceGet(&mut raw, index)? };
        let name = name(driver, raw)?;
        let total_bytes = total_bytes(driver, raw)?;
        let major = attribute(driver, raw, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(driver, raw, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let compute_capability = (u32::try_from(major).unwrap_or(0), u32::try_from(minor).unwrap_or(0));

        // Last, so that no failure above has a context to release.
        let mut context = core::ptr::null_mut();
        // SAFETY: `context` outlives the call; the release is in `Inner::drop`.
        unsafe { driver.cuDevicePrimaryCtxRetain(&mut context, raw)? };
        let clocks = Clocks::of(driver);
        let open = clocks.devices();
        let known = open.iter().find(|open| open.context() == context);
        let common =
            known.map_or_else(|| Arc::new(Common::new(total_bytes)), |open| Arc::clone(&open.0.common));
        let device = Self(Arc::new_cyclic(|own| Inner {
            driver: driver.clone(),
            clocks,
            own: WeakDevice(own.clone()),
            common,
            lost: OnceLock::new(),
            ordinal,
            raw,
            context: Handle(context),
            name,
            total_bytes,
            compute_capability,
        }));
        device.clocks().add_device(&device);
        Ok(device)
    }

    /// The number that the driver counts this device by.
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        self.0.ordinal
    }

    /// The vendor's name for it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// All of its memory.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.0.total_bytes
    }

    /// Major and minor version of what it can run: (9, 0) for an H200.
    #[must_use]
    pub fn compute_capability(&self) -> (u32, u32) {
        self.0.compute_capability
    }

    /// A number that the driver tells about the device.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn attribute(&self, attribute: CUdevice_attribute) -> Result<i32, PoolError> {
        Ok(self::attribute(self.driver(), self.raw(), attribute)?)
    }

    /// The driver that it was opened with.
    #[must_use]
    pub fn driver(&self) -> &Driver {
        &self.0.driver
    }

    /// The driver's handle.
    #[must_use]
    pub fn raw(&self) -> CUdevice {
        self.0.raw
    }

    /// The primary context, alive for as long as this device is.
    #[must_use]
    pub fn context(&self) -> CUcontext {
        self.0.context.0
    }

    /// How much memory is free, as the driver sees it: other pools and other processes count.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn memory_info(&self) -> Result<MemoryInfo, PoolError> {
        let _bound = self.enter()?;
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: both outlive the call.
        unsafe { self.driver().cuMemGetInfo_v2(&mut free, &mut total)? };
        Ok(MemoryInfo { free_bytes: free as u64, total_bytes: total as u64 })
    }

    /// Makes the context current on this thread until the guard is dropped, which brings back what was current before.
    ///
    /// Only raw driver calls need it: everything in this crate does it by itself.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn bind(&self) -> Result<ContextGuard<'_>, PoolError> {
        Ok(self.enter()?)
    }

    /// Until the guard is dropped, this thread's calls to the driver break no capture by waiting for the device behind the
    /// program's back: allocating, loading kernels.
    ///
    /// Only raw driver calls need it: everything in this crate does it by itself.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn relax(&self) -> Result<CaptureModeGuard<'_>, PoolError> {
        Ok(CaptureModeGuard::enter(self.driver())?)
    }

    /// Asks `holder` from now on when memory of this device is short, until it or the registration is gone. All
    /// that were opened of one GPU share what is registered.
    pub fn register_reclaimable<T: Reclaimable + 'static>(&self, holder: &Arc<T>) -> Registration {
        let holder: Weak<dyn Reclaimable> = Arc::<T>::downgrade(holder);
        Registration::new(self.maintenance().registry(), holder)
    }

    /// The error for something that belongs to `found` where this device was expected.
    pub(crate) fn mismatch(&self, found: &Self) -> PoolError {
        PoolError::WrongDevice {
            expected: format!("{self} of the {}", self.driver().kind()),
            found: format!("{found} of the {}", found.driver().kind()),
        }
    }

    /// The streams whose work was not done when this thread's request had waited for as long as it may, the longest first.
    /// None if it did not wait so long.
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

    pub(crate) fn enter(&self) -> Result<ContextGuard<'_>, DriverError> {
        ContextGuard::enter(self.driver(), self.context())
    }

    /// Keeps an error that says that the context is lost: what asks the driver for nothing would not see it.
    pub(crate) fn noting<T>(&self, result: Result<T, DriverError>) -> Result<T, DriverError> {
        result.inspect_err(|error| {
            if is_sticky(error.code()) {
                let _first_counts = self.0.lost.set(*error);
                self.clocks().captures().slow_path().add_lost();
            }
        })
    }

    /// What killed the context, as far as this device's calls have seen.
    pub(crate) fn lost(&self) -> Option<DriverError> {
        self.0.lost.get().copied()
    }

    /// What its pools hold.
    pub(crate) fn budget(&self) -> &Arc<DeviceBudget> {
        &self.0.common.budget
    }

    pub(crate) fn watch(&self) -> &Watch {
        &self.0.common.watch
    }

    pub(crate) fn maintenance(&self) -> &Maintenance {
        &self.0.common.maintenance
    }

    /// What is ordered and what is done, on all streams of the machine.
    pub(crate) fn clocks(&self) -> &Arc<Clocks> {
        &self.0.clocks
    }

    pub(crate) fn downgrade(&self) -> WeakDevice {
        self.0.own.clone()
    }
}

impl Common {
    fn new(total_bytes: u64) -> Self {
        let budget = Arc::new(DeviceBudget::new(total_bytes));
        let (quiet, kept, kept_memory) = (RwLock::default(), Mutex::default(), Mutex::default());
        Self {
            maintenance: Maintenance::default(),
            watch: Watch::default(),
            budget,
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
        self.give_back_what_is_left();
        self.clocks.close_device(&self.own, self.context.0);
        let _guard = self.driver.teardown();
        // SAFETY: the context was retained once for this value. There is nobody to tell of a failure, which means that
        // the driver is shutting down or that the context is lost.
        let _ = unsafe { self.driver.cuDevicePrimaryCtxRelease_v2(self.raw) };
    }
}

impl Inner {
    /// Of pools that ended while work was queued.
    fn give_back_what_is_left(&self) {
        // Who else has opened the GPU gives it back in his own time.
        let has_heir = self.clocks.devices().iter().any(|other| other.context() == self.context.0);
        if has_heir || !self.common.maintenance.has_left() {
            return;
        }
        let Ok(_bound) = ContextGuard::enter(&self.driver, self.context.0) else { return };
        // SAFETY: the context is current and alive.
        if unsafe { self.driver.cuCtxSynchronize() }.is_ok() {
            self.common.maintenance.finish(&self.driver, &self.clocks);
        }
    }
}

/// Whether both are the same GPU in the same driver: they share one primary context.
impl PartialEq for Device {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
            || self.context() == other.context() && self.driver().is_same_machine(other.driver())
    }
}

impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("ordinal", &self.0.ordinal).field("name", &self.0.name).finish()
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (device {}, {:.1})", self.0.name, self.0.ordinal, Bytes(self.0.total_bytes))
    }
}

fn name(driver: &Driver, raw: CUdevice) -> Result<String, DriverError> {
    let mut text = [0_u8; 256];
    // SAFETY: the buffer is as long as stated and outlives the call.
    unsafe { driver.cuDeviceGetName(text.as_mut_ptr().cast::<c_char>(), text.len() as c_int, raw)? };
    let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
    Ok(text.to_string_lossy().into_owned())
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

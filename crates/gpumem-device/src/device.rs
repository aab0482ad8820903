//! [`Device`]: one GPU and its primary context.
//!
//! The CUDA runtime, cudarc, PyTorch and every other library of the process use the primary context, so memory and
//! streams can be shared with them. It is retained here and released with the last clone. Every object that needs the
//! context (stream, event, pool, block) holds a clone.

pub(crate) mod any_stream;
pub(crate) mod calls;
pub(crate) mod capture_end;
pub(crate) mod captures;
pub(crate) mod capturing;
pub(crate) mod catch_panic;
pub(crate) mod completion;
pub(crate) mod context;
pub mod deadline;
pub(crate) mod event;
pub mod host;
pub(crate) mod host_memory;
pub(crate) mod lent;
pub(crate) mod maintenance;
pub(crate) mod order;
pub(crate) mod peer;
pub(crate) mod primary;
pub mod processes;
pub(crate) mod sleepers;
pub(crate) mod slow_path_flag;
pub(crate) mod stream;
pub(crate) mod thread;
pub(crate) mod watch;

mod extensions;
mod objects;
mod settle;
mod wait;

pub use completion::Completion;
pub use context::{CaptureModeGuard, ContextGuard, Handle};
pub use event::Event;
pub use host_memory::{BorrowedHostMemory, HostBuffer, HostBufferMut, HostMemory, HostMemoryError};
pub(crate) use maintenance::Maintenance;
pub use maintenance::{HowFar, Idle, PoolMaintenance};
pub(crate) use objects::at_end;
pub use objects::{Object, Owned};
pub(crate) use order::Marker;
pub use order::{CapturePart, Clocks, GRAPH_BIT, MarkerEvent, Order, Stamp, StreamId, StreamIndex};
#[doc(hidden)]
pub use peer::PeerDevice;
pub use stream::{RecentStreams, Stream, StreamBuilder, StreamPoint};
pub use watch::{OrderEvent, OrderObserver};

use crate::bytes::Bytes;
use crate::error::{DeviceError, not_forked};
use completion::lanes::Lanes;
use core::any::Any;
use core::ffi::{CStr, c_char, c_int};
use core::fmt;
use extensions::Extensions;
use gpumem_base::sync::Lock;
use gpumem_sys::text::{Shown, debug_fields};
use gpumem_sys::types::{CUcontext, CUdevice, CUdevice_attribute};
use gpumem_sys::{Driver, DriverError, fork};
#[doc(hidden)]
pub use lent::LentMemory;
use primary::{HeldContext, Opened, PrimaryContext, Retained, WeakContext, raw_device, reset};
pub use settle::{Patience, Work};
#[doc(hidden)]
pub use sleepers::MemoryRange;
pub(crate) use sleepers::Sleepers;
use std::sync::{Arc, Weak};
use watch::Watch;

/// One GPU, used through its primary context. Clones share it.
///
/// ```
/// use gpumem_device::Device;
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
pub struct WeakDevice(Weak<Inner>);

struct Inner {
    primary: PrimaryContext,
    clocks: Arc<Clocks>,
    common: Arc<Common>,
    name: String,
    total_bytes: u64,
    is_integrated: bool,
    compute_capability: (u32, u32),
    /// The streams that notify of completed work.
    lanes: Lanes,
}

/// The state shared by all `Device`s opened on one GPU, because they share its memory.
#[derive(Default)]
struct Common {
    maintenance: Maintenance,
    watch: Watch,
    /// Unreported failures to release memory.
    kept: Lock<Vec<DeviceError>>,
    /// The memory of these reports that can be released later.
    kept_memory: Lock<Vec<KeptMemory>>,
    /// The values that the rooms above keep with the GPU.
    extensions: Extensions,
}

/// Memory that could not be released when it was dropped.
pub struct KeptMemory {
    /// Releases it, if the driver allows that. Called only once no work uses it.
    pub give_back: Box<dyn FnMut(&Device) -> bool + Send>,
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
    /// [`DeviceError::Driver`] if the call fails.
    pub fn count(driver: &Driver) -> Result<u32, DeviceError> {
        primary::count(driver)
    }

    /// Opens the device with this ordinal, counted from 0, and retains its primary context.
    ///
    /// The first call for a device creates its context, which takes the vendor's driver a tenth of a second.
    ///
    /// # Errors
    ///
    /// - [`DeviceError::NotFound`] if the driver has no device with this ordinal.
    /// - [`DeviceError::Driver`] if a call fails, for example because the context cannot be created.
    pub fn new(driver: &Driver, ordinal: u32) -> Result<Self, DeviceError> {
        let raw = raw_device(driver, ordinal)?;
        let name = name(driver, raw)?;
        let total_bytes = total_bytes(driver, raw)?;
        let major = attribute(driver, raw, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(driver, raw, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let is_integrated = attribute(driver, raw, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0;
        let compute_capability = (u32::try_from(major).unwrap_or(0), u32::try_from(minor).unwrap_or(0));

        // From here on, every slow path refuses forked children.
        fork::watch();
        let clocks = Clocks::of(driver);
        let mut open = devices_of(clocks.devices());
        // Before the context is retained: an inactive context that is retained here was destroyed.
        open.iter().filter(|open| open.raw() == raw).for_each(|open| _ = open.find_reset());
        // Retained last, so that earlier failures have no context to release.
        let retained = Retained::new(driver, ordinal, raw)?;
        let is_same = |open: &&Self| retained.is_of(open.primary());
        open.iter()
            .filter(|open| open.raw() == raw && !is_same(open))
            .for_each(|open| open.primary().note_reset());
        open.retain(|open| !open.is_reset());
        let known = open.iter().find(is_same).cloned();
        let common = known.as_ref().map_or_else(Arc::default, |open| Arc::clone(&open.0.common));
        let known = known.as_ref().map(Self::primary);
        let device = Self(Arc::new_cyclic(|own| Inner {
            primary: PrimaryContext::new(retained, WeakContext::new(own), known),
            clocks,
            common,
            name,
            total_bytes,
            is_integrated,
            compute_capability,
            lanes: Lanes::default(),
        }));
        device.clocks().add_device(device.primary());
        Ok(device)
    }

    /// The ordinal of this device in the driver.
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        self.primary().ordinal()
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
    /// [`DeviceError::Driver`] if the call fails.
    pub fn attribute(&self, attribute: CUdevice_attribute) -> Result<i32, DeviceError> {
        not_forked()?;
        Ok(self::attribute(self.driver(), self.raw(), attribute)?)
    }

    /// The driver that the device was opened with.
    #[must_use]
    pub fn driver(&self) -> &Driver {
        self.primary().driver()
    }

    /// The driver's handle.
    #[must_use]
    pub fn raw(&self) -> CUdevice {
        self.primary().raw()
    }

    /// The primary context, alive as long as this device.
    #[must_use]
    pub fn context(&self) -> CUcontext {
        self.primary().context()
    }

    /// The free and total memory, as reported by the driver: other pools and processes count.
    ///
    /// An integrated device (Tegra, DGX Spark) uses the host's memory, and the driver counts the system's page cache as used. There, the
    /// free memory is the system's available memory (`MemAvailable` on Linux), because an allocation makes the system give up its page
    /// cache. Swap space does not count. On other systems it is the driver's figure.
    ///
    /// Shares of free memory, `Status` and reports use this figure.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Driver`] if a call fails, [`DeviceError::DeviceLost`] if the context is lost.
    pub fn memory_info(&self) -> Result<MemoryInfo, DeviceError> {
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
    #[doc(hidden)]
    #[inline]
    pub fn is_integrated(&self) -> bool {
        self.0.is_integrated
    }

    /// Makes the context current on this thread until the guard is dropped, which restores the previous context.
    ///
    /// Only raw driver calls need this; the functions of gpumem bind the context themselves.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Driver`] if a call fails, [`DeviceError::DeviceLost`] if the context is lost.
    #[inline]
    pub fn bind(&self) -> Result<ContextGuard<'_>, DeviceError> {
        Ok(self.enter()?)
    }

    /// Switches this thread to the relaxed capture mode until the guard is dropped. In that mode, driver calls that may
    /// wait for the device, such as allocations and kernel loading, do not break a capture.
    ///
    /// Only raw driver calls need this; the functions of gpumem switch the mode themselves.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Driver`] if the call fails.
    pub fn relax(&self) -> Result<CaptureModeGuard<'_>, DeviceError> {
        not_forked()?;
        Ok(CaptureModeGuard::enter_for_user(self.driver())?)
    }

    /// A value that the rooms above keep with the GPU, one of each type. All `Device`s opened on one GPU share it. The first call creates it.
    #[doc(hidden)]
    pub fn extension<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        // Another thread may have held the lock when the process was forked.
        if fork::is_child() { Arc::new(make()) } else { self.0.common.extensions.get(make) }
    }

    /// The error for an object of `found` where an object of this device was expected.
    #[doc(hidden)]
    pub fn mismatch(&self, found: &Self) -> DeviceError {
        let [expected, found] = self.names_apart(found);
        DeviceError::WrongDevice { expected, found }
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

    /// The context and what is known about its loss.
    #[doc(hidden)]
    #[inline]
    pub fn primary(&self) -> &PrimaryContext {
        &self.0.primary
    }

    /// See [`PrimaryContext::enter`].
    #[doc(hidden)]
    #[inline]
    pub fn enter(&self) -> Result<ContextGuard<'_>, DriverError> {
        self.primary().enter()
    }

    /// See [`PrimaryContext::enter_relaxed`].
    #[doc(hidden)]
    #[inline]
    pub fn enter_relaxed(&self) -> Result<(CaptureModeGuard<'_>, ContextGuard<'_>), DriverError> {
        self.primary().enter_relaxed()
    }

    /// See [`PrimaryContext::noting`].
    #[doc(hidden)]
    #[inline]
    pub fn noting<T>(&self, result: Result<T, DriverError>) -> Result<T, DriverError> {
        self.primary().noting(result)
    }

    /// See [`PrimaryContext::find_reset`].
    #[doc(hidden)]
    #[inline]
    pub fn find_reset(&self) -> bool {
        self.primary().find_reset()
    }

    /// True once a call has found that the program reset the device.
    #[doc(hidden)]
    #[inline]
    pub fn is_reset(&self) -> bool {
        self.primary().is_reset()
    }

    /// See [`PrimaryContext::destroy`].
    #[doc(hidden)]
    #[inline]
    pub fn destroy(&self, object: Object) {
        self.primary().destroy(object);
    }

    /// The device that holds a context.
    pub(super) fn of(context: HeldContext) -> Option<Self> {
        context.device().map(Self)
    }

    /// All open devices of the machine, except those that were reset.
    pub(super) fn devices(&self) -> Vec<Self> {
        devices_of(self.clocks().devices())
    }

    /// Returns an error if a device is lost that another device has waited for.
    ///
    /// # Errors
    ///
    /// [`DeviceError::AwaitedDeviceLost`].
    #[inline]
    pub(crate) fn check_awaited(&self) -> Result<(), DeviceError> {
        self.clocks().check_awaited()
    }

    /// Refuses operations of a forked child, and operations on a device that was reset.
    #[doc(hidden)]
    pub fn check_open(&self) -> Result<(), DeviceError> {
        not_forked()?;
        if self.is_reset() { Err(DeviceError::DeviceLost(reset())) } else { Ok(()) }
    }

    #[doc(hidden)]
    #[inline]
    pub fn watch(&self) -> &Watch {
        &self.0.common.watch
    }

    /// The memory that sleeps, of all devices of the machine.
    #[doc(hidden)]
    #[inline]
    pub fn sleepers(&self) -> &Sleepers {
        self.0.clocks.sleepers()
    }

    #[doc(hidden)]
    #[inline]
    pub fn maintenance(&self) -> &Maintenance {
        &self.0.common.maintenance
    }

    /// Stream order and completion, over all streams of the machine.
    #[doc(hidden)]
    #[inline]
    pub fn clocks(&self) -> &Arc<Clocks> {
        &self.0.clocks
    }

    pub(crate) fn lanes(&self) -> &Lanes {
        &self.0.lanes
    }

    #[doc(hidden)]
    #[inline]
    pub fn downgrade(&self) -> WeakDevice {
        WeakDevice(Arc::downgrade(&self.0))
    }
}

impl WeakDevice {
    /// The device, if it is still open.
    #[inline]
    pub fn upgrade(&self) -> Option<Device> {
        self.0.upgrade().map(Device)
    }

    /// True if both are the same device.
    #[inline]
    pub fn is_same(&self, other: &Self) -> bool {
        self.0.ptr_eq(&other.0)
    }
}

impl Opened for Inner {
    fn primary(&self) -> &PrimaryContext {
        &self.primary
    }

    fn note_reset(&self) {
        self.clocks.sleepers().add_reset();
    }

    fn note_lost(&self) {
        self.clocks.captures().slow_path().add_lost();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        let (driver, context, own) =
            (self.primary.driver(), self.primary.context(), self.primary.downgrade());
        if self.primary.lost().is_some() {
            self.clocks.captures().slow_path().remove_lost();
        }
        if self.primary.is_reset() {
            self.clocks.sleepers().remove_reset();
            // All objects are gone. The driver may or may not still count the context as retained; one release too many would destroy the
            // next context.
            return self.clocks.drop_device(&own, context, reset());
        }
        if self.primary.is_replaced() {
            return self.clocks.drop_device(&own, context, reset());
        }
        // Another `Device` of this GPU returns the rest later.
        let has_heir = self.clocks.devices().iter().any(|other| other.context() == context);
        if !has_heir {
            self.release_deferred(&own);
        }
        self.lanes.destroy(driver, context);
        self.clocks.close_device(&own, context);
        if !has_heir {
            self.common.maintenance.end(&self.primary);
        }
        // Objects that host functions dropped are destroyed before their context.
        self.primary.release();
    }
}

impl Inner {
    /// Releases the memory of pools that were dropped while work was queued.
    fn release_deferred(&self, own: &WeakContext) {
        let maintenance = &self.common.maintenance;
        if !maintenance.has_deferred() {
            return;
        }
        let driver = self.primary.driver();
        let bound = at_end(|| ContextGuard::enter(driver, self.primary.context()));
        // SAFETY: the context is current and alive.
        let is_idle = bound.is_some() && at_end(|| unsafe { driver.cuCtxSynchronize() }).is_some();
        if is_idle {
            self.clocks.saw_end(own);
            maintenance.after_wait(&self.primary, &self.clocks);
        }
        // The rest is used by work of other devices, which access the memory over their links. Memory of a lost context is left too, and
        // goes with the context.
        if maintenance.has_deferred() {
            let others = devices_of(self.clocks.devices());
            let waited: Vec<_> = others.into_iter().map(|other| other.finish()).collect();
            if is_idle && waited.iter().all(Result::is_ok) {
                maintenance.finish(driver, &self.clocks);
            }
        }
    }
}

fn devices_of(contexts: Vec<HeldContext>) -> Vec<Device> {
    contexts.into_iter().filter_map(Device::of).collect()
}

/// True if both are one GPU of one driver: such devices share one primary context.
impl PartialEq for Device {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.primary() == other.primary()
    }
}

impl Eq for Device {}

debug_fields!(Device, it, ordinal: it.ordinal(), name: Shown::name(&it.0.name));

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} (device {}, {:.1})",
            Shown::name(&self.0.name),
            self.ordinal(),
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

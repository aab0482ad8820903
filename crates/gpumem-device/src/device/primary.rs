//! [`PrimaryContext`]: the primary context of a GPU as one device has retained it, and what is known about its loss.
//!
//! The clocks and the states of streams use it in place of [`Device`](crate::Device), which is made of both. They hold a device by its
//! [`HeldContext`], or weakly: its end is that of the device.

use super::context::{CaptureModeGuard, ContextGuard, Handle};
use super::objects::{Object, Owned, Refused, at_end};
use crate::error::{DeviceError, RESET, is_over, is_sticky, may_mean_reset, not_forked};
use core::any::Any;
use core::ffi::c_int;
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, Ordering};
use gpumem_sys::types::{CUcontext, CUctx_st, CUdevice};
use gpumem_sys::{Driver, DriverError, fork};
use std::sync::{Arc, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError, Weak};

/// Keeps a context retained: a device, of which this room sees only this.
pub(crate) trait Opened: Any + Send + Sync {
    fn primary(&self) -> &PrimaryContext;

    /// Called once, when a call has found that the program has reset the device.
    fn note_reset(&self);

    /// Called once, when a call has found that the context is lost. A reset is a loss too.
    fn note_lost(&self);
}

/// A device that is kept open.
#[derive(Clone)]
pub(crate) struct HeldContext(Arc<dyn Opened>);

/// A weak reference to a device.
#[derive(Clone)]
pub(crate) struct WeakContext(Weak<dyn Opened>);

/// A context that was retained once.
pub(super) struct Retained {
    driver: Driver,
    ordinal: u32,
    raw: CUdevice,
    context: Handle<CUctx_st>,
    /// The driver's number of the context, never reused; `None` for drivers before CUDA 12.0.
    id: Option<u64>,
}

pub struct PrimaryContext {
    retained: Retained,
    own: WeakContext,
    shared: Arc<GpuState>,
    /// The error that destroyed the context, once a call has returned it.
    lost: OnceLock<DriverError>,
    /// True once a call has found that the program has reset the device. From then on no call uses the context or its objects, whose
    /// handles may have been reused.
    is_reset: AtomicBool,
}

/// The part that all devices opened on one GPU share.
#[derive(Default)]
pub(super) struct GpuState {
    /// Held shared while the host waits for the whole GPU, and exclusively while a capture begins there.
    quiet: RwLock<()>,
    /// Objects that the driver refused to destroy when they were dropped.
    refused: Refused,
}

static WHEN_LOST: OnceLock<fn()> = OnceLock::new();

/// Sets what is called after each loss of a context. The first call counts.
pub(super) fn when_lost(call: fn()) {
    let _ = WHEN_LOST.set(call);
}

/// The number of devices that the driver has.
pub(super) fn count(driver: &Driver) -> Result<u32, DeviceError> {
    not_forked()?;
    let mut count: c_int = 0;
    // SAFETY: `count` outlives the call.
    unsafe { driver.cuDeviceGetCount(&mut count)? };
    Ok(u32::try_from(count).unwrap_or(0))
}

/// The driver's handle of a device. Opens no context.
pub(super) fn raw_device(driver: &Driver, ordinal: u32) -> Result<CUdevice, DeviceError> {
    let count = count(driver)?;
    let index = c_int::try_from(ordinal).ok().filter(|_| ordinal < count);
    let index = index.ok_or(DeviceError::NotFound { ordinal, count, driver: driver.kind() })?;
    let mut raw: CUdevice = 0;
    // SAFETY: `raw` outlives the call.
    unsafe { driver.cuDeviceGet(&mut raw, index)? };
    Ok(raw)
}

impl Retained {
    pub(super) fn new(driver: &Driver, ordinal: u32, raw: CUdevice) -> Result<Self, DriverError> {
        let mut context = core::ptr::null_mut();
        // SAFETY: `context` outlives the call; [`PrimaryContext::release`] has the release.
        unsafe { driver.cuDevicePrimaryCtxRetain(&mut context, raw)? };
        let id = context_id(driver, context);
        Ok(Self { driver: driver.clone(), ordinal, raw, context: Handle(context), id })
    }

    /// True if another device has retained the same context.
    pub(super) fn is_of(&self, other: &PrimaryContext) -> bool {
        self.context.0 == other.context() && self.id == other.retained.id
    }

    /// True if the driver confirms that the context is the one that was retained.
    #[inline]
    fn has_its_context(&self) -> bool {
        match self.id {
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
        let is_same = context == self.context.0 && context_id(driver, context) == self.id;
        release(driver, raw);
        !is_same
    }

    /// True if the device has no primary context now.
    fn is_unused(&self) -> bool {
        let (mut flags, mut is_active) = (0, 1);
        // SAFETY: both outlive the call.
        let asked = unsafe { self.driver.cuDevicePrimaryCtxGetState(self.raw, &mut flags, &mut is_active) };
        asked.is_ok() && is_active == 0
    }
}

impl PrimaryContext {
    /// The context of the device `own`. `known` is another device with the same context, if any.
    pub(super) fn new(retained: Retained, own: WeakContext, known: Option<&Self>) -> Self {
        let shared = known.map_or_else(Arc::default, |known| Arc::clone(&known.shared));
        Self { retained, own, shared, lost: OnceLock::new(), is_reset: AtomicBool::new(false) }
    }

    #[inline]
    pub(crate) fn driver(&self) -> &Driver {
        &self.retained.driver
    }

    pub(crate) fn ordinal(&self) -> u32 {
        self.retained.ordinal
    }

    /// The driver's handle of the device.
    pub(crate) fn raw(&self) -> CUdevice {
        self.retained.raw
    }

    /// The driver's handle of the context, alive as long as this value.
    #[inline]
    pub(crate) fn context(&self) -> CUcontext {
        self.retained.context.0
    }

    pub(crate) fn downgrade(&self) -> WeakContext {
        self.own.clone()
    }

    /// Makes the context current, unless the program has reset the device.
    #[inline]
    pub(crate) fn enter(&self) -> Result<ContextGuard<'_>, DriverError> {
        if self.find_reset() {
            return Err(reset());
        }
        ContextGuard::enter(self.driver(), self.context()).map_err(|error| self.noted(error))
    }

    /// Like [`PrimaryContext::enter`], and in the relaxed capture mode.
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
        if self.lost.set(error).is_ok()
            && let Some(device) = self.own.upgrade()
        {
            device.0.note_lost();
            if let Some(call) = WHEN_LOST.get() {
                call();
            }
        }
    }

    /// Records that the program has reset the device.
    pub(super) fn note_reset(&self) {
        if !self.is_reset.swap(true, Ordering::AcqRel) {
            self.shared.refused.forget();
            if let Some(device) = self.own.upgrade() {
                device.0.note_reset();
            }
            self.lose(reset());
        }
    }

    /// True if the program has reset the device, which is recorded. Calls that name an object of the context ask first: the vendor's driver
    /// dereferences stream handles, and a handle of a former context crashes the process.
    #[inline]
    pub(crate) fn find_reset(&self) -> bool {
        self.is_reset() || (!self.retained.has_its_context() && self.confirm_reset())
    }

    #[cold]
    fn confirm_reset(&self) -> bool {
        let is_gone = self.retained.is_context_replaced();
        if is_gone {
            self.note_reset();
        }
        is_gone
    }

    /// True once a call has found that the program reset the device.
    #[inline]
    pub(crate) fn is_reset(&self) -> bool {
        self.is_reset.load(Ordering::Acquire)
    }

    /// Like [`PrimaryContext::find_reset`], and records nothing.
    pub(super) fn is_replaced(&self) -> bool {
        !self.retained.has_its_context() && self.retained.is_context_replaced()
    }

    /// True if the device has no primary context now, as after a reset.
    #[inline]
    pub fn is_unused(&self) -> bool {
        self.retained.is_unused()
    }

    /// The error that destroyed the context, if a call has returned it.
    #[inline]
    pub fn lost(&self) -> Option<DriverError> {
        if self.is_reset() { Some(reset()) } else { self.lost.get().copied() }
    }

    /// True if the context is lost. Uses a separate query, because the error code of a call may describe only that call.
    pub(crate) fn is_context_gone(&self) -> bool {
        self.loss().is_some()
    }

    /// The error that states that the context is lost, if it is.
    pub(crate) fn loss(&self) -> Option<DriverError> {
        if self.is_reset() {
            return Some(reset());
        }
        let is_lost = |error: &DriverError| is_over(error.code());
        let _bound = match self.enter() {
            Ok(bound) => bound,
            // Tried twice: one failure may concern only this call.
            Err(error) => {
                return Some(error)
                    .filter(|error| is_lost(error) && self.enter().is_err_and(|again| is_lost(&again)));
            }
        };
        loss_of_current(self.driver())
    }

    /// Destroys an object, for a drop, which can return no error. If the driver refuses, a later call does.
    pub(crate) fn destroy(&self, object: Object) {
        if fork::is_child() || self.find_reset() {
            return;
        }
        let (driver, owned) = (self.driver(), Owned { object, context: self.context() });
        self.shared.refused.destroy(driver);
        // A lost context takes its objects along.
        if owned.destroy(driver).is_err() && !self.is_context_gone() {
            self.shared.refused.add(owned);
        }
    }

    /// The objects that the driver refused to destroy.
    pub(super) fn refused(&self) -> &Refused {
        &self.shared.refused
    }

    /// Prevents captures from beginning on the GPU, even if others are active; `None` if one is beginning.
    pub(crate) fn keep_captures_out(&self) -> Option<RwLockReadGuard<'_, ()>> {
        match self.shared.quiet.try_read() {
            Ok(quiet) => Some(quiet),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Held while a capture begins on the GPU; `None` while a wait for the whole GPU begins.
    pub(super) fn try_begin_capture(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        match self.shared.quiet.try_write() {
            Ok(quiet) => Some(quiet),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Releases the context at the end of its device.
    pub(super) fn release(&self) {
        release(self.driver(), self.raw());
    }
}

/// True if both are one GPU of one driver: such devices share one primary context.
impl PartialEq for PrimaryContext {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        core::ptr::eq(self, other)
            || self.context() == other.context()
                && self.driver().is_same_machine(other.driver())
                && self.is_reset() == other.is_reset()
    }
}

impl HeldContext {
    /// The device, if it is of this type.
    pub(super) fn device<D: Opened>(self) -> Option<Arc<D>> {
        let device: Arc<dyn Any + Send + Sync> = self.0;
        device.downcast().ok()
    }
}

impl Deref for HeldContext {
    type Target = PrimaryContext;

    fn deref(&self) -> &PrimaryContext {
        self.0.primary()
    }
}

impl WeakContext {
    pub(super) fn new<D: Opened>(device: &Weak<D>) -> Self {
        Self(device.clone())
    }

    pub(crate) fn upgrade(&self) -> Option<HeldContext> {
        self.0.upgrade().map(HeldContext)
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        core::ptr::addr_eq(self.0.as_ptr(), other.0.as_ptr())
    }
}

/// Releases a context that was retained once for the caller. A failure means that the driver is shutting down or that the context is lost.
fn release(driver: &Driver, raw: CUdevice) {
    // SAFETY: the caller has retained the context.
    at_end(|| driver.destroy(move |driver| unsafe { driver.cuDevicePrimaryCtxRelease_v2(raw) }));
}

/// The error of the current context, if it is lost.
pub(super) fn loss_of_current(driver: &Driver) -> Option<DriverError> {
    let (mut free, mut total) = (0_usize, 0_usize);
    // SAFETY: both outlive the call.
    let answer = unsafe { driver.cuMemGetInfo_v2(&mut free, &mut total) };
    answer.err().filter(|error| is_over(error.code()))
}

/// The error of a device that was reset, when no call has failed.
pub(super) fn reset() -> DriverError {
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

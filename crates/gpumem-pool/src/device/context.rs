//! A device's context, made current on the calling thread for a while.
//!
//! The driver keeps a stack of contexts per thread. [`ContextGuard`] pushes ours unless it is on top already, and pops it when
//! dropped: whatever was current before, nothing included, is current again. Pushing rather than replacing means that
//! the old context is never named again, so it does not matter if its owner destroyed it meanwhile.

use core::fmt;
use core::marker::PhantomData;
use gpumem_sys::types::{CUcontext, CUstreamCaptureMode};
use gpumem_sys::{Driver, DriverError};

/// A device's context is current on this thread for as long as this lives; see [`Device::bind`](crate::Device::bind).
///
/// Guards nest like the driver's own stack: drop the inner one first.
#[must_use = "the context is current only while this lives"]
pub struct ContextGuard<'a> {
    driver: &'a Driver,
    pushed: bool,
    /// The stack belongs to the thread: the guard stays on it.
    _thread: PhantomData<*const ()>,
}

impl<'a> ContextGuard<'a> {
    /// The caller keeps the context alive for as long as the guard lives.
    pub(crate) fn enter(driver: &'a Driver, context: CUcontext) -> Result<Self, DriverError> {
        let mut current = core::ptr::null_mut();
        // SAFETY: `current` outlives the call.
        unsafe { driver.cuCtxGetCurrent(&mut current)? };
        let pushed = current != context;
        if pushed {
            // SAFETY: the context is alive, as every caller promises.
            unsafe { driver.cuCtxPushCurrent_v2(context)? };
        }
        Ok(Self { driver, pushed, _thread: PhantomData })
    }
}

impl Drop for ContextGuard<'_> {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = core::ptr::null_mut();
            // SAFETY: `popped` outlives the call. A failure means that the stack is gone, and so is what we pushed.
            let _ = unsafe { self.driver.cuCtxPopCurrent_v2(&mut popped) };
        }
    }
}

impl fmt::Debug for ContextGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContextGuard").field("pushed", &self.pushed).finish_non_exhaustive()
    }
}

/// While this lives, the driver lets this thread do what a capture anywhere would else forbid, and be broken by: the
/// pool asks about events and makes memory whatever its callers are doing. See [`Device::relax`](crate::Device::relax).
///
/// Guards nest: drop the inner one first.
#[must_use = "it holds only while this lives"]
pub struct CaptureModeGuard<'a> {
    driver: &'a Driver,
    /// What the thread had before; `None` for a driver that is older than capture.
    before: Option<CUstreamCaptureMode>,
    /// The mode belongs to the thread: the guard stays on it.
    _thread: PhantomData<*const ()>,
}

impl<'a> CaptureModeGuard<'a> {
    pub(crate) fn enter(driver: &'a Driver) -> Result<Self, DriverError> {
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        let before = match driver.table().cuThreadExchangeStreamCaptureMode {
            None => None,
            Some(_) => {
                // SAFETY: `mode` outlives the call.
                unsafe { driver.cuThreadExchangeStreamCaptureMode(&mut mode)? };
                Some(mode)
            }
        };
        Ok(Self { driver, before, _thread: PhantomData })
    }
}

impl fmt::Debug for CaptureModeGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relaxed").field("before", &self.before).finish_non_exhaustive()
    }
}

impl Drop for CaptureModeGuard<'_> {
    fn drop(&mut self) {
        if let Some(mut mode) = self.before {
            // SAFETY: `mode` outlives the call. It was the thread's before, so the driver takes it back.
            let _ = unsafe { self.driver.cuThreadExchangeStreamCaptureMode(&mut mode) };
        }
    }
}

/// A handle of the driver's: an opaque name that any thread may pass to the driver.
pub(crate) struct Handle<T>(pub(crate) *mut T);

// SAFETY: the pointer is never followed on our side. The driver documents its entry points as callable from any thread
// with handles made on any other, and it locks what it shares.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: a shared one gives away only the name; two threads that pass it at once are served by the driver's own locks.
unsafe impl<T> Sync for Handle<T> {}

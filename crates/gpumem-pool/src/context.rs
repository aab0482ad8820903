//! A device's context, made current on the calling thread for a while.
//!
//! The driver keeps a stack of contexts per thread. [`Bound`] pushes ours unless it is on top already, and pops it when
//! dropped: whatever was current before, nothing included, is current again. Pushing rather than replacing means that
//! the old context is never named again, so it does not matter if its owner destroyed it meanwhile.

use crate::device::Device;
use core::marker::PhantomData;
use gpumem_sys::DriverError;

/// A device's context is current on this thread for as long as this lives; see [`Device::bind`].
///
/// Guards nest like the driver's own stack: drop the inner one first.
#[derive(Debug)]
#[must_use = "the context is current only while this lives"]
pub struct Bound<'a> {
    device: &'a Device,
    pushed: bool,
    /// The stack belongs to the thread: the guard stays on it.
    _thread: PhantomData<*const ()>,
}

impl<'a> Bound<'a> {
    pub(crate) fn enter(device: &'a Device) -> Result<Self, DriverError> {
        let mut current = core::ptr::null_mut();
        // SAFETY: `current` outlives the call.
        unsafe { device.driver().cuCtxGetCurrent(&mut current)? };
        let pushed = current != device.context();
        if pushed {
            // SAFETY: the device retains its primary context for as long as it lives, and `self` borrows the device.
            unsafe { device.driver().cuCtxPushCurrent_v2(device.context())? };
        }
        Ok(Self { device, pushed, _thread: PhantomData })
    }
}

impl Drop for Bound<'_> {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = core::ptr::null_mut();
            // SAFETY: `popped` outlives the call. A failure means that the stack is gone, and so is what we pushed.
            let _ = unsafe { self.device.driver().cuCtxPopCurrent_v2(&mut popped) };
        }
    }
}

/// A handle of the driver's: an opaque name that any thread may pass to the driver.
pub(crate) struct Handle<T>(pub(crate) *mut T);

// SAFETY: the pointer is never followed on our side. The driver documents its entry points as callable from any thread
// with handles made on any other, and it locks what it shares.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above; two threads that pass the same handle at once are served by the driver's own locks.
unsafe impl<T> Sync for Handle<T> {}

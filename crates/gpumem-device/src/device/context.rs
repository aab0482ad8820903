//! Guards that make a device's context current on the calling thread, or relax its capture mode.
//!
//! The driver keeps a stack of contexts for each thread. [`ContextGuard`] pushes the device's context unless it is on top already, and pops
//! it when dropped, which restores the previous state, including an empty stack. Because it pushes instead of replacing, the previous
//! context is never named again, and its owner may destroy it in the meantime.

use core::cell::Cell;
use core::marker::PhantomData;
use gpumem_sys::types::{CUcontext, CUstreamCaptureMode};
use gpumem_sys::{Driver, DriverError, Table};

/// Keeps a device's context current on this thread; see [`Device::bind`](crate::Device::bind).
///
/// Guards nest like the driver's stack: drop the inner one first.
#[derive(Debug)]
#[must_use = "the context is current only while this lives"]
pub struct ContextGuard<'a> {
    driver: &'a Driver,
    pushed: bool,
    /// The context stack belongs to the thread, so the guard must not be sent.
    _thread: PhantomData<*const ()>,
}

impl<'a> ContextGuard<'a> {
    /// The caller keeps the context alive as long as the guard.
    #[inline]
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
    #[inline]
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = core::ptr::null_mut();
            // SAFETY: `popped` outlives the call.
            let mut pop = || unsafe { self.driver.cuCtxPopCurrent_v2(&mut popped) };
            // The stack of a driver that shuts down is gone. Any other failure may be a one-off, and would leave another device current.
            let _ = pop().or_else(|_| pop());
        }
    }
}

/// Keeps this thread in the relaxed capture mode, in which the driver allows calls that it would otherwise refuse
/// during a capture, and that would break the capture. The pool queries events and allocates memory in this mode,
/// whether its callers capture or not. See [`Device::relax`](crate::Device::relax).
///
/// Guards nest: drop the inner one first.
#[derive(Debug)]
#[must_use = "it holds only while this lives"]
pub struct CaptureModeGuard<'a> {
    driver: &'a Driver,
    /// The thread's previous mode; `None` for a driver older than captures, and within another guard.
    before: Option<CUstreamCaptureMode>,
    /// The previous value of [`RELAXED`], to restore.
    outer: Option<*const Table>,
    /// The mode belongs to the thread, so the guard must not be sent.
    _thread: PhantomData<*const ()>,
}

thread_local! {
    /// The driver in whose relaxed mode this thread is because of a guard that a function of this crate holds, or null.
    static RELAXED: Cell<*const Table> = const { Cell::new(core::ptr::null()) };
}

impl<'a> CaptureModeGuard<'a> {
    /// For the length of one function, whose callees then enter without a driver call.
    #[doc(hidden)]
    pub fn enter(driver: &'a Driver) -> Result<Self, DriverError> {
        let table = core::ptr::from_ref(driver.table());
        if RELAXED.get() == table {
            return Ok(Self { driver, before: None, outer: None, _thread: PhantomData });
        }
        let mut guard = Self::enter_for_user(driver)?;
        guard.outer = Some(RELAXED.replace(table));
        Ok(guard)
    }

    /// For a guard that the program gets. It may drop guards in another order, so nothing depends on this one.
    pub(crate) fn enter_for_user(driver: &'a Driver) -> Result<Self, DriverError> {
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        let before = match driver.table().cuThreadExchangeStreamCaptureMode {
            None => None,
            Some(_) => {
                // SAFETY: `mode` outlives the call.
                unsafe { driver.cuThreadExchangeStreamCaptureMode(&mut mode)? };
                Some(mode)
            }
        };
        Ok(Self { driver, before, outer: None, _thread: PhantomData })
    }
}

impl Drop for CaptureModeGuard<'_> {
    fn drop(&mut self) {
        if let Some(outer) = self.outer {
            RELAXED.set(outer);
        }
        if let Some(mut mode) = self.before {
            // SAFETY: `mode` outlives the call. It is the thread's previous mode, so the driver accepts it.
            let _ = unsafe { self.driver.cuThreadExchangeStreamCaptureMode(&mut mode) };
        }
    }
}

/// An opaque driver handle, which any thread may pass to the driver.
pub struct Handle<T>(pub *mut T);

// SAFETY: this crate never dereferences the pointer. The driver documents its entry points as callable from any thread
// with handles created on any other, and locks its shared state.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: a shared reference gives access to the pointer value only; the driver's locks serve two threads that pass it
// at once.
unsafe impl<T> Sync for Handle<T> {}

//! Result codes, and the text of each thread's last error.

use core::ffi::{CStr, c_char};
use gpumem_pool::sys::text::Shown;
use gpumem_pool::sys::{LoadError, fork};
use gpumem_pool::{DeviceError, Interface, PoolError, not_forked};
use std::any::Any;
use std::cell::RefCell;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The result of a function. After an error, `gpumem_last_error` has the text, and nothing else has changed unless the function says so.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum gpumem_result {
    /// The call succeeded.
    GPUMEM_SUCCESS = 0,
    /// A null pointer, an invalid option or text, or a structure of an unknown size.
    GPUMEM_ERROR_INVALID_ARGUMENT = 1,
    /// A pool or stream that is null, destroyed, or of another type.
    GPUMEM_ERROR_INVALID_HANDLE = 2,
    /// No live block begins at the address: it was freed, or did not come from this library.
    GPUMEM_ERROR_UNKNOWN_ADDRESS = 3,
    /// The device or a limit refused the request. The text is the report, with advice.
    GPUMEM_ERROR_OUT_OF_MEMORY = 4,
    /// The device, the driver, the backend or the kind of memory does not support the call.
    GPUMEM_ERROR_UNSUPPORTED = 5,
    /// There is no driver, or no device with the ordinal.
    GPUMEM_ERROR_NO_DEVICE = 6,
    /// The device's context is lost, and nothing on it can be used. After a reset of the device, new pools work; otherwise restart
    /// the process.
    GPUMEM_ERROR_DEVICE_LOST = 7,
    /// A call of the driver failed.
    GPUMEM_ERROR_DRIVER = 8,
    /// The objects do not belong together or are in the wrong state: another device, a retired stream, a capture.
    GPUMEM_ERROR_STATE = 9,
    /// A defect of this library; the call may have done part of its work.
    GPUMEM_ERROR_PANIC = 10,
    /// An environment variable of gpumem is unknown or has an invalid value. The text names it, and the nearest known name.
    GPUMEM_ERROR_ENVIRONMENT = 11,
    /// The process was forked from one that had opened a driver, which does not work in the child. Start workers with `exec`, such as
    /// Python's `spawn`. Functions that free or destroy succeed there and do nothing.
    GPUMEM_ERROR_FORKED = 12,
}

/// A failed call.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: gpumem_result,
    pub(crate) text: String,
}

pub(crate) type CallResult<T = ()> = Result<T, Failure>;

impl Failure {
    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self { code: gpumem_result::GPUMEM_ERROR_INVALID_ARGUMENT, text: text.into() }
    }

    pub(crate) fn state(text: impl Into<String>) -> Self {
        Self { code: gpumem_result::GPUMEM_ERROR_STATE, text: text.into() }
    }
}

impl From<PoolError> for Failure {
    fn from(error: PoolError) -> Self {
        Self { code: code_of(&error), text: error.to_string() }
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        PoolError::from(error).into()
    }
}

fn code_of(error: &PoolError) -> gpumem_result {
    match error {
        error if error.is_out_of_memory() => gpumem_result::GPUMEM_ERROR_OUT_OF_MEMORY,
        PoolError::Unsupported(_) | PoolError::Device(DeviceError::HostAccess { .. }) => {
            gpumem_result::GPUMEM_ERROR_UNSUPPORTED
        }
        PoolError::Env(_)
        | PoolError::Load(
            LoadError::Env(_)
            | LoadError::UnknownDriver(_)
            | LoadError::SimulatorRequested
            | LoadError::StartDropIn(_),
        ) => gpumem_result::GPUMEM_ERROR_ENVIRONMENT,
        PoolError::Load(_) | PoolError::Device(DeviceError::NotFound { .. }) => {
            gpumem_result::GPUMEM_ERROR_NO_DEVICE
        }
        PoolError::Device(DeviceError::Forked) => gpumem_result::GPUMEM_ERROR_FORKED,
        PoolError::Device(DeviceError::DeviceLost(_) | DeviceError::AwaitedDeviceLost { .. }) => {
            gpumem_result::GPUMEM_ERROR_DEVICE_LOST
        }
        PoolError::Device(
            DeviceError::Driver(_) | DeviceError::HostFunction(_) | DeviceError::Kept { .. },
        )
        | PoolError::Poisoned { .. } => gpumem_result::GPUMEM_ERROR_DRIVER,
        PoolError::Config(_) | PoolError::BadArgument(_) => gpumem_result::GPUMEM_ERROR_INVALID_ARGUMENT,
        _ => gpumem_result::GPUMEM_ERROR_STATE,
    }
}

/// Runs a function of the interface; refuses it in a forked child. An error or a panic becomes the thread's last error.
#[inline]
pub(crate) fn guarded(work: impl FnOnce() -> CallResult) -> gpumem_result {
    caught(|| {
        not_forked()?;
        work()
    })
}

/// Like [`guarded`], for a function that frees or destroys: in a forked child it does nothing, so that the child's end is silent.
#[inline]
pub(crate) fn ending(work: impl FnOnce() -> CallResult) -> gpumem_result {
    if fork::is_child() { gpumem_result::GPUMEM_SUCCESS } else { caught(work) }
}

/// Like [`guarded`], for functions that need no check at the start: `gpumem_alloc` and `gpumem_free` find out in their slow paths that the
/// process was forked, and ending a scope concerns only the thread.
#[inline]
pub(crate) fn caught(work: impl FnOnce() -> CallResult) -> gpumem_result {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => gpumem_result::GPUMEM_SUCCESS,
        Ok(Err(failure)) => remember(failure),
        Err(payload) => remember(panicked(payload)),
    }
}

#[cold]
fn panicked(payload: Box<dyn Any + Send>) -> Failure {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    // Dropping a payload may panic too.
    drop(catch_unwind(AssertUnwindSafe(|| drop(payload))));
    let text = text.unwrap_or_else(|| "without a text".into());
    Failure {
        code: gpumem_result::GPUMEM_ERROR_PANIC,
        text: format!("gpumem has a defect: a panic ({}); please report it", Shown::sentence(&text)),
    }
}

#[cold]
fn remember(failure: Failure) -> gpumem_result {
    let shown = terminated(Interface::C.translate(&failure.text));
    // A thread that is ending can no longer store the text.
    let _ = LAST.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            *last = Last { text: failure.text, shown, wrapped: CString::default() };
        }
    });
    failure.code
}

/// The text as C reads it: a zero byte would end it.
pub(crate) fn terminated(text: String) -> CString {
    CString::new(text).unwrap_or_else(|error| {
        let bytes = error.into_vec().into_iter().filter(|byte| *byte != 0).collect::<Vec<_>>();
        CString::new(bytes).unwrap_or_default()
    })
}

/// The text of this thread's last error. The pointer is valid until the thread's next error.
pub(crate) fn last() -> *const c_char {
    const NONE: &CStr = c"";
    LAST.try_with(|last| last.try_borrow().map_or(NONE.as_ptr(), |last| last.shown.as_ptr()))
        .unwrap_or(NONE.as_ptr())
}

/// Like [`last`], for an interface that wraps this one.
pub(crate) fn last_as(interface: Interface) -> *const c_char {
    let wrapped = |last: &RefCell<Last>| {
        let mut last = last.try_borrow_mut().ok()?;
        last.wrapped = terminated(interface.translate(&last.text));
        Some(last.wrapped.as_ptr())
    };
    LAST.try_with(wrapped).ok().flatten().unwrap_or(last())
}

/// A thread's last error.
#[derive(Default)]
struct Last {
    /// With Rust names, or those of a pool's interface.
    text: String,
    /// With C names.
    shown: CString,
    /// With the names that [`last_as`] was called for.
    wrapped: CString,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::default();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_code_and_a_text() {
        let read = || LAST.with(|last| last.borrow().shown.to_string_lossy().into_owned());
        let number = 7;
        let result = guarded(|| panic!("the number {number}"));
        assert_eq!(result, gpumem_result::GPUMEM_ERROR_PANIC);
        assert!(read().contains("the number 7"), "{}", read());
        assert_eq!(guarded(|| Ok(())), gpumem_result::GPUMEM_SUCCESS);
        assert!(read().contains("the number 7"), "a success leaves the text");
        assert_eq!(guarded(|| Err(Failure::argument("a\0b"))), gpumem_result::GPUMEM_ERROR_INVALID_ARGUMENT);
        assert_eq!(read(), "ab");
    }
}

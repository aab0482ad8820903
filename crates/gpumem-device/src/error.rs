//! [`DeviceError`]: the errors of devices, streams, events and host memory, each with the action to take.

mod capture_error;
mod stream_error;
mod verdict;

pub use capture_error::CaptureError;
pub use stream_error::StreamError;
pub use verdict::Verdict;

use crate::bytes::Bytes;
use core::fmt;
use gpumem_sys::text::{Shown, debug_is_display};
use gpumem_sys::types::CUresult;
use gpumem_sys::{DriverError, DriverKind, fork};

/// An operation on a device failed. The text states the problem, the cause and the action, and `Debug` prints the same text.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The driver has no device with this ordinal. The text says which exist.
    #[error(fmt = not_found)]
    NotFound {
        /// The requested ordinal.
        ordinal: u32,
        /// The number of devices.
        count: u32,
        /// The kind of driver.
        driver: DriverKind,
    },
    /// Two objects that must belong to one device belong to different devices or contexts.
    #[error(
        "expected {}, but this object belongs to {}; create both from one Device",
        Shown::sentence(.expected), Shown::sentence(.found)
    )]
    WrongDevice {
        /// The expected device.
        expected: String,
        /// The actual device or context.
        found: String,
    },
    /// The device does not support this use of the program's own host memory.
    #[error("{} {what}; use {instead}, or copy", Shown::sentence(.device))]
    HostAccess {
        /// The device.
        device: String,
        /// The missing capability, which completes a sentence about the device.
        what: &'static str,
        /// The kind of host memory that may work.
        instead: &'static str,
    },
    /// The elapsed time of an event that records no time was requested.
    #[error("this event records no time; create it with Event::with_timing")]
    Untimed,
    /// The memory sleeps: its contents are not on the device until the pool wakes.
    #[error("the memory of the pool {} sleeps; call Pool::wake before this call", Shown::name(.pool))]
    Asleep {
        /// The name of the pool.
        pool: String,
    },
    /// The call cannot use this stream. Use another stream, another thread or another time, as the text says.
    #[error(transparent)]
    Stream(StreamError),
    /// The call and a capture exclude each other. Call again outside the capture, or capture again.
    #[error(transparent)]
    Capture(CaptureError),
    /// The number of streams that are alive or have unfinished work reached the maximum that can be tracked.
    #[error(
        "too many streams: {limit} are alive or have unfinished work, which is the maximum; drop some, share them, or \
         synchronize the device"
    )]
    TooManyStreams {
        /// The maximum number of streams.
        limit: usize,
    },
    /// The context is lost, because a kernel or the hardware failed, or because the program has reset the device. Nothing on it can be used
    /// or freed. After a reset, a new [`Device`](crate::Device) has a new context.
    #[error(fmt = device_lost)]
    DeviceLost(DriverError),
    /// A device has waited for work of another device that was lost. Such a wait ends as if the work had run, so memory of all devices may
    /// have wrong contents: waits of the host are refused until both devices are closed.
    #[error(
        "device {ordinal} has waited for work of device {awaited}, which is lost ({error}), so memory may have wrong contents; drop everything \
         on both devices before you open them again, or restart the process"
    )]
    AwaitedDeviceLost {
        /// The ordinal of the device that has waited.
        ordinal: u32,
        /// The ordinal of the lost device.
        awaited: u32,
        /// The error with which that device was lost.
        error: DriverError,
    },
    /// The process was forked from one that had opened a driver, which does not work in the child. Drops in the child do nothing.
    #[error("{}", fork::REFUSED)]
    Forked,
    /// Host memory or an imported block was dropped, and waiting for the device failed. The memory stays registered or mapped, because the
    /// device may still use it. The next successful [`Device::synchronize`](crate::Device::synchronize) releases it, except for a
    /// [`HostMemory`](crate::HostMemory) whose elements need a drop, which is leaked. The call that returns this error is correct; repeat
    /// it.
    #[error(
        "{what} at {address:#x} ({}) stays allocated after its drop, because waiting for the device failed ({cause}); end \
         captures of other threads before such a drop, and repeat this call, which reports each case once",
        Bytes(*.size_bytes)
    )]
    Kept {
        /// The kind of memory.
        what: &'static str,
        /// The address of the memory.
        address: u64,
        /// The size of the memory.
        size_bytes: u64,
        /// The error of the failed wait or release.
        cause: DriverError,
    },
    /// The driver permits no call here, as in a host function (`cuLaunchHostFunc`). Drops there are allowed: the memory is returned later.
    #[error(
        "{0}: called from a host function (cuLaunchHostFunc), where the driver allows no calls; let the host function wake another \
         thread, which calls instead"
    )]
    HostFunction(DriverError),
    /// A driver call failed.
    #[error(transparent)]
    Driver(DriverError),
}

debug_is_display!(DeviceError);

impl DeviceError {
    /// True if the driver refused because memory ran out. A smaller request may succeed, or this one after memory is freed.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Driver(error) if Verdict::of(error) == Verdict::Shortage)
    }
}

impl From<DriverError> for DeviceError {
    fn from(error: DriverError) -> Self {
        match error {
            // Any call in a child fails, and the error's text does not explain it.
            _ if fork::is_child() => Self::Forked,
            error if is_sticky(error.code()) => Self::DeviceLost(error),
            error if error.is_not_permitted() => Self::HostFunction(error),
            error => Self::Driver(error),
        }
    }
}

/// The text of [`DeviceError::NotFound`].
fn not_found(ordinal: &u32, count: &u32, driver: &DriverKind, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let devices = match count {
        0 => "no devices".into(),
        1 => "one device, number 0".into(),
        _ => format!("{count} devices, numbered from 0"),
    };
    match driver {
        DriverKind::Sim => write!(
            f,
            "device {ordinal} does not exist: the simulator has {devices}; set GPUMEM_SIM_DEVICES, or the number of devices in \
             its configuration, to {} or more",
            ordinal.saturating_add(1)
        ),
        _ => {
            write!(f, "device {ordinal} does not exist: the driver has {devices}; check CUDA_VISIBLE_DEVICES")
        }
    }
}

/// The text of [`DeviceError::DeviceLost`].
fn device_lost(cause: &DriverError, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match cause.code() {
        RESET => write!(
            f,
            "the device was reset, and the context and everything on it are gone ({cause}); new devices, streams and pools work: replace \
             these, and look for what resets the device (cudaDeviceReset, cuDevicePrimaryCtxReset)"
        ),
        _ => write!(f, "the device's context and everything on it are lost ({cause}); restart the process"),
    }
}

/// The code of a context that was destroyed while in use.
pub const RESET: CUresult = CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED;

/// True for codes that a call may return because the context was destroyed. The codes alone do not prove it: another context may have
/// the old handle after a reset.
pub(crate) fn may_mean_reset(code: CUresult) -> bool {
    [RESET, CUresult::CUDA_ERROR_INVALID_CONTEXT, CUresult::CUDA_ERROR_INVALID_HANDLE].contains(&code)
}

/// Refuses every operation of a forked child. Called before any lock is taken, because a thread that does not exist in the child may hold
/// the lock.
///
/// # Errors
///
/// [`DeviceError::Forked`] in a forked child.
#[doc(hidden)]
#[inline]
pub fn not_forked() -> Result<(), DeviceError> {
    if fork::is_child() { Err(DeviceError::Forked) } else { Ok(()) }
}

/// True if no work can run after this code: the context is lost or destroyed, or the driver is shutting down.
pub(crate) fn is_over(code: CUresult) -> bool {
    is_sticky(code) || OVER.contains(&code)
}

const OVER: [CUresult; 2] = [CUresult::CUDA_ERROR_DEINITIALIZED, CUresult::CUDA_ERROR_INVALID_CONTEXT];

/// True if the driver returns this code because of an active capture.
pub(crate) fn is_of_capture(code: CUresult) -> bool {
    (CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.0..=CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD.0)
        .contains(&code.0)
}

/// True if every later call on the context returns this code again.
#[inline]
pub fn is_sticky(code: CUresult) -> bool {
    STICKY.contains(&code)
}

const STICKY: [CUresult; 16] = [
    CUresult::CUDA_ERROR_ECC_UNCORRECTABLE,
    CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE,
    CUresult::CUDA_ERROR_CONTAINED,
    CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
    CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
    CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED,
    CUresult::CUDA_ERROR_ASSERT,
    CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR,
    CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION,
    CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
    CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE,
    CUresult::CUDA_ERROR_INVALID_PC,
    CUresult::CUDA_ERROR_LAUNCH_FAILED,
    CUresult::CUDA_ERROR_TENSOR_MEMORY_LEAK,
    CUresult::CUDA_ERROR_MPS_CLIENT_TERMINATED,
    CUresult::CUDA_ERROR_EXTERNAL_DEVICE,
];

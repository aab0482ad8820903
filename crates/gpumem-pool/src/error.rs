//! [`PoolError`]: the errors that a correct program can encounter, each with the action to take.

mod bad_argument;
mod capture_error;
pub(crate) mod damage;
mod not_found;
pub(crate) mod out_of_memory;
mod pool_usage;
mod refusal;
mod request_origin;
mod requested;
mod stream_error;
mod unsupported;
mod verdict;

pub use bad_argument::BadArgument;
pub use capture_error::CaptureError;
pub use not_found::NotFound;
pub use out_of_memory::{
    Advice, Attempt, Growth, Holder, OutOfMemory, ProcessUsage, RefusedBy, UnfinishedStream,
};
pub(crate) use out_of_memory::{GrowthLog, LimitExceeded, PoolFacts, Sample};
pub use pool_usage::PoolUsage;
pub(crate) use refusal::Refusal;
pub use request_origin::RequestOrigin;
pub(crate) use requested::Requested;
pub use stream_error::StreamError;
pub use unsupported::Unsupported;
pub(crate) use verdict::Verdict;

use crate::config::{Bytes, ConfigError, MemoryKind};
use core::fmt;
use gpumem_sys::env::EnvError;
use gpumem_sys::text::{Shown, debug_is_display};
use gpumem_sys::types::CUresult;
use gpumem_sys::{DriverError, LoadError, fork};

/// An operation of the pool layer failed. The text states the problem, the cause and the action, and `Debug` prints the same
/// text.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The device could not serve the request, even after the pool released and reclaimed everything it could. No limit refused it. The
    /// device may still have memory that is fragmented, pending or withheld; the report's advice names the most likely remedy.
    #[error(fmt = fmt::Display::fmt)]
    OutOfMemory(Box<OutOfMemory>),
    /// The request is larger than the device's memory, so a retry never succeeds. Unified memory may exceed the device
    /// (the option `oversubscribe:true`).
    #[error(fmt = too_large)]
    TooLarge {
        /// The requested size.
        requested_bytes: u64,
        /// The device's total memory.
        device_bytes: u64,
        /// The device and pool of the request, added by the pool; `None` in an adaptor's own error.
        origin: Option<Box<RequestOrigin>>,
        /// The refusals of other pools that adaptors turned to ([`Fallback`](crate::adaptor::Fallback)), in order. Empty in an adaptor's
        /// own error.
        fallbacks: Vec<String>,
    },
    /// A hard limit, a quota, the margin of unified memory or the budget of an adaptor refused the request
    /// ([`OutOfMemory::refused_by`]), even after the pool released and reclaimed everything it could. Freeing memory or raising the limit
    /// helps.
    #[error(fmt = fmt::Display::fmt)]
    LimitReached(Box<OutOfMemory>),
    /// An adaptor refused the request.
    #[error(
        "the adaptor `{}` refused {}{}: it {}",
        Shown::name(.adaptor),
        Requested(*.requested_bytes),
        origin.as_ref().map_or_else(String::new, |origin| format!(" ({origin})")),
        Shown::sentence(.reason)
    )]
    Refused {
        /// The name of the adaptor.
        adaptor: String,
        /// The size requested of the adaptor.
        requested_bytes: u64,
        /// The adaptor's reason, which completes a sentence that begins with "it".
        reason: String,
        /// The device and pool of the request, added by the pool; `None` in an adaptor's own error.
        origin: Option<Box<RequestOrigin>>,
    },
    /// The request exceeds the maximum that the growable block was created with.
    #[error(
        "{} requested of a growable block of the pool {} whose maximum is {}; {}",
        Requested(*.requested_bytes), Shown::name(.pool), Bytes(*.maximum_bytes), beyond_maximum(*.requested_bytes)
    )]
    BeyondMaximum {
        /// The name of the pool.
        pool: String,
        /// The requested size.
        requested_bytes: u64,
        /// The maximum given to [`Pool::growable`](crate::Pool::growable).
        maximum_bytes: u64,
    },
    /// An argument is wrong: correct the call.
    #[error(transparent)]
    BadArgument(BadArgument),
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
    /// The call names a device or a part that does not exist. The text says which exist.
    #[error(transparent)]
    NotFound(NotFound),
    /// A named option is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A `GPUMEM_…` environment variable is invalid.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// This pool, device, driver or build cannot do it. Use the alternative that the text names.
    #[error(transparent)]
    Unsupported(Unsupported),
    /// The memory sleeps ([`Pool::sleep`](crate::Pool::sleep)): its contents are not on the device.
    #[error("the memory of the pool {} sleeps; call Pool::wake before this call", Shown::name(.pool))]
    Asleep {
        /// The name of the pool.
        pool: String,
    },
    /// The pool cannot go to sleep now, or another thread is changing whether it sleeps.
    #[error("the pool {} cannot sleep: {reason}; {remedy}", Shown::name(.pool))]
    CannotSleep {
        /// The name of the pool.
        pool: String,
        /// The reason, as a sentence.
        reason: &'static str,
        /// The action that helps.
        remedy: &'static str,
    },
    /// The device already has a default pool, which can be set only once.
    #[error(
        "device {ordinal} already has a default pool; call Pool::set_default before anything calls Pool::for_device, or use \
         Pool::for_device"
    )]
    DefaultAlreadySet {
        /// The ordinal of the device.
        ordinal: u32,
    },
    /// The call cannot use this stream. Use another stream, another thread or another time, as the text says.
    #[error(transparent)]
    Stream(StreamError),
    /// The call and a capture exclude each other. Call again outside the capture, or capture again.
    #[error(transparent)]
    Capture(CaptureError),
    /// The number of streams that are alive or have unfinished work reached the maximum that the pool layer can track.
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
    /// A block that has since been freed was overwritten beyond its ends. The current request is correct.
    #[error(
        "{0}; to find the kernel or copy that wrote there, drop the block after a part of the work, synchronize, and \
         call `Guard::settle`, which returns the damage if that part did it; or use compute-sanitizer"
    )]
    Damaged(Box<damage::Damage>),
    /// An earlier free failed, so the pool's bookkeeping and the driver's differ. The block was leaked rather than
    /// reused.
    #[error(
        "the pool {} is unusable: freeing {} at {address:#x} failed ({cause}), and the block was leaked; create a new pool, \
         and check what else frees memory or resets the device",
        Shown::name(.pool), Bytes(*.size_bytes)
    )]
    Poisoned {
        /// The name of the pool.
        pool: String,
        /// The address of the block.
        address: u64,
        /// The size of the block.
        size_bytes: u64,
        /// The driver's error.
        cause: DriverError,
    },
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
    /// No driver could be loaded.
    #[error(transparent)]
    Load(LoadError),
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

// The results of hot calls carry it.
const _: () = assert!(size_of::<PoolError>() <= 80);

impl PoolError {
    /// The operation exists only for device memory.
    pub(crate) fn not_with_kind(kind: MemoryKind, what: &'static str) -> Self {
        Self::Unsupported(Unsupported::OnKind { kind, what, instead: "`device`" })
    }

    /// The request is larger than the device. The pool adds the origin.
    pub(crate) fn too_large(requested_bytes: u64, device_bytes: u64) -> Self {
        Self::TooLarge { requested_bytes, device_bytes, origin: None, fallbacks: Vec::new() }
    }

    /// Picks the variant for a report: [`PoolError::LimitReached`] if a limit refused, otherwise [`PoolError::OutOfMemory`].
    pub(crate) fn refused(report: OutOfMemory) -> Self {
        match report.limit_bytes {
            Some(_) => Self::LimitReached(Box::new(report)),
            None => Self::OutOfMemory(Box::new(report)),
        }
    }

    /// The refusal of a budget, for adaptors: `in_use_bytes` count against the budget, and the request would add `requested_bytes`. The
    /// pool adds its figures to the report when the request leaves its adaptors, unless the budget has been raised or a reclaim callback
    /// has freed memory by then.
    #[must_use]
    pub fn over_budget(
        name: Option<&str>,
        requested_bytes: u64,
        in_use_bytes: u64,
        limit_bytes: u64,
    ) -> Self {
        let mut report = OutOfMemory { requested_bytes, ..OutOfMemory::default() };
        report.limit_name = name.map(Into::into);
        report.set_limit(
            LimitExceeded { by: RefusedBy::Budget, owner: None, limit_bytes, held_bytes: in_use_bytes },
            0,
        );
        Self::LimitReached(Box::new(report))
    }

    /// The report of a request that was refused because memory, a limit or a budget ran out; `None` for other errors.
    #[must_use]
    pub fn out_of_memory(&self) -> Option<&OutOfMemory> {
        match self {
            Self::OutOfMemory(report) | Self::LimitReached(report) => Some(report),
            _ => None,
        }
    }

    /// True if memory ran out or the size was refused, by the device, a limit, a quota, a budget or an adaptor. A smaller request may
    /// succeed, or this one after memory is freed. [`PoolError::out_of_memory`] has the report, if any.
    ///
    /// ```
    /// use gpumem_pool::{Device, Limit, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let pool = Pool::builder(&device).hard_limit(Limit::Bytes(64 << 20)).build()?;
    /// let stream = Stream::new(&device)?;
    /// let mut size_bytes = 1 << 30;
    /// let block = loop {
    ///     match pool.alloc(size_bytes, &stream) {
    ///         Err(error) if error.is_out_of_memory() => size_bytes /= 2,
    ///         outcome => break outcome?,
    ///     }
    /// };
    /// assert!(block.size_bytes() >= 32 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::BeyondMaximum { .. } | Self::Refused { .. } => true,
            Self::Driver(error) => Verdict::of(error) == Verdict::Shortage,
            error => error.is_want_of_memory(),
        }
    }

    /// True if the size was refused, for any reason. A smaller request, or other memory, may succeed.
    pub(crate) fn is_want_of_memory(&self) -> bool {
        matches!(self, Self::TooLarge { .. }) || self.out_of_memory().is_some()
    }

    /// Adds the headline of a refusal by the pool that should have served the request instead, if this error is about a lack of memory.
    pub(crate) fn add_fallback(&mut self, refusal: &Self) {
        let headline = refusal.to_string().lines().next().unwrap_or_default().to_owned();
        match self {
            Self::TooLarge { fallbacks, .. } => fallbacks.push(headline),
            error => {
                if let Some(report) = error.out_of_memory_mut() {
                    report.fallbacks.push(headline);
                }
            }
        }
    }

    pub(crate) fn out_of_memory_mut(&mut self) -> Option<&mut OutOfMemory> {
        match self {
            Self::OutOfMemory(report) | Self::LimitReached(report) => Some(report),
            _ => None,
        }
    }
}

/// The text of [`PoolError::DeviceLost`].
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
pub(crate) const RESET: CUresult = CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED;

/// True for codes that a call may return because the context was destroyed. The codes alone do not prove it: another context may have
/// the old handle after a reset.
pub(crate) fn may_mean_reset(code: CUresult) -> bool {
    [RESET, CUresult::CUDA_ERROR_INVALID_CONTEXT, CUresult::CUDA_ERROR_INVALID_HANDLE].contains(&code)
}

/// The text of [`PoolError::TooLarge`].
fn too_large(
    requested_bytes: &u64,
    device_bytes: &u64,
    origin: &Option<Box<RequestOrigin>>,
    fallbacks: &[String],
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let device = match origin {
        Some(origin) => format!("{} ({origin})", Bytes(*device_bytes)),
        None => Bytes(*device_bytes).to_string(),
    };
    let requested = Requested(*requested_bytes);
    write!(f, "{requested} requested, but the device has only {device}")?;
    match requested.is_miscomputed() {
        true => write!(f, ": {}", requested.miscomputed()),
        false => f.write_str("; split the data into smaller blocks"),
    }?;
    out_of_memory::list_fallbacks(fallbacks, f)
}

/// The action for [`PoolError::BeyondMaximum`].
fn beyond_maximum(requested_bytes: u64) -> String {
    let requested = Requested(requested_bytes);
    if requested.is_miscomputed() {
        requested.miscomputed()
    } else {
        "give Pool::growable a larger maximum, which reserves only addresses".into()
    }
}

debug_is_display!(PoolError);

impl From<DriverError> for PoolError {
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

impl From<LoadError> for PoolError {
    fn from(error: LoadError) -> Self {
        if matches!(error, LoadError::Forked) { Self::Forked } else { Self::Load(error) }
    }
}

/// Refuses every operation of a forked child. Called before any lock is taken, because a thread that does not exist in the child may hold
/// the lock.
///
/// # Errors
///
/// [`PoolError::Forked`] in a forked child.
#[doc(hidden)]
#[inline]
pub fn not_forked() -> Result<(), PoolError> {
    if fork::is_child() { Err(PoolError::Forked) } else { Ok(()) }
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
pub(crate) fn is_sticky(code: CUresult) -> bool {
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

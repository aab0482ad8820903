//! [`PoolError`]: the errors that a correct program can encounter, each with the action to take.

mod bad_argument;
pub(crate) mod damage;
mod no_room;
pub(crate) mod out_of_memory;
mod pool_usage;
mod refusal;
mod request_origin;
mod requested;
mod unsupported;

pub use bad_argument::BadArgument;
pub use no_room::NoRoom;
pub use out_of_memory::{
    Advice, Attempt, Growth, Holder, KeptArrays, KeptBy, OutOfMemory, ProcessUsage, RefusedBy,
    SpillFileReport, SpillReport, UnfinishedStream,
};
pub(crate) use out_of_memory::{GrowthLog, LimitExceeded, PoolFacts, Sample};
pub use pool_usage::PoolUsage;
pub(crate) use refusal::Refusal;
pub use request_origin::RequestOrigin;
pub(crate) use requested::Requested;
pub use unsupported::Unsupported;

use crate::config::{BackendKind, ConfigError, MemoryKind, PoolName};
use core::fmt;
use gpumem_device::{Bytes, DeviceError, HostMemoryError};
use gpumem_sys::env::EnvError;
use gpumem_sys::text::{self, Shown, debug_is_display};
use gpumem_sys::{DriverError, LoadError};

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
    /// There was no room for a request of [`Pool::room`](crate::Pool::room) before its deadline, or there can be none.
    #[error(transparent)]
    NoRoom(Box<NoRoom>),
    /// An argument is wrong: correct the call.
    #[error(transparent)]
    BadArgument(BadArgument),
    /// The pool has no part with this name.
    #[error("the pool {} has no part {:?}; {}", Shown::name(.pool), Shown::name(.part), parts_there(.parts))]
    NotFound {
        /// The name of the pool.
        pool: String,
        /// The name of the part.
        part: String,
        /// The names of its parts.
        parts: Vec<String>,
    },
    /// A named option is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A `GPUMEM_…` environment variable is invalid.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// This pool, device, driver or build cannot do it. Use the alternative that the text names.
    #[error(transparent)]
    Unsupported(Unsupported),
    /// The contents of an array could not be read back from the file that they have moved to. They are still there: repeat the operation once
    /// the disk can be read.
    #[error("{} of an array could not be read back from the file that they moved to: {}; repeat the operation once the disk can be read", Bytes(*.size_bytes), Shown::sentence(.reason))]
    SpillFile {
        /// The size of the array.
        size_bytes: u64,
        /// The error of the file system, with the directory.
        reason: String,
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
    /// No driver could be loaded.
    #[error(transparent)]
    Load(LoadError),
    /// An operation on a device, a stream, an event or host memory failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

// The results of hot calls carry it.
const _: () = assert!(size_of::<PoolError>() <= 80);

impl PoolError {
    pub(crate) fn not_on(backend: BackendKind, what: &'static str, instead: &'static str) -> Self {
        Self::Unsupported(Unsupported::OnBackend { backend, what, instead })
    }

    pub(crate) fn not_with_kind(kind: MemoryKind, what: &'static str) -> Self {
        Self::Unsupported(Unsupported::OnKind { kind, what, instead: "`device`" })
    }

    /// The request is larger than the device. The pool adds the origin.
    pub(crate) fn too_large(requested_bytes: u64, device_bytes: u64) -> Self {
        Self::TooLarge { requested_bytes, device_bytes, origin: None, fallbacks: Vec::new() }
    }

    /// The pool cannot go to sleep now.
    pub(crate) fn cannot_sleep(pool: &PoolName, reason: &'static str, remedy: &'static str) -> Self {
        Self::CannotSleep { pool: pool.as_str().into(), reason, remedy }
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
            Self::BeyondMaximum { .. } | Self::Refused { .. } | Self::NoRoom(_) => true,
            Self::Device(error) => error.is_out_of_memory(),
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
        Self::Device(error.into())
    }
}

impl<V> From<HostMemoryError<V>> for PoolError {
    fn from(error: HostMemoryError<V>) -> Self {
        Self::Device(error.into())
    }
}

impl From<LoadError> for PoolError {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Forked => Self::Device(DeviceError::Forked),
            error => Self::Load(error),
        }
    }
}

fn parts_there(parts: &[String]) -> String {
    match parts {
        [] => "it has none: call Pool::part first".into(),
        _ => format!("its parts are {}", text::list(parts.iter().map(String::as_str))),
    }
}

//! [`PoolError`]: what a correct program can meet, and what it can do then.

pub(crate) mod damage;
pub(crate) mod out_of_memory;

pub use out_of_memory::{
    Advice, Attempt, Growth, Holder, OutOfMemory, ProcessUsage, RefusedBy, UnfinishedStream,
};
pub(crate) use out_of_memory::{GrowthLog, LimitExceeded, Maker, Sample};

use crate::config::{ALIGNMENT_MIN, BackendKind, Bytes, ConfigError, MemoryKind};
use gpumem_sys::env::EnvError;
use gpumem_sys::types::CUresult;
use gpumem_sys::{DriverError, LoadError};

/// Something in this layer failed. The text says what to do next.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The device is full, after everything that could be given back was. Freeing something, here or elsewhere, may help;
    /// the report says what most likely does.
    #[error("{0}")]
    OutOfMemory(Box<OutOfMemory>),
    /// Larger than the device. Trying again never helps. Unified memory may be
    /// ([`PoolBuilder::oversubscribe`](crate::PoolBuilder::oversubscribe)).
    #[error(
        "{} requested, more than the {} that the device has; split the data",
        Bytes(*.requested_bytes), Bytes(*.device_bytes)
    )]
    TooLarge {
        /// What was asked for.
        requested_bytes: u64,
        /// All the device has.
        device_bytes: u64,
    },
    /// A hard limit refused it, after everything that could be given back was. Freeing something, or raising the limit,
    /// helps.
    #[error("{0}")]
    LimitReached(Box<OutOfMemory>),
    /// The budget of an adaptor refused it. Freeing something, or raising the budget, helps.
    #[error(
        "a budget of {} refused {} with {} in use; drop arrays, or raise it with Budget::set_limit",
        Bytes(*.limit_bytes), Bytes(*.requested_bytes), Bytes(*.in_use_bytes)
    )]
    OverBudget {
        /// What was asked for, rounded up as it is counted.
        requested_bytes: u64,
        /// Counted against the budget at that moment.
        in_use_bytes: u64,
        /// The budget.
        limit_bytes: u64,
    },
    /// Somebody wrote past an end of a block that has been freed since. Nothing is wrong with this request.
    #[error(
        "{0}; look for the kernel or copy that did it, with compute-sanitizer or `Guard::settle` after each"
    )]
    Damaged(damage::Damage),
    /// An adaptor refused it.
    #[error("the adaptor `{adaptor}` refused {}: it {reason}", Bytes(*.requested_bytes))]
    Refused {
        /// The adaptor's name.
        adaptor: String,
        /// What was asked of it.
        requested_bytes: u64,
        /// What it did, as the end of a sentence.
        reason: String,
    },
    /// An alignment that no block can have.
    #[error("{alignment} is no alignment: use a power of two up to {largest}")]
    BadAlignment {
        /// What was asked for.
        alignment: u64,
        /// The largest there is.
        largest: u64,
    },
    /// A growable block was made for less.
    #[error(
        "{} requested of a growable block that was made for {}; ask Pool::growable for more addresses, which cost nothing",
        Bytes(*.requested_bytes), Bytes(*.maximum_bytes)
    )]
    BeyondMaximum {
        /// What was asked for.
        requested_bytes: u64,
        /// What it was made for.
        maximum_bytes: u64,
    },
    /// This backend has no way to do it; another one has.
    #[error("the backend `{backend}` can't {what}; use the backend {instead}")]
    NotWithBackend {
        /// The pool's backend.
        backend: BackendKind,
        /// What was asked for.
        what: &'static str,
        /// The backends that can.
        instead: &'static str,
    },
    /// The pool is over plain segments, because the driver has no virtual memory or because that was asked for.
    #[error(
        "a pool over plain segments can't {what}: that takes virtual memory management; use a driver and a device that \
         have it, and no PoolBuilder::plain_segments"
    )]
    NeedsVirtualMemory {
        /// What was asked for.
        what: &'static str,
    },
    /// Memory of this kind has no such thing.
    #[error("memory of the kind `{kind}` can't {what}; use a pool of the kind {instead}")]
    NotWithKind {
        /// The pool's kind.
        kind: MemoryKind,
        /// What was asked for.
        what: &'static str,
        /// The kinds that can.
        instead: &'static str,
    },
    /// This device or its driver has no memory of the kind.
    #[error("there is no memory of the kind `{kind}` here ({reason}); use `device` or `host`")]
    KindUnsupported {
        /// What was asked for.
        kind: MemoryKind,
        /// What is missing.
        reason: String,
    },
    /// The device has no way to use the program's own memory like that.
    #[error("{device} {what}; use {instead}, or copy")]
    NoHostAccess {
        /// Which.
        device: String,
        /// What it lacks.
        what: &'static str,
        /// What it may have.
        instead: &'static str,
    },
    /// The block's pool was not made for other processes.
    #[error(
        "this block can't be exported: make its pool with PoolBuilder::exportable, and the backend `caching`"
    )]
    NotExportable,
    /// A part of a block that is not within it.
    #[error("bytes {start} to {end} are not within the {size_bytes} bytes of the block")]
    OutOfBounds {
        /// Where the part was to start.
        start: u64,
        /// Where it was to end.
        end: u64,
        /// What the block has.
        size_bytes: u64,
    },
    /// Nothing connects the two devices so that one could use the other's memory.
    #[error("{peer} can't use the memory of {device}: they have no link; copy through the host")]
    NoPeerAccess {
        /// Whose memory it is.
        device: String,
        /// Who was to use it.
        peer: String,
    },
    /// A hard limit or a quota that nothing useful fits into.
    #[error(
        "a hard limit or quota of {} leaves room for nothing: the least is {}; raise it where it was set, by \
         GPUMEM_HARD_LIMIT, PoolBuilder::hard_limit, Pool::private or Pool::set_hard_limit",
        Bytes(*.limit_bytes), Bytes(*.minimum_bytes)
    )]
    LimitTooSmall {
        /// What was given, in bytes of this device.
        limit_bytes: u64,
        /// The smallest that is accepted.
        minimum_bytes: u64,
    },
    /// The backend exists, but this program was built without it.
    #[error(
        "this program was built without the backend `{backend}`; enable the feature `{feature}`, or use `none`"
    )]
    BackendNotBuilt {
        /// What was asked for.
        backend: BackendKind,
        /// The cargo feature that builds it.
        feature: &'static str,
    },
    /// The backend is built, but this device or its driver can't carry it.
    #[error(
        "the backend `{backend}` does not work here ({reason}); update the driver, or use the backend `none`"
    )]
    BackendUnsupported {
        /// What was asked for.
        backend: BackendKind,
        /// What is missing.
        reason: String,
    },
    /// The driver has fewer devices.
    #[error(
        "there is no device {ordinal}: the driver has {count}, counted from 0; check CUDA_VISIBLE_DEVICES"
    )]
    NoSuchDevice {
        /// What was asked for.
        ordinal: u32,
        /// How many there are.
        count: u32,
    },
    /// Two things that must be on one device are not.
    #[error("{expected} was expected, and this belongs to {found}; make both from the same Device")]
    WrongDevice {
        /// Where it should have been.
        expected: String,
        /// Where it is.
        found: String,
    },
    /// As many streams of this machine are alive, or have work left, as can be kept apart.
    #[error(
        "{limit} streams are alive or have work left, and more can't be kept apart; drop some, share them, or synchronize \
         the device"
    )]
    TooManyStreams {
        /// How many there may be.
        limit: usize,
    },
    /// The stream's owner was about to destroy it.
    #[error("this stream was retired: its owner destroys it; wrap another one")]
    StreamRetired,
    /// A thread's own default stream, named on another thread.
    #[error("this is another thread's default stream; use it there, or make a stream with Stream::new")]
    WrongThread,
    /// It can't be part of a graph, and a capture goes on. The capture is as it was.
    #[error("{operation} can't be part of a graph; do it before the capture begins or after it ends")]
    NotInCapture {
        /// What was asked for.
        operation: &'static str,
    },
    /// A call that can't be part of a graph was made in the capture, and broke it.
    #[error(
        "this capture is broken: something was called in it that can't be part of a graph; end it, and capture again \
         without that call"
    )]
    CaptureBroken,
    /// A stream joined the capture and was not waited for before its end.
    #[error(
        "this capture gave no graph: a stream that joined it has work that nothing waits for; make the stream that \
         captures wait for it before the end"
    )]
    CaptureUnjoined,
    /// A time was asked of an event that keeps none.
    #[error("this event keeps no time; make it with Event::with_timing")]
    NotTimed,
    /// The context is dead: a kernel failed, or the hardware did. Nothing on it can be used or freed any more.
    #[error("the device's context is lost ({0}); nothing on it can be saved, restart the process")]
    DeviceLost(DriverError),
    /// A free failed earlier, so the pool's books and the driver's disagree. The block was leaked rather than reused.
    #[error(
        "this pool can't be used any more: freeing {} at {address:#x} failed ({cause}), and the block was leaked; make a \
         new pool, and check what else frees or resets things on this device",
        Bytes(*.size_bytes)
    )]
    Poisoned {
        /// The block's address.
        address: u64,
        /// Its size.
        size_bytes: u64,
        /// What the driver said.
        cause: DriverError,
    },
    /// Host memory or an imported block was dropped, and the device could not be waited for. The memory stays registered or
    /// mapped rather than being given back under use. The next [`Device::synchronize`](crate::Device::synchronize) that succeeds
    /// gives a [`HostMemory`](crate::HostMemory) back whose elements have no drop; other memory is leaked. Nothing is wrong with
    /// this call: repeat it.
    #[error(
        "{what} at {address:#x} ({}) was kept when it was dropped, because the device could not be waited for ({cause}); end \
         captures of other threads before such a drop, and repeat this call, which reports each case once",
        Bytes(*.size_bytes)
    )]
    Kept {
        /// The kind of memory.
        what: &'static str,
        /// Its address.
        address: u64,
        /// Its size.
        size_bytes: u64,
        /// What kept the wait, or the return, from succeeding.
        cause: DriverError,
    },
    /// There is no driver to use.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Options by name that can't be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The environment holds something of ours that can't be used.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// The driver refused a call.
    #[error(transparent)]
    Driver(DriverError),
}

impl PoolError {
    /// Of something that only the device's own memory has.
    pub(crate) fn not_with_kind(kind: MemoryKind, what: &'static str) -> Self {
        Self::NotWithKind { kind, what, instead: "`device`" }
    }

    /// By whom the request was refused that this report is of.
    pub(crate) fn refused(report: OutOfMemory) -> Self {
        match report.limit_bytes {
            Some(_) => Self::LimitReached(Box::new(report)),
            None => Self::OutOfMemory(Box::new(report)),
        }
    }

    /// The same with a report that says what the request was before its backend added to it.
    pub(crate) fn aligned(mut self, size_bytes: u64, alignment: u64) -> Self {
        if let Some(report) = self.out_of_memory_mut()
            && alignment > ALIGNMENT_MIN
        {
            (report.requested_bytes, report.alignment) = (size_bytes, alignment);
        }
        self
    }

    /// Takes what its report says was tried.
    pub(crate) fn take_attempts(&mut self) -> Vec<Attempt> {
        self.out_of_memory_mut().map(|report| core::mem::take(&mut report.attempts)).unwrap_or_default()
    }

    /// The same with a report that says what was tried.
    pub(crate) fn after(mut self, attempts: Vec<Attempt>) -> Self {
        if let Some(report) = self.out_of_memory_mut() {
            report.attempts = attempts;
        }
        self
    }

    /// The report of a request that was refused for want of memory; nothing for any other error.
    #[must_use]
    pub fn out_of_memory(&self) -> Option<&OutOfMemory> {
        match self {
            Self::OutOfMemory(report) | Self::LimitReached(report) => Some(report),
            _ => None,
        }
    }

    /// Whether memory was refused, for whatever reason: another size, or memory from elsewhere, may do.
    pub(crate) fn is_want_of_memory(&self) -> bool {
        matches!(self, Self::TooLarge { .. } | Self::OverBudget { .. }) || self.out_of_memory().is_some()
    }

    pub(crate) fn out_of_memory_mut(&mut self) -> Option<&mut OutOfMemory> {
        match self {
            Self::OutOfMemory(report) | Self::LimitReached(report) => Some(report),
            _ => None,
        }
    }
}

impl From<DriverError> for PoolError {
    fn from(error: DriverError) -> Self {
        if is_sticky(error.code()) { Self::DeviceLost(error) } else { Self::Driver(error) }
    }
}

/// Whether the code says that no work runs any more: the context is lost or destroyed, or the driver shuts down.
pub(crate) fn is_over(code: CUresult) -> bool {
    is_sticky(code) || OVER.contains(&code)
}

const OVER: [CUresult; 2] = [CUresult::CUDA_ERROR_DEINITIALIZED, CUresult::CUDA_ERROR_INVALID_CONTEXT];

/// Whether the code is the driver's answer for a capture that is in the way.
pub(crate) fn is_of_capture(code: CUresult) -> bool {
    (CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.0..=CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD.0)
        .contains(&code.0)
}

/// Whether the code stays with the context: every later call on it returns the same.
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

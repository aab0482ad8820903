//! [`Setup`]: the settings of a replay.

use crate::error::named;
use crate::trace::Trace;
use core::str::FromStr;
use core::time::Duration;
use gpumem_pool::sys::Driver;
use gpumem_pool::{BackendKind, Limit, PoolError};

/// The owner of the streams of a replay: the pool's crate, or another library.
///
/// Streams of another library are created with the driver, wrapped once, and named in each call as in PyTorch's allocator interface:
/// allocation and free name the block's stream, and a block that another stream still uses is recorded on that stream before its free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamKind {
    /// The pool's crate.
    #[default]
    Own,
    /// Another library, which may destroy the streams at any time: [`StreamBuilder::wrap`](gpumem_pool::StreamBuilder::wrap).
    Foreign,
    /// Another library, which keeps the streams alive as long as the device: [`StreamBuilder::wrap_long_lived`](gpumem_pool::StreamBuilder::wrap_long_lived).
    LongLived,
}

impl StreamKind {
    /// All kinds, by name.
    pub const ALL: [(&str, Self); 3] =
        [("own", Self::Own), ("foreign", Self::Foreign), ("long-lived", Self::LongLived)];
}

named!(StreamKind, "kind of streams", "own, foreign or long-lived");

/// Selects whether the pool may make a stream wait for another one to reuse its memory. Such waits are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Waits {
    /// If the profile or an option inserts waits, as in a program.
    #[default]
    Profile,
    /// Always.
    On,
    /// Never: the streams allow no waits.
    Off,
}

impl Waits {
    /// All, by name.
    pub const ALL: [(&str, Self); 3] = [("profile", Self::Profile), ("on", Self::On), ("off", Self::Off)];
}

named!(Waits, "choice of waits", "profile, on or off");

/// The settings of a replay.
///
/// ```
/// use gpumem_trace::pool::BackendKind;
/// use gpumem_trace::{Setup, StreamKind, Trace, replay};
///
/// let driver = gpumem_sim::driver(gpumem_sim::SimConfig::h200())?;
/// let setup = Setup {
///     backend: Some(BackendKind::None),
///     hard_limit: Some("8GiB".parse()?),
///     streams: StreamKind::Foreign,
///     ..Setup::default()
/// };
/// let trace = Trace::read_from(&b"#{\"format\":1}\na,1,4194304,0\nf,1,0\n"[..], "small")?;
/// let outcome = replay(&trace, &driver, &setup, |_| ())?;
/// assert_eq!(outcome.backend, BackendKind::None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// The pool's backend; the default one if `None`.
    pub backend: Option<BackendKind>,
    /// Options of the pool by name. The other fields override them.
    pub tuning: String,
    /// The pool's hard limit.
    pub hard_limit: Option<Limit>,
    /// Options of the pool by name. They override all other fields.
    pub conf: String,
    /// The waits between streams.
    pub waits: Waits,
    /// The owner of the streams.
    pub streams: StreamKind,
    /// True if a block that another stream uses when it is freed becomes free only where a request would be refused otherwise, as in a program
    /// whose host runs far ahead of the device. False: when it did in the record.
    pub are_frees_late: bool,
    /// A clock that the driver itself has, for [`Outcome::driver_time`](crate::Outcome::driver_time). The simulator has one, with the
    /// prices of its device: `|driver| Sim::of(driver).map(Sim::host_time)`. Without it, or if it returns `None`, the host's clock
    /// measures each call.
    pub clock: Option<fn(&Driver) -> Option<Duration>>,
}

impl Setup {
    /// The settings that the recorded program had, for the pool with the most allocated bytes; `None` if the trace does not state
    /// them. The limit is left out if several pools shared the memory, because a replay has one pool.
    ///
    /// ```no_run
    /// use gpumem_trace::{Setup, Trace, replay};
    ///
    /// let trace = Trace::read("run.trace")?;
    /// let setup = Setup::of_recording(&trace).unwrap_or_default();
    /// # let driver = gpumem_sim::driver(gpumem_sim::SimConfig::h200())?;
    /// let outcome = replay(&trace, &driver, &setup, |_| ())?;
    /// println!("reserved {}, in the program {:?}", outcome.peak_reserved_bytes, trace.real_run().peak_reserved_bytes);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn of_recording(trace: &Trace) -> Option<Self> {
        let settings = trace.real_run().settings()?;
        let is_alone = trace.real_run().pools.len() == 1;
        Some(Self {
            backend: Some(settings.backend),
            tuning: tuning_of(&settings.conf),
            hard_limit: settings.hard_limit_bytes.filter(|_| is_alone).map(Limit::Bytes),
            ..Self::default()
        })
    }
}

/// Removes the hard limit from options by name, because it may be a share of another device, and the backend, which has a field.
fn tuning_of(conf: &str) -> String {
    let is_apart = |item: &&str| item.starts_with("hard_limit:") || item.starts_with("backend:");
    conf.split(',').filter(|item| !is_apart(item)).collect::<Vec<_>>().join(",")
}

/// A hard limit as text: an amount, or a multiple of a trace's peak live bytes.
///
/// ```
/// use gpumem_trace::pool::Limit;
/// use gpumem_trace::{Trace, TraceLimit};
///
/// let trace = Trace::read_from(&b"#{\"format\":1}\na,1,4194304,0\nf,1,0\n"[..], "small")?;
/// let peak_bytes = trace.peaks().live_incl_deferred_bytes;
/// assert_eq!("1.5x".parse::<TraceLimit>()?.of(&trace), Limit::Bytes(peak_bytes + peak_bytes / 2));
/// assert_eq!("8GiB".parse::<TraceLimit>()?.of(&trace), Limit::Bytes(8 << 30));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TraceLimit {
    /// One limit for all traces.
    Fixed(Limit),
    /// A multiple of the trace's peak live bytes, including deferred frees (`1.02x`).
    TimesPeak(f64),
}

impl TraceLimit {
    /// The limit for a trace, in whole bytes.
    #[must_use]
    pub fn of(self, trace: &Trace) -> Limit {
        match self {
            Self::Fixed(limit) => limit,
            Self::TimesPeak(factor) => {
                Limit::Bytes((trace.peaks().live_incl_deferred_bytes as f64 * factor) as u64)
            }
        }
    }
}

impl FromStr for TraceLimit {
    type Err = PoolError;

    fn from_str(text: &str) -> Result<Self, PoolError> {
        let factor = text.trim().strip_suffix(['x', 'X']).and_then(|factor| factor.parse::<f64>().ok());
        match factor.filter(|factor| factor.is_finite() && *factor > 0.0) {
            Some(factor) => Ok(Self::TimesPeak(factor)),
            None => Ok(Self::Fixed(text.parse()?)),
        }
    }
}

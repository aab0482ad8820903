//! Replays a [`Trace`] through a pool, and measures the reserved memory, the driver calls and the time on the host.
//!
//! [tests/traces](../traces/README.md) states the rule of replays. The pool receives allocations and frees, but no work is
//! queued. So a block moves to another stream only after its `c` line, or behind a wait that the pool inserts and that is
//! counted: queries by the pool report that work is pending. (Queries inside of the driver's own pool are not intercepted.) At a
//! hard limit the pool may wait for the device, which is counted too.
//!
//! The pool's crate or another library owns the streams ([`StreamKind`]). Streams of another library are created with the driver,
//! wrapped once, and named in each call as in PyTorch's allocator interface: allocation and free name the block's stream, and a
//! block that another stream still uses is recorded on that stream before its free.
//!
//! Two times are measured. *Driver time* is the time of the driver calls: on the simulator by its virtual clock, which has the
//! prices of an H200; on a GPU by the host's clock. *Host time* is the time from the first event to the last without the driver
//! calls. It includes the loop that reads the trace and stores the blocks, and the reading of the clock around each driver call
//! (about 50 ns a call).

pub mod fit;
pub mod profiles;

use crate::driver::call_counter::{self, Calls, Reading};
use crate::pool::{BackendKind, Block, Device, IgnoredOption, Limit, Pool, PoolError, Stream};
use crate::sys::Driver;
use crate::sys::types::{CUstream, CUstream_flags};
use crate::trace::{Event, Peaks, Trace};
use core::fmt;
use core::str::FromStr;
use core::time::Duration;
use gpumem_sim::Sim;
use std::time::Instant;

/// The owner of the streams of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamKind {
    /// The pool's crate.
    #[default]
    Own,
    /// Another library, which may destroy the streams at any time: [`Stream::from_raw`].
    Foreign,
    /// Another library, which keeps the streams alive as long as the device: [`Stream::from_raw_long_lived`].
    LongLived,
}

impl StreamKind {
    /// All kinds, by name.
    pub const ALL: [(&str, Self); 3] =
        [("own", Self::Own), ("foreign", Self::Foreign), ("long-lived", Self::LongLived)];
}

/// A name that is not the name of a [`StreamKind`].
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0:?} names no kind of streams; use own, foreign or long-lived")]
pub struct UnknownStreamKind(String);

impl FromStr for StreamKind {
    type Err = UnknownStreamKind;

    fn from_str(name: &str) -> Result<Self, UnknownStreamKind> {
        let known = Self::ALL.into_iter().find(|(known, _)| *known == name);
        known.map(|(_, kind)| kind).ok_or_else(|| UnknownStreamKind(name.into()))
    }
}

impl fmt::Display for StreamKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Self::ALL.into_iter().find(|(_, kind)| kind == self);
        f.pad(known.map_or("", |(name, _)| name))
    }
}

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

/// A name that is not the name of [`Waits`].
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0:?} does not say when to insert waits; use profile, on or off")]
pub struct UnknownWaits(String);

impl FromStr for Waits {
    type Err = UnknownWaits;

    fn from_str(name: &str) -> Result<Self, UnknownWaits> {
        let known = Self::ALL.into_iter().find(|(known, _)| *known == name);
        known.map(|(_, waits)| waits).ok_or_else(|| UnknownWaits(name.into()))
    }
}

impl fmt::Display for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Self::ALL.into_iter().find(|(_, waits)| waits == self);
        f.pad(known.map_or("", |(name, _)| name))
    }
}

/// The settings of a replay.
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
}

impl Setup {
    /// The settings that the recorded program had, for the pool with the most allocated bytes; `None` if the trace does not state
    /// them. The limit is left out if several pools shared the memory, because a replay has one pool.
    #[must_use]
    pub fn of_recording(trace: &Trace) -> Option<Self> {
        let settings = trace.real_run().settings()?;
        let is_alone = trace.real_run().pools.len() == 1;
        Some(Self {
            backend: Some(settings.backend),
            tuning: without_limit(&settings.conf),
            hard_limit: settings.hard_limit_bytes.filter(|_| is_alone).map(Limit::Bytes),
            ..Self::default()
        })
    }
}

/// Removes the hard limit from options by name: it may be a share of another device.
fn without_limit(conf: &str) -> String {
    let is_limit = |item: &&str| item.starts_with("hard_limit:");
    conf.split(',').filter(|item| !is_limit(item)).collect::<Vec<_>>().join(",")
}

/// A hard limit from the command line: an amount, or a multiple of a trace's peak live bytes.
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

/// The result of a replay.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The backend.
    pub backend: BackendKind,
    /// The number of allocations and frees.
    pub operation_count: u64,
    /// The peak of live memory, counted from the trace.
    pub live: Peaks,
    /// The peak of the memory that the pool held from the device.
    pub peak_reserved_bytes: u64,
    /// The host memory of the pool's records at the end.
    pub record_bytes: u64,
    /// The driver calls, from the construction of the pool to the last event.
    pub calls: Calls,
    /// The driver calls in the second half of the events.
    pub late_calls: Calls,
    /// The time of the driver calls; the module documents the clock.
    pub driver_time: Duration,
    /// The time of the events without the driver calls.
    pub host_time: Duration,
    /// The number of requests that were refused in the recording.
    pub recorded_refusal_count: u64,
    /// The number of those that were refused again.
    pub refusal_count: u64,
    /// The options that had no effect.
    pub ignored_options: Vec<IgnoredOption>,
}

impl Outcome {
    /// Peak reserved bytes divided by peak live bytes, including deferred frees.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.peak_reserved_bytes as f64 / self.live.live_incl_deferred_bytes.max(1) as f64
    }

    /// The number of waits for the device: synchronisations, and waits for an event behind all its work. A pool at its limit
    /// waits if no other memory is available.
    #[must_use]
    pub fn device_wait_count(&self) -> u64 {
        self.calls.cuCtxSynchronize + self.calls.cuCtxRecordEvent
    }

    /// The host time per operation, in nanoseconds.
    #[must_use]
    pub fn host_ns_per_op(&self) -> f64 {
        self.host_time.as_nanos() as f64 / self.operation_count.max(1) as f64
    }
}

/// The error of a replay.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The device, a stream or the pool could not be created.
    #[error(transparent)]
    Setup(#[from] PoolError),
    /// The simulator could not be started.
    #[error(transparent)]
    Simulator(#[from] gpumem_sim::SimError),
    /// An event failed.
    #[error("{name}, line {line}: {error}")]
    Event {
        /// The trace.
        name: String,
        /// The line of the event, if the trace was read from a file.
        line: usize,
        /// The error of the pool.
        error: PoolError,
    },
}

/// Replays a trace on the first device of a driver. `on_progress` is called with the number of completed events now and then; its
/// time is not counted.
///
/// # Errors
///
/// [`ReplayError::Setup`] if the device, a stream or the pool cannot be created; [`ReplayError::Event`] with the pool's error if
/// an event fails, for example because of a hard limit.
pub fn replay(
    trace: &Trace,
    driver: &Driver,
    setup: &Setup,
    on_progress: impl FnMut(u64),
) -> Result<Outcome, ReplayError> {
    let driver = call_counter::count_calls_busy(driver);
    let device = Device::new(&driver, 0)?;
    let streams = Streams::new(&device, setup, trace.stream_count())?;
    let (before, begin) = (call_counter::reading(), virtual_time(&driver));
    // The first pool of a device tries virtual memory, and gives it back once the write is complete.
    let pool = call_counter::while_idle(|| build(&device, setup))?;
    let mut run = Run::new(trace, &pool, &streams, on_progress);
    let (early, late) = trace.events().split_at(trace.events().len() / 2);
    run.events(early)?;
    let middle = call_counter::reading();
    run.events(late)?;
    let end = call_counter::reading();
    let driver_time = match (begin, virtual_time(&driver)) {
        (Some(begin), Some(end)) => end - begin,
        _ => end.since(&before).took,
    };
    let status = pool.status()?;
    Ok(Outcome {
        backend: pool.backend(),
        operation_count: trace.operation_count(),
        live: trace.peaks(),
        peak_reserved_bytes: status.reserved_peak_bytes,
        record_bytes: status.record_bytes,
        calls: end.since(&before).calls,
        late_calls: end.since(&middle).calls,
        driver_time,
        host_time: run.host_time,
        recorded_refusal_count: trace.refused_count(),
        refusal_count: run.refusal_count,
        ignored_options: pool.ignored_options(),
    })
}

fn build(device: &Device, setup: &Setup) -> Result<Pool, PoolError> {
    // All queries report pending work, so a pool at its limit would poll until its deadline for each block.
    let builder = Pool::builder(device).conf(&setup.tuning)?.conf("wait_deadline_ms:0")?;
    let mut builder = match setup.waits {
        Waits::Profile => builder,
        Waits::On => builder.conf("inserted_waits:true")?,
        Waits::Off => builder.conf("inserted_waits:false")?,
    };
    if let Some(backend) = setup.backend {
        builder = builder.backend(backend);
    }
    if let Some(limit) = setup.hard_limit {
        builder = builder.hard_limit(limit);
    }
    builder.conf(&setup.conf)?.build()
}

/// The streams of a replay. Streams of another library are destroyed when this is dropped.
struct Streams {
    device: Device,
    wrapped: Vec<Stream>,
    /// The streams that the pool's crate did not create.
    raw: Vec<CUstream>,
}

impl Streams {
    fn new(device: &Device, setup: &Setup, count: u16) -> Result<Self, PoolError> {
        let mut streams = Self { device: device.clone(), wrapped: Vec::new(), raw: Vec::new() };
        for _ in 0..count {
            let builder = Stream::builder(device);
            let builder = if setup.waits == Waits::Off { builder.no_waits() } else { builder };
            let stream = match setup.streams {
                StreamKind::Own => builder.build()?,
                // SAFETY: the stream is destroyed after its last handle is dropped.
                StreamKind::Foreign => unsafe { builder.wrap(streams.make()?)? },
                // SAFETY: the stream is destroyed after it was retired.
                StreamKind::LongLived => unsafe { builder.wrap_long_lived(streams.make()?)? },
            };
            streams.wrapped.push(stream);
        }
        Ok(streams)
    }

    /// Creates a stream like another library does.
    fn make(&mut self) -> Result<CUstream, PoolError> {
        let _bound = self.device.bind()?;
        let (mut raw, flags) = (core::ptr::null_mut(), CUstream_flags::CU_STREAM_NON_BLOCKING.0);
        // SAFETY: `raw` outlives the call, and the context is current.
        unsafe { self.device.driver().cuStreamCreate(&mut raw, flags)? };
        self.raw.push(raw);
        Ok(raw)
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        let Ok(_bound) = self.device.bind() else { return };
        // Retiring fails if another replay's handle has retired the stream already.
        self.wrapped.drain(..).filter(|_| !self.raw.is_empty()).for_each(|stream| drop(stream.retire()));
        for raw in self.raw.drain(..) {
            // SAFETY: the stream was created in `make` and retired, and no handle to it is left.
            let _ = unsafe { self.device.driver().cuStreamDestroy_v2(raw) };
        }
    }
}

fn virtual_time(driver: &Driver) -> Option<Duration> {
    Sim::of(driver).map(Sim::host_time)
}

/// A replay in progress.
struct Run<'a, F> {
    trace: &'a Trace,
    pool: &'a Pool,
    streams: &'a Streams,
    blocks: Vec<Option<(Block, u16)>>,
    /// The streams of the last allocations: the last one, and the last different one before it.
    named: [u16; 2],
    done_count: usize,
    refusal_count: u64,
    host_time: Duration,
    on_progress: F,
}

impl<'a, F: FnMut(u64)> Run<'a, F> {
    fn new(trace: &'a Trace, pool: &'a Pool, streams: &'a Streams, on_progress: F) -> Self {
        let mut blocks = Vec::new();
        blocks.resize_with(trace.slot_count() as usize, || None);
        Self {
            trace,
            pool,
            streams,
            blocks,
            named: [0; 2],
            done_count: 0,
            refusal_count: 0,
            host_time: Duration::ZERO,
            on_progress,
        }
    }

    fn events(&mut self, events: &[Event]) -> Result<(), ReplayError> {
        for some in events.chunks(EVENTS_BETWEEN_LOOKS) {
            let (begin, start) = (call_counter::reading(), Instant::now());
            for event in some {
                self.event(event)?;
                self.done_count += 1;
            }
            let (took, driver) = (start.elapsed(), Reading::since(&call_counter::reading(), &begin));
            self.host_time += took.saturating_sub(driver.took);
            (self.on_progress)(self.done_count as u64);
        }
        Ok(())
    }

    fn event(&mut self, event: &Event) -> Result<(), ReplayError> {
        match *event {
            Event::Alloc { slot, stream, size_bytes } => {
                let block = self.pool.alloc(size_bytes, &self.streams.wrapped[usize::from(stream)]);
                let block = block.map_err(|error| self.failed(error))?;
                self.blocks[slot as usize] = Some((block, stream));
                if stream != self.named[0] {
                    self.named = [stream, self.named[0]];
                }
            }
            Event::Free { slot } => match self.blocks[slot as usize].take() {
                Some((block, stream)) if !self.streams.raw.is_empty() => {
                    block.free_on(&self.streams.wrapped[usize::from(stream)]);
                }
                block => drop(block),
            },
            Event::Complete { slot } => {
                if let Some((block, _)) = self.blocks[slot as usize].take() {
                    // SAFETY: a replay queues no work on blocks.
                    unsafe { block.free_completed() };
                }
            }
            // The program went on without the block.
            Event::Refused { stream, size_bytes } => {
                match self.pool.alloc(size_bytes, &self.streams.wrapped[usize::from(stream)]) {
                    Ok(block) => drop(block),
                    Err(error) if error.is_out_of_memory() => self.refusal_count += 1,
                    Err(error) => return Err(self.failed(error)),
                }
            }
            // The memory must not be reused yet, on its own stream neither, so the block is kept until `Complete`.
            Event::FreeUsed { slot } => self.record(slot),
        }
        Ok(())
    }

    /// Records the use of a block that is freed while another stream uses it. The trace does not name that stream, so this takes
    /// the last allocating stream that does not own the block.
    fn record(&self, slot: u32) {
        if let Some((block, home)) = &self.blocks[slot as usize]
            && !self.streams.raw.is_empty()
            && let Some(user) = self.named.iter().find(|stream| *stream != home)
        {
            block.record_use(&self.streams.wrapped[usize::from(*user)]);
        }
    }

    fn failed(&self, error: PoolError) -> ReplayError {
        // The header is line 1.
        ReplayError::Event { name: self.trace.name().into(), line: self.done_count + 2, error }
    }
}

/// The interval of progress reports: frequent enough for a progress bar, and too rare to affect the time.
const EVENTS_BETWEEN_LOOKS: usize = 4096;

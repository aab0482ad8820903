//! [`replay()`]: runs a trace through a pool, and measures the reserved memory, the driver calls and the time on the host.

mod setup;
mod streams;

pub use setup::{Setup, StreamKind, TraceLimit, Waits};

use crate::calls::{self, Calls};
use crate::trace::{Event, Peaks, Trace};
use core::cell::Cell;
use core::time::Duration;
use gpumem_pool::sys::Driver;
use gpumem_pool::sys::text::{Shown, debug_is_display};
use gpumem_pool::{BackendKind, Block, Device, IgnoredOption, Pool, PoolError};
use std::time::Instant;
use streams::Streams;

/// The result of a replay.
#[derive(Clone, Debug)]
#[non_exhaustive]
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
    /// The time of the driver calls, by [`Setup::clock`].
    pub driver_time: Duration,
    /// The time from the first event to the last without the driver calls. It includes the loop that reads the trace and stores the
    /// blocks, and the reading of the clock around each driver call (about 50 ns a call).
    pub host_time: Duration,
    /// The number of requests that were refused in the recording.
    pub recorded_refusal_count: u64,
    /// The number of those that were refused again.
    pub refusal_count: u64,
    /// The number of events before the first of them.
    pub first_refusal: Option<usize>,
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

/// A replay failed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The device, a stream or the pool could not be created.
    #[error(transparent)]
    Setup(#[from] PoolError),
    /// An event failed.
    // The header is line 1.
    #[error("{}, line {}: {error}", Shown::name(.name), .event + 2)]
    Event {
        /// The name of the trace.
        name: String,
        /// The number of events before it. In a trace in text, the event is in line `event + 2`.
        event: usize,
        /// The error of the pool.
        error: PoolError,
    },
    /// The replay was started inside of another one's callback.
    #[error("a replay runs on this thread already; start the next one when it has returned")]
    Nested,
}

debug_is_display!(ReplayError);

thread_local!(static IS_RUNNING: Cell<bool> = const { Cell::new(false) });

/// Marks the thread's replay. A thread counts the calls of one driver at a time.
struct Running;

impl Running {
    fn begin() -> Result<Self, ReplayError> {
        if IS_RUNNING.replace(true) { Err(ReplayError::Nested) } else { Ok(Self) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        IS_RUNNING.set(false);
    }
}

/// Replays a trace on the first device of a driver. `on_progress` is called with the number of completed events now and then; its
/// time is not counted.
///
/// The pool gets the allocations and frees, and no work is queued. A block may be used again by its own stream from its free on, and by
/// another stream after its [`Event::Complete`], or behind a wait that the pool inserts and that is counted: queries report that work is
/// pending. (Queries inside of the driver's own pool are not intercepted.) At a hard limit the pool may wait for the device, which is
/// counted too ([`Outcome::device_wait_count`]), and where it would refuse a request it gets the blocks that other streams still use, as a
/// pool does that waits for them ([`Setup::are_frees_late`]).
///
/// The driver is wrapped as by [`count_calls`](calls::count_calls).
///
/// ```
/// use gpumem_sim::{Sim, SimConfig};
/// use gpumem_trace::{Setup, Trace, replay};
///
/// let trace = Trace::read_from(&b"#{\"format\":1}\na,1,4194304,0\na,2,2097152,0\nf,1,0\na,3,6291456,0\n"[..], "small")?;
/// let driver = gpumem_sim::driver(SimConfig::h200().races(false))?;
/// let setup = Setup { clock: Some(|driver| Sim::of(driver).map(Sim::host_time)), ..Setup::default() };
/// let outcome = replay(&trace, &driver, &setup, |_| ())?;
/// assert!(outcome.peak_reserved_bytes >= trace.peaks().live_bytes);
/// println!("{:.3} of the live bytes, {:?} in {} driver calls", outcome.ratio(), outcome.driver_time, outcome.calls.total());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`ReplayError::Setup`] if the device, a stream or the pool cannot be created; [`ReplayError::Event`] with the pool's error if
/// an event fails, for example because of a hard limit; [`ReplayError::Nested`] in `on_progress` of another replay.
pub fn replay(
    trace: &Trace,
    driver: &Driver,
    setup: &Setup,
    on_progress: impl FnMut(u64),
) -> Result<Outcome, ReplayError> {
    let _running = Running::begin()?;
    // SAFETY: nothing that is made with it leaves this function, which no callback enters again. Who counted a driver on this thread has
    // promised to use it no more.
    let counted = unsafe { calls::count_calls_busy(driver) };
    let device = Device::new(&counted, 0).map_err(PoolError::from)?;
    let streams = Streams::new(&device, setup, trace.stream_count())?;
    // Not the counted driver, which a clock could keep.
    let now = || setup.clock.and_then(|clock| clock(driver));
    let (before, begin) = (calls::reading(), now());
    // The first pool of a device tries virtual memory, and gives it back once the write is complete.
    let pool = calls::while_idle(|| build(&device, setup))?;
    let mut run = Run::new(trace, &pool, &streams, setup.are_frees_late, on_progress);
    let (early, late) = trace.events().split_at(trace.events().len() / 2);
    run.events(early)?;
    let middle = calls::reading();
    run.events(late)?;
    let end = calls::reading();
    let driver_time = match (begin, now()) {
        (Some(begin), Some(end)) => end.saturating_sub(begin),
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
        first_refusal: run.first_refusal,
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

/// A replay in progress.
struct Run<'a, F> {
    trace: &'a Trace,
    pool: &'a Pool,
    streams: &'a Streams,
    blocks: Vec<Option<(Block, u16)>>,
    /// The blocks that the program has freed while another stream used them.
    used: Vec<u32>,
    /// Those that are free in the record, if frees are late.
    late: Vec<Block>,
    are_frees_late: bool,
    /// The streams of the last allocations: the last one, and the last different one before it.
    named: [u16; 2],
    done_count: usize,
    refusal_count: u64,
    first_refusal: Option<usize>,
    host_time: Duration,
    on_progress: F,
}

impl<'a, F: FnMut(u64)> Run<'a, F> {
    fn new(
        trace: &'a Trace,
        pool: &'a Pool,
        streams: &'a Streams,
        are_frees_late: bool,
        on_progress: F,
    ) -> Self {
        let mut blocks = Vec::new();
        blocks.resize_with(trace.slot_count() as usize, || None);
        Self {
            trace,
            pool,
            streams,
            blocks,
            used: Vec::new(),
            late: Vec::new(),
            are_frees_late,
            named: [0; 2],
            done_count: 0,
            refusal_count: 0,
            first_refusal: None,
            host_time: Duration::ZERO,
            on_progress,
        }
    }

    fn events(&mut self, events: &[Event]) -> Result<(), ReplayError> {
        for some in events.chunks(EVENTS_BETWEEN_LOOKS) {
            let (begin, start) = (calls::reading(), Instant::now());
            for event in some {
                self.event(event)?;
                self.done_count += 1;
            }
            let (took, driver) = (start.elapsed(), calls::reading().since(&begin));
            self.host_time += took.saturating_sub(driver.took);
            (self.on_progress)(self.done_count as u64);
        }
        Ok(())
    }

    fn event(&mut self, event: &Event) -> Result<(), ReplayError> {
        match *event {
            Event::Alloc { slot, stream, size_bytes } => {
                let block = self.alloc(size_bytes, stream).map_err(|error| self.failed(error))?;
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
                if let Some(at) = self.used.iter().position(|used| *used == slot) {
                    self.used.swap_remove(at);
                }
                match self.blocks[slot as usize].take() {
                    Some((block, _)) if self.are_frees_late => self.late.push(block),
                    Some((block, _)) => complete(block),
                    // A request has waited for it.
                    None => {}
                }
            }
            // The program went on without the block.
            Event::Refused { stream, size_bytes } => match self.alloc(size_bytes, stream) {
                Ok(block) => drop(block),
                Err(error) if error.is_out_of_memory() => {
                    self.refusal_count += 1;
                    self.first_refusal.get_or_insert(self.done_count);
                }
                Err(error) => return Err(self.failed(error)),
            },
            // The memory must not be reused yet, on its own stream neither, so the block is kept until `Complete`.
            Event::FreeUsed { slot } => {
                self.record(slot);
                self.used.push(slot);
            }
        }
        Ok(())
    }

    /// Allocates. A pool that is short of memory waits for the streams that use freed blocks.
    fn alloc(&mut self, size_bytes: u64, stream: u16) -> Result<Block, PoolError> {
        let stream = &self.streams.wrapped[usize::from(stream)];
        let used =
            |error: &PoolError| error.is_out_of_memory() && !(self.used.is_empty() && self.late.is_empty());
        match self.pool.alloc(size_bytes, stream) {
            Err(error) if used(&error) => {
                let used = self.used.drain(..).filter_map(|slot| self.blocks[slot as usize].take());
                used.map(|(block, _)| block).chain(self.late.drain(..)).for_each(complete);
                self.pool.alloc(size_bytes, stream)
            }
            result => result,
        }
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
        ReplayError::Event { name: self.trace.name().into(), event: self.done_count, error }
    }
}

/// Frees a block that no stream uses.
fn complete(block: Block) {
    // SAFETY: a replay queues no work on blocks.
    unsafe { block.free_completed() };
}

/// The interval of progress reports: frequent enough for a progress bar, and too rare to affect the time.
const EVENTS_BETWEEN_LOOKS: usize = 4096;

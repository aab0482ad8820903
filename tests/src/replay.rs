//! Replays a [`Trace`] through a pool and measures: what it reserved, what it asked of the driver, what it cost the host.
//!
//! The rule is that of [tests/traces](../traces/README.md). Nothing but allocations and frees reaches the pool, so a block
//! goes to another stream only once its `c` line is passed, or behind a wait that the pool inserts and that is counted: a
//! pool that asks the driver whether work is over hears that it is not. (What the driver's own pool finds out is its business.)
//! At a hard limit it may wait for the device instead, which is counted too.
//!
//! Two clocks. *Driver time* is what the calls cost: on the software driver by its virtual clock, that is by the prices of
//! an H200; on a GPU by the host's. *Host time* is the rest: the time that passes from the first event to the last, less
//! what passes inside calls of the driver. The loop that reads the trace and keeps the blocks is part of it, and so is
//! reading the clock around each driver call (some 50 ns a call).

use crate::meter::{self, Calls, Reading};
use crate::pool::{BackendKind, Block, Device, Dials, Limit, Notice, Pool, PoolError, Stream};
use crate::sys::{Driver, Sim};
use crate::trace::{Event, Peaks, Trace};
use core::time::Duration;
use std::time::Instant;

/// How a trace is replayed.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// The pool's backend; its default, if none is given.
    pub backend: Option<BackendKind>,
    /// What the backend `caching` trades.
    pub dials: Dials,
    /// The pool's hard limit.
    pub hard_limit: Option<Limit>,
    /// Options of the pool by name, over all of these.
    pub conf: String,
    /// Whether the pool may make a stream wait for another to get its memory. Such waits are counted.
    pub may_wait: bool,
}

/// What a replay came to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What handed out the memory.
    pub backend: BackendKind,
    /// Allocations and frees.
    pub operation_count: u64,
    /// What the program had live, counted from the trace.
    pub live: Peaks,
    /// The most that the pool held from the device.
    pub peak_reserved_bytes: u64,
    /// The host memory of the pool's records at the end.
    pub record_bytes: u64,
    /// The driver's calls, from before the pool was made to the last event.
    pub calls: Calls,
    /// Those of them in the second half of the events.
    pub late_calls: Calls,
    /// What the calls cost; see the module for the clock.
    pub driver_time: Duration,
    /// The events without the driver's calls.
    pub host_time: Duration,
    /// The options that had no effect.
    pub notices: Vec<Notice>,
}

impl Outcome {
    /// Peak reserved over peak live, deferred frees included.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.peak_reserved_bytes as f64 / self.live.live_incl_deferred_bytes.max(1) as f64
    }

    /// How often the pool waited for the device, as it does when its limit leaves nothing else.
    #[must_use]
    pub fn device_wait_count(&self) -> u64 {
        self.calls.cuCtxSynchronize
    }

    /// Host time, an operation.
    #[must_use]
    pub fn host_ns_per_op(&self) -> f64 {
        self.host_time.as_nanos() as f64 / self.operation_count.max(1) as f64
    }
}

/// A replay could not go on.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// Before the first event.
    #[error(transparent)]
    Setup(#[from] PoolError),
    /// At an event.
    #[error("{name}, line {line}: {error}")]
    Event {
        /// The trace.
        name: String,
        /// Its line, if it was read from a file.
        line: usize,
        /// What the pool said.
        error: PoolError,
    },
}

/// Replays a trace on the first device of a driver. `told` hears of the events that are over, now and then; its time is
/// not counted.
///
/// # Errors
///
/// What the pool says, such as that its limit does not allow it.
pub fn replay(
    trace: &Trace,
    driver: &Driver,
    setup: &Setup,
    told: impl FnMut(u64),
) -> Result<Outcome, ReplayError> {
    let driver = meter::metered_and_busy(driver);
    let device = Device::new(&driver, 0)?;
    let stream = |_| match setup.may_wait {
        true => Stream::new(&device),
        false => Stream::builder(&device).no_waits().build(),
    };
    let streams = (0..trace.stream_count()).map(stream).collect::<Result<Vec<_>, _>>()?;
    let (before, begin) = (meter::reading(), virtual_time(&driver));
    let pool = build(&device, setup)?;
    let mut run = Run::new(trace, &pool, &streams, told);
    let (early, late) = trace.events().split_at(trace.events().len() / 2);
    run.events(early)?;
    let middle = meter::reading();
    run.events(late)?;
    let end = meter::reading();
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
        notices: pool.notices(),
    })
}

fn build(device: &Device, setup: &Setup) -> Result<Pool, PoolError> {
    // Who asks hears that nothing is over: a pool at its limit would ask until its deadline, for each block anew.
    let dials = setup.dials.clone().wait_deadline(Duration::ZERO);
    let mut builder = Pool::builder(device).dials(dials);
    if let Some(backend) = setup.backend {
        builder = builder.backend(backend);
    }
    if let Some(limit) = setup.hard_limit {
        builder = builder.hard_limit(limit);
    }
    builder.conf(&setup.conf)?.build()
}

fn virtual_time(driver: &Driver) -> Option<Duration> {
    driver.simulator().map(Sim::host_time)
}

/// A replay in progress.
struct Run<'a, F> {
    trace: &'a Trace,
    pool: &'a Pool,
    streams: &'a [Stream],
    blocks: Vec<Option<Block>>,
    done_count: usize,
    host_time: Duration,
    told: F,
}

impl<'a, F: FnMut(u64)> Run<'a, F> {
    fn new(trace: &'a Trace, pool: &'a Pool, streams: &'a [Stream], told: F) -> Self {
        let mut blocks = Vec::new();
        blocks.resize_with(trace.slot_count() as usize, || None);
        Self { trace, pool, streams, blocks, done_count: 0, host_time: Duration::ZERO, told }
    }

    fn events(&mut self, events: &[Event]) -> Result<(), ReplayError> {
        for some in events.chunks(EVENTS_BETWEEN_LOOKS) {
            let (begin, start) = (meter::reading(), Instant::now());
            for event in some {
                self.event(event)?;
                self.done_count += 1;
            }
            let (took, driver) = (start.elapsed(), Reading::since(&meter::reading(), &begin));
            self.host_time += took.saturating_sub(driver.took);
            (self.told)(self.done_count as u64);
        }
        Ok(())
    }

    fn event(&mut self, event: &Event) -> Result<(), ReplayError> {
        match *event {
            Event::Alloc { slot, stream, size_bytes } => {
                let block = self.pool.alloc(size_bytes, &self.streams[usize::from(stream)]);
                self.blocks[slot as usize] = Some(block.map_err(|error| self.failed(error))?);
            }
            Event::Free { slot } => self.blocks[slot as usize] = None,
            Event::Complete { slot } => {
                if let Some(block) = self.blocks[slot as usize].take() {
                    // SAFETY: nothing that uses a block is ever queued here.
                    unsafe { block.free_completed() };
                }
            }
            // Nobody may have it yet, its own stream neither: it is kept until its `Complete`.
            Event::FreeUsed { .. } => {}
        }
        Ok(())
    }

    fn failed(&self, error: PoolError) -> ReplayError {
        // The header is line 1.
        ReplayError::Event { name: self.trace.name().into(), line: self.done_count + 2, error }
    }
}

/// Often enough for a bar, rare enough to cost nothing.
const EVENTS_BETWEEN_LOOKS: usize = 4096;

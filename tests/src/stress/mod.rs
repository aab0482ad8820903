//! The stress test: many threads on many streams; a kernel fills every block, and a kernel checks it before it is freed.
//!
//! Threads share the streams. Each thread allocates blocks of any size, passes them to other streams (with a wait for the last
//! user, and `record_use`), lets several streams read a block concurrently, sends blocks to other threads, and frees the blocks
//! that it received. Some steps synchronise, trim, or drop a stream with pending work and live blocks. The contents are derived
//! from thread and number, so a block that the pool reuses too early gets wrong contents. They are found by the check before the
//! free at the latest.

pub mod limit;
mod worker;

use crate::fixtures::pattern::{MismatchBuffer, Patterns, Wrong};
use crate::pool::{Device, Pool, PoolError, Stream};
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use worker::Worker;

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The number of threads.
    pub threads: usize,
    /// The number of streams, which the threads share.
    pub streams: usize,
    /// The end of the run.
    pub until: Until,
    /// The maximum size of a block. Sizes start at 256 bytes and are uniform over the octaves.
    pub size_bytes_max: u64,
    /// The maximum total size of live blocks. Threads do not allocate beyond it.
    pub budget_bytes: u64,
    /// The seed of the random choices. The order of the threads is not determined.
    pub seed: u64,
    /// The injected error, if any.
    pub mistake: Option<Mistake>,
}

/// The end of a run.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// After this time.
    Elapsed(Duration),
    /// After this number of steps of every thread.
    Steps(u64),
}

/// An injected error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// Streams use blocks without waiting for the last user.
    NoWait,
    /// `record_use` is omitted.
    NoRecordUse,
    /// The first byte behind some blocks of each thread is written. Only for pools with guards, which own that byte.
    End,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "something may have been found"]
pub struct Done {
    /// The number of allocated blocks.
    pub blocks: u64,
    /// The total size of the allocated blocks.
    pub bytes: u64,
    /// The number of blocks passed from stream to stream.
    pub hand_overs: u64,
    /// The number of blocks sent to another thread.
    pub sent: u64,
    /// The number of refused allocations.
    pub refusals: u64,
    /// The duration.
    pub took: Duration,
    /// The wrong words found in blocks.
    pub wrong: Wrong,
}

/// The state shared by the threads.
struct Room<'a> {
    pool: &'a Pool,
    plan: &'a Plan,
    start: Instant,
    patterns: Patterns,
    streams: Vec<CheckedStream>,
    live_bytes: AtomicU64,
}

/// A stream, and the results of the checks on it.
struct CheckedStream {
    stream: Stream,
    mismatches: MismatchBuffer,
}

/// Runs the plan. All blocks are freed when this returns.
///
/// # Errors
///
/// Every [`PoolError`] except [`PoolError::LimitReached`] and [`PoolError::OutOfMemory`], which are counted.
///
/// # Panics
///
/// If a thread panics.
pub fn run(pool: &Pool, plan: &Plan) -> Result<Done, PoolError> {
    let device = pool.device();
    let _bound = device.bind()?;
    let streams = (0..plan.streams.max(1))
        .map(|number| CheckedStream::new(device, number))
        .collect::<Result<_, PoolError>>()?;
    let (patterns, live_bytes) = (Patterns::load(device.driver())?, AtomicU64::new(0));
    let room = Room { pool, plan, start: Instant::now(), patterns, streams, live_bytes };
    let outcome = on_threads(&room);
    let took = room.start.elapsed();
    let mut done = Done { took, ..outcome? };
    for CheckedStream { mismatches, .. } in room.streams {
        // SAFETY: the context is current, and all threads that used it have ended.
        let wrong = unsafe { mismatches.close(device.driver())? };
        done.wrong = done.wrong.and(wrong);
    }
    Ok(done)
}

/// Runs the threads, and returns the sum of their results or the first error.
fn on_threads(room: &Room<'_>) -> Result<Done, PoolError> {
    let (doors, inboxes): (Vec<_>, Vec<_>) = (0..room.plan.threads.max(1)).map(|_| channel()).unzip();
    std::thread::scope(|scope| {
        let workers: Vec<_> = inboxes
            .into_iter()
            .enumerate()
            .map(|(number, inbox)| {
                let worker = Worker::new(room, number, inbox, doors.clone());
                scope.spawn(move || worker.run())
            })
            .collect();
        drop(doors);
        let ends = workers.into_iter().map(|worker| match worker.join() {
            Ok(end) => end,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        // All threads are joined before the first error is returned.
        let ends: Vec<_> = ends.collect();
        ends.into_iter().try_fold(Done::default(), |sum, end| Ok(sum.and(end?)))
    })
}

impl CheckedStream {
    /// Creates a stream: ordinary ones, one with priority and `no_waits`, and the legacy default stream.
    fn new(device: &Device, number: usize) -> Result<Self, PoolError> {
        let stream = match number % 8 {
            3 => Stream::builder(device).priority(-1).no_waits().build()?,
            6 => Stream::legacy(device)?,
            _ => Stream::new(device)?,
        };
        Ok(Self { stream, mismatches: MismatchBuffer::new(device.driver())? })
    }
}

impl Done {
    /// The sum of the results of consecutive runs.
    pub fn and(self, other: Self) -> Self {
        Self {
            blocks: self.blocks + other.blocks,
            bytes: self.bytes + other.bytes,
            hand_overs: self.hand_overs + other.hand_overs,
            sent: self.sent + other.sent,
            refusals: self.refusals + other.refusals,
            took: self.took + other.took,
            wrong: self.wrong.and(other.wrong),
        }
    }
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { blocks, hand_overs, sent, refusals, wrong, .. } = self;
        let (seconds, gib) = (self.took.as_secs_f64(), self.bytes as f64 / f64::from(1 << 30));
        write!(
            f,
            "{seconds:.1} s: {blocks} blocks, {gib:.1} GiB, {hand_overs} hand-overs between streams, \
             {sent} between threads, {refusals} refused, {wrong}"
        )
    }
}

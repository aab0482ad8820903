//! The stress test: many threads on many streams, every block filled by a kernel and checked by a kernel before it is
//! freed.
//!
//! Threads share the streams. Each makes blocks of any size, hands them to other streams (which wait for the last one
//! and are recorded), lets several streams read one at once, gives them to other threads and frees what it was given;
//! now and then it synchronises, trims, or lets a stream go while work and blocks of it are left. Contents are made of
//! thread and number, so whatever a pool hands out too early is overwritten by something else and found, at the latest
//! by the check before the free.

pub mod limit;
mod worker;

use crate::fixtures::pattern::{Ledger, Patterns, Wrong};
use crate::pool::{Device, Pool, PoolError, Stream};
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use worker::Worker;

/// How hard, how long, and what is done wrong on purpose.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Threads that allocate, use and free.
    pub threads: usize,
    /// Streams that they share.
    pub streams: usize,
    /// When they stop.
    pub until: Until,
    /// Sizes are from 256 bytes to this, as many in each octave.
    pub size_bytes_max: u64,
    /// They stop allocating while blocks hold more than this together.
    pub budget_bytes: u64,
    /// Of the random choices; which thread comes first is not among them.
    pub seed: u64,
    /// The deliberate mistake, if any.
    pub mistake: Option<Mistake>,
}

/// When a run ends.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// After this time.
    Elapsed(Duration),
    /// When every thread has made this many steps.
    Steps(u64),
}

/// A deliberate mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// Streams use blocks without waiting for the stream that used them last.
    NoWait,
    /// `record_use` is omitted.
    NoRecordUse,
    /// Where a block ends: the first byte behind the first few of each thread is written. Only for pools with guards, whose byte it is.
    End,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "something may have been found"]
pub struct Done {
    /// Blocks allocated.
    pub blocks: u64,
    /// Their sizes together.
    pub bytes: u64,
    /// Blocks handed from stream to stream.
    pub hand_overs: u64,
    /// Blocks given to another thread.
    pub sent: u64,
    /// Allocations that found no memory.
    pub refusals: u64,
    /// How long it took.
    pub took: Duration,
    /// The wrong words in blocks.
    pub wrong: Wrong,
}

/// The state shared by the threads.
struct Room<'a> {
    pool: &'a Pool,
    plan: &'a Plan,
    start: Instant,
    patterns: Patterns,
    lanes: Vec<Lane>,
    live_bytes: AtomicU64,
}

/// A stream, and what its checks found.
struct Lane {
    stream: Stream,
    ledger: Ledger,
}

/// Runs it. All blocks are back when this returns.
///
/// # Errors
///
/// What the pool or the driver says, but for a lack of memory, which is counted.
///
/// # Panics
///
/// When a thread does.
pub fn run(pool: &Pool, plan: &Plan) -> Result<Done, PoolError> {
    let device = pool.device();
    let _bound = device.bind()?;
    let lanes =
        (0..plan.streams.max(1)).map(|number| Lane::new(device, number)).collect::<Result<_, PoolError>>()?;
    let (patterns, live_bytes) = (Patterns::load(device.driver())?, AtomicU64::new(0));
    let room = Room { pool, plan, start: Instant::now(), patterns, lanes, live_bytes };
    let outcome = on_threads(&room);
    let took = room.start.elapsed();
    let mut done = Done { took, ..outcome? };
    for Lane { ledger, .. } in room.lanes {
        // SAFETY: the context is current, and all threads that used it have ended.
        let wrong = unsafe { ledger.close(device.driver())? };
        done.wrong = done.wrong.and(wrong);
    }
    Ok(done)
}

/// The sum of what the threads did, or the first error among them.
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
        // Every thread is waited for before the first error is handed on.
        let ends: Vec<_> = ends.collect();
        ends.into_iter().try_fold(Done::default(), |sum, end| Ok(sum.and(end?)))
    })
}

impl Lane {
    /// Streams of all kinds that threads can share.
    fn new(device: &Device, number: usize) -> Result<Self, PoolError> {
        let stream = match number % 8 {
            3 => Stream::builder(device).priority(-1).no_waits().build()?,
            6 => Stream::legacy(device)?,
            _ => Stream::new(device)?,
        };
        Ok(Self { stream, ledger: Ledger::new(device.driver())? })
    }
}

impl Done {
    /// Both together; runs one after the other.
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

//! Many threads against one limit: it is never passed by a byte, and nobody is refused while there is something to give
//! back.
//!
//! Every thread claims what it is about to ask for in a budget that all share, and gives its claim up after the drop. So
//! whatever moment is looked at, live blocks and the request fit together: an error says that the pool had memory that
//! it did not give. Two mixtures make that exact: blocks of one size, with the whole limit as the budget, and blocks of
//! all sizes with half of it, so that even the worst split leaves room. Plain segments, which can't be put together, get
//! less.

use crate::counted::Counted;
use crate::pool::{BackendKind, Block, MemoryKind, Pool, PoolError, Stream};
use crate::random::Random;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How many, how long, and how large.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Threads, each with a stream.
    pub threads: usize,
    /// The pool's hard limit.
    pub limit_bytes: u64,
    /// What the blocks are.
    pub mixture: Mixture,
    /// For how long.
    pub time: Duration,
    /// Decides what each thread does.
    pub seed: u64,
}

/// What the blocks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixture {
    /// All of one size: a 128th of the limit. They may fill it to the last byte.
    Even,
    /// From 256 bytes to a sixteenth of the limit, as many in each octave; up to half of it together.
    Mixed,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// Blocks that were handed out.
    pub blocks: u64,
    /// Requests that were refused though there was room, and what the first of them was told.
    pub refused: u64,
    /// See above.
    pub told: Option<String>,
    /// The most that was ever held from the driver, by a count that knows no pool.
    pub held_peak_bytes: u64,
}

struct Room<'a> {
    pool: &'a Pool,
    plan: Plan,
    start: Instant,
    budget_bytes: u64,
    claimed_bytes: AtomicU64,
    /// Blocks that whoever comes frees.
    passed_on: Mutex<Vec<Block>>,
}

/// Runs it on a pool with the plan's limit. All blocks are back when this returns.
///
/// # Errors
///
/// What the pool says but for a lack of memory, which is counted.
pub fn run(counted: &Counted, pool: &Pool, kind: MemoryKind, plan: Plan) -> Result<Done, PoolError> {
    let is_in_segments = pool.backend() == BackendKind::Caching
        && (kind.is_host_accessible() || pool.status()?.plain_segments);
    let budget_bytes = match (is_in_segments, plan.mixture) {
        (false, Mixture::Even) => plan.limit_bytes,
        (false, Mixture::Mixed) | (true, Mixture::Even) => plan.limit_bytes / 2,
        (true, Mixture::Mixed) => plan.limit_bytes / 8,
    };
    let (start, claimed_bytes, passed_on) = (Instant::now(), AtomicU64::new(0), Mutex::default());
    let room = Room { pool, plan, start, budget_bytes, claimed_bytes, passed_on };
    let streams: Vec<Stream> =
        (0..plan.threads).map(|_| Stream::new(pool.device())).collect::<Result<_, _>>()?;
    let ends: Vec<Result<Done, PoolError>> = std::thread::scope(|scope| {
        let room = &room;
        let work = |(number, stream)| scope.spawn(move || Worker::new(room, number, stream).run());
        let threads: Vec<_> = streams.iter().enumerate().map(work).collect();
        let end = |thread: std::thread::ScopedJoinHandle<'_, _>| match thread.join() {
            Ok(end) => end,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        threads.into_iter().map(end).collect()
    });
    drop(room.passed_on);
    let mut sum = ends.into_iter().try_fold(Done::default(), |sum, end| Ok::<_, PoolError>(sum.and(end?)))?;
    sum.held_peak_bytes = counted.peak_bytes(kind);
    Ok(sum)
}

struct Worker<'a> {
    room: &'a Room<'a>,
    stream: &'a Stream,
    random: Random,
    held: Vec<Block>,
    done: Done,
}

impl<'a> Worker<'a> {
    fn new(room: &'a Room<'a>, number: usize, stream: &'a Stream) -> Self {
        let random =
            Random(room.plan.seed.wrapping_add(number as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        Self { room, stream, random, held: Vec::new(), done: Done::default() }
    }

    fn run(mut self) -> Result<Done, PoolError> {
        while self.room.start.elapsed() < self.room.plan.time {
            for _ in 0..STEPS_BETWEEN_LOOKS {
                match self.random.below(16) {
                    0..8 if self.held.len() < HELD_MAX => self.take()?,
                    8 => self.pass_on(),
                    9 => self.free_any(),
                    _ => self.free_one(),
                }
            }
        }
        self.held.drain(..).for_each(|block| self.room.free(block));
        self.free_any();
        Ok(self.done)
    }

    fn take(&mut self) -> Result<(), PoolError> {
        let size_bytes = self.size_bytes();
        if !self.room.claim(size_bytes) {
            return Ok(());
        }
        match self.room.pool.alloc(size_bytes, self.stream) {
            Ok(block) => {
                self.done.blocks += 1;
                self.use_it(&block)?;
                self.held.push(block);
                Ok(())
            }
            Err(error @ (PoolError::LimitReached(_) | PoolError::OutOfMemory(_))) => {
                self.done.refused += 1;
                self.done.told.get_or_insert_with(|| error.to_string());
                self.room.claimed_bytes.fetch_sub(size_bytes, Relaxed);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Now and then, so that what is freed is not done at once.
    fn use_it(&mut self, block: &Block) -> Result<(), PoolError> {
        if self.random.below(4) > 0 || self.room.pool.kind().is_host_accessible() {
            return Ok(());
        }
        let device = self.room.pool.device();
        let (_bound, size_bytes) = (device.bind()?, block.size_bytes().min(4096) as usize);
        // SAFETY: the block is alive, and it is this stream's.
        unsafe { device.driver().cuMemsetD8Async(block.address(), 1, size_bytes, self.stream.raw())? };
        Ok(())
    }

    fn size_bytes(&mut self) -> u64 {
        match self.room.plan.mixture {
            Mixture::Even => self.room.plan.limit_bytes / EVEN_COUNT,
            Mixture::Mixed => {
                let octaves = (self.room.plan.limit_bytes / 16 / 256).ilog2();
                // Small ones are few, or each of them would have a frame to itself.
                let small_count = self.held.iter().filter(|block| block.size_bytes() < 1 << 20).count();
                let first = if small_count < 2 { 0 } else { 12.min(octaves - 1) };
                let least = 256 << (first + self.random.below(u64::from(octaves - first)) as u32);
                least + self.random.below(least)
            }
        }
    }

    fn pass_on(&mut self) {
        let block = self.held.pop();
        self.room.passed_on.lock().unwrap_or_else(PoisonError::into_inner).extend(block);
    }

    fn free_any(&mut self) {
        let blocks = std::mem::take(&mut *self.room.passed_on.lock().unwrap_or_else(PoisonError::into_inner));
        blocks.into_iter().for_each(|block| self.room.free(block));
    }

    fn free_one(&mut self) {
        if !self.held.is_empty() {
            let index = self.random.below(self.held.len() as u64) as usize;
            let block = self.held.swap_remove(index);
            self.room.free(block);
        }
    }
}

impl Room<'_> {
    fn claim(&self, size_bytes: u64) -> bool {
        let sum = |claimed: u64| Some(claimed + size_bytes).filter(|sum| *sum <= self.budget_bytes);
        self.claimed_bytes.fetch_update(Relaxed, Relaxed, sum).is_ok()
    }

    fn free(&self, block: Block) {
        let size_bytes = block.size_bytes();
        drop(block);
        self.claimed_bytes.fetch_sub(size_bytes, Relaxed);
    }
}

impl Done {
    fn and(self, other: Self) -> Self {
        Self {
            blocks: self.blocks + other.blocks,
            refused: self.refused + other.refused,
            told: self.told.or(other.told),
            held_peak_bytes: self.held_peak_bytes.max(other.held_peak_bytes),
        }
    }
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { blocks, refused, told, held_peak_bytes } = self;
        write!(f, "{blocks} blocks, {refused} refused, {held_peak_bytes} bytes held at most")?;
        told.iter().try_for_each(|told| write!(f, "; the first was told: {told}"))
    }
}

/// As many fill the limit.
const EVEN_COUNT: u64 = 128;
const HELD_MAX: usize = 24;
const STEPS_BETWEEN_LOOKS: usize = 64;

//! Many threads at one hard limit: the pool never holds more than the limit, and refuses no request that fits.
//!
//! Each thread reserves the size of a request in a shared budget before the request, and releases it after the drop. So live blocks
//! and pending requests together never exceed the budget, and each refused request is a bug of the pool. There are two mixtures:
//! blocks of one size, for which the budget is the whole limit; and blocks of many sizes, for which it is half of the limit, so that
//! the worst fragmentation leaves room. Plain segments cannot be merged, so their budgets are smaller.

use crate::driver::memory_counter::MemoryCounter;
use crate::pool::{BackendKind, Block, MemoryKind, Pool, PoolError, Stream};
use crate::random::Random;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The number of threads, each with a stream.
    pub threads: usize,
    /// The pool's hard limit.
    pub limit_bytes: u64,
    /// The sizes of the blocks.
    pub mixture: Mixture,
    /// The time that the threads run.
    pub time: Duration,
    /// The seed of the random choices.
    pub seed: u64,
}

/// The sizes of the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixture {
    /// One size, a 128th of the limit. The budget is the whole limit.
    Even,
    /// From 256 bytes to a sixteenth of the limit, uniform over the octaves. The budget is half of the limit.
    Mixed,
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// The number of allocated blocks.
    pub blocks: u64,
    /// The number of refused requests.
    pub refused: u64,
    /// The error of the first refused request.
    pub first_error: Option<String>,
    /// The peak of the memory that the driver had allocated, counted at the driver's table.
    pub held_peak_bytes: u64,
}

struct Room<'a> {
    pool: &'a Pool,
    plan: Plan,
    start: Instant,
    budget_bytes: u64,
    claimed_bytes: AtomicU64,
    /// Blocks that any thread may free.
    passed_on: Mutex<Vec<Block>>,
}

/// Runs the threads on a pool with the plan's limit. All blocks are freed when this returns.
///
/// # Errors
///
/// Every [`PoolError`] except [`PoolError::LimitReached`] and [`PoolError::OutOfMemory`], which are counted.
pub fn run(counted: &MemoryCounter, pool: &Pool, kind: MemoryKind, plan: Plan) -> Result<Done, PoolError> {
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
                self.queue_work(&block)?;
                self.held.push(block);
                Ok(())
            }
            Err(error @ (PoolError::LimitReached(_) | PoolError::OutOfMemory(_))) => {
                self.done.refused += 1;
                self.done.first_error.get_or_insert_with(|| error.to_string());
                self.room.claimed_bytes.fetch_sub(size_bytes, Relaxed);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Queues work on every fourth block, so that some blocks are freed before their work is complete.
    fn queue_work(&mut self, block: &Block) -> Result<(), PoolError> {
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
                // At most two small blocks a thread: each may occupy a page of its own.
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
            first_error: self.first_error.or(other.first_error),
            held_peak_bytes: self.held_peak_bytes.max(other.held_peak_bytes),
        }
    }
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { blocks, refused, first_error, held_peak_bytes } = self;
        write!(f, "{blocks} blocks, {refused} refused, peak {held_peak_bytes} bytes")?;
        first_error.iter().try_for_each(|error| write!(f, "; first error: {error}"))
    }
}

/// The number of blocks that fill the limit.
const EVEN_COUNT: u64 = 128;
const HELD_MAX: usize = 24;
const STEPS_BETWEEN_LOOKS: usize = 64;

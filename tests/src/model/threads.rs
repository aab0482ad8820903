//! Concurrent threads on one pool: they allocate, free each other's blocks, and drain each other's caches.
//!
//! The seed determines the operations of each thread, the operating system their order; so a failure may not repeat.

use super::step::text;
use super::subject::Subject;
use crate::pool::{Block, Device, MemoryKind, Pool, Profile, Stream};
use crate::random::Random;
use gpumem_sim::SimConfig;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Runs the threads until each has made its steps. Returns the number of allocated blocks.
pub(super) fn run(seed: u64, subject: Subject) -> Result<u64, String> {
    let config = SimConfig::new().seed(seed).memory_bytes(1 << 30);
    let device = Device::new(&gpumem_sim::driver(config).map_err(text)?, 0).map_err(text)?;
    let pool = subject.open_plain(&device).map_err(text)?;
    if subject.profile == Some(Profile::Fast) {
        // A reserve, from which threads cache large blocks too.
        pool.reserve(768 << 20).map_err(text)?;
    }
    let shared = Shared {
        pool: &pool,
        // Host memory is taken from the machine, so sizes are small.
        size_power_max: if subject.kind == MemoryKind::Device { 22 } else { 12 },
        claims: Mutex::default(),
        passed_on: Mutex::default(),
        running_count: AtomicUsize::new(THREAD_COUNT),
    };
    std::thread::scope(|scope| {
        let users = (0..THREAD_COUNT as u64).map(|index| {
            let (shared, stream) = (&shared, Stream::new(&device));
            scope.spawn(move || {
                let _running = Running(&shared.running_count);
                stream.map_err(text).and_then(|stream| shared.work(seed ^ index << 32, &stream))
            })
        });
        let users: Vec<_> = users.collect();
        let drainer = scope.spawn(|| shared.drain());
        let outcomes = users.into_iter().chain([drainer]).map(|thread| thread.join());
        outcomes.collect::<Vec<_>>().into_iter().try_for_each(|outcome| match outcome {
            Ok(result) => result,
            Err(_) => Err("a thread panicked".into()),
        })
    })?;
    shared.let_go()?;
    pool.check()?;
    pool.reclaim().map_err(text)?;
    let status = pool.status().map_err(text)?;
    match (status.block_count, status.in_use_bytes, status.reserved_bytes) {
        (0, 0, 0) => Ok(status.allocation_count),
        _ => Err(format!("nothing is allocated any more, but {status:?}")),
    }
}

struct Shared<'a> {
    pool: &'a Pool,
    size_power_max: u64,
    /// The claimed address ranges, from start to end.
    claims: Mutex<BTreeMap<u64, u64>>,
    /// Blocks for other threads to free.
    passed_on: Mutex<Vec<Block>>,
    running_count: AtomicUsize,
}

/// Counts a running thread until it ends or panics. The draining thread runs until the count is 0.
struct Running<'a>(&'a AtomicUsize);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shared<'_> {
    fn work(&self, seed: u64, stream: &Stream) -> Result<(), String> {
        let mut random = Random(seed | 1);
        let mut blocks: Vec<Block> = Vec::new();
        for _ in 0..STEP_COUNT {
            match random.below(8) {
                0..=3 if blocks.len() < BLOCKS_MAX => {
                    let power = SIZE_POWER_MIN + random.below(self.size_power_max + 1 - SIZE_POWER_MIN);
                    blocks.push(self.take(random.below(1 << power) + 1, stream)?);
                }
                6 if !blocks.is_empty() => self.pass_on(blocks.pop()),
                7 => {
                    let other = self.passed_on.lock().unwrap_or_else(PoisonError::into_inner).pop();
                    other.into_iter().try_for_each(|block| self.free(block))?;
                }
                _ => blocks.pop().into_iter().try_for_each(|block| self.free(block))?,
            }
        }
        blocks.into_iter().try_for_each(|block| self.free(block))
    }

    fn take(&self, size_bytes: u64, stream: &Stream) -> Result<Block, String> {
        let block = self.pool.alloc(size_bytes, stream).map_err(text)?;
        let (start, end) = (block.address(), block.address() + size_bytes);
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        let clash = claims.range(..end).next_back().filter(|(_, other_end)| **other_end > start);
        if let Some((other, other_end)) = clash {
            let found =
                format!("{start:#x} to {end:#x} was handed out, and {other:#x} to {other_end:#x} is in use");
            // The block overlaps one of another thread. A double free would obscure the cause.
            std::mem::forget(block);
            return Err(found);
        }
        claims.insert(start, end);
        Ok(block)
    }

    fn free(&self, block: Block) -> Result<(), String> {
        let claim = self.claims.lock().unwrap_or_else(PoisonError::into_inner).remove(&block.address());
        drop(block);
        claim.map(drop).ok_or_else(|| "a block was freed that nobody had".into())
    }

    fn pass_on(&self, block: Option<Block>) {
        self.passed_on.lock().unwrap_or_else(PoisonError::into_inner).extend(block);
    }

    /// Drains all magazines repeatedly.
    fn drain(&self) -> Result<(), String> {
        while self.running_count.load(Ordering::Relaxed) > 0 {
            self.pool.trim_to(u64::MAX).map_err(text)?;
            std::thread::yield_now();
        }
        Ok(())
    }

    fn let_go(&self) -> Result<(), String> {
        let rest = std::mem::take(&mut *self.passed_on.lock().unwrap_or_else(PoisonError::into_inner));
        rest.into_iter().try_for_each(|block| self.free(block))
    }
}

const THREAD_COUNT: usize = 3;
const STEP_COUNT: usize = 5000;
const BLOCKS_MAX: usize = 32;
const SIZE_POWER_MIN: u64 = 8;

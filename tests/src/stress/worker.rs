//! A thread of the stress test.

use super::{Done, Lane, Mistake, Room, Until};
use crate::pool::{Block, Device, Event, PoolError, Stream};
use crate::sys::types::{CUstream, CUstream_flags};
use std::ptr::null_mut;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender};

/// A block with contents.
pub(super) struct Piece {
    block: Block,
    /// The key of its pattern.
    key: u64,
    /// The lane that used it last. All earlier uses are ordered before that one.
    lane: usize,
}

pub(super) struct Worker<'a> {
    room: &'a Room<'a>,
    number: usize,
    random: Random,
    keys: u64,
    held: Vec<Piece>,
    inbox: Receiver<Piece>,
    doors: Vec<Sender<Piece>>,
    done: Done,
}

impl<'a> Worker<'a> {
    pub(super) fn new(
        room: &'a Room<'a>,
        number: usize,
        inbox: Receiver<Piece>,
        doors: Vec<Sender<Piece>>,
    ) -> Self {
        let random = Random(room.plan.seed ^ (number as u64 + 1).wrapping_mul(0x2545_F491_4F6C_DD1D));
        Self { room, number, random, keys: 0, held: Vec::new(), inbox, doors, done: Done::default() }
    }

    pub(super) fn run(mut self) -> Result<Done, PoolError> {
        let _bound = self.room.pool.device().bind()?;
        let mut steps = 0;
        while !self.is_over(steps) {
            self.step(steps)?;
            steps += 1;
        }
        while let Some(piece) = self.held.pop() {
            self.finish(piece)?;
        }
        // Other threads may send blocks until they reach this point.
        self.doors.clear();
        while let Ok(piece) = self.inbox.recv() {
            self.finish(piece)?;
        }
        Ok(self.done)
    }

    fn is_over(&self, steps: u64) -> bool {
        match self.room.plan.until {
            Until::Elapsed(time) => self.room.start.elapsed() >= time,
            Until::Steps(count) => steps >= count,
        }
    }

    fn step(&mut self, steps: u64) -> Result<(), PoolError> {
        self.receive()?;
        match self.random.below(100) {
            0..45 => self.make()?,
            45..65 => self.hand_over()?,
            65..72 => self.read_by_many()?,
            72..85 => self.send()?,
            85..97 => self.finish_any()?,
            97..99 => self.outlive_a_stream()?,
            _ => self.look_around()?,
        }
        if steps % SYNCHRONISE_EVERY == SYNCHRONISE_EVERY - 1 {
            self.lane(self.number % self.room.lanes.len()).stream.synchronize()?;
        }
        Ok(())
    }

    /// Allocates a block, and fills it on its own stream.
    fn make(&mut self) -> Result<(), PoolError> {
        let size_bytes = self.size_bytes();
        let live_bytes = self.room.live_bytes.fetch_add(size_bytes, Relaxed) + size_bytes;
        if live_bytes > self.room.plan.budget_bytes {
            self.room.live_bytes.fetch_sub(size_bytes, Relaxed);
            return self.finish_any();
        }
        let lane = self.some_lane();
        match self.room.pool.alloc(size_bytes, &self.lane(lane).stream) {
            Ok(block) => {
                let mut piece = Piece { block, key: 0, lane };
                self.write(&mut piece)?;
                if self.room.plan.mistake == Some(Mistake::End) && self.done.blocks < OVERRUN_COUNT {
                    self.overrun(&piece)?;
                }
                self.held.push(piece);
                self.done.blocks += 1;
                self.done.bytes += size_bytes;
                Ok(())
            }
            Err(error) => {
                self.room.live_bytes.fetch_sub(size_bytes, Relaxed);
                match error {
                    PoolError::OutOfMemory { .. } | PoolError::LimitReached { .. } => self.make_room(),
                    other => Err(other),
                }
            }
        }
    }

    fn make_room(&mut self) -> Result<(), PoolError> {
        self.done.refusals += 1;
        (0..self.held.len().div_ceil(2)).try_for_each(|_| self.finish_any())
    }

    /// Checks and refills a block on another stream.
    fn hand_over(&mut self) -> Result<(), PoolError> {
        let Some(mut piece) = self.take() else { return Ok(()) };
        let lane = self.some_lane();
        self.use_on(&piece, lane)?;
        piece.lane = lane;
        self.check(&piece, lane)?;
        self.write(&mut piece)?;
        self.held.push(piece);
        Ok(())
    }

    /// Checks a block on several streams concurrently, then frees it, or makes its lane wait for all of them and refills it.
    fn read_by_many(&mut self) -> Result<(), PoolError> {
        let Some(mut piece) = self.take() else { return Ok(()) };
        let lanes = [self.some_lane(), self.some_lane(), self.some_lane()];
        for lane in lanes {
            self.use_on(&piece, lane)?;
            self.check(&piece, lane)?;
        }
        if self.random.below(2) == 0 {
            return self.finish(piece);
        }
        let last = piece.lane;
        for lane in lanes {
            self.order(lane, last)?;
        }
        self.write(&mut piece)?;
        self.held.push(piece);
        Ok(())
    }

    fn send(&mut self) -> Result<(), PoolError> {
        let Some(piece) = self.take() else { return Ok(()) };
        let door = self.random.below(self.doors.len() as u64) as usize;
        self.done.sent += u64::from(door != self.number);
        match self.doors[door].send(piece) {
            Ok(()) => Ok(()),
            // The receiving thread has failed and returns its own error.
            Err(returned) => self.finish(returned.0),
        }
    }

    /// Receives blocks of other threads, and keeps, checks or frees them.
    fn receive(&mut self) -> Result<(), PoolError> {
        while let Ok(piece) = self.inbox.try_recv() {
            match self.random.below(3) {
                0 => self.finish(piece)?,
                // Freed while its last work is queued, by a thread that never used it.
                1 => self.free(piece),
                _ => self.held.push(piece),
            }
        }
        Ok(())
    }

    fn finish_any(&mut self) -> Result<(), PoolError> {
        let Some(piece) = self.take() else { return Ok(()) };
        if self.random.below(16) > 0 || self.room.plan.mistake.is_some() {
            return self.finish(piece);
        }
        self.check(&piece, piece.lane)?;
        self.lane(piece.lane).stream.synchronize()?;
        self.room.live_bytes.fetch_sub(piece.block.size_bytes(), Relaxed);
        // SAFETY: all uses of the block are ordered before the last use on its lane, whose stream was synchronised.
        unsafe { piece.block.free_completed() };
        Ok(())
    }

    /// Checks a block and frees it.
    fn finish(&mut self, piece: Piece) -> Result<(), PoolError> {
        self.check(&piece, piece.lane)?;
        self.free(piece);
        Ok(())
    }

    fn free(&mut self, piece: Piece) {
        let size_bytes = piece.block.size_bytes();
        drop(piece);
        self.room.live_bytes.fetch_sub(size_bytes, Relaxed);
    }

    /// Drops a stream before its block and its work.
    fn outlive_a_stream(&mut self) -> Result<(), PoolError> {
        let room = self.room;
        let size_bytes = self.size_bytes().min(1 << 16);
        let brief = Brief::new(room.pool.device(), self.random.below(4))?;
        let made = room.pool.alloc(size_bytes, &brief.stream);
        let Ok(block) = made else { return brief.end() };
        let key = self.key();
        // SAFETY: the block is alive, and its free is ordered after this kernel.
        unsafe { room.patterns.write(block.address(), size_bytes as usize, key, brief.stream.raw())? };
        room.live_bytes.fetch_add(size_bytes, Relaxed);
        self.done.blocks += 1;
        self.done.bytes += size_bytes;
        if self.random.below(2) == 0 {
            // The stream ends first and the block is freed right after it, while the write is queued.
            let ended = brief.end();
            self.free(Piece { block, key, lane: 0 });
            return ended;
        }
        let lane = self.some_lane();
        self.lane(lane).stream.wait_for(&brief.stream)?;
        block.record_use(&self.lane(lane).stream);
        self.held.push(Piece { block, key, lane });
        brief.end()
    }

    fn look_around(&mut self) -> Result<(), PoolError> {
        let room = self.room;
        let lane = self.some_lane();
        let stream = &self.lane(lane).stream;
        match self.random.below(5) {
            0 => stream.synchronize(),
            1 => stream.is_complete().map(drop),
            2 => room.pool.trim_to(room.plan.budget_bytes / 2).map(drop),
            3 => room.pool.status().map(drop),
            _ => {
                let event = Event::new(room.pool.device())?;
                event.record(stream)?;
                event.is_complete().map(drop)
            }
        }
    }

    /// Makes a lane wait for the last use of a block, and records the use.
    fn use_on(&mut self, piece: &Piece, lane: usize) -> Result<(), PoolError> {
        if lane == piece.lane {
            return Ok(());
        }
        self.done.hand_overs += 1;
        if self.room.plan.mistake != Some(Mistake::NoRecordUse) {
            piece.block.record_use(&self.lane(lane).stream);
        }
        self.order(piece.lane, lane)
    }

    fn order(&mut self, first: usize, then: usize) -> Result<(), PoolError> {
        if self.room.plan.mistake == Some(Mistake::NoWait) {
            return Ok(());
        }
        let (first, then) = (self.lane(first), self.lane(then));
        if self.random.below(2) == 0 {
            return then.stream.wait_for(&first.stream);
        }
        let event = Event::new(self.room.pool.device())?;
        event.record(&first.stream)?;
        then.stream.wait(&event)
    }

    /// Fills a block on its lane with a new pattern.
    fn write(&mut self, piece: &mut Piece) -> Result<(), PoolError> {
        piece.key = self.key();
        let (address, size_bytes) = (piece.block.address(), piece.block.size_bytes() as usize);
        let stream = self.lane(piece.lane).stream.raw();
        // SAFETY: the block is alive, its free is ordered after all work queued on its lane, and the context is current.
        unsafe { self.room.patterns.write(address, size_bytes, piece.key, stream)? };
        Ok(())
    }

    /// Writes the byte behind a block.
    fn overrun(&self, piece: &Piece) -> Result<(), PoolError> {
        let (end, stream) =
            (piece.block.address() + piece.block.size_bytes(), self.lane(piece.lane).stream.raw());
        // SAFETY: the byte belongs to a guard and is freed with the block, after all work queued on its lane.
        unsafe { self.room.pool.device().driver().cuMemsetD8Async(end, 0, 1, stream)? };
        Ok(())
    }

    fn check(&self, piece: &Piece, lane: usize) -> Result<(), PoolError> {
        let Lane { stream, ledger } = self.lane(lane);
        let (address, size_bytes) = (piece.block.address(), piece.block.size_bytes() as usize);
        // SAFETY: like `write`; the ledger is closed after all threads have ended.
        unsafe { self.room.patterns.check(address, size_bytes, piece.key, *ledger, stream.raw())? };
        Ok(())
    }

    fn key(&mut self) -> u64 {
        self.keys += 1;
        (self.number as u64 + 1) << 40 | self.keys
    }

    fn take(&mut self) -> Option<Piece> {
        let index = self.random.below(self.held.len() as u64) as usize;
        (!self.held.is_empty()).then(|| self.held.swap_remove(index))
    }

    fn lane(&self, lane: usize) -> &'a Lane {
        &self.room.lanes[lane]
    }

    /// Picks a lane: this thread's own in three of four cases.
    fn some_lane(&mut self) -> usize {
        let count = self.room.lanes.len();
        match self.random.below(4) {
            0 => self.random.below(count as u64) as usize,
            _ => self.number % count,
        }
    }

    fn size_bytes(&mut self) -> u64 {
        let octaves = u64::from(self.room.plan.size_bytes_max.max(512).ilog2() - SIZE_BYTES_MIN.ilog2());
        let base = SIZE_BYTES_MIN << self.random.below(octaves);
        base + self.random.below(base)
    }
}

/// A stream for one block.
struct Brief {
    stream: Stream,
    /// The handle, if another library owns the stream.
    foreign: Option<CUstream>,
}

impl Brief {
    fn new(device: &Device, kind: u64) -> Result<Self, PoolError> {
        let mut raw = null_mut();
        let stream = match kind {
            // SAFETY: the local outlives the call; `end` retires the stream before it destroys it.
            0 => unsafe {
                device.driver().cuStreamCreate(&mut raw, CUstream_flags::CU_STREAM_NON_BLOCKING.0)?;
                Stream::from_raw(device, raw)?
            },
            1 => Stream::per_thread(device)?,
            _ => Stream::new(device)?,
        };
        Ok(Self { stream, foreign: (!raw.is_null()).then_some(raw) })
    }

    fn end(self) -> Result<(), PoolError> {
        let Some(raw) = self.foreign else { return Ok(()) };
        self.stream.retire()?;
        let driver = self.stream.device().driver();
        let _guard = driver.teardown();
        // SAFETY: the stream was retired, and no handle to it is left.
        unsafe { driver.cuStreamDestroy_v2(raw)? };
        Ok(())
    }
}

/// The interval of synchronisations, in steps. It bounds the length of queues.
const SYNCHRONISE_EVERY: u64 = 256;
const SIZE_BYTES_MIN: u64 = 256;

/// Splitmix64.
struct Random(u64);

impl Random {
    /// A random number below `limit`; 0 if `limit` is 0.
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ mixed >> 31) % limit.max(1)
    }
}

/// The number of blocks of each thread that are overrun on request. It is small, because a guard checks no block while 1024 checks
/// are pending.
const OVERRUN_COUNT: u64 = 3;

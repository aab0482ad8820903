//! A thread of the stress test.

use super::{CheckedStream, Done, Mistake, Room, Until};
use crate::pool::{Block, Device, Event, PoolError, Stream};
use crate::sys::types::{CUstream, CUstream_flags};
use std::ptr::null_mut;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender};

/// A block with contents.
pub(super) struct Allocation {
    block: Block,
    /// The key of its pattern.
    key: u64,
    /// The index of the stream that used it last. All earlier uses are ordered before that one.
    stream_index: usize,
}

pub(super) struct Worker<'a> {
    room: &'a Room<'a>,
    number: usize,
    random: Random,
    keys: u64,
    held: Vec<Allocation>,
    inbox: Receiver<Allocation>,
    doors: Vec<Sender<Allocation>>,
    done: Done,
}

impl<'a> Worker<'a> {
    pub(super) fn new(
        room: &'a Room<'a>,
        number: usize,
        inbox: Receiver<Allocation>,
        doors: Vec<Sender<Allocation>>,
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
        while let Some(allocation) = self.held.pop() {
            self.finish(allocation)?;
        }
        // Other threads may send blocks until they reach this point.
        self.doors.clear();
        while let Ok(allocation) = self.inbox.recv() {
            self.finish(allocation)?;
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
            self.checked_stream(self.number % self.room.streams.len()).stream.synchronize()?;
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
        let stream_index = self.some_lane();
        match self.room.pool.alloc(size_bytes, &self.checked_stream(stream_index).stream) {
            Ok(block) => {
                let mut allocation = Allocation { block, key: 0, stream_index };
                self.write(&mut allocation)?;
                if self.room.plan.mistake == Some(Mistake::End) && self.done.blocks < OVERRUN_COUNT {
                    self.overrun(&allocation)?;
                }
                self.held.push(allocation);
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
        let Some(mut allocation) = self.take() else { return Ok(()) };
        let stream_index = self.some_lane();
        self.use_on(&allocation, stream_index)?;
        allocation.stream_index = stream_index;
        self.check(&allocation, stream_index)?;
        self.write(&mut allocation)?;
        self.held.push(allocation);
        Ok(())
    }

    /// Checks a block on several streams concurrently, then frees it, or makes its stream wait for all of them and refills it.
    fn read_by_many(&mut self) -> Result<(), PoolError> {
        let Some(mut allocation) = self.take() else { return Ok(()) };
        let streams = [self.some_lane(), self.some_lane(), self.some_lane()];
        for stream_index in streams {
            self.use_on(&allocation, stream_index)?;
            self.check(&allocation, stream_index)?;
        }
        if self.random.below(2) == 0 {
            return self.finish(allocation);
        }
        let last = allocation.stream_index;
        for stream_index in streams {
            self.order(stream_index, last)?;
        }
        self.write(&mut allocation)?;
        self.held.push(allocation);
        Ok(())
    }

    fn send(&mut self) -> Result<(), PoolError> {
        let Some(allocation) = self.take() else { return Ok(()) };
        let door = self.random.below(self.doors.len() as u64) as usize;
        self.done.sent += u64::from(door != self.number);
        match self.doors[door].send(allocation) {
            Ok(()) => Ok(()),
            // The receiving thread has failed and returns its own error.
            Err(returned) => self.finish(returned.0),
        }
    }

    /// Receives blocks of other threads, and keeps, checks or frees them.
    fn receive(&mut self) -> Result<(), PoolError> {
        while let Ok(allocation) = self.inbox.try_recv() {
            match self.random.below(3) {
                0 => self.finish(allocation)?,
                // Freed while its last work is queued, by a thread that never used it.
                1 => self.free(allocation),
                _ => self.held.push(allocation),
            }
        }
        Ok(())
    }

    fn finish_any(&mut self) -> Result<(), PoolError> {
        let Some(allocation) = self.take() else { return Ok(()) };
        if self.random.below(16) > 0 || self.room.plan.mistake.is_some() {
            return self.finish(allocation);
        }
        self.check(&allocation, allocation.stream_index)?;
        self.checked_stream(allocation.stream_index).stream.synchronize()?;
        self.room.live_bytes.fetch_sub(allocation.block.size_bytes(), Relaxed);
        // SAFETY: all uses of the block are ordered before the last use on its stream, which was synchronised.
        unsafe { allocation.block.free_completed() };
        Ok(())
    }

    /// Checks a block and frees it.
    fn finish(&mut self, allocation: Allocation) -> Result<(), PoolError> {
        self.check(&allocation, allocation.stream_index)?;
        self.free(allocation);
        Ok(())
    }

    fn free(&mut self, allocation: Allocation) {
        let size_bytes = allocation.block.size_bytes();
        drop(allocation);
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
            self.free(Allocation { block, key, stream_index: 0 });
            return ended;
        }
        let stream_index = self.some_lane();
        self.checked_stream(stream_index).stream.wait_for(&brief.stream)?;
        block.record_use(&self.checked_stream(stream_index).stream);
        self.held.push(Allocation { block, key, stream_index });
        brief.end()
    }

    fn look_around(&mut self) -> Result<(), PoolError> {
        let room = self.room;
        let stream_index = self.some_lane();
        let stream = &self.checked_stream(stream_index).stream;
        match self.random.below(5) {
            0 => stream.synchronize().map_err(Into::into),
            1 => stream.is_complete().map(drop).map_err(Into::into),
            2 => room.pool.trim_to(room.plan.budget_bytes / 2).map(drop),
            3 => room.pool.status().map(drop),
            _ => {
                let event = Event::new(room.pool.device())?;
                event.record(stream)?;
                event.is_complete().map(drop).map_err(Into::into)
            }
        }
    }

    /// Makes a stream wait for the last use of a block, and records the use.
    fn use_on(&mut self, allocation: &Allocation, stream_index: usize) -> Result<(), PoolError> {
        if stream_index == allocation.stream_index {
            return Ok(());
        }
        self.done.hand_overs += 1;
        if self.room.plan.mistake != Some(Mistake::NoRecordUse) {
            allocation.block.record_use(&self.checked_stream(stream_index).stream);
        }
        self.order(allocation.stream_index, stream_index)
    }

    fn order(&mut self, first: usize, then: usize) -> Result<(), PoolError> {
        if self.room.plan.mistake == Some(Mistake::NoWait) {
            return Ok(());
        }
        let (first, then) = (self.checked_stream(first), self.checked_stream(then));
        if self.random.below(2) == 0 {
            return then.stream.wait_for(&first.stream).map_err(Into::into);
        }
        let event = Event::new(self.room.pool.device())?;
        event.record(&first.stream)?;
        then.stream.wait(&event).map_err(Into::into)
    }

    /// Fills a block on its stream with a new pattern.
    fn write(&mut self, allocation: &mut Allocation) -> Result<(), PoolError> {
        allocation.key = self.key();
        let (address, size_bytes) = (allocation.block.address(), allocation.block.size_bytes() as usize);
        let stream = self.checked_stream(allocation.stream_index).stream.raw();
        // SAFETY: the block is alive, its free is ordered after all work queued on its stream, and the context is current.
        unsafe { self.room.patterns.write(address, size_bytes, allocation.key, stream)? };
        Ok(())
    }

    /// Writes the byte behind a block.
    fn overrun(&self, allocation: &Allocation) -> Result<(), PoolError> {
        let (end, stream) = (
            allocation.block.address() + allocation.block.size_bytes(),
            self.checked_stream(allocation.stream_index).stream.raw(),
        );
        // SAFETY: the byte belongs to a guard and is freed with the block, after all work queued on its stream.
        unsafe { self.room.pool.device().driver().cuMemsetD8Async(end, 0, 1, stream)? };
        Ok(())
    }

    fn check(&self, allocation: &Allocation, stream_index: usize) -> Result<(), PoolError> {
        let CheckedStream { stream, mismatches } = self.checked_stream(stream_index);
        let (address, size_bytes) = (allocation.block.address(), allocation.block.size_bytes() as usize);
        // SAFETY: like `write`; the buffer is closed after all threads have ended.
        unsafe { self.room.patterns.check(address, size_bytes, allocation.key, *mismatches, stream.raw())? };
        Ok(())
    }

    fn key(&mut self) -> u64 {
        self.keys += 1;
        (self.number as u64 + 1) << 40 | self.keys
    }

    fn take(&mut self) -> Option<Allocation> {
        let index = self.random.below(self.held.len() as u64) as usize;
        (!self.held.is_empty()).then(|| self.held.swap_remove(index))
    }

    fn checked_stream(&self, stream_index: usize) -> &'a CheckedStream {
        &self.room.streams[stream_index]
    }

    /// Picks the index of a stream: this thread's own in three of four cases.
    fn some_lane(&mut self) -> usize {
        let count = self.room.streams.len();
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
        let address = raw.expose_provenance();
        let destroyed = driver.destroy(move |driver| {
            let raw = core::ptr::with_exposed_provenance_mut(address);
            // SAFETY: the stream was retired, and no handle to it is left.
            unsafe { driver.cuStreamDestroy_v2(raw) }
        });
        Ok(destroyed?)
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

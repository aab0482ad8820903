//! Carries a [`Case`] out on the real pool, beside the [`Twin`], and keeps a transcript that reads like a program.
//!
//! The user played here is correct and does no more than he must: before a stream touches a block it waits for the
//! block's last writer, and before it writes also for the readers since; every stream but home is recorded. When a
//! stream's handle is dropped, events take its place in those lists. Home is the block's first writer, since its
//! memory is there only in home's order.

use super::operation::{Case, Operation, Pick, Wait};
use super::refusal;
use super::search::Coverage;
use super::twin::{Twin, windows};
use crate::pool::{BackendKind, Block, Device, Event, Pool, PoolError, Stream, StreamId};
use crate::sys::{Driver, Sim, SimConfig, Table};
use std::rc::Rc;

/// Runs a case. The transcript tells what was done, whatever came of it.
///
/// # Errors
///
/// What the pool did wrong, in a sentence.
pub fn run(
    case: &Case,
    backend: BackendKind,
    sabotage: Option<fn(&mut Table)>,
    coverage: &mut Coverage,
    transcript: &mut Vec<String>,
) -> Result<(), String> {
    let config = SimConfig::new().seed(case.sim_seed).memory_bytes(case.memory_bytes);
    let driver = Driver::sim(config).map_err(|error| error.to_string())?;
    let sim = driver.simulator().ok_or("no simulator")?.clone();
    let driver = refusal::wrap(&driver, sabotage);
    let mut world = World::new(case, backend, &driver).map_err(|error| error.to_string())?;
    world.say_setup(case, transcript);
    for operation in &case.operations {
        let said = transcript.len();
        let outcome = world.step(operation, coverage, transcript).and_then(|()| world.compare(&sim));
        coverage.operations += u64::from(transcript.len() > said);
        outcome.map_err(|what| format!("{what}{}", faults(&sim)))?;
    }
    world.finish(&sim).map_err(|what| format!("at the end: {what}{}", faults(&sim)))
}

/// What a block's users are waited for by.
#[derive(Clone)]
enum User {
    /// A stream that its user still has.
    Stream(StreamId),
    /// An event recorded when its user let the stream go.
    Gone(Rc<Event>),
}

struct Live {
    name: u32,
    block: Block,
    writer: User,
    readers: Vec<User>,
}

struct World<'a> {
    case: &'a Case,
    backend: BackendKind,
    driver: Driver,
    device: Device,
    pool: Pool,
    streams: Vec<Stream>,
    marks: Vec<Event>,
    blocks: Vec<Live>,
    twin: Twin,
    next_name: u32,
}

type Step = Result<(), String>;

impl<'a> World<'a> {
    fn new(case: &'a Case, backend: BackendKind, driver: &Driver) -> Result<Self, PoolError> {
        let device = Device::new(driver, 0)?;
        let pool = open(case, backend, &device)?;
        let streams = vec![Stream::new(&device)?];
        let mut twin = Twin::default();
        twin.open(case.hard_limit_bytes);
        let (blocks, marks) = (Vec::new(), Vec::new());
        Ok(Self {
            case,
            backend,
            driver: driver.clone(),
            device,
            pool,
            streams,
            marks,
            blocks,
            twin,
            next_name: 0,
        })
    }

    fn say_setup(&self, case: &Case, transcript: &mut Vec<String>) {
        let Case { sim_seed, memory_bytes, hard_limit_bytes, soft_limit_bytes, .. } = case;
        transcript.push(format!("SimConfig::new().seed({sim_seed}).memory_bytes({memory_bytes})"));
        transcript.push(format!(
            "pool: {}, hard limit {hard_limit_bytes:?}, soft limit {soft_limit_bytes:?}; stream {}",
            self.backend,
            name(&self.streams[0])
        ));
    }

    fn step(&mut self, operation: &Operation, coverage: &mut Coverage, said: &mut Vec<String>) -> Step {
        match *operation {
            Operation::NewStream => self.new_stream(said),
            Operation::DropStream { stream } => self.drop_stream(stream, said),
            Operation::NewPool => {
                said.push("pool = a new pool with the same options".into());
                self.pool = open(self.case, self.backend, &self.device).map_err(text)?;
                self.twin.open(self.case.hard_limit_bytes);
                Ok(())
            }
            Operation::Allocate { stream, size_bytes } => {
                self.allocate(stream, size_bytes, 0, coverage, said)
            }
            Operation::AllocateRefused { stream, size_bytes, count } => {
                self.allocate(stream, size_bytes, count, coverage, said)
            }
            Operation::Free { block, elsewhere } => self.free(block, elsewhere, said),
            Operation::Fill { block, stream, value, wait } => self.fill((block, stream, value, wait), said),
            Operation::Copy { source, target, stream, wait } => {
                self.copy((source, target, stream, wait), said)
            }
            Operation::Check { block } => {
                let Some(index) = block.of(self.blocks.len()) else { return Ok(()) };
                said.push(format!("check(b{})", self.blocks[index].name));
                self.check(index)
            }
            Operation::Mark { stream } => self.mark(stream, said),
            Operation::Wait { stream, mark } => self.wait_for_mark(stream, mark, said),
            Operation::Synchronize { stream } => {
                let Some(stream) = self.stream(stream) else { return Ok(()) };
                said.push(format!("{}.synchronize()", name(&stream)));
                stream.synchronize().map_err(text)
            }
            Operation::SynchronizeDevice => {
                said.push("device.synchronize()".into());
                self.device.synchronize().map_err(text)
            }
            Operation::Reclaim => {
                said.push("pool.reclaim()".into());
                self.pool.reclaim().map(drop).map_err(text)
            }
            Operation::Trim { keep_bytes } => {
                said.push(format!("pool.trim_to({keep_bytes})"));
                self.pool.trim_to(keep_bytes).map(drop).map_err(text)
            }
        }
    }

    fn new_stream(&mut self, said: &mut Vec<String>) -> Step {
        if self.streams.len() < STREAMS_MAX {
            let stream = Stream::new(&self.device).map_err(text)?;
            said.push(format!("let {} = Stream::new()", name(&stream)));
            self.streams.push(stream);
        }
        Ok(())
    }

    fn drop_stream(&mut self, pick: Pick, said: &mut Vec<String>) -> Step {
        let Some(index) = pick.of(self.streams.len()).filter(|_| self.streams.len() > 1) else {
            return Ok(());
        };
        let stream = self.streams.remove(index);
        said.push(format!("drop({})", name(&stream)));
        let event = Event::new(&self.device).map_err(text)?;
        event.record(&stream).map_err(text)?;
        let event = Rc::new(event);
        for live in &mut self.blocks {
            let users = live.readers.iter_mut().chain([&mut live.writer]);
            for user in users.filter(|user| matches!(user, User::Stream(id) if *id == stream.id())) {
                *user = User::Gone(Rc::clone(&event));
            }
        }
        Ok(())
    }

    fn allocate(
        &mut self,
        pick: Pick,
        size_bytes: u64,
        refusals: u32,
        coverage: &mut Coverage,
        said: &mut Vec<String>,
    ) -> Step {
        let Some(stream) = self.stream(pick).filter(|_| self.blocks.len() < BLOCKS_MAX) else {
            return Ok(());
        };
        let refused =
            if refusals == 0 { String::new() } else { format!(" // the driver refuses {refusals} times") };
        said.push(format!("let b{} = pool.alloc({size_bytes}, &{}){refused}", self.next_name, name(&stream)));
        let outcome = refusal::during(refusals, || self.pool.alloc(size_bytes, &stream));
        coverage.count(&outcome);
        match outcome {
            Ok(block) => self.allocated(block, size_bytes, &stream),
            Err(error) => {
                if let Some(line) = said.last_mut() {
                    line.push_str(&format!(" // {}", summary(&error)));
                }
                self.refused(error, size_bytes, &stream, refusals)
            }
        }
    }

    fn allocated(&mut self, block: Block, size_bytes: u64, stream: &Stream) -> Step {
        if block.size_bytes() != size_bytes || block.stream() != stream {
            return Err(format!("{block:?} is not what was asked for"));
        }
        if size_bytes == 0 {
            return if block.address() == 0 { Ok(()) } else { Err(format!("{block:?} is not empty")) };
        }
        if size_bytes > self.case.memory_bytes || !self.twin.admits(size_bytes) {
            return Err(format!("{size_bytes} bytes were handed out beyond the device or the limit"));
        }
        self.twin.allocate(block.address(), size_bytes)?;
        let writer = User::Stream(stream.id());
        self.blocks.push(Live { name: self.next_name, block, writer, readers: Vec::new() });
        self.next_name += 1;
        Ok(())
    }

    /// Whether an error was the right one.
    fn refused(&mut self, error: PoolError, asked_bytes: u64, stream: &Stream, refusals: u32) -> Step {
        let in_use = self.twin.pools.last().map_or(0, |books| books.in_use_bytes);
        let limit = self.case.hard_limit_bytes;
        let wrong = format!("{asked_bytes} bytes with {in_use} in use: {error:?}");
        match error {
            PoolError::TooLarge { requested_bytes, device_bytes } => {
                let right = (requested_bytes, device_bytes) == (asked_bytes, self.case.memory_bytes);
                if right && asked_bytes > self.case.memory_bytes { Ok(()) } else { Err(wrong) }
            }
            PoolError::LimitReached { requested_bytes, in_use_bytes, limit_bytes } => {
                let right =
                    (requested_bytes, in_use_bytes, Some(limit_bytes)) == (asked_bytes, in_use, limit);
                if right && !self.twin.admits(asked_bytes) { Ok(()) } else { Err(wrong) }
            }
            PoolError::OutOfMemory { requested_bytes, in_use_bytes, .. } => {
                if (requested_bytes, in_use_bytes) != (asked_bytes, in_use) || !self.twin.admits(asked_bytes)
                {
                    return Err(wrong);
                }
                self.out_of_memory_is_true(asked_bytes, stream, refusals)
            }
            _ => Err(wrong),
        }
    }

    /// A pool that keeps memory tries twice; what still fails must not succeed after a reclaim by hand.
    fn out_of_memory_is_true(&mut self, asked_bytes: u64, stream: &Stream, refusals: u32) -> Step {
        let tries = if self.backend == BackendKind::None { 1 } else { 2 };
        if refusals >= tries {
            return Ok(());
        }
        if self.blocks.is_empty() {
            return Err(format!("out of memory for {asked_bytes} bytes, and nothing is allocated"));
        }
        self.pool.reclaim().map_err(text)?;
        match self.pool.alloc(asked_bytes, stream) {
            Err(PoolError::OutOfMemory { .. }) => Ok(()),
            other => {
                Err(format!("out of memory for {asked_bytes} bytes, but after a reclaim by hand: {other:?}"))
            }
        }
    }

    fn free(&mut self, pick: Pick, elsewhere: bool, said: &mut Vec<String>) -> Step {
        let Some(index) = pick.of(self.blocks.len()) else { return Ok(()) };
        let Live { name, block, .. } = self.blocks.swap_remove(index);
        let place = if elsewhere { " // on a thread of its own" } else { "" };
        said.push(format!("drop(b{name}){place}"));
        self.twin.free(block.address());
        match elsewhere {
            false => drop(block),
            true => std::thread::scope(|scope| scope.spawn(move || drop(block)).join())
                .map_err(|_| "dropping a block panicked")?,
        }
        Ok(())
    }

    fn fill(&mut self, (block, stream, value, wait): (Pick, Pick, u8, Wait), said: &mut Vec<String>) -> Step {
        let (Some(index), Some(stream)) = (block.of(self.blocks.len()), self.stream(stream)) else {
            return Ok(());
        };
        let waits = self.order(index, &stream, true, wait)?;
        said.push(format!("{waits}fill(&b{}, {value}, &{})", self.blocks[index].name, name(&stream)));
        let block = &self.blocks[index].block;
        let _bound = self.device.bind().map_err(text)?;
        for (offset, length) in windows(block.size_bytes()) {
            let address = block.address() + offset;
            // SAFETY: the window is inside the block, which is alive and records this stream.
            unsafe {
                self.driver.cuMemsetD8Async(address, value, length as usize, stream.raw()).map_err(text)?
            };
        }
        self.twin.fill(block.address(), value);
        Ok(())
    }

    fn copy(&mut self, picks: (Pick, Pick, Pick, Wait), said: &mut Vec<String>) -> Step {
        let (source, target, stream, wait) = picks;
        let count = self.blocks.len();
        let (Some(source), Some(target), Some(stream)) =
            (source.of(count), target.of(count), self.stream(stream))
        else {
            return Ok(());
        };
        let (from, to) = (self.blocks[source].block.address(), self.blocks[target].block.address());
        let Some(count) = self.twin.copyable_bytes(from, to) else { return Ok(()) };
        let waits = self.order(source, &stream, false, wait)? + &self.order(target, &stream, true, wait)?;
        let (source, target) = (self.blocks[source].name, self.blocks[target].name);
        said.push(format!("{waits}copy(&b{source}, &b{target}, {count}, &{})", name(&stream)));
        let _bound = self.device.bind().map_err(text)?;
        // SAFETY: both blocks are alive, at least this long, and record this stream.
        unsafe { self.driver.cuMemcpyDtoDAsync_v2(to, from, count as usize, stream.raw()).map_err(text)? };
        self.twin.copy(from, to, count);
        Ok(())
    }

    /// Makes a stream wait for what it must before it touches a block, and enters it in the block's lists.
    fn order(&mut self, index: usize, stream: &Stream, writes: bool, wait: Wait) -> Result<String, String> {
        let live = &mut self.blocks[index];
        let mut said = String::new();
        let readers = if writes { std::mem::take(&mut live.readers) } else { Vec::new() };
        for user in readers.into_iter().chain([live.writer.clone()]) {
            said += &wait_for(&self.streams, stream, &user, wait)?;
        }
        live.block.record_use(stream);
        match writes {
            true => live.writer = User::Stream(stream.id()),
            false => live.readers.push(User::Stream(stream.id())),
        }
        Ok(said)
    }

    /// Compares a block's contents with the twin's, once its last writer is done.
    fn check(&self, index: usize) -> Step {
        let Live { name, block, writer, .. } = &self.blocks[index];
        let Some(expected) = self.twin.contents(block.address()) else { return Ok(()) };
        match writer {
            User::Gone(event) => event.synchronize().map_err(text)?,
            User::Stream(id) => match self.streams.iter().find(|stream| stream.id() == *id) {
                Some(stream) => stream.synchronize().map_err(text)?,
                None => return Err("a writer is not in the list".into()),
            },
        }
        let _bound = self.device.bind().map_err(text)?;
        let mut found = Vec::with_capacity(expected.len());
        for (offset, length) in windows(block.size_bytes()) {
            let mut bytes = vec![0_u8; length as usize];
            // SAFETY: the window is inside the block, and the buffer is as long as the window.
            unsafe {
                let address = block.address() + offset;
                self.driver.cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, bytes.len()).map_err(text)?;
            }
            found.extend(bytes);
        }
        match expected.iter().zip(&found).position(|(expected, found)| expected != found) {
            None => Ok(()),
            Some(at) => Err(format!(
                "byte {at} of b{name} ({} bytes at {:#x}) is {}, and {} was written last",
                block.size_bytes(),
                block.address(),
                found[at],
                expected[at]
            )),
        }
    }

    fn mark(&mut self, pick: Pick, said: &mut Vec<String>) -> Step {
        let Some(stream) = self.stream(pick).filter(|_| self.marks.len() < MARKS_MAX) else { return Ok(()) };
        let event = Event::new(&self.device).map_err(text)?;
        event.record(&stream).map_err(text)?;
        said.push(format!("let e{} = an event recorded on {}", self.marks.len(), name(&stream)));
        self.marks.push(event);
        Ok(())
    }

    fn wait_for_mark(&mut self, pick: Pick, mark: Pick, said: &mut Vec<String>) -> Step {
        let (Some(stream), Some(mark)) = (self.stream(pick), mark.of(self.marks.len())) else {
            return Ok(());
        };
        said.push(format!("{}.wait(&e{mark})", name(&stream)));
        stream.wait(&self.marks[mark]).map_err(text)
    }

    fn stream(&self, pick: Pick) -> Option<Stream> {
        pick.of(self.streams.len()).map(|index| self.streams[index].clone())
    }

    /// Everything that must hold after every step.
    fn compare(&self, sim: &Sim) -> Step {
        let report = sim.report();
        if !report.faults.is_empty() {
            return Err("work went astray".into());
        }
        let mut ours: Vec<(u64, u64)> =
            self.blocks.iter().map(|live| (live.block.address(), live.block.size_bytes())).collect();
        ours.sort_unstable();
        let drivers: Vec<(u64, u64)> =
            report.allocations.iter().map(|live| (live.address, live.size_bytes)).collect();
        if ours != drivers {
            return Err(format!("the blocks are {ours:x?}, and the driver's allocations {drivers:x?}"));
        }
        let status = self.pool.status().map_err(text)?;
        let Some(books) = self.twin.pools.last() else { return Ok(()) };
        let expected = (books.in_use_bytes, books.peak_bytes, books.block_count, books.allocation_count);
        let found =
            (status.in_use_bytes, status.in_use_peak_bytes, status.block_count, status.allocation_count);
        if expected != found {
            return Err(format!("in use, peak, blocks, allocations are {expected:?}, status says {found:?}"));
        }
        let sums = status.cached_bytes == status.reserved_bytes.saturating_sub(status.in_use_bytes)
            && status.reserved_bytes >= status.in_use_bytes
            && status.reserved_peak_bytes >= status.reserved_bytes
            && status.device_used_bytes >= status.reserved_bytes
            && status.hard_limit_bytes.is_none_or(|limit| status.in_use_peak_bytes <= limit);
        if sums { Ok(()) } else { Err(format!("the sums do not add up: {status:?}")) }
    }

    /// Every block's contents, then everything is let go, and nothing may be left.
    fn finish(mut self, sim: &Sim) -> Step {
        (0..self.blocks.len()).try_for_each(|index| self.check(index))?;
        self.device.synchronize().map_err(text)?;
        self.marks.clear();
        self.streams.truncate(1);
        for live in self.blocks.drain(..) {
            self.twin.free(live.block.address());
        }
        self.compare(sim)?;
        self.pool.reclaim().map_err(text)?;
        let status = self.pool.status().map_err(text)?;
        if status.reserved_bytes != 0 {
            return Err(format!("{} bytes are reserved for nothing", status.reserved_bytes));
        }
        let device = self.device.clone();
        drop(self);
        device.synchronize().map_err(text)?;
        let (info, report) = (device.memory_info().map_err(text)?, sim.report());
        if info.free_bytes != info.total_bytes || report.stream_count + report.event_count > 0 {
            return Err(format!("something is left: {info:?}\n{report}"));
        }
        Ok(())
    }
}

fn open(case: &Case, backend: BackendKind, device: &Device) -> Result<Pool, PoolError> {
    let mut builder = Pool::builder(device).backend(backend);
    if let Some(limit_bytes) = case.hard_limit_bytes {
        builder = builder.hard_limit(limit_bytes);
    }
    if let Some(limit_bytes) = case.soft_limit_bytes {
        builder = builder.soft_limit(limit_bytes);
    }
    builder.build()
}

/// Waits in one of the ways that there are; nothing where the order is there already.
fn wait_for(streams: &[Stream], stream: &Stream, user: &User, wait: Wait) -> Result<String, String> {
    let other = match user {
        User::Stream(id) if *id == stream.id() => return Ok(String::new()),
        User::Stream(id) => {
            streams.iter().find(|stream| stream.id() == *id).ok_or("a user is not in the list")?
        }
        User::Gone(event) => {
            match wait {
                Wait::Host => event.synchronize().map_err(text)?,
                Wait::Fence | Wait::Event => stream.wait(event).map_err(text)?,
            }
            return Ok(format!("{} waits for a stream that is gone; ", name(stream)));
        }
    };
    match wait {
        Wait::Fence => stream.wait_for(other).map_err(text)?,
        Wait::Host => other.synchronize().map_err(text)?,
        Wait::Event => {
            let event = Event::new(stream.device()).map_err(text)?;
            event.record(other).map_err(text)?;
            stream.wait(&event).map_err(text)?;
        }
    }
    Ok(format!("{} waits for {} ({wait:?}); ", name(stream), name(other)))
}

fn faults(sim: &Sim) -> String {
    sim.report().faults.iter().map(|fault| format!("\n  the software driver: {fault}")).collect()
}

fn summary(error: &PoolError) -> &'static str {
    match error {
        PoolError::OutOfMemory { .. } => "out of memory",
        PoolError::TooLarge { .. } => "too large",
        PoolError::LimitReached { .. } => "limit reached",
        _ => "an error",
    }
}

fn name(stream: &Stream) -> String {
    stream.id().to_string().replace("stream ", "s")
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

const STREAMS_MAX: usize = 6;
const BLOCKS_MAX: usize = 64;
const MARKS_MAX: usize = 8;

//! Carries a [`Case`] out on the real pool, beside the [`Twin`], and keeps a transcript that reads like a program.
//!
//! The user played here is correct and does no more than he must: before a stream touches a block it waits for the
//! block's last writer, and before it writes also for the readers since; every stream but home is recorded. When a
//! stream's handle is dropped, events take its place in those lists. Home is the block's first writer, since its
//! memory is there only in home's order.

use super::operation::{Case, Operation, Pick};
use super::refusal;
use super::search::Coverage;
use super::streams::{Streams, User};
use super::twin::Twin;
use crate::pool::{BackendKind, Block, Device, Event, Pool, PoolError, Stream};
use crate::sys::sim::AllocationKind;
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

/// A block and who used it.
pub(super) struct Live {
    pub(super) name: u32,
    pub(super) block: Block,
    pub(super) writer: User,
    pub(super) readers: Vec<User>,
}

/// The real things, and the twin.
pub(super) struct World<'a> {
    pub(super) case: &'a Case,
    pub(super) backend: BackendKind,
    pub(super) driver: Driver,
    pub(super) device: Device,
    pub(super) pool: Pool,
    pub(super) streams: Streams,
    marks: Vec<Event>,
    pub(super) blocks: Vec<Live>,
    pub(super) twin: Twin,
    pub(super) next_name: u32,
    /// Pinned memory that reads go to.
    pub(super) sink: *mut u8,
}

pub(super) type Step = Result<(), String>;

impl<'a> World<'a> {
    fn new(case: &'a Case, backend: BackendKind, driver: &Driver) -> Result<Self, PoolError> {
        let device = Device::new(driver, 0)?;
        let pool = open(case, backend, &device)?;
        let streams =
            (0..case.stream_count.max(1)).map(|_| Stream::new(&device)).collect::<Result<_, _>>()?;
        let streams = Streams::new(streams);
        let sink = Self::open_sink(driver, &device)?;
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
            sink,
        })
    }

    fn say_setup(&self, case: &Case, transcript: &mut Vec<String>) {
        let Case { sim_seed, memory_bytes, hard_limit_bytes, soft_limit_bytes, stream_count, .. } = case;
        transcript.push(format!("SimConfig::new().seed({sim_seed}).memory_bytes({memory_bytes})"));
        transcript.push(format!(
            "pool: {}, hard limit {hard_limit_bytes:?}, soft limit {soft_limit_bytes:?}; streams s0 to s{}",
            self.backend,
            stream_count - 1
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
            Operation::Allocate { stream, size } => self.allocate(stream, size, 0, coverage, said),
            Operation::AllocateRefused { stream, size, count } => {
                self.allocate(stream, size, count, coverage, said)
            }
            Operation::Free { block, elsewhere } => self.free(block, elsewhere, said),
            Operation::Fill { block, stream, value, wait } => self.fill((block, stream, value, wait), said),
            Operation::Copy { source, target, stream, wait } => {
                self.copy((source, target, stream, wait), said)
            }
            Operation::Read { block, stream, wait } => self.read(block, stream, wait, said),
            Operation::Check { block } => {
                let Some(index) = block.of(self.blocks.len()) else { return Ok(()) };
                said.push(format!("check(b{})", self.blocks[index].name));
                self.check(index)
            }
            Operation::Mark { stream } => self.mark(stream, said),
            Operation::Wait { stream, mark } => self.wait_for_mark(stream, mark, said),
            Operation::Synchronize { stream } => {
                let Some(stream) = self.streams.pick(stream) else { return Ok(()) };
                said.push(format!("{}.synchronize()", self.streams.name(&stream)));
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
        if let Some(stream) = self.streams.make(&self.device)? {
            said.push(format!("let {} = Stream::new()", self.streams.name(&stream)));
        }
        Ok(())
    }

    fn drop_stream(&mut self, pick: Pick, said: &mut Vec<String>) -> Step {
        let Some(stream) = self.streams.take(pick) else { return Ok(()) };
        said.push(format!("drop({})", self.streams.name(&stream)));
        let event = Event::new(&self.device).map_err(text)?;
        event.record(&stream).map_err(text)?;
        let event = Rc::new(event);
        for live in &mut self.blocks {
            let users = live.readers.iter_mut().chain([&mut live.writer]);
            for user in users.filter(|user| user.is(&stream)) {
                *user = User::Gone(Rc::clone(&event));
            }
        }
        Ok(())
    }

    fn mark(&mut self, pick: Pick, said: &mut Vec<String>) -> Step {
        let Some(stream) = self.streams.pick(pick).filter(|_| self.marks.len() < MARKS_MAX) else {
            return Ok(());
        };
        let event = Event::new(&self.device).map_err(text)?;
        event.record(&stream).map_err(text)?;
        said.push(format!("let e{} = an event recorded on {}", self.marks.len(), self.streams.name(&stream)));
        self.marks.push(event);
        Ok(())
    }

    fn wait_for_mark(&mut self, pick: Pick, mark: Pick, said: &mut Vec<String>) -> Step {
        let (Some(stream), Some(mark)) = (self.streams.pick(pick), mark.of(self.marks.len())) else {
            return Ok(());
        };
        said.push(format!("{}.wait(&e{mark})", self.streams.name(&stream)));
        stream.wait(&self.marks[mark]).map_err(text)
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
        let drivers: Vec<(u64, u64)> = report
            .allocations
            .iter()
            .filter(|live| live.kind != AllocationKind::Host)
            .map(|live| (live.address, live.size_bytes))
            .collect();
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
        self.streams.keep_one();
        for live in self.blocks.drain(..) {
            self.twin.free(live.block.address());
        }
        self.compare(sim)?;
        self.close_sink()?;
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

fn faults(sim: &Sim) -> String {
    sim.report().faults.iter().map(|fault| format!("\n  the software driver: {fault}")).collect()
}

pub(super) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

const MARKS_MAX: usize = 8;

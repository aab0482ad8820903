//! Carries a [`Case`] out on the real pool, beside the [`Twin`], and keeps a transcript that reads like a program.
//!
//! The user played here is correct and does no more than he must: before a stream touches a block it waits for the
//! block's last writer, and before it writes also for the readers since; every stream but home is recorded. When a
//! stream's handle is dropped, events take its place in those lists. Home is the block's first writer, since its
//! memory is there only in home's order.

use super::coverage::Coverage;
use super::faults::{self, Fault};
use super::operation::{Case, Kind, Operation, Pick};
use super::places::Other;
use super::streams::{Streams, User};
use super::subject::Subject;
use super::twin::Twin;
use crate::pool::{Block, Device, Event, Pool, PoolError, Stream};
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
    subject: Subject,
    sabotage: Option<fn(&mut Table)>,
    coverage: &mut Coverage,
    transcript: &mut Vec<String>,
) -> Result<(), String> {
    let config = SimConfig::new().seed(case.sim_seed).memory_bytes(case.memory_bytes);
    let driver = Driver::sim(config).map_err(|error| error.to_string())?;
    let sim = driver.simulator().ok_or("no simulator")?.clone();
    let real = *driver.table();
    let driver = faults::wrap(&driver, sabotage);
    let mut world =
        faults::observed(&real, None, || World::new(case, subject, (&driver, &sim), real)).0.map_err(text)?;
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
    pub(super) subject: Subject,
    /// The driver's functions, unwrapped.
    pub(super) real: Table,
    sim: Sim,
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
    pub(super) other: Other,
    /// What another process has of the device.
    pub(super) taken_bytes: u64,
    /// Whether the driver has refused to take something back.
    pub(super) has_lost: bool,
}

pub(super) type Step = Result<(), String>;

impl<'a> World<'a> {
    fn new(
        case: &'a Case,
        subject: Subject,
        (driver, sim): (&Driver, &Sim),
        real: Table,
    ) -> Result<Self, PoolError> {
        let device = Device::new(driver, 0)?;
        let pool = subject.open(case, &device)?;
        let streams =
            (0..case.stream_count.max(1)).map(|_| Stream::new(&device)).collect::<Result<_, _>>()?;
        let streams = Streams::new(streams);
        let sink = Self::open_sink(driver, &device)?;
        let mut twin = Twin::default();
        twin.open(case.hard_limit_bytes);
        let (blocks, marks) = (Vec::new(), Vec::new());
        Ok(Self {
            case,
            subject,
            real,
            sim: sim.clone(),
            driver: driver.clone(),
            device,
            pool,
            streams,
            marks,
            blocks,
            twin,
            next_name: 0,
            sink,
            other: Other::default(),
            taken_bytes: 0,
            has_lost: false,
        })
    }

    fn say_setup(&self, case: &Case, transcript: &mut Vec<String>) {
        let Case { sim_seed, memory_bytes, hard_limit_bytes, soft_limit_bytes, stream_count, .. } = case;
        let Case { polls, empty_windows_max, .. } = case;
        transcript.push(format!("SimConfig::new().seed({sim_seed}).memory_bytes({memory_bytes})"));
        transcript.push(format!(
            "pool: {}, hard limit {hard_limit_bytes:?}, soft limit {soft_limit_bytes:?}, polls {polls}, \
             empty windows {empty_windows_max:?}; streams s0 to s{}",
            self.subject,
            stream_count - 1
        ));
    }

    fn step(&mut self, operation: &Operation, coverage: &mut Coverage, said: &mut Vec<String>) -> Step {
        match *operation {
            Operation::NewStream { kind } => self.new_stream(kind, said),
            Operation::DropStream { stream, retires } => self.drop_stream(stream, retires, said),
            Operation::NewPool => {
                said.push("pool = a new pool with the same options".into());
                self.pool = self.subject.open(self.case, &self.device).map_err(text)?;
                self.twin.open(self.case.hard_limit_bytes);
                Ok(())
            }
            Operation::Allocate { stream, size, place, fault } => {
                self.allocate((stream, size, place, fault), coverage, said)
            }
            Operation::Free { block, place } => self.free(block, place, said),
            Operation::FreeCompleted { block } => self.free_completed(block, said),
            Operation::FreeMeanwhile { block, stream, other, value } => {
                self.free_meanwhile((block, stream, other, value), said)
            }
            Operation::EndThread => {
                said.push("the other thread ends".into());
                self.other.end()
            }
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
            Operation::Mark { stream, fault } => self.mark(stream, fault, coverage, said),
            Operation::Wait { stream, mark, fault } => {
                self.wait_for_mark((stream, mark, fault), coverage, said)
            }
            Operation::AskMark { mark, waits } => self.ask_mark(mark, waits, said),
            Operation::Ask { stream } => {
                let Some(stream) = self.streams.pick(stream) else { return Ok(()) };
                said.push(format!("{}.is_complete()", self.streams.name(&stream)));
                stream.is_complete().map(drop).map_err(text)
            }
            Operation::Synchronize { stream, fault } => {
                let Some(stream) = self.streams.pick(stream) else { return Ok(()) };
                said.push(format!("{}.synchronize()", self.streams.name(&stream)));
                self.refusable("synchronize", fault, coverage, said, |_| stream.synchronize()).map(drop)
            }
            Operation::SynchronizeDevice { fault } => {
                said.push("device.synchronize()".into());
                self.refusable("finish", fault, coverage, said, |world| world.device.synchronize()).map(drop)
            }
            Operation::Reclaim { fault } => {
                said.push("pool.reclaim()".into());
                self.refusable("reclaim", fault, coverage, said, |world| world.pool.reclaim()).map(drop)
            }
            Operation::Trim { keep_bytes, fault } => {
                said.push(format!("pool.trim_to({keep_bytes})"));
                self.refusable("trim", fault, coverage, said, |world| world.pool.trim_to(keep_bytes))
                    .map(drop)
            }
            Operation::Reserve { size_bytes, fault } => self.reserve(size_bytes, fault, coverage, said),
            Operation::TakeMemory { size_bytes } => {
                let got_bytes = self.sim.take_memory(0, size_bytes);
                said.push(format!("another process takes {got_bytes} bytes"));
                self.taken_bytes += got_bytes;
                Ok(())
            }
            Operation::ReturnMemory => {
                said.push("the other process gives all back".into());
                self.return_memory();
                Ok(())
            }
        }
    }

    /// A call of the user's that may fail if the driver refuses something, and only then.
    fn refusable<T>(
        &mut self,
        name: &'static str,
        fault: Option<Fault>,
        coverage: &mut Coverage,
        said: &mut [String],
        work: impl FnOnce(&Self) -> Result<T, PoolError>,
    ) -> Result<Option<T>, String> {
        let (outcome, seen) = faults::observed(&self.real, fault, || work(self));
        coverage.count(name, seen, outcome.is_ok());
        self.note(&outcome, seen, said);
        match outcome {
            Ok(value) => Ok(Some(value)),
            Err(PoolError::Driver(_)) if seen.refused().is_some() => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    fn reserve(
        &mut self,
        size_bytes: u64,
        fault: Option<Fault>,
        coverage: &mut Coverage,
        said: &mut Vec<String>,
    ) -> Step {
        said.push(format!("pool.reserve({size_bytes})"));
        let (outcome, seen) = faults::observed(&self.real, fault, || self.pool.reserve(size_bytes));
        coverage.count("reserve", seen, outcome.is_ok());
        self.note(&outcome, seen, said);
        match outcome {
            Ok(()) => {
                let reserved_bytes = self.pool.status().map_err(text)?.reserved_bytes;
                match self.subject.is_caching() && reserved_bytes < size_bytes {
                    true => Err(format!("{reserved_bytes} bytes are reserved, not {size_bytes}")),
                    false => Ok(()),
                }
            }
            Err(
                PoolError::OutOfMemory { .. } | PoolError::LimitReached { .. } | PoolError::TooLarge { .. },
            ) => Ok(()),
            Err(PoolError::Driver(_)) if seen.refused().is_some() => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn return_memory(&mut self) {
        self.sim.return_memory(0, u64::MAX);
        self.taken_bytes = 0;
    }

    fn new_stream(&mut self, kind: Kind, said: &mut Vec<String>) -> Step {
        if let Some(stream) = self.streams.make(kind, &self.device)? {
            said.push(format!("let {} = a stream ({kind:?})", self.streams.name(&stream)));
        }
        Ok(())
    }

    fn drop_stream(&mut self, pick: Pick, retires: bool, said: &mut Vec<String>) -> Step {
        let Some(stream) = self.streams.take(pick) else { return Ok(()) };
        let name = self.streams.name(&stream);
        let event = Event::new(&self.device).map_err(text)?;
        event.record(&stream).map_err(text)?;
        let event = Rc::new(event);
        for live in &mut self.blocks {
            let users = live.readers.iter_mut().chain([&mut live.writer]);
            for user in users.filter(|user| user.is(&stream)) {
                *user = User::Gone(Rc::clone(&event));
            }
        }
        let retired = if self.streams.end(stream, retires)? { " // retired before" } else { "" };
        said.push(format!("drop({name}){retired}"));
        Ok(())
    }

    fn mark(
        &mut self,
        pick: Pick,
        fault: Option<Fault>,
        coverage: &mut Coverage,
        said: &mut Vec<String>,
    ) -> Step {
        let Some(stream) = self.streams.pick(pick).filter(|_| self.marks.len() < MARKS_MAX) else {
            return Ok(());
        };
        let event = Event::new(&self.device).map_err(text)?;
        said.push(format!("let e{} = an event recorded on {}", self.marks.len(), self.streams.name(&stream)));
        if self.refusable("record", fault, coverage, said, |_| event.record(&stream))?.is_some() {
            self.marks.push(event);
        }
        Ok(())
    }

    fn wait_for_mark(
        &mut self,
        (pick, mark, fault): (Pick, Pick, Option<Fault>),
        coverage: &mut Coverage,
        said: &mut Vec<String>,
    ) -> Step {
        let (Some(stream), Some(mark)) = (self.streams.pick(pick), mark.of(self.marks.len())) else {
            return Ok(());
        };
        said.push(format!("{}.wait(&e{mark})", self.streams.name(&stream)));
        self.refusable("wait", fault, coverage, said, |world| stream.wait(&world.marks[mark])).map(drop)
    }

    fn ask_mark(&mut self, mark: Pick, waits: bool, said: &mut Vec<String>) -> Step {
        let Some(mark) = mark.of(self.marks.len()) else { return Ok(()) };
        said.push(format!("e{mark}.{}()", if waits { "synchronize" } else { "is_complete" }));
        let event = &self.marks[mark];
        if waits { event.synchronize() } else { event.is_complete().map(drop) }.map_err(text)
    }

    /// Everything that must hold after every step.
    fn compare(&self, sim: &Sim) -> Step {
        let report = sim.report();
        if !report.faults.is_empty() {
            return Err("work went astray".into());
        }
        if let Some(finding) = report.findings.iter().find(|finding| finding.is_silent()) {
            return Err(finding.to_string());
        }
        let mut ours: Vec<(u64, u64)> =
            self.blocks.iter().map(|live| (live.block.address(), live.block.size_bytes())).collect();
        ours.sort_unstable();
        let found = report.allocations.iter().filter(|live| live.kind != AllocationKind::Host);
        let drivers: Vec<(u64, u64)> = found.map(|live| (live.address, live.size_bytes)).collect();
        // Frees on streams of others wait for the device.
        let keeps_more = self.subject.is_caching() || self.streams.had_foreign();
        let is_there = match keeps_more {
            true => ours.iter().all(|block| is_covered(*block, &drivers)),
            false => ours == drivers,
        };
        if !is_there {
            return Err(format!("the blocks are {ours:x?}, and the driver's allocations {drivers:x?}"));
        }
        self.pool.check()?;
        self.compare_status()
    }

    fn compare_status(&self) -> Step {
        let status = self.pool.status().map_err(text)?;
        let Some(books) = self.twin.pools.last() else { return Ok(()) };
        let expected = (books.in_use_bytes, books.block_count, books.allocation_count);
        let found = (status.in_use_bytes, status.block_count, status.allocation_count);
        if expected != found {
            return Err(format!("in use, blocks, allocations are {expected:?}, status says {found:?}"));
        }
        let peak_bytes = status.in_use_peak_bytes;
        let is_peak = match self.subject.is_caching() {
            true => peak_bytes >= books.peak_bytes && peak_bytes <= status.reserved_peak_bytes,
            false => peak_bytes == books.peak_bytes,
        };
        let sums = is_peak
            && status.cached_bytes == status.reserved_bytes.saturating_sub(status.in_use_bytes)
            && status.reserved_bytes >= status.in_use_bytes
            && status.reserved_peak_bytes >= status.reserved_bytes
            && status.device_used_bytes >= status.reserved_bytes
            && status.hard_limit_bytes.is_none_or(|limit| status.in_use_peak_bytes <= limit);
        if sums { Ok(()) } else { Err(format!("the sums do not add up: {status:?}, {books:?}")) }
    }

    /// Every block's contents, then everything is let go, and nothing may be left.
    fn finish(mut self, sim: &Sim) -> Step {
        (0..self.blocks.len()).try_for_each(|index| self.check(index))?;
        self.return_memory();
        self.device.synchronize().map_err(text)?;
        self.marks.clear();
        self.streams.end_all()?;
        for live in self.blocks.drain(..) {
            self.twin.free(live.block.address());
        }
        self.compare(sim)?;
        self.close_sink()?;
        self.other.end()?;
        self.pool.reclaim().map_err(text)?;
        let status = self.pool.status().map_err(text)?;
        if status.reserved_bytes != 0 && !self.has_lost {
            return Err(format!("{} bytes are reserved for nothing", status.reserved_bytes));
        }
        // What the driver's own pool could not free on a stream of somebody else's goes with the context.
        let keeps_some = !self.subject.is_caching() && self.streams.had_foreign();
        let (device, may_keep) = (self.device.clone(), self.has_lost || keeps_some);
        drop(self);
        device.synchronize().map_err(text)?;
        let (info, report) = (device.memory_info().map_err(text)?, sim.report());
        let is_memory_left = info.free_bytes != info.total_bytes || report.reservation_count > 0;
        if is_memory_left && !may_keep || report.stream_count + report.event_count > 0 {
            return Err(format!("something is left: {info:?}\n{report}"));
        }
        Ok(())
    }
}

/// Whether allocations that follow each other have all of a block.
fn is_covered((start, size_bytes): (u64, u64), sorted: &[(u64, u64)]) -> bool {
    let mut place = start;
    for (from, length) in sorted {
        if *from <= place && place < from + length {
            place = from + length;
        }
    }
    place >= start + size_bytes
}

fn faults(sim: &Sim) -> String {
    sim.report().faults.iter().map(|fault| format!("\n  the software driver: {fault}")).collect()
}

pub(super) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

const MARKS_MAX: usize = 8;

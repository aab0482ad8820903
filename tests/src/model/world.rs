//! Runs a [`Case`] on the real pool, beside the [`Twin`], and writes a transcript that reads like a program.
//!
//! The simulated user is correct and adds no unnecessary waits. Before a stream reads a block, it waits for the block's last
//! writer; before it writes, also for the readers since. Every stream except the owner stream is recorded with `record_use`. When
//! the handle of a stream is dropped, an event replaces the stream in these lists. The owner stream counts as the first writer,
//! because the memory is ordered behind it. Host-accessible memory is not ordered behind a stream: the host fills it right away,
//! and any stream may use it then.

use super::coverage::Coverage;
use super::faults::{self, Fault};
use super::objects::{Adapted, Built, Capturing, Growing, RetainedBlock};
use super::operation::{Case, Operation};
use super::places::Other;
use super::step::{Step, text};
use super::streams::{Streams, Uses};
use super::subject::Subject;
use super::twin::Twin;
use crate::pool::{Block, CaptureError, Device, DeviceError, Event, Pool, PoolError, Stream, StreamId};
use crate::sys::{Driver, Table};
use gpumem_sim::{Sim, SimConfig};

/// Runs a case. The transcript lists all operations, even if the case fails.
///
/// # Errors
///
/// A sentence that describes the bug of the pool.
pub fn run(
    case: &Case,
    subject: Subject,
    sabotage: Option<fn(&mut Table)>,
    coverage: &mut Coverage,
    transcript: &mut Vec<String>,
) -> Result<(), String> {
    let config = SimConfig::new().seed(case.sim_seed).memory_bytes(case.memory_bytes);
    let driver = gpumem_sim::driver(config).map_err(|error| error.to_string())?;
    let sim = Sim::of(&driver).ok_or("no simulator")?.clone();
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
    world.finish(&sim, coverage).map_err(|what| format!("at the end: {what}{}", faults(&sim)))
}

/// A live block and its uses.
pub(super) struct Live {
    pub(super) name: u32,
    pub(super) block: Block,
    pub(super) uses: Uses,
    /// The streams recorded with `record_use`.
    pub(super) recorded: Vec<StreamId>,
    /// The live graphs that use the block, and the graph whose capture allocated it.
    pub(super) graphs: Vec<u32>,
    /// The capture that allocated it.
    pub(super) part_of: Option<u32>,
}

/// A pool, and the index of its counters in the twin.
pub(super) struct Handle {
    pub(super) pool: Pool,
    pub(super) counters: usize,
}

impl Live {
    /// Records a use, in a capture if one is named.
    pub(super) fn record(&mut self, stream: &Stream, graph: Option<u32>) {
        self.block.record_use(stream);
        self.recorded.push(stream.id());
        let is_new = |graph: &u32| !self.graphs.contains(graph);
        self.graphs.extend(graph.filter(is_new));
    }
}

/// The state of a running case: the real objects and the twin.
pub(super) struct World<'a> {
    pub(super) case: &'a Case,
    pub(super) subject: Subject,
    /// The driver's functions, unwrapped.
    pub(super) real: Table,
    pub(super) sim: Sim,
    pub(super) driver: Driver,
    pub(super) device: Device,
    /// The adaptors around the pools.
    pub(super) adapted: Option<Adapted>,
    /// The first pool, then private pools.
    pub(super) pools: Vec<Handle>,
    pub(super) streams: Streams,
    pub(super) marks: Vec<Event>,
    pub(super) blocks: Vec<Live>,
    pub(super) growing: Vec<Growing>,
    pub(super) capturing: Option<Capturing>,
    pub(super) graphs: Vec<Built>,
    pub(super) kept: Vec<RetainedBlock>,
    pub(super) twin: Twin,
    pub(super) next_name: u32,
    /// Pinned memory, the target of reads.
    pub(super) sink: *mut u8,
    pub(super) other: Other,
    /// The device memory that another process has allocated.
    pub(super) taken_bytes: u64,
    /// True if the release of memory failed by injection.
    pub(super) has_lost: bool,
}

impl<'a> World<'a> {
    fn new(
        case: &'a Case,
        subject: Subject,
        (driver, sim): (&Driver, &Sim),
        real: Table,
    ) -> Result<Self, PoolError> {
        let device = Device::new(driver, 0)?;
        let adapted = subject.adapted(case);
        let pools = vec![Handle { pool: subject.open(case, &device, adapted.as_ref())?, counters: 0 }];
        let streams =
            (0..case.stream_count.max(1)).map(|_| Stream::new(&device)).collect::<Result<_, _>>()?;
        let streams = Streams::new(streams);
        let sink = Self::open_sink(driver, &device)?;
        let mut twin = Twin::default();
        twin.open(subject.hard_limit_bytes(case), None);
        Ok(Self {
            case,
            subject,
            real,
            sim: sim.clone(),
            driver: driver.clone(),
            device,
            adapted,
            pools,
            streams,
            marks: Vec::new(),
            blocks: Vec::new(),
            growing: Vec::new(),
            capturing: None,
            graphs: Vec::new(),
            kept: Vec::new(),
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
        let Case { polls, empty_mappings_max, .. } = case;
        transcript.push(format!("SimConfig::new().seed({sim_seed}).memory_bytes({memory_bytes})"));
        transcript.push(format!(
            "pool: {}, hard limit {hard_limit_bytes:?}, soft limit {soft_limit_bytes:?}, polls {polls}, \
             empty mappings {empty_mappings_max:?}; streams s0 to s{}",
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
                let pool = self.subject.open(self.case, &self.device, self.adapted.as_ref()).map_err(text)?;
                let counters = self.twin.open(self.subject.hard_limit_bytes(self.case), None);
                self.pools[0] = Handle { pool, counters };
                Ok(())
            }
            Operation::NewPrivate { quota_bytes } => self.new_private(quota_bytes, said),
            Operation::DropPrivate => {
                if self.pools.len() > 1 {
                    said.push(format!("drop(private{})", self.pools.len() - 1));
                    self.pools.pop();
                }
                Ok(())
            }
            Operation::Allocate { pool, stream, exponent, size, place, fault } => {
                self.allocate((pool, stream, exponent, size, place, fault), coverage, said)
            }
            Operation::Carry { block, place } => self.carry(block, place, said),
            Operation::NewGrowable { stream, max_bytes, fault } => {
                self.new_growable((stream, max_bytes, fault), coverage, said)
            }
            Operation::Resize { growable, per_mille, fault } => {
                self.resize((growable, per_mille, fault), coverage, said)
            }
            Operation::FillGrowable { growable, stream, value, wait } => {
                self.fill_growable((growable, stream, value, wait), said)
            }
            Operation::CheckGrowable { growable } => {
                let Some(index) = growable.of(self.growing.len()) else { return Ok(()) };
                said.push(format!("check(growable {index})"));
                self.check_growable(index)
            }
            Operation::DropGrowable { growable } => self.drop_growable(growable, said),
            Operation::BeginCapture { stream, mode, fault } => {
                self.begin_capture((stream, mode, fault), coverage, said)
            }
            Operation::Fork { stream } => self.fork(stream, said),
            Operation::EndCapture { is_wanted, joins } => {
                self.end_capture((is_wanted, joins), coverage, said)
            }
            Operation::Instantiate { graph, fault } => self.instantiate((graph, fault), coverage, said),
            Operation::Launch { exec, stream, wait, fault } => {
                self.launch((exec, stream, wait, fault), coverage, said)
            }
            Operation::DropGraph { graph } => self.drop_graph(graph, said),
            Operation::DropExec { exec } => self.drop_exec(exec, said),
            Operation::Free { block, place } => self.free(block, place, said),
            Operation::FreeOn { block, user } => self.free_on(block, user, said),
            Operation::FreeCompleted { block } => self.free_completed(block, said),
            Operation::FreeMeanwhile { block, stream, other, value } => {
                self.free_meanwhile((block, stream, other, value), said)
            }
            Operation::EndThread => {
                said.push("the other thread ends".into());
                self.other.end()
            }
            Operation::Fill { block, stream, value, wait } => {
                self.fill((block, stream, value, wait), coverage, said)
            }
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
                let outcome = stream.is_complete().map(drop);
                self.unless_captured(outcome.map_err(Into::into))
            }
            Operation::Synchronize { stream, fault } => {
                let Some(stream) = self.streams.pick(stream) else { return Ok(()) };
                said.push(format!("{}.synchronize()", self.streams.name(&stream)));
                self.refusable("synchronize", fault, coverage, said, |_| {
                    stream.synchronize().map_err(Into::into)
                })
                .map(drop)
            }
            Operation::SynchronizeDevice { fault } => {
                said.push("device.synchronize()".into());
                self.refusable("finish", fault, coverage, said, |world| {
                    world.device.synchronize().map_err(Into::into)
                })
                .map(drop)
            }
            Operation::Reclaim { fault } => {
                said.push("pool.reclaim()".into());
                self.refusable("reclaim", fault, coverage, said, |world| world.pool().reclaim()).map(drop)
            }
            Operation::Trim { keep_bytes, fault } => {
                said.push(format!("pool.trim_to({keep_bytes})"));
                self.refusable("trim", fault, coverage, said, |world| world.pool().trim_to(keep_bytes))
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

    /// Runs a call that may fail only if a driver call failed by injection.
    pub(super) fn refusable<T>(
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
            Err(PoolError::Device(DeviceError::Driver(_))) if seen.refused().is_some() => Ok(None),
            Err(error) => self.unless_captured(Err(error)).map(|()| None),
        }
    }

    /// Accepts the refusal of a call that waits while a capture is open.
    pub(super) fn unless_captured(&self, outcome: Result<(), PoolError>) -> Step {
        match outcome {
            Err(PoolError::Device(DeviceError::Capture(CaptureError::NotCapturable { .. })))
                if self.capturing.is_some() =>
            {
                Ok(())
            }
            other => other.map_err(text),
        }
    }

    /// The first pool.
    pub(super) fn pool(&self) -> &Pool {
        &self.pools[0].pool
    }

    fn new_private(&mut self, quota_bytes: u64, said: &mut Vec<String>) -> Step {
        if self.pools.len() > PRIVATE_MAX {
            return Ok(());
        }
        said.push(format!("let private{} = pool.private({quota_bytes})", self.pools.len()));
        let above = self.pools[0].counters;
        let pool = self.pool().private(quota_bytes).map_err(text)?;
        let limit_bytes = self.subject.hard_limit_bytes(self.case);
        let limit_bytes = limit_bytes.map_or(quota_bytes, |limit| limit.min(quota_bytes));
        let counters = self.twin.open(Some(limit_bytes), Some(above));
        self.pools.push(Handle { pool, counters });
        Ok(())
    }

    fn reserve(
        &mut self,
        size_bytes: u64,
        fault: Option<Fault>,
        coverage: &mut Coverage,
        said: &mut Vec<String>,
    ) -> Step {
        said.push(format!("pool.reserve({size_bytes})"));
        let (outcome, seen) = faults::observed(&self.real, fault, || self.pool().reserve(size_bytes));
        coverage.count("reserve", seen, outcome.is_ok());
        self.note(&outcome, seen, said);
        match outcome {
            Ok(()) => {
                let reserved_bytes = self.pool().status().map_err(text)?.reserved_bytes;
                match self.subject.is_caching() && reserved_bytes < size_bytes {
                    true => Err(format!("{reserved_bytes} bytes are reserved, not {size_bytes}")),
                    false => Ok(()),
                }
            }
            Err(
                PoolError::OutOfMemory { .. } | PoolError::LimitReached { .. } | PoolError::TooLarge { .. },
            ) => Ok(()),
            Err(PoolError::Device(DeviceError::Driver(_))) if seen.refused().is_some() => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    pub(super) fn return_memory(&mut self) {
        self.sim.return_memory(0, u64::MAX);
        self.taken_bytes = 0;
    }
}

fn faults(sim: &Sim) -> String {
    sim.report().faults.iter().map(|fault| format!("\n  the simulator: {fault}")).collect()
}

const PRIVATE_MAX: usize = 2;

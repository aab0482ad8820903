//! [`Machine`]: everything that one instance is made of. Whoever holds its lock may change it.
//!
//! The parts are spread over the files beside this one, each with the methods of `Machine` that concern it. Nothing
//! here waits: a call that has to wait for work does so in `call.rs`, a step at a time.

use super::backing::Backing;
use super::capture::Captures;
use super::codes::{Answer, INVALID_DEVICE};
use super::config::SimConfig;
use super::context::{Context, ThreadKey};
use super::device::Device;
use super::event::Event;
use super::graph::Graphs;
use super::handle::{Handle, Kind, Slab};
use super::import::Import;
use super::launch::Kernel;
use super::managed::Managed;
use super::memory::Memory;
use super::module::{Function, Module};
use super::origins::Origins;
use super::pool::Pool;
use super::races::{Findings, Races, Running};
use super::rules::Rules;
use super::schedule::Scheduler;
use super::stream::Stream;
use super::virtual_memory::VirtualMemory;
use std::collections::BTreeMap;

/// The state of one instance.
pub(super) struct Machine {
    pub(super) config: SimConfig,
    pub(super) instance: u64,
    pub(super) devices: Vec<Device>,
    pub(super) contexts: Slab<Context>,
    /// Each thread's stack of contexts; the last one is current.
    pub(super) current: BTreeMap<ThreadKey, Vec<Handle>>,
    pub(super) streams: Slab<Stream>,
    /// The streams that have work left.
    pub(super) active: Vec<Handle>,
    pub(super) events: Slab<Event>,
    pub(super) captures: Captures,
    pub(super) graphs: Graphs,
    pub(super) pools: Slab<Pool>,
    pub(super) modules: Slab<Module>,
    pub(super) functions: Slab<Function>,
    pub(super) kernels: BTreeMap<&'static str, Kernel>,
    pub(super) memory: Memory,
    pub(super) managed: Managed,
    pub(super) virtual_memory: VirtualMemory,
    pub(super) imports: BTreeMap<u64, Import>,
    /// The driver's own pinned memory.
    pub(super) host: BTreeMap<u64, Backing>,
    pub(super) schedule: Scheduler,
    pub(super) rules: Rules,
    /// The host's place on the virtual clock.
    pub(super) host_ns: u64,
    /// The latest end of any work that has run, marks apart, there.
    pub(super) work_ns: u64,
    /// Pageable memory that queued copies hold.
    pub(super) staged_bytes: u64,
    /// The detector of races, if it is on.
    pub(super) races: Option<Races>,
    pub(super) findings: Findings,
    /// The operation that runs now.
    pub(super) running: Option<Running>,
    /// The calls so far, this one included, and the thread of this one.
    pub(super) call_count: u64,
    pub(super) caller: ThreadKey,
    pub(super) call_name: &'static str,
    /// The streams that have been used.
    pub(super) stream_number: u32,
    /// What went wrong while work ran, in words.
    pub(super) faults: Vec<String>,
}

impl Machine {
    pub(super) fn new(config: SimConfig, slot: usize, instance: u64) -> Self {
        let mut pools = Slab::new(Kind::Pool, instance);
        let devices = (0..config.device_count as usize)
            .map(|index| {
                // There is room: devices are few.
                let pool = pools.insert(Pool::new(index, true, 0)).unwrap_or(Handle::NONE);
                Device::new(slot, index, config.memory_bytes, pool)
            })
            .collect();
        let origins = Origins::new(config.is_looking_for_races, config.takes_backtraces);
        Self {
            schedule: Scheduler::new(config.seed, config.schedule.clone()),
            rules: Rules::new(&config.rules, config.seed),
            races: config.is_looking_for_races.then(|| Races::new(config.is_unwritten_wanted)),
            findings: Findings::default(),
            running: None,
            call_count: 0,
            call_name: "",
            stream_number: 0,
            caller: ThreadKey::current(),
            managed: Managed::new(config.device_count),
            config,
            instance,
            devices,
            contexts: Slab::new(Kind::Context, instance),
            current: BTreeMap::new(),
            streams: Slab::new(Kind::Stream, instance),
            active: Vec::new(),
            events: Slab::new(Kind::Event, instance),
            captures: Captures::default(),
            graphs: Graphs::new(instance),
            pools,
            modules: Slab::new(Kind::Module, instance),
            functions: Slab::new(Kind::Function, instance),
            kernels: BTreeMap::new(),
            memory: Memory::new(origins),
            virtual_memory: VirtualMemory::new(slot, instance),
            imports: BTreeMap::new(),
            host: BTreeMap::new(),
            host_ns: 0,
            work_ns: 0,
            staged_bytes: 0,
            faults: Vec::new(),
        }
    }

    /// The device that a number names.
    pub(super) fn device_index(&self, ordinal: i32) -> Answer<usize> {
        usize::try_from(ordinal).ok().filter(|&index| index < self.devices.len()).ok_or(INVALID_DEVICE)
    }
}

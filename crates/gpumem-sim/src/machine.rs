//! [`Machine`]: the state of one instance, and the effects of each call.
//!
//! The types of its fields are in the rooms below. The methods of `Machine` are in the files of this folder, by subject:
//! `machine/memory/pool.rs` has the effects of calls on the types of `memory/pool.rs`. Nothing here waits: a call that must wait
//! for work does so in `entry/call.rs`, one step at a time.

pub(crate) mod call_cost;
pub(crate) mod device;
pub(crate) mod graph;
pub(crate) mod memory;
pub(crate) mod order;
pub(crate) mod origins;
pub(crate) mod report;
pub(crate) mod rules;
pub(crate) mod stream;

use crate::backing::Backing;
use crate::base::codes::{Answer, INVALID_DEVICE};
use crate::base::handle::{Handle, Kind, Slab};
use crate::base::thread::ThreadKey;
use crate::config::SimConfig;
use crate::config::rules::Rules;
use crate::device::context::Context;
use crate::device::launch::{Kernel, LaunchHistory};
use crate::device::library::{Library, LibraryKernel};
use crate::device::linker::Link;
use crate::device::module::{Function, Module};
use crate::graph::Graphs;
use crate::memory::Memory;
use crate::memory::device::Device;
use crate::memory::import::Import;
use crate::memory::managed::Managed;
use crate::memory::pool::Pool;
use crate::memory::virtual_memory::VirtualMemory;
use crate::order::races::{Findings, Races, Running};
use crate::report::origins::Origins;
use crate::stream::Stream;
use crate::stream::capture::Captures;
use crate::stream::event::Event;
use crate::stream::schedule::Scheduler;
use std::collections::{BTreeMap, BTreeSet};

/// The state of one instance.
pub(crate) struct Machine {
    pub(crate) config: SimConfig,
    pub(crate) instance: u64,
    pub(crate) devices: Vec<Device>,
    pub(crate) contexts: Slab<Context>,
    /// Each thread's stack of contexts; the last one is current.
    pub(crate) current: BTreeMap<ThreadKey, Vec<Handle>>,
    pub(crate) streams: Slab<Stream>,
    /// The streams that were destroyed with their contexts: the vendor's driver dereferences their handles.
    pub(crate) gone_streams: BTreeSet<Handle>,
    /// The streams with pending work.
    pub(crate) active: Vec<Handle>,
    pub(crate) events: Slab<Event>,
    pub(crate) captures: Captures,
    pub(crate) graphs: Graphs,
    pub(crate) pools: Slab<Pool>,
    pub(crate) modules: Slab<Module>,
    pub(crate) functions: Slab<Function>,
    pub(crate) libraries: Slab<Library>,
    pub(crate) library_kernels: Slab<LibraryKernel>,
    pub(crate) links: Slab<Link>,
    pub(crate) kernels: BTreeMap<&'static str, Kernel>,
    pub(crate) memory: Memory,
    pub(crate) managed: Managed,
    pub(crate) virtual_memory: VirtualMemory,
    pub(crate) imports: BTreeMap<u64, Import>,
    /// The driver's pinned memory.
    pub(crate) host: BTreeMap<u64, Backing>,
    pub(crate) schedule: Scheduler,
    pub(crate) rules: Rules,
    /// The host's time on the virtual clock.
    pub(crate) host_ns: u64,
    /// The latest end of any completed work on that clock, markers excluded.
    pub(crate) work_ns: u64,
    /// The bytes of pageable memory held by queued copies.
    pub(crate) staged_bytes: u64,
    /// The race detector, if it is on.
    pub(crate) races: Option<Races>,
    pub(crate) findings: Findings,
    /// What has run, for the places of accesses in findings. Empty without race detection.
    pub(crate) launched: LaunchHistory,
    /// The operation that is running.
    pub(crate) running: Option<Running>,
    /// The number of calls so far, including the current one, and the thread of the current one.
    pub(crate) call_count: u64,
    pub(crate) caller: ThreadKey,
    pub(crate) call_name: &'static str,
    /// The number of streams used so far.
    pub(crate) stream_number: u32,
    /// The texts of faults of queued work.
    pub(crate) faults: Vec<String>,
    /// What kernels have printed and the call has not written yet.
    pub(crate) printed: String,
}

impl Machine {
    pub(crate) fn new(config: SimConfig, slot: usize, instance: u64) -> Self {
        let mut pools = Slab::new(Kind::Pool, instance);
        let devices = (0..config.device_count as usize)
            .map(|index| {
                // There is room: the number of devices is small.
                let pool = pools.insert(Pool::new(index, true, 0)).unwrap_or(Handle::NONE);
                Device::new(slot, index, config.memory_bytes, pool)
            })
            .collect();
        let origins = Origins::new(config.is_looking_for_races, config.takes_backtraces);
        Self {
            schedule: Scheduler::new(config.seed, config.schedule.clone()),
            rules: Rules::new(&config.rules, config.seed),
            races: config
                .is_looking_for_races
                .then(|| Races::new(config.is_unwritten_wanted && !config.is_work_skipped)),
            findings: Findings::default(),
            launched: LaunchHistory::default(),
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
            gone_streams: BTreeSet::new(),
            active: Vec::new(),
            events: Slab::new(Kind::Event, instance),
            captures: Captures::default(),
            graphs: Graphs::new(instance),
            pools,
            modules: Slab::new(Kind::Module, instance),
            functions: Slab::new(Kind::Function, instance),
            libraries: Slab::new(Kind::Library, instance),
            library_kernels: Slab::new(Kind::LibraryKernel, instance),
            links: Slab::new(Kind::Link, instance),
            kernels: BTreeMap::new(),
            memory: Memory::new(origins),
            virtual_memory: VirtualMemory::new(slot, instance),
            imports: BTreeMap::new(),
            host: BTreeMap::new(),
            host_ns: 0,
            work_ns: 0,
            staged_bytes: 0,
            faults: Vec::new(),
            printed: String::new(),
        }
    }

    /// The index of the device with this ordinal.
    pub(crate) fn device_index(&self, ordinal: i32) -> Answer<usize> {
        usize::try_from(ordinal).ok().filter(|&index| index < self.devices.len()).ok_or(INVALID_DEVICE)
    }
}

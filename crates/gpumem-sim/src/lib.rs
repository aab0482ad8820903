//! A simulator of the CUDA driver: fills the table of `gpumem-sys`, so that CUDA host code runs without a GPU.
//!
//! # What a simulated machine is
//!
//! Devices with a stated memory, and everything that lives on them: contexts, streams, events, memory, pools,
//! modules. [`driver`](crate::driver) starts one; its state is shared with no other, but for memory that the
//! program exports from one and imports into another, also of another process (on Linux). It is found by the table
//! that a call came through and never by the calling thread, and is gone with the last handle.
//!
//! **Queued work runs later.** A call that queues work returns at once; the work runs during later calls, in an order
//! that the seed chooses among all that streams and events allow, and at the latest when somebody waits for it. A
//! program that is wrong on a GPU because it did not wait is wrong here too, for some seed, and every time for that
//! seed. (A thread that waits for the device without calling the driver, by watching memory or for a host function to
//! tell it, waits forever: something has to call the driver.)
//!
//! **Misuse is refused.** What the real driver can know at the call gets its return code. What only shows when work
//! runs (memory that was freed, not yet allocated in stream order, too short) ends the context with a sticky error,
//! and [`Sim::report`] says what happened to which allocation.
//!
//! **Races are found.** Two accesses that nothing orders are reported with both, whatever order the schedule chose
//! ([`Finding`]). The order itself is the seed's, or early, late, or every one there is ([`Schedule`]); faults happen
//! where rules say so ([`Rule`]).
//!
//! **Off Linux there is less.** No virtual memory management, and no memory for other processes: the calls answer
//! `CUDA_ERROR_NOT_SUPPORTED`, and the device's attributes say so.
//!
//! **A forked process has no simulator.** As with the vendor's driver, every call of an instance that the parent started
//! answers `CUDA_ERROR_NOT_INITIALIZED` in the child. A [`Sim`] of the parent is not for the child either: its functions
//! may wait for ever for a lock that a thread of the parent held. The child may start an instance of its own, and `exec`.
//!
//! **Memory costs what is touched.** A device of 141 GiB is mapped lazily, block by block. Device addresses lie where
//! no host pointer can, so one that leaks into host code faults.
//!
//! # The parts
//!
//! `entry` decodes calls, `call` runs them under the instance's lock, `machine` is the state. `stream`, `event` and
//! `operation` are what is queued, `schedule` decides what runs next, `execute` runs it. `memory` says which addresses
//! are whose (`owner`), seen by the host and by the device; `plain`, `pool`, `virtual_memory`, `managed` and `host` hand them
//! out; `pool_file`, `import`, `ipc` and `ticket` hand them on, to other instances and processes. `copy`, `module` and
//! `launch` use them. `capture` turns what is queued into the nodes of a `graph`.
//! `races` holds what runs against what ran before, with `clock`, `shadow` and `usage`; `rules` see every call first.
//! `behind` knows at the call what comes after what, for the pools, and `origins` where allocations were made.
//!
//! ```
//! use gpumem_sim::SimConfig;
//! use std::ptr::null_mut;
//!
//! let driver = gpumem_sim::driver(SimConfig::new().seed(3))?;
//! let (mut context, mut address, mut bytes) = (null_mut(), 0, [0u8; 4]);
//! // SAFETY: every pointer is to a local that outlives the call.
//! unsafe {
//!     driver.cuInit(0)?;
//!     driver.cuDevicePrimaryCtxRetain(&mut context, 0)?;
//!     driver.cuCtxSetCurrent(context)?;
//!     driver.cuMemAlloc_v2(&mut address, 4)?;
//!     driver.cuMemsetD8_v2(address, 7, 4)?;
//!     driver.cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, 4)?;
//! }
//! assert_eq!(bytes, [7; 4]);
//! let report = gpumem_sim::Sim::of(&driver).map(|sim| sim.report());
//! assert_eq!(report.map(|report| report.allocations.len()), Some(1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

// `unsafe` is decoding C arguments, host mappings, and the bytes behind addresses, in the modules that own them.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod backing;
mod behind;
mod call;
mod call_cost;
mod capture;
mod choices;
mod clock;
mod codes;
mod config;
mod context;
#[allow(unsafe_code)]
mod copy;
mod cost;
mod device;
#[allow(unsafe_code)]
mod driver;
#[allow(unsafe_code)]
mod entry;
mod environment;
mod error;
mod event;
#[allow(unsafe_code)]
mod execute;
mod extents;
mod finding;
mod graph;
mod handle;
mod host;
#[allow(unsafe_code)]
mod host_call;
mod import;
mod ipc;
#[allow(unsafe_code)]
mod launch;
mod machine;
mod managed;
mod managed_range;
mod memory;
mod module;
mod occupancy;
#[allow(unsafe_code)]
mod operation;
mod origins;
mod owner;
#[allow(unsafe_code)]
mod pages;
mod peers;
mod pending;
mod plain;
mod pointer;
mod pool;
mod pool_file;
mod ptx;
mod races;
mod random;
mod report;
mod rules;
mod schedule;
mod settings;
mod shadow;
mod slot;
mod stream;
#[allow(unsafe_code)]
mod symbol;
mod ticket;
mod usage;
#[allow(unsafe_code)]
mod value;
#[allow(unsafe_code)]
mod view;
mod virtual_memory;
#[allow(unsafe_code)]
mod window;

pub use choices::{Choice, Schedule};
pub use config::{DEVICES_MAX, MEMORY_BYTES_MAX, SimConfig};
pub use cost::Costs;
pub use driver::{driver, driver_or_sim, from_env};
pub use environment::VARIABLES;
pub use error::SimError;
pub use finding::{Access, Deed, FaultKind, Finding, Misuse, Origin};
pub use launch::{Kernel, KernelFault, Launch};
pub use origins::CallStack;
pub use report::{AllocationKind, LiveAllocation, Report};
pub use rules::{Effect, Rule, RuleError};

use core::fmt;
use core::time::Duration;
use gpumem_sys::Table;
use machine::Machine;
use slot::Shared;
use std::sync::Arc;

/// A handle to a running simulated machine. Clones share it; it is gone with the last one.
///
/// A kernel of the machine may look at it ([`Sim::report`], [`Sim::choices`], [`Sim::seed`]). What would change it
/// does nothing there, and the kernel fails with a text that says so.
#[derive(Clone)]
pub struct Sim(Arc<Shared>);

impl Sim {
    /// Starts a machine; the table reaches it for as long as a handle lives.
    pub(crate) fn start(config: SimConfig) -> Result<(Self, Table), SimError> {
        let shared = slot::take(config)?;
        let table = shared.table;
        Ok((Self(shared), table))
    }

    /// Makes kernels known, which modules loaded later or before then find by name. The last of a name counts.
    pub fn register(&self, kernels: &'static [Kernel]) {
        let named = kernels.iter().map(|kernel| (kernel.name, *kernel));
        self.0.change("register", |machine| machine.kernels.extend(named));
    }

    /// The seed that decides the order of queued work.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.0.look(|machine| machine.config.seed)
    }

    /// The host's place on the virtual clock: what all calls so far have cost it, and what it has waited for.
    ///
    /// ```
    /// use gpumem_sim::SimConfig;
    ///
    /// let driver = gpumem_sim::driver(SimConfig::new())?;
    /// let sim = gpumem_sim::Sim::of(&driver).ok_or("not a simulator")?;
    /// let before = sim.host_time();
    /// // SAFETY: initialising has no conditions.
    /// unsafe { driver.cuInit(0)? };
    /// assert_eq!((sim.host_time() - before).as_millis(), 208);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn host_time(&self) -> Duration {
        Duration::from_nanos(self.0.look(|machine| machine.host_ns))
    }

    /// Another process takes free memory of a device, as much as there is of `size_bytes`. Says how much it got; of a
    /// device that does not exist, nothing.
    ///
    /// ```
    /// use gpumem_sim::SimConfig;
    ///
    /// let driver = gpumem_sim::driver(SimConfig::new().memory_bytes(64 << 20))?;
    /// let sim = gpumem_sim::Sim::of(&driver).ok_or("not a simulator")?;
    /// assert_eq!(sim.take_memory(0, 48 << 20), 48 << 20);
    /// assert_eq!(sim.take_memory(0, 48 << 20), 16 << 20);
    /// // From here on every allocation is out of memory, until
    /// assert_eq!(sim.return_memory(0, u64::MAX), 64 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take_memory(&self, device: u32, size_bytes: u64) -> u64 {
        self.0.change("take_memory", |machine| machine.take_memory(device, size_bytes))
    }

    /// What [`Sim::take_memory`] took is free again, as much of it as there is of `size_bytes`. Says how much.
    pub fn return_memory(&self, device: u32, size_bytes: u64) -> u64 {
        self.0.change("return_memory", |machine| machine.return_memory(device, size_bytes))
    }

    /// What [`Sim::take_memory`] has taken of a device and not given back.
    #[must_use]
    pub fn others_bytes(&self, device: u32) -> u64 {
        self.0.look(|machine| machine.others_bytes(device))
    }

    /// What the machine holds now.
    #[must_use]
    pub fn report(&self) -> Report {
        self.0.look(Machine::report)
    }
}

/// Whether both are handles to one machine.
impl PartialEq for Sim {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Sim {}

impl Sim {
    /// The choices that the schedule came to so far, under [`Schedule::Choices`].
    #[must_use]
    pub fn choices(&self) -> Vec<Choice> {
        self.0.look(|machine| machine.schedule.choices().to_vec())
    }

    /// Takes the findings out of the report: for a test that is wrong on purpose.
    pub fn take_findings(&self) -> Vec<Finding> {
        self.0.change("take_findings", |machine| machine.findings.take())
    }

    /// Says that the host reads memory that devices write, pinned memory say, which no call of the driver shows. A
    /// copy into it that nothing orders before this is found as a race.
    pub fn host_reads<T>(&self, memory: *const T, len: usize) {
        let size_bytes = len.saturating_mul(size_of::<T>());
        self.0
            .change("host_reads", |machine| machine.host_touches(Deed::HostRead, memory.addr(), size_bytes));
    }

    /// Says that the host writes memory that devices reach. As [`Sim::host_reads`].
    pub fn host_writes<T>(&self, memory: *const T, len: usize) {
        let size_bytes = len.saturating_mul(size_of::<T>());
        self.0.change("host_writes", |machine| {
            machine.host_touches(Deed::HostWrite, memory.addr(), size_bytes)
        });
    }
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sim").finish_non_exhaustive()
    }
}

/// The example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

//! A simulator of the CUDA driver. It fills the function table of `gpumem-sys`, so that CUDA host code runs without a GPU.
//!
//! [`driver()`] starts an instance: devices with a given memory, and the contexts, streams, events, memory, pools
//! and modules on them. Instances share no state, except memory that the program exports from one and imports into another
//! (on Linux, also in another process). A call reaches its instance through the function table, from any thread. The instance
//! ends with its last handle.
//!
//! **Queued work runs later.** A call that queues work returns at once. The work runs during later calls, at the latest when
//! the program waits for it, in an order that the seed chooses among all orders that streams and events allow. A program that
//! forgot to wait is wrong for some seed, and every time for that seed. A thread that waits for the device without calling
//! the driver, for example by polling pinned memory, waits forever: work runs only inside of calls.
//!
//! **Misuse is refused.** What the driver can check at the call gets the driver's return code. What shows only when work runs,
//! such as memory that was freed, is not yet allocated in stream order, or is too short, ends the context with a sticky
//! error, and [`Sim::report`] names the allocation.
//!
//! **Races are found.** Two accesses that nothing orders are reported together ([`Finding`]), whatever order the schedule
//! chose. The order is random, early, late, or every possible one ([`Schedule`]). Faults are injected by rules ([`Rule`]).
//!
//! **Other systems than Linux** have no virtual memory management and no memory for other processes: these calls return
//! `CUDA_ERROR_NOT_SUPPORTED`, and the attributes of the device agree.
//!
//! **A forked child cannot use the instances of its parent.** As with the vendor's driver, their calls return
//! `CUDA_ERROR_NOT_INITIALIZED` in the child. The functions of a [`Sim`] from the parent may block forever there. The child
//! can start an instance of its own.
//!
//! **Memory costs what is touched.** A device of 141 GiB is mapped lazily. Device addresses lie where no host pointer can be,
//! so an address that leaks into host code faults.
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

// The rooms, lowest first: a room imports from rooms above it in this list. `cargo xtask tidy` checks that. `machine` has the
// methods of `Machine` in folders named like the rooms whose types they work on.

// Result codes, handles, addresses, free ranges, random numbers, threads.
mod base;
// The settings of an instance: `SimConfig`, schedules, rules, costs, environment variables, errors.
mod config;
// Findings and reports.
mod report;
// Host memory that stands in for device memory; files of it that other processes map.
#[allow(unsafe_code)]
mod backing;
// Points in streams, vector clocks, the accesses that races are found by.
mod order;
// What is allocated, mapped, pooled, managed, imported.
mod memory;
// Attributes, contexts, modules, kernels.
mod device;
// Streams, events, operations, captures, the schedule.
mod stream;
// Graphs and their executables.
mod graph;
// One instance: what each call does, and what runs.
mod machine;
// The C functions: arguments, the lock, the slots of instances.
#[allow(unsafe_code)]
mod entry;
// `driver`, `from_env`, `driver_or_sim`, `Sim::of`.
#[allow(unsafe_code)]
mod driver;

pub use gpumem_sys as sys;

pub use crate::config::choices::{Choice, Schedule};
pub use crate::config::cost::Costs;
pub use crate::config::environment::VARIABLES;
pub use crate::config::error::SimError;
pub use crate::config::rules::{Effect, Rule, RuleError};
pub use crate::config::{DEVICES_MAX, MEMORY_BYTES_MAX, SimConfig};
pub use crate::device::launch::{Kernel, KernelFault, Launch};
pub use crate::driver::{driver, driver_or_sim, from_env};
use crate::entry::slot;
use crate::entry::slot::Shared;
use crate::machine::Machine;
pub use crate::report::finding::{Access, AccessKind, FaultKind, Finding, Misuse, Origin};
pub use crate::report::origins::CallStack;
pub use crate::report::{AllocationKind, LiveAllocation, Report};
use core::fmt;
use core::time::Duration;
use gpumem_sys::Table;
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
        self.0.change("host_reads", |machine| {
            machine.host_touches(AccessKind::HostRead, memory.addr(), size_bytes)
        });
    }

    /// Says that the host writes memory that devices reach. As [`Sim::host_reads`].
    pub fn host_writes<T>(&self, memory: *const T, len: usize) {
        let size_bytes = len.saturating_mul(size_of::<T>());
        self.0.change("host_writes", |machine| {
            machine.host_touches(AccessKind::HostWrite, memory.addr(), size_bytes)
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

//! A simulator of the CUDA driver. It fills the function table of `gpumem-sys`, so that CUDA host code runs without a GPU.
//!
//! [`driver()`] starts an instance: devices with a given memory, and the contexts, streams, events, memory, pools
//! and modules on them. Instances share no state, except memory that the program exports from one and imports into another
//! (on Linux, also in another process). A call reaches its instance through the function table, from any thread. The instance
//! ends with its last handle.
//!
//! **Queued work runs later.** A call that queues work returns at once. The work runs during later calls, at the latest when the program
//! waits for it, in an order that the seed chooses among all orders that streams and events allow. A program that lacks a wait is wrong for
//! some seed, and every time for that seed. A thread that waits for the device without calling the driver, for example by polling pinned
//! memory, waits forever: work runs only inside of calls.
//!
//! **Misuse is refused.** An error that the driver can detect in the call gets the driver's return code. An error that appears only when
//! work runs, such as a use of memory that was freed, is not yet allocated in stream order, or is too short, ends the context with a sticky
//! error, and [`Sim::report`] names the allocation.
//!
//! **Kernels run from PTX.** A module is a PTX text, several linked ones, or a fat binary that contains PTX. The logs of
//! `cuModuleLoadDataEx` and the report say why a module or a kernel is refused ([`Finding::Module`]).
//!
//! **Races are found.** Two accesses that are not ordered are reported together ([`Finding`]), whatever order the schedule chose. The order
//! is random, early, late, or every possible one ([`Schedule`]). Faults are injected by rules ([`Rule`]).
//!
//! **Other systems than Linux** have no virtual memory management and no memory for other processes: these calls return
//! `CUDA_ERROR_NOT_SUPPORTED`, and the attributes of the device agree.
//!
//! **A forked child cannot use the instances of its parent.** As with the vendor's driver, their calls return
//! `CUDA_ERROR_NOT_INITIALIZED` in the child. The functions of a [`Sim`] from the parent may block forever there. The child
//! can start an instance of its own for raw calls; pools and arrays refuse every forked child.
//!
//! **Only touched memory takes host memory.** A device of 141 GiB is mapped lazily. Device addresses lie where no host pointer can be, so
//! an address that leaks into host code faults.
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

// The rooms: a room imports only rooms that come earlier in this list. `cargo xtask tidy` checks that. `machine` has the
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
// What a program starts with: `Sim`, `driver`, `from_env`, `driver_or_sim`.
mod sim;

pub use gpumem_sys as sys;

pub use gpumem_ptx::SourceLine;

pub use crate::config::choices::{Choice, Schedule};
pub use crate::config::cost::Costs;
pub use crate::config::environment::VARIABLES;
pub use crate::config::error::SimError;
pub use crate::config::rules::{Effect, Rule, RuleError};
pub use crate::config::{DEVICES_MAX, MEMORY_BYTES_MAX, SimConfig};
#[doc(hidden)]
pub use crate::device::declared::DeclaredRange;
pub use crate::device::launch::{Kernel, KernelFault, Launch};
pub use crate::report::finding::{
    Access, AccessKind, FaultKind, Finding, HazardKind, KernelPlace, Misuse, Origin,
};
pub use crate::report::origins::CallStack;
pub use crate::report::{AllocationKind, LiveAllocation, Report};
pub use crate::sim::Sim;
pub use crate::sim::driver::{driver, driver_or_sim, from_env};

/// The example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

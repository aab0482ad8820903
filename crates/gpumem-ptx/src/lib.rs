//! Runs PTX, the text of CUDA kernels, on the host, without a GPU.
//!
//! [`Module::parse`] checks a text. [`Entry::run`] runs a kernel on memory that the caller provides ([`DeviceMemory`]), and returns what it did:
//! the bytes that it read and wrote, what it printed, the first mistake if there is one. Streams, allocations and order are not known here: `gpumem-sim` has
//! them, and runs whole CUDA programs with this crate.
//!
//! ```
//! use gpumem_ptx::{Checks, DeviceMemory, Launch, Module, Region};
//!
//! struct NoMemory;
//! impl DeviceMemory for NoMemory {
//!     fn region(&self, _address: u64, _size_bytes: u64, _is_write: bool) -> Option<Region<'_>> {
//!         None
//!     }
//! }
//!
//! let module = Module::parse(
//!     ".version 8.0
//!      .target sm_70
//!      .entry half_a_warp() {
//!          .reg .pred %p; .reg .b32 %r;
//!          mov.u32 %r, %laneid;
//!          setp.lt.u32 %p, %r, 16;
//!          @%p bar.sync 0;
//!          mov.u32 %r, 0;
//!          ret;
//!      }",
//! )?;
//! let (grid, block) = ([1; 3], [32, 1, 1]);
//! let launch =
//!     Launch { grid, block, shared_bytes: 0, parameters: &[], variables: &[], seed: 0, steps_max: 1000, multiprocessors: 132, checks: Checks::default(), cores: 1 };
//! let entry = module.entry("half_a_warp").ok_or("no such kernel")?;
//! let outcome = entry.run(launch, &NoMemory)?;
//! assert_eq!(
//!     outcome.mistake.ok_or("no mistake")?.to_string(),
//!     "line 7, block (0, 0, 0), thread (0, 0, 0): waits at barrier 0, which thread (16, 0, 0) of its warp does not reach with it"
//! );
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

// The rooms: a room imports only rooms that come earlier in this list. `cargo xtask tidy` checks that.

// Errors of a text, and their places.
mod error;
// A module as it is written.
mod syntax;
// Text to syntax.
mod parse;
// What names stand for, over all texts of a link.
mod names;
// Arithmetic on the 32 lanes of a register.
mod number;
// A kernel in the form that runs.
mod program;
// Syntax to programs: registers, addresses and labels become numbers.
mod lower;
// The mistakes of kernels.
mod fault;
// The memory that kernels access, and what they accessed.
mod memory;
// Races between threads, and reads of unwritten bytes.
mod check;
// Blocks, warps, groups of lanes, accesses.
mod run;
// Modules and their kernels, as users have them.
mod module;

pub use check::Checks;
pub use error::{LinkError, PtxError, PtxProblem};
pub use fault::{AccessPlace, BarrierCountFault, KernelMistake, Mistake, TextLine};
pub use memory::{DeviceMemory, Region, Sought, Touched};
pub use module::{Entry, Module, ModuleVariable};
pub use program::{Parameter, SourceLine};
pub use run::{Launch, Outcome};

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

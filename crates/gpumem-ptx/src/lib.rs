#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

// The rooms: a room imports only rooms that come earlier in this list. `cargo xtask tidy` checks that.

// Errors of a text, and their places.
mod error;
// The words of a text.
mod text;
// A module as it is written.
mod syntax;
// Text to syntax.
mod parse;
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
// Blocks, warps, groups of lanes, accesses.
mod run;
// Modules and their kernels, as users have them.
mod module;

pub use error::{PtxError, PtxProblem};
pub use fault::{KernelMistake, Mistake};
pub use memory::{DeviceMemory, Region, Touched};
pub use module::{Entry, Module, ModuleVariable};
pub use program::Parameter;
pub use run::Launch;

//! gpumem's simulator as a drop-in for NVIDIA's `libcuda.so.1`, for programs that do not use gpumem.
//!
//! The library exports every function of the driver API. Each forwards to one simulator of the process, which the
//! first call creates from the `GPUMEM_SIM_…` variables. A function that the simulator lacks returns
//! `CUDA_ERROR_NOT_SUPPORTED`. Kernels run from their PTX. When the process exits, the races and faults that the simulator has found are
//! written to standard error.
//!
//! `cargo xtask drop-in DIR` lays the library out under the names that programs look for:
//!
//! ```sh
//! cargo xtask drop-in target/drop-in
//! LD_LIBRARY_PATH=$PWD/target/drop-in GPUMEM_SIM_SEED=7 GPUMEM_SIM_DEVICES=2 some-cuda-program
//! ```
//!
//! This crate decides nothing. Behaviour belongs to the simulator in `gpumem-sim`; Rust code that can take a driver as
//! an argument is better tested with that crate. Programs built on that crate recognise this library by
//! [`gpumem_simulator`] and refuse to use it as a GPU.

#[cfg(target_os = "linux")]
mod at_exit;
mod export;
mod process;

pub use export::*;

/// Marks the library: gpumem's loader refuses a library with this symbol.
#[unsafe(no_mangle)]
pub extern "C" fn gpumem_simulator() {}

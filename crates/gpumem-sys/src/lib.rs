//! The raw CUDA driver API for Rust, loaded at run time.
//!
//! [`Driver`] is a table of the driver's functions. [`Driver::cuda`] fills it from the vendor's library. Other crates fill
//! one through [`Driver::from_parts`]: `gpumem-sim` does so with a simulator that runs on any machine. All calls go through
//! the table, so the same code, `unsafe` included, runs on both.
//!
//! The caller chooses the driver. A function that a driver lacks is an error value. The crate prints nothing, and only
//! [`Driver::from_env`] reads the environment.
//!
//! ```
//! use gpumem_sys::{Driver, LoadError};
//!
//! match Driver::cuda() {
//!     Ok(driver) => {
//!         let mut count = 0;
//!         // SAFETY: `count` outlives the call.
//!         unsafe { driver.cuDeviceGetCount(&mut count)? };
//!         println!("{count} devices");
//!     }
//!     Err(LoadError::NoLibrary { .. } | LoadError::NoDevice(_)) => println!("no GPU on this machine"),
//!     Err(error) => return Err(error.into()),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod calls;
mod code;
mod cuda;
mod driver;
pub mod env;
mod error;
pub mod exit;
pub mod fork;
mod generated;
mod process;
mod table;
pub mod text;

pub use driver::{Driver, DriverKind, Extension};
pub use error::{CudaVersion, DriverError, LoadError};
pub use generated::types;
pub use process::ProcessUsage;
pub use table::{Symbol, Table};
pub use types::CUresult;

/// The example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

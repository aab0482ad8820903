//! The CUDA driver API for Rust, loaded at run time, with a software driver beside it.
//!
//! [`Driver`] is a table of the driver's functions. Two things fill it: the vendor's library ([`Driver::cuda`]) and a
//! software driver that runs on any machine ([`Driver::sim`], feature `sim`, on by default). Everything above goes
//! through the table, so the same code, `unsafe` included, runs on both.
//!
//! Nothing here decides anything: which driver is taken is the caller's choice, a function that a driver lacks is an
//! error value, and nothing is printed. The environment is read only by the constructors named `from_env…`.
//!
//! ```
//! use gpumem_sys::{Driver, SimConfig};
//!
//! let driver = Driver::sim(SimConfig::new().seed(7))?;
//! let mut count = 0;
//! // SAFETY: `count` outlives the call.
//! unsafe { driver.cuDeviceGetCount(&mut count)? };
//! assert_eq!(count, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod code;
mod cuda;
mod driver;
pub mod env;
mod error;
mod generated;
#[cfg(feature = "sim")]
pub mod sim;
mod table;

pub use driver::{Driver, DriverKind};
pub use error::{CudaVersion, DriverError, LoadError};
pub use generated::types;
#[cfg(feature = "sim")]
pub use sim::{Sim, SimConfig};
pub use table::{Symbol, Table};
pub use types::CUresult;

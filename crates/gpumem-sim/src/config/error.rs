//! [`SimError`]: why there is no driver.

use crate::config::rules::RuleError;
use crate::config::{DEVICES_MAX, MEMORY_BYTES_MAX};
use gpumem_sys::LoadError;
use gpumem_sys::env::EnvError;

/// A simulator could not be set up, or the vendor's driver not be loaded.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// Every slot for an instance is taken.
    #[error("{0} simulators are alive, the most that one process can hold; drop one first")]
    TooManyInstances(usize),
    /// More devices than a machine can have.
    #[error("a simulator has at most {DEVICES_MAX} devices, not {count}")]
    TooManyDevices {
        /// The number asked for.
        count: u32,
    },
    /// More memory than a device can have.
    #[error("a device of the simulator has at most {MEMORY_BYTES_MAX} bytes, not {size_bytes}")]
    TooMuchMemory {
        /// The size asked for.
        size_bytes: u64,
    },
    /// A rule that could never apply.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// The vendor's driver was asked for and could not be loaded, or `GPUMEM_DRIVER` names none.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// An unknown `GPUMEM_…` variable, or a value that does not parse.
    #[error(transparent)]
    Env(#[from] EnvError),
}

//! [`SimError`]: the errors of starting a simulator.

use crate::config::rules::RuleError;
use crate::config::{DEVICES_MAX, MEMORY_BYTES_MAX};
use gpumem_sys::LoadError;
use gpumem_sys::env::EnvError;
use gpumem_sys::text::debug_is_display;

/// The error of a simulator that could not start, or of a vendor's driver that could not be loaded.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// The process has as many instances as it can have.
    #[error("too many simulators: a process can have {0}; drop one first")]
    TooManyInstances(usize),
    /// More devices than [`DEVICES_MAX`].
    #[error("invalid device count {count}; use at most {DEVICES_MAX} devices")]
    TooManyDevices {
        /// The requested number.
        count: u32,
    },
    /// More memory than [`MEMORY_BYTES_MAX`].
    #[error("invalid device memory of {size_bytes} bytes; use at most {MEMORY_BYTES_MAX} bytes")]
    TooMuchMemory {
        /// The requested size.
        size_bytes: u64,
    },
    /// A rule that can never apply.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// The vendor's driver was requested and could not be loaded, or `GPUMEM_DRIVER` names no driver.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// An unknown `GPUMEM_…` variable, or a value that does not parse.
    #[error(transparent)]
    Env(#[from] EnvError),
}

debug_is_display!(SimError);

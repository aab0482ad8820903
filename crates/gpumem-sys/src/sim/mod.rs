//! The software driver: simulated machines that fill the driver's table.

use crate::env::EnvError;
use crate::table::Table;

/// What a simulated machine is made of.
#[derive(Clone, Debug)]
pub struct SimConfig {
    pub(crate) seed: u64,
    pub(crate) device_count: u32,
    pub(crate) memory_bytes: u64,
}

impl SimConfig {
    /// One device with 8 GiB, seed 0.
    #[must_use]
    pub fn new() -> Self {
        Self { seed: 0, device_count: 1, memory_bytes: 8 << 30 }
    }

    /// Chooses the order in which queued work runs, among all that streams and events allow.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// How many devices there are; zero is a machine without a GPU.
    #[must_use]
    pub fn devices(mut self, count: u32) -> Self {
        self.device_count = count;
        self
    }

    /// The memory of each device.
    #[must_use]
    pub fn memory_bytes(mut self, size_bytes: u64) -> Self {
        self.memory_bytes = size_bytes;
        self
    }

    /// What `GPUMEM_SIM_SEED`, `GPUMEM_SIM_DEVICES` and `GPUMEM_SIM_MEMORY` say, else the defaults.
    ///
    /// # Errors
    ///
    /// An unknown `GPUMEM_…` variable, or a value that does not parse.
    pub fn from_env() -> Result<Self, EnvError> {
        Ok(Self::new())
    }
}

impl Default for SimConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// A simulated machine could not be set up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// Every slot for an instance is taken.
    #[error("{0} software drivers are alive, which is as many as one process can hold; drop one first")]
    TooManyInstances(usize),
}

/// A handle to a running simulated machine. Clones share it.
#[derive(Clone, Debug)]
pub struct Sim {}

impl Sim {
    pub(crate) fn start(_config: SimConfig) -> Result<(Self, Table), SimError> {
        Err(SimError::TooManyInstances(0))
    }
}

//! The machine of replays: a simulator of its own for each, or this machine's GPU.

use anyhow::{Result, bail};
use core::time::Duration;
use gpumem_sim::{Costs, Sim, SimConfig};
use gpumem_trace::Trace;
use gpumem_trace::pool::Limit;
use gpumem_trace::pool::sys::{Driver, DriverKind};

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Machine {
    /// True for this machine's GPU.
    pub(crate) is_gpu: bool,
    /// The memory of the simulated device; that of the recorded device if `None`.
    pub(crate) memory_bytes: Option<u64>,
}

impl Machine {
    /// A driver for a replay of the trace. The simulator has the prices of an H200, and looks for no races: a replay accesses no memory.
    pub(crate) fn driver(self, trace: &Trace) -> Result<Driver> {
        if self.is_gpu {
            return Ok(Driver::cuda()?);
        }
        let config = SimConfig::from_env()?.races(false).costs(Costs::h200());
        Ok(gpumem_sim::driver(config.memory_bytes(self.memory_bytes(trace)))?)
    }

    /// The memory of the simulated device.
    pub(crate) fn memory_bytes(self, trace: &Trace) -> u64 {
        let recorded = trace.real_run().settings().map(|pool| pool.device_bytes);
        self.memory_bytes.or(recorded.filter(|bytes| *bytes > 0)).unwrap_or(H200_BYTES)
    }

    pub(crate) fn kind(self) -> DriverKind {
        if self.is_gpu { DriverKind::Cuda } else { DriverKind::Sim }
    }
}

/// The clock of a driver: the simulator's has the prices of its device.
pub(crate) fn virtual_time(driver: &Driver) -> Option<Duration> {
    Sim::of(driver).map(Sim::host_time)
}

const H200_BYTES: u64 = 143_771 << 20;

/// An option that is a number of bytes, such as `24GiB`.
pub(crate) fn parse_bytes(text: &str) -> Result<u64> {
    match text.parse()? {
        Limit::Bytes(bytes) => Ok(bytes),
        _ => bail!("a size in bytes is needed here, such as 24GiB"),
    }
}

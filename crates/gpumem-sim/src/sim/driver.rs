//! [`driver`], and functions that choose between the simulator and the vendor's driver.

use crate::config::SimConfig;
use crate::config::environment::VARIABLES;
use crate::config::error::SimError;
use crate::sim::Sim;
use core::any::Any;
use gpumem_sys::{Driver, DriverKind, Extension, LoadError, ProcessUsage, env, fork};
use std::sync::Arc;

/// Starts a simulator. It shares devices, memory and queues with no other instance.
///
/// # Errors
///
/// - [`SimError::TooManyInstances`] if the process has as many simulators as it can have.
/// - [`SimError::TooManyDevices`], [`SimError::TooMuchMemory`] if `config` exceeds [`DEVICES_MAX`](crate::DEVICES_MAX) or
///   [`MEMORY_BYTES_MAX`](crate::MEMORY_BYTES_MAX).
/// - [`SimError::Rule`] if a rule can never apply.
pub fn driver(config: SimConfig) -> Result<Driver, SimError> {
    let (sim, table) = Sim::start(config)?;
    fork::watch();
    // SAFETY: each entry behaves as the vendor documents it, on every thread; it finds its instance by itself, and returns
    // that the driver is shut down once the instance has ended.
    Ok(unsafe { Driver::from_parts(table, DriverKind::Sim, Some(Arc::new(sim))) })
}

/// Returns the driver that `GPUMEM_DRIVER` names: the vendor's driver for `cuda`, which is the default, or for `sim` a simulator that
/// the `GPUMEM_SIM_…` variables configure.
///
/// # Errors
///
/// - [`SimError::Load`] if [`Driver::from_env`] fails.
/// - [`SimError::Env`] if a `GPUMEM_…` variable is unknown or invalid.
/// - [`SimError::TooManyInstances`], [`SimError::Rule`] if the simulator does not start; see [`driver`].
pub fn from_env() -> Result<Driver, SimError> {
    env::register(VARIABLES);
    match Driver::from_env() {
        Err(LoadError::SimulatorRequested) => driver(SimConfig::from_env()?),
        other => Ok(other?),
    }
}

/// Like [`from_env`] if `GPUMEM_DRIVER` is set. Otherwise returns the vendor's driver, or, on a machine without its library or
/// without a GPU, a simulator that the `GPUMEM_SIM_…` variables configure.
///
/// For tests, examples and tools. Print [`Driver::kind`], so that no run on a simulator goes unnoticed. A library should take a
/// `Driver` from its caller.
///
/// # Errors
///
/// [`SimError::Load`], [`SimError::Env`], [`SimError::TooManyInstances`], [`SimError::Rule`]; see [`from_env`]. A driver that is
/// installed but broken ([`LoadError::Start`], [`LoadError::Impostor`]) is an error and does not select the simulator.
pub fn driver_or_sim() -> Result<Driver, SimError> {
    env::register(VARIABLES);
    let is_named = env::read(env::VARIABLES, "GPUMEM_DRIVER")?.is_some();
    match from_env() {
        Err(SimError::Load(LoadError::NoLibrary { .. } | LoadError::NoDevice(_))) if !is_named => {
            driver(SimConfig::from_env()?)
        }
        other => other,
    }
}

impl Sim {
    /// Returns the simulator behind a driver, to register kernels or inspect its state; `None` for the vendor's driver.
    ///
    /// ```
    /// use gpumem_sim::{Sim, SimConfig};
    ///
    /// let driver = gpumem_sim::driver(SimConfig::new().seed(7))?;
    /// assert_eq!(Sim::of(&driver).map(Sim::seed), Some(7));
    /// # Ok::<(), gpumem_sim::SimError>(())
    /// ```
    #[must_use]
    pub fn of(driver: &Driver) -> Option<&Self> {
        let extension: &dyn Any = driver.extension()?;
        extension.downcast_ref()
    }
}

impl Extension for Sim {
    /// This process, and the other process of [`Sim::take_memory`].
    fn processes(&self, device: u32) -> Vec<ProcessUsage> {
        let mut own = ProcessUsage::default();
        own.id = Some(std::process::id());
        own.in_use_bytes = Some(self.0.look(|machine| machine.own_bytes(device)));
        let mut other = ProcessUsage::default();
        other.name = Some("the simulator's other process".into());
        other.in_use_bytes = Some(self.others_bytes(device));
        vec![own, other]
    }

    fn available_bytes(&self, device: u32) -> Option<u64> {
        self.0.look(|machine| {
            let device = machine.device_index(device.cast_signed()).ok()?;
            Some(machine.available_bytes(device))
        })
    }
}

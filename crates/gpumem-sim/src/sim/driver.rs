//! [`driver`] and the choices between the simulator and the vendor's driver.

use crate::config::SimConfig;
use crate::config::environment::VARIABLES;
use crate::config::error::SimError;
use crate::sim::Sim;
use core::any::Any;
use gpumem_sys::{Driver, DriverKind, Extension, LoadError, ProcessUsage, env};
use std::sync::Arc;

/// Starts a simulator: its devices, memory and queues are shared with no other instance.
///
/// # Errors
///
/// [`SimError::TooManyInstances`], [`SimError::TooManyDevices`], [`SimError::TooMuchMemory`], and [`SimError::Rule`] for a
/// rule that could never apply.
pub fn driver(config: SimConfig) -> Result<Driver, SimError> {
    let (sim, table) = Sim::start(config)?;
    // SAFETY: each entry behaves as the vendor documents it, on every thread; it finds its instance by itself, and answers
    // that the driver is shut down once that is gone.
    Ok(unsafe { Driver::from_parts(table, DriverKind::Sim, Some(Arc::new(sim))) })
}

/// The driver that `GPUMEM_DRIVER` names: the vendor's for `cuda`, also when unset, or for `sim` a simulator that the
/// `GPUMEM_SIM_…` variables set up.
///
/// # Errors
///
/// [`SimError::Load`] where [`Driver::from_env`] fails; for the simulator [`SimError::Env`] for an unknown `GPUMEM_…`
/// variable or a value that does not parse, and those of [`driver`].
pub fn from_env() -> Result<Driver, SimError> {
    env::register(VARIABLES);
    match Driver::from_env() {
        Err(LoadError::SimulatorRequested) => driver(SimConfig::from_env()?),
        other => Ok(other?),
    }
}

/// [`from_env`] where `GPUMEM_DRIVER` is set. Where it is not: the vendor's driver, or on a machine without its library or
/// without a GPU, a simulator that the `GPUMEM_SIM_…` variables set up.
///
/// For tests, examples and tools. Print [`Driver::kind`], so that nothing runs on a simulator unnoticed. A library takes a
/// `Driver` from its caller.
///
/// # Errors
///
/// Those of [`from_env`]. [`LoadError::Start`] and [`LoadError::Impostor`] among them: a machine whose driver is broken is
/// not one without a GPU.
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
    /// The simulator behind a driver, to register kernels with or to look into; `None` for the vendor's driver.
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
    /// The other process of [`Sim::take_memory`].
    fn processes(&self, device: u32) -> Vec<ProcessUsage> {
        let mut usage = ProcessUsage::default();
        usage.name = Some("the simulator's other process".into());
        usage.in_use_bytes = Some(self.others_bytes(device));
        vec![usage]
    }
}

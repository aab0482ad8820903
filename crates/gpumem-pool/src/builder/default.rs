//! The default pools: one for each device ordinal of the process, for code that has only the number of a device.

use crate::device::Device;
use crate::error::{PoolError, not_forked};
use crate::pool::Pool;
use gpumem_sys::{Driver, fork};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The default pools by ordinal. They live until the process ends.
static DEFAULTS: Mutex<BTreeMap<u32, Pool>> = Mutex::new(BTreeMap::new());

impl Pool {
    /// The default pool of the device with this ordinal: the one that [`Pool::set_default`] has set, or else a new pool on
    /// [`Driver::from_env`] that the environment configures ([`Pool::from_env`]). It lives until the process ends.
    ///
    /// For interfaces that pass only the number of a device. Threads that call it at the same time get the same pool.
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// Pool::builder(&device).hard_limit(64 << 20).build()?.set_default()?;
    /// assert_eq!(Pool::for_device(0)?.status()?.hard_limit_bytes, Some(64 << 20));
    /// assert!(Pool::new(&device)?.set_default().is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`PoolError::Load`] if there is no driver, or if `GPUMEM_DRIVER=sim` is set: a program with the simulator calls
    ///   [`Pool::set_default`] first.
    /// - [`PoolError::NoSuchDevice`] if the driver has no device with this ordinal.
    /// - All errors of [`Pool::from_env`], such as [`PoolError::Env`] for an invalid variable.
    pub fn for_device(ordinal: u32) -> Result<Self, PoolError> {
        not_forked()?;
        if let Some(pool) = Self::default_of(ordinal) {
            return Ok(pool);
        }
        // Made without the lock, because it calls the driver. If two threads make one, the first to set it wins.
        let driver = Driver::from_env()?;
        let made = Self::from_env(&Device::new(&driver, ordinal)?)?;
        let kept = defaults().entry(ordinal).or_insert_with(|| made.clone()).clone();
        Ok(kept)
    }

    /// The default pool of the device with this ordinal, if there is one. Creates none.
    #[must_use]
    pub fn default_of(ordinal: u32) -> Option<Self> {
        if fork::is_child() {
            return None;
        }
        defaults().get(&ordinal).cloned()
    }

    /// Makes this pool the default pool of its device's ordinal, which [`Pool::for_device`] returns. It can be set once in a
    /// process, and lives until the process ends.
    ///
    /// # Errors
    ///
    /// [`PoolError::DefaultAlreadySet`] if the ordinal has a default pool, set or created.
    pub fn set_default(&self) -> Result<(), PoolError> {
        not_forked()?;
        let ordinal = self.device().ordinal();
        match defaults().entry(ordinal) {
            Entry::Vacant(place) => {
                place.insert(self.clone());
                Ok(())
            }
            Entry::Occupied(_) => Err(PoolError::DefaultAlreadySet { ordinal }),
        }
    }
}

fn defaults() -> MutexGuard<'static, BTreeMap<u32, Pool>> {
    DEFAULTS.lock().unwrap_or_else(PoisonError::into_inner)
}

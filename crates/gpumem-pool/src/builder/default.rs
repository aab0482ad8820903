//! The default pools: one for each device ordinal of the process, for code that has only the number of a device.

use crate::builder::PoolBuilder;
use crate::error::{PoolError, Unsupported};
use crate::pool::Pool;
use gpumem_base::sync::Lock;
use gpumem_device::internal::not_forked;
use gpumem_device::{Device, DeviceError};
use gpumem_sys::types::CUresult;
use gpumem_sys::{Driver, fork};
use std::collections::BTreeMap;

/// The default pools by ordinal. They live until the process ends, or until one replaces another whose device was reset.
static DEFAULTS: Lock<BTreeMap<u32, Pool>> = Lock::new(BTreeMap::new());

impl Pool {
    /// The default pool of the device with this ordinal: the one that [`Pool::set_default`] has set, otherwise a new pool on
    /// [`Driver::from_env`] that the environment configures ([`Pool::from_env`]). It lives until the process ends.
    ///
    /// Other libraries copy its memory between devices by address only. Without a link, the driver copies plain memory this way but refuses
    /// mapped memory. The new pool of a device that lacks a link to another visible device therefore has plain segments, unless
    /// `expandable_segments` is set.
    ///
    /// It is for interfaces that pass only the number of a device. Threads that call it at the same time get the same pool.
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
    /// - [`DeviceError::NotFound`](crate::DeviceError::NotFound) if the driver has no device with this ordinal.
    /// - All errors of [`Pool::from_env`], such as [`PoolError::Env`] for an invalid variable.
    pub fn for_device(ordinal: u32) -> Result<Self, PoolError> {
        not_forked()?;
        if let Some(pool) = Self::default_of(ordinal) {
            return Ok(pool);
        }
        // Created outside the lock, because that calls the driver. If two threads create one, the first to set it wins.
        let driver = Driver::from_env()?;
        let made = PoolBuilder::from_env(&Device::new(&driver, ordinal)?)?.copied_by_address().build()?;
        match made.set_default() {
            Ok(()) => Ok(made),
            Err(PoolError::DefaultAlreadySet { .. }) => {
                Ok(DEFAULTS.lock().entry(ordinal).or_insert(made).clone())
            }
            Err(error) => Err(error),
        }
    }

    /// The default pool of the device with this ordinal, if any. Creates none.
    #[must_use]
    pub fn default_of(ordinal: u32) -> Option<Self> {
        if fork::is_child() {
            return None;
        }
        DEFAULTS.lock().get(&ordinal).filter(|pool| !pool.device().is_reset()).cloned()
    }

    /// Makes this pool the default pool of its device's ordinal, which [`Pool::for_device`] returns. It can be set once in a
    /// process, and lives until the process ends. After a reset of the device (`cudaDeviceReset`) there is none, and another can be
    /// set.
    ///
    /// The default pools of devices with a link are open to each other ([`Pool::enable_peer_access`]) once both exist, because code that
    /// knows only device numbers copies between them. This is free for a process that uses one device. A pool with the option `peers` (even
    /// `none`) is open only to the devices that the option names.
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let driver = gpumem_sim::driver(SimConfig::new().devices(3).without_link(0, 2))?;
    /// let devices = [0, 1, 2].map(|ordinal| Device::new(&driver, ordinal).unwrap());
    /// devices.iter().try_for_each(|device| Pool::new(device)?.set_default())?;
    ///
    /// let [home, other, far] = [0, 1, 2].map(|index: usize| Stream::new(&devices[index]).unwrap());
    /// let block = Pool::for_device(0)?.alloc(4096, &home)?;
    /// other.wait_for(&home)?;
    /// // … work on `other` that uses `block.address()` …
    /// # let may_write = |stream: &Stream| {
    /// #     let _bound = stream.device().bind().unwrap();
    /// #     // SAFETY: the block outlives the work, which is waited for.
    /// #     let queued = unsafe { driver.cuMemsetD8Async(block.address(), 1, 4096, stream.raw()) };
    /// #     stream.synchronize().unwrap();
    /// #     queued.is_ok()
    /// # };
    /// # assert!(may_write(&other) && !may_write(&far));
    /// block.record_use(&other);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`PoolError::DefaultAlreadySet`] if the ordinal already has a default pool.
    /// - [`DeviceError::Driver`] if a call fails.
    pub fn set_default(&self) -> Result<(), PoolError> {
        not_forked()?;
        // Held during the driver calls: of two pools that become default pools at the same time, the later one finds the other.
        static CHANGE: Lock<()> = Lock::new(());
        let _change = CHANGE.lock();
        let ordinal = self.device().ordinal();
        if Self::default_of(ordinal).is_some() {
            return Err(PoolError::DefaultAlreadySet { ordinal });
        }
        let mut others: Vec<Self> = DEFAULTS.lock().values().cloned().collect();
        others.retain(|other| !other.device().is_reset());
        for other in &others {
            open(self, other)?;
            open(other, self)?;
        }
        // Dropped outside the lock, because that takes other locks.
        let _former = DEFAULTS.lock().insert(ordinal, self.clone());
        Ok(())
    }
}

/// Lets the device of `other` use the memory of a pool, if that is possible and the program has not chosen the devices.
fn open(pool: &Pool, other: &Pool) -> Result<(), PoolError> {
    if pool.0.config().given.peers.is_some() {
        return Ok(());
    }
    match pool.enable_peer_access(other.device()) {
        // A pool that is lost is of no use to the other device.
        Err(
            PoolError::Unsupported(Unsupported::PeerAccess { .. })
            | PoolError::Device(DeviceError::DeviceLost { .. })
            | PoolError::Poisoned { .. },
        ) => Ok(()),
        // The context has its maximum number of peers. Copies between these devices go through the host.
        Err(PoolError::Device(DeviceError::Driver(error)))
            if error.code() == CUresult::CUDA_ERROR_TOO_MANY_PEERS =>
        {
            Ok(())
        }
        opened => opened,
    }
}

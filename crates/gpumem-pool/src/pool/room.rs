//! The size of a pool: changes of its limits, memory released and memory reserved ahead.

use crate::backend::Answer;
use crate::config::IntoLimit;
use crate::error::PoolError;
use crate::limits::Limits;
use crate::pool::{Origin, Pool, State};

impl Pool {
    /// Reserves memory from the device until the pool holds at least `size_bytes`, so that blocks up to that sum
    /// need no driver call for memory. Waits only if the device or the limit is full. Only the backend `caching`
    /// reserves ahead; `native` and `none` grow with each block.
    ///
    /// Thread caches keep large blocks in memory that was reserved ahead and never needed. While there is such memory,
    /// a block may be a quarter larger than requested, and below 64 KiB twice as large.
    ///
    /// # Errors
    ///
    /// - [`PoolError::OutOfMemory`] if the device has too little free memory.
    /// - [`PoolError::LimitReached`] if a hard limit or quota refuses.
    /// - [`PoolError::TooLarge`] if `size_bytes` exceeds the device's memory.
    /// - [`PoolError::Asleep`] if the pool sleeps.
    /// - [`PoolError::DeviceLost`] or [`PoolError::Poisoned`] after an earlier failure.
    /// - [`PoolError::Driver`] if a call fails.
    pub fn reserve(&self, size_bytes: u64) -> Result<(), PoolError> {
        self.0.check_usable()?;
        self.0.check_awake()?;
        let reserved =
            self.0.check_size(size_bytes).and_then(|()| match self.0.backend().reserve(size_bytes) {
                Answer::Found(()) => Ok(()),
                Answer::Short(mut search) => self.0.climb(&mut *search),
            });
        self.0.with_report(reserved, &Origin { size_bytes: None, stream: None, tag: 0 })
    }

    /// Runs the reclaim callbacks registered with the device ([`Reclaimable`](crate::Reclaimable)), waits for the
    /// device, then releases all memory that no block holds, and the host memory that [`Pool::sleep`] keeps. Returns the number of
    /// bytes released from the device.
    ///
    /// An allocation does this automatically when the device is full. Call it to leave room for other users of the device.
    ///
    /// # Errors
    ///
    /// - [`PoolError::DeviceLost`] or [`PoolError::Poisoned`] after an earlier failure.
    /// - [`PoolError::Driver`] if a call fails.
    pub fn reclaim(&self) -> Result<u64, PoolError> {
        self.giving_back(|state| {
            state.run_all_callbacks();
            state.backend().reclaim()
        })
    }

    /// Changes the hard limit ([`PoolBuilder::hard_limit`](crate::PoolBuilder::hard_limit)) for all clones and all
    /// threads. After this call returns, the pool does not grow beyond the limit. `Limit::Bytes(u64::MAX)` removes
    /// the limit. A share of the device corresponds to PyTorch's per-process memory fraction.
    ///
    /// When the pool already holds more, memory that no block holds is released: memory that needs no wait immediately, the rest as blocks
    /// are freed, whenever the host waits. Until then the pool does not grow.
    ///
    /// ```
    /// use gpumem_pool::{Device, Limit, Pool, PoolError, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new().memory_bytes(1 << 30))?, 0)?;
    /// let (pool, stream) = (Pool::new(&device)?, Stream::new(&device)?);
    /// let block = pool.alloc(48 << 20, &stream)?;
    /// pool.set_hard_limit("6.25%")?;
    /// assert_eq!(pool.status()?.hard_limit_bytes, Some(64 << 20));
    /// assert!(matches!(pool.alloc(32 << 20, &stream), Err(PoolError::LimitReached { .. })));
    /// pool.set_hard_limit(512 << 20)?;
    /// let more = pool.alloc(32 << 20, &stream)?;
    /// # drop((block, more));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`PoolError::BadArgument`] if the limit is below the smallest accepted value.
    /// - [`ConfigError::LimitSyntax`](crate::ConfigError::LimitSyntax) for an invalid text or share.
    /// - [`ConfigError::ShareOfHost`](crate::ConfigError::ShareOfHost) for a share of host memory.
    /// - [`PoolError::DeviceLost`] or [`PoolError::Poisoned`] after an earlier failure.
    /// - [`PoolError::Driver`] if a call fails. The limit is then in force, but releasable memory may remain.
    pub fn set_hard_limit(&self, limit: impl IntoLimit) -> Result<(), PoolError> {
        self.0.check_usable()?;
        let (limit, kind, total_bytes) = (limit.into_limit()?, self.kind(), self.device().total_bytes());
        let (pool, free_bytes) = (&self.0.setup().name, || self.own_and_free_bytes());
        let limit_bytes = Limits::resolve_hard(pool, Some(limit), kind, total_bytes, free_bytes)?;
        self.0.backend().allow_hard_limit(limit_bytes);
        let excess_bytes = self.0.limits().node().set_limit_bytes(limit_bytes);
        if excess_bytes > 0 {
            self.0.backend().limits_changed()?;
            let keep_bytes = self.0.reserved_bytes()?.saturating_sub(excess_bytes);
            self.0.backend().trim_to(keep_bytes)?;
        }
        Ok(())
    }

    /// Changes the soft limit ([`PoolBuilder::soft_limit`](crate::PoolBuilder::soft_limit)). Cached memory beyond it is released: memory
    /// that needs no wait immediately, the rest whenever the host waits. `Limit::Bytes(u64::MAX)` removes the limit.
    ///
    /// # Errors
    ///
    /// - [`ConfigError::LimitSyntax`](crate::ConfigError::LimitSyntax) for an invalid text or share.
    /// - [`ConfigError::ShareOfHost`](crate::ConfigError::ShareOfHost) for a share of host memory.
    /// - [`PoolError::DeviceLost`] or [`PoolError::Poisoned`] after an earlier failure.
    /// - [`PoolError::Driver`] if a call fails.
    pub fn set_soft_limit(&self, limit: impl IntoLimit) -> Result<(), PoolError> {
        self.0.check_usable()?;
        let (limit, kind, total_bytes) = (limit.into_limit()?, self.kind(), self.device().total_bytes());
        let limit_bytes = Limits::resolve(Some(limit), kind, total_bytes, || self.own_and_free_bytes())?;
        self.0.limits().set_soft_bytes(limit_bytes);
        self.0.backend().limits_changed()?;
        if self.0.reserved_bytes()? > limit_bytes { self.0.backend().trim_to(limit_bytes) } else { Ok(()) }
    }

    /// Releases memory that no block holds, until `keep_bytes` are reserved. Live blocks, and frees that the device has
    /// not reached yet, may keep more reserved. Does not wait. Returns the number of bytes released.
    ///
    /// # Errors
    ///
    /// - [`PoolError::DeviceLost`] or [`PoolError::Poisoned`] after an earlier failure.
    /// - [`PoolError::Driver`] if a call fails.
    pub fn trim_to(&self, keep_bytes: u64) -> Result<u64, PoolError> {
        self.giving_back(|state| state.backend().trim_to(keep_bytes))
    }

    /// The memory that a share of free memory refers to: the device's free memory plus this pool's reserved memory.
    fn own_and_free_bytes(&self) -> Result<u64, PoolError> {
        Ok(self.device().memory_info()?.free_bytes.saturating_add(self.0.reserved_bytes()?))
    }

    fn giving_back(&self, work: impl FnOnce(&State) -> Result<(), PoolError>) -> Result<u64, PoolError> {
        self.0.check_usable()?;
        let before_bytes = self.0.reserved_bytes()?;
        self.0.noting(work(&self.0))?;
        let released_bytes = before_bytes.saturating_sub(self.0.reserved_bytes()?);
        self.0.event_released(released_bytes);
        Ok(released_bytes)
    }
}

//! [`Pool::private`]: a pool within another pool's limit.

use crate::config::{IntoLimit, Limit, PoolName};
use crate::error::{PoolError, not_forked};
use crate::limits::Limits;
use crate::pool::Pool;
use std::sync::Arc;

impl Pool {
    /// Builds a separate pool for one part of a program. The new pool has this pool's configuration, separate memory, separate counters and
    /// its own hard limit, the quota. Its memory also counts against this pool's hard limit, if any, so either pool may be refused because
    /// of the other. When that limit is reached, cached memory of any of the pools is released first (`caching`). A quota is therefore an
    /// upper bound, not a reservation.
    ///
    /// A quota above this pool's limit is reduced to that limit. The pools may be dropped in either order.
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, PoolError, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let pool = Pool::builder(&device).hard_limit(64 << 20).build()?;
    /// let stream = Stream::new(&device)?;
    ///
    /// let cache = pool.private(24 << 20)?;
    /// let held = cache.alloc(20 << 20, &stream)?;
    /// assert!(matches!(cache.alloc(8 << 20, &stream), Err(PoolError::LimitReached { .. })));
    /// assert!(matches!(pool.alloc(50 << 20, &stream), Err(PoolError::LimitReached { .. })));
    /// let other = pool.alloc(40 << 20, &stream)?;
    /// # drop((held, other));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ConfigError::LimitSyntax`](crate::ConfigError::LimitSyntax) for an invalid text or share.
    /// - [`ConfigError::ShareOfHost`](crate::ConfigError::ShareOfHost) for a share of host memory.
    /// - The errors of [`PoolBuilder::build`](crate::PoolBuilder::build), such as [`PoolError::BadArgument`] for
    ///   a quota below the smallest accepted value.
    pub fn private(&self, quota: impl IntoLimit) -> Result<Self, PoolError> {
        self.build_beneath(None, Some(quota.into_limit()?))
    }

    /// Like [`Pool::private`], with a name for the new pool, which follows this pool's name:
    /// `training/cache` ([`Pool::name`]).
    ///
    /// # Errors
    ///
    /// The errors of [`Pool::private`].
    pub fn private_named(&self, name: &str, quota: impl IntoLimit) -> Result<Self, PoolError> {
        self.build_beneath(Some(name), Some(quota.into_limit()?))
    }

    /// Builds a pool with this pool's configuration whose memory also counts against this pool's limits.
    pub(super) fn build_beneath(&self, name: Option<&str>, quota: Option<Limit>) -> Result<Self, PoolError> {
        not_forked()?;
        let device = self.device();
        let free_bytes = || Ok(device.memory_info()?.free_bytes);
        let resolve = |quota| Limits::resolve(Some(quota), self.kind(), device.total_bytes(), free_bytes);
        let quota_bytes = quota.map(resolve).transpose()?;
        let least = |quota: u64| self.0.limits().hard_bytes().map_or(quota, |limit| limit.min(quota));
        let mut setup = self.0.setup().clone();
        setup.name = PoolName::new(name, Some(&setup.name));
        setup.parent = Some(Arc::clone(self.0.limits().node()));
        setup.config.backend = Some(self.backend());
        setup.config.hard_limit = quota_bytes.map(|quota| least(quota).into());
        if self.0.backend().has_plain_segments() {
            setup.config.expandable_segments = Some(false);
        }
        let pool = Self::build(setup)?;
        pool.0.open_like(&self.0)?;
        Ok(pool)
    }
}

//! [`PoolSettings`]: the settings of a pool, and [`Figures`]: its current memory, both for its record in a trace.

use crate::backend::{Backend, MemorySource};
use crate::config::{BackendKind, MemoryKind, Options};
use crate::pool::hub::Hub;
use crate::pool::listing::Listing;
use std::sync::Weak;

/// The settings of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolSettings {
    /// The number of the pool in events.
    pub pool: u32,
    /// The number of the pool that it is private to.
    pub parent: Option<u32>,
    /// Its name ([`Pool::name`](crate::Pool::name)).
    pub name: String,
    /// The name of its device.
    pub device: String,
    /// The ordinal of its device.
    pub device_ordinal: u32,
    /// The memory of its device.
    pub device_bytes: u64,
    /// The backend.
    pub backend: BackendKind,
    /// The kind of memory.
    pub kind: MemoryKind,
    /// The hard limit at the beginning, or the quota of a private pool.
    pub hard_limit_bytes: Option<u64>,
    /// The options that were given, as in `GPUMEM_CONF` ([`conf`](crate::conf)), without `flight_recorder`.
    pub conf: String,
}

impl PoolSettings {
    pub(crate) fn new(hub: &Hub) -> Self {
        let (name, device, config, limits) = (hub.name(), hub.device(), hub.config(), &hub.limits);
        Self {
            pool: name.id.number() as u32,
            parent: limits.node.parent().map(|parent| parent.name.id.number() as u32),
            name: name.as_str().into(),
            device: device.name().into(),
            device_ordinal: device.ordinal(),
            device_bytes: device.total_bytes(),
            backend: hub.backend.kind(),
            kind: config.kind,
            hard_limit_bytes: limits.hard_bytes(),
            conf: Options { flight_recorder: None, ..config.given.clone() }.text(),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) reserved_bytes: u64,
    pub(crate) reserved_peak_bytes: u64,
    pub(crate) in_use_bytes: u64,
    pub(crate) block_count: u64,
}

impl Figures {
    /// `None` if the pool is gone, or if the driver cannot be queried.
    pub(crate) fn of_listed(pool: &Weak<Listing>) -> Option<Self> {
        Self::of(&pool.upgrade()?.backend)
    }

    pub(crate) fn of(backend: &Backend) -> Option<Self> {
        let (reserved, counts) = (backend.reserved().ok()?, backend.counts());
        let own = (counts.in_use_bytes, counts.in_use_peak_bytes);
        let (reserved_bytes, reserved_peak_bytes) =
            reserved.map_or(own, |reserved| (reserved.current_bytes, reserved.peak_bytes));
        let (in_use_bytes, block_count) = (counts.in_use_bytes, counts.block_count);
        Some(Self { reserved_bytes, reserved_peak_bytes, in_use_bytes, block_count })
    }
}

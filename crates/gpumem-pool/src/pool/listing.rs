//! [`Listing`]: the entry of a pool in the list of its device, with its name and its figures.

use crate::backend::{Backend, MemorySource};
#[cfg(feature = "status-socket")]
use crate::config::Limit;
use crate::config::{BackendKind, MemoryKind, PoolId, PoolName};
use crate::error::{PoolError, PoolUsage};
use crate::figures::ActivityCounters;
use crate::limits::spills::Spills;
use crate::limits::{LimitNode, Limits, WeakList};
use crate::stats::{Status, StreamUsage, TagSum, TagUsage, Tags};
use core::sync::atomic::{AtomicU64, Ordering};
use gpumem_base::counters::Counters;
use gpumem_base::sync::Lock;
use gpumem_device::internal::PeerDevice;
use gpumem_device::{Device, MemoryInfo, StreamId};
use std::sync::{Arc, OnceLock, Weak};

pub(crate) struct Listing {
    name: PoolName,
    device: Device,
    parent: Option<Arc<LimitNode>>,
    kind: MemoryKind,
    pub(super) backend: Backend,
    limits: Limits,
    tags: Tags,
    activity: Arc<ActivityCounters>,
    /// Set once, if the pool spills. The pool keeps it.
    pub(super) spiller: OnceLock<Weak<dyn Spills>>,
    pub(super) peers: Peers,
}

/// What a listing is made of.
pub(super) struct Listed<'a> {
    pub(super) device: &'a Device,
    pub(super) kind: MemoryKind,
    pub(super) backend: &'a Backend,
    pub(super) limits: &'a Limits,
    pub(super) tags: &'a Tags,
    pub(super) activity: &'a Arc<ActivityCounters>,
}

impl Listing {
    /// The name and the figures of each pool of a GPU, in the order of their creation.
    pub(super) fn usage_on(device: &Device) -> Vec<PoolUsage> {
        WeakList::<Self>::on(device).live().iter().map(|pool| pool.usage()).collect()
    }

    pub(super) fn new(of: Listed<'_>) -> Arc<Self> {
        let Listed { device, kind, backend, limits, tags, activity } = of;
        Arc::new(Self {
            name: limits.node.name.clone(),
            device: device.clone(),
            parent: limits.node.parent().cloned(),
            kind,
            backend: backend.clone(),
            limits: limits.clone(),
            tags: tags.clone(),
            activity: Arc::clone(activity),
            spiller: OnceLock::new(),
            peers: Peers::default(),
        })
    }

    /// The pools beneath the pool `id` of the same device, recursively. A parent is older than the pools beneath it.
    pub(super) fn family_of(&self, id: PoolId) -> Vec<Arc<Self>> {
        let mut family = vec![id];
        let mut pools = WeakList::<Self>::on(&self.device).live();
        pools.retain(|pool| {
            let (id, parent) = pool.lineage();
            let is_in = parent.is_some_and(|parent| family.contains(&parent));
            family.extend(is_in.then_some(id));
            is_in
        });
        pools
    }

    /// True if the soft limit is above the hard limit, which then also bounds the cached memory.
    pub(super) fn is_soft_limit_idle(&self) -> bool {
        match (self.limits.hard_bytes(), self.limits.soft_bytes()) {
            (Some(hard), Some(soft)) => soft > hard && self.backend.is_bounded_by(soft),
            _ => false,
        }
    }

    /// The memory of this pool that the driver has given to other libraries.
    pub(super) fn other_libraries_bytes(&self) -> Result<u64, PoolError> {
        let Ok(device_pool) = self.backend.device_pool() else { return Ok(0) };
        if !device_pool.has_been_current() {
            return Ok(0);
        }
        // Read first: a block that is freed in between then counts in neither.
        let counts = self.backend.counts();
        let unfreed_bytes = self.backend.reserved()?.map_or(0, |reserved| reserved.unfreed_bytes);
        let used_bytes = device_pool.usage()?.used_bytes;
        let other_bytes = used_bytes.saturating_sub(counts.in_use_bytes.saturating_add(unfreed_bytes));
        // The driver counts whole units, and does not report how many bytes were requested.
        let rounding_bytes = counts.block_count.saturating_mul(DRIVER_UNIT_BYTES - 1);
        Ok(if other_bytes > rounding_bytes { other_bytes } else { 0 })
    }

    /// Returns the reserved bytes. For a backend that reserves only its blocks, these are the bytes in use.
    pub(super) fn reserved_bytes(&self) -> Result<u64, PoolError> {
        let reserved = self.backend.reserved()?;
        Ok(reserved.map_or_else(|| self.backend.counts().in_use_bytes, |reserved| reserved.current_bytes))
    }

    /// Sets the soft limit and releases cached memory above it.
    pub(crate) fn set_soft_limit(&self, limit_bytes: u64) -> Result<(), PoolError> {
        self.limits.set_soft_bytes(limit_bytes);
        self.backend.limits_changed()?;
        if self.reserved_bytes()? > limit_bytes { self.backend.trim_to(limit_bytes) } else { Ok(()) }
    }

    /// Sets the hard limit. `make_room` is called if more is held; then cached memory above the limit is released.
    pub(crate) fn set_hard_limit(&self, limit_bytes: u64, make_room: impl FnOnce()) -> Result<(), PoolError> {
        self.backend.check_hard_limit(limit_bytes)?;
        let excess_bytes = self.limits.node.set_limit_bytes(limit_bytes);
        if excess_bytes > 0 {
            self.backend.limits_changed()?;
            make_room();
            let keep_bytes = self.reserved_bytes()?.saturating_sub(excess_bytes);
            self.backend.trim_to(keep_bytes)?;
        }
        Ok(())
    }

    /// The pool's figures now.
    pub(crate) fn status(&self) -> Result<Status, PoolError> {
        self.status_on(self.device.memory_info()?)
    }

    /// Like [`status`](Self::status), with the memory of the device as it is now.
    pub(crate) fn status_on(&self, device: MemoryInfo) -> Result<Status, PoolError> {
        let reserved = self.backend.reserved()?;
        let counts = self.backend.counts();
        let tag = |TagSum { name, counters, peak_bytes }: TagSum| TagUsage {
            tag: (*name).into(),
            in_use_bytes: counters.in_use_bytes(),
            peak_bytes,
            block_count: counters.block_count(),
            allocation_count: counters.allocation_count(),
        };
        let tags = self.tags.sums().into_iter().map(tag).collect();
        let mut streams = self.backend.streams();
        streams.iter_mut().for_each(|(_, sum)| *sum = sum.shown());
        streams.retain(|(_, sum)| sum.block_count() > 0);
        let stream = |(stream, sum): (Option<StreamId>, Counters)| StreamUsage {
            stream,
            in_use_bytes: sum.in_use_bytes(),
            block_count: sum.block_count(),
        };
        let streams = streams.into_iter().map(stream).collect();
        let reserved_bytes = reserved.map_or(counts.in_use_bytes, |reserved| reserved.current_bytes);
        let unfreed_bytes = reserved.map_or(0, |reserved| reserved.unfreed_bytes);
        let other_libraries_bytes = self.other_libraries_bytes()?;
        let used_bytes = counts.in_use_bytes.saturating_add(other_libraries_bytes);
        let spiller = self.spiller.get().and_then(Weak::upgrade);
        let spilled = spiller.map(|spiller| spiller.figures()).unwrap_or_default();
        Ok(Status {
            id: self.name.id,
            name: self.name.as_str().into(),
            is_named: self.name.is_given,
            backend: self.backend.kind(),
            kind: self.kind,
            plain_segments: self.backend.has_plain_segments(),
            plain_segments_reason: self.backend.lack(),
            device_name: self.device.name().into(),
            device_ordinal: self.device.ordinal(),
            in_use_bytes: counts.in_use_bytes,
            other_libraries_bytes,
            reserved_bytes,
            cached_bytes: reserved_bytes.saturating_sub(used_bytes).saturating_sub(unfreed_bytes),
            asleep_bytes: reserved.map_or(0, |reserved| reserved.asleep_bytes),
            asleep_host_bytes: reserved.map_or(0, |reserved| reserved.on_host_bytes),
            spilled_bytes: spilled.away_bytes,
            spilled_array_count: spilled.away_count,
            spilled_host_bytes: spilled.host_bytes,
            spilled_neighbour_bytes: spilled.neighbour_bytes,
            spilled_file_bytes: spilled.file_bytes,
            spill_needed_bytes: spilled.repetition.map(|one| one.needed_bytes),
            spill_room_bytes: spilled.repetition.map(|one| one.room_bytes),
            spill_least_bytes: spilled
                .repetition
                .map(|one| one.least_up_bytes.saturating_add(one.least_down_bytes)),
            spill_least_time_ns: spilled.least_time_ns(),
            spilled_down_rate: spilled.down_rate,
            spilled_up_rate: spilled.up_rate,
            in_use_peak_bytes: counts.in_use_peak_bytes,
            reserved_peak_bytes: reserved.map_or(counts.in_use_peak_bytes, |reserved| reserved.peak_bytes),
            record_bytes: reserved.map_or(0, |reserved| reserved.record_bytes),
            block_count: counts.block_count,
            allocation_count: counts.allocation_count,
            counters: self.activity.read(),
            hard_limit_bytes: self.limits.hard_bytes(),
            soft_limit_bytes: self.limits.soft_bytes(),
            is_soft_limit_idle: self.is_soft_limit_idle(),
            device_used_bytes: device.total_bytes.saturating_sub(device.free_bytes),
            device_total_bytes: device.total_bytes,
            private_pools: self.family_of(self.name.id).iter().map(|pool| pool.usage()).collect(),
            tags,
            streams,
        })
    }

    pub(crate) fn id(&self) -> PoolId {
        self.name.id
    }

    pub(super) fn lineage(&self) -> (PoolId, Option<PoolId>) {
        (self.name.id, self.parent.as_ref().map(|parent| parent.name.id))
    }

    /// Lets a device with a link use the pool's memory.
    pub(super) fn open_to(&self, peer: PeerDevice) -> Result<(), PoolError> {
        self.peers.open(&self.device, self.kind, &self.backend, peer)
    }

    pub(super) fn usage(&self) -> PoolUsage {
        let counts = self.backend.counts();
        // If the driver's query fails, as on a lost device, the memory of live blocks is still known.
        let reserved = self.backend.reserved().ok().flatten();
        let asleep_bytes = reserved.map_or(0, |reserved| reserved.asleep_bytes);
        let unfreed_bytes = reserved.map_or(0, |reserved| reserved.unfreed_bytes);
        let awake_bytes = counts.in_use_bytes.saturating_sub(asleep_bytes);
        let reserved_bytes = reserved.map_or(awake_bytes, |reserved| reserved.current_bytes.max(awake_bytes));
        let (id, parent) = self.lineage();
        let backend = self.backend.kind();
        PoolUsage {
            id,
            name: self.name.as_str().into(),
            parent,
            backend,
            kind: self.kind,
            in_use_bytes: counts.in_use_bytes,
            reserved_bytes,
            asleep_bytes,
            counted_bytes: match backend {
                // Memory cached by the driver's pool counts against no limit.
                BackendKind::Native => counts.in_use_bytes.saturating_add(unfreed_bytes),
                _ => reserved_bytes,
            },
            block_count: counts.block_count,
            hard_limit_bytes: self.limits.hard_bytes(),
        }
    }
}

/// What the status socket needs of a pool, without keeping it.
#[cfg(feature = "status-socket")]
impl Listing {
    /// All pools of the process.
    pub(crate) fn of_process() -> &'static WeakList<Self> {
        static OF_PROCESS: WeakList<Listing> = WeakList::new();
        &OF_PROCESS
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn name(&self) -> &str {
        self.name.as_str()
    }

    /// The bytes of a limit of this pool.
    pub(crate) fn resolve(&self, limit: Limit, is_hard: bool) -> Result<u64, PoolError> {
        let (kind, total_bytes) = (self.kind, self.device.total_bytes());
        let free_bytes = || Ok(self.device.memory_info()?.free_bytes.saturating_add(self.reserved_bytes()?));
        match is_hard {
            true => Limits::resolve_hard(&self.name, Some(limit), kind, total_bytes, free_bytes),
            false => Limits::resolve(Some(limit), kind, total_bytes, free_bytes),
        }
    }

    /// The live blocks, as address and size, if the backend knows them. Blocks that other threads allocate or free now may be in it.
    pub(crate) fn live_blocks(&self) -> Vec<(u64, u64)> {
        self.backend.live_blocks().unwrap_or_default()
    }

    /// The number of live blocks that [`live_blocks`](Self::live_blocks) does not have.
    pub(crate) fn unlisted_count(&self) -> u64 {
        if self.backend.kind() == BackendKind::Caching { 0 } else { self.backend.counts().block_count }
    }

    /// The stream of all live blocks, if there is just one.
    pub(crate) fn only_stream(&self) -> Option<StreamId> {
        let mut streams = self.backend.streams();
        streams.retain(|(_, sum)| sum.shown().block_count() > 0);
        match *streams {
            [(stream, _)] => stream,
            _ => None,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Peers {
    /// A bit for each of the first 64 ordinals.
    bits: AtomicU64,
    /// Each device, with the context that access to plain memory belongs to.
    granted: Lock<Vec<(PeerDevice, Option<Device>)>>,
}

impl Peers {
    pub(super) fn has(&self, peer: PeerDevice) -> bool {
        let bit = 1_u64.checked_shl(peer.ordinal()).unwrap_or(0);
        self.bits.load(Ordering::Relaxed) & bit != 0
    }

    pub(super) fn list(&self) -> Vec<PeerDevice> {
        self.granted.lock().iter().map(|(peer, _)| *peer).collect()
    }

    fn open(
        &self,
        device: &Device,
        kind: MemoryKind,
        backend: &Backend,
        peer: PeerDevice,
    ) -> Result<(), PoolError> {
        let is_plain = backend.has_plain_segments() || backend.kind() == BackendKind::None;
        let needs_context = is_plain && kind == MemoryKind::Device;
        let context = needs_context.then(|| Device::new(device.driver(), peer.ordinal())).transpose()?;
        let mut granted = self.granted.lock();
        if granted.iter().all(|(other, _)| *other != peer) {
            backend.enable_peer_access(peer)?;
            granted.push((peer, context));
        }
        let bit = 1_u64.checked_shl(peer.ordinal()).unwrap_or(0);
        self.bits.fetch_or(bit, Ordering::Release);
        Ok(())
    }
}

/// The unit in which the driver's pool counts.
const DRIVER_UNIT_BYTES: u64 = 512;

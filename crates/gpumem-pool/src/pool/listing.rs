//! [`Device::pools`]: the pools of a device, with their names and figures. [`Listing`]: the entry of one pool.

use crate::backend::Source;
use crate::config::{BackendKind, MemoryKind, PoolId, PoolName};
use crate::device::{Device, PeerDevice};
use crate::error::{PoolError, PoolUsage};
use crate::limits::{LimitNode, Limits};
use crate::pool::peers::Peers;
use crate::pool::{Setup, State};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The entry of a pool in the list of its device, which holds a weak reference to it.
pub(crate) struct Listing {
    name: PoolName,
    device: Device,
    parent: Option<Arc<LimitNode>>,
    kind: MemoryKind,
    backend: Arc<dyn Source>,
    limits: Limits,
    peers: Peers,
}

impl Listing {
    pub(crate) fn new(setup: &Setup, backend: &Arc<dyn Source>, limits: &Limits) -> Arc<Self> {
        Arc::new(Self {
            name: setup.name.clone(),
            device: setup.device.clone(),
            parent: setup.parent.clone(),
            kind: setup.config.kind,
            backend: Arc::clone(backend),
            limits: limits.clone(),
            peers: Peers::default(),
        })
    }

    pub(super) fn peers(&self) -> &Peers {
        &self.peers
    }

    /// The pool, and the pool that it is private to.
    fn lineage(&self) -> (PoolId, Option<PoolId>) {
        (self.name.id(), self.parent.as_ref().map(|parent| parent.name().id()))
    }

    /// Lets a device with a link use the pool's memory.
    pub(super) fn open_to(&self, peer: PeerDevice) -> Result<(), PoolError> {
        self.peers.open(&self.device, self.kind, &*self.backend, peer)
    }

    /// The name and the figures of the pool.
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

impl Device {
    /// Lists all pools of this GPU that have a handle or a live block, private pools included, in the order of their
    /// creation. Pools of all `Device`s opened on one GPU are listed.
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, Stream};
    /// use gpumem_sim::SimConfig;
    ///
    /// let device = Device::new(&gpumem_sim::driver(SimConfig::new())?, 0)?;
    /// let pool = Pool::builder(&device).name("training").hard_limit(1 << 30).build()?;
    /// let cache = pool.private_named("cache", 64 << 20)?;
    /// let block = cache.alloc(8 << 20, &Stream::new(&device)?)?;
    /// for pool in device.pools() {
    ///     println!("{}: {} of {:?} bytes", pool.name, pool.in_use_bytes, pool.hard_limit_bytes);
    /// }
    /// let names: Vec<_> = device.pools().into_iter().map(|pool| (pool.name, pool.in_use_bytes)).collect();
    /// assert_eq!(names, [("training".into(), 0), ("training/cache".into(), 8 << 20)]);
    /// # drop(block);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn pools(&self) -> Vec<PoolUsage> {
        self.listed_pools().iter().map(|pool| pool.usage()).collect()
    }

    /// Lists a pool until it is dropped.
    pub(super) fn list_pool(&self, pool: &Arc<Listing>) {
        self.extension(Listings::default).add(pool);
    }

    fn listed_pools(&self) -> Vec<Arc<Listing>> {
        self.extension(Listings::default).live()
    }
}

/// The pools of a GPU, in the order of their creation.
#[derive(Default)]
struct Listings(Mutex<Vec<Weak<Listing>>>);

impl Listings {
    fn add(&self, pool: &Arc<Listing>) {
        let mut pools = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(Arc::downgrade(pool));
    }

    fn live(&self) -> Vec<Arc<Listing>> {
        let pools = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pools.iter().filter_map(Weak::upgrade).collect()
    }
}

impl State {
    /// The private pools of the pool `id`, recursively.
    pub(crate) fn private_pools_of(&self, id: PoolId) -> Vec<PoolUsage> {
        self.descendants_of(id).iter().map(|pool| pool.usage()).collect()
    }

    /// The parts and private pools of this pool, recursively.
    pub(super) fn family(&self) -> Vec<Arc<Listing>> {
        self.descendants_of(self.setup().name.id())
    }

    /// The pools beneath the pool `id`. A parent is older than the pools beneath it.
    fn descendants_of(&self, id: PoolId) -> Vec<Arc<Listing>> {
        let mut family = vec![id];
        let mut pools = self.device().listed_pools();
        pools.retain(|pool| {
            let (id, parent) = pool.lineage();
            let is_in = parent.is_some_and(|parent| family.contains(&parent));
            family.extend(is_in.then_some(id));
            is_in
        });
        pools
    }
}

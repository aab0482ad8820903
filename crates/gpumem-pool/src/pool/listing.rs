//! [`Listing`]: the entry of a pool in the list of its device, with its name and its figures.

use crate::backend::{Backend, MemorySource};
use crate::config::{BackendKind, MemoryKind, PoolId, PoolName};
use crate::error::{PoolError, PoolUsage};
use crate::limits::{LimitNode, Limits, WeakList};
use core::sync::atomic::{AtomicU64, Ordering};
use gpumem_base::sync::Lock;
use gpumem_device::Device;
use gpumem_device::internal::PeerDevice;
use std::sync::Arc;

pub(crate) struct Listing {
    name: PoolName,
    device: Device,
    parent: Option<Arc<LimitNode>>,
    kind: MemoryKind,
    pub(super) backend: Backend,
    limits: Limits,
    pub(super) peers: Peers,
}

impl Listing {
    /// The name and the figures of each pool of a GPU, in the order of their creation.
    pub(super) fn usage_on(device: &Device) -> Vec<PoolUsage> {
        WeakList::<Self>::on(device).live().iter().map(|pool| pool.usage()).collect()
    }

    pub(crate) fn new(device: &Device, kind: MemoryKind, backend: &Backend, limits: &Limits) -> Arc<Self> {
        Arc::new(Self {
            name: limits.node.name.clone(),
            device: device.clone(),
            parent: limits.node.parent().cloned(),
            kind,
            backend: backend.clone(),
            limits: limits.clone(),
            peers: Peers::default(),
        })
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

//! [`Pool::enable_peer_access`]: access to a pool's memory from other devices.

use crate::backend::Source;
use crate::config::{BackendKind, MemoryKind, PeerOption};
use crate::device::{Device, PeerDevice};
use crate::error::{PoolError, Unsupported, not_forked};
use crate::pool::state::State;
use crate::pool::{Block, Pool};
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

impl Pool {
    /// Lets the streams of another device use this pool's blocks, existing and future ones, and those of its parts, its private pools and
    /// the pools behind its adaptors. Access cannot be revoked. Each growth of the pool then needs one more driver call per device. The
    /// option `peers` of [`conf`](crate::conf) gives access from the start.
    ///
    /// Use a block on such a stream as on any other stream: make it wait for the block's owner stream first, and record the use. With the
    /// backend `none` and over plain segments, the pool keeps the other device's context, and that device may from then on use all plain
    /// memory of this device, allocated by any pool or library, because the driver has no narrower setting.
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, PoolError, Stream, Unsupported};
    /// use gpumem_sim::SimConfig;
    ///
    /// let driver = gpumem_sim::driver(SimConfig::new().devices(3).without_link(0, 2))?;
    /// let device = Device::new(&driver, 0)?;
    /// let (peer, far) = (Device::new(&driver, 1)?, Device::new(&driver, 2)?);
    /// let pool = Pool::builder(&device).peer_access(&[peer.clone()]).build()?;
    /// let (home, other) = (Stream::new(&device)?, Stream::new(&peer)?);
    ///
    /// let block = pool.alloc(4096, &home)?;
    /// other.wait_for(&home)?;
    /// // … queue work that uses `block.address()` on `other` …
    /// block.record_use(&other);
    ///
    /// assert!(matches!(pool.enable_peer_access(&far), Err(PoolError::Unsupported(Unsupported::PeerAccess { .. }))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// After an error, the other device has only the access to this pool that it had before.
    ///
    /// - [`PoolError::Unsupported`] for a device that has no link to this one or belongs to another driver.
    /// - [`PoolError::DeviceLost`] or [`PoolError::Poisoned`] after an earlier failure.
    /// - [`PoolError::Driver`] if a call fails.
    pub fn enable_peer_access(&self, peer: &Device) -> Result<(), PoolError> {
        self.0.enable_peer_access(peer)
    }
}

impl Block {
    /// Lets the streams of another device use the blocks of the pool that owns this block's memory; see
    /// [`Pool::enable_peer_access`]. A further call for the same device makes no driver call.
    ///
    /// Every device of the machine can access unified and pinned memory anyway.
    ///
    /// # Errors
    ///
    /// [`PoolError::Unsupported`], [`PoolError::DeviceLost`], [`PoolError::Poisoned`] and [`PoolError::Driver`], with the causes that
    /// [`Pool::enable_peer_access`] lists.
    pub fn enable_peer_access(&self, peer: &Device) -> Result<(), PoolError> {
        not_forked()?;
        let origin = self.origin();
        let is_accessible = origin.config().kind != MemoryKind::Device;
        if is_accessible && self.device().driver().is_same_machine(peer.driver()) {
            Ok(())
        } else {
            origin.enable_peer_access(peer)
        }
    }
}

/// The other devices that have access to a pool's memory.
#[derive(Debug, Default)]
pub(super) struct Peers {
    /// A bit for each of the first 64 ordinals.
    bits: AtomicU64,
    granted: Mutex<Vec<Granted>>,
}

#[derive(Debug)]
struct Granted {
    peer: PeerDevice,
    /// Keeps the context that access to plain memory belongs to.
    _context: Option<Device>,
}

impl Peers {
    fn has(&self, peer: PeerDevice) -> bool {
        let bit = 1_u64.checked_shl(peer.ordinal()).unwrap_or(0);
        self.bits.load(Ordering::Relaxed) & bit != 0
    }

    fn list(&self) -> Vec<PeerDevice> {
        self.granted().iter().map(|granted| granted.peer).collect()
    }

    /// Gives a device access, once.
    pub(super) fn open(
        &self,
        device: &Device,
        kind: MemoryKind,
        backend: &dyn Source,
        peer: PeerDevice,
    ) -> Result<(), PoolError> {
        let is_plain = backend.has_plain_segments() || backend.kind() == BackendKind::None;
        let needs_context = is_plain && kind == MemoryKind::Device;
        let context = needs_context.then(|| Device::new(device.driver(), peer.ordinal())).transpose()?;
        let mut granted = self.granted();
        if granted.iter().all(|granted| granted.peer != peer) {
            backend.enable_peer_access(peer)?;
            granted.push(Granted { peer, _context: context });
        }
        let bit = 1_u64.checked_shl(peer.ordinal()).unwrap_or(0);
        self.bits.fetch_or(bit, Ordering::Release);
        Ok(())
    }

    fn granted(&self) -> MutexGuard<'_, Vec<Granted>> {
        self.granted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn enable_peer_access(&self, peer: &Device) -> Result<(), PoolError> {
        self.check_usable()?;
        let device = self.device();
        let is_of_driver = device.driver().is_same_machine(peer.driver());
        let named = PeerDevice::of(peer);
        if peer == device || is_of_driver && self.listing().peers().has(named) {
            return Ok(());
        }
        if !is_of_driver || !named.reaches(device)? {
            let [device, peer] = device.names_apart(peer);
            return Err(PoolError::Unsupported(Unsupported::PeerAccess { device, peer }));
        }
        self.open_to(named)
    }

    /// Gives access to the devices that the configuration names.
    pub(super) fn open_to_configured(&self) -> Result<(), PoolError> {
        let device = self.device();
        let (ordinals, are_required) = match &self.config().peers {
            PeerOption::None => return Ok(()),
            PeerOption::All => ((0..Device::count(device.driver())?).collect(), false),
            PeerOption::Ordinals(ordinals) => (ordinals.clone(), true),
        };
        for ordinal in ordinals.into_iter().filter(|ordinal| *ordinal != device.ordinal()) {
            let peer = PeerDevice::new(device.driver(), ordinal)?;
            match peer.reaches(device)? {
                true => self.open_to(peer)?,
                false if are_required => {
                    return Err(PoolError::Unsupported(Unsupported::PeerAccess {
                        device: device.to_string(),
                        peer: peer.to_string(),
                    }));
                }
                false => {}
            }
        }
        Ok(())
    }

    /// Gives access to the devices that have access to the memory of `parent`. Called once this pool is listed, because `parent` opens
    /// listed pools to later devices.
    pub(super) fn open_like(&self, parent: &Self) -> Result<(), PoolError> {
        parent.listing().peers().list().into_iter().try_for_each(|peer| self.open_to(peer))
    }

    /// Gives a device with a link access to the memory of this pool, its adaptors, its parts and its private pools.
    pub(crate) fn open_to(&self, peer: PeerDevice) -> Result<(), PoolError> {
        self.listing().open_to(peer)?;
        self.setup().adaptors.iter().try_for_each(|adaptor| adaptor.open_to(peer))?;
        self.family().iter().try_for_each(|pool| pool.open_to(peer))
    }

    /// Waits for the work of all devices that have access to the memory.
    pub(super) fn wait_for_peers(&self) -> Result<(), PoolError> {
        let driver = self.device().driver();
        for peer in self.listing().peers().list() {
            if let Some(peer) = peer.open_if_active(driver)? {
                peer.synchronize_for_drop()?;
            }
        }
        Ok(())
    }
}

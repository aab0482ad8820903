//! [`Pool::enable_peer_access`]: access to a pool's memory from other devices.

use crate::config::MemoryKind;
use crate::device::Device;
use crate::error::PoolError;
use crate::pool::state::State;
use crate::pool::{Block, Pool};
use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};

impl Pool {
    /// Lets the streams of another device use this pool's blocks, existing and future ones. Access cannot be
    /// revoked. Each growth of the pool then costs the access call for one more device.
    ///
    /// Use a block on such a stream as on any other stream: make it wait for the block's owner stream first, and
    /// record the use. With the backend `none`, the other device may from then on use all plain memory of this
    /// device, whichever pool or library allocates it, because the driver has no narrower setting.
    ///
    /// ```
    /// use gpumem_pool::{Device, Pool, PoolError, Stream};
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
    /// assert!(matches!(pool.enable_peer_access(&far), Err(PoolError::NoPeerAccess { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// After an error, the other device has only the access that it had before.
    ///
    /// - [`PoolError::NoPeerAccess`] for a device without a link to this one, or of another driver.
    /// - [`PoolError::Asleep`] if the pool sleeps.
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
    /// [`PoolError::NoPeerAccess`], [`PoolError::Asleep`], [`PoolError::DeviceLost`], [`PoolError::Poisoned`] and [`PoolError::Driver`], with the causes that
    /// [`Pool::enable_peer_access`] lists.
    pub fn enable_peer_access(&self, peer: &Device) -> Result<(), PoolError> {
        let origin = self.origin();
        let is_accessible = origin.config().kind != MemoryKind::Device;
        match is_accessible && self.device().driver().is_same_machine(peer.driver()) {
            true => Ok(()),
            false => origin.enable_peer_access(peer),
        }
    }
}

/// The devices that have access to a pool's memory: a bit for each of the first 64.
#[derive(Debug, Default)]
pub(super) struct Peers(AtomicU64);

impl State {
    fn enable_peer_access(&self, peer: &Device) -> Result<(), PoolError> {
        self.check_usable()?;
        let device = self.device();
        if peer == device {
            return Ok(());
        }
        let bit = 1_u64.checked_shl(peer.ordinal()).unwrap_or(0);
        if self.peers().0.load(Ordering::Relaxed) & bit != 0 && device.driver().is_same_machine(peer.driver())
        {
            return Ok(());
        }
        if !can_reach(device, peer)? {
            let [device, peer] = device.names_apart(peer);
            return Err(PoolError::NoPeerAccess { device, peer });
        }
        self.backend().enable_peer_access(peer)?;
        self.peers().0.fetch_or(bit, Ordering::Relaxed);
        Ok(())
    }
}

/// Returns whether the driver supports access of `peer` to the memory of `device`.
fn can_reach(device: &Device, peer: &Device) -> Result<bool, PoolError> {
    if !device.driver().is_same_machine(peer.driver()) {
        return Ok(false);
    }
    let mut can: c_int = 0;
    // SAFETY: `can` outlives the call.
    unsafe { device.driver().cuDeviceCanAccessPeer(&mut can, peer.raw(), device.raw())? };
    Ok(can != 0)
}

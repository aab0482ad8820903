//! [`Chain`]: the driver pools behind one pool. One of them allocates while the earlier ones drain.
//!
//! The bound of a driver pool is fixed when the pool is created. So a raised hard limit needs a second driver pool once the first refuses a
//! request. The first one keeps its blocks, and releases free memory as whole growth units. The two share one bound until the first is
//! empty and destroyed. The bound holds under any concurrency: the memory reserved by earlier pools, which only falls, plus the new pool's
//! own bound never exceeds it.
//!
//! | step, for a request that the current pool refuses | allowed if |
//! | --- | --- |
//! | free memory of an earlier pool | that pool's whole bound fits into the shared bound too |
//! | a new pool that replaces the current one | the current pool's bound is exhausted, and the shared bound leaves room for the request |
//!
//! With one driver pool and no raised limit, neither step happens: an allocation only takes an uncontended read lock.

use super::driver_pool::{DriverPool, UNBOUNDED};
use crate::backend::figures::DriverPoolUsage;
use crate::config::MemoryKind;
use crate::figures::ActivityCounters;
use core::sync::atomic::{AtomicU64, Ordering};
use gpumem_device::Device;
use gpumem_device::internal::PeerDevice;
use gpumem_device::internal::Verdict;
use gpumem_sys::DriverError;
use gpumem_sys::types::{CUdeviceptr, CUstream};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub(super) struct Chain {
    /// The bound on the memory that all driver pools together may reserve. It never falls.
    bound_bytes: AtomicU64,
    /// Write-locked to change the set of pools or their bounds.
    pools: RwLock<Pools>,
}

struct Pools {
    device: Device,
    kind: MemoryKind,
    activity: Arc<ActivityCounters>,
    current: DriverPool,
    /// Replaced pools that still have blocks.
    earlier: Vec<DriverPool>,
    /// The devices with access to the pools' memory.
    peers: Vec<PeerDevice>,
    /// The bytes that all pools together may keep for reuse when the host has waited.
    keep_bytes: u64,
    /// The peak of reserved memory before the last change.
    peak_bytes: u64,
    /// The peak of used memory before the last change.
    used_peak_bytes: u64,
}

impl Chain {
    pub(super) fn new(
        device: &Device,
        kind: MemoryKind,
        bound_bytes: u64,
        keep_bytes: u64,
        activity: &Arc<ActivityCounters>,
    ) -> Result<Self, DriverError> {
        let current = DriverPool::new(device, kind, bound_bytes, activity)?;
        current.set_threshold(keep_bytes)?;
        let pools = Pools {
            device: device.clone(),
            kind,
            activity: Arc::clone(activity),
            current,
            earlier: Vec::new(),
            peers: Vec::new(),
            keep_bytes,
            peak_bytes: 0,
            used_peak_bytes: 0,
        };
        Ok(Self { bound_bytes: AtomicU64::new(bound_bytes), pools: RwLock::new(pools) })
    }

    /// Raises the bound to `bound_bytes`, if that is higher.
    pub(super) fn raise(&self, bound_bytes: u64) {
        self.bound_bytes.fetch_max(bound_bytes, Ordering::AcqRel);
    }

    pub(super) fn acquire(&self, size_bytes: u64, stream: CUstream) -> Result<CUdeviceptr, DriverError> {
        let refusal = {
            let pools = self.read();
            match pools.current.acquire(size_bytes, stream) {
                Err(refusal) if is_full(&refusal) && pools.may_be_others(self.bound_bytes()) => refusal,
                other => return other,
            }
        };
        let mut pools = self.write();
        // Another thread may have replaced the pool since.
        if let Some(found) = granted(pools.current.acquire(size_bytes, stream))? {
            return Ok(found);
        }
        pools.acquire_elsewhere(size_bytes, stream, self.bound_bytes())?.ok_or(refusal)
    }

    pub(super) fn share_with(&self, peer: PeerDevice) -> Result<(), DriverError> {
        let mut pools = self.write();
        if !pools.peers.contains(&peer) {
            pools.all().try_for_each(|pool| pool.share_with(peer))?;
            pools.peers.push(peer);
        }
        Ok(())
    }

    pub(super) fn keep(&self, keep_bytes: u64) -> Result<(), DriverError> {
        let mut pools = self.write();
        pools.keep_bytes = keep_bytes;
        pools.set_threshold()
    }

    pub(super) fn trim_to(&self, keep_bytes: u64) -> Result<(), DriverError> {
        let mut pools = self.write();
        pools.end_empty()?;
        pools.current.trim_to(keep_bytes.saturating_sub(pools.earlier_bytes()?))
    }

    pub(super) fn reserved_bytes(&self) -> Result<u64, DriverError> {
        self.read().reserved_bytes()
    }

    /// The peak of reserved memory. It is never too low, and too high if an earlier pool released memory before the
    /// current one grew.
    pub(super) fn reserved_peak_bytes(&self) -> Result<u64, DriverError> {
        self.read().reserved_peak_bytes()
    }

    pub(super) fn reset_peak(&self) -> Result<(), DriverError> {
        let mut pools = self.write();
        (pools.peak_bytes, pools.used_peak_bytes) = (0, 0);
        pools.all().try_for_each(DriverPool::reset_peak)
    }

    /// Makes the allocating pool the device's current one. A pool that replaces it later takes over.
    pub(super) fn make_current(&self) -> Result<(), DriverError> {
        // The lock keeps other threads from replacing the pool during the call.
        self.read().current.make_current()
    }

    pub(super) fn is_current(&self) -> Result<bool, DriverError> {
        self.read().current.is_current()
    }

    /// Makes the device's default pool current, if a pool of this chain is.
    pub(super) fn end_current(&self) -> Result<(), DriverError> {
        let pools = self.read();
        if pools.current.is_current()? { pools.current.make_default_current() } else { Ok(()) }
    }

    /// The driver's counters. The peaks are as accurate as [`Chain::reserved_peak_bytes`].
    pub(super) fn usage(&self) -> Result<DriverPoolUsage, DriverError> {
        let pools = self.read();
        Ok(DriverPoolUsage {
            reserved_bytes: pools.reserved_bytes()?,
            reserved_peak_bytes: pools.reserved_peak_bytes()?,
            used_bytes: sum(pools.all().map(DriverPool::used_bytes))?,
            used_peak_bytes: pools.used_peak_bytes()?,
        })
    }

    /// The bound on the memory that all driver pools together may reserve.
    pub(super) fn bound_bytes(&self) -> u64 {
        self.bound_bytes.load(Ordering::Acquire)
    }

    fn read(&self) -> RwLockReadGuard<'_, Pools> {
        self.pools.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Pools> {
        self.pools.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pools {
    /// True if an earlier pool or a new one may serve a request that the current pool refuses.
    fn may_be_others(&self, bound_bytes: u64) -> bool {
        !self.earlier.is_empty() || self.current.max_bytes() < bound_bytes
    }

    /// Allocates from an earlier pool or from a new one. `None` if neither has room.
    fn acquire_elsewhere(
        &mut self,
        size_bytes: u64,
        stream: CUstream,
        bound_bytes: u64,
    ) -> Result<Option<CUdeviceptr>, DriverError> {
        for pool in &self.earlier {
            if self.leaves_room_for(pool, bound_bytes)?
                && let Some(found) = granted(pool.acquire(size_bytes, stream))?
            {
                return Ok(Some(found));
            }
        }
        if self.replace_current(size_bytes, bound_bytes)? {
            granted(self.current.acquire(size_bytes, stream))
        } else {
            Ok(None)
        }
    }

    /// True if the shared bound holds even if an earlier pool grows to its own bound.
    fn leaves_room_for(&self, pool: &DriverPool, bound_bytes: u64) -> Result<bool, DriverError> {
        let others_bytes = self.earlier_bytes()?.saturating_sub(pool.reserved_bytes()?);
        let most_bytes =
            others_bytes.saturating_add(pool.max_bytes()).saturating_add(self.current.max_bytes());
        Ok(most_bytes <= bound_bytes)
    }

    /// Replaces the current pool by one with room for the request. Does so only if the current pool's own bound
    /// causes the refusal, and the shared bound has room.
    fn replace_current(&mut self, size_bytes: u64, bound_bytes: u64) -> Result<bool, DriverError> {
        self.end_empty()?;
        self.current.trim_to(0)?;
        let (own_bytes, growth_bytes) = (self.current.reserved_bytes()?, pieces(size_bytes));
        let held_bytes = self.earlier_bytes()?.saturating_add(own_bytes);
        let room_bytes = whole_pieces(bound_bytes.saturating_sub(held_bytes));
        if own_bytes.saturating_add(growth_bytes) <= self.current.max_bytes() || room_bytes < growth_bytes {
            return Ok(false);
        }
        // If the remainder is enough, all other pools may still grow to their bounds.
        let theirs_bytes = self.all().map(DriverPool::max_bytes).fold(0, u64::saturating_add);
        let rest_bytes = whole_pieces(bound_bytes.saturating_sub(theirs_bytes));
        let max_bytes = match bound_bytes {
            UNBOUNDED => UNBOUNDED,
            _ if rest_bytes >= growth_bytes => rest_bytes,
            _ => room_bytes,
        };
        let fresh = DriverPool::new(&self.device, self.kind, max_bytes, &self.activity)?;
        self.peers.iter().try_for_each(|peer| fresh.share_with(*peer))?;
        self.note_peak()?;
        // Others allocate from the pool that has room.
        if self.kind == MemoryKind::Device && self.current.is_current()? {
            fresh.make_current()?;
        }
        let before = core::mem::replace(&mut self.current, fresh);
        if own_bytes > 0 {
            before.set_threshold(0)?;
            self.earlier.push(before);
        }
        self.set_threshold()?;
        Ok(true)
    }

    /// Trims the earlier pools, and destroys those that are empty.
    fn end_empty(&mut self) -> Result<(), DriverError> {
        if self.earlier.is_empty() {
            return Ok(());
        }
        let mut has_ended = false;
        for index in (0..self.earlier.len()).rev() {
            self.earlier[index].trim_to(0)?;
            if self.earlier[index].reserved_bytes()? == 0 {
                if !has_ended {
                    self.note_peak()?;
                }
                has_ended = true;
                drop(self.earlier.swap_remove(index));
            }
        }
        self.set_threshold()
    }

    fn set_threshold(&self) -> Result<(), DriverError> {
        let keep_bytes = match self.keep_bytes {
            UNBOUNDED => UNBOUNDED,
            keep_bytes => keep_bytes.saturating_sub(self.earlier_bytes()?),
        };
        self.current.set_threshold(keep_bytes)
    }

    /// Records the peak. Called before a pool is created or destroyed.
    fn note_peak(&mut self) -> Result<(), DriverError> {
        self.peak_bytes = self.reserved_peak_bytes()?;
        self.used_peak_bytes = self.used_peak_bytes()?;
        self.all().try_for_each(DriverPool::reset_peak)
    }

    fn reserved_peak_bytes(&self) -> Result<u64, DriverError> {
        Ok(self.peak_bytes.max(sum(self.all().map(DriverPool::reserved_peak_bytes))?))
    }

    fn used_peak_bytes(&self) -> Result<u64, DriverError> {
        Ok(self.used_peak_bytes.max(sum(self.all().map(DriverPool::used_peak_bytes))?))
    }

    fn reserved_bytes(&self) -> Result<u64, DriverError> {
        sum(self.all().map(DriverPool::reserved_bytes))
    }

    fn earlier_bytes(&self) -> Result<u64, DriverError> {
        sum(self.earlier.iter().map(DriverPool::reserved_bytes))
    }

    fn all(&self) -> impl Iterator<Item = &DriverPool> {
        core::iter::once(&self.current).chain(&self.earlier)
    }
}

/// The bound for a driver pool that hands out `limit_bytes`. The driver reserves whole growth units, and the pool's counter has already
/// admitted each request, so the bound is rounded up plus one unit. A bound of the device's size or more is omitted, because the device
/// enforces it.
pub(super) fn bound_bytes(limit_bytes: u64, device_bytes: u64) -> u64 {
    let bound_bytes =
        limit_bytes.checked_next_multiple_of(PIECE_BYTES).and_then(|bound| bound.checked_add(PIECE_BYTES));
    bound_bytes.filter(|bound_bytes| *bound_bytes < device_bytes).unwrap_or(UNBOUNDED)
}

/// The allocation; `None` if there was no room.
fn granted(result: Result<CUdeviceptr, DriverError>) -> Result<Option<CUdeviceptr>, DriverError> {
    match result {
        Err(error) if is_full(&error) => Ok(None),
        other => other.map(Some),
    }
}

fn sum(mut parts: impl Iterator<Item = Result<u64, DriverError>>) -> Result<u64, DriverError> {
    parts.try_fold(0_u64, |sum, part| Ok(sum.saturating_add(part?)))
}

fn pieces(size_bytes: u64) -> u64 {
    size_bytes.checked_next_multiple_of(PIECE_BYTES).unwrap_or(UNBOUNDED)
}

fn whole_pieces(bytes: u64) -> u64 {
    bytes - bytes % PIECE_BYTES
}

/// The growth unit of a driver pool.
const PIECE_BYTES: u64 = 32 << 20;

fn is_full(error: &DriverError) -> bool {
    Verdict::of(error) == Verdict::Shortage
}

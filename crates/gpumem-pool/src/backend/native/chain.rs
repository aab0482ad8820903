//! [`Chain`]: the driver's pools behind one of ours, one of which allocates while the others run out.
//!
//! What a driver's pool may reserve is settled when it is made. So a hard limit that is raised takes a second pool once the
//! first refuses: the first keeps its blocks, and gives back whatever is free as a whole. Until it is empty, and destroyed,
//! the two share one bound, which holds whatever any thread does: what earlier pools have reserved, which only falls, and
//! all that the new one may ever reserve are within it together.
//!
//! | step, for a request that the current pool refuses | allowed if |
//! | --- | --- |
//! | holes of an earlier pool | all that it may reserve fits into the bound too |
//! | a new pool in the place of the current one | that may reserve no more, and the bound leaves room for the request |
//!
//! While there is one pool, and the limit has not been raised, none of this happens: an allocation looks at a lock that
//! nobody takes.

use super::driver_pool::{DriverPool, UNBOUNDED};
use crate::backend::direct::is_full;
use crate::config::MemoryKind;
use crate::device::Device;
use core::sync::atomic::{AtomicU64, Ordering};
use gpumem_sys::DriverError;
use gpumem_sys::types::{CUdeviceptr, CUstream};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub(super) struct Chain {
    /// What all pools together may reserve. It never goes down.
    bound_bytes: AtomicU64,
    /// Written to by whoever changes which pools there are, or what they may reserve.
    pools: RwLock<Pools>,
}

struct Pools {
    device: Device,
    kind: MemoryKind,
    current: DriverPool,
    /// Those that have been replaced and have blocks yet.
    earlier: Vec<DriverPool>,
    /// Who may use what they hand out.
    peers: Vec<Device>,
    /// What all of them may keep for reuse when the host has waited.
    keep_bytes: u64,
    /// The most that was reserved before the last change.
    peak_bytes: u64,
}

impl Chain {
    pub(super) fn new(
        device: &Device,
        kind: MemoryKind,
        bound_bytes: u64,
        keep_bytes: u64,
    ) -> Result<Self, DriverError> {
        let current = DriverPool::new(device, kind, bound_bytes)?;
        current.set_threshold(keep_bytes)?;
        let pools = Pools {
            device: device.clone(),
            kind,
            current,
            earlier: Vec::new(),
            peers: Vec::new(),
            keep_bytes,
            peak_bytes: 0,
        };
        Ok(Self { bound_bytes: AtomicU64::new(bound_bytes), pools: RwLock::new(pools) })
    }

    /// From now on so much may be reserved, or what was allowed before if that is more.
    pub(super) fn raise(&self, bound_bytes: u64) {
        self.bound_bytes.fetch_max(bound_bytes, Ordering::AcqRel);
    }

    pub(super) fn acquire(&self, size_bytes: u64, stream: CUstream) -> Result<CUdeviceptr, DriverError> {
        let (refusal, refused_by) = {
            let pools = self.read();
            match pools.current.acquire(size_bytes, stream) {
                Err(refusal) if is_full(&refusal) && pools.may_be_others(self.bound_bytes()) => {
                    (refusal, pools.current.id())
                }
                other => return other,
            }
        };
        let mut pools = self.write();
        if pools.current.id() != refused_by
            && let Some(found) = granted(pools.current.acquire(size_bytes, stream))?
        {
            return Ok(found);
        }
        pools.acquire_elsewhere(size_bytes, stream, self.bound_bytes())?.ok_or(refusal)
    }

    pub(super) fn share_with(&self, peer: &Device) -> Result<(), DriverError> {
        let mut pools = self.write();
        pools.all().try_for_each(|pool| pool.share_with(peer))?;
        pools.peers.push(peer.clone());
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

    /// Never less than the most that was reserved at a time; more if an earlier pool gave back before the current one grew.
    pub(super) fn reserved_peak_bytes(&self) -> Result<u64, DriverError> {
        self.read().reserved_peak_bytes()
    }

    pub(super) fn reset_peak(&self) -> Result<(), DriverError> {
        let mut pools = self.write();
        pools.peak_bytes = 0;
        pools.all().try_for_each(DriverPool::reset_peak)
    }

    fn bound_bytes(&self) -> u64 {
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
    /// Whether what the current pool refuses may be had of another, or of one to come.
    fn may_be_others(&self, bound_bytes: u64) -> bool {
        !self.earlier.is_empty() || self.current.max_bytes() < bound_bytes
    }

    /// Nothing if there is no room anywhere.
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
        match self.replace_current(size_bytes, bound_bytes)? {
            true => granted(self.current.acquire(size_bytes, stream)),
            false => Ok(None),
        }
    }

    /// Whether the bound holds even if an earlier pool grows as far as it may.
    fn leaves_room_for(&self, pool: &DriverPool, bound_bytes: u64) -> Result<bool, DriverError> {
        let others_bytes = self.earlier_bytes()?.saturating_sub(pool.reserved_bytes()?);
        let most_bytes =
            others_bytes.saturating_add(pool.max_bytes()).saturating_add(self.current.max_bytes());
        Ok(most_bytes <= bound_bytes)
    }

    /// Makes a pool with room for a request, if it is for want of that that the current one refuses, and there is room.
    fn replace_current(&mut self, size_bytes: u64, bound_bytes: u64) -> Result<bool, DriverError> {
        self.end_empty()?;
        self.current.trim_to(0)?;
        let (own_bytes, growth_bytes) = (self.current.reserved_bytes()?, pieces(size_bytes));
        let held_bytes = self.earlier_bytes()?.saturating_add(own_bytes);
        let room_bytes = whole_pieces(bound_bytes.saturating_sub(held_bytes));
        if own_bytes.saturating_add(growth_bytes) <= self.current.max_bytes() || room_bytes < growth_bytes {
            return Ok(false);
        }
        // If that is enough, all others may still grow as far as they might.
        let theirs_bytes = self.all().map(DriverPool::max_bytes).fold(0, u64::saturating_add);
        let rest_bytes = whole_pieces(bound_bytes.saturating_sub(theirs_bytes));
        let max_bytes = match bound_bytes {
            UNBOUNDED => UNBOUNDED,
            _ if rest_bytes >= growth_bytes => rest_bytes,
            _ => room_bytes,
        };
        let fresh = DriverPool::new(&self.device, self.kind, max_bytes)?;
        self.peers.iter().try_for_each(|peer| fresh.share_with(peer))?;
        self.note_peak()?;
        let before = core::mem::replace(&mut self.current, fresh);
        if own_bytes > 0 {
            before.set_threshold(0)?;
            self.earlier.push(before);
        }
        self.set_threshold()?;
        Ok(true)
    }

    /// Gives back what earlier pools have free, and ends those that have nothing left.
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

    /// Before pools come or go.
    fn note_peak(&mut self) -> Result<(), DriverError> {
        self.peak_bytes = self.reserved_peak_bytes()?;
        self.all().try_for_each(DriverPool::reset_peak)
    }

    fn reserved_peak_bytes(&self) -> Result<u64, DriverError> {
        Ok(self.peak_bytes.max(sum(self.all().map(DriverPool::reserved_peak_bytes))?))
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

/// What the driver may reserve for a pool that hands out `limit_bytes`: it grows by whole pieces, and what it refuses then
/// our own count has already admitted. The device's size is a bound that needs no keeping.
pub(super) fn bound_bytes(limit_bytes: u64, device_bytes: u64) -> u64 {
    let bound_bytes =
        limit_bytes.checked_next_multiple_of(PIECE_BYTES).and_then(|bound| bound.checked_add(PIECE_BYTES));
    bound_bytes.filter(|bound_bytes| *bound_bytes < device_bytes).unwrap_or(UNBOUNDED)
}

/// What was allocated; nothing if there was no room.
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

/// What the driver's pool grows by.
const PIECE_BYTES: u64 = 32 << 20;

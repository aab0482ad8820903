//! How a pool takes memory before it is asked for, and gives back what nobody needs.

use super::{AllocFailure, CachingPool, Core};
use crate::backend::{Counts, caching::access::Memory};
use crate::config::MemoryKind;
use crate::device::{CaptureModeGuard, StreamIndex, deadline};
use crate::error::PoolError;
use crate::limits::Trimmable;
use core::sync::atomic::Ordering;
use core::time::Duration;
use gpumem_heap::heap::Heap;
use gpumem_heap::sync::SpinMutexGuard;
use gpumem_sys::DriverError;
use gpumem_sys::types::CUresult;
use std::sync::{Arc, Weak};

impl CachingPool {
    /// Grows until so much is reserved for blocks, as large blocks will want it: in few handles, side by side. What ended pools
    /// have left, and others under the same limit don't use, is had once the device is idle.
    pub(in super::super) fn reserve(&self, size_bytes: u64) -> Result<(), PoolError> {
        match self.reserve_at_once(size_bytes) {
            Err(error) if error.out_of_memory().is_some() => {
                let others = self.short_family();
                {
                    let _relaxed = CaptureModeGuard::enter(self.device.driver())?;
                    let _bound = self.device.enter()?;
                    let is_idle = self.finish_for(&others)?;
                    self.settle_extents()?;
                    others.iter().for_each(|other| other.give_back_all(is_idle));
                }
                self.reserve_at_once(size_bytes)
            }
            reserved => reserved,
        }
    }

    fn reserve_at_once(&self, size_bytes: u64) -> Result<(), PoolError> {
        let missing_bytes = size_bytes.saturating_sub(self.core().heap.blocks_bytes());
        if missing_bytes == 0 {
            return Ok(());
        }
        let _relaxed = CaptureModeGuard::enter(self.device.driver())?;
        let _bound = self.device.enter()?;
        let mut vmm = self.vmm();
        let mut core = self.core_with_limit();
        let most_bytes = self.limit_bytes(&core.heap);
        match core.heap.reserve(missing_bytes, &mut vmm, most_bytes) {
            Ok(true) => self.front.set_cap(core.heap.magazine_bytes()),
            Err(error) if error.code() != CUresult::CUDA_ERROR_OUT_OF_MEMORY => return Err(error.into()),
            _ => {
                drop(core);
                return Err(self.refusal(missing_bytes, AllocFailure::default()));
            }
        }
        Ok(())
    }

    /// Waits for the device, up to the deadline: whether all is done. Pinned memory is not waited for where nothing of it
    /// waits for work, in this pool, in others under the same limit or in what ended pools left: work can't make room
    /// for it otherwise.
    pub(in super::super) fn finish_for(&self, others: &[Arc<dyn Trimmable>]) -> Result<bool, DriverError> {
        let kind = self.access.admission().kind();
        let needs_wait = kind != MemoryKind::Host
            || !others.is_empty()
            || self.device.maintenance().has_left_for(kind)
            || !self.core().pending_slots().is_empty();
        if !needs_wait {
            return self.device.is_idle();
        }
        self.device.maintenance().before_wait();
        let is_idle = self.device.finish_until(deadline::until(self.tuning.wait_deadline))?;
        self.device.after_wait_until(is_idle);
        Ok(is_idle)
    }

    /// Whether memory goes back to the driver without a wait for the device: not that of plain segments.
    pub(in super::super) fn releases_at_once(&self) -> bool {
        self.access.memory() == Memory::Virtual
    }

    /// Without a wait: marks tell what is done by now. Plain segments go back by calls that wait for the device.
    pub(in super::super) fn trim_to(&self, keep_bytes: u64) -> Result<(), PoolError> {
        self.drain_all();
        let _relaxed = CaptureModeGuard::enter(self.device.driver())?;
        let _bound = self.device.enter()?;
        let pending = self.core().pending_slots();
        self.look(pending)?;
        Ok(self.trim(keep_bytes)?)
    }

    /// Gives back what is idle beyond a part of what may be reserved, if that was asked for. Waits for nothing.
    pub(in super::super) fn collect_garbage(&self, size_bytes: u64) -> Result<(), PoolError> {
        let Some(share) = self.collect_above else { return Ok(()) };
        let keep_bytes = self.limits.part_bytes(share, self.device.total_bytes());
        let wanted_bytes = self.core().heap.reserved_bytes().saturating_add(size_bytes);
        match wanted_bytes > keep_bytes && self.may_release()? {
            true => self.trim_to(keep_bytes.saturating_sub(size_bytes)),
            false => Ok(()),
        }
    }

    /// Marks streams, and asks about each stream's marks which have been passed.
    pub(in super::super) fn look(&self, slots: Vec<StreamIndex>) -> Result<(), DriverError> {
        slots.into_iter().try_for_each(|slot| self.clocks().record_marker(slot).map(drop))?;
        self.clocks().poll(Duration::MAX).map(drop)
    }

    /// Whether memory can be released now without a wait for work: none for that of plain segments while there is any.
    pub(super) fn may_release(&self) -> Result<bool, DriverError> {
        Ok(self.releases_at_once() || self.device.is_idle()?)
    }

    pub(in super::super) fn reclaim(&self) -> Result<(), PoolError> {
        // First: what is freed into the heap later is known to be done only later.
        self.drain_all();
        self.device.finish_with_maintenance()?;
        let _relaxed = CaptureModeGuard::enter(self.device.driver())?;
        let _bound = self.device.enter()?;
        Ok(self.trim(0)?)
    }

    /// Gives back what is idle beyond so much, and tries again what the driver would not take back before. All of it is tried;
    /// returns the first failure.
    pub(in super::super) fn trim(&self, keep_bytes: u64) -> Result<(), DriverError> {
        let settled = self.settle_extents();
        let mut vmm = self.vmm();
        let mut core = self.core();
        let core = &mut *core;
        let released = core.extents.release_lost(&mut vmm).and(core.heap.release_lost(&mut vmm));
        core.heap.set_outside_bytes(core.extents.reserved_bytes());
        let trimmed = core.heap.trim(keep_bytes, self.clocks(), &mut vmm);
        self.front.set_cap(core.heap.magazine_bytes());
        settled.and(released).and(trimmed.map(drop))
    }

    /// What may be reserved now, by our own limit and those that we share.
    pub(in super::super) fn limit_bytes(&self, heap: &Heap) -> u64 {
        #[cfg(gpumem_planted_bugs)]
        if crate::injected_bugs::has(crate::injected_bugs::Bug::LimitOffByOne) {
            return self.limits.node().limit_bytes().saturating_add(2 << 20);
        }
        heap.reserved_bytes().saturating_add(self.access.admission().room_bytes())
    }

    /// Locks the heap, and sets how much it may reserve by now under the pool's hard limit and those above it, if there are any.
    pub(in super::super) fn core_with_limit(&self) -> SpinMutexGuard<'_, Core> {
        let room_bytes = self.limits.node().room_bytes();
        let mut core = self.core();
        let limit_bytes = match room_bytes > ROOM_MAX_BYTES {
            true => u64::MAX,
            false => core.heap.reserved_bytes().saturating_add(room_bytes),
        };
        core.heap.set_limit_bytes(limit_bytes);
        core
    }

    /// Before memory is looked for everywhere.
    pub(in super::super) fn begin_look(&self) -> Look {
        Look { counts: self.counts() }
    }

    /// Whether a look that found nothing may find something now: others have allocated or freed meanwhile, and what
    /// blocks have leaves room for so many bytes.
    pub(in super::super) fn may_look_again(&self, before: &Look, size_bytes: u64) -> bool {
        let counts = self.counts();
        let moves = |counts: &Counts| (counts.allocation_count, counts.block_count);
        let whole_bytes = self.limits.hard_bytes().unwrap_or(self.device.total_bytes());
        moves(&before.counts) != moves(&counts)
            && counts.in_use_bytes.saturating_add(size_bytes) <= whole_bytes
    }

    /// Other pools under a limit that keeps this one from growing, ready to give back what they keep unused once the
    /// device has been waited for.
    pub(in super::super) fn short_family(&self) -> Vec<Arc<dyn Trimmable>> {
        let short = Some(self.limits.node()).filter(|node| node.is_short_of_others());
        let mut trimmables = short.map(|node| node.trimmables()).unwrap_or_default();
        trimmables.retain(|member| !core::ptr::addr_eq(Arc::as_ptr(member), self));
        trimmables.iter().for_each(|member| member.before_giving());
        trimmables
    }

    /// More than the hard limit is reserved where that has been lowered.
    pub(super) fn soft_bytes(&self) -> u64 {
        self.limits.soft_bytes().unwrap_or(u64::MAX).min(self.limits.node().limit_bytes())
    }

    /// From now on the device tells when the host waits.
    pub(in super::super) fn hear_of_waits(self: &Arc<Self>) {
        if !self.hears_of_waits.swap(true, Ordering::Relaxed) {
            let waiting: Weak<Self> = Arc::downgrade(self);
            self.device.maintenance().add_pool(waiting);
        }
    }
}

/// What there was before a look.
pub(in super::super) struct Look {
    counts: Counts,
}

impl Trimmable for CachingPool {
    fn before_giving(&self) {
        self.drain_all();
    }

    fn kind(&self) -> MemoryKind {
        self.access.admission().kind()
    }

    fn give_back_all(&self, is_idle: bool) {
        if is_idle || self.releases_at_once() {
            // What can't be given back now is not to be had.
            let _ = self.trim(0);
        }
    }

    /// All that it holds has been admitted.
    fn uncounted_bytes(&self) -> u64 {
        0
    }

    fn cached_bytes(&self) -> u64 {
        match self.access.admission().kind() {
            MemoryKind::Device => self.reserved().current_bytes.saturating_sub(self.counts().in_use_bytes),
            _ => 0,
        }
    }
}

/// More room than this is no limit: no device has as much.
const ROOM_MAX_BYTES: u64 = 1 << 60;

//! Releasing unused memory, and the room below the limits.

use super::{CachingPool, Core};
use crate::backend::caching::access::HeapMemory;
use crate::backend::caching::extent::PAGE_BYTES;
use crate::backend::figures::Counts;
use crate::backend::search::Shortage;
use crate::config::MemoryKind;
use crate::error::{PoolError, Refusal, Sample};
use crate::limits::Trimmable;
use core::time::Duration;
use gpumem_base::sync::SpinMutexGuard;
use gpumem_device::internal::{StreamIndex, deadline};
use gpumem_heap::heap::Heap;
use gpumem_sys::DriverError;
use std::sync::Arc;
use std::time::Instant;

impl CachingPool {
    /// Waits for the device, up to the deadline. Then releases the memory of ended pools and of shrunk blocks, and the unused memory of
    /// other pools under a limit that keeps this pool from growing. Returns true if all work is done. The device's context must be current.
    pub(in super::super) fn wait_for_room(&self) -> Result<bool, PoolError> {
        let others = self.short_family();
        let is_idle = self.finish_for(&others)?;
        self.settle_extents()?;
        others.iter().for_each(|other| other.give_back_all(is_idle));
        Ok(is_idle)
    }

    /// Waits for the device, up to the deadline. Returns true if all work is done.
    ///
    /// For pinned memory, waits only if some of it is pending, in this pool, in others under the same limit or in ended pools: otherwise
    /// completed work cannot make room for it.
    fn finish_for(&self, others: &[Arc<dyn Trimmable>]) -> Result<bool, DriverError> {
        let kind = self.access.admission.kind;
        let needs_wait = kind != MemoryKind::Host
            || !others.is_empty()
            || self.device.maintenance().has_deferred_for(kind == MemoryKind::Host)
            || !self.core().pending_streams().is_empty();
        if !needs_wait {
            return self.device.is_idle();
        }
        let deadline = deadline::until(self.tuning.wait_deadline);
        self.activity().host_wait(|| self.device.finish_with_maintenance(Some(deadline)))
    }

    /// Waits a short time for the device, so that plain segments can be exchanged for a larger one. Host-accessible memory grows instead of
    /// waiting. Returns true if all work is done.
    pub(in super::super) fn finish_for_exchange(&self) -> Result<bool, DriverError> {
        if self.is_for_host() || self.releases_at_once() {
            return self.device.is_idle();
        }
        let deadline = deadline::until(self.tuning.wait_deadline).min(Instant::now() + EXCHANGE_WAIT_MAX);
        self.activity().host_wait(|| self.device.finish_with_maintenance(Some(deadline)))
    }

    /// True if the driver releases the memory without a wait for the device, which plain segments need.
    pub(in super::super) fn releases_at_once(&self) -> bool {
        self.access.memory == HeapMemory::Virtual
    }

    /// Releases idle memory beyond the garbage collection threshold, if one is set. Never waits.
    pub(in super::super) fn collect_garbage(&self, size_bytes: u64) -> Result<(), PoolError> {
        let Some(share) = self.collect_above else { return Ok(()) };
        let keep_bytes = self.limits.part_bytes(share, self.device.total_bytes());
        let wanted_bytes = self.core().heap.reserved_bytes().saturating_add(size_bytes);
        if wanted_bytes > keep_bytes && self.may_release()? {
            self.trim_to(keep_bytes.saturating_sub(size_bytes))
        } else {
            Ok(())
        }
    }

    pub(in super::super) fn poll_with_markers(&self, streams: Vec<StreamIndex>) -> Result<(), DriverError> {
        streams.into_iter().try_for_each(|stream| self.clocks().record_marker(stream).map(drop))?;
        self.clocks().poll(Duration::MAX).map(drop)
    }

    /// True if memory can be released now without a wait for work. Plain segments can be released only while the device is idle.
    pub(super) fn may_release(&self) -> Result<bool, DriverError> {
        Ok(self.releases_at_once() || self.device.is_idle()?)
    }

    /// Releases idle memory beyond `keep_bytes`, and retries handles that the driver failed to release. Tries
    /// everything, and returns the first failure.
    pub(in super::super) fn trim(&self, keep_bytes: u64) -> Result<(), DriverError> {
        let settled = self.settle_extents();
        let mut vmm = self.vmm();
        let mut core = self.core();
        let core = &mut *core;
        let released = core.extents.release_lost(&mut vmm).and(core.heap.release_lost(&mut vmm));
        core.heap.set_outside_bytes(core.extents.reserved_bytes());
        let trimmed = core.heap.trim(keep_bytes, self.clocks(), &mut vmm);
        self.set_cache_cap(core);
        settled.and(released).and(trimmed.map(drop))
    }

    /// The largest total that may be reserved: the reserved bytes plus the room below all limits.
    pub(in super::super) fn reservable_max_bytes(&self, heap: &Heap) -> u64 {
        #[cfg(gpumem_planted_bugs)]
        if crate::injected_bugs::has(crate::injected_bugs::Bug::LimitOffByOne) {
            return self.limits.node.limit_bytes().saturating_add(2 << 20);
        }
        heap.reserved_bytes().saturating_add(self.access.admission.room_bytes())
    }

    /// The shortage of a request that no rung could serve. If neither driver nor admission refused, the request was larger than the limits
    /// allow.
    pub(in super::super) fn describe_shortage(
        &self,
        requested_bytes: u64,
        refusal: Option<Refusal>,
    ) -> Shortage {
        let admitted_bytes = self.reserved_bytes();
        let own_limit = || self.limits.exceeded_at(admitted_bytes);
        // The heap grows by whole pages, so a request may fit below a limit that its pages exceed.
        let page_bytes = requested_bytes.checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX);
        let limit = || self.access.admission.limit_exceeded_by(page_bytes).or_else(own_limit);
        let refusal = refusal.or_else(|| limit().map(Refusal::Limit));
        Shortage { requested_bytes, alignment: 0, admitted_bytes, refusal }
    }

    /// Samples the growth of the memory that the heap has handed out. It includes cached blocks, which are small in
    /// sum.
    pub(super) fn note_growth(&self, out_bytes: u64) {
        if self.growth.is_due(out_bytes) {
            let Counts { in_use_bytes, block_count, allocation_count, .. } = self.counts();
            let tags = self.tags.in_use();
            self.growth.add(out_bytes, Sample { in_use_bytes, block_count, allocation_count, tags });
        }
    }

    /// Locks the heap, and updates its limit from the pool's hard limit and any limits above it.
    pub(in super::super) fn core_with_limit(&self) -> SpinMutexGuard<'_, Core> {
        let room_bytes = self.limits.node.room_bytes();
        let mut core = self.core();
        let limit_bytes = if room_bytes > ROOM_MAX_BYTES {
            u64::MAX
        } else {
            core.heap.reserved_bytes().saturating_add(room_bytes)
        };
        core.heap.set_limit_bytes(limit_bytes);
        core
    }

    pub(in super::super) fn may_repeat(&self, before: &Counts, size_bytes: u64) -> bool {
        let most_bytes = self.limits.hard_bytes().unwrap_or(self.device.total_bytes());
        self.counts().may_fit_since(before, size_bytes, most_bytes)
    }

    /// The other pools under a limit that keeps this pool from growing. They are prepared to release unused memory
    /// once the device has been waited for.
    fn short_family(&self) -> Vec<Arc<dyn Trimmable>> {
        let short = Some(&self.limits.node).filter(|node| node.is_short_of_others());
        let mut trimmables = short.map(|node| node.trimmables()).unwrap_or_default();
        trimmables.retain(|member| !core::ptr::addr_eq(Arc::as_ptr(member), self));
        trimmables.iter().for_each(|member| member.before_giving());
        trimmables
    }

    /// The soft limit, or the hard limit if that is lower. A lowered hard limit can be below the reserved memory.
    pub(super) fn soft_bytes(&self) -> u64 {
        self.limits.soft_bytes().unwrap_or(u64::MAX).min(self.limits.node.limit_bytes())
    }

    pub(super) fn register_for_waits(&self) {
        self.is_registered_for_waits.call_once(|| self.device.maintenance().add_pool(self.own.clone()));
    }
}

/// The longest wait for an exchange of segments: the queue of a busy device is rarely longer, and an endless one delays each growth by this
/// much.
const EXCHANGE_WAIT_MAX: Duration = Duration::from_millis(100);

/// Room beyond this is no limit, because no device has as much memory.
const ROOM_MAX_BYTES: u64 = 1 << 60;

//! [`OrphanedHeap`]: the heap of a pool that is dropped while work is queued.

use super::CachingPool;
use crate::backend::{
    caching::access::Access, caching::access::Memory, caching::extent::Extents, caching::vmm::Vmm,
};
use crate::config::MemoryKind;
use crate::device::{Clocks, Device, HowFar, Order, Stamp, StreamIndex};
use gpumem_heap::Tuning;
use gpumem_heap::heap::Heap;
use gpumem_sys::Driver;

impl Drop for CachingPool {
    fn drop(&mut self) {
        let host_copy = self.take_host_copy();
        let core = self.core.get_mut();
        core.heap.forget_sleepers();
        core.extents.forget_sleepers();
        let pending = core.pending_streams();
        let heap = core::mem::replace(&mut core.heap, Heap::new(Tuning::BALANCED, [(0, 0); 2]));
        let extents = core::mem::take(&mut core.extents);
        let ranges = match self.access.memory() {
            Memory::Virtual => self.ranges.to_vec(),
            Memory::Segments(_) => Vec::new(),
        };
        let mut left = OrphanedHeap { access: self.access.for_orphaned_heap(), heap, extents, ranges };
        left.heap.set_outside_bytes(0);
        let (driver, clocks) = (self.device.driver(), self.clocks());
        if self.device.find_reset() {
            // Plain segments and the host's copy went with the context. Mapped memory belongs to no context. Once the device is in use
            // again, others may have the addresses, so the memory is leaked.
            if !left.waits() && self.device.primary().is_unused() {
                left.give_back(driver, clocks, HowFar::All);
            }
            return;
        }
        // A drop cannot report a failure. Pending memory stays for the device's maintenance, and so does all memory if the context cannot
        // be entered now.
        let is_gone = self.device.enter_relaxed().is_ok_and(|_entered| {
            let _ = self.poll_with_markers(pending);
            // The calls that release segments wait for the device, and a drop must not wait. On a busy device the
            // segments stay for later.
            let is_free_to_go = !left.waits() || self.device.is_idle().unwrap_or(false);
            is_free_to_go && left.give_back(driver, clocks, HowFar::Known)
        });
        if !is_gone {
            left.defer(&self.device);
        }
        if let Some(mut release) = host_copy {
            // The calls wait for the device, like those that release segments.
            let is_gone = self.device.enter_relaxed().is_ok_and(|_entered| {
                self.device.is_idle().unwrap_or(false) && release(driver, clocks, HowFar::Known)
            });
            if !is_gone {
                self.device.maintenance().defer_release(MemoryKind::Host, true, release);
            }
        }
    }
}

/// Hands over addresses of a pool whose creation failed, where the driver failed to free them.
pub(super) fn leave(device: &Device, access: &Access, ranges: Vec<(u64, u64)>) {
    let (heap, extents) = (Heap::new(Tuning::BALANCED, [(0, 0); 2]), Extents::default());
    OrphanedHeap { access: access.for_orphaned_heap(), heap, extents, ranges }.defer(device);
}

/// The heap of a pool that is gone, and its addresses.
struct OrphanedHeap {
    access: Access,
    heap: Heap,
    extents: Extents,
    /// The address ranges that have not been freed.
    ranges: Vec<(u64, u64)>,
}

impl OrphanedHeap {
    /// Leaves the memory to the device's maintenance.
    fn defer(mut self, device: &Device) {
        let (kind, waits) = (self.access.admission().kind(), self.waits());
        let release = move |driver: &Driver, clocks: &Clocks, how| self.give_back(driver, clocks, how);
        device.maintenance().defer_release(kind, waits, release);
    }

    fn waits(&self) -> bool {
        self.access.memory() != Memory::Virtual
    }

    fn give_back(&mut self, driver: &Driver, clocks: &Clocks, how: HowFar) -> bool {
        match how {
            HowFar::All => self.give_back_in(driver, &AllDone, how),
            _ => self.give_back_in(driver, clocks, how),
        }
    }

    fn give_back_in(&mut self, driver: &Driver, order: &impl Order, how: HowFar) -> bool {
        let Self { access, heap, extents, ranges } = self;
        let mut vmm = Vmm::new(driver, access);
        // A failure does not stop the release of the rest. The next call retries it.
        let _ = extents.settle(order, &mut vmm);
        let _ = extents.release_lost(&mut vmm);
        let _ = heap.release_lost(&mut vmm);
        loop {
            let before_bytes = heap.reserved_bytes();
            let keep_bytes = match how {
                HowFar::Until(_) => before_bytes.saturating_sub(STEP_BYTES),
                _ => 0,
            };
            let trimmed = heap.trim(keep_bytes, order, &mut vmm);
            if trimmed.is_err() || heap.reserved_bytes() == before_bytes || how.is_over() {
                break;
            }
        }
        if !extents.is_empty() || heap.reserved_bytes() > 0 {
            return false;
        }
        // Nothing is mapped any more. Freed ranges are not used again.
        ranges.retain(|(address, size_bytes)| vmm.free(*address, *size_bytes).is_err());
        ranges.is_empty()
    }
}

/// The bytes released between two checks of the deadline: a few handles.
const STEP_BYTES: u64 = 64 << 20;

/// The order of an idle device: all stamps are complete.
struct AllDone;

impl Order for AllDone {
    fn is_ordered(&self, _: Stamp, _: StreamIndex) -> bool {
        true
    }

    fn is_complete(&self, _: Stamp) -> bool {
        true
    }
}

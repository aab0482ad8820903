//! [`OrphanedHeap`]: the heap of a pool that is dropped while work is queued.

use crate::backend::caching::access::{HeapMemory, MemoryAccess};
use crate::backend::caching::extent::Extents;
use crate::backend::caching::vmm::Vmm;
use crate::config::MemoryKind;
use gpumem_base::HeapTuning;
use gpumem_device::Device;
use gpumem_device::internal::{Clocks, HowFar, Order, Stamp, StreamIndex};
use gpumem_heap::heap::Heap;
use gpumem_sys::Driver;

/// Hands over addresses of a pool whose creation failed, where the driver failed to free them.
pub(super) fn leave(device: &Device, access: &MemoryAccess, ranges: Vec<(u64, u64)>) {
    let (heap, extents) = (Heap::new(HeapTuning::BALANCED, [(0, 0); 2]), Extents::default());
    OrphanedHeap { access: access.for_orphaned_heap(), heap, extents, ranges }.defer(device);
}

pub(super) struct OrphanedHeap {
    pub(super) access: MemoryAccess,
    pub(super) heap: Heap,
    pub(super) extents: Extents,
    pub(super) ranges: Vec<(u64, u64)>,
}

impl OrphanedHeap {
    pub(super) fn defer(mut self, device: &Device) {
        let (kind, waits) = (self.access.admission.kind, self.waits());
        let release = move |driver: &Driver, clocks: &Clocks, how| self.give_back(driver, clocks, how);
        device.maintenance().defer_release(kind == MemoryKind::Host, waits, release);
    }

    pub(super) fn waits(&self) -> bool {
        self.access.memory != HeapMemory::Virtual
    }

    pub(super) fn give_back(&mut self, driver: &Driver, clocks: &Clocks, how: HowFar) -> bool {
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

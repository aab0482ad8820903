//! [`Remains`]: the heap of a pool that is gone while work was queued.

use super::Shared;
use crate::backend::caching::access::{Access, Memory};
use crate::backend::caching::extent::Extents;
use crate::backend::caching::heap::Heap;
use crate::backend::caching::vmm::Vmm;
use crate::clock::{Clocks, Order, Slot, Stamp};
use crate::context::Relaxed;
use crate::dials::Dials;
use crate::upkeep::Left;
use gpumem_sys::Driver;

impl Drop for Shared {
    fn drop(&mut self) {
        let core = self.core.get_mut();
        let pending = core.pending_slots();
        let heap = core::mem::replace(&mut core.heap, Heap::new(Dials::default(), [(0, 0); 2]));
        let extents = core::mem::take(&mut core.extents);
        let mut left = Remains { access: self.access.remains(), heap, extents, ranges: self.ranges };
        left.heap.set_outside_bytes(0);
        // Without its context all of it is gone already.
        let Ok(_bound) = self.device.enter() else { return };
        let (driver, clocks) = (self.device.driver(), self.clocks());
        // Nobody is there to tell of a failure: what is not known to be done stays.
        let _ = self.look(pending);
        if !left.give_back(driver, clocks, false) {
            self.device.upkeep().add_left(Box::new(left));
        }
    }
}

/// The heap of a pool that is gone, and its addresses.
struct Remains {
    access: Access,
    heap: Heap,
    extents: Extents,
    ranges: [(u64, u64); 2],
}

impl Left for Remains {
    fn give_back(&mut self, driver: &Driver, clocks: &Clocks, is_all_done: bool) -> bool {
        let Ok(_relaxed) = Relaxed::enter(driver) else { return false };
        // Nothing is mapped any more.
        let mut vmm = Vmm::new(driver, &self.access);
        let settled = match is_all_done {
            true => self.extents.settle(&AllDone, &mut vmm),
            false => self.extents.settle(clocks, &mut vmm),
        };
        let trimmed = match is_all_done {
            true => self.heap.trim(0, &AllDone, &mut vmm),
            false => self.heap.trim(0, clocks, &mut vmm),
        };
        if settled.is_err() || !self.extents.is_empty() || trimmed.is_err() || self.heap.reserved_bytes() > 0
        {
            return false;
        }
        self.access.memory() != Memory::Virtual
            || self.ranges.into_iter().all(|(address, size_bytes)| vmm.free(address, size_bytes).is_ok())
    }
}

/// The order of a device that has been waited for.
struct AllDone;

impl Order for AllDone {
    fn is_ordered(&self, _: Stamp, _: Slot) -> bool {
        true
    }

    fn is_complete(&self, _: Stamp) -> bool {
        true
    }
}

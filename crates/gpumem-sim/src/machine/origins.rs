//! Origins of allocations: recorded at the call, looked up for findings and the report.

use crate::machine::Machine;
use crate::memory::Allocation;
use crate::report::AllocationKind;
use crate::report::finding::Origin;

impl Machine {
    /// Records the origin of the allocation made by this call. Returns its number.
    pub(crate) fn made_here(&mut self) -> u64 {
        self.memory.origins.note(self.call_count, self.caller);
        self.call_count
    }

    /// The origin of the allocation that contains an address.
    pub(crate) fn origin(&self, address: u64) -> Option<Origin> {
        let found = self.memory.live(address, 1).or_else(|| self.memory.gone_at(address));
        found.map(|found| self.origin_of(&found))
    }

    pub(crate) fn boxed_origin(&self, found: Option<Allocation>) -> Option<Box<Origin>> {
        found.map(|found| Box::new(self.origin_of(&found)))
    }

    pub(crate) fn origin_of(&self, found: &Allocation) -> Origin {
        self.origin_made(found.base, found.size_bytes, (found.device, found.allocated_by.kind()), found.call)
    }

    /// The origin of an allocation, or of a handle by its number.
    pub(crate) fn origin_made(
        &self,
        address: u64,
        size_bytes: u64,
        (device, kind): (usize, AllocationKind),
        call: u64,
    ) -> Origin {
        let made = self.memory.origins.made.get(&call);
        Origin {
            address,
            size_bytes,
            device: device as u32,
            kind,
            call,
            thread: made.map_or_else(String::new, |made| made.thread.to_string()),
            stack: made.and_then(|made| made.stack.clone()),
        }
    }
}

//! What is free in the heap, as an error tells it.

use super::Heap;
use super::space::FRAME_BYTES;
use super::stamps::Owner;
use super::survey::{Survey, View, stretches};
use super::trim::Complete;
use crate::clock::{Order, Slot};

impl Heap {
    /// Free, for work on this stream, of what is reserved; the more is reserved, the less: a change of it is what somebody
    /// gave back, to the heap or to the driver.
    pub(in super::super) fn free_bytes(&self, slot: Slot) -> i64 {
        let owners = [Owner::READY, Owner::of(slot)];
        let free = owners.iter().flat_map(|owner| self.spaces.iter().filter_map(|space| space.fit(*owner)));
        let free_bytes: u64 = free.map(|fit| fit.size_bytes).sum();
        free_bytes.cast_signed() - self.reserved_bytes().cast_signed()
    }

    /// Free, but waiting for a stream, as far as the heap has been told.
    pub(in super::super) fn pending_bytes(&self) -> u64 {
        let fits = self.spaces.iter().flat_map(|space| space.fits_by_owner());
        fits.filter(|(owner, _)| *owner != Owner::READY.index()).map(|(_, fit)| fit.size_bytes).sum()
    }

    /// The largest block that needs no wait and nothing new from the driver but mappings.
    pub(in super::super) fn largest_free_bytes(&self, order: &impl Order) -> u64 {
        let complete = Complete(order);
        let view = View { records: &self.records, slot: Slot::NOBODY, order: &complete, with_ready: true };
        let lengths = self.spaces.iter().enumerate().flat_map(|(index, space)| {
            let may_be_had = move |(start, end): &(u64, u64)| self.allows(index, *start, end - start);
            stretches(space, 0, &view).into_iter().filter(may_be_had).map(|(start, end)| end - start)
        });
        let longest = lengths.max().unwrap_or(0);
        let movable = Survey::movable(&self.frames, &self.spaces, &view).frame_count();
        longest.max(u64::from(movable) * FRAME_BYTES)
    }
}

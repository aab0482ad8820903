//! Sums over the free memory, for reports.

use super::idle_scan::{IdleScan, View, longest_stretch};
use super::pages::runs;
use super::plan;
use super::space::PAGE_BYTES;
use super::stamps::FreeState;
use super::trim::Complete;
use super::{Heap, LARGE_SPACE, SMALL_MAX_BYTES};
use crate::order::{Order, StreamIndex};

impl Heap {
    /// Free memory for work on a stream, minus reserved memory. If this number changes, memory was freed to the heap, or released.
    pub fn free_bytes(&self, stream: StreamIndex) -> i64 {
        let states = [FreeState::Ready, FreeState::OneStream(stream)];
        let free = states.iter().flat_map(|state| self.spaces.iter().filter_map(|space| space.fit(*state)));
        let free_bytes: u64 = free.map(|fit| fit.size_bytes).sum();
        free_bytes.cast_signed() - self.reserved_bytes().cast_signed()
    }

    /// Free memory that is not ready for all streams: uses on the stream that freed it may be pending.
    pub fn pending_bytes(&self) -> u64 {
        let fits = self.spaces.iter().flat_map(|space| space.fits_by_state());
        fits.filter(|(state, _)| *state != FreeState::Ready.index()).map(|(_, fit)| fit.size_bytes).sum()
    }

    /// The largest block that needs no wait and no new handle; mappings may be needed.
    pub fn largest_free_bytes(&self, order: &impl Order) -> u64 {
        let complete = Complete(order);
        let view =
            View { records: &self.records, stream: StreamIndex::HOST, order: &complete, with_ready: true };
        let lengths = self.spaces.iter().enumerate().map(|(index, space)| {
            let may_be_had = |(start, end): &(u64, u64)| self.allows(index, *start, end - start);
            // A block in the space of small blocks is small, except in pages that the other space takes over.
            let most_bytes = if index == LARGE_SPACE { u64::MAX } else { SMALL_MAX_BYTES };
            longest_stretch(space, &view, may_be_had).min(most_bytes)
        });
        let longest = lengths.max().unwrap_or(0);
        let movable = IdleScan::movable(&self.pages, &self.spaces, &view);
        // Other idle pages lie between blocks of the same handles.
        let (parts, last) = plan::reach(&movable.idle, |handle| self.pages.handle(handle).page_count, false);
        let in_a_row: u32 = parts.iter().chain(&last).map(|part| part.count).sum();
        let in_one = movable.idle.iter().flat_map(|idle| runs(idle.mask)).map(|(_, count)| count).max();
        longest.max(u64::from(in_a_row.max(in_one.unwrap_or(0))) * PAGE_BYTES)
    }
}

//! What is free already: a request that finds its place here asks the driver for nothing.

use super::fit::{UNIT_BYTES, place};
use super::idle_scan::{View, stretches};
use super::space::{PAGE_BYTES, Space};
use super::stamps::Owner;
use super::{Heap, LARGE_SPACE, Request, SMALL_MAX_BYTES, rounded, space_of};
use crate::block::HeapBlock;
use crate::order::{Order, StreamIndex};

impl Heap {
    /// A piece that is free already. Asks the driver for nothing.
    pub fn take_ready(&mut self, request: &Request, order: &impl Order) -> Option<HeapBlock> {
        let with_ready = self.may_take_ready(request);
        let alignment = if self.starts_in_pages(request) { PAGE_BYTES } else { request.alignment };
        self.take_free(space_of(request), &Request { alignment, ..*request }, order, with_ready)
    }

    /// Whether memory is dealt out to streams by the page: where there is no slack, and other streams can't have what is
    /// left of a page that one has begun.
    pub(super) fn keeps_pages(&self, slot: StreamIndex) -> bool {
        self.tuning().growth_slack_per_mille == 0 && self.segments.is_none() && self.shares.has_others(slot)
    }

    /// Whether a block that fills pages starts with one there.
    pub(super) fn starts_in_pages(&self, request: &Request) -> bool {
        request.size_bytes >= 2 * PAGE_BYTES
            && request.alignment <= UNIT_BYTES
            && self.keeps_pages(request.slot)
    }

    /// The same among the larger blocks, for a small one that would not be met otherwise.
    pub fn take_leftover(&mut self, request: &Request, order: &impl Order) -> Option<HeapBlock> {
        self.take_free(LARGE_SPACE, request, order, true)
    }

    pub(super) fn may_take_ready(&self, request: &Request) -> bool {
        let Request { slot, size_bytes, .. } = *request;
        size_bytes <= SMALL_MAX_BYTES
            || self.has_plenty()
            || self.shares.may_take_ready(
                slot,
                size_bytes,
                self.tuning().growth_slack_per_mille,
                &self.spaces,
            )
    }

    /// Whether more is ready than was ever in use at once: then nobody needs to be sparing with it.
    pub fn has_plenty(&self) -> bool {
        let ready = self.spaces[LARGE_SPACE].fit(Owner::READY);
        self.keepable_bytes > 0 || ready.is_some_and(|fit| fit.size_bytes > self.used_peak_bytes)
    }

    pub(super) fn take_free(
        &mut self,
        index: usize,
        request: &Request,
        order: &impl Order,
        with_ready: bool,
    ) -> Option<HeapBlock> {
        let size_bytes = rounded(request.size_bytes)?;
        let space = &self.spaces[index];
        let Request { alignment, .. } = *request;
        let find = |owner| {
            let found = space.fit(owner)?.find(&self.records, size_bytes, space.base, alignment)?;
            let id = match self.allows(index, self.records[found].start, size_bytes) {
                true => found,
                false => self.find_allowed(index, owner, size_bytes, alignment)?,
            };
            Some((self.records[id].size_bytes, id))
        };
        let ready = if with_ready { find(Owner::READY) } else { None };
        let found = match (find(Owner::of(request.slot)), ready) {
            (Some(own), Some(ready)) => Some(if own.0 <= ready.0 { own } else { ready }),
            (own, ready) => own.or(ready),
        };
        if let Some((_, id)) = found {
            let start = place(&self.records[id], size_bytes, space.base, request.alignment)?;
            let id = self.spaces[index].take(&mut self.records, id, start, size_bytes);
            return Some(self.taken(index, id, request.slot));
        }
        let view = View { records: &self.records, slot: request.slot, order, with_ready };
        let allows = |start| self.allows(index, start, size_bytes);
        let start = smallest_stretch(space, size_bytes, alignment, &view, allows)?;
        Some(self.claimed(index, start, size_bytes, request.slot))
    }

    /// The smallest record that a block may be cut from, where not every segment may be cut up.
    fn find_allowed(&self, index: usize, owner: Owner, size_bytes: u64, alignment: u64) -> Option<u32> {
        let space = &self.spaces[index];
        let has_room = |id: &u32| {
            let record = &self.records[*id];
            place(record, size_bytes, space.base, alignment).is_some()
                && self.allows(index, record.start, size_bytes)
        };
        space.fit(owner)?.ids(&self.records, size_bytes).find(has_room)
    }
}

/// The smallest stretch of neighbours that wait for different streams, all ordered before the request.
pub(super) fn smallest_stretch(
    space: &Space,
    size_bytes: u64,
    alignment: u64,
    view: &View<impl Order>,
    allows: impl Fn(u64) -> bool,
) -> Option<u64> {
    if !space.has_pending_of_others(Owner::READY) {
        return None;
    }
    let align = |start: u64| Some((space.base + start).checked_next_multiple_of(alignment)? - space.base);
    let found = stretches(space, size_bytes, view).into_iter().filter_map(|(start, end)| {
        let place = align(start)?;
        (place.checked_add(size_bytes)? <= end && allows(place)).then_some((end - start, place))
    });
    found.min().map(|(_, start)| start)
}

//! Allocation from free memory at its current addresses, without a driver call.

use super::fit::{UNIT_BYTES, place};
use super::idle_scan::{View, stretches};
use super::record::Record;
use super::space::{PAGE_BYTES, Space};
use super::stamps::FreeState;
use super::{Heap, LARGE_SPACE, Request, SMALL_MAX_BYTES, rounded, space_of};
use crate::block::HeapBlock;
use crate::order::{Order, StreamIndex};

impl Heap {
    /// Takes a block of free, mapped memory. Calls no [`PhysicalMemory`](crate::PhysicalMemory) function.
    pub fn take_ready(&mut self, request: &Request, order: &impl Order) -> Option<HeapBlock> {
        let with_ready = self.may_take_ready(request);
        let alignment = if self.starts_in_pages(request) { PAGE_BYTES } else { request.alignment };
        self.take_free(space_of(request), &Request { alignment, ..*request }, order, with_ready)
    }

    /// Takes up to `count_max` blocks of one size side by side, of free, mapped memory, and appends them to `blocks`. All of them come
    /// from one free range, and have at most 1 MiB together. Calls no [`PhysicalMemory`](crate::PhysicalMemory) function.
    pub fn take_ready_run(
        &mut self,
        request: &Request,
        count_max: usize,
        order: &impl Order,
        blocks: &mut Vec<HeapBlock>,
    ) {
        let Some(size_bytes) = rounded(request.size_bytes) else { return };
        let mut count = (SMALL_MAX_BYTES / size_bytes).min(count_max as u64);
        while count > 0 {
            let run = Request { size_bytes: count * size_bytes, ..*request };
            if let Some(first) = self.take_ready(&run, order) {
                return self.split_run(first, size_bytes, blocks);
            }
            count /= 2;
        }
    }

    /// Splits a block into blocks of one size, and appends them to `blocks`.
    fn split_run(&mut self, first: HeapBlock, size_bytes: u64, blocks: &mut Vec<HeapBlock>) {
        let Record { start, space, size_bytes: run_bytes, .. } = self.records[first.record];
        let mut record = first.record;
        blocks.push(first);
        for offset in (size_bytes..run_bytes).step_by(size_bytes as usize) {
            record = self.spaces[usize::from(space)].split(&mut self.records, record, start + offset);
            blocks.push(HeapBlock { address: first.address + offset, record });
        }
    }

    /// True if streams receive memory in whole pages: there is no slack, and other streams could not use the rest of this stream's page.
    pub(super) fn keeps_pages(&self, stream: StreamIndex) -> bool {
        self.tuning().growth_slack_per_mille == 0 && self.segments.is_none() && self.shares.has_others(stream)
    }

    /// True if a block must start at a page boundary.
    pub(super) fn starts_in_pages(&self, request: &Request) -> bool {
        request.size_bytes >= 2 * PAGE_BYTES
            && request.alignment <= UNIT_BYTES
            && self.keeps_pages(request.stream)
    }

    /// Takes a small block from free memory among the large blocks. The last resort.
    pub fn take_leftover(&mut self, request: &Request, order: &impl Order) -> Option<HeapBlock> {
        self.take_free(LARGE_SPACE, request, order, true)
    }

    pub(super) fn may_take_ready(&self, request: &Request) -> bool {
        let Request { stream, size_bytes, .. } = *request;
        size_bytes <= SMALL_MAX_BYTES
            || self.has_plenty()
            || self.shares.may_take_ready(
                stream,
                size_bytes,
                self.tuning().growth_slack_per_mille,
                &self.spaces,
            )
    }

    /// True if more memory is ready than was ever in use at once, so streams need not economise.
    pub fn has_plenty(&self) -> bool {
        let ready = self.spaces[LARGE_SPACE].fit(FreeState::Ready);
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
        let find = |state| {
            let found = space.fit(state)?.find(&self.records, size_bytes, space.base, alignment)?;
            let id = if self.allows(index, self.records[found].start, size_bytes) {
                found
            } else {
                self.find_allowed(index, state, size_bytes, alignment)?
            };
            Some((self.records[id].size_bytes, id))
        };
        let ready = if with_ready { find(FreeState::Ready) } else { None };
        let found = match (find(FreeState::OneStream(request.stream)), ready) {
            (Some(own), Some(ready)) => Some(if own.0 <= ready.0 { own } else { ready }),
            (own, ready) => own.or(ready),
        };
        if let Some((_, id)) = found {
            let start = place(&self.records[id], size_bytes, space.base, request.alignment)?;
            let id = self.spaces[index].take(&mut self.records, id, start, size_bytes);
            return Some(self.taken(index, id, request.stream));
        }
        let view = View { records: &self.records, stream: request.stream, order, with_ready };
        let allows = |start| self.allows(index, start, size_bytes);
        let start = smallest_stretch(space, size_bytes, alignment, &view, allows)?;
        Some(self.claimed(index, start, size_bytes, request.stream))
    }

    /// The smallest record that the block may be cut from, where some segments may not be split.
    fn find_allowed(&self, index: usize, state: FreeState, size_bytes: u64, alignment: u64) -> Option<u32> {
        let space = &self.spaces[index];
        let has_room = |id: &u32| {
            let record = &self.records[*id];
            place(record, size_bytes, space.base, alignment).is_some()
                && self.allows(index, record.start, size_bytes)
        };
        space.fit(state)?.ids(&self.records, size_bytes).find(has_room)
    }
}

/// The smallest range of free neighbours in different states, all ordered before the request.
pub(super) fn smallest_stretch(
    space: &Space,
    size_bytes: u64,
    alignment: u64,
    view: &View<impl Order>,
    allows: impl Fn(u64) -> bool,
) -> Option<u64> {
    if !space.has_pending_of_others(FreeState::Ready) {
        return None;
    }
    let align = |start: u64| Some((space.base + start).checked_next_multiple_of(alignment)? - space.base);
    let found = stretches(space, size_bytes, view).into_iter().filter_map(|(start, end)| {
        let place = align(start)?;
        (place.checked_add(size_bytes)? <= end && allows(place)).then_some((end - start, place))
    });
    found.min().map(|(_, start)| start)
}

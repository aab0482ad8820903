//! Trimming: the heap releases handles that are entirely free, and removes mappings in which nothing is resident.
//!
//! Memory may be unmapped only when no work can access it any more, so both steps wait until uses are *complete*, not only ordered. A
//! handle is released after its last mapping is removed.

use super::Heap;
use super::idle_scan::{IdleScan, View};
use super::mappings::MappingId;
use super::pages::{move_pages, ones};
use super::record::{Kind, Record};
use super::space::{PAGE_BYTES, PAGE_SHIFT};
use super::stamps::{FreeState, Pending};
use crate::memory::PhysicalMemory;
use crate::order::{Order, Stamp, StreamIndex};
use std::collections::BTreeSet;

impl Heap {
    /// Releases handles that are free as a whole, until at most `keep_bytes` are reserved or no such handle is left. Returns the
    /// bytes released.
    ///
    /// # Errors
    ///
    /// The error of the [`PhysicalMemory`] call that failed. Memory released before the failure stays released.
    pub fn trim<M: PhysicalMemory>(
        &mut self,
        keep_bytes: u64,
        order: &impl Order,
        backing: &mut M,
    ) -> Result<u64, M::Error> {
        // Small blocks of several streams would hide a handle that is idle as a whole.
        self.settle(order);
        let before_bytes = self.reserved_bytes();
        self.trim_segments(keep_bytes, order, backing)?;
        let mut handles = self.releasable(order);
        handles.sort_unstable_by_key(|handle| self.pages.handle(*handle).page_count);
        while !handles.is_empty() && self.reserved_bytes() > keep_bytes {
            let excess_bytes = self.reserved_bytes() - keep_bytes;
            let size_bytes = |handle: &u32| u64::from(self.pages.handle(*handle).page_count) << PAGE_SHIFT;
            // The smallest that suffices, otherwise the largest.
            let index =
                handles.partition_point(|handle| size_bytes(handle) < excess_bytes).min(handles.len() - 1);
            self.release(handles.remove(index), backing)?;
        }
        Ok(before_bytes - self.reserved_bytes())
    }

    /// Unmaps mappings in which nothing is resident, until `keep_count` are left or none of the others may be unmapped. Their
    /// addresses are reused. Returns the number of mappings.
    ///
    /// # Errors
    ///
    /// The error of the [`PhysicalMemory`] call that failed. Mappings removed before the failure stay unmapped.
    pub fn unmap_empty<M: PhysicalMemory>(
        &mut self,
        keep_count: usize,
        order: &impl Order,
        backing: &mut M,
    ) -> Result<usize, M::Error> {
        let excess = self.pages.empty_count().saturating_sub(keep_count);
        let old = self.pages.empty_mappings().filter(|(_, handle)| self.is_left(*handle, order));
        let old: Vec<MappingId> = old.take(excess).map(|(id, _)| id).collect();
        let unmapped = old.iter().try_for_each(|mapping| self.unmap(*mapping, backing));
        if let Some(last) = old.last() {
            self.pages.move_hand(*last);
        }
        let left = self.pages.empty_count();
        self.empty_retry = if left <= keep_count { 0 } else { left + left / 8 };
        unmapped.map(|()| old.len())
    }

    /// The number of empty mappings that are worth their records: several for each page of memory, within the tuning's maximum.
    pub fn kept_mappings(&self) -> usize {
        let page_count = (self.reserved_bytes() >> PAGE_SHIFT) as usize;
        (self.tuning().empty_mappings_max as usize).min((MAPPINGS_A_PAGE * page_count).max(MAPPINGS_MIN))
    }

    /// True if more than `keep_count` mappings are empty and, if the last try left some, enough of them for another try.
    pub fn is_unmapping_due(&self, keep_count: usize) -> bool {
        self.pages.empty_count() > keep_count.max(self.empty_retry)
    }

    /// The streams that free memory waits for.
    pub fn pending_streams(&self) -> Vec<StreamIndex> {
        let ids = self.spaces.iter().flat_map(|space| space.fits()).flat_map(|fit| fit.ids(&self.records, 0));
        let records = ids.map(|id| &self.records[id]).filter(|record| record.kind == Kind::Free);
        let pending = records.map(Record::pending);
        let streams = pending.flat_map(|pending| {
            self.records
                .stamp_sets
                .stamps(&pending)
                .iter()
                .map(|stamp| stamp.stream_index())
                .collect::<Vec<_>>()
        });
        streams.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Makes free memory ready for all streams if all its uses are complete. Call it after the clocks have advanced.
    pub fn settle(&mut self, order: &impl Order) {
        for space in &mut self.spaces {
            let pending = space.fits_by_state().filter(|(state, _)| *state != FreeState::Ready.index());
            let ids: Vec<u32> = pending.flat_map(|(_, fit)| fit.ids(&self.records, 0)).collect();
            for id in ids {
                // It may have been merged into a neighbour that was made ready before.
                let Some(record) = self.records.get(id).filter(|record| record.kind == Kind::Free).copied()
                else {
                    continue;
                };
                let pending = record.pending();
                if record.state != FreeState::Ready && self.records.stamp_sets.is_complete(pending, order) {
                    space.unlink(&mut self.records, id);
                    self.records.stamp_sets.drop(pending);
                    space.give(&mut self.records, id, Pending::READY);
                }
            }
        }
    }

    /// The handles whose pages are all idle and whose last uses, through any mapping, are complete.
    fn releasable(&self, order: &impl Order) -> Vec<u32> {
        let complete = Complete(order);
        let view =
            View { records: &self.records, stream: StreamIndex::HOST, order: &complete, with_ready: true };
        let scan = IdleScan::collect(&self.pages, &self.spaces, &view);
        let whole = scan.idle.iter().filter(|idle| {
            // A handle that sleeps has no memory to release.
            !self.is_sleeper(idle.handle)
                && idle.mask == ones(0, self.pages.handle(idle.handle).page_count)
                && self.is_left(idle.handle, order)
        });
        whole.map(|idle| idle.handle).collect()
    }

    /// True if no work can access a handle through mappings that its pages have left.
    fn is_left(&self, handle: u32, order: &impl Order) -> bool {
        may_unmap_early() || self.pages.are_departed(handle, |stamp| order.is_complete(stamp))
    }

    /// Releases a handle. Its pages first move to one mapping, so that a failure leaves a consistent heap.
    fn release<M: PhysicalMemory>(&mut self, handle: u32, backing: &mut M) -> Result<(), M::Error> {
        let resident_count = |id: &MappingId| self.pages.resident(*id).count_ones();
        let Some(last) = self.pages.mappings_of(handle).max_by_key(resident_count) else {
            return Ok(());
        };
        let page_count = self.pages.handle(handle).page_count;
        let away = ones(0, page_count) & !self.pages.resident(last);
        move_pages(&mut self.pages, &mut self.spaces, &mut self.records, last, away);
        let others: Vec<MappingId> = self.pages.mappings_of(handle).filter(|id| *id != last).collect();
        others.into_iter().try_for_each(|mapping| self.unmap(mapping, backing))?;

        self.ask_to_unmap(last, backing)?;
        let (space, start) = (last.space(), u64::from(last.slot()) << PAGE_SHIFT);
        let end = start + u64::from(page_count) * PAGE_BYTES;
        self.spaces[space]
            .vacate(&mut self.records, start, end, |records, _, _, pending| records.stamp_sets.drop(pending));
        self.pages.set_resident(last, (0, 0));
        self.pages.remove_mapping(last);
        let raw = self.pages.handle(handle).raw;
        self.pages.remove_handle(handle);
        let size_bytes = u64::from(page_count) << PAGE_SHIFT;
        backing.release(raw, size_bytes).inspect_err(|_| self.lost.add(raw, size_bytes))
    }

    pub(super) fn unmap<M: PhysicalMemory>(
        &mut self,
        mapping: MappingId,
        backing: &mut M,
    ) -> Result<(), M::Error> {
        self.ask_to_unmap(mapping, backing)?;
        self.pages.remove_mapping(mapping);
        Ok(())
    }

    fn ask_to_unmap<M: PhysicalMemory>(&self, mapping: MappingId, backing: &mut M) -> Result<(), M::Error> {
        let address = self.spaces[mapping.space()].base + (u64::from(mapping.slot()) << PAGE_SHIFT);
        let page_count = self.pages.handle(self.pages.handle_of(mapping)).page_count;
        backing.unmap(address, u64::from(page_count) << PAGE_SHIFT)
    }
}

/// An order in which only complete work is ordered before other work.
pub(super) struct Complete<'a, O>(pub(super) &'a O);

impl<O: Order> Order for Complete<'_, O> {
    fn is_ordered(&self, stamp: Stamp, _before: StreamIndex) -> bool {
        self.0.is_complete(stamp)
    }

    fn is_complete(&self, stamp: Stamp) -> bool {
        self.0.is_complete(stamp)
    }
}

/// True while the bug `EarlyUnmap` is injected.
#[inline]
fn may_unmap_early() -> bool {
    #[cfg(gpumem_planted_bugs)]
    return crate::injected_bugs::has(crate::injected_bugs::Bug::EarlyUnmap);
    #[cfg(not(gpumem_planted_bugs))]
    false
}

/// The number of empty mappings kept for each page. They take 100 bytes, 0.005 % of the page.
const MAPPINGS_A_PAGE: usize = 8;
/// The least number, for small heaps.
const MAPPINGS_MIN: usize = 256;

//! What the heap gives back: handles that nobody holds any of, and windows that nothing is resident in.
//!
//! The driver may unmap only what no work can touch any more, so both wait until uses are *complete*, not only ordered;
//! and a handle's memory is free only when all of its windows are gone.

use super::Heap;
use super::frames::{move_frames, ones};
use super::record::Kind;
use super::space::{FRAME_BYTES, FRAME_SHIFT};
use super::stamps::{Owner, Pending};
use super::survey::{Survey, View};
use super::windows::WindowId;
use crate::memory::PhysicalMemory;
use crate::order::{Order, Stamp, StreamIndex};
use std::collections::BTreeSet;

impl Heap {
    /// Gives back handles that nobody holds any of, until no more than `keep_bytes` are reserved or no such handle is
    /// left. Returns how many bytes that were.
    ///
    /// # Errors
    ///
    /// What the driver says. What had been given back until then stays so.
    pub fn trim<M: PhysicalMemory>(
        &mut self,
        keep_bytes: u64,
        order: &impl Order,
        backing: &mut M,
    ) -> Result<u64, M::Error> {
        // Small pieces of several streams would hide a handle that is idle as a whole.
        self.settle(order);
        let before_bytes = self.reserved_bytes();
        self.trim_segments(keep_bytes, order, backing)?;
        let mut handles = self.releasable(order);
        handles.sort_unstable_by_key(|handle| self.frames.handle(*handle).frame_count);
        while !handles.is_empty() && self.reserved_bytes() > keep_bytes {
            let excess_bytes = self.reserved_bytes() - keep_bytes;
            let size_bytes = |handle: &u32| u64::from(self.frames.handle(*handle).frame_count) << FRAME_SHIFT;
            // The smallest that will do, else the largest.
            let index =
                handles.partition_point(|handle| size_bytes(handle) < excess_bytes).min(handles.len() - 1);
            self.release(handles.remove(index), backing)?;
        }
        Ok(before_bytes - self.reserved_bytes())
    }

    /// Unmaps windows that nothing is resident in, round by round, until `keep_count` are left or none may be
    /// unmapped. Their addresses are used again. Returns how many those were.
    ///
    /// # Errors
    ///
    /// As [`Heap::trim`].
    pub fn unmap_empty<M: PhysicalMemory>(
        &mut self,
        keep_count: usize,
        order: &impl Order,
        backing: &mut M,
    ) -> Result<usize, M::Error> {
        let excess = self.frames.empty_count().saturating_sub(keep_count);
        let old = self.frames.empty_windows().filter(|(_, handle)| self.is_left(*handle, order));
        let old: Vec<WindowId> = old.take(excess).map(|(id, _)| id).collect();
        let unmapped = old.iter().try_for_each(|window| self.unmap(*window, backing));
        if let Some(last) = old.last() {
            self.frames.move_hand(*last);
        }
        let left = self.frames.empty_count();
        self.empty_retry = if left <= keep_count { 0 } else { left + left / 8 };
        unmapped.map(|()| old.len())
    }

    /// How many empty windows are worth their records: so many for each frame of memory, as far as the dial allows.
    pub fn kept_windows(&self) -> usize {
        let frame_count = (self.reserved_bytes() >> FRAME_SHIFT) as usize;
        (self.tuning().empty_windows_max as usize).min((WINDOWS_A_FRAME * frame_count).max(WINDOWS_MIN))
    }

    /// Whether more windows than so many are empty, and, if the last try left some, enough of them for another.
    pub fn is_unmapping_due(&self, keep_count: usize) -> bool {
        self.frames.empty_count() > keep_count.max(self.empty_retry)
    }

    /// The streams that free memory waits for.
    pub fn pending_slots(&self) -> Vec<StreamIndex> {
        let ids = self.spaces.iter().flat_map(|space| space.fits()).flat_map(|fit| fit.ids(&self.records, 0));
        let records = ids.map(|id| &self.records[id]).filter(|record| record.kind == Kind::Free);
        let pending = records.map(|record| Pending { owner: record.owner, stamp: record.stamp });
        let slots = pending.flat_map(|pending| {
            self.records.sets.stamps(&pending).iter().map(|stamp| stamp.slot()).collect::<Vec<_>>()
        });
        slots.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// What waits for streams that have come that far is ready for all from here on. Worth it after the clocks moved.
    pub fn settle(&mut self, order: &impl Order) {
        for space in &mut self.spaces {
            let pending = space.fits_by_owner().filter(|(owner, _)| *owner != Owner::READY.index());
            let ids: Vec<u32> = pending.flat_map(|(_, fit)| fit.ids(&self.records, 0)).collect();
            for id in ids {
                // A neighbour that it was merged into may have been settled before it.
                let Some(record) = self.records.get(id).filter(|record| record.kind == Kind::Free).copied()
                else {
                    continue;
                };
                let pending = Pending { owner: record.owner, stamp: record.stamp };
                if record.owner != Owner::READY && self.records.sets.is_complete(pending, order) {
                    space.unlink(&mut self.records, id);
                    self.records.sets.drop(pending);
                    space.give(&mut self.records, id, Pending::READY);
                }
            }
        }
    }

    /// The handles whose frames are all idle and whose last uses, through any window, are complete.
    fn releasable(&self, order: &impl Order) -> Vec<u32> {
        let complete = Complete(order);
        let view =
            View { records: &self.records, slot: StreamIndex::HOST, order: &complete, with_ready: true };
        let survey = Survey::collect(&self.frames, &self.spaces, &view);
        let whole = survey.idle.iter().filter(|idle| {
            idle.mask == ones(0, self.frames.handle(idle.handle).frame_count)
                && self.is_left(idle.handle, order)
        });
        whole.map(|idle| idle.handle).collect()
    }

    /// Whether no work can touch a handle through windows that its frames have left.
    fn is_left(&self, handle: u32, order: &impl Order) -> bool {
        may_unmap_early() || self.frames.are_departed(handle, |stamp| order.is_complete(stamp))
    }

    /// Gives one back. Its frames come together in one window first, so that what fails leaves a heap that is whole.
    fn release<M: PhysicalMemory>(&mut self, handle: u32, backing: &mut M) -> Result<(), M::Error> {
        let resident_count = |id: &WindowId| self.frames.resident(*id).count_ones();
        let Some(last) = self.frames.windows_of(handle).max_by_key(resident_count) else {
            return Ok(());
        };
        let frame_count = self.frames.handle(handle).frame_count;
        let away = ones(0, frame_count) & !self.frames.resident(last);
        move_frames(&mut self.frames, &mut self.spaces, &mut self.records, last, away);
        let others: Vec<WindowId> = self.frames.windows_of(handle).filter(|id| *id != last).collect();
        others.into_iter().try_for_each(|window| self.unmap(window, backing))?;

        self.ask_to_unmap(last, backing)?;
        let (space, start) = (last.space(), u64::from(last.slot()) << FRAME_SHIFT);
        let end = start + u64::from(frame_count) * FRAME_BYTES;
        self.spaces[space]
            .vacate(&mut self.records, start, end, |records, _, _, pending| records.sets.drop(pending));
        self.frames.set_resident(last, (0, 0));
        self.frames.remove_window(last);
        let raw = self.frames.handle(handle).raw;
        self.frames.remove_handle(handle);
        let size_bytes = u64::from(frame_count) << FRAME_SHIFT;
        backing.release(raw, size_bytes).inspect_err(|_| self.lost.add(raw, size_bytes))
    }

    fn unmap<M: PhysicalMemory>(&mut self, window: WindowId, backing: &mut M) -> Result<(), M::Error> {
        self.ask_to_unmap(window, backing)?;
        self.frames.remove_window(window);
        Ok(())
    }

    fn ask_to_unmap<M: PhysicalMemory>(&self, window: WindowId, backing: &mut M) -> Result<(), M::Error> {
        let address = self.spaces[window.space()].base + (u64::from(window.slot()) << FRAME_SHIFT);
        let frame_count = self.frames.handle(self.frames.handle_of(window)).frame_count;
        backing.unmap(address, u64::from(frame_count) << FRAME_SHIFT)
    }
}

/// An order in which only what is complete comes before anything.
pub(super) struct Complete<'a, O>(pub(super) &'a O);

impl<O: Order> Order for Complete<'_, O> {
    fn is_ordered(&self, stamp: Stamp, _before: StreamIndex) -> bool {
        self.0.is_complete(stamp)
    }

    fn is_complete(&self, stamp: Stamp) -> bool {
        self.0.is_complete(stamp)
    }
}

/// Never, unless that is the mistake on purpose.
#[inline]
fn may_unmap_early() -> bool {
    #[cfg(gpumem_planted_bugs)]
    return crate::injected_bugs::has(crate::injected_bugs::Bug::EarlyUnmap);
    #[cfg(not(gpumem_planted_bugs))]
    false
}

/// They take 100 bytes then, a twentieth of a thousandth of the frame.
const WINDOWS_A_FRAME: usize = 8;
/// For small heaps.
const WINDOWS_MIN: usize = 256;

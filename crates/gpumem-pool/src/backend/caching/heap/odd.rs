//! [`Odd`]: the part of a block that fills no frame, where another block has left as much of one over.
//!
//! A block of 90 and a half frames takes 91, and half a frame is left behind it. Where several streams share a heap without
//! slack, such ends add up: what one stream has begun no other can have. There a block may start with the end of a frame that
//! its own stream has left over, in a window of that very handle, and go on with whole frames. The frame's bytes are then in
//! two windows, each byte in one of them, until nobody holds any: then they come together wherever the frame goes.

use super::Heap;
use super::frames::Frames;
use super::record::{Kind, Records};
use super::space::{FRAME_BYTES, FRAME_SHIFT, Space};
use super::stamps::{Owner, Pending};
use super::survey::{Survey, View};
use super::windows::WindowId;
use crate::clock::{Order, Slot, Stamp};

/// The end of a handle that a block can start with; the frame is not idle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Odd {
    pub(super) handle: u32,
    /// Where the bytes are now.
    window: WindowId,
    pub(super) size_bytes: u64,
}

impl Odd {
    /// Where in the handle its bytes start.
    pub(super) fn start(&self, frames: &Frames) -> u64 {
        (u64::from(frames.handle(self.handle).frame_count) << FRAME_SHIFT) - self.size_bytes
    }
}

impl Survey {
    /// The smallest that a block can start with.
    pub(super) fn odd(&self, size_bytes: u64) -> Option<Odd> {
        let odd_bytes = size_bytes % FRAME_BYTES;
        if odd_bytes == 0 {
            return None;
        }
        let fitting = self.ends.iter().filter(|odd| odd.size_bytes >= odd_bytes);
        let best = fitting.min_by_key(|odd| (odd.size_bytes, odd.handle))?;
        Some(Odd { size_bytes: odd_bytes, ..*best })
    }
}

impl Heap {
    /// What a stream has free at the ends of handles, but for frames that are idle.
    pub(super) fn ends(&self, index: usize, slot: Slot, survey: &Survey) -> Vec<Odd> {
        let fit = self.spaces[index].fit(Owner::of(slot));
        let ids = fit.into_iter().flat_map(|fit| fit.ids(&self.records, 0));
        let ends = ids.filter_map(|id| {
            let record = &self.records[id];
            let end = record.start.next_multiple_of(FRAME_BYTES);
            let last = end.checked_sub(FRAME_BYTES).filter(|_| record.start < end && end <= record.end())?;
            let entry = self.frames.entry(index, last >> FRAME_SHIFT)?;
            let (handle, frame) = (entry.handle(), entry.frame());
            let is_end = frame + 1 == self.frames.handle(handle).frame_count;
            let window = WindowId::new(index, (last >> FRAME_SHIFT) as u32 - frame);
            (is_end && !self.frames.is_pinned(handle) && !survey.has(handle, frame)).then_some(Odd {
                handle,
                window,
                size_bytes: end - record.start,
            })
        });
        ends.collect()
    }
}

/// Moves it to another window of its handle.
pub(super) fn move_odd(
    frames: &mut Frames,
    spaces: &mut [Space; 2],
    records: &mut Records,
    (odd, to): (&Odd, WindowId),
) {
    let start = odd.start(frames);
    let base = |id: WindowId| u64::from(id.slot()) << FRAME_SHIFT;
    let (from_base, to_base) = (base(odd.window), base(to));
    let (from, end) = (from_base + start, from_base + start + odd.size_bytes);
    let mut moved: Vec<(u64, u64, Pending)> = Vec::new();
    let mut stamps: Vec<Stamp> = Vec::new();
    spaces[odd.window.space()].vacate(records, from, end, |records, start, end, pending| {
        stamps.extend_from_slice(records.sets.stamps(&pending));
        moved.push((start - from_base, end - from_base, pending));
    });
    frames.note_departed(odd.handle, &stamps);
    let is_left = !spaces[odd.window.space()].is_gap(records, from >> FRAME_SHIFT);
    frames.share(odd.handle, (start >> FRAME_SHIFT) as u32, (odd.window, is_left), to);
    for (start, end, pending) in moved {
        spaces[to.space()].occupy(records, to_base + start, to_base + end, pending);
    }
}

impl Space {
    /// Whether nothing of a frame of addresses has memory.
    fn is_gap(&self, records: &Records, slot: u64) -> bool {
        let (start, end) = (slot << FRAME_SHIFT, (slot + 1) << FRAME_SHIFT);
        let record = &records[self.at(records, start)];
        record.kind == Kind::Gap && record.end() >= end
    }

    /// Whether the same work may touch all that a frame of addresses has of memory.
    pub(super) fn is_usable(&self, slot: u64, view: &View<impl Order>) -> bool {
        let end = (slot + 1) << FRAME_SHIFT;
        let mut place = slot << FRAME_SHIFT;
        while place < end {
            let record = &view.records[self.at(view.records, place)];
            if record.kind != Kind::Gap && !view.is_usable(record) {
                return false;
            }
            place = record.end();
        }
        true
    }
}

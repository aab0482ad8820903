//! [`Extension`]: a stretch of addresses that a block may have, too short by itself, with room for new windows behind it.
//! Pure.
//!
//! Rows of windows that continue nothing are made with a gap before them. Whoever needs a little more than a row has
//! adds windows behind it, which costs the driver as many calls as there are new windows, not as many as the block has.

use super::frames::{Frames, ones};
use super::space::{FRAME_BYTES, FRAME_SHIFT, Space};
use super::survey::{Idle, Survey, View};
use super::windows::WindowId;
use super::{Heap, frames_in};
use crate::order::Order;

/// Where a block would start, and what it takes to make it fit.
#[derive(Debug)]
pub(super) struct Extension {
    pub(super) start: u64,
    /// New windows stand from here on, up to so many frames of addresses.
    pub(super) row_start: u64,
    pub(super) room_frames: u64,
    pub(super) missing_frames: u32,
    /// Windows of the stretch, and the frames that move back to each.
    pub(super) moves: Vec<(WindowId, u64)>,
    /// The stretch's own memory, which can't be mapped elsewhere for this block.
    pub(super) survey: Survey,
}

impl Extension {
    /// What continues nothing may as well stand elsewhere, unless its alignment needs more than that of a frame.
    pub(super) fn is_worth_it(&self, alignment: u64) -> bool {
        self.start < self.row_start || alignment > FRAME_BYTES
    }
}

impl Heap {
    /// Those that miss the fewest frames, fewest first. That at the end of the space, which suits any alignment, is the
    /// last, whatever it misses.
    pub(super) fn extensions(
        &self,
        index: usize,
        place: (u64, u64),
        survey: &Survey,
        view: &View<impl Order>,
    ) -> Vec<Extension> {
        let space = &self.spaces[index];
        let idle = match self.frames.pins_any() {
            true => Survey::collect(&self.frames, &self.spaces, view).by_handle(&self.frames),
            false => survey.by_handle(&self.frames),
        };
        let stretch = Stretch { frames: &self.frames, index, idle };
        let end = (space.end() >> FRAME_SHIFT, space.room_bytes() >> FRAME_SHIFT);
        let at = |(slot, room_frames)| stretch.extension(space, (slot, room_frames), place, view);
        let mut found: Vec<Extension> = Vec::new();
        if place.1 <= FRAME_BYTES {
            let holes = self.frames.holes(index).iter();
            found.extend(holes.filter_map(at).filter(|found| found.start < found.row_start));
            found.sort_by_key(|extension| extension.missing_frames);
            found.truncate(LOOKS_MAX);
        }
        found.extend(at(end));
        found
    }
}

/// Of a window, the frames that are part of a stretch.
struct Before {
    window: WindowId,
    handle: u32,
    mask: u64,
}

struct Stretch<'a> {
    frames: &'a Frames,
    index: usize,
    /// Of every handle, which of its frames are idle.
    idle: Vec<u64>,
}

impl Stretch<'_> {
    /// What lies before a hole, as far as the block needs it.
    fn extension(
        &self,
        space: &Space,
        (slot, room_frames): (u64, u64),
        (size_bytes, alignment): (u64, u64),
        view: &View<impl Order>,
    ) -> Option<Extension> {
        let parts = self.before(slot, frames_in(size_bytes));
        let frame_count: u32 = parts.iter().map(|part| part.mask.count_ones()).sum();
        let row_start = slot << FRAME_SHIFT;
        let low = row_start - (u64::from(frame_count) << FRAME_SHIFT);
        let left = self.free_before(space, low, view);
        let start = space.base.checked_add(left)?.checked_next_multiple_of(alignment)? - space.base;
        let missing_frames = frames_in(start.checked_add(size_bytes)?.saturating_sub(row_start));
        if u64::from(missing_frames) > room_frames {
            return None;
        }
        let moves = parts.iter().filter_map(|part| {
            let skipped = (start >> FRAME_SHIFT).saturating_sub(u64::from(part.window.slot())).min(64) as u32;
            let away = part.mask & !self.frames.resident(part.window) & !ones(0, skipped);
            (away != 0).then_some((part.window, away))
        });
        let idle = parts.iter().map(|part| Idle { handle: part.handle, mask: part.mask, slot: 0 });
        Some(Extension {
            start,
            row_start,
            room_frames,
            missing_frames,
            moves: moves.collect(),
            survey: Survey::of(idle.collect()),
        })
    }

    /// Windows side by side up to a slot, and the frames of each that are idle: each frame of memory once.
    fn before(&self, mut slot: u64, most_frames: u32) -> Vec<Before> {
        let mut parts: Vec<Before> = Vec::new();
        let mut missing = most_frames;
        while missing > 0 && slot > 0 {
            let Some(entry) = self.frames.entry(self.index, slot - 1) else { break };
            let (handle, last) = (entry.handle(), entry.frame());
            let window = WindowId::new(self.index, slot as u32 - 1 - last);
            let mut idle = self.idle[handle as usize];
            // What is pinned may be had where it is.
            if self.frames.is_pinned(handle) {
                idle &= self.frames.resident(window);
            }
            for other in parts.iter().filter(|other| other.handle == handle) {
                idle &= !other.mask;
            }
            let count = (idle << (63 - last)).leading_ones().min(last + 1).min(missing);
            if count == 0 {
                break;
            }
            parts.push(Before { window, handle, mask: ones(last + 1 - count, count) });
            missing -= count;
            slot -= u64::from(count);
            if count < last + 1 {
                break;
            }
        }
        parts
    }

    /// The frame before a place is not idle as a whole, but the bytes next to the place may be free: from where on. What is in
    /// several windows may be about to move.
    fn free_before(&self, space: &Space, place: u64, view: &View<impl Order>) -> u64 {
        let entry = place.checked_sub(1).and_then(|last| self.frames.entry(self.index, last >> FRAME_SHIFT));
        let Some(_) = entry.filter(|entry| !entry.is_part()) else { return place };
        let id = space.at(view.records, place - 1);
        if !view.is_usable(&view.records[id]) {
            return place;
        }
        let start = space.run_around(id, view).0;
        if place - start < FRAME_BYTES { start } else { place }
    }
}

/// So many stretches are planned for.
const LOOKS_MAX: usize = 4;

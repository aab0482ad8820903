//! [`Odd`]: the part of a block that fills no frame, where another block has left as much of one over.
//!
//! A block of 90 and a half frames takes 91, and half a frame is left behind it. Where several streams share a heap without
//! slack, such ends add up: what one stream has begun no other can have. There a block may start with the end of a frame that
//! its own stream has left over, in a window of that very handle, and go on with whole frames. The frame's bytes are then in
//! two windows, each byte in one of them, until nobody holds any: then they come together wherever the frame goes.
//!
//! At a limit, where a request would be refused otherwise, a block may also end with the start of a frame that is free, and
//! either end may be any stream's that is ordered before it ([`Heap::glued`]).

use super::Heap;
use super::build::Row;
use super::fit::UNIT_BYTES;
use super::frames::Frames;
use super::record::{Kind, Records};
use super::space::{FRAME_BYTES, FRAME_SHIFT, Space};
use super::stamps::{Owner, Pending};
use super::survey::{Survey, View};
use super::windows::WindowId;
use crate::order::{Order, Stamp, StreamIndex};

/// The end of a handle that a block can start with, or the start of one that it can end with; the frame is not idle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Odd {
    pub(super) handle: u32,
    /// Where the bytes are now.
    window: WindowId,
    pub(super) size_bytes: u64,
    side: Side,
}

/// The side of a handle that free bytes are at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Start,
    End,
}

impl Odd {
    /// Where in the handle its bytes start.
    pub(super) fn start(&self, frames: &Frames) -> u64 {
        match self.side {
            Side::Start => 0,
            Side::End => (u64::from(frames.handle(self.handle).frame_count) << FRAME_SHIFT) - self.size_bytes,
        }
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
    pub(super) fn ends(&self, index: usize, slot: StreamIndex, survey: &Survey) -> Vec<Odd> {
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
                side: Side::End,
            })
        });
        ends.collect()
    }

    /// A row for a block that starts in the free end of one frame and ends in the free start of another, with the fewest new
    /// frames between them. For the last rungs of a heap that is careful: each such block costs up to two mappings of
    /// memory that it has little of.
    pub(super) fn glued(
        &self,
        (size_bytes, alignment): (u64, u64),
        survey: &Survey,
        view: &View<impl Order>,
        room: u64,
    ) -> Option<Row> {
        if !self.is_careful() || alignment > FRAME_BYTES {
            return None;
        }
        let (mut heads, mut tails) = (Vec::new(), Vec::new());
        for id in self.spaces.iter().flat_map(Space::fits).flat_map(|fit| fit.ids(&self.records, 0)) {
            if view.is_usable(&self.records[id]) {
                heads.extend(self.free_side(id, Side::Start, survey));
                tails.extend(self.free_side(id, Side::End, survey));
            }
        }
        // A block that starts in the middle of a frame is aligned to nothing else.
        tails.retain(|_| alignment <= UNIT_BYTES);
        heads.sort_unstable_by_key(|head: &Odd| (head.size_bytes, head.handle));
        let bytes = |odd: Option<Odd>| odd.map_or(0, |odd| odd.size_bytes);
        let frames = |tail, head| size_bytes.saturating_sub(bytes(tail) + bytes(head)).div_ceil(FRAME_BYTES);
        let is_apart = |tail: Option<Odd>, head: &Odd| tail.is_none_or(|tail| tail.handle != head.handle);
        let fewest = |tail| frames(tail, heads.iter().rev().find(|head| is_apart(tail, head)).copied());
        let tails = core::iter::once(None).chain(tails.into_iter().map(Some));
        let tail = tails.min_by_key(|tail| (fewest(*tail), bytes(*tail)))?;
        let new_frames = fewest(tail);
        let fitting = heads.iter().copied().filter(|head| is_apart(tail, head)).map(Some);
        let head = core::iter::once(None).chain(fitting).find(|head| frames(tail, *head) == new_frames)?;
        if new_frames > room || tail.is_none() && head.is_none() {
            return None;
        }
        let odd_bytes = size_bytes - (new_frames << FRAME_SHIFT).min(size_bytes);
        let tail_bytes = bytes(tail).min(odd_bytes);
        let cut = |odd: Option<Odd>, size_bytes| {
            odd.filter(|_| size_bytes > 0).map(|odd| Odd { size_bytes, ..odd })
        };
        Some(Row {
            odd: cut(tail, tail_bytes),
            new: self.new_handles(u32::try_from(new_frames).ok()?),
            head: cut(head, odd_bytes - tail_bytes),
            ..Row::default()
        })
    }

    /// What a free record has of a frame at one side of a handle, which is not free as a whole.
    fn free_side(&self, id: u32, side: Side, survey: &Survey) -> Option<Odd> {
        let record = &self.records[id];
        let index = usize::from(record.space);
        let (slot, size_bytes) = match side {
            Side::Start => {
                let start = record.end() / FRAME_BYTES * FRAME_BYTES;
                (start >> FRAME_SHIFT, (start >= record.start).then(|| record.end() - start)?)
            }
            Side::End => {
                let end = record.start.next_multiple_of(FRAME_BYTES);
                ((end >> FRAME_SHIFT).checked_sub(1)?, (end <= record.end()).then(|| end - record.start)?)
            }
        };
        if size_bytes == 0 {
            return None;
        }
        let entry = self.frames.entry(index, slot)?;
        let (handle, frame) = (entry.handle(), entry.frame());
        let outermost = match side {
            Side::Start => 0,
            Side::End => self.frames.handle(handle).frame_count - 1,
        };
        let window = WindowId::new(index, slot as u32 - frame);
        (frame == outermost && !self.frames.is_pinned(handle) && !survey.has(handle, frame)).then_some(Odd {
            handle,
            window,
            size_bytes,
            side,
        })
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

//! New handles, or segments: how many, how large, and how far the heap may grow.

use super::super::magazine::Piece;
use super::super::vmm::Backing;
use super::build::{self, Row};
use super::plan;
use super::space::{FRAME_BYTES, FRAME_SHIFT};
use super::survey::{Idle, Survey, View};
use super::{Heap, LARGE_SPACE, Request, frames_in, rounded, space_of};
use crate::clock::Order;
use gpumem_sys::DriverError;

impl Heap {
    /// A piece that new handles are part of. No more than `reserved_max_bytes` are reserved afterwards.
    ///
    /// # Errors
    ///
    /// What the driver says, that it has no more memory included; nothing has changed then.
    pub(in super::super) fn take_grown(
        &mut self,
        request: &Request,
        order: &impl Order,
        backing: &mut impl Backing,
        reserved_max_bytes: u64,
    ) -> Result<Option<Piece>, DriverError> {
        if self.segments.is_some() {
            return self.take_of_new_segment(request, backing, reserved_max_bytes);
        }
        let Some(size_bytes) = rounded(request.size_bytes) else { return Ok(None) };
        let index = space_of(request);
        let room = reserved_max_bytes.saturating_sub(self.reserved_bytes()) >> FRAME_SHIFT;
        let view = View { records: &self.records, slot: request.slot, order, with_ready: true };
        let Some(tail) = self.tail(index, (size_bytes, request.alignment), &view) else { return Ok(None) };
        let missing = tail.missing_frames;
        if missing == 0 {
            return Ok(Some(self.claimed(index, tail.start, size_bytes, request.slot)));
        }
        let target = self.growth_target_bytes(request).saturating_sub(self.reserved_bytes()) >> FRAME_SHIFT;
        let row = if u64::from(missing) <= room.min(target) {
            let frame_count = missing
                .max(self.growth_frames(index))
                .min(u32::try_from(room.min(target)).unwrap_or(u32::MAX));
            Row { new: self.new_handles(frame_count), ..Row::default() }
        } else {
            let survey = Survey::movable(&self.frames, &self.spaces, &view);
            let from_start = tail.start != self.spaces[index].end() || request.alignment > FRAME_BYTES;
            match self.mixed_row(&survey.without(&tail.survey).idle, missing, room, from_start) {
                Some(row) => row,
                None => return Ok(None),
            }
        };
        self.build(index, &Request { size_bytes, ..*request }, tail.start, &row, backing)
    }

    /// All that is idle and can stand in a row, and new handles for the rest.
    pub(super) fn mixed_row(&self, idle: &[Idle], missing: u32, room: u64, from_start: bool) -> Option<Row> {
        let sizes = |handle| self.frames.handle(handle).frame_count;
        let (mut parts, last) = plan::reach(idle, sizes, from_start);
        let mut missing = missing.checked_sub(last.map_or(0, |part| part.count))?;
        parts.retain_mut(|part| {
            part.count = part.count.min(missing);
            missing -= part.count;
            part.count > 0
        });
        (missing > 0 && u64::from(missing) <= room).then(|| Row {
            parts,
            new: self.new_handles(missing),
            last,
        })
    }

    /// Makes new handles for so many bytes more, which are ready for all. False when that would reserve more than
    /// `reserved_max_bytes`.
    ///
    /// # Errors
    ///
    /// What the driver says; nothing has changed then.
    pub(in super::super) fn reserve(
        &mut self,
        size_bytes: u64,
        backing: &mut impl Backing,
        reserved_max_bytes: u64,
    ) -> Result<bool, DriverError> {
        let frame_count = frames_in(size_bytes);
        let room = reserved_max_bytes.saturating_sub(self.reserved_bytes()) >> FRAME_SHIFT;
        if u64::from(frame_count) > room {
            return Ok(false);
        }
        if self.segments.is_some() {
            return Ok(self.add_segment(LARGE_SPACE, u64::from(frame_count), backing)?.is_some());
        }
        let row = Row { new: self.new_handles(frame_count), ..Row::default() };
        let is_made = build::make(self, (LARGE_SPACE, self.spaces[LARGE_SPACE].end()), &row, backing)?;
        self.reserved_peak_bytes = self.reserved_peak_bytes.max(self.reserved_bytes());
        Ok(is_made)
    }

    /// How far the heap may grow for this request before anything dearer than a new handle is worth trying.
    pub(in super::super) fn growth_target_bytes(&self, request: &Request) -> u64 {
        let used = self.used_bytes.saturating_add(request.size_bytes).max(self.used_peak_bytes);
        let is_spent = self.window_credit < 1000;
        let slack_per_mille =
            if is_spent { self.dials.growth_slack_max_per_mille } else { self.dials.growth_slack_per_mille };
        let slack_bytes = (used / 1000).saturating_mul(u64::from(slack_per_mille));
        // Where nothing can be mapped elsewhere, there has to be room for what is left over.
        let piece_frames = self.segments.as_ref().map_or(0, |_| self.segment_frames(space_of(request)));
        used.saturating_add(slack_bytes).saturating_add(piece_frames << FRAME_SHIFT)
    }

    /// How much a space grows by at least: few handles for a large heap, little waste in a small one.
    pub(super) fn growth_frames(&self, index: usize) -> u32 {
        let reserved = self.spaces[index].end().min(self.reserved_bytes());
        let bytes = reserved / u64::from(self.dials.growth_divisor);
        let frames = (bytes >> FRAME_SHIFT).max(1).next_power_of_two();
        (frames as u32).min(self.dials.handle_max_frames)
    }

    pub(super) fn new_handles(&self, frame_count: u32) -> Vec<u32> {
        let largest = self.dials.handle_max_frames;
        let mut handles = vec![largest; (frame_count / largest) as usize];
        let rest = frame_count % largest;
        handles.extend((rest > 0).then_some(rest));
        handles
    }
}

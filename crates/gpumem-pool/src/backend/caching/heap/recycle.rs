//! Memory that is idle under other addresses: it moves back where it has been before, or is mapped anew.

use super::super::magazine::Piece;
use super::super::vmm::Backing;
use super::build::Row;
use super::frames::move_frames;
use super::plan::{self, Part};
use super::revival::revival;
use super::space::FRAME_BYTES;
use super::survey::{Survey, View};
use super::{Heap, Request, frames_in, rounded, space_of};
use crate::clock::Order;
use gpumem_sys::DriverError;

impl Heap {
    /// A piece of memory that is free under other addresses: it moves back where it has been before, or is mapped anew.
    ///
    /// # Errors
    ///
    /// What the driver says; nothing has changed then.
    pub(in super::super) fn take_recycled(
        &mut self,
        request: &Request,
        order: &impl Order,
        backing: &mut impl Backing,
    ) -> Result<Option<Piece>, DriverError> {
        if self.may_take_ready(request) {
            return self.take_idle(request, order, backing, true);
        }
        if let Some(piece) = self.take_idle(request, order, backing, false)? {
            return Ok(Some(piece));
        }
        if let Some(piece) = self.take_own_first(request, order, backing)? {
            return Ok(Some(piece));
        }
        match self.take_free(space_of(request), request, order, true) {
            Some(piece) => Ok(Some(piece)),
            None => self.take_idle(request, order, backing, true),
        }
    }

    pub(super) fn take_idle(
        &mut self,
        request: &Request,
        order: &impl Order,
        backing: &mut impl Backing,
        with_ready: bool,
    ) -> Result<Option<Piece>, DriverError> {
        let Some(size_bytes) = rounded(request.size_bytes) else { return Ok(None) };
        let index = space_of(request);
        let view = View { records: &self.records, slot: request.slot, order, with_ready };
        let survey = Survey::movable(&self.frames, &self.spaces, &view);
        // The block's first and last frame need not be idle.
        if survey.idle.is_empty() || survey.frame_count() + 2 < frames_in(size_bytes) {
            return Ok(None);
        }
        let place = (size_bytes, request.alignment);
        let found = revival(&survey, &self.frames, (index, &self.spaces[index]), place, &view);
        if let Some(found) = found {
            for (window, mask) in found.moves {
                move_frames(&mut self.frames, &mut self.spaces, &mut self.records, window, mask);
            }
            return Ok(Some(self.claimed(index, found.start, size_bytes, request.slot)));
        }
        let Some((start, parts)) = self.plan(index, (size_bytes, request.alignment), &survey, &view) else {
            return Ok(None);
        };
        let row = Row { parts, ..Row::default() };
        self.build(index, &Request { size_bytes, ..*request }, start, &row, backing)
    }

    /// All that is the stream's own and idle, and of what is ready for all only the rest.
    pub(super) fn take_own_first(
        &mut self,
        request: &Request,
        order: &impl Order,
        backing: &mut impl Backing,
    ) -> Result<Option<Piece>, DriverError> {
        let Some(size_bytes) = rounded(request.size_bytes).filter(|_| request.alignment <= FRAME_BYTES)
        else {
            return Ok(None);
        };
        let own = View { records: &self.records, slot: request.slot, order, with_ready: false };
        let own_idle = Survey::movable(&self.frames, &self.spaces, &own);
        let all_idle = Survey::movable(&self.frames, &self.spaces, &View { with_ready: true, ..own });
        let sizes = |handle| self.frames.handle(handle).frame_count;
        let (mut parts, _) = plan::reach(&own_idle.idle, sizes, false);
        let own_count: u32 = parts.iter().map(|part| part.count).sum();
        let Some(rest) = frames_in(size_bytes).checked_sub(own_count).filter(|_| own_count > 0) else {
            return Ok(None);
        };
        let Some(ready) = plan::plan(&all_idle.without(&own_idle).idle, sizes, rest, true) else {
            return Ok(None);
        };
        parts.extend(ready);
        let (index, end) = (space_of(request), self.spaces[space_of(request)].end());
        let row = Row { parts, ..Row::default() };
        self.build(index, &Request { size_bytes, ..*request }, end, &row, backing)
    }

    /// The fewest windows that would make room: behind what is free at the end of the space, or on their own.
    pub(super) fn plan(
        &self,
        index: usize,
        (size_bytes, alignment): (u64, u64),
        survey: &Survey,
        view: &View<impl Order>,
    ) -> Option<(u64, Vec<Part>)> {
        let sizes = |handle| self.frames.handle(handle).frame_count;
        let tail = self.tail(index, (size_bytes, alignment), view)?;
        let rest = survey.without(&tail.survey);
        let extended =
            plan::plan(&rest.idle, sizes, tail.missing_frames, true).map(|parts| (tail.start, parts));
        if alignment > FRAME_BYTES {
            return extended;
        }
        let end = self.spaces[index].end();
        let fresh = plan::plan(&survey.idle, sizes, frames_in(size_bytes), false).map(|parts| (end, parts));
        match (extended, fresh) {
            (Some(extended), Some(fresh)) if fresh.1.len() < extended.1.len() => Some(fresh),
            (extended, fresh) => extended.or(fresh),
        }
    }
}

//! [`Tail`]: what is free at the end of a space, which a row of new windows can continue.

use super::survey::{Survey, View};
use super::{Heap, frames_in};
use crate::clock::Order;

impl Heap {
    /// Where a block would start whose end is behind the end of the space.
    pub(super) fn tail(
        &self,
        index: usize,
        (size_bytes, alignment): (u64, u64),
        view: &View<impl Order>,
    ) -> Option<Tail> {
        let space = &self.spaces[index];
        let end = space.end();
        let start =
            space.base.checked_add(space.tail_start(view))?.checked_next_multiple_of(alignment)? - space.base;
        let missing_frames = frames_in(start.checked_add(size_bytes)?.saturating_sub(end));
        let survey = Survey::of_stretch(&self.frames, index, start.min(end), end);
        Some(Tail { start, missing_frames, survey })
    }
}

pub(super) struct Tail {
    pub(super) start: u64,
    /// What has to be mapped behind the end of the space.
    pub(super) missing_frames: u32,
    /// What is idle from the start on, and can't be mapped elsewhere for this block.
    pub(super) survey: Survey,
}

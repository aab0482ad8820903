//! [`Recent`]: the last few large blocks that came back to a set, each as it was handed out.
//!
//! A program that frees the block that it was given last, and asks for as much again, gets it again without the heap and
//! its lock. All else goes to the heap, a few at a time: where a block is best put, the heap knows. Nothing is lost by
//! waiting here: a large request that is not met from its set empties it first, and one that the heap can't meet empties
//! all sets.
//!
//! Unlike smaller pieces each keeps the stamp of its own free: other streams may have been ordered behind that since, and
//! a later stamp would hide it from them.

use super::magazine::Piece;

/// A block beyond the size classes, and when it was freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Large {
    pub(super) piece: Piece,
    /// As it was asked for: who asks for as much gets as much.
    pub(super) size_bytes: u64,
    /// What the heap is told with it; see [`Stamp`](crate::clock::Stamp).
    pub(super) stamp: u64,
}

/// Blocks that came back, oldest first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recent {
    list: [Large; COUNT_MAX],
    count: usize,
    /// The record of the block that was handed out last.
    last_out: u32,
}

impl Recent {
    pub(super) const fn new() -> Self {
        let none = Large { piece: Piece { address: 0, record: 0 }, size_bytes: 0, stamp: 0 };
        Self { list: [none; COUNT_MAX], count: 0, last_out: u32::MAX }
    }

    /// The block that was handed out last, if it was the last to come back too, and is of this size.
    #[inline]
    pub(super) fn take(&mut self, size_bytes: u64) -> Option<Piece> {
        let Large { piece, size_bytes: last_bytes, .. } = *self.as_slice().last()?;
        if last_bytes != size_bytes || piece.record != self.last_out {
            return None;
        }
        self.count -= 1;
        Some(piece)
    }

    /// False if there is no room.
    #[inline]
    pub(super) fn put(&mut self, large: Large) -> bool {
        let Some(place) = self.list.get_mut(self.count) else { return false };
        *place = large;
        self.count += 1;
        true
    }

    /// The heap has handed out a block.
    pub(super) fn note_out(&mut self, record: u32) {
        self.last_out = record;
    }

    /// All of them, which leave.
    pub(super) fn empty(&mut self) -> Self {
        let all = *self;
        self.count = 0;
        all
    }

    pub(super) fn as_slice(&self) -> &[Large] {
        self.list.get(..self.count).unwrap_or_default()
    }
}

/// So many are given to the heap at a time when there is no room for another.
const COUNT_MAX: usize = 4;

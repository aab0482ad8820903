//! [`Magazines`]: free blocks of one stream, a stack for each size class.
//!
//! *Allowance*: the bytes that they may hold, granted by the device's [`Budget`](super::budget::Budget). Part of it is
//! unused, their room: putting a piece in takes from the room, taking one out adds to it. [`LargeCache`] needs none.

use super::large_cache::LargeCache;
use crate::block::HeapBlock;
use crate::size_class::SizeClass;

#[derive(Debug)]
pub(super) struct Magazines {
    room_bytes: u64,
    allowance_bytes: u64,
    /// An empty list, of or for a batch.
    spare: Vec<HeapBlock>,
    /// What is beyond the classes.
    pub(super) recent: LargeCache,
    stacks: [Stack; SizeClass::COUNT],
}

/// The free pieces of one class.
#[derive(Debug)]
struct Stack {
    pieces: Vec<HeapBlock>,
    /// The class's size, here because it is needed whenever the stack is.
    size_bytes: u64,
}

impl Magazines {
    /// Empty ones without allowance.
    pub(super) fn new() -> Self {
        Self {
            room_bytes: 0,
            allowance_bytes: 0,
            spare: Vec::new(),
            recent: LargeCache::new(),
            stacks: core::array::from_fn(|index| Stack {
                pieces: Vec::new(),
                size_bytes: SizeClass::at(index).map_or(0, SizeClass::size_bytes),
            }),
        }
    }

    #[inline]
    fn stack(&mut self, class: SizeClass) -> &mut Stack {
        // SAFETY: a class's place is below their number, and there are as many stacks.
        unsafe { self.stacks.get_unchecked_mut(class.index()) }
    }

    /// One of a class, the one that came last.
    #[inline]
    pub(super) fn take(&mut self, class: SizeClass) -> Option<HeapBlock> {
        let stack = self.stack(class);
        let piece = stack.pieces.pop()?;
        self.room_bytes += stack.size_bytes;
        Some(piece)
    }

    /// False if there is no room for it.
    #[inline]
    pub(super) fn put(&mut self, class: SizeClass, piece: HeapBlock) -> bool {
        let all_bytes = self.room_bytes;
        let Stack { pieces, size_bytes: class_bytes } = self.stack(class);
        let (count, Some(room_bytes)) = (pieces.len(), all_bytes.checked_sub(*class_bytes)) else {
            return false;
        };
        // A stack grows only in `make_space`.
        let Some(place) = pieces.spare_capacity_mut().first_mut() else { return false };
        place.write(piece);
        // SAFETY: one more has just been written behind them.
        unsafe { pieces.set_len(count + 1) };
        self.room_bytes = room_bytes;
        true
    }

    /// Makes space for one more piece in the class's stack. If that is as long as it may get, its older half leaves, and
    /// takes its allowance along.
    pub(super) fn make_space(&mut self, class: SizeClass) -> Option<Vec<HeapBlock>> {
        let stack = &mut self.stacks[class.index()].pieces;
        if stack.len() < stack.capacity() {
            return None;
        }
        let (batch_count, longest) = (class.batch_count(), 2 * class.batch_count());
        if stack.len() < longest {
            stack.reserve_exact((3 * stack.len()).max(4).min(longest - stack.len()));
            return None;
        }
        self.allowance_bytes -= class.size_bytes() * batch_count as u64;
        let mut batch = core::mem::take(&mut self.spare);
        batch.extend(stack.drain(..batch_count));
        Some(batch)
    }

    /// Takes pieces out of a list, which bring their allowance along.
    pub(super) fn refill(&mut self, class: SizeClass, pieces: &mut Vec<HeapBlock>) {
        self.allowance_bytes += class.size_bytes() * pieces.len() as u64;
        self.stacks[class.index()].pieces.append(pieces);
    }

    /// The empty list that it has, if any.
    pub(super) fn take_spare(&mut self) -> Vec<HeapBlock> {
        core::mem::take(&mut self.spare)
    }

    /// Keeps an empty list for the next batch.
    pub(super) fn keep_spare(&mut self, list: Vec<HeapBlock>) {
        if list.capacity() > self.spare.capacity() {
            self.spare = list;
        }
    }

    /// What they may hold.
    pub(super) fn allowance_bytes(&self) -> u64 {
        self.allowance_bytes
    }

    /// How much of it is unused.
    pub(super) fn room_bytes(&self) -> u64 {
        self.room_bytes
    }

    pub(super) fn add_room(&mut self, granted_bytes: u64) {
        self.room_bytes += granted_bytes;
        self.allowance_bytes += granted_bytes;
    }

    /// Gives up room beyond `keep_bytes`. Returns how much.
    pub(super) fn give_up_room(&mut self, keep_bytes: u64) -> u64 {
        let excess_bytes = self.room_bytes.saturating_sub(keep_bytes);
        self.room_bytes -= excess_bytes;
        self.allowance_bytes -= excess_bytes;
        excess_bytes
    }

    pub(super) fn piece_count(&self) -> u64 {
        let small_count: u64 = self.stacks.iter().map(|stack| stack.pieces.len() as u64).sum();
        small_count + self.recent.as_slice().len() as u64
    }

    /// What its pieces come to.
    pub(super) fn held_bytes(&self) -> u64 {
        self.allowance_bytes - self.room_bytes
    }

    /// The same, counted.
    pub(super) fn counted_bytes(&self) -> u64 {
        self.stacks.iter().map(|stack| stack.size_bytes * stack.pieces.len() as u64).sum()
    }

    /// Gives up allowance until no more than `keep_bytes` are left: unused room first, then pieces, large ones first.
    /// Returns how much.
    pub(super) fn shrink(&mut self, keep_bytes: u64, mut leaves: impl FnMut(HeapBlock)) -> u64 {
        let before_bytes = self.allowance_bytes;
        let mut held_bytes = self.held_bytes();
        for stack in self.stacks.iter_mut().rev() {
            while held_bytes > keep_bytes
                && let Some(piece) = stack.pieces.pop()
            {
                held_bytes -= stack.size_bytes;
                leaves(piece);
            }
        }
        self.room_bytes = self.room_bytes.min(keep_bytes.saturating_sub(held_bytes));
        self.allowance_bytes = held_bytes + self.room_bytes;
        before_bytes - self.allowance_bytes
    }
}

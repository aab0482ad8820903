//! [`Magazines`]: free blocks of one stream, one stack for each size class.
//!
//! *Allowance*: the bytes that they may hold, granted by [`CacheBudget`](super::budget::CacheBudget). Its unused part is their *room*:
//! putting a block in takes from the room, taking one out adds to it. [`LargeCache`] needs no allowance.

use super::large_cache::LargeCache;
use crate::block::HeapBlock;
use crate::size_class::SizeClass;

#[derive(Debug)]
pub(super) struct Magazines {
    room_bytes: u64,
    allowance_bytes: u64,
    /// An empty list for a batch.
    spare: Vec<HeapBlock>,
    pub(super) large: LargeCache,
    stacks: [BlockStack; SizeClass::COUNT],
}

#[derive(Debug)]
struct BlockStack {
    blocks: Vec<HeapBlock>,
    /// The size of the class. It is next to the stack because both are needed together.
    size_bytes: u64,
}

impl Magazines {
    pub(super) fn new() -> Self {
        Self {
            room_bytes: 0,
            allowance_bytes: 0,
            spare: Vec::new(),
            large: LargeCache::new(),
            stacks: core::array::from_fn(|index| BlockStack {
                blocks: Vec::new(),
                size_bytes: SizeClass::at(index).map_or(0, SizeClass::size_bytes),
            }),
        }
    }

    #[inline]
    fn stack(&mut self, class: SizeClass) -> &mut BlockStack {
        // SAFETY: `index` is below `SizeClass::COUNT`, which is the length of `stacks`.
        unsafe { self.stacks.get_unchecked_mut(class.index()) }
    }

    #[inline]
    pub(super) fn take(&mut self, class: SizeClass) -> Option<HeapBlock> {
        let stack = self.stack(class);
        let block = stack.blocks.pop()?;
        self.room_bytes += stack.size_bytes;
        Some(block)
    }

    /// Puts a block in; false if there is no room.
    #[inline]
    pub(super) fn put(&mut self, class: SizeClass, block: HeapBlock) -> bool {
        let all_bytes = self.room_bytes;
        let BlockStack { blocks, size_bytes: class_bytes } = self.stack(class);
        let (count, Some(room_bytes)) = (blocks.len(), all_bytes.checked_sub(*class_bytes)) else {
            return false;
        };
        // A stack grows only in `make_space`.
        let Some(place) = blocks.spare_capacity_mut().first_mut() else { return false };
        place.write(block);
        // SAFETY: the element behind the first `count` has just been written.
        unsafe { blocks.set_len(count + 1) };
        self.room_bytes = room_bytes;
        true
    }

    /// Makes space for one more block in the stack of a class. A stack of the maximum length loses its older half, with the
    /// allowance.
    pub(super) fn make_space(&mut self, class: SizeClass) -> Option<Vec<HeapBlock>> {
        let stack = &mut self.stacks[class.index()].blocks;
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

    /// Adds the blocks of a list, which bring their allowance along.
    pub(super) fn refill(&mut self, class: SizeClass, blocks: &mut Vec<HeapBlock>) {
        self.allowance_bytes += class.size_bytes() * blocks.len() as u64;
        self.stacks[class.index()].blocks.append(blocks);
    }

    /// Takes the empty list, if there is one.
    pub(super) fn take_spare(&mut self) -> Vec<HeapBlock> {
        core::mem::take(&mut self.spare)
    }

    /// Keeps an empty list for the next batch.
    pub(super) fn keep_spare(&mut self, list: Vec<HeapBlock>) {
        if list.capacity() > self.spare.capacity() {
            self.spare = list;
        }
    }

    pub(super) fn allowance_bytes(&self) -> u64 {
        self.allowance_bytes
    }

    pub(super) fn room_bytes(&self) -> u64 {
        self.room_bytes
    }

    pub(super) fn add_room(&mut self, granted_bytes: u64) {
        self.room_bytes += granted_bytes;
        self.allowance_bytes += granted_bytes;
    }

    /// Returns room beyond `keep_bytes` to the budget. The result is its size in bytes.
    pub(super) fn give_up_room(&mut self, keep_bytes: u64) -> u64 {
        let excess_bytes = self.room_bytes.saturating_sub(keep_bytes);
        self.room_bytes -= excess_bytes;
        self.allowance_bytes -= excess_bytes;
        excess_bytes
    }

    pub(super) fn block_count(&self) -> u64 {
        let small_count: u64 = self.stacks.iter().map(|stack| stack.blocks.len() as u64).sum();
        small_count + self.large.as_slice().len() as u64
    }

    /// The size of all small blocks, from the allowance.
    pub(super) fn held_bytes(&self) -> u64 {
        self.allowance_bytes - self.room_bytes
    }

    /// The size of all small blocks, counted.
    pub(super) fn counted_bytes(&self) -> u64 {
        self.stacks.iter().map(|stack| stack.size_bytes * stack.blocks.len() as u64).sum()
    }

    /// Reduces the allowance to `keep_bytes`: unused room first, then blocks, large ones first. Returns the difference in bytes.
    pub(super) fn shrink(&mut self, keep_bytes: u64, mut leaves: impl FnMut(HeapBlock)) -> u64 {
        let before_bytes = self.allowance_bytes;
        let mut held_bytes = self.held_bytes();
        for stack in self.stacks.iter_mut().rev() {
            while held_bytes > keep_bytes
                && let Some(block) = stack.blocks.pop()
            {
                held_bytes -= stack.size_bytes;
                leaves(block);
            }
        }
        self.room_bytes = self.room_bytes.min(keep_bytes.saturating_sub(held_bytes));
        self.allowance_bytes = held_bytes + self.room_bytes;
        before_bytes - self.allowance_bytes
    }
}

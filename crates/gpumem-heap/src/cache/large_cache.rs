//! [`LargeCache`]: the last large blocks that were freed to a thread cache, each with its size and stamp.
//!
//! A program that frees the block that it allocated last, and allocates the same size again, gets that block back without taking the heap's
//! lock. Other blocks go to the heap, a few at a time, because only the heap can place them well.
//!
//! While the heap allows a cache to *retain* blocks ([`Retention`]), it hands out any of them, best fit first: up to a quarter larger than
//! the request, so that threads with varying sizes seldom contend for the heap. Without growth slack the limit is a sixteenth, because
//! the reserved memory has no room for a quarter of every block. The heap derives the amount from memory that was reserved ahead
//! and never needed. Other threads can still get retained blocks: a large request that misses its cache goes to the heap, and if the heap
//! finds too little, this thread's caches are emptied first, and then all caches.
//!
//! Each large block keeps the stamp of its own free, unlike small blocks. Other streams may have been ordered behind that free since; a
//! later stamp would hide the block from them.

use crate::block::HeapBlock;

/// A freed block beyond the size classes, with the stamp of its free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargeBlock {
    /// The address and the heap's record.
    pub block: HeapBlock,
    /// The size that was requested.
    pub size_bytes: u64,
    /// A lower bound of the actual size.
    pub step: SizeStep,
    /// The [`Stamp`](gpumem_base::order::Stamp) of the free, as a word.
    pub stamp: u64,
}

/// The amount of large blocks that a thread cache may retain, and the maximum difference between a retained block and a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// The combined size of retained blocks, in bytes.
    pub keep_bytes: u64,
    /// The maximum excess of a block over the request, in steps of a 64th of a power of two.
    pub excess_steps: u16,
}

/// A size, rounded to a 64th of its power of two. Orders by size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SizeStep(u16);

impl SizeStep {
    /// One more than the largest number of a step.
    pub const COUNT: u16 = 64 << STEP_SHIFT;

    /// The largest step that is not larger than a size.
    #[inline]
    pub const fn floor(size_bytes: u64) -> Self {
        let power = (size_bytes | 1 << STEP_SHIFT).ilog2();
        Self(((power - STEP_SHIFT) << STEP_SHIFT) as u16 + (size_bytes >> (power - STEP_SHIFT)) as u16)
    }

    /// The smallest step that is not smaller than a size.
    #[inline]
    const fn ceil(size_bytes: u64) -> Self {
        Self(Self::floor(size_bytes.saturating_sub(1)).0 + 1)
    }

    /// The number of the step, below [`SizeStep::COUNT`].
    #[inline]
    pub const fn number(self) -> u16 {
        self.0
    }

    /// The step with a number; `None` from [`SizeStep::COUNT`] on.
    #[inline]
    pub fn at(number: u16) -> Option<Self> {
        (number < Self::COUNT).then_some(Self(number))
    }

    /// The smallest size of the step, in bytes.
    #[inline]
    pub const fn size_bytes(self) -> u64 {
        let (power, part) = (self.0 >> STEP_SHIFT, self.0 as u64 % (1 << STEP_SHIFT));
        match power {
            0 => part,
            power => ((1 << STEP_SHIFT) + part) << (power - 1),
        }
    }
}

#[derive(Debug)]
pub(super) struct LargeCache {
    list: Vec<LargeBlock>,
    /// The size of each block, 0 beyond the last. A search reads only this.
    steps: [SizeStep; COUNT_MAX],
    held_bytes: u64,
    /// The part of `size_bytes` that the heap counts as kept.
    published_bytes: u64,
    retention: Retention,
    /// The record of the block that was handed out last.
    last_out: u32,
}

impl LargeCache {
    pub(super) const fn new() -> Self {
        Self {
            list: Vec::new(),
            steps: [SizeStep(0); COUNT_MAX],
            held_bytes: 0,
            published_bytes: 0,
            retention: Retention { keep_bytes: 0, excess_steps: 0 },
            last_out: u32::MAX,
        }
    }

    /// While blocks are retained, the best fit. Otherwise only the block that was handed out last, if it was also freed last and has this
    /// size.
    #[inline]
    pub(super) fn take(&mut self, size_bytes: u64) -> Option<LargeBlock> {
        let last = self.list.last()?;
        if last.size_bytes == size_bytes && last.block.record == self.last_out {
            return self.remove(self.list.len() - 1);
        }
        self.remove(self.nearest(size_bytes)?)
    }

    /// The index of the smallest block that is large enough, within the allowed excess.
    #[inline]
    fn nearest(&self, size_bytes: u64) -> Option<usize> {
        if !self.keeps() {
            return None;
        }
        let least = SizeStep::ceil(size_bytes);
        let excess = |step: &SizeStep| u32::from(step.0.wrapping_sub(least.0)) << PLACE_BITS;
        let nearest = self.steps.iter().zip(0..).map(|(step, place)| excess(step) | place).min()?;
        let (excess, place) = (nearest >> PLACE_BITS, nearest % (1 << PLACE_BITS));
        (excess <= u32::from(self.retention.excess_steps)).then_some(place as usize)
    }

    #[inline]
    fn remove(&mut self, place: usize) -> Option<LargeBlock> {
        let last = self.list.pop()?;
        let end = self.list.len();
        self.steps[place] = self.steps[end];
        self.steps[end] = SizeStep(0);
        let large = match self.list.get_mut(place) {
            Some(there) => core::mem::replace(there, last),
            None => last,
        };
        self.held_bytes -= large.step.size_bytes();
        self.last_out = large.block.record;
        Some(large)
    }

    /// Adds a block; false if there is no room.
    #[inline]
    pub(super) fn put(&mut self, large: LargeBlock) -> bool {
        let (count, held_bytes) = (self.list.len(), self.held_bytes.saturating_add(large.step.size_bytes()));
        if count >= COUNT_FREE && (held_bytes > self.retention.keep_bytes || count >= COUNT_MAX) {
            return false;
        }
        self.steps[count] = large.step;
        self.held_bytes = held_bytes;
        self.list.push(large);
        true
    }

    /// Records that the heap handed out a block, and the retention that applies from now on.
    pub(super) fn note_out(&mut self, record: u32, retention: Retention) {
        self.last_out = record;
        self.retention = retention;
    }

    /// True if blocks are retained. Then a block may be larger than the request.
    #[inline]
    pub(super) fn keeps(&self) -> bool {
        self.retention.keep_bytes > 0
    }

    /// True if a small block may replace one of a smaller class.
    pub(super) fn is_loose(&self) -> bool {
        self.keeps() && self.retention.excess_steps >= LOOSE_STEPS
    }

    /// Empties the cache unless blocks are retained. Returns the bytes held at the last call, and the bytes held now.
    pub(super) fn empty_unkept(&mut self, leaves: impl FnMut(LargeBlock)) -> (u64, u64) {
        if !self.keeps() {
            self.empty(leaves);
        }
        (core::mem::replace(&mut self.published_bytes, self.held_bytes), self.held_bytes)
    }

    /// Empties the cache and stops retaining, because a request found too little memory. The heap allows retention again later.
    pub(super) fn empty(&mut self, leaves: impl FnMut(LargeBlock)) {
        self.retention = Retention::default();
        self.leave(self.list.len(), leaves);
    }

    /// Returns the bytes that the heap counts as kept here, when the cache is closed.
    pub(super) fn forget(&mut self) -> u64 {
        core::mem::take(&mut self.published_bytes)
    }

    /// Removes some of the oldest blocks, few at a time, because other threads wait for the heap.
    pub(super) fn make_way(&mut self, leaves: impl FnMut(LargeBlock)) {
        let count = self.list.len();
        self.leave(if count <= COUNT_FREE { count } else { count.div_ceil(4).min(LEAVING_MAX) }, leaves);
    }

    pub(super) fn as_slice(&self) -> &[LargeBlock] {
        &self.list
    }

    fn leave(&mut self, count: usize, leaves: impl FnMut(LargeBlock)) {
        self.list.drain(..count).for_each(leaves);
        self.steps = [SizeStep(0); COUNT_MAX];
        self.steps.iter_mut().zip(&self.list).for_each(|(step, large)| *step = large.step);
        self.held_bytes = self.list.iter().map(|large| large.step.size_bytes()).sum();
    }
}

/// The number of blocks that a cache holds without retention.
const COUNT_FREE: usize = 4;

/// The maximum number of blocks that a cache retains: a search reads four cache lines.
const COUNT_MAX: usize = 1 << PLACE_BITS;
const PLACE_BITS: u32 = 7;

/// The maximum number of blocks that leave at one time.
const LEAVING_MAX: usize = 8;

/// [`Retention::excess_steps`] for a quarter of a power of two.
pub const LOOSE_STEPS: u16 = 16;

/// [`Retention::excess_steps`] for a sixteenth: without growth slack, a quarter of each block would not fit into the memory
/// reserved ahead.
pub const CLOSE_STEPS: u16 = 4;

const STEP_SHIFT: u32 = 6;

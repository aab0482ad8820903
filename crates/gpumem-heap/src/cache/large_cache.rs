//! [`LargeCache`]: the last large blocks that came back to a set, each as it was handed out.
//!
//! A program that frees the block that it was given last, and asks for as much again, gets it again without the heap and
//! its lock. All else goes to the heap, a few at a time: where a block is best put, the heap knows.
//!
//! A set that *keeps* some hands out any of them instead, the one that fits best: up to a quarter larger than the request, so
//! that many threads whose sizes vary seldom meet at the heap. Where the profile allows no slack, and a quarter of every block
//! would not fit into what is reserved ahead, it is a sixteenth. The heap sets how much a set may keep ([`Retention`]): a part of
//! the memory that was reserved ahead and was never needed. Nothing is lost by waiting here: a large request that is not met
//! from its set looks at the heap, and one that the heap can't meet empties first this thread's sets and then all.
//!
//! Unlike smaller pieces each has the stamp of its own free: other streams may have been ordered behind that since, and
//! a later stamp would hide it from them.

use crate::block::HeapBlock;

/// A block beyond the size classes, and when it was freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargeBlock {
    /// Where it is.
    pub piece: HeapBlock,
    /// As it was asked for.
    pub size_bytes: u64,
    /// What there is of it at least.
    pub step: SizeStep,
    /// What the heap is told with it; see [`Stamp`](crate::order::Stamp).
    pub stamp: u64,
}

/// How much a set may keep of large blocks, and how loosely one may fit a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// The most that the cache keeps.
    pub keep_bytes: u64,
    /// How much larger than the request a kept block may be, in steps of a 64th of a power of two.
    pub excess_steps: u16,
}

/// A size to a 64th of its power of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SizeStep(u16);

impl SizeStep {
    /// More than every other.
    pub const COUNT: u16 = 64 << STEP_SHIFT;

    /// The last that is no larger.
    #[inline]
    pub const fn floor(size_bytes: u64) -> Self {
        let power = (size_bytes | 1 << STEP_SHIFT).ilog2();
        Self(((power - STEP_SHIFT) << STEP_SHIFT) as u16 + (size_bytes >> (power - STEP_SHIFT)) as u16)
    }

    /// The first that is no smaller.
    #[inline]
    const fn ceil(size_bytes: u64) -> Self {
        Self(Self::floor(size_bytes.saturating_sub(1)).0 + 1)
    }

    /// Its number, below [`SizeStep::COUNT`].
    #[inline]
    pub const fn number(self) -> u16 {
        self.0
    }

    /// The step with a number; `None` from [`SizeStep::COUNT`] on.
    #[inline]
    pub fn at(number: u16) -> Option<Self> {
        (number < Self::COUNT).then_some(Self(number))
    }

    /// The least size of the step.
    #[inline]
    pub const fn size_bytes(self) -> u64 {
        let (power, part) = (self.0 >> STEP_SHIFT, self.0 as u64 % (1 << STEP_SHIFT));
        match power {
            0 => part,
            power => ((1 << STEP_SHIFT) + part) << (power - 1),
        }
    }
}

/// Blocks that came back, oldest first.
#[derive(Debug)]
pub(super) struct LargeCache {
    list: Vec<LargeBlock>,
    /// What there is of each, and 0 beyond the last: a search reads nothing else.
    steps: [SizeStep; COUNT_MAX],
    /// What there is of all.
    held_bytes: u64,
    /// What the heap was told of that.
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

    /// A block that fits, if the set keeps some; else only the one that was handed out last, if it was the last to come
    /// back too, and was of this size.
    #[inline]
    pub(super) fn take(&mut self, size_bytes: u64) -> Option<LargeBlock> {
        let last = self.list.last()?;
        if last.size_bytes == size_bytes && last.piece.record == self.last_out {
            return self.remove(self.list.len() - 1);
        }
        self.remove(self.nearest(size_bytes)?)
    }

    /// The place of the smallest that is large enough, and hardly larger.
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
        self.last_out = large.piece.record;
        Some(large)
    }

    /// False if there is no room.
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

    /// The heap has handed out a block, and says what may be kept from now on.
    pub(super) fn note_out(&mut self, record: u32, retention: Retention) {
        self.last_out = record;
        self.retention = retention;
    }

    /// Whether memory is plentiful enough that a block may be larger than was asked for.
    pub(super) fn keeps(&self) -> bool {
        self.retention.keep_bytes > 0
    }

    /// Whether a block of a class may stand in for one of a smaller class, up to twice as large.
    pub(super) fn is_loose(&self) -> bool {
        self.keeps() && self.retention.excess_steps >= LOOSE_STEPS
    }

    /// All leave where none is to be kept. Returns what was held when this was last asked, and what is held now.
    pub(super) fn empty_unkept(&mut self, leaves: impl FnMut(LargeBlock)) -> (u64, u64) {
        if !self.keeps() {
            self.empty(leaves);
        }
        (core::mem::replace(&mut self.published_bytes, self.held_bytes), self.held_bytes)
    }

    /// All leave: somebody needs them, so none is to be kept until the heap says so again.
    pub(super) fn empty(&mut self, leaves: impl FnMut(LargeBlock)) {
        self.retention = Retention::default();
        self.leave(self.list.len(), leaves);
    }

    /// The set is closed. Returns what the heap was told of it.
    pub(super) fn forget(&mut self) -> u64 {
        core::mem::take(&mut self.published_bytes)
    }

    /// Some of the oldest leave: few at a time, since others wait for the heap meanwhile.
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

/// So many wait in any set.
const COUNT_FREE: usize = 4;

/// So many does one keep at most: a search reads four cache lines.
const COUNT_MAX: usize = 1 << PLACE_BITS;
const PLACE_BITS: u32 = 7;

/// So many leave at once.
const LEAVING_MAX: usize = 8;

/// A quarter of a power of two.
pub const LOOSE_STEPS: u16 = 16;

/// A sixteenth: where the profile allows no slack, and a quarter of each block would not fit into what is reserved ahead.
pub const CLOSE_STEPS: u16 = 4;

const STEP_SHIFT: u32 = 6;

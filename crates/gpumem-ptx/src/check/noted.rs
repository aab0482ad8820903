//! One access of one thread, as the checks see it.

use crate::check::shadow::WORD_BYTES;
use crate::memory::Sought;
use crate::program::{Memory, Order};
use core::ops::Range;

/// How an access touches its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    Read,
    /// True if the bytes have the written value already.
    Write {
        is_same: bool,
    },
    /// An asynchronous copy writes.
    Copy,
    Atomic,
}

impl Touch {
    pub(super) fn is_write(self) -> bool {
        self != Self::Read
    }
}

/// One access of one thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Noted {
    pub(crate) touch: Touch,
    pub(crate) order: Order,
    pub(crate) memory: Memory,
    pub(crate) address: u64,
    pub(crate) size_bytes: u64,
    /// The size of an element, if it accesses several.
    pub(crate) element_bytes: u8,
    /// The thread's number in the block.
    pub(crate) thread: u32,
    pub(crate) step: u32,
    pub(crate) time: u64,
}

impl Noted {
    pub(super) fn is_one_of(&self, sought: &Sought) -> bool {
        let end = self.address.saturating_add(self.size_bytes);
        matches!(self.memory, Memory::Global | Memory::Generic)
            && self.address < sought.bytes.end
            && sought.bytes.start < end
            && self.touch.is_write() == sought.is_write
            && self.order.is_for_launches() == sought.is_strong
    }

    /// True if it is atomic or not weak.
    pub(super) fn is_strong(&self) -> bool {
        self.order.is_strong || self.touch == Touch::Atomic
    }

    /// The addresses of the elements: each is read and written on its own.
    pub(super) fn elements(&self) -> impl Iterator<Item = u64> + Clone + use<> {
        let (address, step) = (self.address, u64::from(self.element_bytes).max(1));
        let count = if self.element_bytes == 0 { 1 } else { self.size_bytes.div_ceil(step) };
        (0..count).map(move |index| address.wrapping_add(index * step))
    }

    /// Divides a read into units. A unit counts as unwritten if none of its bytes was written: compilers copy structures by words of 8 bytes,
    /// or by elements of at least 4, and so read the padding between the members.
    pub(super) fn units(&self, address: u64) -> impl Iterator<Item = Range<u64>> {
        let (start, end) = (address, address.saturating_add(self.size_bytes));
        let element_bytes = u64::from(self.element_bytes);
        let is_words = element_bytes < WORD_BYTES && self.size_bytes > element_bytes;
        // Of local memory, the whole word may be looked at.
        let is_whole = is_words && matches!(self.memory, Memory::Local | Memory::Frame);
        let unit = if is_words { 2 * WORD_BYTES } else { element_bytes.max(1) };
        (start / unit..end.div_ceil(unit)).map(move |number| {
            let word = number * unit..(number + 1).saturating_mul(unit);
            if is_whole { word } else { word.start.max(start)..word.end.min(end) }
        })
    }
}
